"""Sums with one rounding: IEEE 754's fused multiply-add, chains of it, and dot products rounded once at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from .values import FLOAT32, AnyFormat, Exact, decode, encode, fields


def ieee_sum(terms: Iterable[tuple[Exact, Exact]], c: Exact) -> Exact:
    """Return the exact sum of products plus c; as in IEEE 754, a zero is -0 only if every term is -0."""
    total, infinities, all_negative_zeros = Fraction(0), set(), True
    for a, b in [*terms, (c, Fraction(1))]:
        if math.isnan(a) or math.isnan(b) or (math.isinf(a) and b == 0) or (a == 0 and math.isinf(b)):
            return math.nan
        negative = (math.copysign(1, a) < 0) != (math.copysign(1, b) < 0)
        if math.isinf(a) or math.isinf(b):
            infinities.add(-math.inf if negative else math.inf)
        elif a == 0 or b == 0:
            all_negative_zeros &= negative
        else:
            total += Fraction(a) * Fraction(b)
            all_negative_zeros = False
    if infinities:
        return math.nan if len(infinities) == 2 else infinities.pop()
    return -0.0 if all_negative_zeros else total


def fma(a: Exact, b: Exact, c_bits: int, fmt: AnyFormat) -> int:
    """Return the code of ``a * b + c``, rounded once to nearest in the given format; NaN is canonical."""
    return encode(ieee_sum([(a, b)], decode(c_bits, fmt)), fmt, "nonsaturate")


def fma32(a_bits: int, b_bits: int, c_bits: int) -> int:
    """Return the fused multiply-add of three float32 bit patterns, rounded once to nearest even; NaN is canonical."""
    return fma(decode(a_bits, FLOAT32), decode(b_bits, FLOAT32), c_bits, FLOAT32)


def exact_dot(a: Sequence[int], b: Sequence[int], c_bits: int, a_format: AnyFormat, b_format: AnyFormat) -> int:
    """Return ``sum(a * b) + c`` over all of K, rounded once to float32; a sum of zero is +0."""
    total = ieee_sum(_values(a, b, a_format, b_format), decode(c_bits, FLOAT32))
    return encode(Fraction(0) if total == 0 else total, FLOAT32, "nonsaturate")


def sequential_f32(a: Sequence[int], b: Sequence[int], c_bits: int, a_format: AnyFormat, b_format: AnyFormat) -> int:
    """Return ``acc = fma(a[k], b[k], acc)`` in float32 for increasing k, starting from c."""
    return sequential(a, b, c_bits, a_format, b_format, FLOAT32)


def sequential(
    a: Sequence[int], b: Sequence[int], c_bits: int, a_format: AnyFormat, b_format: AnyFormat, fmt: AnyFormat
) -> int:
    """Return ``acc = fma(a[k], b[k], acc)`` in a format for increasing k, starting from c."""
    accumulator = fields(fmt)
    for x, y in _values(a, b, a_format, b_format):
        c_bits = fma(x, y, c_bits, accumulator)
    return c_bits


def _values(
    a: Sequence[int], b: Sequence[int], a_format: AnyFormat, b_format: AnyFormat
) -> Iterable[tuple[Exact, Exact]]:
    fa, fb = fields(a_format), fields(b_format)
    return ((decode(x, fa), decode(y, fb)) for x, y in zip(a, b, strict=True))
