"""Triton's interpreter, mended: what it computes wrong, does not know, or computes one element at a time.

Checked on triton 3.8.0 (triton/runtime/interpreter.py):

- `_convert_float` cuts float32 to bfloat16 off instead of rounding it, and rounds float8 without carrying;
- arithmetic on bfloat16 is done on its bit patterns: refused here;
- libdevice is not there at all;
- reductions with a function of their own go element by element;
- a load or store goes to whatever address it is given.

The process must have been started with TRITON_INTERPRET=1, before Triton is imported.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hatch_model_cache.compile.pretend.patches import Patches

from .ptx.numbers import Array, bf16_to_f32, f8_to_f32, f32_to_bf16, f32_to_f8

CHECKED = "triton 3.8.0"


class RefusedError(Exception):
    """The interpreter cannot run this; its message says what."""


class OutOfBoundsError(Exception):
    """A kernel's source loads or stores outside of its arguments."""


class Bounds:
    """Where the running kernel may load and store: whole storages, as (first address, size in bytes)."""

    def __init__(self) -> None:
        self._first = np.zeros(0, np.uint64)
        self._end = np.zeros(0, np.uint64)

    def allow(self, ranges: Sequence[tuple[int, int]]) -> None:
        """From now on, these ranges alone."""
        ordered = sorted(set(ranges))
        self._first = np.array([first for first, _ in ordered], np.uint64)
        self._end = np.array([first + size for first, size in ordered], np.uint64)

    def check(self, addresses: Array, size: int) -> None:
        """Raise OutOfBoundsError unless `size` bytes at each address are allowed."""
        if not addresses.size:
            return
        place = np.searchsorted(self._first, addresses, "right") - 1
        if not self._first.size or (place < 0).any() or (addresses + np.uint64(size) > self._end[place]).any():
            raise OutOfBoundsError("access out of bounds")


def mend(patches: Patches, bounds: Bounds) -> None:
    """Replace what is wrong in the interpreter, until the patches are undone."""
    import triton.runtime.interpreter as interpreter
    from torch._inductor.runtime import triton_helpers

    _mend_casts(patches, interpreter)
    _refuse_bfloat16(patches, interpreter)
    _check_bounds(patches, interpreter, bounds)
    why = "reduces element by element"
    patches.set(interpreter.ReduceOps, "generic_reduce", _reduce_by_halves, why=why, checked=CHECKED)
    why = "libdevice has no implementation there"
    patches.set(triton_helpers, "libdevice", _Libdevice("libdevice"), why=why, checked=CHECKED)
    patches.set(triton_helpers, "set_driver_to_gpu", lambda: None, why="there is none", checked=CHECKED)


def _mend_casts(patches: Patches, interpreter: Any) -> None:
    import triton.language as tl

    convert = interpreter._convert_float
    float8 = {tl.float8e4nv: "e4m3", tl.float8e5: "e5m2"}

    def mended(values: Array, source: Any, result: Any, rounding: Any) -> Array:
        if source == tl.bfloat16 or source in float8:
            bits = np.ascontiguousarray(values)
            wide = bf16_to_f32(bits) if source == tl.bfloat16 else f8_to_f32(float8[source], bits.view(np.uint8))
            return wide.view(np.uint32) if result == tl.float32 else mended(wide, tl.float32, result, rounding)
        if source == tl.float32 and result == tl.bfloat16:
            return f32_to_bf16(values)
        if source == tl.float32 and result in float8:
            return f32_to_f8(float8[result], values)
        if source == tl.float32 and result == tl.float16:
            return values.astype(np.float16).view(np.uint16)
        found: Array = convert(values, source, result, rounding)
        return found

    patches.set(interpreter, "_convert_float", mended, why="cuts off instead of rounding", checked=CHECKED)


