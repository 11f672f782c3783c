"""What casts are given and what they fill: values, codes, an array for the result, a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..format.catalogue import Format
from ..format.rounding import Rounding
from .choice import Key

_MAX_EXACT_INTEGER = 1 << 53


def as_values(x: ArrayLike) -> NDArray[Any]:
    """Return `x` as a contiguous array of a type that float64 holds exactly."""
    a = np.asarray(x)
    if a.dtype.kind in "iu":
        if a.dtype.itemsize == 8 and a.size and (a.max() > _MAX_EXACT_INTEGER or a.min() < -_MAX_EXACT_INTEGER):
            raise ValueError(f"encode: integers beyond +-2^53 ({a.min()} .. {a.max()}) have no exact float64")
    elif not (a.dtype.kind == "f" or (a.dtype.kind == "V" and a.dtype.names is None and a.dtype.name[:4] != "void")):
        raise TypeError(f"encode: values of dtype {a.dtype} are not real numbers; floats, ml_dtypes and integers are")
    elif a.dtype.itemsize > 8:
        raise TypeError(f"encode: {a.dtype} would be rounded twice; cast to float64 first if that is meant")
    if a.dtype.byteorder not in "=|":
        a = a.astype(a.dtype.newbyteorder("="))
    return np.ascontiguousarray(a).reshape(a.shape)


def as_codes(codes: ArrayLike, fmt: Format, *, check: bool = True) -> NDArray[Any]:
    """Return contiguous codes of the format's own type, or raise if one lies outside the format.

    Codes that have the type already are not looked at unless `check` says so.
    """
    c = np.asarray(codes)
    if c.dtype.kind not in "iu":
        if c.size == 0:
            return np.zeros(c.shape, fmt.code_dtype)
        raise TypeError(f"codes of {fmt} are unsigned integers, not {c.dtype}; values are encoded with lowprec.encode")
    full = c.dtype == fmt.code_dtype and (fmt.bits == 8 * c.dtype.itemsize or not check)
    if not full and c.size and (c.max() >> fmt.bits or c.min() < 0):
        raise outside(int(c.max()) if c.max() >> fmt.bits else int(c.min()), fmt)
    return np.ascontiguousarray(c, dtype=fmt.code_dtype).reshape(c.shape)


def outside(code: int, fmt: Format) -> ValueError:
    """Return the error of a code that a format does not have."""
    return ValueError(f"code {code} is outside {fmt}'s 0..{(1 << fmt.bits) - 1}")


def as_output(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any], who: str) -> NDArray[Any]:
    """Return `out` if a result fits in, or else raise in the name of `who`; a new array for None."""
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"{who}: out is {found}, needed is {dtype} {shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"{who}: out must be C-contiguous and writeable")
    return out


def key_of(mode: Rounding, seed: int | None, offset: int) -> Key:
    """Return the seed's halves and the first index."""
    if not mode.is_stochastic:
        return np.uint32(0), np.uint32(0), 0
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 64:
        raise ValueError(f"rounding={mode.name!r} needs a seed from 0 to 2^64 - 1, not {seed!r}")
    if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)) or not 0 <= offset < 1 << 62:
        raise ValueError(f"offset={offset!r}: an index from 0 to 2^62 - 1 is needed")
    return np.uint32(int(seed) & 0xFFFFFFFF), np.uint32(int(seed) >> 32), int(offset)
