"""Selection of the kernels and constants of a cast, and their application to arrays of any type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _threads
from ..format.catalogue import Format
from ..format.policy import Policy, SpecialCodes
from ..format.rounding import Rounding, resolve, special_codes
from ..format.table import TableFormat
from ..kernels.cast import nearest as kernels
from ..registry import registry_cache
from .constants import (
    Constants,
    decode_constants,
    encode_constants,
    has_word_kernel,
    near_constants,
    random_constants,
    round_constants,
    rounding_words,
    short_constants,
    takes_float32,
    word_constants,
)
from .streams import RandomSource
from .tables import table_encoder

GRAIN = 1 << 16  # elements per chunk: large enough to justify a thread

Piece = Callable[[NDArray[Any], NDArray[Any], int], None]
"""Function (values, out, start): processes values into an array of the same length; `start` is the first index."""


class Plan(NamedTuple):
    """Constants of each kernel for a format, rounding and policy, or None if the kernel is not exact."""

    near: Constants | None
    short: Constants | None
    nearest: Constants | None
    random: Constants | None
    word: Constants
    words: Constants
    round_nearest: Constants | None
    decode: Constants | None
    wide: tuple[int, int, int]


@registry_cache(512)
def plan_for(f: Format, mode: Rounding, special: SpecialCodes) -> Plan:
    """Return the plan for a format, rounding and special codes."""
    nearest = mode.is_nearest_even
    return Plan(
        near_constants(f, special) if nearest else None,
        short_constants(f, special) if nearest else None,
        encode_constants(f, special) if nearest else None,
        random_constants(f, special, mode),
        word_constants(f, special, mode),
        rounding_words(mode),
        round_constants(f, special) if nearest else None,
        decode_constants(f) if has_word_kernel(f) else None,
        (f.mantissa_bits, f.emin, f.first_significand),
    )


@registry_cache(256)
def nearest_constants(fmt: Format) -> Constants | None:
    """Return the constants with which `kernels.cast.nearest.round_bits` equals `round_to` with defaults, or None."""
    mode, policy = resolve(fmt)
    return None if fmt.is_table else plan_for(fmt, mode, special_codes(fmt, mode, policy)).round_nearest


@functools.singledispatch
def encoder(f: Format, mode: Rounding, special: SpecialCodes, key: RandomSource) -> Piece:
    """Return the `Piece` that encodes values into codes."""
    plan, (lo, hi, offset, *_) = plan_for(f, mode, special), key

    def given(x: NDArray[Any], into: NDArray[Any], start: int) -> None:
        from ..kernels.cast import tables

        random = key.words(start, x.size)
        if x.dtype == np.float64:
            tables.encode64_given(x, into, plan.word, plan.words, *plan.wide, random)
        else:
            tables.encode32_given(x, into, plan.word, plan.words, random)

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

    return piece if key.own else given


encoder.register(TableFormat, table_encoder)


def rounder(f: Format, mode: Rounding, special: SpecialCodes, key: RandomSource) -> Piece:
    """Return the `Piece` that rounds values to a format, which must have a float32 kernel."""
    plan, (lo, hi, offset, *_), encode = plan_for(f, mode, special), key, encoder(f, mode, special, key)

    def piece(x: NDArray[Any], into: NDArray[Any], start: int) -> None:
        if x.dtype == np.float64 or not key.own:
            codes = np.empty(min(x.size, GRAIN), f.code_dtype)
            for a in range(0, x.size, GRAIN):
                part = into[a : a + GRAIN]
                encode(x[a : a + GRAIN], codes[: part.size], start + a)
                kernels.decode32(codes[: part.size], part, plan.decode)
        elif plan.round_nearest is not None:
            kernels.round32(x, into, plan.round_nearest)
        elif plan.random is not None:
            word_kernels().round32_random(x, into, plan.random, plan.decode, plan.words, lo, hi, offset + start)
        else:
            word_kernels().round32_words(x, into, plan.word, plan.decode, plan.words, lo, hi, offset + start)

    return piece


def word_kernels() -> Any:
    """Return `kernels.cast.rounding`, imported on first use because most casts round to nearest even."""
    from ..kernels.cast import rounding

    return rounding


def apply_piece(piece: Piece, values: NDArray[Any], result: NDArray[Any], f: Format, mode: Rounding) -> None:
    """Apply a piece to all values, in chunks on the thread pool.

    Each chunk is first converted, if necessary, to the type that the piece takes: float32, or float64 where casts from
    float32 would not be exact.
    """
    flat, into = values.reshape(-1), result.reshape(-1)
    to = np.float64 if flat.dtype.kind in "iu" and flat.dtype.itemsize > 2 else np.float32
    if flat.dtype == np.float64 or not takes_float32(f, mode):
        to = np.float64
    if flat.dtype == to:
        _threads.run_chunks(lambda a, b: piece(flat[a:b], into[a:b], a), flat.size, GRAIN)
        return

    def convert(a: int, b: int) -> None:
        with np.errstate(invalid="ignore"):  # signalling NaNs are valid inputs
            for start in range(a, b, GRAIN):
                stop = min(b, start + GRAIN)
                piece(flat[start:stop].astype(to), into[start:stop], start)

    _threads.run_chunks(convert, flat.size, GRAIN)


def raise_for_rejected(values: NDArray[Any], f: Format, mode: Rounding, policy: Policy, key: RandomSource) -> None:
    """Raise an error for the first value that the policy rejects.

    Values are encoded twice, with different codes for rejected values; a value with two codes is one of these.
    """
    usual = special_codes(f, mode, policy)
    no_nan = policy.nan_fallback if f.nan_code is None else policy.nan
    raising = {
        "over": policy.overflow_of(f),
        "negative_over": policy.overflow_of(f) if f.signed else policy.negative_to_unsigned,
        "inf": policy.inf if policy.inf != "overflow" else policy.overflow_of(f),
        "negative_inf": policy.inf if f.signed else policy.negative_to_unsigned,
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
        apply_piece(encoder(f, mode, special, key), values, codes, f, mode)
        found.append(codes.reshape(-1))
    wrong = np.flatnonzero(found[0] != found[1])
    if wrong.size == 0:
        return
    place = np.unravel_index(wrong[0], values.shape) if values.ndim > 1 else int(wrong[0])
    where = f"index {tuple(int(i) for i in place)}" if isinstance(place, tuple) else f"index {place}"
    value = float(values.reshape(-1)[wrong[0]])
    if np.isnan(value):
        what, choice = f"has no code in {f}", f"{'nan_fallback' if f.nan_code is None else 'nan'}='raise'"
    elif not f.signed and value < 0:
        what, choice = f"is negative and {f} is unsigned", "negative_to_unsigned='raise'"
    else:
        name = "inf" if np.isinf(value) and policy.inf == "raise" else "overflow"
        what, choice = f"overflows {f} (max {f.max:g})", f"{name}='raise'"
    raise ValueError(f"encode: {value} at {where} {what}, which policy {policy.name!r} refuses ({choice})")
