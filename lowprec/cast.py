"""Casts on arrays: `encode` values to codes, `decode` codes to values, `round_to` values on a format's grid."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _jit
from .formats import Format, formats
from .kernels import cast as kernels
from .rounding import Policy, SpecialCodes, resolve

_ALL = 0xFFFFFFFF
_GRAIN = 1 << 16  # elements per piece of work: enough to be worth a thread
_MAX_EXACT_INTEGER = 1 << 53


def encode(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str = "nearest_even",
    policy: str | Policy | None = None,
    overflow: str | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Encode values as codes of a format, with one rounding from whatever type they come in.

    Parameters
    ----------
    x : array_like, any shape
        float16, float32, float64, an ml_dtypes type, or integers of magnitude up to 2^53.
    fmt : str or Format
        Name in ``lowprec.formats``, or a format of one's own.
    rounding : {"nearest_even"}
        How values between two codes are rounded.
    policy : str or Policy, optional
        What becomes of overflow, Inf and NaN (`lowprec.rounding`); ``ocp_sat`` for formats of up to 8 bits,
        ``ieee`` above.
    overflow : {"saturate", "nonsaturate"}, optional
        Replaces the policy's own rule.
    out : ndarray, optional
        Where to put the codes: C-contiguous, of `x`'s shape and of the format's ``code_dtype``.

    Returns
    -------
    ndarray of uint8, uint16 or uint32, shape of `x`
        The codes; narrower ones sit in the low bits.

    Raises
    ------
    ValueError
        For an unknown format, rounding or policy, or an `out` that does not fit.
    TypeError
        For values of a type that is not a number.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.encode([1.0, -448.0, 500.0, 2.0**-9], "e4m3fn")
    array([ 56, 254, 126,   1], dtype=uint8)
    >>> lp.encode([500.0], "e4m3fn", overflow="nonsaturate")
    array([127], dtype=uint8)
    """
    f = formats.get(fmt)
    special = resolve(f, rounding, policy, overflow).codes(f)
    values = _as_values(x, f)
    result = _output(out, values.shape, f.code_dtype, "encode")
    flat, into = values.reshape(-1), result.reshape(-1)
    p = f.params
    if values.dtype == np.float32:
        constants = encode_constants(f, special)

        def piece(a: int, b: int) -> None:
            kernels.encode32(flat[a:b], into[a:b], constants)
    else:

        def piece(a: int, b: int) -> None:
            kernels.encode64(
                flat[a:b], into[a:b], p.mantissa_bits, p.emin, p.max_code, tuple(special),
                p.sign_mask, p.negative_zero, p.has_zero,
            )  # fmt: skip

    _jit.run_chunks(piece, flat.size, _GRAIN)
    return result


