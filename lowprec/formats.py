"""Number formats as data: a `Format` is a handful of fields, everything else is derived from them.

A format with fields s, e, m encodes ``(-1)^s * 2^(e - bias) * (1 + m / 2^M)`` and, at ``e = 0``, the
subnormals ``(-1)^s * 2^(1 - bias) * (m / 2^M)``. What its topmost codes mean is told by `specials`:

========  ====================================================  ==========================================
specials  meaning                                               examples
========  ====================================================  ==========================================
ieee      all-ones exponent: Inf at m = 0, NaN elsewhere        e5m2, bfloat16, float16
fn        no Inf; all-ones exponent *and* mantissa is NaN       e4m3fn, e8m0fnu
fnuz      no Inf, no -0; the code of -0 is the only NaN         e4m3fnuz, e5m2fnuz
finite    neither Inf nor NaN                                   e2m1fn, e2m3fn, e3m2fn
========  ====================================================  ==========================================

Sources: OCP OFP8 rev 1.0 and MX v1.0; the types of ml_dtypes 0.6; the DeepSeek-V3 report for e5m6 and fp22.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .registry import Registry

Specials = Literal["ieee", "fn", "fnuz", "finite"]
SPECIALS: tuple[Specials, ...] = ("ieee", "fn", "fnuz", "finite")


class FormatParams(NamedTuple):
    """What the kernels need of a format, as plain integers.

    All codes are magnitudes (without the sign bit) except `nan`, which is the code of a positive NaN.
    """

    mantissa_bits: int
    emin: int  # exponent of the smallest normal number (of the smallest number, where there are no subnormals)
    max_code: int  # largest finite magnitude
    inf_code: int  # -1 where there is no Inf
    nan_code: int  # -1 where there is no NaN
    sign_mask: int  # 0 where there is no sign
    has_zero: int
    negative_zero: int  # 1 if the code of -0 is a zero


@dataclass(frozen=True)
class Format:
    """A floating-point format of at most 32 bits, all of whose values are float32 numbers.

    Parameters
    ----------
    name : str
        How it is called in tables and messages.
    exponent_bits, mantissa_bits : int
        Widths of the fields: 1 to 8, and 0 to 23.
    bias : int, optional
        Exponent bias; ``2^(exponent_bits - 1) - 1`` by default.
    signed : bool
        Whether there is a sign bit.
    specials : {"ieee", "fn", "fnuz", "finite"}
        What the topmost codes mean, see the module's table.
    has_zero : bool
        False for formats whose code 0 is a power of two (e8m0fnu); they have no subnormals either.
    source : str
        Where the definition comes from.

    Raises
    ------
    ValueError
        If the fields cannot be a format; the message says which and what is allowed.

    Examples
    --------
    >>> import lowprec as lp
    >>> mine = lp.Format(name="my_e5m6", exponent_bits=5, mantissa_bits=6)
    >>> mine.bits, mine.max, mine.smallest_subnormal == 2.0**-20
    (12, 65024.0, True)
    >>> lp.formats["e4m3fn"].max
    448.0
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    signed: bool = True
    specials: Specials = "ieee"
    has_zero: bool = True
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        e, m = self.exponent_bits, self.mantissa_bits
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Format: name={self.name!r}: a non-empty string is needed")
        if not (_is_int(e) and 1 <= e <= 8):
            raise ValueError(f"Format {self.name}: exponent_bits={e!r}: 1 to 8 are possible")
        if not (_is_int(m) and 0 <= m <= 23):
            raise ValueError(f"Format {self.name}: mantissa_bits={m!r}: 0 to 23 are possible")
        if self.specials not in SPECIALS:
            raise ValueError(f"Format {self.name}: specials={self.specials!r}: one of {', '.join(SPECIALS)}")
        if self.bias is None:
            object.__setattr__(self, "bias", (1 << (e - 1)) - 1)
        elif not _is_int(self.bias):
            raise ValueError(f"Format {self.name}: bias={self.bias!r}: a whole number is needed")
        if self.specials == "ieee" and (m == 0 or e == 1):
            raise ValueError(f"Format {self.name}: specials='ieee' needs a mantissa bit for NaN and 2 exponent bits")
        if self.specials == "fnuz" and not (self.signed and self.has_zero):
            raise ValueError(f"Format {self.name}: specials='fnuz' uses the code of -0, so it needs a sign and a zero")
        if not self.has_zero and m > 0:
            raise ValueError(f"Format {self.name}: has_zero=False is for formats without mantissa bits, not {m}")
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
        assert self.bias is not None
        return (self.max_code >> self.mantissa_bits) - self.bias

    @property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        return {"ieee": top - (1 << self.mantissa_bits), "fn": top - 1, "fnuz": top, "finite": top}[self.specials]

    @property
    def inf_code(self) -> int | None:
        """Code of +Inf, None if there is none."""
        return self.max_code + 1 if self.specials == "ieee" else None

    @property
    def nan_code(self) -> int | None:
        """Code that NaN is encoded as (positive, quiet), None if there is none."""
        if self.specials == "ieee":
            return self.max_code + 1 + (1 << (self.mantissa_bits - 1))
        if self.specials == "fn":
            return self.max_code + 1
        return self.sign_mask if self.specials == "fnuz" else None

    @property
    def sign_mask(self) -> int:
        """The sign bit of a code, 0 for unsigned formats."""
        return 1 << (self.exponent_bits + self.mantissa_bits) if self.signed else 0

    @property
    def max(self) -> float:
        """Largest finite value."""
        return self._value(self.max_code)

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
        """Distance from 1 to the next larger value, ``2^-mantissa_bits``."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def dynamic_range(self) -> float:
        """Binades from the smallest positive to the largest value, ``log2(max / smallest)``."""
        return math.log2(self.max) - math.log2(self.smallest_subnormal)

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """Unsigned integer type that holds one code: uint8, uint16 or uint32."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    @property
    def params(self) -> FormatParams:
        """The integers that the kernels take."""
        return FormatParams(
            self.mantissa_bits,
            self.emin,
            self.max_code,
            -1 if self.inf_code is None else self.inf_code,
            -1 if self.nan_code is None else self.nan_code,
            self.sign_mask,
            int(self.has_zero),
            int(self.signed and self.specials != "fnuz"),
        )

    def _value(self, magnitude: int) -> float:
        """Value of a finite magnitude code."""
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
            If there is no such code.
        """
        if not 0 <= code < (1 << self.bits):
            raise ValueError(f"{self.name}: code {code} is outside 0..{(1 << self.bits) - 1}")
        sign = -1.0 if code & self.sign_mask else 1.0
        magnitude = code & ~self.sign_mask
        if self.specials == "fnuz" and code == self.sign_mask:
            return math.nan
        if magnitude <= self.max_code:
            return sign * self._value(magnitude)
        return sign * math.inf if magnitude == self.inf_code else math.nan

    def values(self) -> NDArray[np.float32]:
        """Return the value of every code, in the order of the codes.

        Returns
        -------
        ndarray of float32, shape (2**bits,)

        Raises
        ------
        ValueError
            For formats of more than 16 bits, whose table would not be read by anyone.

        Examples
        --------
        >>> formats["e2m1fn"].values()[:8]
        array([0. , 0.5, 1. , 1.5, 2. , 3. , 4. , 6. ], dtype=float32)
        """
        if self.bits > 16:
            raise ValueError(f"{self.name} has 2^{self.bits} codes; values() is for formats of at most 16 bits")
        return _values(self).copy()

    def __str__(self) -> str:
        return self.name


@functools.lru_cache(maxsize=64)
def _values(fmt: Format) -> NDArray[np.float32]:
    table = np.array([fmt.value(code) for code in range(1 << fmt.bits)], dtype=np.float32)
    table.flags.writeable = False
    return table


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


formats: Registry[Format] = Registry("format", Format)
"""The catalogue. ``formats[name]`` finds a format, by ml_dtypes' name too (``float8_e4m3fn``)."""


