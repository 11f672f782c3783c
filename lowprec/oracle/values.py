"""Formats by their fields, and exact values: splitting, decoding and rounding of codes."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, Union

if TYPE_CHECKING:
    from ..format.catalogue import Format

Exact: TypeAlias = Fraction | float
Overflow: TypeAlias = Literal["saturate", "nonsaturate"]


class Fields(NamedTuple):
    """A format of the oracle, by its fields; it is hashable."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    signed: bool = True
    specials: str = "ieee"
    has_zero: bool = True
    subnormals: bool = True

    @property
    def lowest(self) -> int:
        """Exponent of the smallest numbers with an implicit bit."""
        return 1 - self.bias if self.has_zero and self.subnormals else -self.bias

    @property
    def width(self) -> int:
        """Bits of a magnitude, equal to the position of the sign bit."""
        return self.exponent_bits + self.mantissa_bits


FLOAT64 = Fields(11, 52, 1023)
FLOAT32 = Fields(8, 23, 127)
TF32 = Fields(8, 10, 127)
BFLOAT16 = Fields(8, 7, 127)
FLOAT16 = Fields(5, 10, 15)
E4M3FN = Fields(4, 3, 7, specials="fn")
E5M2 = Fields(5, 2, 15)
E4M3FNUZ = Fields(4, 3, 8, specials="fnuz")
E5M2FNUZ = Fields(5, 2, 16, specials="fnuz")
E3M2FN = Fields(3, 2, 3, specials="finite")
E2M3FN = Fields(2, 3, 1, specials="finite")
E2M1FN = Fields(2, 1, 1, specials="finite")
INT8 = Fields(0, 7, -6, specials="integer")
INT4 = Fields(0, 3, -2, specials="integer")
MXINT8 = Fields(0, 7, 0, specials="symmetric")
E8M0FNU = Fields(8, 0, 127, signed=False, specials="fn", has_zero=False)
UE4M3 = Fields(4, 3, 7, signed=False, specials="fn")  # E4M3FN without its sign bit

DL8 = Fields(4, 3, 7, specials="fn", subnormals=False)

AnyFormat: TypeAlias = Union["Format", Fields]


def fields(fmt: AnyFormat) -> Fields:
    """Copy the fields of a format, with the default bias filled in."""
    if isinstance(fmt, Fields):
        return fmt
    bias = (1 << (fmt.exponent_bits - 1)) - 1 if fmt.bias is None else fmt.bias
    return Fields(
        fmt.exponent_bits, fmt.mantissa_bits, bias, fmt.signed, str(fmt.specials), fmt.has_zero, fmt.subnormals
    )


class Parts(NamedTuple):
    """Parts of a code: ``(-1)**negative * significand * 2**(exponent - mantissa_bits)``, or a special value."""

    kind: Literal["finite", "inf", "nan"]
    negative: bool
    significand: int
    exponent: int  # unnormalized: subnormals have the smallest normal exponent


@functools.lru_cache(maxsize=1 << 16)
def parts(code: int, fmt: Fields) -> Parts:
    """Split a code into its parts."""
    if not 0 <= code < 1 << (fmt.width + fmt.signed):
        raise ValueError(f"decode: code {code:#x} has more than the {fmt.width + fmt.signed} bits of the format")
    negative, magnitude = divmod(code, 1 << fmt.width)
    if fmt.specials in ("integer", "symmetric"):
        steps = magnitude - (negative << fmt.width)
        return Parts("finite", steps < 0, abs(steps), 1 - fmt.bias)
    field, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    all_ones = (1 << fmt.width) - 1
    kind: Literal["finite", "inf", "nan"] = "finite"
    if fmt.specials == "ieee" and field == (1 << fmt.exponent_bits) - 1:
        kind = "nan" if mantissa else "inf"
    elif fmt.specials == "extended":
        codes = (all_ones + 1, all_ones) if fmt.signed else (all_ones, all_ones - 1)
        kind = "nan" if code == codes[0] else "inf" if magnitude == codes[1] else "finite"
    elif {"fn": magnitude == all_ones, "fnuz": code == all_ones + 1}.get(fmt.specials, False):
        kind = "nan"
    if fmt.has_zero and (magnitude == 0 or (field == 0 and fmt.subnormals)):
        return Parts(kind, bool(negative), mantissa, fmt.lowest)
    return Parts(kind, bool(negative), (1 << fmt.mantissa_bits) + mantissa, field - fmt.bias)


