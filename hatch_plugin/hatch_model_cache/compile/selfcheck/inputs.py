"""What a region is fed: tensors for its recorded inputs, seeded, with a number of tokens for each varying size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .triton_interpreter import RefusedError

TOKENS = (1, 7, 33)
"""Numbers of tokens: one, an odd one, and one at which kernels run in several blocks, the last of them not full."""

FEW = 3
"""Tokens with which the bounds of indices are found out."""

TINY = 2.0**-8
"""By what every fourth row of an activation is scaled: there an epsilon shows."""


def make(inputs: Sequence[Mapping[str, Any]], tokens: int, seed: int, bounds: Mapping[int, int]) -> list[Any]:
    """Values for the inputs of a region.

    Args:
        inputs: ``dtype``, ``shape`` and ``strides`` of each, as recorded.
        tokens: what every varying size is.
        seed: other values for another one.
        bounds: number of the input → what its integers stay below; others are zeros and ones.

    Raises:
        RefusedError: if a size is an expression of several others, or a dtype is not known.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    made = []
    for number, described in enumerate(inputs):
        sizes = [_size(text, tokens) for text in described["shape"]]
        if described["dtype"] in ("int", "object"):
            made.append(sizes[0] if sizes else None)  # an object only goes into library calls, which are cut
            continue
        dtype = getattr(torch, described["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise RefusedError(f"an input of type {described['dtype']}")
        strides = [_size(text, tokens) for text in described["strides"]]
        values = _values(sizes, dtype, generator, bounds.get(number, 2), varying=_varies(described))
        made.append(torch.empty_strided(sizes, strides, dtype=dtype).copy_(values))
    return made


def bounds(inputs: Sequence[Mapping[str, Any]], run: Callable[[list[Any]], object]) -> dict[int, int]:
    """For each integer input the largest bound that the region takes: of the sizes that could be indexed.

    Args:
        inputs: as `make` takes them.
        run: runs the region's graph; raises IndexError or RuntimeError for an index out of range.
    """
    sizes = {int(size) for described in inputs for size in described["shape"] if size.isdigit() and int(size) > 1}
    found: dict[int, int] = {}
    for number, described in enumerate(inputs):
        if described["dtype"] not in ("int32", "int64"):
            continue
        for bound in sorted(sizes, reverse=True):
            values = make(inputs, FEW, 0, found)
            values[number].fill_(bound - 1)
            try:
                run(values)
            except (IndexError, RuntimeError):
                continue
            found[number] = bound
            break
    return found


def tensor(described: Mapping[str, Any], tokens: int, generator: Any) -> Any:
    """A tensor of ordinary values for what was recorded of one."""
    import torch

    sizes, strides = ([_size(text, tokens) for text in described[what]] for what in ("shape", "strides"))
    dtype = getattr(torch, described["dtype"])
    made = torch.empty_strided(sizes, strides, dtype=dtype)
    return made.copy_(ordinary(sizes, dtype, generator))


def ordinary(shape: Sequence[int], dtype: Any, generator: Any) -> Any:
    """Normal floats, zeros and ones of integers."""
    import torch

    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)


def _size(text: str, tokens: int) -> int:
    """A number, or one of a single symbol: ``s72``, ``256*s72``."""
    total = 1
    for factor in text.split("*"):
        if factor.isdigit():
            total *= int(factor)
        elif factor[:1] in ("s", "u") and factor[1:].isdigit():
            total *= tokens
        else:
            raise RefusedError(f"a size {text}")
    return total


def _varies(described: Mapping[str, Any]) -> bool:
    return any(not size.isdigit() for size in described["shape"])


def _values(sizes: Sequence[int], dtype: Any, generator: Any, bound: int, *, varying: bool) -> Any:
    import torch

    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return torch.randint(0, 2, tuple(sizes), generator=generator).to(dtype)
        values = torch.randint(0, bound, tuple(sizes), generator=generator)
        if values.numel():
            values.view(-1)[0] = bound - 1
        return values.to(dtype)
    values = torch.randn(tuple(sizes), generator=generator)
    if varying:
        values[1::4] *= TINY
    elif len(sizes) == 1:  # the weight of a norm, or a bias
        values = 1 + 0.3 * values
    elif len(sizes) == 0:  # a scale
        values = 0.5 + values.abs()
    else:
        values /= math.sqrt(sizes[-1])
    return values.to(dtype)
