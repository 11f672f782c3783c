"""Dot products of CPUs: x86 flushes subnormals, Arm's BFDOT rounds to odd or rounds twice, Arm's FP8 rounds once.

NaN is IEEE 754's quiet NaN here. A field with a value other than its default is a wrong rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ..ieee import ieee_sum
from ..values import (
    E5M2,
    FLOAT32,
    Exact,
    Fields,
    decode,
    encode,
    floor_log2,
    is_negative_zero,
    max_code,
    nearest,
    two_to,
)
from .base import Chained, Codes

_ONE = Fraction(1)
_LEAST = two_to(-126)


def _below_least(value: Exact, least: Fraction = _LEAST) -> bool:
    return math.isfinite(value) and abs(Fraction(value)) < least


def _zero_like(value: Exact) -> Exact:
    return -0.0 if value < 0 or is_negative_zero(value) else Fraction(0)


def _read(code: int, fmt: Fields, flush: bool) -> Exact:
    """Return a code's value; with `flush`, a float32 subnormal becomes a zero of its sign."""
    value = decode(code, fmt)
    return _zero_like(value) if flush and _below_least(value) else value


def _flushed(value: Exact, after: bool = True) -> Exact:
    """Round to float32, to nearest even; a tiny result becomes a zero of its sign.

    A result is tiny if its magnitude is below 2^-126 after rounding to 24 bits with an unbounded exponent, or before
    rounding if `after` is False.
    """
    if math.isfinite(value) and value != 0:
        size = abs(Fraction(value))
        if after and size < _LEAST:
            places = 23 - floor_log2(size)
            size = nearest(size, places) * two_to(-places)
        if size < _LEAST:
            return _zero_like(value)
    return decode(encode(value, FLOAT32, "nonsaturate"), FLOAT32)


def _code(value: Exact) -> int:
    return encode(value, FLOAT32, "nonsaturate")


def _codes(side: Codes) -> list[int]:
    return [int(code) for code in side]


@dataclass(frozen=True)
class FlushedFma(Chained):
    """VDPBF16PS: fused multiply-adds, the last product of a group first; subnormal operands and results become zeros.

    Tininess is detected after rounding. Wrong rules: with `forwards`, the first product comes first; with `keep`,
    subnormals are kept; with `before`, tininess is detected before rounding.
    """

    group: int = 2
    flushed: tuple[Fields, ...] = ()
    forwards: bool = False
    keep: bool = False
    before: bool = False

    def start(self, c_bits: int) -> int:
        """Return c, with a subnormal flushed."""
        return _code(_read(c_bits, FLOAT32, not self.keep))

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add a group."""
        d: Exact = decode(c_bits, FLOAT32)
        pairs = list(zip(_codes(a), _codes(b), strict=True))
        for x, y in pairs if self.forwards else pairs[::-1]:
            total = ieee_sum([(_value(x, fa, self.flushed, self.keep), _value(y, fb, self.flushed, self.keep))], d)
            d = decode(_code(total), FLOAT32) if self.keep else _flushed(total, not self.before)
        return _code(d)


def _value(code: int, fmt: Fields, flushed: tuple[Fields, ...], keep: bool = False) -> Exact:
    """Return an operand's value, with zeros for subnormals of float32 and of the formats in `flushed`."""
    value = _read(code, fmt, not keep)
    return _zero_like(value) if fmt in flushed and _below_least(value, two_to(fmt.lowest)) else value


@dataclass(frozen=True)
class Lanes(Chained):
    """AMX: products assigned cyclically to chains from +0, `together` at a time; their sum is added to c once.

    `c_first` is a wrong rule: the first lane starts from c.
    """

    group: int = 32
    lanes: int = 2
    together: int = 1
    flushed: tuple[Fields, ...] = ()
    c_first: bool = False

    def start(self, c_bits: int) -> int:
        """Return c, with a subnormal flushed."""
        return _code(_read(c_bits, FLOAT32, True))

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add an instruction's products."""
        chains: list[Exact] = [Fraction(0)] * self.lanes
        if self.c_first:
            chains[0] = decode(c_bits, FLOAT32)
        values = [
            (_value(x, fa, self.flushed), _value(y, fb, self.flushed))
            for x, y in zip(_codes(a), _codes(b), strict=True)
        ]
        for t in range(0, len(values), self.together):
            lane, some = t // self.together % self.lanes, values[t : t + self.together]
            if len(some) == 1:
                chains[lane] = _flushed(ieee_sum(some, chains[lane]))
                continue
            products = [_flushed(ieee_sum([pair], -0.0)) for pair in some]
            chains[lane] = _add(chains[lane], _sum(products))
        return _code(_sum(chains) if self.c_first else _add(decode(c_bits, FLOAT32), _sum(chains)))


