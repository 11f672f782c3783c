"""Casts on arrays: `encode` values to codes, `decode` codes to values, `round_to` values on a format's grid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _jit
from .cast_constants import (
    Constants,
    has_word_kernel,
    near_constants,
    random_constants,
    rounding_words,
    short_constants,
    symmetric,
    word_constants,
)  # fmt: skip
from .cast_constants import decode_constants as decode_constants
from .cast_constants import encode_constants as encode_constants
from .cast_constants import has_fast_kernel as has_fast_kernel
from .cast_constants import round_constants as round_constants
from .formats import Format, formats
from .kernels import cast as kernels
from .policies import Policy
from .rounding import Rounding, resolve, roundings, special_codes

_GRAIN = 1 << 16  # elements per piece of work: enough to be worth a thread
_MAX_EXACT_INTEGER = 1 << 53

Piece = Callable[[NDArray[Any], NDArray[Any], int], None]
"""Works on values, writes into an array of their length; the third is the index of the first value."""


def encode(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str | Rounding = "nearest_even",
    policy: str | Policy | None = None,
    overflow: str | None = None,
    seed: int | None = None,
    offset: int = 0,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Encode values as codes of a format, with one rounding from whatever type they come in.

    Parameters
    ----------
    x : array_like, any shape
        float16, float32, float64, an ml_dtypes type, or integers of magnitude up to 2^53.
    fmt : str or Format
        Name in ``lowprec.formats``, or a format of one's own.
    rounding : str or Rounding
        How values between two codes are rounded: ``nearest_even`` (the default), ``nearest_away``, ``toward_zero``,
        ``up``, ``down``, ``to_odd``, ``stochastic``, or another of `lowprec.rounding`.
    policy : str or Policy, optional
        What becomes of overflow, Inf and NaN (`lowprec.policies`); ``ocp_sat`` for formats of up to 8 bits,
        ``ieee`` above.
    overflow : {"saturate", "nonsaturate", "nan", "raise"}, optional
        Replaces the policy's own rule.
    seed : int, optional
        For stochastic rounding, which needs it: 0 to 2^64 - 1. Element i of `x` in C order is rounded by the bits of
        (seed, offset + i), whatever the number of threads.
    offset : int
        Index of the first element, for an array that is worked on in parts.
    out : ndarray, optional
        Where to put the codes: C-contiguous, of `x`'s shape and of the format's ``code_dtype``. Nothing is allocated
        then for contiguous float32 or float64 values.

    Returns
    -------
    ndarray of uint8, uint16 or uint32, shape of `x`
        The codes; narrower ones sit in the low bits.

    Raises
    ------
    ValueError
        For an unknown format, rounding or policy, a missing seed, an `out` that does not fit, or values that the
        policy refuses.
    TypeError
        For values of a type that is not a number.

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
    values = _as_values(x)
    result = _output(out, values.shape, f.code_dtype, "encode")
    if chosen.raises:
        _refuse(values, f, mode, chosen, _key(mode, seed, offset))
    _run(_encoder(_plan(f, mode, chosen), _key(mode, seed, offset)), values, result, f)
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
        If a code lies outside the format (what was written to `out` until then stays), or `out` does not fit.
    TypeError
        If the codes are not integers.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.decode([56, 254, 1], "e4m3fn")
    array([ 1.000000e+00, -4.480000e+02,  1.953125e-03], dtype=float32)
    """
    f = formats.get(fmt)
    c = as_codes(codes, f, check=not has_fast_kernel(f, decoding=True))
    result = _output(out, c.shape, np.dtype(np.float32), "decode")
    flat, into = c.reshape(-1), result.reshape(-1)
    if has_fast_kernel(f, decoding=True):
        constants = decode_constants(f)
        narrow = f.bits < 8 * c.dtype.itemsize

        def piece(a: int, b: int) -> None:
            if not narrow:
                kernels.decode32(flat[a:b], into[a:b], constants)
            elif kernels.decode32_seen(flat[a:b], into[a:b], constants) >> f.bits:
                raise _outside(int(flat[a:b].max()), f)

        _jit.run_chunks(piece, flat.size, _GRAIN)
    else:
        into[...] = f.values()[flat] if f.bits <= 16 else [f.value(int(code)) for code in flat]
    return result