def decode(codes: ArrayLike, fmt: str | Format, *, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Decode codes of a format to their values, exactly.

    Parameters
    ----------
    codes : array_like of integers, any shape
        Bit patterns; each must be a code of the format.
    fmt : str or Format
        Name in ``lowprec.formats``, or a format of one's own.
    out : ndarray of float32, optional
        Where to put the values: C-contiguous, of the codes' shape.

    Returns
    -------
    ndarray of float32, shape of `codes`
        The values. NaN comes out quiet, with the code's sign.

    Raises
    ------
    ValueError
        If a code lies outside the format, or `out` does not fit.
    TypeError
        If the codes are not integers.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.decode([56, 254, 1], "e4m3fn")
    array([ 1.000000e+00, -4.480000e+02,  1.953125e-03], dtype=float32)
    """
    f = formats.get(fmt)
    c = as_codes(codes, f)
    result = _output(out, c.shape, np.dtype(np.float32), "decode")
    flat, into = c.reshape(-1), result.reshape(-1)
    if has_fast_kernel(f, decoding=True):
        constants = decode_constants(f)

        def piece(a: int, b: int) -> None:
            kernels.decode32(flat[a:b], into[a:b], constants)

        _jit.run_chunks(piece, flat.size, _GRAIN)
    else:
        into[...] = f.values()[flat] if f.bits <= 16 else [f.value(int(code)) for code in flat]
    return result


def round_to(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str = "nearest_even",
    policy: str | Policy | None = None,
    overflow: str | None = None,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Round values to the grid of a format: ``decode(encode(x))`` without the codes.

    Parameters
    ----------
    x : array_like, any shape
        As for `encode`.
    fmt, rounding, policy, overflow
        As for `encode`.
    out : ndarray of float32, optional
        Where to put the values: C-contiguous, of `x`'s shape; `x` itself is allowed.

    Returns
    -------
    ndarray of float32, shape of `x`

    Raises
    ------
    ValueError, TypeError
        As for `encode`.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.round_to([0.3, 17.0, 1000.0], "e4m3fn")
    array([3.125e-01, 1.600e+01, 4.480e+02], dtype=float32)
    """
    f = formats.get(fmt)
    chosen = resolve(f, rounding, policy, overflow)
    values = _as_values(x, f)
    if values.dtype != np.float32:
        return decode(encode(values, f, rounding=rounding, policy=chosen), f, out=out)
    result = _output(out, values.shape, np.dtype(np.float32), "round_to")
    flat, into = values.reshape(-1), result.reshape(-1)
    constants = round_constants(f, chosen.codes(f))
    if np.may_share_memory(values, result):
        if values.__array_interface__["data"] != result.__array_interface__["data"]:
            flat = flat.copy()
        else:
            _jit.run_chunks(lambda a, b: kernels.round32_in_place(into[a:b], constants), flat.size, _GRAIN)
            return result
    _jit.run_chunks(lambda a, b: kernels.round32(flat[a:b], into[a:b], constants), flat.size, _GRAIN)
    return result


Constants = tuple[np.uint32, ...]


@functools.lru_cache(maxsize=256)
def encode_constants(fmt: Format, special: SpecialCodes) -> Constants:
    """Return what `kernels.cast.encode_bits` needs, in its order; only for formats that `has_fast_kernel`."""
    m, emin = fmt.mantissa_bits, fmt.emin
    return _words(
        23 - m,
        (1 << (22 - m)) - 1 if m < 23 else 0,
        int(m < 23),
        (126 + emin) << m,
        (127 + emin) << 23 if emin > -126 else 0,
        (emin - m + 23 + 127) << 23 if emin > -126 else 0,
        fmt.max_code,
        *special,
        fmt.sign_mask,
        _ALL if fmt.params.negative_zero else 0,
    )


@functools.lru_cache(maxsize=256)
def round_constants(fmt: Format, special: SpecialCodes) -> Constants:
    """Return what `kernels.cast.round_bits` needs, in its order; only for formats that `has_fast_kernel`."""
    m, emin = fmt.mantissa_bits, fmt.emin
    values = [np.float32(fmt.value(code)).view(np.uint32) for code in (fmt.max_code, *special)]
    if fmt.nan_code is not None:  # NaNs come out quiet, with their sign where the format keeps it
        values[-2:] = [np.uint32(0x7FC00000), np.uint32(0xFFC00000 if fmt.params.negative_zero else 0x7FC00000)]
    return _words(
        23 - m,
        (1 << (22 - m)) - 1 if m < 23 else 0,
        int(m < 23),
        _ALL << (23 - m) & _ALL,
        (127 + emin) << 23 if emin > -126 else 0,
        (emin - m + 23 + 127) << 23 if emin > -126 else 0,
        *(int(value) for value in values),
        0x80000000 if fmt.params.negative_zero else 0,
    )


@functools.lru_cache(maxsize=256)
def decode_constants(fmt: Format) -> Constants:
    """Return what `kernels.cast.decode_bits` needs, in its order; only for formats that `has_fast_kernel`."""
    m, emin = fmt.mantissa_bits, fmt.emin
    return _words(
        23 - m,
        (126 + emin) << 23,
        1 << m if emin > -126 else 0,
        int(np.float32(2.0 ** (emin - m)).view(np.uint32)),
        fmt.max_code,
        _ALL if fmt.inf_code is None else fmt.inf_code,
        fmt.sign_mask,
        ~fmt.sign_mask & _ALL,
        0x80000000 if fmt.params.negative_zero else 0x7FC00000,
    )


def _words(*values: int) -> Constants:
    return tuple(np.uint32(value) for value in values)


def has_fast_kernel(fmt: Format, *, decoding: bool = False) -> bool:
    """Tell whether the float32 kernels hold for a format; others go through float64 integers or a table."""
    if not fmt.has_zero or fmt.emin < -126:
        return False
    return decoding or (fmt.mantissa_bits >= 1 and fmt.emin <= 100 and fmt.signed)


def _as_values(x: ArrayLike, fmt: Format) -> NDArray[Any]:
    """Return `x` as contiguous float32 where that is exact and the fast kernel does, else as float64."""
    a = np.asarray(x)
    if a.dtype.kind in "iu":
        if a.dtype.itemsize == 8 and a.size and (a.max() > _MAX_EXACT_INTEGER or a.min() < -_MAX_EXACT_INTEGER):
            raise ValueError(f"encode: integers beyond +-2^53 ({a.min()} .. {a.max()}) have no exact float64")
        a = a.astype(np.float64)
    elif a.dtype.kind == "V" or (a.dtype.kind == "f" and a.dtype.itemsize <= 2 and a.dtype != np.float16):
        if a.dtype.name.startswith("void") or a.dtype.names is not None:
            raise TypeError(
                f"encode: values of dtype {a.dtype} are not real numbers; floats, ml_dtypes and integers are"
            )
        with np.errstate(invalid="ignore"):  # signalling NaNs are values like others
            a = a.astype(np.float32)
    elif a.dtype.kind != "f":
        raise TypeError(f"encode: values of dtype {a.dtype} are not real numbers; floats, ml_dtypes and integers are")
    if a.dtype.itemsize > 8:
        raise TypeError(f"encode: {a.dtype} would be rounded twice; cast to float64 first if that is meant")
    wide = a.dtype == np.float64 or not has_fast_kernel(fmt)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(a, dtype=np.float64 if wide else np.float32).reshape(a.shape)


def as_codes(codes: ArrayLike, fmt: Format) -> NDArray[Any]:
    """Return contiguous codes of the format's own type, or raise if one lies outside the format."""
    c = np.asarray(codes)
    if c.dtype.kind not in "iu":
        if c.size == 0:
            return np.zeros(c.shape, fmt.code_dtype)
        raise TypeError(f"codes of {fmt} are unsigned integers, not {c.dtype}; values are encoded with lowprec.encode")
    full = c.dtype == fmt.code_dtype and fmt.bits == 8 * c.dtype.itemsize
    if not full and c.size and (c.max() >> fmt.bits or c.min() < 0):
        wrong = int(c.max()) if c.max() >> fmt.bits else int(c.min())
        raise ValueError(f"code {wrong} is outside {fmt}'s 0..{(1 << fmt.bits) - 1}")
    return np.ascontiguousarray(c, dtype=fmt.code_dtype).reshape(c.shape)


def _output(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any], who: str) -> NDArray[Any]:
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"{who}: out is {found}, needed is {dtype} {shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"{who}: out must be C-contiguous and writeable")
    return out
