"""AMD's matrix cores: exact sums (CDNA1), float32 pairs with flushing (CDNA2), and two-step truncation (CDNA3).

NaN is IEEE 754's quiet NaN here; the hardware's treatment of payloads is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..ieee import ieee_sum
from ..values import FLOAT32, Exact, Fields, Parts, decode, encode, is_negative_zero, parts, two_to
from .base import Chained, Codes
from .fused import shift, special_sum


def _round(value: Exact) -> int:
    return encode(value, FLOAT32, "nonsaturate")


def _below(value: Exact, exponent: int) -> bool:
    return math.isfinite(value) and -two_to(exponent) < value < two_to(exponent)


@dataclass(frozen=True)
class ExactGroups(Chained):
    """CDNA1: the exact sum of a group and c, rounded once to nearest; a sum of exactly zero is +0."""

    group: int

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
        terms = [(decode(x, fa), decode(y, fb)) for x, y in zip(a, b, strict=True)]
        total = ieee_sum(terms, decode(c_bits, FLOAT32))
        return _round(Fraction(0) if total == 0 else total)


@dataclass(frozen=True)
class FlushedPairs(Chained):
    """CDNA2: float32 products added pairwise, then to c, each step rounded to nearest.

    Subnormal inputs and c become +0, as does -0; subnormal results become a zero of their sign. All of K is one
    instruction: only the first c is an input. Two wrong rules: with `flush` False, subnormals are kept; with `pairwise`
    False, products are added sequentially.
    """

    group: int
    flush: bool = True
    pairwise: bool = True

    def start(self, c_bits: int) -> int:
        """Return c, with a subnormal flushed."""
        return _round(self._input(c_bits, FLOAT32))

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
        one = Fraction(1)
        values = [
            self._flushed(ieee_sum([(self._input(x, fa), self._input(y, fb))], -0.0)) for x, y in zip(a, b, strict=True)
        ]
        while len(values) > 1:
            rest = values[2:] if not self.pairwise else []
            pairs = [values[:2]] if not self.pairwise else [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [self._flushed(ieee_sum([(x, one)], y)) for x, y in pairs] + rest
        return _round(self._flushed(ieee_sum([(decode(c_bits, FLOAT32), one)], values[0])))

    def _input(self, code: int, fmt: Fields) -> Exact:
        value = decode(code, fmt)
        return Fraction(0) if self.flush and _below(value, fmt.lowest) else value

    def _flushed(self, value: Exact) -> Exact:
        rounded = decode(_round(value), FLOAT32)
        if self.flush and _below(rounded, -126):
            return -0.0 if rounded < 0 or is_negative_zero(rounded) else Fraction(0)
        return rounded


@dataclass(frozen=True)
class FlooredSum(Chained):
    """CDNA3: products truncated relative to their largest exponent, then rounded *down* with c, then to nearest.

    Products are truncated to `fraction_bits` below their largest exponent and summed; that sum and c are aligned to the
    larger exponent of the two, the sum rounded down to `fraction_bits` + 8 bits and c to `fraction_bits`; the total is
    rounded down to 31 fraction bits (below 2^-126 if subnormal) and then to the nearest float32. A product of 2^128 or
    more is infinite. Zero products have no exponent; a zero c has the exponent of subnormals.

    Attributes
    ----------
    group
        Products per group.
    halves
        Whether products of even and of odd k are summed separately, as for FP8, and the two sums rounded down to
        `fraction_bits` below the larger exponent and added; a c more than 25 binades below the sum's exponent is
        dropped.
    floor
        Whether sums are rounded down; False is a wrong rule: they are truncated.
    """

    group: int
    halves: bool = False
    fraction_bits: int = 24
    floor: bool = True

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
        mode = "floor" if self.floor else "truncate"
        f = self.fraction_bits
        pairs = [(parts(x, fa), parts(y, fb)) for x, y in zip(a, b, strict=True)]
        c = parts(c_bits, FLOAT32)
        special = special_sum([_capped(p, fa, fb) for p in pairs], c)
        if special is not None:
            return _round(special)
        fraction = fa.mantissa_bits + fb.mantissa_bits
        if self.halves:
            total, place = 0, None
            sums = [_cut_sum(pairs[half::2], fraction, f) for half in (0, 1)]
            places = [e for _, e in sums if e is not None]
            if places:
                place = max(places)
                total = sum(shift(n, e - place, mode) for n, e in sums if e is not None)
        else:
            total, place = _cut_sum(pairs, fraction, f)
        # A zero c is aligned with the exponent of subnormals.
        c_term = -c.significand if c.negative else c.significand
        top = c.exponent if place is None else max(c.exponent, place)
        if self.halves and c.exponent < top - 25:
            c_term = 0
        unit = top - f - 8
        n = 0 if place is None else shift(total, place - f - unit, mode)
        n += shift(c_term, c.exponent - 23 - (top - f), mode) << 8
        last = max(n.bit_length() - 1 + unit, -126) - 31
        if last > unit:
            n, unit = shift(n, unit - last, mode), last
        return _round(n * two_to(unit))


def _capped(pair: tuple[Parts, Parts], fa: Fields, fb: Fields) -> tuple[Parts, Parts]:
    """Return the parts of a product, with an infinity if it is 2^128 or more."""
    a, b = pair
    if "finite" == a.kind == b.kind:
        unit = a.exponent + b.exponent - fa.mantissa_bits - fb.mantissa_bits
        if a.significand * b.significand * two_to(unit) >= two_to(128):
            return a._replace(kind="inf"), b
    return pair


def _cut_sum(pairs: Sequence[tuple[Parts, Parts]], fraction: int, kept: int) -> tuple[int, int | None]:
    """Truncate products `kept` bits below their largest exponent; return ``sum * 2**kept`` and the exponent."""
    terms = [
        (-n if a.negative != b.negative else n, a.exponent + b.exponent)
        for a, b in pairs
        if (n := a.significand * b.significand)
    ]
    if not terms:
        return 0, None
    top = max(e for _, e in terms)
    return sum(shift(n, e - fraction - (top - kept), "truncate") for n, e in terms), top
