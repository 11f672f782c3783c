"""LogFMT tiles rounded stochastically in linear space, so that the mean of what they decode to is the value itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import bits32, kernel
from lowprec.kernels.cast.random_bits import key_run, key_runs, keyed_word, random_keys
from lowprec.kernels.logfmt.encode import bulge, find_group, largest_not_above, only_signs
from lowprec.kernels.logfmt.grid import Codes, Floats, fill_grid, fill_powers, find_steps

_MAGNITUDE = np.uint32(0x7FFFFFFF)


@kernel
def goes_up(a: float, below: float, above: float, word: Any) -> bool:
    """Tell whether a magnitude between two grid values takes the upper: with probability (a - below) / (above - below).

    A word w of 32 random bits decides: up if w (above - below) < (a - below) 2^32. The two differences are exact in
    float64 wherever the grid's values are at most 29 octaves apart, the product is rounded once.
    """
    return bool(np.float64(word) * (above - below) < (a - below) * 4294967296.0)


@kernel
def _find(a: Any, top: int, grid: Floats, origin: Any, slope: Any) -> int:
    """Return the largest k <= top with grid[k] <= a, from a rough logarithm on; a search where there is none."""
    bits = bits32(a)
    if slope == np.float32(0.0) or bits < np.uint32(0x00800000):
        return largest_not_above(np.float64(a), top, grid)
    place = np.float32(np.int32(bits)) * np.float32(2.0**-23) + bulge(bits)
    k: Any = min(max(np.int64((place - origin) * slope) + 1, 0), top)
    while k > 0 and grid[k] > a:
        k -= 1
    while k < top and grid[k + 1] <= a:
        k += 1
    return k


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
    """Encode tiles start .. stop; element i of the run takes the random word of index `offset` + i.

    Ends, tiles that are not finite and the result are those of `lowprec.kernels.logfmt.encode.encode_tiles`.
    """
    top = (1 << (bits - 1)) - 1
    firsts, sizes = np.empty(1, np.int64), np.empty(1, np.int64)
    low, high, steps = np.ones(1, np.float64), np.ones(1, np.float64), np.empty(1, np.float64)
    fine, coarse = np.empty(1 << (bits // 2), np.float64), np.empty(1 << (bits - 1 - bits // 2), np.float64)
    grid = np.empty(top + 1, np.float32)
    seed_lo, seed_hi = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    bad = -1
    for t in range(start, stop):
        found = find_group(x, columns, tile, octaves, bfloat16_ends, t, 1, amin, amax, firsts, sizes, low, high)
        if bad < 0:
            bad = found
        first, size, largest = firsts[0], sizes[0], amax[t]
        if not (largest > np.float32(0.0) and largest < np.float32(np.inf)):
            only_signs(x, first, size, bits, codes)
            continue
        find_steps(low, high, bits, steps)
        fill_powers(0, low[0], steps[0], bits, fine, coarse)
        fill_grid(low[0], largest, steps[0], bits, fine, coarse, grid)
        base = bits32(np.float32(low[0]))
        origin = np.float32(np.int32(base)) * np.float32(2.0**-23) + bulge(base)
        slope = np.float32(0.0)
        if steps[0] > 1e-6 and base >= np.uint32(0x00800000):
            slope = np.float32(1.0 / steps[0])
        at = np.int64(offset) + np.int64(first)
        for p in range(key_runs(at, size)):
            a, b, hi, lo = key_run(at, size, p)
            keys = random_keys(seed_lo, seed_hi, hi)
            values, into = x[first + a : first + b], codes[first + a : first + b]
            for i in range(values.size):
                magnitude = abs(values[i])
                k = _find(magnitude, top, grid, origin, slope)
                if k < top:
                    word = keyed_word(keys, np.uint32(lo + np.uint32(i)))
                    k += int(goes_up(np.float64(magnitude), np.float64(grid[k]), np.float64(grid[k + 1]), word))
                into[i] = k | (int(bits32(values[i]) > _MAGNITUDE) << (bits - 1))
    return bad
