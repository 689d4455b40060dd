"""``cvt``: what each conversion between types computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import UnsupportedError
from .numbers import Array, bf16_to_f32, f8_to_f32, f32_to_bf16, f32_to_f8, flushed

Conversion = tuple[tuple[str, ...], str, Callable[..., Array]]
"""Types of the sources, type of the result, and the function; a 16-bit float is its bits."""

_INTEGERS: dict[str, Any] = {
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOAT8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}


def conversion(name: str) -> Conversion:
    """The conversion that the instruction `name` makes, for example ``cvt.rn.bf16x2.f32``.

    Raises:
        UnsupportedError: with the name, if it is not known.
    """
    _, *options, result, source = name.split(".")
    for build in (_between_integers, _narrow, _packed, _to_integer, _from_integer, _rounded, _f64):
        found = build(result, source, options)
        if found is not None:
            return found
    raise UnsupportedError(name)


def _between_integers(result: str, source: str, options: list[str]) -> Conversion | None:
    if options or result not in _INTEGERS or source not in _INTEGERS:
        return None
    return (source,), result, lambda a: a.astype(_INTEGERS[result])


def _narrow(result: str, source: str, options: list[str]) -> Conversion | None:
    """One 16-bit float to or from float32."""
    if (result, source) == ("f32", "bf16") and not options:
        return ("b16",), "f32", bf16_to_f32
    if (result, source) == ("bf16", "f32") and options == ["rn"]:
        return ("f32",), "b16", f32_to_bf16
    if (result, source) == ("f32", "f16") and not options:
        return ("f16",), "f32", lambda a: a.astype(np.float32)
    if (result, source) == ("f16", "f32") and options == ["rn"]:
        return ("f32",), "f16", lambda a: a.astype(np.float16)
    return None


def _packed(result: str, source: str, options: list[str]) -> Conversion | None:
    """Two values in one register; the first source is the upper half."""
    if source == "f32" and options == ["rn"] and result in ("bf16x2", "f16x2"):
        encode = f32_to_bf16 if result == "bf16x2" else _f16_bits
        return ("f32", "f32"), "b32", lambda high, low: _pair(encode(high), encode(low), 16, np.uint32)
    if source == "f32" and options == ["rn", "satfinite"] and result in _FLOAT8:
        kind = _FLOAT8[result]
        return ("f32", "f32"), "b16", lambda high, low: _pair(f32_to_f8(kind, high), f32_to_f8(kind, low), 8, np.uint16)
    if result == "f16x2" and options == ["rn"] and source in _FLOAT8:
        kind = _FLOAT8[source]
        return ("b16",), "b32", lambda both: _f16_pair(kind, both)
    return None


def _f16_pair(kind: str, both: Array) -> Array:
    high, low = (both >> np.uint16(8)).astype(np.uint8), both.astype(np.uint8)
    return _pair(_f16_bits(f8_to_f32(kind, high)), _f16_bits(f8_to_f32(kind, low)), 16, np.uint32)


def _f16_bits(values: Array) -> Array:
    return values.astype(np.float16).view(np.uint16)


def _pair(high: Array, low: Array, bits: int, dtype: Any) -> Array:
    pair: Array = (high.astype(dtype) << dtype(bits)) | low.astype(dtype)
    return pair


def _to_integer(result: str, source: str, options: list[str]) -> Conversion | None:
    """Rounded as named; what does not fit becomes the nearest integer that does, NaN zero."""
    rounding = [_TO_INTEGER[option] for option in options if option in _TO_INTEGER]
    if (
        source not in ("f32", "f64")
        or result not in _INTEGERS
        or len(rounding) != 1
        or not {*options} <= {*_TO_INTEGER, "ftz"}
    ):
        return None

    def compute(value: Array) -> Array:
        limits = np.iinfo(_INTEGERS[result])
        whole = rounding[0]((flushed(value) if "ftz" in options else value).astype(np.float64))
        whole = np.where(np.isnan(whole), 0, whole)
        small, large = whole <= float(limits.min), whole >= float(limits.max)
        inside = np.where(small | large, 0, whole).astype(_INTEGERS[result])
        return np.where(small, limits.min, np.where(large, limits.max, inside)).astype(_INTEGERS[result])

    return (source,), result, compute


def _from_integer(result: str, source: str, options: list[str]) -> Conversion | None:
    if source not in _INTEGERS or result not in ("f32", "f64") or options != ["rn"]:
        return None
    return (source,), result, lambda a: a.astype(np.float32 if result == "f32" else np.float64)


def _rounded(result: str, source: str, options: list[str]) -> Conversion | None:
    """float32 to float32: to a whole number, or into the range from 0 to 1."""
    roundings = [_TO_INTEGER[option] for option in options if option in _TO_INTEGER]
    if (result, source) != ("f32", "f32") or not {*options} <= {*_TO_INTEGER, "ftz", "sat"} or len(roundings) > 1:
        return None

    def compute(value: Array) -> Array:
        found = flushed(value) if "ftz" in options else value
        for rounding in roundings:
            found = rounding(found)
        if "sat" in options:
            found = np.clip(np.where(np.isnan(found), np.float32(0), found), np.float32(0), np.float32(1))
        return found

    return ("f32",), "f32", compute


def _f64(result: str, source: str, options: list[str]) -> Conversion | None:
    if (result, source, options) == ("f64", "f32", []):
        return ("f32",), "f64", lambda a: a.astype(np.float64)
    if (result, source, options) == ("f32", "f64", ["rn"]):
        return ("f64",), "f32", lambda a: a.astype(np.float32)
    return None
