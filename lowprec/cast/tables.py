"""Casts to formats that are tables of values, with roundings and policies as thresholds between codes."""

from __future__ import annotations

import functools
import itertools
import math
import struct
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.policy import SpecialCodes
from ..format.rounding import Rounding
from ..format.table import HIF8_NEXT_ABOVE_MAX, TableFormat, hif8_values
from .streams import RandomSource

_BITS = {np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64}
_SHIFTS = range(23, 15, -1)  # finite numbers never share a bucket with Inf or NaN; tables fit in the L2 cache
_SPARE = 25  # bits below a gap's last bit: then every fraction of the gap that a random word denotes is an integer
_VARIANTS = {"A": 0, "B": 1, "C": 2}


class Interval(NamedTuple):
    """Numbers from `low` to `high`, which round to one of two codes: `base`, nearer to zero, or `away`."""

    low: Fraction
    high: Fraction
    base: int
    away: int
    negative: bool


class Thresholds(NamedTuple):
    """A cast as a step function: thresholds, as order-preserving integers in `keys`, and the code from each one up."""

    keys: NDArray[Any]
    starts: NDArray[np.int32]
    codes: NDArray[Any]  # one more than `keys`


class BucketTable(NamedTuple):
    """Thresholds as `kernels.cast.tables.encode32_steps` takes them: buckets of float32 numbers by leading bits."""

    buckets: NDArray[np.uint32]
    codes: NDArray[Any]
    shift: np.uint32


class RandomGrid(NamedTuple):
    """Arguments of `kernels.cast.tables.encode64_random`; the ends of an interval are integers in units of 1/scale."""

    keys: NDArray[np.uint64]
    starts: NDArray[np.int32]
    base: NDArray[Any]
    away: NDArray[Any]
    scale: NDArray[np.float64]
    origin: NDArray[np.int64]
    gap: NDArray[np.int64]


def intervals(f: TableFormat, special: SpecialCodes) -> list[Interval]:
    """Return the intervals between neighbouring values and those beyond the ends, in ascending order."""
    listed = f.listed
    points = [Fraction(value) for value in listed.values]
    codes = dict(zip(points, listed.codes, strict=True))
    found = []
    if f.signed:
        steps = [(listed.below, special.negative_over)]
    else:  # some policies round negative values before they reject them
        steps = [(-next(p for p in points if p > 0), special.negative_over)] if special.min_negative_magnitude else []
        if steps and 0 not in codes:
            steps = []
    steps += [(p, codes[p]) for p in points]
    steps.append((listed.above, special.over))
    for (low, low_code), (high, high_code) in itertools.pairwise(steps):
        if high <= 0:
            nearer = special.negative_zero if high == 0 else high_code
            found.append(Interval(low, high, nearer, low_code, True))
        else:
            found.append(Interval(low, high, low_code, high_code, False))
    return found


