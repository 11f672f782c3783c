"""Tenstorrent's matrix units: sums of products of slices of significands, as exact fractions.

The rule is that of the vendor's functional simulator (tenstorrent/ttsim, src/tensix.cpp). Exponents start at 1 for
2^-126; a number whose exponent field is zero counts as zero, and one whose exponent field is all ones is an ordinary
number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ..values import FLOAT32, Exact, Fields, decode, encode, fields, floor_log2, two_to
from .base import Chained, Codes

_HALF = Fraction(1, 2)


class _Number(NamedTuple):
    """The number ``(-1)**negative * significand / 1024 * 2**exponent``; the significand of zero is 0."""

    negative: bool
    exponent: int
    significand: int  # 11 bits


class _Term(NamedTuple):
    negative: bool
    exponent: int
    size: Fraction  # in units of 2**exponent


def _half_up(size: Fraction, unit: Fraction) -> Fraction:
    return math.floor(size / unit + _HALF) * unit


def _half_down(size: Fraction, unit: Fraction) -> Fraction:
    return math.ceil(size / unit - _HALF) * unit


@dataclass(frozen=True)
class FidelityPhases(Chained):
    """Slices of significands are multiplied in phases; two groups of eight products are added to c at once.

    Attributes
    ----------
    group
        Products of a tile, for which each phase is computed before the next.
    together, fraction_bits
        Number of products that are aligned together, and number of their bits that are kept.
    phases
        Phases in order: bit 0 takes the lower slice of b, bit 1 that of a.
    wormhole
        Whether a sum of -1 unit in the last place becomes 2^27 times larger.
    swapped, truncated
        Wrong rules: with `swapped`, a has slices of 5 bits and b of 7; with `truncated`, products are truncated.
    """

    group: int = 32
    together: int = 8
    fraction_bits: int = 10
    phases: tuple[int, ...] = (0,)
    wormhole: bool = False
    swapped: bool = False
    truncated: bool = False

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of one tile to c."""
        left, right = ([_number(x, fmt) for x in side] for side, fmt in ((a, fa), (b, fb)))
        for phase in self.phases:
            for start in range(0, self.group, 2 * self.together):
                groups = [
                    self._sum(left[i : i + self.together], right[i : i + self.together], phase)
                    for i in range(start, start + 2 * self.together, self.together)
                ]
                c_bits = self._added(groups, c_bits)
        return c_bits

    def _sum(self, left: Sequence[_Number], right: Sequence[_Number], phase: int) -> _Term:
        """Return the sum of a group, whose products are aligned to the largest exponent by rounding, ties away."""
        products = []
        for x, y in zip(left, right, strict=True):
            wide, short = (y, x) if self.swapped else (x, y)
            if not x.significand or not y.significand:
                continue
            upper, lower = wide.significand // 16, wide.significand % 16 * 8
            high, low = short.significand // 64, short.significand // 2 % 32
            significand = (lower if phase & 2 else upper) * (low if phase & 1 else high)
            exponent = x.exponent + y.exponent - 7 * (phase // 2) - 5 * (phase % 2)
            products.append(_Term(x.negative != y.negative, exponent, Fraction(significand, 1 << 10)))
        top = max([x.exponent for x in products], default=-127)
        if top < -126:
            return _Term(False, -127, Fraction(0))
        total = Fraction(0)
        for term in products:
            size = term.size * two_to(max(term.exponent - top, -30))
            unit = two_to(-self.fraction_bits)
            kept = math.floor(size / unit) * unit if self.truncated else _half_up(size, unit)
            total += -kept if term.negative else kept
        return _Term(total < 0, top, abs(total))

    def _added(self, groups: Sequence[_Term], c_bits: int) -> int:
        """Return the float32 sum of two groups and c, each first rounded 23 bits below the largest exponent."""
        field, negative = c_bits >> 23 & 255, c_bits >> 31 == 1
        c = _Term(negative, field - 127, Fraction(c_bits % (1 << 23), 1 << 23) + 1 if field else Fraction(0))
        top, total = max(c.exponent, *(x.exponent for x in groups)), Fraction(0)
        if top < -126:
            return 0
        ulp = two_to(-23)
        for x in (c, *groups):
            away = top - x.exponent
            size = x.size * two_to(-away) if away < 31 else Fraction(0)
            kept = _half_down(size, ulp) if x.negative and x is not c else _half_up(size, ulp)
            total += kept if x.negative == c.negative else -kept
        if total == 0:
            return 0
        is_negative, size = (total < 0) != c.negative, abs(total)
        exponent = top + floor_log2(size)
        rounded = size * two_to(top - exponent)
        if exponent > top:  # bits are lost
            rounded = _half_up(rounded, ulp)
        value = rounded * two_to(exponent)
        if self.wormhole and is_negative and size == ulp:
            exponent, value = top + 4, two_to(top + 4)
        if value >= two_to(128):
            return 0xFF800000 if is_negative else 0x7F800000
        if exponent + (rounded >= 2) < -126:
            return 0
        return encode(-value if is_negative else value, FLOAT32)


def _number(code: int, fmt: Fields) -> _Number:
    """Return a code as the unit reads it, with the exponent of its leading bit."""
    f = fields(fmt)
    negative = bool(code >> f.width)
    if (f.exponent_bits, f.bias) == (8, 127):
        field, mantissa = code >> f.mantissa_bits & 255, code & ((1 << f.mantissa_bits) - 1)
        significand = (1 << 10) + (mantissa << (10 - f.mantissa_bits)) if field else 0
        return _Number(negative, field - 127, significand)
    value: Exact = decode(code, f)
    if not math.isfinite(value):
        return _Number(negative and code != 1 << f.width, 128, 1024 if math.isinf(value) else 1536)
    if value == 0:
        return _Number(False, -127, 0)
    size = abs(Fraction(value))
    exponent = floor_log2(size)
    return _Number(negative, exponent, int(size * two_to(10 - exponent)))
