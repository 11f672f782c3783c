"""float32 arithmetic of the attention oracles: each operation a fraction, or 60 digits, rounded once."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from .ieee import ieee_sum
from .values import FLOAT32, Exact, decode, encode

DIGITS = decimal.Context(prec=60)
LN_2 = decimal.Decimal(2).ln(DIGITS)
LEAST = Fraction(1, 1 << 126)
ONE = Fraction(1)


def is_below(x: Exact, least: Any) -> bool:
    """Return whether a magnitude is less than a limit; False for NaN."""
    return bool(abs(x) < least)


def flushed(x: Exact) -> Exact:
    """Return a number, or a zero of its sign if it is subnormal in float32."""
    if x != 0 and is_below(x, LEAST):
        return -0.0 if x < 0 else Fraction(0)
    return x


def fmax(a: Exact, b: Exact) -> Exact:
    """Return the larger number; NaN only if both are."""
    return b if math.isnan(a) or b > a else a


def rounded(value: Exact) -> Exact:
    """Return a number rounded to float32."""
    return decode(encode(value, FLOAT32, "nonsaturate"), FLOAT32)


def bits_of(value: Exact) -> int:
    """Return the bits of a number rounded to float32."""
    return encode(value, FLOAT32, "nonsaturate")


def negated(value: Exact) -> Exact:
    """Return -x."""
    return rounded(ieee_sum([(value, Fraction(-1))], -0.0))


def times(a: Exact, b: Exact) -> Exact:
    """Return a * b."""
    return rounded(ieee_sum([(a, b)], -0.0))


def plus(a: Exact, b: Exact) -> Exact:
    """Return a + b."""
    return rounded(ieee_sum([(a, ONE)], b))


def multiply_add(a: Exact, b: Exact, c: Exact) -> Exact:
    """Return a * b + c, rounded once."""
    return rounded(ieee_sum([(a, b)], c))


def divided(a: Exact, b: Exact) -> Exact:
    """Return a / b; 0 for an infinite b."""
    return Fraction(0) if math.isinf(b) else rounded(Fraction(a) / Fraction(b))


def reciprocal(x: Exact) -> Exact:
    """Return 1 / x; NaN for NaN."""
    return x if math.isnan(x) else divided(ONE, x)


def tanh(x: Exact) -> Exact:
    """Return the hyperbolic tangent rounded to float32; a small number is returned unchanged."""
    if math.isnan(x):
        return x
    number: Any = x
    if number > 50 or number < -50:
        return Fraction(1 if number > 0 else -1)
    if abs(number) < 1e-10:
        return x

    def exact(d: decimal.Decimal) -> decimal.Decimal:
        e = DIGITS.exp(DIGITS.multiply(d, decimal.Decimal(2)))
        return DIGITS.divide(DIGITS.subtract(e, decimal.Decimal(1)), DIGITS.add(e, decimal.Decimal(1)))

    return rounded(by_digits(exact, x))


def exp2(x: Exact) -> Exact:
    """Return 2**x rounded to float32."""
    if math.isnan(x) or x == math.inf:
        return x
    if x < -1000:
        return Fraction(0)
    if x > 1000:
        return math.inf
    if Fraction(x).denominator == 1:
        return rounded(Fraction(2) ** int(x))
    return rounded(by_digits(lambda d: DIGITS.exp(DIGITS.multiply(d, LN_2)), x))


def log2(x: Exact) -> Exact:
    """Return log2 of a positive number rounded to float32."""
    if math.isinf(x):
        return x
    number = Fraction(x)
    if number.numerator & (number.numerator - 1) == 0 and number.denominator & (number.denominator - 1) == 0:
        return Fraction(number.numerator.bit_length() - number.denominator.bit_length())
    return rounded(by_digits(lambda d: DIGITS.divide(d.ln(DIGITS), LN_2), x))


class SpecialFunctions(NamedTuple):
    """2**x, log2, 1/x and tanh of an attention kernel."""

    name: str
    exp2: Callable[[Exact], Exact]
    log2: Callable[[Exact], Exact]
    reciprocal: Callable[[Exact], Exact]
    tanh: Callable[[Exact], Exact]


ROUNDED = SpecialFunctions("correctly rounded", exp2, log2, reciprocal, tanh)


def by_digits(function: Callable[[decimal.Decimal], decimal.Decimal], x: Exact) -> Fraction:
    """Return a function of a number, computed to 60 digits."""
    number = Fraction(x)
    return Fraction(function(DIGITS.divide(decimal.Decimal(number.numerator), decimal.Decimal(number.denominator))))
