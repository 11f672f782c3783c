"""LogFMT tiles with stochastic rounding in linear space: the expected decoded value is the value itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel
from lowprec.kernels.cast.random_bits import key_run, key_runs, keyed_word, random_keys
from lowprec.kernels.logfmt.encode import (
    MARGIN_LIMIT,
    STOCHASTIC,
    TO_INTEGER,
    bulge,
    find_group,
    group_of,
    largest_not_above,
    multiply_add,
    only_signs,
    prepare,
    settle,
)
from lowprec.kernels.logfmt.grid import IN_REGISTERS, Codes, Floats, Index, fill_grid, fill_powers, find_steps
from lowprec.kernels.logfmt.vector import LANES, around, signed_table

F, U = np.float32, np.uint32
_MAGNITUDE = U(0x7FFFFFFF)
_OCTAVE = U(0x00800000)
_LAST_BITS = U(0x0000FFFF)


@kernel
def _no_registers(codes: int, below: int, above: int, count: int, table: int) -> None:
    """Serve as a placeholder for `around` on CPUs without these registers."""


if not IN_REGISTERS:
    around = _no_registers


@kernel
def goes_up(a: float, below: float, above: float, word: Any) -> bool:
    """Return whether a magnitude between two grid values takes the upper: P = (a - below) / (above - below).

    The decision uses a word w of 32 random bits: up if w (above - below) < (a - below) 2^32. Both differences are exact
    in float64 if the grid's values are at most 29 octaves apart, and the product is rounded once.
    """
    return bool(np.float64(word) * (above - below) < (a - below) * 4294967296.0)


@kernel
def guess_down(
    x: Floats,
    first: int,
    size: int,
    low: Any,
    high: Any,
    scale: Any,
    slope: Any,
    lift: Any,
    most: Any,
    codes: Codes,
    doubts: Floats,
) -> Any:
    """Write the code of the grid value at or below each magnitude of a tile, and the doubts as in `encode`.

    `low` and `high` are the bits of the grid's ends, `most` is the largest code minus 1; codes at the ends are certain.
    """
    worst = U(0)
    for i in range(Index(size)):
        place = Index(Index(first) + i)
        u = bits32(x[place])
        magnitude = U(u & _MAGNITUDE)
        t = multiply_add(F(np.int32(U(magnitude - low))), scale, multiply_add(bulge(u), slope, lift))
        t = max(t, F(1.0))
        t = most if t > most else t
        k = t + TO_INTEGER
        doubt = t - (k - TO_INTEGER)
        doubts[i] = doubt
        worst = max(worst, U(bits32(doubt) & _MAGNITUDE))
        code = U(bits32(k) & _LAST_BITS) if magnitude >= low else U(0)
        codes[place] = U(code + (U(1) if magnitude >= high else U(0)))
    return float32_from_bits(worst)


@kernel
def _search_down(x: Floats, first: int, size: int, top: int, grid: Floats, codes: Codes) -> None:
    """Write the code of the grid value at or below each magnitude, by comparison with the grid only."""
    for i in range(first, first + size):
        codes[i] = largest_not_above(np.float64(abs(x[i])), top, grid)


@kernel
def _look_up(first: int, size: int, grid: Floats, codes: Codes, below: Floats, above: Floats) -> None:
    """Write the grid values at or below, and above, each value of a tile.

    The grid has one more number, equal to the last, because the largest code has no upper neighbour.
    """
    done = 0
    if IN_REGISTERS and codes.itemsize == 1 and size >= 64:
        done = size // 16 * 16
        around(codes.ctypes.data + first, below.ctypes.data, above.ctypes.data, done, grid.ctypes.data)
    for i in range(Index(done), Index(size)):
        k = Index(codes[Index(Index(first) + i)])
        below[i], above[i] = grid[k], grid[Index(k + Index(1))]


@kernel
def _draw(x: Floats, first: int, bits: int, keys: Any, lo: Any, below: Floats, above: Floats, codes: Codes) -> None:
    """Increment codes that round up, and add signs; the first value has index `first` in `x`, `lo` among the words."""
    sign = U(U(1) << U(bits - 1))
    for i in range(Index(below.size)):
        place = Index(Index(first) + i)
        u, lower = bits32(x[place]), np.float64(below[i])
        word = np.float64(keyed_word(keys, U(lo + U(i))))
        a = np.float64(float32_from_bits(U(u & _MAGNITUDE)))
        up = word * (np.float64(above[i]) - lower) < (a - lower) * 4294967296.0
        code = U(U(codes[place]) + (U(1) if up else U(0)))
        codes[place] = U(code | (sign if u > _MAGNITUDE else U(0)))


@kernel
def encode_tiles_stochastic(
    x: Floats,
    columns: int,
    bits: int,
    tile: int,
    octaves: int,
    bfloat16_ends: bool,
    seed: int,
    offset: int,
    codes: Codes,
    amin: Floats,
    amax: Floats,
    start: int,
    stop: int,
) -> int:
    """Encode tiles start .. stop; element i of the flat array takes the random word of index `offset` + i.

    Ends, non-finite tiles and the return value are those of `lowprec.kernels.logfmt.encode.encode_tiles`.
    """
    top = (1 << (bits - 1)) - 1
    group = group_of(tile)
    firsts, sizes = np.empty(group, np.int64), np.empty(group, np.int64)
    low, high, steps = np.ones(group, np.float64), np.ones(group, np.float64), np.empty(group, np.float64)
    scales, slopes = np.empty(group, np.float32), np.empty(group, np.float32)
    lifts, margins = np.empty(group, np.float32), np.empty(group, np.float32)
    below, above = np.empty(tile, np.float32), np.empty(tile, np.float32)
    width, blocks = 1 << (bits // 2), 1 << (bits - 1 - bits // 2)
    fine, coarse = np.empty(width * group, np.float64), np.empty(blocks * group, np.float64)
    grid = np.empty(max(2 * top + 3, 129), np.float32)
    fine_place, coarse_place, grid_place = fine.ctypes.data, coarse.ctypes.data, grid.ctypes.data
    seed_lo, seed_hi = U(seed & 0xFFFFFFFF), U(seed >> 32)
    bad = -1
    for leader in range(start, stop, group):
        count = min(group, stop - leader)
        found = find_group(
            x, columns, tile, octaves, bfloat16_ends, leader, count, amin, amax, firsts, sizes, low, high
        )
        if bad < 0:
            bad = found
        find_steps(low, high, bits, steps)
        prepare(low, steps, bits, STOCHASTIC, scales, slopes, lifts, margins)
        fill_powers(low, steps, bits, fine, coarse)
        for j in range(count):
            first, size, largest = firsts[j], sizes[j], amax[leader + j]
            if not (largest > F(0.0) and largest < F(np.inf)):
                only_signs(x, first, size, bits, codes)
                continue
            if width >= LANES and steps[j] != 0.0:  # the same numbers and their negatives, in full vectors
                own_coarse, own_fine = coarse_place + 8 * j * blocks, fine_place + 8 * j * width
                signed_table(own_coarse, own_fine, grid_place, blocks, width, F(low[j]), largest)
            else:
                own = fine[j * width : (j + 1) * width], coarse[j * blocks : (j + 1) * blocks]
                fill_grid(low[j], largest, steps[j], bits, *own, grid)
            grid[top + 1] = largest
            base = bits32(F(low[j]))
            if margins[j] < F(MARGIN_LIMIT) and base >= U(2 * _OCTAVE) and top > 1:
                limit, end = F(0.5) - margins[j], bits32(largest)
                worst = guess_down(x, first, size, base, end, scales[j], slopes[j], lifts[j], F(top - 1), codes, below)
                if worst > limit:
                    settle(x, first, size, below, limit, low[j], largest, steps[j], bits, STOCHASTIC, codes)
            else:
                _search_down(x, first, size, top, grid, codes)
            _look_up(first, size, grid, codes, below, above)
            at = np.int64(offset) + np.int64(first)
            for p in range(key_runs(at, size)):
                a, b, hi, lo = key_run(at, size, p)
                keys = random_keys(seed_lo, seed_hi, hi)
                _draw(x, first + a, bits, keys, lo, below[a:b], above[a:b], codes)
    return bad