def _add(name: str, exponent_bits: int, mantissa_bits: int, *aliases: str, **fields: Any) -> None:
    formats.register(name, Format(name, exponent_bits, mantissa_bits, **fields), aliases)


_OFP8 = "OCP OFP8 rev 1.0"
_FNUZ = "Noune et al., arXiv:2206.02915; AMD MI300"
_MX = "OCP MX v1.0"
_add("e4m3fn", 4, 3, "float8_e4m3fn", specials="fn", source=_OFP8)
_add("e5m2", 5, 2, "float8_e5m2", source=_OFP8)
_add("e4m3fnuz", 4, 3, "float8_e4m3fnuz", bias=8, specials="fnuz", source=_FNUZ)
_add("e5m2fnuz", 5, 2, "float8_e5m2fnuz", bias=16, specials="fnuz", source=_FNUZ)
_add("e4m3b11fnuz", 4, 3, "float8_e4m3b11fnuz", bias=11, specials="fnuz", source="Sun et al., NeurIPS 2019 (HFP8)")
_add("e4m3", 4, 3, "float8_e4m3", source="IEEE-style E4M3 of LLVM and ml_dtypes")
_add("e3m4", 3, 4, "float8_e3m4", source="IEEE-style E3M4 of LLVM and ml_dtypes")
_add("e8m0fnu", 8, 0, "float8_e8m0fnu", "ue8m0", signed=False, has_zero=False, specials="fn", source=_MX)
_add("e2m3fn", 2, 3, "float6_e2m3fn", specials="finite", source=_MX)
_add("e3m2fn", 3, 2, "float6_e3m2fn", specials="finite", source=_MX)
_add("e2m1fn", 2, 1, "float4_e2m1fn", specials="finite", source=_MX)
_add("bfloat16", 8, 7, "bf16", source="Google Brain; IEEE-style")
_add("float16", 5, 10, "f16", "fp16", "half", source="IEEE 754 binary16")
_add("float32", 8, 23, "f32", "fp32", source="IEEE 754 binary32")
_add("tf32", 8, 10, source="NVIDIA A100: float32 with 10 fraction bits")
_add("e5m6", 5, 6, source="DeepSeek-V3 report 3.2.3: 12-bit activation cache")
_add("fp22", 8, 13, source="DeepSeek, ISCA 2025 section 3.1: accumulator registers of Hopper's FP8 tensor cores")
