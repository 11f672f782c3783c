"""Layout of a format's codes: the fields of a `Format`, and which codes are numbers, zeros, Inf and NaN.

A format with fields s, e, m encodes ``(-1)^s * 2^(e - bias) * (1 + m / 2^M)`` and, at ``e = 0``, the
subnormals ``(-1)^s * 2^(1 - bias) * (m / 2^M)``. With ``subnormals=False``, ``e = 0`` is an ordinary exponent, except
that ``m = 0`` is zero. `specials` defines the meaning of the topmost codes:

=========  ====================================================  =========================================
specials   meaning                                               examples
=========  ====================================================  =========================================
ieee       all-ones exponent: Inf at m = 0, NaN elsewhere        e5m2, bfloat16, float16
fn         no Inf; all-ones exponent *and* mantissa is NaN       e4m3fn, e8m0fnu, P3109 unsigned finite
fnuz       no Inf, no -0; the code of -0 is the only NaN         e4m3fnuz, e5m2fnuz, P3109 signed finite
finite     neither Inf nor NaN                                   e2m1fn, e2m3fn, e3m2fn
extended   one NaN (the code of -0; all ones if there is no      P3109 extended
           sign), and Inf as the topmost code below it
integer    no exponent: two's complement multiples of            int8, int4
           ``2^(1 - bias - M)``
symmetric  as integer, but the lowest code is never produced     mxint8
=========  ====================================================  =========================================
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from .._checks import check_int
from .._values import Value, normalize_fields

Specials = Literal["ieee", "fn", "fnuz", "finite", "extended", "integer", "symmetric", "table"]
SPECIALS: tuple[Specials, ...] = ("ieee", "fn", "fnuz", "finite", "extended", "integer", "symmetric")


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Value):
    """Layout of the codes of a format; its fields are those of `lowprec.Format`."""

    name: str = dataclasses.field(compare=False)
    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    signed: bool = True
    specials: Specials = "ieee"
    has_zero: bool = True
    subnormals: bool = True
    source: str = dataclasses.field(default="user-defined", compare=False)

    is_table: ClassVar[bool] = False
    """Whether the codes index a list of values instead of having sign, exponent and mantissa fields."""

    def __post_init__(self) -> None:
        normalize_fields(self)
        e, m = self.exponent_bits, self.mantissa_bits
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Format: name must be a non-empty string, got {self.name!r}")
        caller, integer = f"Format {self.name}", self.specials in ("integer", "symmetric")
        if self.specials not in SPECIALS:
            raise ValueError(f"{caller}: specials must be one of {', '.join(SPECIALS)}, got {self.specials!r}")
        if not (_is_int(e) and (e == 0 if integer else 1 <= e <= 14)):
            raise ValueError(
                f"{caller}: exponent_bits must be {'0 for integers' if integer else 'from 1 to 14'}, got {e!r}"
            )
        if not (_is_int(m) and 0 <= m <= 23):
            raise ValueError(f"{caller}: mantissa_bits must be from 0 to 23, got {m!r}")
        if self.bias is None:
            object.__setattr__(self, "bias", 1 - m if integer else (1 << (e - 1)) - 1)
        else:
            check_int(caller, "bias", self.bias)
        if integer and not (self.signed and self.has_zero and m >= 1):
            raise ValueError(
                f"{caller}: with specials={self.specials!r}, signed and has_zero must be True and mantissa_bits from 1 "
                f"to 23, got signed={self.signed}, has_zero={self.has_zero}, mantissa_bits={m}"
            )
        if self.specials == "ieee" and (m == 0 or e == 1):
            raise ValueError(
                f"{caller}: with specials='ieee', exponent_bits must be >= 2 and mantissa_bits >= 1 (for NaN), got "
                f"exponent_bits={e}, mantissa_bits={m}"
            )
        if self.specials in ("fnuz", "extended") and not ((self.signed or self.specials != "fnuz") and self.has_zero):
            raise ValueError(
                f"{caller}: with specials={self.specials!r} (NaN is the code of -0), the format must have a sign and a "
                f"zero, got signed={self.signed}, has_zero={self.has_zero}"
            )
        if not self.has_zero and m > 0:
            raise ValueError(f"{caller}: mantissa_bits must be 0 with has_zero=False, got {m}")
        if not self.subnormals and (integer or m == 0):
            raise ValueError(
                f"{caller}: with subnormals=False, exponent_bits and mantissa_bits must be >= 1, got "
                f"exponent_bits={e}, mantissa_bits={m}"
            )
        if self.bits > 32 or self.max_code < 1:
            raise ValueError(f"{caller}: a format must have 2 to 32 bits and a positive value, got {self.bits} bits")
        if self.emin - m < -149 or self.emax > 127:
            raise ValueError(
                f"{caller}: values must be float32 numbers (2^-149 to below 2^128), got 2^{self.emin - m} to "
                f"2^{self.emax} with bias={self.bias}"
            )

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal numbers."""
        assert self.bias is not None
        return self.has_subnormals - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        field, fraction = self.max_code >> self.mantissa_bits, self.max_code & ((1 << self.mantissa_bits) - 1)
        if field == 0 and self.has_subnormals:
            return fraction.bit_length() - 1 + self.emin - self.mantissa_bits
        return field + self.emin - self.has_subnormals

    @property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        below = {"ieee": 1 << self.mantissa_bits, "fn": 1, "extended": 1 if self.signed else 2}
        return top - below.get(self.specials, 0)

    @property
    def inf_code(self) -> int | None:
        """Code of +Inf, or None for formats without Inf."""
        return self.max_code + 1 if self.specials in ("ieee", "extended") else None

    @property
    def nan_code(self) -> int | None:
        """Code of the NaN that casts produce (positive, quiet), or None for formats without NaN."""
        if self.specials == "ieee":
            return self.max_code + 1 + (1 << (self.mantissa_bits - 1))
        if self.specials == "fn":
            return self.max_code + 1
        if self.specials == "extended" and not self.signed:
            return self.max_code + 2
        return self.sign_mask if self.specials in ("fnuz", "extended") else None

    def nan_codes(self, which: str) -> tuple[int, int]:
        """Return the codes of NaN and -NaN for a policy's `nan`; the format must have a NaN."""
        nan = self.nan_code
        assert nan is not None
        if which == "zero":
            return 0, 0
        if self.specials not in ("ieee", "fn"):
            return nan, nan
        if which in ("positive", "negative"):
            return (nan | self.sign_mask if which == "negative" else nan,) * 2
        if which == "positive_ones" or (which == "ones" and self.bits <= 8):
            nan = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        return nan, nan if which == "positive_ones" else nan | self.sign_mask

    @property
    def has_subnormals(self) -> bool:
        """Whether the codes of the lowest exponent field are subnormals, which a format without zero lacks too."""
        return self.has_zero and self.subnormals

    @property
    def is_integer(self) -> bool:
        """Whether codes are two's complement integers instead of sign, exponent and mantissa."""
        return self.specials in ("integer", "symmetric")

    @property
    def has_negative_zero(self) -> bool:
        """Whether the code with only the sign bit set is -0."""
        return self.signed and self.specials in ("ieee", "fn", "finite") and self.has_zero

    @property
    def min_negative_magnitude(self) -> int:
        """Smallest magnitude code that is not the code of any negative number."""
        return self.max_code + (2 if self.specials == "integer" else 1) if self.signed else 0

    @property
    def min_code(self) -> int:
        """Code of the lowest finite number that casts produce: -max, zero, or one below -max for integers."""
        if not self.signed:
            return 0
        return self.negative_code(self.min_negative_magnitude - 1)

    def negative_code(self, magnitude: int) -> int:
        """Return the code of the negative number with the given magnitude code, which must not be zero."""
        return (1 << self.bits) - magnitude if self.is_integer else magnitude | self.sign_mask

    @property
    def zero_codes(self) -> tuple[int, int]:
        """The sign bit, which is the code of -0 if the format has -0, and the code of zero."""
        return self.sign_mask, 0

    @property
    def encoding_key(self) -> tuple[Any, ...]:
        """All fields that determine the values of the codes: all except name and source."""
        return (
            self.exponent_bits, self.mantissa_bits, self.bias, self.signed, self.specials, self.has_zero,
            self.subnormals,
        )  # fmt: skip

    @property
    def sign_mask(self) -> int:
        """Sign bit of a code, or 0 for unsigned formats."""
        return 1 << (self.exponent_bits + self.mantissa_bits) if self.signed else 0

    @property
    def _has(self) -> tuple[bool, ...]:
        """Whether the format has Inf, whether NaN, whether 0, and whether -0."""
        return self.inf_code is not None, self.nan_code is not None, self.has_zero, self.has_negative_zero

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """Unsigned integer type that holds one code: uint8, uint16 or uint32."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    def _checked(self, code: int) -> int:
        code = check_int(self.name, "code", code)
        if not 0 <= code < (1 << self.bits):
            raise ValueError(f"{self.name}: code must be from 0 to {(1 << self.bits) - 1}, got {code}")
        return code


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
