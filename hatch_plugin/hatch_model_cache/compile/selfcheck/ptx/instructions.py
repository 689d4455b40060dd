"""What each instruction computes: for its name, the types of its sources and of its result, and a function of arrays.

Instructions that touch memory, other threads or the way of the program are the machine's (`machine`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import UnsupportedError
from .conversions import conversion
from .numbers import Array, bf16_to_f32, f32_to_bf16, flushed, fma

DTYPES: dict[str, Any] = {
    **{f"{letter}8": np.int8 if letter == "s" else np.uint8 for letter in "sub"},
    **{f"{letter}16": np.int16 if letter == "s" else np.uint16 for letter in "sub"},
    **{f"{letter}32": np.int32 if letter == "s" else np.uint32 for letter in "sub"},
    **{f"{letter}64": np.int64 if letter == "s" else np.uint64 for letter in "sub"},
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "pred": np.bool_,
}
"""numpy's type for each type of PTX that an operand can have; bf16 is b16 to the machine."""

_SIGNED = ("s16", "s32", "s64")
_INTEGERS = (*_SIGNED, "u16", "u32", "u64")
_BITS = ("b16", "b32", "b64")
_BFLOATS = {"bf16": "b16", "bf16x2": "b32"}
_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


@dataclass(frozen=True)
class Form:
    """How one instruction is executed. sources, result: types in `DTYPES`; compute: arrays of the sources → result."""

    sources: tuple[str, ...]
    result: str
    compute: Callable[..., Array]


@functools.cache
def form(name: str) -> Form:
    """The form of the instruction `name`, for example ``mad.wide.s32``.

    Raises:
        UnsupportedError: with the name, if it is not known.
    """
    opcode, *modifiers = name.split(".")
    if opcode == "cvt":
        sources, result, compute = conversion(name)
        return Form(sources, result, compute)
    build = OPCODES.get(opcode)
    found = build(modifiers[-1] if modifiers else "", modifiers[:-1]) if build else None
    if found is None:
        raise UnsupportedError(name)
    return found


Build = Callable[[str, Sequence[str]], Form | None]


def _elementwise(
    function: Callable[..., Array], count: int, kinds: Sequence[str], options: Sequence[str] = ()
) -> Build:
    """An instruction whose sources and result have one type; ``.ftz`` flushes on both sides."""

    def build(kind: str, modifiers: Sequence[str]) -> Form | None:
        if kind not in kinds or not {*modifiers} <= {*options}:
            return None
        return Form((kind,) * count, kind, _flushing(function) if "ftz" in modifiers else function)

    return build


