"""The narrow floats: bfloat16 and two float8 in numpy arrays, and the rounding of a fused multiply-add."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_NAN_BF16 = np.uint16(0x7FFF)


def bf16_to_f32(bits: Array) -> Array:
    """The values of bfloat16 bit patterns (uint16), exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """Bit patterns (uint16) of float32 values, rounded to the nearest, ties to even; NaN is 0x7FFF, as on the GPU."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(values), _NAN_BF16, (rounded >> np.uint32(16)).astype(np.uint16))


@functools.cache
def _float8(exponent_bits: int) -> Array:
    """The 256 values of e4m3 (no infinity, NaN only as all ones) or e5m2 (like a short float16), as float32."""
    mantissa_bits = 7 - exponent_bits
    bits = np.arange(256)
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    scaled = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits)).astype(np.float64)
    values = np.ldexp(scaled, np.maximum(exponent, 1) - bias - mantissa_bits)
    if exponent_bits == 5:
        values = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where((bits & 0x7F) == 0x7F, np.nan, values)
    return np.where(bits & 0x80, -values, values).astype(np.float32)


_EXPONENT_BITS = {"e4m3": 4, "e5m2": 5}


def f8_to_f32(kind: str, bits: Array) -> Array:
    """The values of float8 bit patterns (uint8), exactly. kind: ``e4m3`` or ``e5m2``."""
    values: Array = _float8(_EXPONENT_BITS[kind])[bits]
    return values


def f32_to_f8(kind: str, values: Array) -> Array:
    """Bit patterns (uint8), rounded to the nearest, ties to even; what is too large becomes the largest finite value.

    As ``cvt.rn.satfinite`` does; NaN is 0x7F.
    """
    table = _float8(_EXPONENT_BITS[kind])
    finite = table[:128][np.isfinite(table[:128])].astype(np.float64)
    size = np.minimum(np.abs(values.astype(np.float64)), finite[-1])
    size = np.where(np.isnan(size), 0, size)
    above = np.searchsorted(finite, size)
    below = np.maximum(above - 1, 0)
    nearer_above = (finite[above] - size) < (size - finite[below])
    tie = (finite[above] - size) == (size - finite[below])
    chosen = np.where(nearer_above | (tie & (above % 2 == 0)), above, below).astype(np.uint8)
    signed = chosen | np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))
    return np.where(np.isnan(values), np.uint8(0x7F), signed)


def fma(a: Array, b: Array, c: Array, toward: str = "rn") -> Array:
    """``a * b + c`` of float32 arrays, rounded once: to the nearest (``rn``) or down (``rm``)."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 24 by 24 bits
    addend = c.astype(np.float64)
    total = product + addend
    # the rounding error of that sum (Knuth): with it the float64 is rounded to odd, and the second rounding is right
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = np.isfinite(total) & (error != 0)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    odd = np.where(inexact & even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    rounded = odd.astype(np.float32)
    if toward == "rm":
        return np.where(rounded.astype(np.float64) > odd, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return rounded


def flushed(values: Array) -> Array:
    """Float32 values with subnormal ones replaced by a zero of their sign (``.ftz``)."""
    tiny = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), values), values)