def _add(x: Exact, y: Exact) -> Exact:
    return _flushed(ieee_sum([(x, _ONE)], y))


def _sum(values: Sequence[Exact]) -> Exact:
    total = values[0]
    for value in values[1:]:
        total = _add(total, value)
    return total


def _to_odd(value: Exact, flush: bool = True) -> Exact:
    """Round to float32, to odd; subnormals are flushed, and magnitudes of 2^128 or more become Inf."""
    if not math.isfinite(value) or value == 0:
        return value
    size = abs(Fraction(value))
    if flush and size < _LEAST:
        return _zero_like(value)
    places = 23 - max(floor_log2(size), -126)
    scaled = size * two_to(places)
    whole = scaled.numerator // scaled.denominator
    whole |= whole != scaled
    result = whole * two_to(-places)
    if result >= two_to(128):
        return math.inf if value > 0 else -math.inf
    return result if value > 0 else -result


@dataclass(frozen=True)
class Odd(Chained):
    """BFDOT with EBF = 0: products, their sum and its sum with c are rounded to odd; subnormals are zeros.

    Wrong rules: with `rounding` "nearest", rounding is to nearest even; with `keep`, subnormals are kept; with
    `one_by_one`, products are added to c one by one.
    """

    group: int = 2
    rounding: Literal["odd", "nearest"] = "odd"
    keep: bool = False
    one_by_one: bool = False

    def start(self, c_bits: int) -> int:
        """Return c, with a subnormal flushed."""
        return _code(_read(c_bits, FLOAT32, not self.keep))

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add a group."""
        c, flush = decode(c_bits, FLOAT32), not self.keep
        pairs = [(_read(x, fa, flush), _read(y, fb, flush)) for x, y in zip(_codes(a), _codes(b), strict=True)]
        products = [self._round(ieee_sum([pair], -0.0)) for pair in pairs]
        if self.one_by_one:
            products = [c, *products]
        total = products[0]
        for product in products[1:]:
            total = self._round(ieee_sum([(total, _ONE)], product))
        return _code(total if self.one_by_one else self._round(ieee_sum([(c, _ONE)], total)))

    def _round(self, value: Exact) -> Exact:
        return _to_odd(value, not self.keep) if self.rounding == "odd" else _flushed(value)


@dataclass(frozen=True)
class RoundedGroups(Chained):
    """BFDOT with EBF = 1: a group's exact sum is rounded, then added to c and rounded; subnormals are kept."""

    group: int = 2

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add a group."""
        total = ieee_sum([(decode(x, fa), decode(y, fb)) for x, y in zip(_codes(a), _codes(b), strict=True)], -0.0)
        return _code(ieee_sum([(decode(_code(total), FLOAT32), _ONE)], decode(c_bits, FLOAT32)))


@dataclass(frozen=True)
class ScaledGroups(Chained):
    """Arm's FP8: c plus 2^exponent times a group's exact sum, rounded once; if `saturate`, overflow saturates."""

    group: int = 4
    exponent: int = 0
    saturate: bool = False
    output: Fields = FLOAT32

    @property
    def c_format(self) -> Fields:
        """Format of c and of the result."""
        return self.output

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add a group."""
        factor = two_to(self.exponent)
        terms = [(_times(decode(x, fa), factor), decode(y, fb)) for x, y in zip(_codes(a), _codes(b), strict=True)]
        total = ieee_sum(terms, decode(c_bits, self.output))
        code = encode(total, self.output, "nonsaturate")
        if self.saturate and math.isfinite(total) and code & ((1 << self.output.width) - 1) > max_code(self.output):
            return max_code(self.output) | (code >> self.output.width) << self.output.width
        return code


def _times(value: Exact, factor: Fraction) -> Exact:
    return value * factor if math.isfinite(value) and not is_negative_zero(value) else value


BOCHS = (E5M2,)
"""Formats with subnormals that Bochs flushes in AMX's FP8 instructions."""
