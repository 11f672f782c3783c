"""Conversion and checks of the arrays that casts take: values, codes and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_array, as_real, as_unsigned, to_numpy
from ..format.catalogue import Format, formats

_MAX_EXACT_INTEGER = 1 << 53


def as_values(caller: str, x: ArrayLike) -> NDArray[Any]:
    """Return `x` as a contiguous array of numbers that convert to float64 exactly."""
    a = as_real(caller, x)
    if a.dtype.kind in "iu":
        if a.dtype.itemsize == 8 and a.size and (a.max() > _MAX_EXACT_INTEGER or a.min() < -_MAX_EXACT_INTEGER):
            raise ValueError(
                f"{caller}: integers must be from -2^53 to 2^53, to be exact in float64, got {a.min()} to {a.max()}"
            )
    elif a.dtype.itemsize > 8:
        raise TypeError(
            f"{caller}: x must hold numbers of at most 64 bits, got {a.dtype}; x.astype(np.float64) rounds them first"
        )
    if a.dtype.byteorder not in "=|":
        a = a.astype(a.dtype.newbyteorder("="))
    return np.ascontiguousarray(a).reshape(a.shape)


def as_codes(codes: ArrayLike, fmt: Format, *, check: bool = True) -> NDArray[Any]:
    """Return contiguous codes in the format's code type, or raise if one is out of range.

    Codes that already have this type are checked only if `check` is set.
    """
    c = as_array("", f"codes of {fmt}", codes)
    if (implied := format_from_dtype(c)) is not None:
        if not formats[implied].same_codes(fmt):
            raise TypeError(f"codes must be of {fmt}, got {c.dtype}")
        c = np.ascontiguousarray(c).view(fmt.code_dtype).reshape(c.shape)
    return as_unsigned(f"codes of {fmt}", c, fmt.bits, fmt.code_dtype, check=check)


def format_from_dtype(codes: ArrayLike) -> str | None:
    """Return the format implied by the array's dtype (an ml_dtypes type), or None."""
    dtype = getattr(to_numpy(codes), "dtype", None)  # `isbuiltin` is 2 for types that extensions register with NumPy
    return dtype.name if isinstance(dtype, np.dtype) and dtype.isbuiltin == 2 and dtype.name in formats else None
