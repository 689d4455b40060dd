"""How far two results may be apart: the PTX's from the source's, and the region's from the eager one's."""

from __future__ import annotations

from typing import Any

FACTOR = 1.5
"""By how much a region's error may exceed the eager one's. What follows is arithmetic: what no kernel can do better."""

FLOAT32_STEPS = 16
"""Units in the last place by which two float32 may differ, of which one is a sum in another order. The sum of n values
of one sign, added in pairs, is off by at most log2(n) half units; two of up to 2**16 values differ by 16 units."""

OUTLIER = 4
"""By how much one rounding error may exceed the usual one (the root of mean square): by the square root of 3, for it
lies anywhere in half a step, and by 2, for a step is twice as large above a power of two as below it."""

FEW = 64
"""With fewer values than that, the root of mean square is no measure of a row. The squares of such errors vary by 0.9
of their mean, the root of the mean of 64 by 6 %, a ratio of two by 8 %: a sixth of what `FACTOR` leaves."""


def same_result(found: Any, expected: Any) -> str | None:
    """How a tensor from the PTX differs from the interpreted source's by more than rounding; None if it does not."""
    import torch

    if found.dtype.is_floating_point and found.dtype.itemsize > 2:
        return _close(found, expected)
    if not found.dtype.is_floating_point:
        different = int((found != expected).sum())
        return f"{different} of {found.numel()} integers differ" if different else None
    integer = torch.int16 if found.dtype.itemsize == 2 else torch.int8
    bits, wanted = (_ordered(t.contiguous().view(integer)) for t in (found, expected))
    both_nan = found.float().isnan() & expected.float().isnan()
    apart = (bits - wanted).abs().masked_fill(both_nan, 0)
    far = int((apart > 1).sum())
    if far:
        return f"{far} of {found.numel()} values differ, one by {int(apart.max())} steps"
    near = int((apart == 1).sum())
    if near > max(1, _share(found.dtype) * found.numel()):
        return f"{near} of {found.numel()} values are one step apart"
    return None


def _share(dtype: Any) -> float:
    """Of narrow floats, which are float32 rounded, the share that may be one step apart: those that lie so near to the
    middle between two that `FLOAT32_STEPS` to either side are rounded to the other one."""
    import torch

    return float(2 * FLOAT32_STEPS * torch.finfo(torch.float32).eps / torch.finfo(dtype).eps)


def _ordered(bits: Any) -> Any:
    """Bit patterns of floats as integers in the order of the values; both zeros are 0."""
    import torch

    wide = bits.to(torch.int64)
    smallest = -(1 << (8 * bits.dtype.itemsize - 1))
    return torch.where(wide < 0, smallest - wide, wide)


def _close(found: Any, expected: Any) -> str | None:
    """Units in the last place of the value itself, or of what is usual in its row: there terms may have cancelled."""
    import torch

    a, b = found.double(), expected.double()
    both_nan = a.isnan() & b.isnan()
    size = b.abs().masked_fill(~b.isfinite(), 0)
    usual = size.median(-1, keepdim=True).values if b.dim() and b.shape[-1] >= FEW else size
    allowed = FLOAT32_STEPS * torch.finfo(found.dtype).eps * torch.maximum(size, usual)
    wrong = ~(((a - b).abs() <= allowed) | both_nan | (a == b))
    count = int(wrong.sum())
    return (
        f"{count} of {found.numel()} values differ, one by {float((a - b).abs()[wrong].max()):.3g}" if count else None
    )


def close_to_exact(found: Any, eager: Any, exact: Any) -> str | None:
    """Why a tensor of the region is further from the exact one than eager execution is; None if it is not.

    Compares the error of every row (root of mean square) with the eager one's in that row, and the error of every
    element, in proportion to itself or to its row, whichever is larger, with the largest that eager execution has
    anywhere: in one element it may be lucky. A few values are no measure (`FEW`, `OUTLIER`): then it is compared with
    what is usual in the whole tensor. Never asks for more than half a step, which is what one rounding may cost, of
    float32 than half of `FLOAT32_STEPS`. Where the exact one is rounded to the same type, each of the two may have
    cost that.
    """
    import torch

    if not found.dtype.is_floating_point:
        different = int((found != eager).sum())
        return f"{different} of {found.numel()} integers differ from the eager ones" if different else None
    if found.shape != eager.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(eager.shape)}"
    rows = [t.double().reshape(-1, t.shape[-1] if t.dim() else 1) for t in (found, eager, exact)]
    unset = rows[1].isnan() & rows[2].isnan()  # nothing wrote it, in the eager run either
    if bool(unset.all()):
        return None
    ours, theirs = ((t - rows[2]).abs().masked_fill(unset, 0) for t in (rows[0], rows[1]))
    size = rows[2].abs().masked_fill(unset, 0)
    if not bool(torch.isfinite(ours).all()):
        return "values that are not finite"
    roundings = 2 if exact.dtype == found.dtype else 1  # graphs in float32 still make float8 of what they quantize
    tiny = torch.finfo(torch.float32).tiny
    step = torch.finfo(found.dtype).eps * (FLOAT32_STEPS if found.dtype.itemsize > 2 else roundings)
    ours_row, theirs_row, size_row = (t.pow(2).mean(1).sqrt() for t in (ours, theirs, size))
    usual = (theirs_row / size_row.clamp_min(tiny)).pow(2).mean().sqrt()
    if ours.shape[1] < FEW:  # such a row is no measure: eager execution may have been lucky in it
        theirs_row = torch.maximum(theirs_row, OUTLIER * usual * size_row)
    allowed_row = FACTOR * torch.maximum(theirs_row, step / 2 * size_row)
    worst = (ours_row - allowed_row).argmax()
    if bool(ours_row[worst] > allowed_row[worst]):
        ratio = float(ours_row[worst] / (allowed_row[worst] / FACTOR))
        return f"row {int(worst)} is {ratio:.3g} times as far from float32 as eager execution"
    scale = torch.maximum(size, size_row[:, None]).clamp_min(tiny)
    relative = theirs / scale
    most = max(float(relative.max()), OUTLIER * float(relative.pow(2).mean().sqrt()))
    far = int((ours > FACTOR * torch.maximum(most * scale, step / 2 * size)).sum())
    return f"{far} of {found.numel()} elements are too far from float32" if far else None
