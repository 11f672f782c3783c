"""Vectors and facts worked out by hand or published, in one place: what formats are, what tensor cores return."""

from dataclasses import dataclass

from lowprec.oracle import Fields


@dataclass(frozen=True)
class Facts:
    """One row of the published table of a format. Exponents are of two; codes are of the positive side."""

    fields: Fields
    ml_dtypes: str | None  # the name there
    maximum: float
    max_code: int
    min_normal: int
    min_subnormal: int | None
    inf_code: int | None
    nan_codes: tuple[int, ...]  # all of them, both signs
    negative_zero: bool


def _ieee_nans(exponent_bits: int, mantissa_bits: int) -> tuple[int, ...]:
    inf, sign = ((1 << exponent_bits) - 1) << mantissa_bits, 1 << (exponent_bits + mantissa_bits)
    positive = range(inf + 1, sign)
    return (*positive, *(sign + c for c in positive))


FACTS = {
    "e4m3fn": Facts(Fields(4, 3, 7, specials="fn"), "float8_e4m3fn", 448.0, 0x7E, -6, -9, None, (0x7F, 0xFF), True),
    "e5m2": Facts(
        Fields(5, 2, 15), "float8_e5m2", 57344.0, 0x7B, -14, -16, 0x7C, (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), True
    ),
    "e4m3fnuz": Facts(Fields(4, 3, 8, specials="fnuz"), "float8_e4m3fnuz", 240.0, 0x7F, -7, -10, None, (0x80,), False),
    "e5m2fnuz": Facts(
        Fields(5, 2, 16, specials="fnuz"), "float8_e5m2fnuz", 57344.0, 0x7F, -15, -17, None, (0x80,), False
    ),
    "e4m3b11fnuz": Facts(
        Fields(4, 3, 11, specials="fnuz"), "float8_e4m3b11fnuz", 30.0, 0x7F, -10, -13, None, (0x80,), False
    ),
    "e4m3": Facts(Fields(4, 3, 7), "float8_e4m3", 240.0, 0x77, -6, -9, 0x78, _ieee_nans(4, 3), True),
    "e3m4": Facts(Fields(3, 4, 3), "float8_e3m4", 15.5, 0x6F, -2, -6, 0x70, _ieee_nans(3, 4), True),
    "e8m0fnu": Facts(
        Fields(8, 0, 127, signed=False, specials="fn", has_zero=False),
        "float8_e8m0fnu",
        2.0**127,
        0xFE,
        -127,
        None,
        None,
        (0xFF,),
        False,
    ),
    "e2m3fn": Facts(Fields(2, 3, 1, specials="finite"), "float6_e2m3fn", 7.5, 0x1F, 0, -3, None, (), True),
    "e3m2fn": Facts(Fields(3, 2, 3, specials="finite"), "float6_e3m2fn", 28.0, 0x1F, -2, -4, None, (), True),
    "e2m1fn": Facts(Fields(2, 1, 1, specials="finite"), "float4_e2m1fn", 6.0, 0x7, 0, -1, None, (), True),
    "bfloat16": Facts(
        Fields(8, 7, 127), "bfloat16", 255 * 2.0**120, 0x7F7F, -126, -133, 0x7F80, _ieee_nans(8, 7), True
    ),
    "float16": Facts(Fields(5, 10, 15), None, 65504.0, 0x7BFF, -14, -24, 0x7C00, _ieee_nans(5, 10), True),
    "e5m6": Facts(Fields(5, 6, 15), None, 65024.0, 0x7BF, -14, -20, 0x7C0, _ieee_nans(5, 6), True),
}

# The formats that are float32 with a shorter fraction: every code is a float32 pattern shifted right.
SHORT_FLOAT32 = {"tf32": Fields(8, 10, 127), "fp22": Fields(8, 13, 127), "float32": Fields(8, 23, 127)}


@dataclass(frozen=True)
class Dot:
    """Operand values (the rest of the group is zero), bits of c, and bits of the result."""

    name: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    c: int
    d: int


ONE, NAN, INF = 0x3F800000, 0x7FFFFFFF, 0x7F800000


def _bits(value: float) -> int:
    """Return the float32 bits of a positive power of two or a small integer, by hand."""
    numerator, denominator = value.as_integer_ratio()
    exponent = numerator.bit_length() - denominator.bit_length()
    fraction = (numerator << 23 >> (numerator.bit_length() - 1)) & 0x7FFFFF
    return (exponent + 127) << 23 | fraction


T = 2.0**-13

# Hopper, e4m3fn x e4m3fn, float32 accumulate: published micro vectors of MMA-Sim 2.1.1. Ada, which adds groups of 16,
# has the same answers here.
HOPPER_E4M3 = [
    Dot("c keeps 13 fraction bits", (), (), 0x3F8003FF, ONE),
    Dot("subnormal c below the last bit", (), (), 0x000003FF, 0),
    Dot("subnormal c at the last bit", (), (), 0x00000400, 0x00000400),
    Dot("negative subnormal c", (), (), 0x807FFFFF, 0x807FFC00),
    Dot("c = -0", (), (), 0x80000000, 0),
    Dot("c = the largest float32", (), (), 0x7F7FFFFF, 0x7F7FFC00),
    Dot("c = a signalling NaN", (), (), 0x7F800001, NAN),
    Dot("c = a negative NaN", (), (), 0xFFC00000, NAN),
    Dot("NaN * 0", (float("nan"),), (0.0,), 0, NAN),
    Dot("2^-13 below 1 survives", (1, 1, 2.0**-7), (1, -1, 2.0**-6), 0, _bits(T)),
    Dot("2^-14 below 1 is lost", (1, 1, 2.0**-7), (1, -1, 2.0**-7), 0, 0),
    Dot("2.25 has exponent 0", (1.5, 1.5, 2.0**-7), (1.5, -1.5, 2.0**-6), 0, _bits(T)),
    Dot("truncation, not floor", (1, 2.0**-7), (1, -(2.0**-7)), 0, ONE),
    Dot("a subnormal operand keeps exponent -6", (2.0**-7, 2.0**-7, 2.0**-7), (64, -64, 2.0**-7), 0, 0),
    Dot("a normal operand does not", (2.0**-6, 2.0**-6, 2.0**-7), (32, -32, 2.0**-7), 0, _bits(2.0**-14)),
    Dot("the result is cut again", (1,) * 16 + (2.0**-7,), (1,) * 16 + (2.0**-6,), 0, _bits(16.0)),
    Dot("32 products lost against c", (1,) * 32, (1,) * 32, _bits(2.0**14), _bits(2.0**14)),
    Dot("the largest sum is exact", (448,) * 32, (448,) * 32, 0, _bits(6422528.0)),
]
