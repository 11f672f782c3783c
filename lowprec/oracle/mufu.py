"""Special functions of NVIDIA Hopper's MUFU unit, from its tables of coefficients, in integers and fractions."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from pathlib import Path

from .float32 import LEAST, SpecialFunctions, is_below, multiply_add, plus, times
from .values import FLOAT32, Exact, decode

_ROUNDING = {"ex2": 24456, "lg2": 6696, "rcp": 8092, "tanh": 0}  # in units of 2^-40


@functools.cache
def _rows(function: str) -> list[tuple[int, int, int]]:
    """Return C0, C1 and C2 of each segment, in units of 2^-25, 2^-40 and 2^-38."""
    path = Path(__file__).parents[1] / "special" / "mufu.csv"
    lines = (line.split(",") for line in path.read_text().splitlines())
    return [(int(c0), int(c1), int(c2)) for name, c0, c1, c2 in lines if name == function]


def _square(x: int) -> int:
    """Return the square of a 17-bit integer in units of 2^19, from its partial products of at least one unit."""
    places = [i for i in range(17) if x >> i & 1]
    columns = [2 * i for i in places] + [i + j + 1 for i in places for j in places if i < j]
    return sum(1 << column - 19 for column in columns if column >= 19)


def _polynomial(function: str, fraction: Fraction, segments: slice = slice(None)) -> Fraction:
    """Return C0 + C1 x + C2 x^2 of a fraction below 1 with 23 bits, before its last bits are dropped."""
    rows = _rows(function)[segments]
    place = fraction * len(rows)
    c0, c1, c2 = rows[math.floor(place)]
    x = int((place - math.floor(place)) * 2**17)
    return Fraction((c0 << 15) + _ROUNDING[function] + c1 * x + 4 * c2 * _square(x), 1 << 40)


def _cut(x: Fraction, bits: int) -> Fraction:
    """Return the largest multiple of 2^-bits up to x."""
    return Fraction(math.floor(x * (1 << bits)), 1 << bits)


def _binade(x: Fraction) -> int:
    """Return the exponent of the largest power of two up to x."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if _power(guess) <= x else guess - 1


def _power(exponent: int) -> Fraction:
    return Fraction(1 << max(exponent, 0), 1 << max(-exponent, 0))


def ex2(x: Exact) -> Exact:
    """Return 2**x of ``ex2.approx.ftz.f32``; negative arguments with a fraction are one unit of 2^-23 lower."""
    if math.isnan(x) or x == math.inf:
        return x
    if x <= -256 or x >= 256:
        return Fraction(0) if x < 0 else math.inf
    fixed = _cut(abs(Fraction(x)), 23)
    if x < 0:
        fixed = -fixed if fixed.denominator == 1 else -fixed - Fraction(1, 2**23)
    whole = math.floor(fixed)
    significand = _cut(_polynomial("ex2", fixed - whole), 23) if fixed != whole else Fraction(1)
    if whole > 127:
        return math.inf
    return significand * _power(whole) if whole >= -126 else Fraction(0)


def lg2(x: Exact) -> Exact:
    """Return log2 of ``lg2.approx.ftz.f32``."""
    if math.isnan(x) or x == math.inf:
        return x
    if is_below(x, LEAST):
        return -math.inf
    if x < 0:
        return math.nan
    if x == 1:
        return Fraction(0)
    exponent = _binade(Fraction(x))
    total = exponent + _polynomial("lg2", Fraction(x) / _power(exponent) - 1) / 2
    magnitude = _cut(total if total >= 0 else -total - Fraction(1, 2**41), 36)
    if magnitude == 0:
        return -0.0 if total < 0 else Fraction(0)
    magnitude = _cut(magnitude, 23 - _binade(magnitude))
    return magnitude if total >= 0 else -magnitude


def rcp(x: Exact) -> Exact:
    """Return 1/x of ``rcp.approx.ftz.f32``."""
    sign = math.copysign(1, x)
    if math.isnan(x) or math.isinf(x):
        return x if math.isnan(x) else 0.0 * sign
    if is_below(x, LEAST):
        return math.inf * sign
    size = abs(Fraction(x))
    exponent = _binade(size)
    found = _cut(_polynomial("rcp", size / _power(exponent) - 1), 23) / _power(exponent + 1)
    return int(sign) * found if found >= LEAST else 0.0 * sign


def tanh(x: Exact) -> Exact:
    """Return tanh of ``tanh.approx.f32``; the table has the segments of octaves from 2^-8 to 4 in order."""
    if math.isnan(x) or is_below(x, Fraction(1, 256)):
        return x
    sign = int(math.copysign(1, x))
    if not is_below(x, 8):
        return Fraction(sign)
    size = abs(Fraction(x))
    octave, start = _binade(size), 0
    for exponent, segments in zip(range(-8, 3), (1, 1, 1, 2, 2, 4, 4, 4, 8, 16, 8), strict=True):
        if exponent == octave:
            found = _polynomial("tanh", size / _power(octave) - 1, slice(start, start + segments)) / 2
            return sign * _cut(found, 23 - _binade(found))
        start += segments
    raise AssertionError(octave)


#: Coefficients of CUDA's log2f, float32 words from the highest power on.
_LOG2F = (
    0x3DC6B27F, 0xBE2C7F30, 0x3E2FCF2A, 0xBE374E43, 0x3E520BF4, 0xBE763C8B, 0x3E93BF99, 0xBEB8AA49, 0x3EF6384A,
    0xBF38AA3B,
)  # fmt: skip


def log2f(x: Exact) -> Exact:
    """Return log2 of CUDA's log2f, as nvcc and Triton compile it: a polynomial of f, for x = (1 + f) 2^exponent."""
    if math.isnan(x) or x == math.inf:
        return x
    if x == 0:
        return -math.inf
    if x < 0:
        return math.nan
    exponent = _binade(Fraction(x))
    if Fraction(x) / _power(exponent) >= 2 * decode(0x3F3504F3, FLOAT32):  # of sqrt(1/2)
        exponent += 1
    f: Exact = Fraction(x) / _power(exponent) - 1
    y = decode(_LOG2F[0], FLOAT32)
    for word in _LOG2F[1:]:
        y = multiply_add(y, f, decode(word, FLOAT32))
    return plus(exponent, multiply_add(f, decode(0x3FB8AA3B, FLOAT32), times(f, times(f, y))))


HOPPER = SpecialFunctions("MUFU of Hopper", ex2, lg2, rcp, tanh)
TRITON = HOPPER._replace(name="MUFU of Hopper, log2f of CUDA", log2=log2f)
