"""Block scales in exact arithmetic: every float32 operation is a rational operation with an explicit rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from .values import E4M3FN, FLOAT32, Exact, decode, encode, floor_log2, is_negative_zero, max_code, two_to

FLT_MAX = Fraction(decode(max_code(FLOAT32), FLOAT32))
E4M3_MAX = Fraction(448)
ONE = Fraction(1)
Pair = tuple[Exact, Exact]
NAN: Pair = (math.nan, math.nan)


def f32(value: Exact) -> Exact:
    """Round to float32, to nearest even; overflow becomes Inf."""
    return decode(encode(value, FLOAT32, "nonsaturate"), FLOAT32)


def r32(value: Fraction) -> Fraction:
    """Round a positive value to float32; overflow becomes FLT_MAX."""
    rounded = f32(value)
    return FLT_MAX if rounded == math.inf else Fraction(rounded)


def multiply(a: Exact, b: Exact) -> Exact:
    """Return fl32(a * b) for any a and any nonnegative b."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return -0.0 if a < 0 and b == 0 else f32(a * b)
    if is_negative_zero(a) and isinstance(b, Fraction):
        return -0.0
    return math.nan if math.isnan(a) or math.isnan(b) or 0 in (a, b) else math.copysign(math.inf, a)


def divide(a: Exact, b: Exact) -> Exact:
    """Return fl32(a / b) for any a and a positive or NaN b."""
    if isinstance(b, float):
        return math.nan
    return f32(a / b) if isinstance(a, Fraction) else a


def size_of(value: Exact) -> Exact:
    """Return the magnitude."""
    return -value if value < 0 or is_negative_zero(value) else value


class Tensor(NamedTuple):
    """Amax of the tensor, the factor that multiplies block scales, and its inverse."""

    amax: Fraction
    encode: Fraction
    scale: Exact


class Scaled(NamedTuple):
    """A block's scale, the factor or divisor of its values, and whether it is a divisor."""

    scale: Exact
    factor: Exact
    divides: bool = False


Rule = Callable[[Fraction, Fraction, Tensor], Scaled]


# --- float32 scales


def v3(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
    """Compute s = amax / max, for x / s."""
    s = max(r32(amax / top), two_to(-149))
    return Scaled(s, s, divides=True)


def v32(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
    """Compute s = amax * fl(1 / max), for x / s."""
    s = max(r32(amax * r32(1 / top)), two_to(-149))
    return Scaled(s, s, divides=True)


def gemm(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    """Compute s = amax / max, for x * fl(1 / s)."""
    s = Fraction(v3(amax, top, tensor).scale)
    return Scaled(s, r32(1 / s))


def te(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
    """Compute m = max / amax, for x * m, and s = 1 / m."""
    m = r32(top / amax)
    return Scaled(r32(1 / m), m)


def tile(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    """Compute s = amax / max, for x * fl(max / amax)."""
    return Scaled(v3(amax, top, tensor).scale, r32(top / amax))


# --- powers of two


def power(e: int, least: int = -127) -> Scaled:
    """Return the scale 2^e, with e limited to the range of E8M0."""
    e = min(max(e, least), 127)
    return Scaled(two_to(e), two_to(-e))


def ceil_log2(value: Fraction) -> int:
    """Return the smallest e with 2^e >= value."""
    e = floor_log2(value)
    return e if two_to(e) == value else e + 1


def round_up(quotient: Callable[[Fraction, Fraction], Fraction], least: int) -> Rule:
    """Return the rule whose scale is the smallest 2^e not below the float32 quotient of amax and max."""

    def rule(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
        q = r32(quotient(amax, top))
        return power(ceil_log2(q) if q else least, least)

    return rule


def by_division(amax: Fraction, top: Fraction) -> Fraction:
    """Return amax / max, unrounded."""
    return amax / top


def by_product(amax: Fraction, top: Fraction) -> Fraction:
    """Return amax * fl(1 / max), with the product unrounded."""
    return amax * r32(1 / top)


def te_power(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    """Compute m = max / amax rounded down to a power of two, for x * m, and s = 1 / m."""
    return power(-floor_log2(Fraction(te(amax, top, tensor).factor)))


def exponent(of_amax: Callable[[Fraction], int]) -> Rule:
    """Return OCP MX's rule: the exponent of amax minus that of the largest element."""

    def rule(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
        return power(of_amax(amax) - floor_log2(top))

    return rule


def after_rounding(mantissa_bits: int) -> Callable[[Fraction], int]:
    """Return a function that gives the exponent of amax plus half a quantum of `mantissa_bits` fraction bits."""

    def of_amax(amax: Fraction) -> int:
        e = floor_log2(amax)
        return e + (amax / two_to(e) + two_to(-mantissa_bits - 1) >= 2)

    return of_amax


# --- E4M3 scales


def e4m3(value: Fraction, least: Fraction = Fraction(0)) -> Fraction:
    """Round to E4M3, saturating, not below `least`."""
    return Fraction(decode(encode(max(value, least), E4M3FN), E4M3FN))


def inverse(value: Fraction) -> Fraction:
    """Return min(fl(1 / value), FLT_MAX)."""
    return r32(1 / value) if value else FLT_MAX


def te_nvfp4(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    """Compute s = E4M3(amax * fl(e * fl(1 / 6))), for x * fl(1 / fl(s * g))."""
    s = e4m3(r32(amax * r32(tensor.encode * r32(1 / top))))
    return Scaled(s, inverse(r32(s * Fraction(tensor.scale))))


def torchao_nvfp4(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    """Compute s = E4M3(amax / 6 / g), not below 2^-6, for x * fl(fl(1 / g) / s)."""
    s = e4m3(r32(r32(amax / top) / Fraction(tensor.scale)), two_to(-6))
    return Scaled(s, r32(tensor.encode / s))


def torchao_one_level(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
    """Compute s = E4M3(amax / 6), not below 2^-6, for x * fl(1 / s)."""
    s = e4m3(r32(amax / top), two_to(-6))
    return Scaled(s, r32(1 / s))


def e4m3_alone(amax: Fraction, top: Fraction, _: Tensor) -> Scaled:
    """Compute s = E4M3(amax / 6), for x / s."""
    return Scaled(e4m3(r32(amax / top), two_to(-9)), e4m3(r32(amax / top), two_to(-9)), divides=True)


def modelopt_nvfp4(amax: Fraction, top: Fraction, tensor: Tensor) -> Scaled:
    """Compute s = E4M3(amax / fl(6 g)), not below 2^-9, or 1 if the quotient is 0, for x / fl(s * g)."""
    q = r32(amax / r32(top * Fraction(tensor.scale)))
    s = e4m3(q or ONE, two_to(-9))
    return Scaled(s, max(r32(s * Fraction(tensor.scale)), two_to(-149)), divides=True)


def six_or_four(amax: Fraction, top: Fraction, tensor: Tensor) -> tuple[Scaled, Scaled]:
    """Compute s = E4M3(y) and s = E4M3(1.5 y) with y = amax / 6 * e, for x * fl(1 / fl(s * g))."""
    base = r32(r32(amax / top) * tensor.encode)
    six, four = e4m3(base), e4m3(r32(base * Fraction(3, 2)))
    return Scaled(six, inverse(r32(six * Fraction(tensor.scale)))), Scaled(
        four, inverse(r32(four * Fraction(tensor.scale)))
    )
