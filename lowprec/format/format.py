"""Number formats as data: a `Format` has a few fields, and all other properties are derived from them.

`lowprec.format.layout` has the fields and the codes, this file the values. For codes that index a list of values, in
any order, see `lowprec.format.table.TableFormat`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_real
from .._checks import check_real
from .._fpenv import with_default_fpenv
from .layout import Layout
from .picture import html


class FormatParams(NamedTuple):
    """Parameters of a format that the kernels take, as plain integers.

    All codes are magnitudes (without the sign bit) except `nan_code`, which is the code of a positive NaN.
    """

    mantissa_bits: int
    emin: int  # exponent of the smallest normal number (of the smallest number in formats without subnormals)
    max_code: int  # largest finite magnitude
    inf_code: int  # -1 without Inf
    nan_code: int  # -1 without NaN
    sign_mask: int  # 0 if unsigned
    has_subnormals: int  # 0 if the codes of the lowest exponent field are normal numbers
    negative_zero: int  # 1 if the code of -0 is a zero


@dataclass(frozen=True, eq=False, repr=False)
class Format(Layout):
    """A floating-point format of at most 32 bits, whose values are all float32 numbers.

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
        Meaning of the topmost codes; see `lowprec.format.layout`.
    has_zero : bool
        False if code 0 is a power of two (e8m0fnu); such formats also lack subnormals.
    subnormals : bool
        False if the lowest exponent field has normal numbers, except code 0 and its negative, which are zeros (dl16).
        A value is rounded as if exponents had no lower end, and becomes zero if it is then less than the smallest
        normal number, in directed and stochastic roundings too: ``up`` of ``0.9 * 2**emin`` is 0, ``down`` of -2^-40
        is -0 (dl16), and stochastic roundings of magnitudes up to ``2**emin`` are always 0.
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

    @with_default_fpenv
    def ulp(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return the distance between neighbouring values in the binade of each number.

        It is ``2^(max(e, emin) - mantissa_bits)``, with e the exponent of x: the smallest subnormal around zero, and at
        most the ulp of the format's maximum. For a table of values, it is the distance between the values on either
        side of x or, if x is one of the values, the distance to the next one away from zero.

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
        given = as_real("ulp", x)
        with np.errstate(invalid="ignore"):
            return self._ulp(given.astype(np.float64))

    def _ulp(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        exponents = np.where(x == 0, self.emin, np.frexp(x)[1] - 1)
        gaps = np.ldexp(1.0, np.clip(exponents, self.emin, max(self.emax, self.emin)) - self.mantissa_bits)
        gaps = np.where(np.abs(x) < self.smallest_subnormal, self.smallest_subnormal, gaps)
        return np.where(np.isfinite(x), gaps, np.nan)

    @property
    def default_rounding(self) -> str:
        """Default rounding of casts to this format."""
        return "nearest_even"

    @property
    def undefined_properties(self) -> frozenset[str]:
        """Names of properties that have no meaning for this format, such as `smallest_normal` of integers."""
        return frozenset(("smallest_normal", "emin") if self.smallest_normal > self.max else ())

    def same_codes(self, other: Format) -> bool:
        """Return whether every code has the same value as in the other format, regardless of names."""
        if self is other or self.mantissa_bits != other.mantissa_bits:  # cheaper than comparing all fields
            return self is other
        return self.encoding_key == other.encoding_key

    def can_represent_all(self, other: Format) -> bool:
        """Return whether every value of the other format is a value of this one, including Inf, NaN and -0.

        Examples
        --------
        >>> import lowprec as lp
        >>> bf16, f16, f32 = (lp.formats[name] for name in ("bfloat16", "float16", "float32"))
        >>> [a.can_represent_all(b) for a, b in ((f32, bf16), (bf16, f32), (f16, bf16), (bf16, bf16))]
        [True, False, False, True]
        """
        return self.same_codes(other) or other._within(self)

    def _within(self, wider: Format) -> bool:
        """Return whether every value is a value of another format with exponent and mantissa fields."""
        if self.is_integer or wider.is_integer:
            return False
        coarser = self.mantissa_bits <= wider.mantissa_bits and self.quantum >= wider.quantum
        narrower = self.max <= wider.max and self.min >= wider.min
        larger = self.smallest_subnormal >= wider.smallest_subnormal
        return (
            coarser
            and narrower
            and larger
            and all(has >= needed for has, needed in zip(wider._has, self._has, strict=True))
        )

    @property
    def max(self) -> float:
        """Largest finite value."""
        return self._value(self.max_code)

    @property
    def min(self) -> float:
        """Lowest finite value: -max, or one quantum below -max for integers; 0 or the smallest value if unsigned."""
        return self.value(self.min_code)

    @property
    def smallest_normal(self) -> float:
        """Smallest normal value."""
        return math.ldexp(1.0, self.emin) if self.subnormals else self._value(1)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value, a normal number in formats without subnormals."""
        return self.quantum if self.subnormals else self._value(1)

    @property
    def quantum(self) -> float:
        """Largest power of two of which all values are multiples."""
        return math.ldexp(1.0, self.emin - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value: ``2^-mantissa_bits``, or one quantum for integers."""
        return self.quantum if self.is_integer else math.ldexp(1.0, -self.mantissa_bits)

    @property
    def dynamic_range(self) -> float:
        """Binades between the smallest positive and the largest value, ``log2(max / smallest)``."""
        return math.log2(self.max) - math.log2(self.smallest_subnormal)

    @property
    def first_significand(self) -> int:
        """Significand of code 0, in quanta: 0 with subnormals, else ``2^mantissa_bits``.

        In a format without subnormals, code 0 may stand for zero instead; the other codes are the same.
        """
        return 0 if self.has_subnormals else 1 << self.mantissa_bits

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
            int(self.has_subnormals),
            int(self.has_negative_zero),
        )

    def _value(self, magnitude: int) -> float:
        """Return the value of a finite magnitude code."""
        field, fraction = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if self.has_zero and (magnitude == 0 or (field == 0 and self.subnormals)):
            return math.ldexp(fraction, self.emin - self.mantissa_bits)
        exponent = field - self.has_subnormals + self.emin - self.mantissa_bits
        return math.ldexp(fraction + (1 << self.mantissa_bits), exponent)

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
            raise ValueError(f"values: the format must have at most 16 bits, got {self.name} with {self.bits}")
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
            Any number; if it equals `x`, `x` is returned.

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
        given, x, toward = x, check_real(self.name, "x", x), check_real(self.name, "toward", toward)
        if x == math.inf and given != x:  # an integer too large for float64
            raise ValueError(f"{self.name}: x must be a value of the format, got {given!r}")
        position = self._position(x)
        if math.isnan(toward) or toward == x:
            return math.nan if math.isnan(toward) else x
        step = position + (1 if toward > x else -1)
        top = self.max_code + (self.inf_code is not None)
        bottom = 0 if not self.signed else -(self.min_negative_magnitude - 1 + (self.inf_code is not None))
        if not bottom <= step <= top:
            return x
        magnitude = self._value(abs(step)) if abs(step) != self.inf_code else math.inf
        return -magnitude if step < 0 else magnitude

    def is_representable(self, x: float) -> bool:
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
        raise ValueError(f"{self.name}: x must be a value of the format, got {x!r}")

    def _candidates(self, magnitude: float) -> tuple[int, ...]:
        if math.isnan(magnitude):
            return ()
        if math.isinf(magnitude):
            return () if self.inf_code is None else (self.inf_code,)
        if magnitude == 0:
            return (0,) if self.has_zero else ()
        exponent = max(math.frexp(magnitude)[1] - 1, self.emin)
        quanta = int(math.ldexp(magnitude, self.mantissa_bits - exponent))
        code = (exponent - self.emin << self.mantissa_bits) + quanta - self.first_significand
        return (code,) if 0 <= code < max(self.max_code + 1, self.min_negative_magnitude) else ()

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
