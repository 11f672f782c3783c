"""Causes in the codes alone: cast by another rule, or put in another place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...cast.casts import round_to
from ...format.rounding import roundings
from .cause import add
from .dump import Codes, Dump, Made, values_of
from .places import spoken

Forms = Iterator[tuple[str, Codes]]
_FEW = 3  # flipped bits that are called so
_SURE = 4.5  # standard deviations


@add("sign of zero dropped", "codes", "keep the sign of what rounds to zero", pattern=False)
def _no_minus_zero(made: Made, found: Dump) -> Forms:
    sign = 0 if made.format.is_table else made.format.sign_mask
    if sign:
        yield "", np.where(made.codes == sign, 0, made.codes).astype(made.codes.dtype)


@add("overflow not saturated", "codes", "saturate: convert with satfinite", pattern=False)
def _overflow(made: Made, found: Dump) -> Forms:
    yield "", made.cast(made.v, policy="ocp_nonsat")


@add("tie rounded otherwise", "codes", "round to nearest, ties to even", pattern=False)
def _ties(made: Made, found: Dump) -> Forms:
    low, high = (made.cast(made.v, mode) for mode in ("toward_zero", "up"))
    away = made.cast(made.v, "nearest_away")
    ties = _tie(made)
    yield "away from zero", np.where(ties, away, made.codes)
    yield "toward zero", np.where(ties, low, made.codes)
    yield "up", np.where(ties, high, made.codes)


def _tie(made: Made) -> Codes:
    """Return where what is cast lies half way between two elements; float64 holds their sum."""
    low, high = (values_of(made.cast(made.v, mode), made.format).astype(np.float64) for mode in ("down", "up"))
    with np.errstate(all="ignore"):
        ties: Codes = (low != high) & (low + high == 2.0 * made.v)
    return ties


@add("rounded in another direction", "codes", "round to nearest, ties to even")
def _directions(made: Made, found: Dump) -> Forms:
    for name in roundings.names():
        mode = roundings[name]
        if name not in ("nearest_even", "nearest_away") and not mode.is_stochastic:
            yield name, made.cast(made.v, name)


@add("rounded twice", "codes", "cast the float32 quotient in one step", doubt=4)
def _twice(made: Made, found: Dump) -> Forms:
    with np.errstate(over="ignore"):
        half = made.v.astype(np.float16).astype(np.float32)
    yield "through bfloat16", made.cast(round_to(made.v, "bfloat16"))
    yield "through float16", made.cast(half)


@add("subnormals flushed to zero", "codes", "keep subnormal elements", pattern=False)
def _flushed(made: Made, found: Dump) -> Forms:
    if made.format.is_table:  # which has no normal numbers
        return
    sign, smallest = made.format.sign_mask, made.format.smallest_normal
    with np.errstate(invalid="ignore"):
        after = np.abs(values_of(made.codes, made.format)) < smallest
        before = np.abs(made.v) < smallest
    zeros = (made.codes & sign).astype(made.codes.dtype)
    for form, small in (("after rounding", after), ("before rounding", before)):
        yield form, np.where(small, zeros, made.codes)
        yield f"{form}, signs too", np.where(small, 0, made.codes).astype(made.codes.dtype)


@add("stochastic rounding", "codes", "round to nearest, or compare expectations: no bits can be compared", 1.2)
def _stochastic(made: Made, found: Dump) -> Forms:
    if found.codes.shape != made.codes.shape:
        return
    low, high = made.cast(made.v, "down"), made.cast(made.v, "up")
    a, b = (values_of(c, made.format).astype(np.float64) for c in (low, high))
    with np.errstate(all="ignore"):
        share = (made.v - a) / (b - a)
    free = (a < b) & np.isfinite(share) & (share >= 0) & (share <= 1)
    fits = free & ((found.codes == low) | (found.codes == high))
    if not free.any() or fits.sum() < 0.98 * free.sum():
        return
    up = (found.codes == high)[fits]
    # Codes of what is nearer to the one than to the other: both halves must go the other way as often as they should.
    for half in (share[fits] < 0.5, share[fits] >= 0.5):
        p, taken = share[fits][half], up[half]
        spread = float(np.sqrt(np.sum(p * (1 - p))))
        # The few random bits of hardware shift the probabilities by a little.
        if spread == 0 or abs(float(taken.sum() - p.sum())) > _SURE * spread + 0.02 * len(p):
            return
    if int((made.codes != found.codes)[fits].sum()) < 3:
        return
    yield "", np.where(fits, found.codes, made.codes)


@add("bit flipped", "codes", "look at memory, transfers and races: no rule gives this", 1.3, pattern=False)
def _flipped(made: Made, found: Dump) -> Forms:
    yield from _flips(made, found, 1, 1)


@add("bits flipped", "codes", "look at memory, transfers and races: no rule gives this", 1.6, pattern=False)
def _several_flipped(made: Made, found: Dump) -> Forms:
    yield from _flips(made, found, 2, max(_FEW, found.codes.size // 10_000))


def _flips(made: Made, found: Dump, least: int, most: int) -> Forms:
    """Yield what was found where so many codes differ, each in one bit."""
    if found.codes.shape != made.codes.shape:
        return
    at = np.argwhere(found.codes != made.codes)
    if not least <= len(at) <= most:
        return
    words = (found.codes ^ made.codes)[tuple(at.T)].astype(np.int64)
    if ((words & (words - 1)) == 0).all():
        where = f"bit {int(words[0]).bit_length() - 1} at [{at[0][0]}, {at[0][1]}]"
        yield where if len(at) == 1 else f"{len(at)} of them, the first {where}", found.codes


@add("nibbles swapped", "codes", "the low four bits of a byte are the first of its two codes")
def _nibbles(made: Made, found: Dump) -> Forms:
    if made.format.bits == 4 and made.codes.shape[1] % 2 == 0:
        rows, columns = made.codes.shape
        yield "", made.codes.reshape(rows, columns // 2, 2)[:, :, ::-1].reshape(rows, columns)


@add("code in the wrong half of the byte", "codes", "shift the codes: bit 0 of a byte is bit 0 of its code")
def _high(made: Made, found: Dump) -> Forms:
    if made.format.bits < 8:
        yield "", (made.codes << (8 - made.format.bits)).astype(made.codes.dtype)


@add("bytes of a word in reverse", "codes", "store words little-endian, or view bytes as bytes")
def _reversed(made: Made, found: Dump) -> Forms:
    rows, columns = made.codes.shape
    for word in (2, 4, 8, 16):
        if columns % word == 0 and (word > 2 or made.format.bits > 4):  # that is two nibbles
            yield f"of {word}", made.codes.reshape(rows, -1, word)[:, :, ::-1].reshape(rows, columns)


@add("codes transposed", "codes", "store codes row by row, K contiguous")
def _transposed(made: Made, found: Dump) -> Forms:
    yield "", np.ascontiguousarray(made.codes.T).reshape(made.codes.shape)


@add("rows of the codes in another order", "codes", "mend the index of the row: scales are in their places", 1.5)
def _rows(made: Made, found: Dump) -> Forms:
    order = _same_rows(made.codes, found.codes)
    if order is not None:
        yield spoken(order), made.codes[order]


@add("columns of the codes in another order", "codes", "mend the index of the column: scales are in their places", 1.5)
def _columns(made: Made, found: Dump) -> Forms:
    order = _same_rows(made.codes.T, found.codes.T)
    if order is not None:
        yield spoken(order), np.ascontiguousarray(made.codes[:, order])


def _same_rows(expected: Codes, found: Codes) -> Codes | None:
    """Return which expected row each found row is, None if they are in order or are no such rows."""
    if expected.shape != found.shape:
        return None
    known: dict[bytes, int] = {}
    for i, row in enumerate(np.ascontiguousarray(expected)):
        known.setdefault(row.tobytes(), i)
    order, strange = [], 0
    for i, row in enumerate(np.ascontiguousarray(found)):
        word = row.tobytes()
        at = i if word == expected[i].tobytes() else known.get(word)
        strange += at is None
        order.append(i if at is None else at)
        if strange > 2 + len(found) // 50:
            return None
    result = np.array(order)
    return None if (result == np.arange(len(result))).all() else result


@add("signs inverted", "codes", "the sign bit is set for negative values")
def _signs(made: Made, found: Dump) -> Forms:
    if not made.format.is_table and made.format.sign_mask:
        yield "", (made.codes ^ made.format.sign_mask).astype(made.codes.dtype)
        yield "dropped", (made.codes & (made.format.sign_mask - 1)).astype(made.codes.dtype)