class _Order:
    """Order-preserving integers for the numbers of a type, in which NaNs are outermost and -0 comes before +0."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self.word = dtype, _BITS[dtype]
        self.packed = {4: ("<f", "<I"), 8: ("<d", "<Q")}[dtype.itemsize]
        self.sign = 1 << (8 * dtype.itemsize - 1)
        self.inf = self.key(math.inf)
        self.negative_inf = self.key(-math.inf)

    def key(self, value: float) -> int:
        number, word = self.packed
        try:
            (u,) = struct.unpack(word, struct.pack(number, value))
        except OverflowError:  # too large for float32
            return self.inf if value > 0 else self.negative_inf
        return int(2 * self.sign - 1 - u if u >= self.sign else u | self.sign)

    def value(self, key: int) -> Fraction | float:
        number, word = self.packed
        u = key - self.sign if key >= self.sign else 2 * self.sign - 1 - key
        (value,) = struct.unpack(number, struct.pack(word, u))
        return Fraction(value) if math.isfinite(value) else float(value)

    def first(self, point: Fraction, *, after: bool) -> int:
        """Return the key of the first number that is at least `point`, or with `after` the first one above it."""
        key = self.key(float(point))

        def reached(k: int) -> bool:
            value = self.value(k)
            return value > point if after else value >= point

        while reached(key - 1):
            key -= 1
        while not reached(key):
            key += 1
        return key


def _switch_point(i: Interval, mode: Rounding) -> tuple[Fraction, bool]:
    """Return the point where an interval switches from `base` to `away`, and whether the point itself gives `away`.

    A rounding adds its increment to the fraction and truncates; the last bit of the increment is repeated without end.
    """
    word = mode.negative_increment if i.negative else mode.positive_increment
    odd = i.base & 1 == 1
    needed, itself = 1 - Fraction(word + (word & 1), 1 << 32), not word & 1 or (mode.ties_even and odd)
    if mode.sticky_to_lsb:
        needed, itself = Fraction(int(odd)), odd
    near, far = (i.high, i.low) if i.negative else (i.low, i.high)
    return near + needed * (far - near), itself


@functools.lru_cache(maxsize=64)
def thresholds(f: TableFormat, mode: Rounding, special: SpecialCodes, dtype: np.dtype[Any]) -> Thresholds:
    """Return a deterministic cast as a step function."""
    order, steps = _Order(dtype), [(0, special.negative_nan)]
    steps += [(order.negative_inf, special.negative_inf), (order.negative_inf + 1, special.negative_over)]
    zero, minus_zero = order.key(0.0), order.key(-0.0)
    if not f.signed and not special.min_negative_magnitude:
        steps.append((minus_zero, f.listed.codes[0]))
    for i in intervals(f, special):
        point, itself = _switch_point(i, mode)
        if i.negative:
            steps.append((order.first(point, after=itself), i.base))
        else:
            if i.low == 0 or (i.low > 0 and len(steps) == 1):
                steps.append((zero, i.base))
            steps.append((order.first(point, after=not itself), i.away))
    steps += [(order.inf, special.inf), (order.inf + 1, special.nan)]
    keys: list[int] = []
    codes = [steps[0][1]]
    for key, code in steps[1:]:
        while keys and keys[-1] >= key:  # a later step replaces those that it overtakes
            keys.pop()
            codes.pop()
        if code != codes[-1]:
            keys.append(key)
            codes.append(code)
    found = np.array(keys, order.word)
    return Thresholds(found, _starts(found), np.array(codes, f.code_dtype))


def _starts(keys: NDArray[Any]) -> NDArray[np.int32]:
    """Return the number of keys below each value of the leading 16 bits, followed by the number of all keys."""
    shift = keys.dtype.type(8 * keys.itemsize - 16)
    counts = np.bincount((keys >> shift).astype(np.int64), minlength=1 << 16)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


@functools.lru_cache(maxsize=64)
def bucket_table(f: TableFormat, mode: Rounding, special: SpecialCodes) -> BucketTable | None:
    """Return the thresholds of float32 in the order of its bits, or None if they are too close for buckets."""
    keys, _, codes = thresholds(f, mode, special, np.dtype(np.float32))
    sign, far = 1 << 31, keys.astype(np.int64)
    positive, negative = far > sign, far < sign
    # Negative numbers decrease as their bits increase: the code before a threshold holds from the number below it.
    at = np.concatenate([[0], far[positive] - sign, [sign], 2 * sign - far[negative][::-1]])
    first = [np.count_nonzero(far <= sign), np.count_nonzero(negative)]  # codes of 0 and of -0
    after = np.concatenate([codes[first[:1]], codes[1:][positive], codes[first[1:]], codes[:-1][negative][::-1]])
    for shift in _SHIFTS:
        edges = np.arange(1 << (32 - shift)) << shift
        within = at & ((1 << shift) - 1)
        inside = within != 0
        counts = np.bincount(at[inside] >> shift, minlength=edges.size)
        if counts.max() <= 1 and at.size <= edges.size:
            buckets = (np.searchsorted(at, edges, "right") - 1) << shift
            buckets[at[inside] >> shift] += (1 << shift) - within[inside]
            return BucketTable(buckets.astype(np.uint32), after, np.uint32(shift))
    return None


@functools.lru_cache(maxsize=64)
def random_grid(f: TableFormat, special: SpecialCodes) -> RandomGrid:
    """Return the intervals of a table for stochastic rounding.

    Raises
    ------
    ValueError
        If the gaps between neighbouring values span too many binades for 63-bit integers.
    """
    order = _Order(np.dtype(np.float64))
    zero, minus_zero = order.key(0.0), order.key(-0.0)
    plain = (1.0, 0, 0)
    rows: list[tuple[int, int, int, tuple[float, int, int]]] = [
        (0, special.negative_nan, 0, plain), (order.negative_inf, special.negative_inf, 0, plain),
        (order.negative_inf + 1, special.negative_over, 0, plain),
    ]  # fmt: skip
    if not f.signed and not special.min_negative_magnitude:
        rows.append((minus_zero, f.listed.codes[0], 0, plain))
    for i in intervals(f, special):
        unit = min(_last_bit(i.low), _last_bit(i.high)) - _SPARE
        high, low = (int(end / Fraction(2) ** unit) for end in (i.high, i.low))
        if max(abs(high), abs(low), high - low) >= 1 << 62:
            raise ValueError(
                f"{f}: with stochastic rounding, neighbouring values must be within 62 binades, got {float(i.low):g} "
                f"and {float(i.high):g}"
            )
        scale = math.ldexp(1.0, -unit)
        if i.low < 0 < i.high:  # no zero: negative numbers go down, positive ones up
            rows.append((order.key(float(i.low)), i.away, i.base, (scale, -high, high - low)))
            rows.append((zero, i.base, i.away, (scale, low, high - low)))
        elif i.negative:
            rows.append((order.first(i.low, after=True), i.base, i.away, (scale, -high, high - low)))
        else:
            rows.append((max(zero, order.first(i.low, after=False)), i.base, i.away, (scale, low, high - low)))
    top = order.first(f.listed.above, after=False)
    rows += [(top, special.over, 0, plain), (order.inf, special.inf, 0, plain), (order.inf + 1, special.nan, 0, plain)]
    keys, base, away, numbers = zip(*rows, strict=True)
    found = np.array(keys[1:], np.uint64)
    scale_, origin, gap = zip(*numbers, strict=True)
    return RandomGrid(
        found, _starts(found), np.array(base, f.code_dtype), np.array(away, f.code_dtype),
        np.array(scale_, np.float64), np.array(origin, np.int64), np.array(gap, np.int64),
    )  # fmt: skip


def _last_bit(value: Fraction) -> int:
    """Return the exponent of a number's lowest set bit, or a large value for zero."""
    if value == 0:
        return 1 << 10
    n, d = value.numerator, value.denominator
    return (n & -n).bit_length() - d.bit_length()