def decode(code: int, fmt: AnyFormat) -> Exact:
    """Return the exact value of a code: a Fraction, or one of the floats ``nan``, ``inf``, ``-inf``, ``-0.0``."""
    f = fields(fmt)
    kind, negative, significand, exponent = parts(int(code), f)
    if kind == "nan":
        return math.nan
    if kind == "inf":
        return -math.inf if negative else math.inf
    if negative and significand == 0:
        return -0.0
    return (-significand if negative else significand) * two_to(exponent - f.mantissa_bits)


def exact(value: Exact) -> Exact:
    """Convert any Python or NumPy number to the representation of :func:`decode`."""
    if isinstance(value, Fraction | int):
        return Fraction(value)
    value = float(value)
    return value if not math.isfinite(value) or is_negative_zero(value) else Fraction(value)


def is_negative_zero(value: Exact) -> bool:
    """Return whether a value is -0.0."""
    return value == 0 and math.copysign(1, value) < 0


def two_to(exponent: int) -> Fraction:
    """Return a power of two."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(magnitude: Fraction) -> int:
    """Return the integer e with ``2**e <= magnitude < 2**(e + 1)``."""
    n, d = magnitude.numerator, magnitude.denominator
    e = n.bit_length() - d.bit_length()
    return e if d << max(e, 0) <= n << max(-e, 0) else e - 1


def nearest(value: Fraction, places: int, offset: int = 0) -> int:
    """Round ``value * 2**places`` to the nearest integer n; in a tie, to the one with even ``n + offset``."""
    denominator = value.denominator << max(-places, 0)
    low, rest = divmod(value.numerator << max(places, 0), denominator)
    return low + (2 * rest > denominator or (2 * rest == denominator and (low + offset) % 2 == 1))


def nan_code(fmt: AnyFormat) -> int | None:
    """Return the code of the canonical NaN, positive and quiet (that of -0 for "fnuz"), or None without a NaN."""
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
        "extended": (all_ones - 1, all_ones + 1) if f.signed else (all_ones - 2, all_ones),
    }.get(f.specials, (all_ones, None))


def encode(value: Exact, fmt: AnyFormat, overflow: Overflow = "saturate") -> int:
    """Round an exact value to the nearest code, ties to the even code, as OFP8 defines it.

    Parameters
    ----------
    value
        A Fraction, an int or a float (exact, so that float64 is rounded once).
    fmt
        Format of the code.
    overflow
        Result for +-Inf and for a value with a *rounded* magnitude above the largest finite one. ``"saturate"``: that
        largest value; ``"nonsaturate"``: Inf if the format has it, else NaN, else the largest value.

    Returns
    -------
    int
        The code. NaN gives the canonical NaN, or the positive maximum if the format has no NaN. In a format without -0
        ("fnuz"), -0 and negative underflow give +0; without zero, zero gives the smallest value; in an unsigned one,
        negative values give NaN.
    """
    f = fields(fmt)
    value = exact(value)
    largest, nan = _limits(f)
    negative = value < 0 or is_negative_zero(value)
    if value != value or (value < 0 and not f.signed):
        return largest if nan is None else nan
    sign = 1 << f.width if negative and f.signed else 0
    if value not in (math.inf, -math.inf):
        magnitude = Fraction(-value if negative else value)
        code = 0
        if magnitude:
            exponent = max(floor_log2(magnitude), f.lowest)
            # Codes count upwards through the binades; n includes a hidden bit, which the first binade of a format
            # with subnormals (these and the binade above them, numbered without a gap) needs, the others do not.
            # Without subnormals, code 0 and those below are zero.
            base = (exponent - 1 + f.bias) << f.mantissa_bits
            code = max(base + nearest(magnitude, f.mantissa_bits - exponent, base), 0)
        if code <= largest:
            return 0 if code == 0 and f.specials == "fnuz" else sign + code
    if overflow == "nonsaturate" and f.specials == "ieee":
        return sign + largest + 1
    if overflow == "nonsaturate" and nan is not None:
        return sign | nan
    return sign + largest
