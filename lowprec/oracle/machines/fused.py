"""Tensor cores that add a group of products and c in one step: aligned, truncated, summed exactly, truncated again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from ..values import FLOAT16, FLOAT32, AnyFormat, Fields, Parts, encode, fields, nearest, parts, two_to
from .base import Codes, DotRule, Scales


@dataclass(frozen=True)
class Rule(DotRule):
    """Rule by which a tensor core adds a group of products: a correct rule, or a wrong one that tests must detect.

    The defaults are Hopper's FP8 unit: all terms of a group are aligned to the largest exponent, truncated to
    `fraction_bits`, summed exactly and truncated to the output. Each group's result is the next group's c.

    Attributes
    ----------
    group
        Products per group.
    fraction_bits, align
        Fraction bits kept below the largest exponent, and the rounding of the bits below these: toward zero
        ("truncate"), down ("floor"), or to nearest even ("nearest").
    output, output_fraction, output_rounding
        Format of the result: "fp22" (float32 with 13 fraction bits), "f32" or "f16" (always rounded to nearest even);
        its fraction bits, if they differ from the format's; its rounding, "truncate" or "nearest".
    zero_exponent
        Exponent of a zero product or zero c in the alignment; None: zeros are ignored. Zeros that pad a short group
        have it too.
    exact_within
        Products that are summed exactly before the alignment, as one term with the exponent of its scales (mxf4, nvf4);
        1: each product is a term, with its own exponent plus those of the scales.
    first_c
        "f16" if the first c is a float16 number although the output is not; None: c has the output's format.
    normalise
        Wrong rule: a product's exponent is that of its value, not the sum of its operands' exponents.
    c_aligned
        Whether c is aligned and truncated too; False is a wrong rule: c is added exactly to the sum of the products.
    interleaved
        Wrong rule: of every ``2 * group`` products, k % 4 in {0, 1} is one group and k % 4 in {2, 3} the next.
    backwards
        Wrong rule: groups are added in decreasing k.
    signed_zero
        Wrong rule: a zero result has the sign of IEEE arithmetic or of its truncated value; otherwise always +0.
    nan_payload
        Wrong rule: a NaN in c is returned unchanged; otherwise every NaN result is 0x7FFFFFFF (0x7FFF).
    normalised_subnormals
        Wrong rule: a subnormal operand has the exponent of its value, as a normal number has.
    """

    group: int = 32
    fraction_bits: int = 13
    align: Literal["truncate", "floor", "nearest"] = "truncate"
    output: Literal["fp22", "f32", "f16"] = "fp22"
    output_fraction: int | None = None
    output_rounding: Literal["truncate", "nearest"] = "truncate"
    zero_exponent: int | None = None
    exact_within: int = 1
    first_c: Literal["f16"] | None = None
    normalise: bool = False
    c_aligned: bool = True
    interleaved: bool = False
    backwards: bool = False
    signed_zero: bool = False
    nan_payload: bool = False
    normalised_subnormals: bool = False

    @property
    def c_format(self) -> Fields:
        """Format of c and of the result."""
        return FLOAT16 if self.output == "f16" else FLOAT32

    def groups(self, k: int) -> list[list[int]]:
        """Return the indices of each group, in order of addition."""
        size = self.group * (2 if self.interleaved else 1)
        runs = [list(range(i, min(i + size, k))) for i in range(0, max(k, 1), size)]
        if self.interleaved:
            runs = [[i for i in r if i % 4 in half] for r in runs for half in ((0, 1), (2, 3))]
        return runs[::-1] if self.backwards else runs

    def dot(
        self, a: Codes, b: Codes, c_bits: int, a_format: AnyFormat, b_format: AnyFormat, scales: Scales | None = None
    ) -> int:
        """Return the dot product, see `fused_dot`."""
        return fused_dot(a, b, c_bits, self, a_format, b_format, scales)

    def sum_products(self, a: Codes, b: Codes, c_bits: int, fa: Fields, fb: Fields) -> int:
        """Add the products of two code vectors to c."""
        return fused_dot(a, b, c_bits, self, fa, fb)


HOPPER_FP8 = Rule()
ADA_FP8 = Rule(group=16)


def special_sum(products: Sequence[tuple[Parts, Parts]], c: Parts) -> float | None:
    """Return the NaN or infinity of a sum of products and c under IEEE 754, or None if all terms are finite."""
    nan = c.kind == "nan"
    infinities = {c.negative} if c.kind == "inf" else set()
    for a, b in products:
        nan |= a.kind == "nan" or b.kind == "nan"
        if a.kind == "inf" or b.kind == "inf":
            nan |= any(x.kind == "finite" and x.significand == 0 for x in (a, b))
            infinities.add(a.negative != b.negative)
    if nan or len(infinities) == 2:
        return math.nan
    if infinities:
        return -math.inf if infinities.pop() else math.inf
    return None


def shift(n: int, places: int, mode: str) -> int:
    """Return ``n * 2**places`` rounded to an integer by a rounding mode."""
    if places >= 0:
        return n << places
    if mode == "truncate":
        return n >> -places if n >= 0 else -(-n >> -places)
    return n >> -places if mode == "floor" else nearest(Fraction(n), places)


class Term(NamedTuple):
    """``n * 2**unit``, with its exponent in the alignment (None: that of a zero)."""

    n: int
    unit: int
    place: int | None


def fused_dot(
    a: Sequence[int],
    b: Sequence[int],
    c_bits: int,
    rule: Rule,
    a_format: AnyFormat,
    b_format: AnyFormat,
    scales: Scales | None = None,
) -> int:
    """Return the dot product of two code vectors plus c on a tensor core; groups are chained in the output format.

    K is arbitrary: a short last group is zero-padded, and K = 0 is one group of zeros. `c_bits` and the result are bits
    of a float32, or of a float16 if the rule's output is "f16". With `scales`, each product is multiplied by both of
    its scales.
    """
    fa, fb = fields(a_format), fields(b_format)
    pairs = [(parts(int(x), fa), parts(int(y), fb)) for x, y in zip(a, b, strict=True)]
    if rule.normalised_subnormals:
        pairs = [(_normalised(x, fa), _normalised(y, fb)) for x, y in pairs]
    c_format = FLOAT16 if rule.first_c == "f16" else rule.c_format
    for group in rule.groups(len(pairs)):
        c_bits = _group_dot(pairs, group, parts(c_bits, c_format), c_bits, rule, (fa, fb, c_format), scales)
        c_format = rule.c_format
    return c_bits


def _normalised(x: Parts, fmt: Fields) -> Parts:
    missing = fmt.mantissa_bits + 1 - x.significand.bit_length() if x.significand else 0
    return x._replace(significand=x.significand << missing, exponent=x.exponent - missing)


def _group_dot(
    pairs: Sequence[tuple[Parts, Parts]],
    group: Sequence[int],
    c: Parts,
    c_bits: int,
    rule: Rule,
    formats: tuple[Fields, Fields, Fields],
    scales: Scales | None,
) -> int:
    if c.kind == "nan" and rule.nan_payload:
        return c_bits
    fa, fb, c_format = formats

    # Specials first, by the IEEE class of the sum. Scales are positive or NaN.
    special = special_sum([pairs[k] for k in group], c)
    if scales is not None and any("nan" in (s.kind, t.kind) for s, t in map(scales.of, group)):
        special = math.nan
    if special is not None:
        all_ones = (1 << rule.c_format.width) - 1
        return all_ones if math.isnan(special) else encode(special, rule.c_format, "nonsaturate")

    terms = _terms(pairs, group, rule, fa.mantissa_bits + fb.mantissa_bits, scales)
    c_term = -c.significand if c.negative else c.significand
    c_unit = c.exponent - c_format.mantissa_bits
    if rule.c_aligned:
        terms.append(Term(c_term, c_unit, c.exponent if c_term else None))

    places = [rule.zero_exponent if t.place is None else t.place for t in terms]
    if len(group) < rule.group:
        places.append(rule.zero_exponent)
    last = max((e for e in places if e is not None), default=0) - rule.fraction_bits
    total = sum(shift(t.n, t.unit - last, rule.align) for t in terms)
    if not rule.c_aligned:
        common = min(last, c_unit)
        total, last = (total << (last - common)) + (c_term << (c_unit - common)), common
    return _finish(
        total, last, c.negative and all(x.negative != y.negative for x, y in (pairs[k] for k in group)), rule
    )


def _terms(
    pairs: Sequence[tuple[Parts, Parts]], group: Sequence[int], rule: Rule, fraction: int, scales: Scales | None
) -> list[Term]:
    """Return the terms of a group from its products, which have `fraction` fraction bits, and their scales."""
    products = []
    for k in group:
        a, b = pairs[k]
        n = a.significand * b.significand
        products.append((-n if a.negative != b.negative else n, a.exponent + b.exponent))
    within = rule.exact_within
    if within == 1:
        terms = [Term(n, e - fraction, e if n else None) for n, e in products]
    else:
        terms = [_exact_term(products[i : i + within], fraction) for i in range(0, len(products), within)]
    if rule.normalise:
        terms = [t._replace(place=t.unit + t.n.bit_length() - 1 if t.n else None) for t in terms]
    if scales is not None:
        down = scales.format.mantissa_bits
        terms = [_scaled(t, scales.of(k), down) for t, k in zip(terms, group[::within], strict=True)]
    return terms


def _exact_term(products: Sequence[tuple[int, int]], fraction: int) -> Term:
    lowest = min(e for _, e in products)
    n = sum(p << (e - lowest) for p, e in products)
    return Term(n, lowest - fraction, 0 if any(p for p, _ in products) else None)


def _scaled(term: Term, scales: tuple[Parts, Parts], fraction: int) -> Term:
    n, unit, place = term
    for scale in scales:
        n *= scale.significand
        unit += scale.exponent - fraction
        place = None if place is None or scale.significand == 0 else place + scale.exponent
    return Term(n, unit, place)


def _finish(total: int, unit: int, zero_is_negative: bool, rule: Rule) -> int:
    """Round ``total * 2**unit`` to the output of a rule and return the bits."""
    target = rule.c_format
    own = {"fp22": 13, "f32": 23, "f16": 10}[rule.output]
    fraction = own if rule.output_fraction is None else rule.output_fraction
    quantum = max(total.bit_length() - 1 + unit, 1 - target.bias) - fraction
    n = shift(total, unit - quantum, "nearest" if rule.output == "f16" else rule.output_rounding)
    if n == 0:
        negative = total < 0 or (total == 0 and zero_is_negative)
        return 1 << target.width if negative and rule.signed_zero else 0
    return encode(n * two_to(quantum), target, "nonsaturate")
