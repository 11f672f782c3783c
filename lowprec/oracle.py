"""Slow and independent answers in exact arithmetic: what every fast path of this package is measured against.

Everything here is Python integers and :class:`fractions.Fraction`, written from the published rules and sharing no code
with the kernels. Bit patterns are plain ints; a *value* is a ``Fraction``, except for the four things that a fraction
cannot say, which are floats: ``nan``, ``inf``, ``-inf`` and ``-0.0``.

A format is anything that has the six fields of :class:`Fields`, :class:`lowprec.Format` included; none of the
properties that a format derives from them is used.

Examples
--------
>>> from lowprec.oracle import E4M3FN, HOPPER_FP8, decode, encode, fused_dot
>>> decode(0x7E, E4M3FN), decode(0x7F, E4M3FN), decode(0x80, E4M3FN)
(Fraction(448, 1), nan, -0.0)
>>> hex(encode(464, E4M3FN)), hex(encode(465, E4M3FN, overflow="nonsaturate"))
('0x7e', '0x7f')
>>> one = encode(1, E4M3FN)
>>> hex(fused_dot([one] * 32, [one] * 32, 0, HOPPER_FP8, E4M3FN, E4M3FN))  # 32.0
'0x42000000'
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from .formats import Format

Exact: TypeAlias = Fraction | float
Overflow: TypeAlias = Literal["saturate", "nonsaturate"]


class Fields(NamedTuple):
    """A format of the oracle's own: the six fields, hashable."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    signed: bool = True
    specials: str = "ieee"
    has_zero: bool = True

    @property
    def width(self) -> int:
        """Bits of a magnitude, which is the place of the sign bit."""
        return self.exponent_bits + self.mantissa_bits


FLOAT32 = Fields(8, 23, 127)
FLOAT16 = Fields(5, 10, 15)
E4M3FN = Fields(4, 3, 7, specials="fn")
E5M2 = Fields(5, 2, 15)

AnyFormat: TypeAlias = Union["Format", Fields]


def fields(fmt: AnyFormat) -> Fields:
    """Copy the six fields of a format, with the default bias filled in."""
    if isinstance(fmt, Fields):
        return fmt
    bias = (1 << (fmt.exponent_bits - 1)) - 1 if fmt.bias is None else fmt.bias
    return Fields(fmt.exponent_bits, fmt.mantissa_bits, bias, fmt.signed, str(fmt.specials), fmt.has_zero)


# Formats


class Parts(NamedTuple):
    """A code taken apart: ``(-1)**negative * significand * 2**(exponent - mantissa_bits)``, or a special."""

    kind: Literal["finite", "inf", "nan"]
    negative: bool
    significand: int
    exponent: int  # not normalised: subnormals keep the smallest normal exponent


@functools.lru_cache(maxsize=1 << 16)
def _parts(code: int, fmt: Fields) -> Parts:
    if not 0 <= code < 1 << (fmt.width + fmt.signed):
        raise ValueError(f"decode: code {code:#x} has more than the {fmt.width + fmt.signed} bits of the format")
    negative, magnitude = divmod(code, 1 << fmt.width)
    field, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    all_ones = (1 << fmt.width) - 1
    kind: Literal["finite", "inf", "nan"] = "finite"
    if fmt.specials == "ieee" and field == (1 << fmt.exponent_bits) - 1:
        kind = "nan" if mantissa else "inf"
    elif {"fn": magnitude == all_ones, "fnuz": code == all_ones + 1}.get(fmt.specials, False):
        kind = "nan"
    if field == 0 and fmt.has_zero:
        return Parts(kind, bool(negative), mantissa, 1 - fmt.bias)
    return Parts(kind, bool(negative), (1 << fmt.mantissa_bits) + mantissa, field - fmt.bias)


def decode(code: int, fmt: AnyFormat) -> Exact:
    """Return the exact value of a code: a Fraction, or one of the floats ``nan``, ``inf``, ``-inf``, ``-0.0``."""
    f = fields(fmt)
    kind, negative, significand, exponent = _parts(int(code), f)
    if kind == "nan":
        return math.nan
    if kind == "inf":
        return -math.inf if negative else math.inf
    if negative and significand == 0:
        return -0.0
    return (-significand if negative else significand) * _two_to(exponent - f.mantissa_bits)


def exact(value: Exact) -> Exact:
    """Bring any Python or NumPy number to the representation of :func:`decode`."""
    if isinstance(value, Fraction | int):
        return Fraction(value)
    value = float(value)
    return value if not math.isfinite(value) or _is_negative_zero(value) else Fraction(value)