def round_to(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str | Rounding = "nearest_even",
    policy: str | Policy | None = None,
    overflow: str | None = None,
    seed: int | None = None,
    offset: int = 0,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Round values to the grid of a format: ``decode(encode(x))`` without the codes.

    Parameters
    ----------
    x : array_like, any shape
        As for `encode`.
    fmt, rounding, policy, overflow, seed, offset
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
    >>> lp.round_to([0.3, 17.0, 1000.0], "e4m3fn", rounding="up")
    array([3.125e-01, 1.800e+01, 4.480e+02], dtype=float32)
    """
    f = formats.get(fmt)
    mode, chosen = resolve(f, rounding, policy, overflow)
    values = _as_values(x)
    result = _output(out, values.shape, np.dtype(np.float32), "round_to")
    key = _key(mode, seed, offset)
    if chosen.raises:
        _refuse(values, f, mode, chosen, key)
    plan = _plan(f, mode, chosen)
    if not (has_word_kernel(f) or has_fast_kernel(f)):
        return decode(encode(values, f, rounding=mode, policy=chosen, seed=seed, offset=offset), f, out=result)
    if np.may_share_memory(values, result):
        if values.dtype != np.float32 or values.__array_interface__["data"] != result.__array_interface__["data"]:
            values = values.copy()
        elif plan.round_nearest is not None:
            constants, flat = plan.round_nearest, result.reshape(-1)
            _jit.run_chunks(lambda a, b: kernels.round32_in_place(flat[a:b], constants), flat.size, _GRAIN)
            return result
    _run(_rounder(f, plan, key), values, result, f)
    return result


class _Plan(NamedTuple):
    """The kernels for a format, a rounding and a policy, and their constants; None where one does not hold."""

    near: Constants | None
    short: Constants | None
    nearest: Constants | None
    random: Constants | None
    word: Constants
    words: Constants
    round_nearest: Constants | None
    decode: Constants | None
    wide: tuple[int, int, int]


@functools.lru_cache(maxsize=256)
def nearest_constants(fmt: Format) -> Constants | None:
    """Return what `kernels.cast.round_bits` needs to do as `round_to` does without options; None where it cannot."""
    return _plan(fmt, *resolve(fmt)).round_nearest


def round_in_place(x: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
    """Do ``round_to(x, fmt, out=x)`` for a float32 array, with fewer checks: for what is called all the time."""
    constants = nearest_constants(fmt)
    if constants is None or x.dtype != np.float32 or not x.flags.c_contiguous:
        return round_to(x, fmt, out=x)
    flat = x.reshape(-1)
    if flat.size <= _GRAIN:
        kernels.round32_in_place(flat, constants)
    else:
        _jit.run_chunks(lambda a, b: kernels.round32_in_place(flat[a:b], constants), flat.size, _GRAIN)
    return x


@functools.lru_cache(maxsize=512)
def _plan(f: Format, mode: Rounding, policy: Policy) -> _Plan:
    special = special_codes(f, mode, policy)
    nearest = mode == roundings["nearest_even"] and has_fast_kernel(f) and symmetric(f, special)
    return _Plan(
        near_constants(f, special) if nearest else None,
        short_constants(f, special) if nearest else None,
        encode_constants(f, special) if nearest else None,
        random_constants(f, special, mode),
        word_constants(f, special, mode),
        rounding_words(mode),
        round_constants(f, special) if nearest else None,
        decode_constants(f) if has_word_kernel(f) or has_fast_kernel(f) else None,
        (f.mantissa_bits, f.emin, int(not f.has_zero)),
    )


def _encoder(plan: _Plan, key: Key) -> Piece:
    """Return what encodes a piece: values, where their codes go, index of the first."""
    lo, hi, offset = key

    def piece(x: NDArray[Any], into: NDArray[Any], start: int) -> None:
        if x.dtype == np.float64:
            word_kernels().encode64_words(x, into, plan.word, plan.words, *plan.wide, lo, hi, offset + start)
        elif plan.near is not None:
            kernels.encode32_near(x, into, plan.near)
        elif plan.short is not None:
            kernels.encode32_short(x, into, plan.short)
        elif plan.nearest is not None:
            kernels.encode32(x, into, plan.nearest)
        elif plan.random is not None:
            word_kernels().encode32_random(x, into, plan.random, plan.words, lo, hi, offset + start)
        else:
            word_kernels().encode32_words(x, into, plan.word, plan.words, lo, hi, offset + start)

    return piece


def _rounder(f: Format, plan: _Plan, key: Key) -> Piece:
    """Return what rounds a piece; only for formats with a kernel for float32."""
    lo, hi, offset = key

    def piece(x: NDArray[Any], into: NDArray[Any], start: int) -> None:
        if x.dtype == np.float64:
            codes = np.empty(min(x.size, _GRAIN), f.code_dtype)
            for a in range(0, x.size, _GRAIN):
                part = into[a : a + _GRAIN]
                _encoder(plan, key)(x[a : a + _GRAIN], codes[: part.size], start + a)
                kernels.decode32(codes[: part.size], part, plan.decode)
        elif plan.round_nearest is not None:
            kernels.round32(x, into, plan.round_nearest)
        elif plan.random is not None:
            word_kernels().round32_random(x, into, plan.random, plan.decode, plan.words, lo, hi, offset + start)
        else:
            word_kernels().round32_words(x, into, plan.word, plan.decode, plan.words, lo, hi, offset + start)

    return piece


def word_kernels() -> Any:
    """Return `kernels.rounding`, imported when it is first needed: most casts are to nearest even."""
    from .kernels import rounding

    return rounding


def _run(piece: Piece, values: NDArray[Any], result: NDArray[Any], f: Format) -> None:
    """Work on all values; those of other types are turned into float32 or float64, whichever is exact, in parts."""
    flat, into = values.reshape(-1), result.reshape(-1)
    to = np.float64 if flat.dtype.kind in "iu" and flat.dtype.itemsize > 2 else np.float32
    if not (has_fast_kernel(f) or has_word_kernel(f)) or flat.dtype == np.float64:
        to = np.float64
    if flat.dtype == to:
        _jit.run_chunks(lambda a, b: piece(flat[a:b], into[a:b], a), flat.size, _GRAIN)
        return

    def convert(a: int, b: int) -> None:
        with np.errstate(invalid="ignore"):  # signalling NaNs are values like others
            for start in range(a, b, _GRAIN):
                stop = min(b, start + _GRAIN)
                piece(flat[start:stop].astype(to), into[start:stop], start)

    _jit.run_chunks(convert, flat.size, _GRAIN)


Key = tuple[np.uint32, np.uint32, int]


def _key(mode: Rounding, seed: int | None, offset: int) -> Key:
    """Return the seed's halves and the first index."""
    if not mode.is_stochastic:
        return np.uint32(0), np.uint32(0), 0
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 64:
        raise ValueError(f"rounding={mode.name!r} needs a seed from 0 to 2^64 - 1, not {seed!r}")
    if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)) or not 0 <= offset < 1 << 62:
        raise ValueError(f"offset={offset!r}: an index from 0 to 2^62 - 1 is needed")
    return np.uint32(int(seed) & 0xFFFFFFFF), np.uint32(int(seed) >> 32), int(offset)