def _refuse_bfloat16(patches: Patches, interpreter: Any) -> None:
    import triton.language as tl

    for name in ("binary_op", "unary_op"):
        plain = getattr(interpreter.InterpreterBuilder, name)

        def refusing(self: Any, value: Any, *others: Any, plain: Callable[..., Any] = plain) -> Any:
            if value.dtype.scalar == tl.bfloat16:
                raise RefusedError("arithmetic on bfloat16")
            return plain(self, value, *others)

        patches.set(
            interpreter.InterpreterBuilder, name, refusing, why="would compute with the bit patterns", checked=CHECKED
        )


def _check_bounds(patches: Patches, interpreter: Any, bounds: Bounds) -> None:
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        size = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
        bounds.check(_where(pointers.data, mask.data), size)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        size = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
        bounds.check(_where(pointers.data, mask.data), size)
        return store(self, pointers, value, mask, *rest)

    why = "goes to any address of this process"
    patches.set(builder, "create_masked_load", checked_load, why=why, checked=CHECKED)
    patches.set(builder, "create_masked_store", checked_store, why=why, checked=CHECKED)


def _where(addresses: Array, mask: Array) -> Array:
    addresses, mask = np.broadcast_arrays(addresses, mask)
    chosen: Array = addresses[mask.astype(bool)]
    return chosen


def _reduce_by_halves(self: Any, values: Any) -> Any:
    """Reduce with any associative function: the upper half into the lower, until one is left."""
    tensors, axis = self.unravel(values, self.axis)
    arrays = [tensor.handle.data for tensor in tensors]
    kinds = [tensor.dtype for tensor in tensors]
    while (count := arrays[0].shape[axis]) > 1:
        half = count // 2
        lower = [self.to_tensor(np.take(a, range(half), axis), kind) for a, kind in zip(arrays, kinds, strict=True)]
        upper = [
            self.to_tensor(np.take(a, range(half, 2 * half), axis), kind) for a, kind in zip(arrays, kinds, strict=True)
        ]
        combined = self.combine_fn.fn(*lower, *upper)
        results = [t.handle.data for t in (combined if isinstance(combined, tuple) else (combined,))]
        if count % 2:
            rest = [np.take(a, [count - 1], axis) for a in arrays]
            results = [np.concatenate([r, more], axis) for r, more in zip(results, rest, strict=True)]
        arrays = results
    if not self.keep_dims:
        arrays = [np.squeeze(a, axis) for a in arrays]
    return [self.to_tensor(a if a.shape else a.item(), kind) for a, kind in zip(arrays, kinds, strict=True)]


def _each(function: Callable[[float], float]) -> Callable[..., Array]:
    return np.vectorize(function, otypes=[np.float64])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "div_rn": np.divide,
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "fmod": np.fmod,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nearbyint": np.rint,
    "pow": np.power,
    "rint": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
"""Of floats, computed in float64 and rounded once."""

_TESTS: dict[str, Callable[[Array], Array]] = {"isinf": np.isinf, "isnan": np.isnan, "signbit": np.signbit}
"""Of floats, with an int32 as answer."""


class _Libdevice(types.ModuleType):
    """Stands for libdevice; a function that is not in the tables is refused by name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*values: Any, _semantic: Any = None) -> Any:
            import triton.language as tl
            import triton.runtime.interpreter as interpreter

            function = _FUNCTIONS.get(name) or _TESTS.get(name)
            if function is None:
                raise RefusedError(f"libdevice.{name}")
            tensors = [v if isinstance(v, tl.tensor) else interpreter.interpreter_semantic.to_tensor(v) for v in values]
            kind = tl.int32 if name in _TESTS else tensors[0].dtype
            with np.errstate(all="ignore"):
                found = np.asarray(function(*(t.handle.data.astype(np.float64) for t in tensors)))
            data = found.astype(interpreter._get_np_dtype(kind))
            block = any(t.type.is_block() for t in tensors)
            return tl.tensor(
                interpreter.TensorHandle(data, kind), tl.block_type(kind, list(data.shape)) if block else kind
            )

        return call
