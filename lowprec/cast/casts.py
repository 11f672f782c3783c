"""Casts of arrays: `encode` values to codes, `decode` codes to values, `round_to` the values of a format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _threads
from .._arrays import code_range_error, copy_if_overlapping, prepare_out, to_like
from .._fpenv import with_default_fpenv
from ..format.catalogue import Format, formats
from ..format.dtypes import dtype_of
from ..format.policy import Policy
from ..format.rounding import Rounding, resolve, special_codes
from ..kernels.cast import nearest as kernels
from .arrays import as_codes, as_values
from .constants import decode_constants, has_word_kernel
from .dispatch import GRAIN, apply_piece, encoder, nearest_constants, plan_for, raise_for_rejected, rounder
from .streams import Stream, random_source


@with_default_fpenv
def encode(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str | Rounding | None = None,
    policy: str | Policy | None = None,
    overflow: str | None = None,
    seed: int | None = None,
    offset: int = 0,
    random_words: str | Stream | ArrayLike = "lowprec",
    out: NDArray[Any] | None = None,
    like: Any = None,
) -> NDArray[Any]:
    """Encode values as codes of a format, with a single rounding from the type of `x`.

    Parameters
    ----------
    x : array_like, any shape
        float16, float32, float64, an ml_dtypes type, or integers of magnitude up to 2^53.
    fmt : str or Format
        Name in ``lowprec.formats``, or a custom `Format`.
    rounding : str or Rounding, optional
        Rounding mode: ``nearest_even`` (the default, unless a table of values has another: hif8's is ``nearest_away``),
        ``nearest_away``, ``toward_zero``, ``up``, ``down``, ``to_odd``, ``stochastic``, or another of
        `lowprec.format.rounding`.
    policy : str or Policy, optional
        Rules for overflow, Inf and NaN (a name in `lowprec.policies`); ``ocp_sat`` by default for formats of up to 8
        bits, ``ieee`` above.
    overflow : {"saturate", "nonsaturate", "signed", "nan", "raise"}, optional
        Overflow rule that replaces the policy's.
    seed : int, optional
        Seed of stochastic rounding, which requires one: 0 to 2^64 - 1. Element i of `x` in C order is rounded with the
        random bits of (seed, offset + i), for any number of threads.
    offset : int
        Index of the first element, for an array that is encoded in parts.
    random_words : str, Stream or array_like of uint32, optional
        Source of the random words: a name in ``lowprec.streams``, or one word per element instead of a seed.
        The leading bits of a word are the random number that decides an element's rounding.
    out : ndarray, optional
        Destination of the codes: C-contiguous, with the shape of `x` and the format's ``code_dtype``. For contiguous
        float32 or float64 values the cast then allocates no memory.
    like : array or str, optional
        Array package of the result (NumPy, torch or JAX): one of its arrays, or its name. Codes then have the package's
        dtype for the format, if it has one.

    Returns
    -------
    ndarray of uint8, uint16 or uint32, shape of `x`
        The codes, in the low bits of each element.

    Raises
    ------
    ValueError
        If the format, rounding or policy is unknown, the seed is missing, `out` does not fit, or the policy rejects a
        value.
    TypeError
        If the values are not of a numeric type.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.encode([1.0, -448.0, 500.0, 2.0**-9], "e4m3fn")
    array([ 56, 254, 126,   1], dtype=uint8)
    >>> lp.encode([500.0], "e4m3fn", overflow="nonsaturate")
    array([127], dtype=uint8)
    >>> lp.encode([1.0625] * 8, "e4m3fn", rounding="stochastic", seed=7).tolist()
    [57, 57, 56, 57, 56, 56, 56, 57]
    """
    f = formats.get(fmt)
    mode, chosen = resolve(f, rounding, policy, overflow)
    values = as_values("encode", x)
    result = prepare_out("encode", out, values.shape, f.code_dtype)
    key = random_source("encode", mode, seed, offset, random_words, values.shape)
    if chosen.may_raise:
        raise_for_rejected(values, f, mode, chosen, key)
    apply_piece(
        encoder(f, mode, special_codes(f, mode, chosen), key), copy_if_overlapping(values, result), result, f, mode
    )
    return result if like is None else to_like("encode", result, like, dtype_of(f))


@with_default_fpenv
def decode(
    codes: ArrayLike, fmt: str | Format, *, out: NDArray[np.float32] | None = None, like: Any = None
) -> NDArray[np.float32]:
    """Decode codes of a format to their values, exactly.

    Parameters
    ----------
    codes : array_like of integers, any shape
        Bit patterns; each must be a code of the format.
    fmt : str or Format
        Name in ``lowprec.formats``, or a custom `Format`.
    out : ndarray of float32, optional
        Destination of the values: C-contiguous, with the shape of the codes.
    like : array or str, optional
        Array package of the result (NumPy, torch or JAX): one of its arrays, or its name.

    Returns
    -------
    ndarray of float32, shape of `codes`
        The values. NaN is quiet, with the sign of its code.

    Raises
    ------
    ValueError
        If a code is out of range (values already written to `out` remain), or `out` does not fit.
    TypeError
        If the codes are not integers.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.decode([56, 254, 1], "e4m3fn")
    array([ 1.000000e+00, -4.480000e+02,  1.953125e-03], dtype=float32)
    """
    f = formats.get(fmt)
    c = as_codes(codes, f, check=not has_word_kernel(f))
    result = prepare_out("decode", out, c.shape, np.float32)
    flat, into = copy_if_overlapping(c, result).reshape(-1), result.reshape(-1)
    if has_word_kernel(f):
        constants = decode_constants(f)
        narrow = f.bits < 8 * c.dtype.itemsize

        def piece(a: int, b: int) -> None:
            if not narrow:
                kernels.decode32(flat[a:b], into[a:b], constants)
            elif kernels.decode32_seen(flat[a:b], into[a:b], constants) >> f.bits:
                raise code_range_error(f"codes of {f}", int(flat[a:b].max()), f.bits)

        _threads.run_chunks(piece, flat.size, GRAIN)
    elif f.bits <= 16:
        from ..kernels.cast.tables import decode_table

        table = f.values()
        _threads.run_chunks(lambda a, b: decode_table(flat[a:b], into[a:b], table), flat.size, GRAIN)
    else:
        into[...] = [f.value(int(code)) for code in flat]
    return result if like is None else to_like("decode", result, like)


@with_default_fpenv
def round_to(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str | Rounding | None = None,
    policy: str | Policy | None = None,
    overflow: str | None = None,
    seed: int | None = None,
    offset: int = 0,
    random_words: str | Stream | ArrayLike = "lowprec",
    out: NDArray[np.float32] | None = None,
    like: Any = None,
) -> NDArray[np.float32]:
    """Round values to a format: ``decode(encode(x))`` without the codes.

    Parameters
    ----------
    x : array_like, any shape
        See `encode`.
    fmt, rounding, policy, overflow, seed, offset, random_words
        See `encode`.
    out : ndarray of float32, optional
        Destination of the values: C-contiguous, with the shape of `x`; may be `x` itself.
    like : array or str, optional
        Array package of the result (NumPy, torch or JAX): one of its arrays, or its name.

    Returns
    -------
    ndarray of float32, shape of `x`
        Rounded values.

    Raises
    ------
    ValueError, TypeError
        See `encode`.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.round_to([0.3, 17.0, 1000.0], "e4m3fn")
    array([3.125e-01, 1.600e+01, 4.480e+02], dtype=float32)
    >>> lp.round_to([0.3, 17.0, 1000.0], "e4m3fn", rounding="up")
    array([3.125e-01, 1.800e+01, 4.480e+02], dtype=float32)
    """
    f = formats.get(fmt)
    mode, chosen = resolve(f, rounding, policy, overflow)
    values = as_values("round_to", x)
    result = prepare_out("round_to", out, values.shape, np.float32)
    key = random_source("round_to", mode, seed, offset, random_words, values.shape)
    if chosen.may_raise:
        raise_for_rejected(values, f, mode, chosen, key)
    special = special_codes(f, mode, chosen)
    if not has_word_kernel(f):
        codes = np.empty(values.shape, f.code_dtype)
        apply_piece(encoder(f, mode, special, key), values, codes, f, mode)
        decode(codes, f, out=result)
    else:
        values, plan = copy_if_overlapping(values, result, in_place=True), plan_for(f, mode, special)
        if plan.round_nearest is not None and np.may_share_memory(values, result):
            constants, flat = plan.round_nearest, result.reshape(-1)
            _threads.run_chunks(lambda a, b: kernels.round32_in_place(flat[a:b], constants), flat.size, GRAIN)
        else:
            apply_piece(rounder(f, mode, special, key), values, result, f, mode)
    return result if like is None else to_like("round_to", result, like)


@with_default_fpenv
def round_in_place(x: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
    """Round a float32 array in place, like ``round_to(x, fmt, out=x)`` with fewer checks, for hot loops."""
    constants = nearest_constants(fmt)
    if constants is None or x.dtype != np.float32 or not x.flags.c_contiguous:
        return round_to(x, fmt, out=x)
    flat = x.reshape(-1)
    if flat.size <= GRAIN:
        kernels.round32_in_place(flat, constants)
    else:
        _threads.run_chunks(lambda a, b: kernels.round32_in_place(flat[a:b], constants), flat.size, GRAIN)
    return x