def _refuse(values: NDArray[Any], f: Format, mode: Rounding, policy: Policy, key: Key) -> None:
    """Raise for the first value that the policy does not take: encode twice, with two codes for what it refuses."""
    usual = special_codes(f, mode, policy)
    no_nan = policy.nan_without_nan if f.nan_code is None else policy.nan
    raising = {
        "over": policy.overflow_of(f),
        "negative_over": policy.overflow_of(f) if f.signed else policy.unsigned,
        "inf": policy.inf if policy.inf != "overflow" else policy.overflow_of(f),
        "negative_inf": policy.inf if f.signed else policy.unsigned,
        "nan": no_nan,
        "negative_nan": no_nan,
    }
    if f.signed and policy.inf == "overflow":
        raising["negative_inf"] = policy.overflow_of(f)
    fields = [field for field, choice in raising.items() if choice == "raise"]
    found = []
    for code in (0, 1):
        special = usual._replace(**dict.fromkeys(fields, code))
        codes = np.empty(values.shape, f.code_dtype)
        plan = _plan(f, mode, policy)._replace(
            near=None, short=None, nearest=None, random=None, word=word_constants(f, special, mode)
        )
        _run(_encoder(plan, key), values, codes, f)
        found.append(codes.reshape(-1))
    wrong = np.flatnonzero(found[0] != found[1])
    if wrong.size == 0:
        return
    place = np.unravel_index(wrong[0], values.shape) if values.ndim > 1 else int(wrong[0])
    where = f"index {tuple(int(i) for i in place)}" if isinstance(place, tuple) else f"index {place}"
    value = float(values.reshape(-1)[wrong[0]])
    if np.isnan(value):
        what, choice = f"is not a number of {f}", f"{'nan_without_nan' if f.nan_code is None else 'nan'}='raise'"
    elif not f.signed and value < 0:
        what, choice = f"is negative, {f} has no sign", "unsigned='raise'"
    else:
        name = "inf" if np.isinf(value) and policy.inf == "raise" else "overflow"
        what, choice = f"overflows {f} (max {f.max:g})", f"{name}='raise'"
    raise ValueError(f"encode: {value} at {where} {what}, and the policy {policy.name!r} says {choice}")


def _as_values(x: ArrayLike) -> NDArray[Any]:
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
        raise _outside(int(c.max()) if c.max() >> fmt.bits else int(c.min()), fmt)
    return np.ascontiguousarray(c, dtype=fmt.code_dtype).reshape(c.shape)


def _outside(code: int, fmt: Format) -> ValueError:
    return ValueError(f"code {code} is outside {fmt}'s 0..{(1 << fmt.bits) - 1}")


def _output(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any], who: str) -> NDArray[Any]:
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != dtype:
        found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise ValueError(f"{who}: out is {found}, needed is {dtype} {shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"{who}: out must be C-contiguous and writeable")
    return out
