"""Number formats as data: a `Format` has a few fields, and all other properties are derived from them.

A format with fields s, e, m encodes ``(-1)^s * 2^(e - bias) * (1 + m / 2^M)`` and, at ``e = 0``, the
subnormals ``(-1)^s * 2^(1 - bias) * (m / 2^M)``. `specials` defines the meaning of the topmost codes:

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

For codes that index a list of values, in any order, see `lowprec.format.table.TableFormat`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import real, real_numbers, whole
from .._ieee import standard
from .._values import Value, plain_fields
from .picture import html

Specials = Literal["ieee", "fn", "fnuz", "finite", "extended", "integer", "symmetric", "table"]
SPECIALS: tuple[Specials, ...] = ("ieee", "fn", "fnuz", "finite", "extended", "integer", "symmetric")


class FormatParams(NamedTuple):
    """Parameters of a format that the kernels take, as plain integers.

    All codes are magnitudes (without the sign bit) except `nan_code`, which is the code of a positive NaN.
    """

    mantissa_bits: int
    emin: int  # exponent of the smallest normal number (of the smallest number if there are no subnormals)
    max_code: int  # largest finite magnitude
    inf_code: int  # -1 if there is no Inf
    nan_code: int  # -1 if there is no NaN
    sign_mask: int  # 0 if unsigned
    has_zero: int
    negative_zero: int  # 1 if the code of -0 is a zero


@dataclass(frozen=True, eq=False, repr=False)
class Format(Value):
    """A floating-point format of at most 32 bits, all of whose values are float32 numbers.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    exponent_bits, mantissa_bits : int
        Widths of the fields: 1 to 14 (0 for integers), and 0 to 23; all values must be float32 numbers.
    bias : int, optional
        Exponent bias; ``2^(exponent_bits - 1) - 1`` by default. The default for integers makes the quantum 1.
    signed : bool
        Whether there is a sign bit.
    specials : {"ieee", "fn", "fnuz", "finite", "extended", "integer", "symmetric"}
        Meaning of the topmost codes; see the module's table.
    has_zero : bool
        False for formats whose code 0 is a power of two (e8m0fnu); they have no subnormals either.
    source : str
        Reference for the definition.

    Raises
    ------
    ValueError
        If the fields do not define a format; the message names the field and the values that it may have.

    Examples
    --------
    >>> import lowprec as lp
    >>> mine = lp.Format(name="my_e5m6", exponent_bits=5, mantissa_bits=6)
    >>> mine.bits, mine.max, mine.smallest_subnormal == 2.0**-20
    (12, 65024.0, True)
    >>> lp.formats["e4m3fn"].max
    448.0
    """

    name: str = dataclasses.field(compare=False)
    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    signed: bool = True
    specials: Specials = "ieee"
    has_zero: bool = True
    source: str = dataclasses.field(default="user-defined", compare=False)

    is_table: ClassVar[bool] = False
    """Whether the codes index a list of values instead of having sign, exponent and mantissa fields."""

    def __post_init__(self) -> None:
        plain_fields(self)
        e, m = self.exponent_bits, self.mantissa_bits
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Format: name={self.name!r}: a non-empty string is needed")
        integer = self.specials in ("integer", "symmetric")
        if self.specials not in SPECIALS:
            raise ValueError(f"Format {self.name}: specials={self.specials!r}: one of {', '.join(SPECIALS)}")
        if not (_is_int(e) and (e == 0 if integer else 1 <= e <= 14)):
            allowed = "0 for integers" if integer else "1 to 14 are possible"
            raise ValueError(f"Format {self.name}: exponent_bits={e!r}: {allowed}")
        if not (_is_int(m) and 0 <= m <= 23):
            raise ValueError(f"Format {self.name}: mantissa_bits={m!r}: 0 to 23 are possible")
        if self.bias is None:
            object.__setattr__(self, "bias", 1 - m if integer else (1 << (e - 1)) - 1)
        else:
            whole(f"Format {self.name}", "bias", self.bias)
        if integer and not (self.signed and self.has_zero and m >= 1):
            raise ValueError(f"Format {self.name}: specials={self.specials!r} needs a sign, a zero and 1 to 23 bits")
        if self.specials == "ieee" and (m == 0 or e == 1):
            raise ValueError(
                f"Format {self.name}: exponent_bits={e}, mantissa_bits={m}: specials='ieee' needs a mantissa bit for "
                "NaN and 2 exponent bits"
            )
        if self.specials in ("fnuz", "extended") and not ((self.signed or self.specials != "fnuz") and self.has_zero):
            raise ValueError(
                f"Format {self.name}: specials={self.specials!r} uses the code of -0, so it needs a sign and a zero"
            )
        if not self.has_zero and m > 0:
            raise ValueError(f"Format {self.name}: has_zero=False is for formats without mantissa bits, not {m}")
        if self.bits > 32 or self.max_code < 1:
            raise ValueError(f"Format {self.name}: {self.bits} bits: 2 to 32, with a positive value, are possible")
        if self.emin - m < -149 or self.emax > 127:
            raise ValueError(
                f"Format {self.name}: bias={self.bias} puts values from 2^{self.emin - m} to 2^{self.emax} "
                "into it; all must be float32 numbers (2^-149 to below 2^128)"
            )

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        assert self.bias is not None
        return (1 if self.has_zero else 0) - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        field, fraction = self.max_code >> self.mantissa_bits, self.max_code & ((1 << self.mantissa_bits) - 1)
        if field == 0 and self.has_zero:
            return fraction.bit_length() - 1 + self.emin - self.mantissa_bits
        return field + self.emin - self.has_zero

    @property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        below = {"ieee": 1 << self.mantissa_bits, "fn": 1, "extended": 1 if self.signed else 2}
        return top - below.get(self.specials, 0)

    @property
    def inf_code(self) -> int | None:
        """Code of +Inf, or None if there is no Inf."""
        return self.max_code + 1 if self.specials in ("ieee", "extended") else None

    @property
    def nan_code(self) -> int | None:
        """Code of the NaN that casts produce (positive, quiet), or None if there is no NaN."""
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
    def is_integer(self) -> bool:
        """Whether codes are two's complement integers instead of sign, exponent and mantissa."""
        return self.specials in ("integer", "symmetric")

    @property
    def has_negative_zero(self) -> bool:
        """Whether the code of -0 is a zero."""
        return self.signed and self.specials in ("ieee", "fn", "finite") and self.has_zero

    @property
    def negative_limit(self) -> int:
        """Smallest magnitude code that no negative number has."""
        return self.max_code + (2 if self.specials == "integer" else 1) if self.signed else 0

    @property
    def lowest_code(self) -> int:
        """Code of the lowest finite number that casts produce: -max, zero, or one below -max for integers."""
        if not self.signed:
            return 0
        return self.with_sign(self.negative_limit - 1)

    def with_sign(self, magnitude: int) -> int:
        """Return the code of the negative number with the given magnitude code, which must not be zero."""
        return (1 << self.bits) - magnitude if self.is_integer else magnitude | self.sign_mask

    @property
    def zeros(self) -> tuple[int, int]:
        """The sign bit, which is the code of -0 if the format has it, and the code of zero."""
        return self.sign_mask, 0

    @standard
    def ulp(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return the distance between neighbouring values in the binade of each number.

        ``2^(max(e, emin) - mantissa_bits)`` with e the exponent of x: the smallest subnormal around zero, and at most
        the ulp of the format's maximum. For a table of values, the distance between the values on either side of x; if
        x is one of the values, the distance to the next one away from zero.

        Parameters
        ----------
        x : array_like of real numbers, any shape
            Numbers at which to evaluate the ulp.

        Returns
        -------
        ndarray of float64, shape of `x`
            Powers of two, unless the values are a table; NaN for NaN and Inf.

        Raises
        ------
        TypeError
            If `x` is not real.

        Examples
        --------
        >>> import lowprec as lp
        >>> lp.formats["e4m3fn"].ulp([1.0, 1.99, 448.0, 1e-9, 1e9]).tolist()
        [0.125, 0.125, 32.0, 0.001953125, 32.0]
        """
        given = real_numbers("ulp", x)
        with np.errstate(invalid="ignore"):
            return self._ulp(given.astype(np.float64))

    def _ulp(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        exponents = np.where(x == 0, self.emin, np.frexp(x)[1] - 1)
        gaps = np.ldexp(1.0, np.clip(exponents, self.emin, max(self.emax, self.emin)) - self.mantissa_bits)
        return np.where(np.isfinite(x), gaps, np.nan)

    @property
    def usual_rounding(self) -> str:
        """Default rounding of casts to this format."""
        return "nearest_even"

    @property
    def undefined(self) -> frozenset[str]:
        """Names of properties without a meaning for this format: integers have no normal numbers."""
        return frozenset(("smallest_normal", "emin") if self.smallest_normal > self.max else ())

    @property
    def layout(self) -> tuple[Any, ...]:
        """All fields that determine the values of the codes: all except name and source."""
        return self.exponent_bits, self.mantissa_bits, self.bias, self.signed, self.specials, self.has_zero

    def same_codes(self, other: Format) -> bool:
        """Return whether every code has the same value as in the other format, regardless of names."""
        if self is other or self.mantissa_bits != other.mantissa_bits:  # cheaper than comparing all fields
            return self is other
        return self.layout == other.layout

    def holds(self, other: Format) -> bool:
        """Return whether every value of the other format is a value of this one, including Inf, NaN and -0.

        Examples
        --------
        >>> import lowprec as lp
        >>> bf16, f16, f32 = (lp.formats[name] for name in ("bfloat16", "float16", "float32"))
        >>> f32.holds(bf16), bf16.holds(f32), f16.holds(bf16), bf16.holds(bf16)
        (True, False, False, True)
        """
        return self.same_codes(other) or other._within(self)

    def _within(self, wider: Format) -> bool:
        """Return whether every value is a value of another format with exponent and mantissa fields."""
        if self.is_integer or wider.is_integer:
            return False
        coarser = self.mantissa_bits <= wider.mantissa_bits and self.smallest_subnormal >= wider.smallest_subnormal
        narrower = self.max <= wider.max and self.min >= wider.min
        return coarser and narrower and all(has >= needed for has, needed in zip(wider._has, self._has, strict=True))

    @property
    def _has(self) -> tuple[bool, ...]:
        """Whether the format has Inf, NaN, 0 and -0."""
        return self.inf_code is not None, self.nan_code is not None, self.has_zero, self.has_negative_zero

    @property
    def sign_mask(self) -> int:
        """Sign bit of a code; 0 for unsigned formats."""
        return 1 << (self.exponent_bits + self.mantissa_bits) if self.signed else 0

    @property
    def max(self) -> float:
        """Largest finite value."""
        return self._value(self.max_code)

    @property
    def min(self) -> float:
        """Lowest finite value: -max; 0 or the smallest value if unsigned; one quantum below -max for integers."""
        return self.value(self.lowest_code)

    @property
    def smallest_normal(self) -> float:
        """Smallest normal value."""
        return math.ldexp(1.0, self.emin)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        return math.ldexp(1.0, self.emin - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value: ``2^-mantissa_bits``, one quantum for integers."""
        return self.smallest_subnormal if self.is_integer else math.ldexp(1.0, -self.mantissa_bits)

    @property
    def dynamic_range(self) -> float:
        """Binades between the smallest positive and the largest value, ``log2(max / smallest)``."""
        return math.log2(self.max) - math.log2(self.smallest_subnormal)

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """Unsigned integer type that holds one code: uint8, uint16 or uint32."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    @property
    def params(self) -> FormatParams:
        """Parameters that the kernels take."""
        return FormatParams(
            self.mantissa_bits,
            self.emin,
            self.max_code,
            -1 if self.inf_code is None else self.inf_code,
            -1 if self.nan_code is None else self.nan_code,
            self.sign_mask,
            int(self.has_zero),
            int(self.has_negative_zero),
        )

    def _value(self, magnitude: int) -> float:
        """Return the value of a finite magnitude code."""
        field, fraction = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if not self.has_zero:
            return math.ldexp(1.0, field + self.emin)
        if field == 0:
            return math.ldexp(fraction, self.emin - self.mantissa_bits)
        return math.ldexp(fraction + (1 << self.mantissa_bits), field - 1 + self.emin - self.mantissa_bits)

    def value(self, code: int) -> float:
        """Return the value of one code.

        Parameters
        ----------
        code : int
            Bit pattern, ``0 <= code < 2^bits``.

        Raises
        ------
        ValueError
            If `code` is out of range.
        """
        code = self._checked(code)
        sign = -1.0 if code & self.sign_mask else 1.0
        if self.is_integer:
            return math.ldexp(code - (1 << self.bits if sign < 0 else 0), self.emin - self.mantissa_bits)
        magnitude = code & ~self.sign_mask
        if code == self.nan_code:  # for "fnuz" and "extended" the code of -0
            return math.nan
        if magnitude <= self.max_code:
            return sign * self._value(magnitude)
        return sign * math.inf if magnitude == self.inf_code else math.nan

    def _checked(self, code: int) -> int:
        code = whole(self.name, "code", code)
        if not 0 <= code < (1 << self.bits):
            raise ValueError(f"{self.name}: code {code} is outside 0..{(1 << self.bits) - 1}")
        return code

    def values(self) -> NDArray[np.float32]:
        """Return the values of all codes, in the order of the codes.

        Returns
        -------
        ndarray of float32, shape (2**bits,)

        Raises
        ------
        ValueError
            If the format has more than 16 bits.

        Examples
        --------
        >>> import lowprec as lp
        >>> lp.formats["e2m1fn"].values()[:8]
        array([0. , 0.5, 1. , 1.5, 2. , 3. , 4. , 6. ], dtype=float32)
        """
        if self.bits > 16:
            raise ValueError(f"{self.name} has 2^{self.bits} codes; values() is for formats of at most 16 bits")
        return _values(self).copy()

    def magnitudes(self) -> Sequence[float]:
        """Return the nonnegative values in ascending order."""
        return _Magnitudes(self)

    def nextafter(self, x: float, toward: float) -> float:
        """Return the neighbour of a value of the format in the direction of `toward`.

        Parameters
        ----------
        x : float
            Value of the format, including Inf if the format has it.
        toward : float
            Any number; if equal to `x`, `x` is returned.

        Returns
        -------
        float
            The neighbour. Beyond the last value: Inf if the format has it, else `x` itself.

        Raises
        ------
        ValueError
            If `x` is not a value of the format.

        Examples
        --------
        >>> import lowprec as lp
        >>> e4m3 = lp.formats["e4m3fn"]
        >>> e4m3.nextafter(1.0, 2.0), e4m3.nextafter(0.0, -1.0), e4m3.nextafter(448.0, 1e9)
        (1.125, -0.001953125, 448.0)
        """
        given, x, toward = x, real(self.name, "x", x), real(self.name, "toward", toward)
        if x == math.inf and given != x:  # an integer too large for float64
            raise ValueError(f"{self.name}: x={given!r} is not one of its values")
        position = self._position(x)
        if math.isnan(toward) or toward == x:
            return math.nan if math.isnan(toward) else x
        step = position + (1 if toward > x else -1)
        top = self.max_code + (self.inf_code is not None)
        bottom = 0 if not self.signed else -(self.negative_limit - 1 + (self.inf_code is not None))
        if not bottom <= step <= top:
            return x
        magnitude = self._value(abs(step)) if abs(step) != self.inf_code else math.inf
        return -magnitude if step < 0 else magnitude

    def has_value(self, x: float) -> bool:
        """Return whether a number is a value of the format."""
        try:
            self._position(x)
        except ValueError:
            return False
        return True

    def _position(self, x: float) -> int:
        """Return the signed magnitude code of a value."""
        for position in self._candidates(abs(x)):
            value = math.inf if position == self.inf_code else self._value(position)
            if value == abs(x) and (x >= 0 or self.signed):
                return -position if x < 0 else position
        raise ValueError(f"{self.name}: {x!r} is not one of its values")

    def _candidates(self, magnitude: float) -> tuple[int, ...]:
        if math.isnan(magnitude):
            return ()
        if math.isinf(magnitude):
            return () if self.inf_code is None else (self.inf_code,)
        if magnitude == 0:
            return (0,) if self.has_zero else ()
        exponent = max(math.frexp(magnitude)[1] - 1, self.emin)
        quanta = int(math.ldexp(magnitude, self.mantissa_bits - exponent))
        code = ((exponent - self.emin) << self.mantissa_bits) + quanta - (not self.has_zero)
        return (code,) if 0 <= code < max(self.max_code + 1, self.negative_limit) else ()

    def _repr_html_(self) -> str:
        return html(self)


class _Magnitudes(Sequence[float]):
    """Values of the magnitude codes, computed on access."""

    def __init__(self, fmt: Format) -> None:
        self._fmt = fmt

    def __len__(self) -> int:
        return self._fmt.max_code + 1

    def __getitem__(self, code: Any) -> Any:
        if not 0 <= code <= self._fmt.max_code:
            raise IndexError(code)
        return self._fmt.value(code)


@functools.lru_cache(maxsize=64)
def _values(fmt: Format) -> NDArray[np.float32]:
    table = np.array([fmt.value(code) for code in range(1 << fmt.bits)], dtype=np.float32)
    table.flags.writeable = False
    return table


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