def _flushing(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: flushed(function(*map(flushed, values)))


def _approximated(function: Callable[[Array], Array]) -> Build:
    """A function that the hardware approximates: in float64, rounded once."""

    def compute(value: Array) -> Array:
        return function(value.astype(np.float64)).astype(value.dtype)

    return _elementwise(compute, 1, ("f32",), ("approx", "ftz", "rn"))


def _first(*builds: Build) -> Build:
    """The first of several forms of one opcode that takes the type and the modifiers."""
    return lambda kind, modifiers: next((found for build in builds if (found := build(kind, modifiers))), None)


def _minimum(choose: Callable[[Array, Array], Array], keep_nan: Callable[[Array, Array], Array]) -> Build:
    floats = _elementwise(choose, 2, ("f32", "f64"), ("ftz",))

    def build(kind: str, modifiers: Sequence[str]) -> Form | None:
        if kind in _BFLOATS and list(modifiers) in ([], ["NaN"]):
            bits = _BFLOATS[kind]
            return Form((bits, bits), bits, _on_bfloats(keep_nan if modifiers else choose))
        if "NaN" in modifiers:
            return _elementwise(keep_nan, 2, ("f32",), ("NaN", "ftz"))(kind, modifiers)
        return floats(kind, modifiers) or _elementwise(keep_nan, 2, _INTEGERS)(kind, modifiers)

    return build


def _on_bfloats(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """A function of float32 on bfloat16, one or two in each element: float32 has more than twice the bits of a bfloat16
    and two, so rounding its result is rounding the exact one."""

    def compute(*values: Array) -> Array:
        wide = [bf16_to_f32(np.ascontiguousarray(value).view(np.uint16)) for value in values]
        return f32_to_bf16(function(*wide)).view(values[0].dtype)

    return compute


def _multiply(kind: str, modifiers: Sequence[str]) -> Form | None:
    if kind in _BFLOATS and list(modifiers) in ([], ["rn"]):
        bits = _BFLOATS[kind]
        return Form((bits, bits), bits, _on_bfloats(np.multiply))
    if list(modifiers) == ["wide"] and kind in _WIDE:
        return Form((kind, kind), _WIDE[kind], _widened)
    if list(modifiers) == ["hi"] and kind in _INTEGERS:
        return Form((kind, kind), kind, _high)
    if list(modifiers) == ["lo"] and kind in _INTEGERS:
        return Form((kind, kind), kind, np.multiply)
    return _elementwise(np.multiply, 2, ("f32", "f64"), ("ftz", "rn"))(kind, modifiers)


def _multiply_add(kind: str, modifiers: Sequence[str]) -> Form | None:
    if list(modifiers) == ["wide"] and kind in _WIDE:
        return Form((kind, kind, _WIDE[kind]), _WIDE[kind], lambda a, b, c: _widened(a, b) + c)
    if list(modifiers) == ["lo"] and kind in _INTEGERS:
        return Form((kind, kind, kind), kind, lambda a, b, c: a * b + c)
    return None


def _widened(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    product: Array = a.astype(wide) * b.astype(wide)
    return product


def _high(a: Array, b: Array) -> Array:
    """The upper half of the full product."""
    if a.dtype.itemsize < 8:
        upper: Array = (_widened(a, b) >> (8 * a.dtype.itemsize)).astype(a.dtype)
        return upper
    x, y = a.view(np.uint64), b.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    middle = (x >> half) * (y & low) + (((x & low) * (y & low)) >> half)
    other = (x & low) * (y >> half) + (middle & low)
    high: Array = (x >> half) * (y >> half) + (middle >> half) + (other >> half)
    if a.dtype == np.int64:  # a negative factor counts 2**64 too much
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    signed: Array = high.view(a.dtype)
    return signed


def _fused(kind: str, modifiers: Sequence[str]) -> Form | None:
    rounding, *rest = modifiers
    if kind != "f32" or rounding not in ("rn", "rm") or not {*rest} <= {"ftz"}:
        return None
    compute = functools.partial(fma, toward=rounding)
    return Form(("f32",) * 3, "f32", _flushing(compute) if rest else compute)


def _divide(kind: str, modifiers: Sequence[str]) -> Form | None:
    def exact(a: Array, b: Array) -> Array:
        return (a.astype(np.float64) / b.astype(np.float64)).astype(np.float32)

    floats = _elementwise(exact, 2, ("f32",), ("approx", "full", "ftz", "rn"))
    return floats(kind, modifiers) or _elementwise(lambda a, b: _quotient(a, b), 2, _INTEGERS)(kind, modifiers)


def _quotient(a: Array, b: Array) -> Array:
    """Integers divided towards zero; by zero, all ones."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient < 0) & (quotient * safe != a))
    return np.where(b == 0, ~np.zeros(1, a.dtype), quotient).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    remainder: Array = a - _quotient(a, b) * b
    return remainder


def _shift(left: bool) -> Build:
    """By an unsigned amount; what is shifted by the width or more is gone, or is all sign."""

    def compute(value: Array, amount: Array) -> Array:
        bits = 8 * value.dtype.itemsize
        inside = np.minimum(amount, np.uint32(bits - 1)).astype(value.dtype)
        shifted = value << inside if left else value >> inside
        gone = (amount >= bits) & (left | (value.dtype.kind == "u"))
        result: Array = np.where(gone, value.dtype.type(0), shifted)
        return result

    def build(kind: str, modifiers: Sequence[str]) -> Form | None:
        if modifiers or kind not in (_BITS if left else (*_BITS, *_INTEGERS)):
            return None
        return Form((kind, "u32"), kind, compute)

    return build


def _funnel(kind: str, modifiers: Sequence[str]) -> Form | None:
    """``shf``: 32 bits out of two registers, the lower one first."""
    if kind != "b32" or list(modifiers) not in (["l", "wrap"], ["r", "wrap"]):
        return None

    def compute(low: Array, high: Array, amount: Array) -> Array:
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        by = (amount & np.uint32(31)).astype(np.uint64)
        moved = (both << by) >> np.uint64(32) if modifiers[0] == "l" else both >> by
        return moved.astype(np.uint32)

    return Form(("b32", "b32", "u32"), "b32", compute)


def _extract(kind: str, modifiers: Sequence[str]) -> Form | None:
    """``bfe``: a field of bits, with its sign for a signed type."""
    if modifiers or kind not in ("s32", "u32"):
        return None

    def compute(value: Array, position: Array, length: Array) -> Array:
        start, count = (position & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
        wide = value.astype(np.int64)
        taken = np.minimum(count, np.maximum(32 - start, 0) if kind == "u32" else 64)
        shifted = wide >> np.minimum(start, 63)
        field = shifted & ((np.int64(1) << np.minimum(taken, 32)) - 1)
        if kind == "s32":
            negative = (taken > 0) & (taken < 32) & ((field >> np.maximum(taken - 1, 0)) & 1).astype(bool)
            field = np.where(negative, field - (np.int64(1) << np.minimum(taken, 32)), field)
        return field.astype(value.dtype)

    return Form((kind, "u32", "u32"), kind, compute)


def _permute(kind: str, modifiers: Sequence[str]) -> Form | None:
    """``prmt``: four of eight bytes, each chosen by a nibble whose upper bit replicates the byte's sign."""
    if modifiers or kind != "b32":
        return None

    def compute(low: Array, high: Array, selector: Array) -> Array:
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        result = np.zeros(both.shape, np.uint32)
        for place in range(4):
            nibble = (selector >> np.uint32(4 * place)) & np.uint32(15)
            byte = ((both >> (8 * (nibble & np.uint32(7))).astype(np.uint64)) & np.uint64(255)).astype(np.uint32)
            sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            result |= np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * place)
        return result

    return Form(("b32",) * 3, "b32", compute)


_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compare(kind: str, modifiers: Sequence[str]) -> Form | None:
    """``setp``, also combined with a predicate."""
    relation, *rest = [modifier for modifier in modifiers if modifier != "ftz"]
    compare = _relation(relation, kind)
    if compare is None or len(rest) > 1 or ("ftz" in modifiers and kind != "f32"):
        return None
    if "ftz" in modifiers:
        plain = compare
        compare = lambda a, b: plain(flushed(a), flushed(b))  # noqa: E731
    if not rest:
        return Form((kind, kind), "pred", compare)
    combine = _COMBINED.get(rest[0])
    if combine is None:
        return None
    return Form((kind, kind, "pred"), "pred", lambda a, b, p: combine(compare(a, b), p))


def _relation(relation: str, kind: str) -> Callable[[Array, Array], Array] | None:
    if kind in ("f32", "f64"):
        if relation in ("num", "nan"):
            return lambda a, b: (np.isnan(a) | np.isnan(b)) == (relation == "nan")
        unordered = relation.endswith("u") and relation[:-1] in _ORDERED
        function = _ORDERED.get(relation[:-1] if unordered else relation)
        if function is None:
            return None
        return lambda a, b: np.where(np.isnan(a) | np.isnan(b), unordered, function(a, b))
    if kind in _INTEGERS or (kind in _BITS and relation in ("eq", "ne")):
        return _ORDERED.get(_UNSIGNED.get(relation, relation))
    return None


def _select(kind: str, modifiers: Sequence[str]) -> Form | None:
    if modifiers or kind not in (*_BITS, *_INTEGERS, "f32", "f64"):
        return None
    return Form((kind, kind, "pred"), kind, _chosen)


def _chosen(a: Array, b: Array, condition: Array) -> Array:
    return np.where(condition, a, b)


def _move(kind: str, modifiers: Sequence[str]) -> Form | None:
    if modifiers or kind not in (*_BITS, *_INTEGERS, "f32", "f64", "pred"):
        return None
    return Form((kind,), kind, lambda a: a)


def _population(value: Array) -> Array:
    return np.bitwise_count(value).astype(np.uint32)


_LOGICAL = (*_BITS, "pred")
_FLOATS = ("f32", "f64")

OPCODES: dict[str, Build] = {
    "abs": _first(_elementwise(np.abs, 1, _FLOATS, ("ftz",)), _elementwise(np.abs, 1, _SIGNED)),
    "add": _first(_elementwise(np.add, 2, _FLOATS, ("ftz", "rn")), _elementwise(np.add, 2, _INTEGERS)),
    "and": _elementwise(np.bitwise_and, 2, _LOGICAL),
    "bfe": _extract,
    "copysign": _elementwise(lambda sign, size: np.copysign(size, sign), 2, _FLOATS),
    "cos": _approximated(np.cos),
    "cvta": lambda kind, modifiers: (
        Form(("u64",), "u64", lambda a: a)
        if kind == "u64" and [m for m in modifiers if m != "to"] in (["global"], ["shared"])
        else None
    ),
    "div": _divide,
    "ex2": _approximated(np.exp2),
    "fma": _fused,
    "lg2": _approximated(np.log2),
    "mad": _multiply_add,
    "max": _minimum(np.fmax, np.maximum),
    "min": _minimum(np.fmin, np.minimum),
    "mov": _move,
    "mul": _multiply,
    "neg": _first(_elementwise(np.negative, 1, _FLOATS, ("ftz",)), _elementwise(np.negative, 1, _SIGNED)),
    "not": _elementwise(np.invert, 1, _LOGICAL),
    "or": _elementwise(np.bitwise_or, 2, _LOGICAL),
    "popc": lambda kind, modifiers: Form(("b32",), "u32", _population) if kind == "b32" and not modifiers else None,
    "prmt": _permute,
    "rcp": _approximated(np.reciprocal),
    "rem": _elementwise(_remainder, 2, _INTEGERS),
    "rsqrt": _approximated(lambda value: 1 / np.sqrt(value)),
    "selp": _select,
    "setp": _compare,
    "shf": _funnel,
    "shl": _shift(left=True),
    "shr": _shift(left=False),
    "sin": _approximated(np.sin),
    "sqrt": _approximated(np.sqrt),
    "sub": _first(_elementwise(np.subtract, 2, _FLOATS, ("ftz", "rn")), _elementwise(np.subtract, 2, _INTEGERS)),
    "tanh": _approximated(np.tanh),
    "xor": _elementwise(np.bitwise_xor, 2, _LOGICAL),
}