@functools.cache
def _hif8() -> TableFormat:
    return TableFormat("hif8", tuple(hif8_values()), next_above_max=HIF8_NEXT_ABOVE_MAX)


@functools.lru_cache(maxsize=64)
def hif8_rule(f: TableFormat, mode: Rounding, special: SpecialCodes) -> tuple[tuple[np.uint32, ...], bool] | None:
    """Return the arguments of `kernels.cast.tables.encode32_hif8`, or None if that kernel is not exact."""
    plain = replace(mode, name="")
    even = plain == Rounding("", (1 << 31) - 1, (1 << 31) - 1, ties_even=True)
    nearest = even or plain == Rounding("", 1 << 31, 1 << 31)
    if not (nearest and f.same_codes(_hif8()) and special.nan == special.negative_nan and special.negative_zero == 0):
        return None
    over = special.over
    if over not in (0x6E, 0x6F) or special[:4] != (over, over | 0x80) * 2:
        return None
    clamp = 0x471FFFFF if over == 0x6E else 0x47200000 + even  # below 1.25 * 2^15, or where that overflows
    return tuple(np.uint32(word) for word in (0x34000000 + even, 0x34400000 + even, clamp, special.nan)), even


def table_encoder(f: TableFormat, mode: Rounding, special: SpecialCodes, key: RandomSource) -> Any:
    """Return the `Piece` that encodes values into codes."""
    from ..kernels.cast import tables as kernels

    if mode.is_stochastic:
        grid = random_grid(f, special)
        variant = np.int64(_VARIANTS[mode.variant])

        def at_random(x: NDArray[Any], into: NDArray[Any], start: int) -> None:
            words = key.words(start, x.size)
            with np.errstate(invalid="ignore"):  # signalling NaNs are valid inputs
                wide = x.astype(np.float64, copy=False)
            kernels.encode64_random(wide, into, tuple(grid), words, np.int64(mode.random_bits), variant)

        return at_random

    rule = hif8_rule(f, mode, special)

    def piece(x: NDArray[Any], into: NDArray[Any], start: int) -> None:
        if x.dtype == np.float64:
            kernels.encode64_thresholds(x, into, *thresholds(f, mode, special, x.dtype))
        elif rule is not None:
            kernels.encode32_hif8(x, into, *rule)
        elif (steps := bucket_table(f, mode, special)) is not None:
            kernels.encode32_steps(x, into, *steps)
        else:
            kernels.encode32_thresholds(x, into, *thresholds(f, mode, special, x.dtype))

    return piece
