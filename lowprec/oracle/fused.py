"""Tensor cores that add a group of products and c in one step: aligned, cut, summed exactly, cut to the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .values import FLOAT16, FLOAT32, AnyFormat, Fields, Parts, encode, fields, nearest, parts, two_to


@dataclass(frozen=True)
class Rule:
    """How a tensor core adds a group of products: the right rules, and the wrong ones that tests must tell from them.

    The defaults are Hopper's FP8 unit: all terms of a group are aligned to the largest exponent, cut to
    `fraction_bits`, summed exactly and cut once more to the output. Each group's result is the next group's c.

    Attributes
    ----------
    group
        Products per group.
    fraction_bits, align
        Fraction bits kept below the largest exponent, and what happens to those beyond: dropped from the magnitude
        ("truncate"), rounded down ("floor"), or rounded to nearest even ("nearest").
    output, output_fraction, output_rounding
        "fp22" (a float32 with 13 fraction bits), "f32" or "f16" (always to nearest even); fraction bits of the result
        where they differ from the output's own; "truncate" or "nearest".
    zero_exponent
        Exponent with which a zero product or zero c takes part in the alignment; None: takes no part.
    normalise
        Wrong rule: a product's exponent is that of its value, not the sum of its operands' exponents.
    c_aligned
        False is a wrong rule: only products are aligned and cut, c is added to their sum exactly.
    interleaved
        Wrong rule: of every ``2 * group`` products, k % 4 in {0, 1} is one group and k % 4 in {2, 3} the next.
    signed_zero
        Wrong rule: a zero result has the sign that IEEE arithmetic or its truncated value gives; else always +0.
    nan_payload
        Wrong rule: a NaN in c comes back unchanged; else every NaN result is 0x7FFFFFFF (0x7FFF).
    """

    group: int = 32
    fraction_bits: int = 13
    align: Literal["truncate", "floor", "nearest"] = "truncate"
    output: Literal["fp22", "f32", "f16"] = "fp22"
    output_fraction: int | None = None
    output_rounding: Literal["truncate", "nearest"] = "truncate"
    zero_exponent: int | None = None
    normalise: bool = False
    c_aligned: bool = True
    interleaved: bool = False
    signed_zero: bool = False
    nan_payload: bool = False

    @property
    def c_format(self) -> Fields:
        """Format of c and of the result."""
        return FLOAT16 if self.output == "f16" else FLOAT32

    def groups(self, k: int) -> list[list[int]]:
        """Return the indices of each group, in the order in which the groups are added."""
        size = self.group * (2 if self.interleaved else 1)
        runs = [list(range(i, min(i + size, k))) for i in range(0, max(k, 1), size)]
        return (
            [[i for i in r if i % 4 in half] for r in runs for half in ((0, 1), (2, 3))] if self.interleaved else runs
        )


HOPPER_FP8 = Rule()
ADA_FP8 = Rule(group=16)


def _shift(n: int, places: int, mode: str) -> int:
    """Return ``n * 2**places`` as an integer under a rounding mode."""
    if places >= 0:
        return n << places
    if mode == "truncate":
        return n >> -places if n >= 0 else -(-n >> -places)
    return n >> -places if mode == "floor" else nearest(Fraction(n), places)


def _finish(total: int, unit: int, zero_is_negative: bool, rule: Rule) -> int:
    """Round ``total * 2**unit`` to the output of a rule and return the bits."""
    target = rule.c_format
    own = {"fp22": 13, "f32": 23, "f16": 10}[rule.output]
    quantum = max(total.bit_length() - 1 + unit, 1 - target.bias) - (
        own if rule.output_fraction is None else rule.output_fraction
    )
    n = _shift(total, unit - quantum, "nearest" if rule.output == "f16" else rule.output_rounding)
    if n == 0:
        negative = total < 0 or (total == 0 and zero_is_negative)
        return 1 << target.width if negative and rule.signed_zero else 0
    return encode(n * two_to(quantum), target, "nonsaturate")


def _group_dot(products: list[tuple[Parts, Parts]], c_bits: int, rule: Rule, product_fraction: int) -> int:
    c = parts(c_bits, rule.c_format)
    nan = c.kind == "nan"
    if nan and rule.nan_payload:
        return c_bits

    # Specials first, by the IEEE class of the sum.
    infinities = {c.negative} if c.kind == "inf" else set()
    for a, b in products:
        nan |= a.kind == "nan" or b.kind == "nan"
        if a.kind == "inf" or b.kind == "inf":
            nan |= any(x.kind == "finite" and x.significand == 0 for x in (a, b))
            infinities.add(a.negative != b.negative)
    if nan or len(infinities) == 2:
        return (1 << rule.c_format.width) - 1
    if infinities:
        return encode(-math.inf if infinities.pop() else math.inf, rule.c_format, "nonsaturate")

    terms = []  # (signed significand, exponent of its last bit, exponent in the alignment)
    for a, b in products:
        n, e = a.significand * b.significand, a.exponent + b.exponent
        unit = e - product_fraction
        place = unit + n.bit_length() - 1 if rule.normalise else e
        terms.append((-n if a.negative != b.negative else n, unit, place))
    c_unit = c.exponent - rule.c_format.mantissa_bits
    c_term = -c.significand if c.negative else c.significand
    if rule.c_aligned:
        terms.append((c_term, c_unit, c.exponent))

    places = [e if n else rule.zero_exponent for n, _, e in terms]
    last = max((e for e in places if e is not None), default=0) - rule.fraction_bits
    total = sum(_shift(n, unit - last, rule.align) for n, unit, _ in terms)
    if not rule.c_aligned:
        common = min(last, c_unit)
        total, last = (total << (last - common)) + (c_term << (c_unit - common)), common
    return _finish(total, last, c.negative and all(a.negative != b.negative for a, b in products), rule)


def fused_dot(
    a: Sequence[int], b: Sequence[int], c_bits: int, rule: Rule, a_format: AnyFormat, b_format: AnyFormat
) -> int:
    """Dot product of two code vectors plus c on a tensor core: groups of products chained through the output format.

    K is any length: a short last group is a group padded with zeros, and no products at all are one group of zeros.
    `c_bits` and the result are bits of a float32, or of a float16 where the rule's output is "f16".
    """
    a_fields, b_fields = fields(a_format), fields(b_format)
    pairs = [(parts(int(x), a_fields), parts(int(y), b_fields)) for x, y in zip(a, b, strict=True)]
    for group in rule.groups(len(pairs)):
        c_bits = _group_dot([pairs[k] for k in group], c_bits, rule, a_fields.mantissa_bits + b_fields.mantissa_bits)
    return c_bits
