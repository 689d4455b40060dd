"""Runs small kernels in Triton's mended interpreter and prints what each leaves, as one JSON object.

TRITON_INTERPRET=1 python mended_interpreter.py HATCH_PLUGIN
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, sys.argv[1])

import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers

from hatch_model_cache.compile.pretend.patches import Patches
from hatch_model_cache.compile.selfcheck.triton_interpreter import Bounds, mend

BOUNDS = Bounds()
mend(Patches(), BOUNDS)
libdevice = triton_helpers.libdevice
SIZE = 64


@triton.jit
def copy(source, result, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(result + place, tl.load(source + place).to(result.dtype.element_ty))


@triton.jit
def double(source, result, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(result + place, tl.load(source + place) * tl.load(source + place))


@triton.jit
def beyond(source, result, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(result + place, tl.load(source + place + 1))


@triton.jit
def root(source, result, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(result + place, libdevice.rsqrt(tl.load(source + place)))


@triton.jit
def unknown(source, result, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(result + place, libdevice.j0(tl.load(source + place)))


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def largest(source, result, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(result, tl.reduce(tl.load(source + place), 0, larger))


def run(kernel: Any, source: Any, result: Any) -> str:
    """The last cause of what the kernel raises; empty if nothing."""
    BOUNDS.allow([(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in (source, result)])
    try:
        kernel[(1,)](source, result, SIZE)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return f"{type(cause).__name__}: {cause}"
    return ""


def cast(dtype: Any, back: bool = False) -> bool:
    """Whether a cast gives what torch's gives."""
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(3)) * 3
    values[:3] = torch.tensor([1.00390625, 1.01171875, 1e-6])
    source = values.to(dtype) if back else values
    result = torch.empty(SIZE, dtype=torch.float32 if back else dtype)
    told = run(copy, source, result)
    return not told and torch.equal(result.float(), source.to(result.dtype).float())


def outcome(kernel: Any, dtype: Any, check: Callable[[Any, Any], bool] | None = None) -> Any:
    source, result = torch.rand(SIZE).add(1).to(dtype), torch.zeros(SIZE, dtype=dtype)
    told = run(kernel, source, result)
    return told if check is None else not told and check(source, result)


narrow = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
print(
    json.dumps(
        {
            "to": {name: cast(dtype) for name, dtype in narrow.items()},
            "from": {name: cast(dtype, back=True) for name, dtype in narrow.items()},
            "bf16 arithmetic": outcome(double, torch.bfloat16),
            "f32 arithmetic": outcome(double, torch.float32, lambda x, y: torch.equal(x * x, y)),
            "beyond": outcome(beyond, torch.float32),
            "rsqrt": outcome(root, torch.float32, lambda x, y: torch.equal(x.double().rsqrt().float(), y)),
            "unknown": outcome(unknown, torch.float32),
            "reduce": outcome(largest, torch.float32, lambda x, y: float(x.max()) == float(y[0])),
        }
    )
)
