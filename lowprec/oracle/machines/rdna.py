"""AMD's RDNA3 and RDNA4: sums in units of the last kept bit, in exact fractions.

The rules are those of AMD's emulator (ROCm/rocm-systems, emulation/rocjitsu), which recordings of both chips match.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from ..values import BFLOAT16, FLOAT16, FLOAT32, Fields, Parts, encode, floor_log2, nearest, parts, two_to
from .base import Chained, Codes

Pairs = Sequence[tuple[Parts, Parts]]
Output = Literal["float32", "float16", "bfloat16"]
#: Result for a NaN operand, for an invalid operation, +Inf, and the bit that makes a NaN quiet.
_SPECIAL = {
    "float32": (0xFFC00A3D, 0xFFC00000, 0x7F800000, 0x00400000),
    "bfloat16": (0xFFFD0000, 0xFFC00000, 0x7F800000, 0x00400000),
    "float16": (0xFE3D, 0xFE00, 0x7C00, 0x0200),
}


def special_bits(pairs: Pairs, c: Parts, c_bits: int, output: Output) -> int | None:
    """Return the result if a term is NaN or Inf, by the first rule that applies, or None."""
    nan_operand, invalid, infinity, quiet = _SPECIAL[output]
    if any("nan" in (a.kind, b.kind) for a, b in pairs):
        return nan_operand
    infinite = [(a, b) for a, b in pairs if "inf" in (a.kind, b.kind)]
    signs = {a.negative != b.negative for a, b in infinite}
    if len(signs) == 2 or any(x.kind == "finite" and x.significand == 0 for pair in infinite for x in pair):
        return invalid
    if c.kind == "nan":
        return c_bits | quiet
    if c.kind == "inf":
        signs.add(c.negative)
    if len(signs) == 2:
        return invalid
    return (invalid ^ quiet if signs.pop() else infinity) if signs else None


def _value(x: Parts, fmt: Fields) -> Fraction:
    return x.significand * two_to(x.exponent - fmt.mantissa_bits)


class _Packed(Chained):
    """A rule with results in float32, float16, or bfloat16 as the upper half of a float32."""

    output: Output
    nearest: bool

    @property
    def c_format(self) -> Fields:
        """Format of c and of the result."""
        return FLOAT16 if self.output == "float16" else FLOAT32

    def start(self, c_bits: int) -> int:
        """Return c, without the lower half if it is a bfloat16."""
        return c_bits & 0xFFFF0000 if self.output == "bfloat16" else c_bits

    def rounded(self, total: Fraction) -> int:
        """Round to nearest, a zero to +0; a bfloat16 is the upper half of the result."""
        if self.nearest:
            return encode(total, BFLOAT16, "nonsaturate") << 16
        found = encode(total, self.c_format, "nonsaturate")
        return self.start(0 if found == 1 << self.c_format.width else found)


@dataclass(frozen=True)
class SignFrame(_Packed):
    """RDNA3: terms are truncated; the magnitude of a term of the opposite sign of c counts one unit more.

    Attributes
    ----------
    group
        Products per sum.
    flushed
        Format of operands with subnormals read as zeros.
    fraction_bits, leading_bits
        Bits kept below the largest sum of two exponents, and below the largest term's leading bit.
    output
        Format of c and of results; float16 keeps its subnormals, and its c has at least the exponent -14.
    complement, framed, keep, nearest
        Wrong rules: with `complement` False, terms of the other sign are negated; with `framed` False, the frame is
        always positive; with `keep` True, subnormal results and c are kept; with `nearest` True, a bfloat16 is rounded
        to nearest.
    """

    group: int = 2
    flushed: str = "bfloat16"
    fraction_bits: int = 24
    leading_bits: int = 26
    output: Output = "float32"
    complement: bool = True
    framed: bool = True
    keep: bool = False
    nearest: bool = False

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
        pairs = [(self._operand(x, fa), self._operand(y, fb)) for x, y in zip(a, b, strict=True)]
        c = parts(c_bits, self.c_format)
        found = special_bits(pairs, c, c_bits, self.output)
        if found is not None:
            return found
        value_of_c, keep = _value(c, self.c_format), self.keep or self.output == "float16"
        if value_of_c < two_to(-126) and not keep:
            value_of_c = Fraction(0)
        terms = [(c.negative, value_of_c)]
        last = []
        for x, y in pairs:
            term = _value(x, fa) * _value(y, fb)
            terms.append((x.negative != y.negative, term))
            if term:
                last.append(x.exponent + y.exponent - self.fraction_bits)
        last += [floor_log2(term) - self.leading_bits for _, term in terms if term]
        if not last:
            return 0
        if self.output == "float16":
            last.append(-14 - self.leading_bits)
        unit, frame = two_to(max(last)), c.negative and self.framed
        total = 0
        for negative, term in terms:
            count = math.floor(term / unit)
            total += count if negative == frame else -count - (1 if self.complement else 0)
        result = total * unit * (-1 if frame else 1)
        if not result:
            return 0
        if keep:
            return self.rounded(result)
        places = 23 - floor_log2(abs(result))
        rounded = nearest(abs(result), places) * two_to(-places)
        if rounded < two_to(-126):
            return 0
        return self.rounded(-rounded if result < 0 else rounded)

    def _operand(self, code: int, fmt: Fields) -> Parts:
        found = parts(code, fmt)
        subnormal = found.kind == "finite" and found.significand < 1 << fmt.mantissa_bits
        is_flushed = self.flushed == "bfloat16" and fmt.exponent_bits == 8
        return found._replace(significand=0) if subnormal and is_flushed else found


@dataclass(frozen=True)
class FlooredPairs(_Packed):
    """RDNA4: pairs of products are rounded down and added, then rounded down with c, added and rounded to nearest.

    Attributes
    ----------
    group, order
        Products per sum; order in which the groups of an instruction are added (empty: increasing).
    fraction_bits, leading_bits
        Bits kept below a pair's largest sum of two exponents, and below c's leading bit.
    output
        Format of c and of results.
    down, in_pairs, drops, nearest
        Wrong rules: with `down` False, truncation replaces rounding down; with `in_pairs` False, all products are
        aligned together; with `drops` False, a negative c below the last bit counts -1; with `nearest` True, a bfloat16
        is rounded to nearest.
    """

    group: int = 4
    order: tuple[int, ...] = ()
    fraction_bits: int = 24
    leading_bits: int = 26
    output: Output = "float32"
    down: bool = True
    in_pairs: bool = True
    drops: bool = True
    nearest: bool = False

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add groups of products to c in the instruction's order; a short last instruction is zero-padded."""
        span = self.group * len(self.order)
        if span:
            padded = [[*map(int, x), *[0] * (-len(x) % span)] for x in (a, b)]
            where = [
                start + group * self.group + i
                for start in range(0, len(padded[0]), span) for group in self.order for i in range(self.group)
            ]  # fmt: skip
            a, b = ([x[k] for k in where] for x in padded)
        return super().sum_products(a, b, c_bits, fa, fb)

    def step(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add one group of products to c."""
        pairs = [(parts(x, fa), parts(y, fb)) for x, y in zip(a, b, strict=True)]
        c = parts(c_bits, self.c_format)
        found = special_bits(pairs, c, c_bits, self.output)
        if found is not None:
            return found
        sums: list[tuple[Fraction, Fraction]] = []  # of a pair, and its last bit
        size = 2 if self.in_pairs else len(pairs)
        for start in range(0, len(pairs), size):
            some = [
                (_value(x, fa) * _value(y, fb) * (-1 if x.negative != y.negative else 1), x.exponent + y.exponent)
                for x, y in pairs[start : start + size]
            ]
            places = [exponent for term, exponent in some if term]
            if places:
                unit = two_to(max(places) - self.fraction_bits)
                sums.append((sum((self._cut(term, unit) for term, _ in some), Fraction(0)), unit))
        value, least = _value(c, self.c_format), self.c_format.lowest
        unit = two_to(max(floor_log2(value) if value else least, least) - self.leading_bits)
        unit = max([unit, *(last for _, last in sums)])
        total = self._cut(-value if c.negative else value, unit)
        if self.drops and c.negative and value < unit and unit > two_to(least):
            total = Fraction(0)
        total += sum((self._cut(x, unit) for x, _ in sums), Fraction(0))
        return self.rounded(total)

    def _cut(self, value: Fraction, unit: Fraction) -> Fraction:
        count = value / unit
        return (math.floor(count) if self.down else math.trunc(count)) * unit


Rdna: TypeAlias = SignFrame | FlooredPairs
