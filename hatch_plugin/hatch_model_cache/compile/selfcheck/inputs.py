"""What a region is fed: tensors for its recorded inputs, seeded, with a number of tokens for each varying size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .triton_interpreter import RefusedError


@dataclass(frozen=True)
class Case:
    """One run of a region. tokens: what every varying size is; tiny: whether its weights are tiny, and so what they
    make of an activation."""

    tokens: int
    tiny: bool = False


CASES = (Case(1), Case(7), Case(33), Case(6, tiny=True))
"""One token, an odd number, and one at which kernels run in several blocks, the last of them not full. With tiny
weights the epsilon of every norm shows: of that after an embedding, and of one after a matrix product."""

FEW = Case(3)
"""With which the ranges of indices are found out."""

TINY = 2.0**-8
"""Scale of tiny weights, and of every fifth row of an activation: its mean square is near most norms' epsilon."""

TINIEST = 2.0**-20
"""Scale of every seventh row: its mean square is near 1e-12, the smallest epsilon of a known model. Blocks have 1, 2, 4
or 8 rows: each place in one has ordinary rows too."""


def make(
    inputs: Sequence[Mapping[str, Any]], case: Case, seed: int, ranges: Mapping[int, tuple[int, int]]
) -> list[Any]:
    """Values for the inputs of a region.

    Args:
        inputs: ``dtype``, ``shape`` and ``strides`` of each, as recorded.
        case: how many tokens, and of what size.
        seed: other values for another one.
        ranges: number of the input → its smallest integer, and what its integers stay below; others are zeros and ones.

    Raises:
        RefusedError: if a size is an expression of several others, or a dtype is not known.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    made = []
    for number, described in enumerate(inputs):
        sizes = [_size(text, case.tokens) for text in described["shape"]]
        if described["dtype"] in ("int", "object"):
            made.append(sizes[0] if sizes else None)  # an object only goes into library calls, which are cut
            continue
        dtype = getattr(torch, described["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise RefusedError(f"an input of type {described['dtype']}")
        strides = [_size(text, case.tokens) for text in described["strides"]]
        if dtype.is_floating_point:
            values = _floats(sizes, dtype, generator, tiny=case.tiny, varying=_varies(described))
        else:
            values = _integers(sizes, generator, *ranges.get(number, (0, 2)))
        made.append(torch.empty_strided(sizes, strides, dtype=dtype).copy_(values))
    return made


def ranges(inputs: Sequence[Mapping[str, Any]], run: Callable[[list[Any]], object]) -> dict[int, tuple[int, int]]:
    """For each integer input the widest range that the region takes: up to the largest size that could be indexed, and
    as far below zero, if it counts those from the end.

    Args:
        inputs: as `make` takes them.
        run: runs the region's graph; raises IndexError or RuntimeError for an index out of range.
    """
    sizes = {int(size) for described in inputs for size in described["shape"] if size.isdigit() and int(size) > 1}
    found: dict[int, tuple[int, int]] = {}
    for number, described in enumerate(inputs):
        if described["dtype"] not in ("int32", "int64"):
            continue

        def taken(value: int, number: int = number) -> bool:
            values = make(inputs, FEW, 0, found)
            values[number].fill_(value)
            try:
                run(values)
            except (IndexError, RuntimeError):
                return False
            return True

        end = next((size for size in sorted(sizes, reverse=True) if taken(size - 1)), None)
        if end is not None:
            found[number] = (-end if taken(-end) else 0), end
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


def _integers(sizes: Sequence[int], generator: Any, smallest: int, end: int) -> Any:
    """Random ones of a range, and first of all those at its edges."""
    import torch

    values = torch.randint(smallest, end, tuple(sizes), generator=generator)
    edges = torch.tensor([end - 1, smallest, 0, *([-1] if smallest < 0 else [])])[: values.numel()]
    values.view(-1)[: len(edges)] = edges
    return values


def _floats(sizes: Sequence[int], dtype: Any, generator: Any, *, tiny: bool, varying: bool) -> Any:
    import torch

    values = torch.randn(tuple(sizes), generator=generator)
    if varying:
        values[1::5] *= TINY
        values[3::7] *= TINIEST
        return values.to(dtype)
    if len(sizes) == 0:  # a scale
        return (0.5 + values.abs()).to(dtype)
    # one dimension: the weight of a norm, or a bias
    values = 1 + 0.3 * values if len(sizes) == 1 else values / math.sqrt(sizes[-1])
    return (values * TINY if tiny and dtype.itemsize > 1 else values).to(dtype)  # nothing is left of a tiny float8