def _is_negative_zero(value: Exact) -> bool:
    return value == 0 and math.copysign(1, value) < 0


def _two_to(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(magnitude: Fraction) -> int:
    """Return the integer e with ``2**e <= magnitude < 2**(e + 1)``."""
    n, d = magnitude.numerator, magnitude.denominator
    e = n.bit_length() - d.bit_length()
    return e if d << max(e, 0) <= n << max(-e, 0) else e - 1


def _nearest(value: Fraction, places: int, offset: int = 0) -> int:
    """Round ``value * 2**places`` to the nearest integer n; of two, to the one for which ``n + offset`` is even."""
    denominator = value.denominator << max(-places, 0)
    low, rest = divmod(value.numerator << max(places, 0), denominator)
    return low + (2 * rest > denominator or (2 * rest == denominator and (low + offset) % 2 == 1))


def nan_code(fmt: AnyFormat) -> int | None:
    """Return the canonical NaN, positive and quiet (the code of -0 for "fnuz"); None if the format has none."""
    return _limits(fields(fmt))[1]


def max_code(fmt: AnyFormat) -> int:
    """Return the code of the largest finite value."""
    return _limits(fields(fmt))[0]


@functools.cache
def _limits(f: Fields) -> tuple[int, int | None]:
    all_ones, last = (1 << f.width) - 1, 1 << f.mantissa_bits
    return {
        "ieee": (all_ones - last, all_ones + 1 - last + (last >> 1)),
        "fn": (all_ones - 1, all_ones),
        "fnuz": (all_ones, all_ones + 1),
    }.get(f.specials, (all_ones, None))


def encode(value: Exact, fmt: AnyFormat, overflow: Overflow = "saturate") -> int:
    """Round an exact value to the nearest code, ties to the even code, as OFP8 defines the conversion.

    Parameters
    ----------
    value
        A Fraction, an int or a float (taken exactly, so float64 is rounded once).
    fmt
        The format.
    overflow
        What becomes of +-Inf and of a value whose *rounded* magnitude exceeds the largest finite one. ``"saturate"``:
        that largest value; ``"nonsaturate"``: Inf if the format has it, else NaN, else the largest value.

    Returns
    -------
    int
        The code. NaN gives the canonical NaN, or the positive maximum where the format has no NaN. A format without -0
        ("fnuz") takes -0 and negative underflow to +0; one without zero takes zero to its smallest value; an unsigned
        one takes negative values to NaN.
    """
    f = fields(fmt)
    value = exact(value)
    largest, nan = _limits(f)
    negative = value < 0 or _is_negative_zero(value)
    if math.isnan(value) or (value < 0 and not f.signed):
        return largest if nan is None else nan
    sign = 1 << f.width if negative and f.signed else 0
    if not math.isinf(value):
        magnitude = Fraction(-value if negative else value)
        code = 0
        if magnitude:
            lowest = 1 - f.bias if f.has_zero else -f.bias
            exponent = max(floor_log2(magnitude), lowest)
            # Codes count upwards through the binades; n brings a hidden bit along, which the first binade of a format
            # with zero (the subnormals and the binade above them, numbered without a gap) needs and the others do not.
            base = (exponent - lowest - (not f.has_zero)) << f.mantissa_bits
            code = max(base + _nearest(magnitude, f.mantissa_bits - exponent, base), 0)
        if code <= largest:
            return 0 if code == 0 and f.specials == "fnuz" else sign + code
    if overflow == "nonsaturate" and f.specials == "ieee":
        return sign + largest + 1
    if overflow == "nonsaturate" and nan is not None:
        return sign | nan
    return sign + largest


# Sums with one rounding


def _ieee_sum(terms: Iterable[tuple[Exact, Exact]], c: Exact) -> Exact:
    """Return the exact sum of products plus c, of IEEE class: a zero is -0 only if every term is a negative zero."""
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


def fma32(a_bits: int, b_bits: int, c_bits: int) -> int:
    """Fused multiply-add of three float32 bit patterns, rounded once to nearest even; NaN is canonical."""
    a, b, c = (decode(x, FLOAT32) for x in (a_bits, b_bits, c_bits))
    return encode(_ieee_sum([(a, b)], c), FLOAT32, "nonsaturate")


def exact_dot(a: Sequence[int], b: Sequence[int], c_bits: int, a_format: AnyFormat, b_format: AnyFormat) -> int:
    """``sum(a * b) + c`` over all of K with a single rounding to float32 at the end; a sum of zero is +0."""
    terms = [(decode(x, a_format), decode(y, b_format)) for x, y in zip(a, b, strict=True)]
    total = _ieee_sum(terms, decode(c_bits, FLOAT32))
    return encode(Fraction(0) if total == 0 else total, FLOAT32, "nonsaturate")


def sequential_f32(a: Sequence[int], b: Sequence[int], c_bits: int, a_format: AnyFormat, b_format: AnyFormat) -> int:
    """``acc = fma(a[k], b[k], acc)`` in float32 for increasing k, starting from c."""
    for x, y in zip(a, b, strict=True):
        wide_x, wide_y = (encode(decode(*z), FLOAT32, "nonsaturate") for z in ((x, a_format), (y, b_format)))
        c_bits = fma32(wide_x, wide_y, c_bits)
    return c_bits


# Tensor cores


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
    return n >> -places if mode == "floor" else _nearest(Fraction(n), places)


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
    return encode(n * _two_to(quantum), target, "nonsaturate")


def _group_dot(products: list[tuple[Parts, Parts]], c_bits: int, rule: Rule, product_fraction: int) -> int:
    c = _parts(c_bits, rule.c_format)
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
    pairs = [(_parts(int(x), a_fields), _parts(int(y), b_fields)) for x, y in zip(a, b, strict=True)]
    for group in rule.groups(len(pairs)):
        c_bits = _group_dot([pairs[k] for k in group], c_bits, rule, a_fields.mantissa_bits + b_fields.mantissa_bits)
    return c_bits


def promoted_dot(
    a: Sequence[int],
    b: Sequence[int],
    scales: Sequence[tuple[int, int]],
    interval: int,
    rule: Rule | Literal["exact", "float32"],
    a_format: AnyFormat,
    b_format: AnyFormat,
) -> int:
    """Scaled dot product with promotion: after every `interval` products the tensor core's sum enters a float32 one.

    Each interval's ``partial`` starts from +0; ``s = fl32(scale_a * scale_b)``; ``final = fma(s, partial, final)`` from
    ``final = +0``. `scales` holds, for each interval, the float32 bits of both scales; the last interval may be short.
    """
    final = 0
    for index, start in enumerate(range(0, len(a), interval)):
        piece = a[start : start + interval], b[start : start + interval]
        if isinstance(rule, Rule):
            partial = fused_dot(*piece, 0, rule, a_format, b_format)
        else:
            partial = {"exact": exact_dot, "float32": sequential_f32}[rule](*piece, 0, a_format, b_format)
        negative_zero = 1 << FLOAT32.width  # the c that leaves a product alone
        scale = fma32(*scales[index], negative_zero)
        final = fma32(scale, partial, final)
    return final


# Block scaling


def quantize_tile(
    x: ArrayLike, fmt: AnyFormat, scale: Literal["fp32", "ue8m0"] = "fp32", amax_floor: float = 0.0
) -> tuple[NDArray[Any], np.float32]:
    """Codes and scale of one tile, ``x ~ scale * decode(codes)``.

    The scale s of a tile x, of any shape and taken as float32, is ``fl32(amax / max)``, at least 2^-149 ("fp32"), or
    the smallest power of two that is not below that float32 quotient, at least 2^-126 ("ue8m0"); amax is not taken
    smaller than `amax_floor`. An all-zero tile has scale 1, one with NaN or Inf has NaN. The codes (uint32, of the
    shape of x) are ``encode(fl32(x / s))``, saturating.
    """
    tile = np.asarray(x, dtype=np.float32)
    values = [exact(float(v)) for v in tile.ravel()]
    s: Exact = math.nan
    if all(math.isfinite(v) for v in values):
        amax = max([Fraction(max(v, -v)) for v in values] + [Fraction(float(np.float32(amax_floor)))])
        s = _scale(amax / Fraction(decode(max_code(fmt), fmt)), scale) if amax else Fraction(1)
    codes = [encode(_quotient(v, s), fmt, "saturate") for v in values]
    bits = np.array([encode(s, FLOAT32, "nonsaturate")], dtype=np.uint32)
    return np.array(codes, dtype=np.uint32).reshape(tile.shape), bits.view(np.float32)[0]


def _round_f32(value: Exact) -> Exact:
    return decode(encode(value, FLOAT32, "nonsaturate"), FLOAT32)


def _scale(quotient: Fraction, kind: str) -> Fraction:
    s = max(Fraction(_round_f32(quotient)), _two_to(-149))
    if kind == "fp32":
        return s
    power = _two_to(floor_log2(s))
    return max(power if power == s else 2 * power, _two_to(-126))


def _quotient(x: Exact, s: Exact) -> Exact:
    """``fl32(x / s)`` for a scale that is positive or NaN."""
    if isinstance(s, float):
        return math.nan
    return x if isinstance(x, float) else _round_f32(x / s)
