"""RISC-V's sums: a group's products, exact or aligned, their rounded sum, and its sum with C.

The rules are those of the drafts of Zvdota (Bulk Normalization of Dot Products) and of the integrated matrix extension.
Every NaN is 0x7FC00000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from ..ieee import ieee_sum
from ..values import FLOAT32, Exact, Fields, Parts, decode, encode, floor_log2, parts, two_to
from .base import Chained, Codes
from .rdna import Pairs

Rounding: TypeAlias = Literal["exact", "nearest", "odd"]


def _to_odd(magnitude: Fraction, unit: Fraction) -> Fraction:
    """Return a magnitude truncated to a multiple of a unit, with the last bit set if anything is lost."""
    count = magnitude / unit
    whole = math.floor(count)
    return (whole if whole == count else whole | 1) * unit


def rounded(value: Exact, how: Rounding) -> Exact:
    """Return a value rounded to odd or to nearest even in float32, or unrounded; 2^128 and above become Inf."""
    if how == "exact" or value == 0 or not math.isfinite(value):
        return value
    if how == "nearest":
        return decode(encode(value, FLOAT32, "nonsaturate"), FLOAT32)
    size = abs(Fraction(value))
    size = _to_odd(size, two_to(max(floor_log2(size), -126) - 23))
    if size >= two_to(128):
        return math.inf if value > 0 else -math.inf
    return size if value > 0 else -size


@dataclass(frozen=True)
class PartialSums(Chained):
    """The exact sum of a group's products, rounded to a partial sum, and its sum with c, rounded again.

    Attributes
    ----------
    group
        Products per partial sum.
    partial, last
        Roundings of the partial sum and of its sum with c.
    """

    group: int = 4
    partial: Rounding = "odd"
    last: Rounding = "nearest"

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
        total = ieee_sum([(decode(x, fa), decode(y, fb)) for x, y in zip(a, b, strict=True)], Fraction(0))
        if math.isfinite(total):
            total = self.total([(parts(x, fa), parts(y, fb)) for x, y in zip(a, b, strict=True)], fa, fb)
        part = rounded(total, self.partial)
        found = rounded(ieee_sum([(part, Fraction(1))], decode(c_bits, FLOAT32)), self.last)
        return encode(found, FLOAT32, "nonsaturate")

    def total(self, pairs: Pairs, fa: Fields, fb: Fields) -> Fraction:
        """Return the exact sum of finite products."""
        return sum((_product(x, y, fa, fb) for x, y in pairs), Fraction(0))


@dataclass(frozen=True)
class BulkSums(PartialSums):
    """Bulk normalization: products are first aligned to the largest exponent, each rounded to odd.

    Attributes
    ----------
    fraction_bits
        Bits kept below the largest sum of two exponents.
    sticky, normalised
        Whether lost bits of a product are kept as a sticky bit, and whether exponents are those of leading bits.
        The other value of each is a wrong rule, for tests.
    """

    fraction_bits: int = 25
    sticky: bool = True
    normalised: bool = False

    def total(self, pairs: Pairs, fa: Fields, fb: Fields) -> Fraction:
        """Return the sum of aligned products."""
        terms = [(_product(x, y, fa, fb), x.exponent + y.exponent) for x, y in pairs]
        if self.normalised:
            terms = [(term, floor_log2(abs(term))) for term, _ in terms if term]
        exponents = [exponent for term, exponent in terms if term]
        if not exponents:
            return Fraction(0)
        unit, total = two_to(max(exponents) - self.fraction_bits), Fraction(0)
        for term, _ in terms:
            kept = _to_odd(abs(term), unit) if self.sticky else math.floor(abs(term) / unit) * unit
            total += -kept if term < 0 else kept
        return total


def _product(x: Parts, y: Parts, fa: Fields, fb: Fields) -> Fraction:
    size = x.significand * y.significand * two_to(x.exponent + y.exponent - fa.mantissa_bits - fb.mantissa_bits)
    return -size if x.negative != y.negative else size
