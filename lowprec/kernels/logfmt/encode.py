"""LogFMT tiles: exact encoding of values.

A code is defined by comparisons with the tile's grid (`decide`). Almost every value is so far from every threshold that
a float32 logarithm determines its code; the others are compared exactly.

The margin of error
-------------------
Write s for the step in octaves, ``inverse = 1 / s``, N = K - 1 = 2**(n-1) - 2, and R = N s <= 32 for the range. A
normal magnitude ``a`` with significand m in [1, 2) has log2 a = e + (m - 1) + g(m), where
g(m) = log2(m) - (m - 1) is in [0, 0.0861]. The exact position of ``a``, in codes, is

    t = (log2 a - log2 low) / s + 2 - x,    code = floor(t),

where the threshold between the grid points low 2^(s(k-1)) and low 2^(sk) is at the fraction x of the step:
x = log2((1 + 2^s) / 2) / s for the arithmetic mean, 1/2 for the geometric, log2((2^s - 1) / (s ln 2)) / s for the
logarithmic one, and 1, the upper grid point, for stochastic rounding, which begins with the grid value at or below.
The float32 arithmetic of `_guess` has the following errors, with u = 2^-24, in codes (it computes t - 1/2, with terms
that are not larger):

1. The error of the polynomial `bulge` for g is at most ``BULGE_ERROR``, including roundings (a test checks all 2^23
   significands). It is evaluated at ``a`` and, within ``lift``, at ``low``: 2 BULGE_ERROR inverse.
2. The difference of two bit patterns, 2^23 (e + m - 1) relative to those of ``low``, is an exact integer. Rounding it
   to float32, rounding ``scale`` and rounding their product add at most u each of a number <= N: 3 N u.
3. Rounding ``slope`` and its product with the bulge: 2 x 0.0861 inverse u; ``lift`` is at most 2 + 0.0861 inverse, its
   sum with that product at most 2 + 0.1722 inverse, each rounded once: (4 + 0.2583 inverse) u. With a fused
   multiply-add, the roundings of products do not occur, here and in 2.
4. The last sum is at most N + 2, or below 1.5 and irrelevant: (N + 2) u.
5. The grid is the ideal one rounded to float32: the relative error of each value is at most u (1 + 2^-20), including
   the float64 error of `exp2_exact_ops`, and any mean of two has the same bound: log2(e) u inverse (1 + 2^-20).
6. The float64 errors of s, x and the logarithmic mean: less than u.

All relative terms are first order; products of two errors add less than u. The sum is below

    margin = (2 BULGE_ERROR + 2 u) inverse + (4 N + 8) u.

The integer nearest to t - 1/2 and the distance from it are exact in float32 (t >= 3/2, so its last place is at least
2^-23). A value with a computed t farther than ``margin`` from every integer therefore has the code floor(t); if t is
nearer than that to the integer k, only the threshold between k - 1 and k must be compared. Tiles with a margin above
``MARGIN_LIMIT`` (nearly equal ends), or with a lower end near the subnormal numbers, are searched exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import bits32, cpu_features, float32_from_bits, fma32, kernel, shift_right
from lowprec.kernels.elementary import log64
from lowprec.kernels.logfmt.grid import (
    Codes,
    Doubles,
    Floats,
    Index,
    exp2_exact_ops,
    fill_grid,
    fill_powers,
    find_steps,
    grid_value,
    log2_exact_ops,
    lower_end,
)

F, U = np.float32, np.uint32
GROUP = 64  # largest number of tiles with ends and steps computed together, in vectors
LINEAR, LOG, LOGMEAN, STOCHASTIC = 0, 1, 2, 3  # rounding between two grid points; STOCHASTIC gives the lower one

_MAGNITUDE = U(0x7FFFFFFF)
_INFINITY = U(0x7F800000)
_NAN = U(0x7FC00000)
_OCTAVE = U(0x00800000)  # one octave, in the bits of a normal number
_ROUND = 2.0**-24  # largest relative error of a float32 rounding
_LN2 = 0.6931471805599453
TO_INTEGER = F(2.0**23)  # adding it rounds to an integer, in the low bits

BULGE_ERROR = 1.9e-6
MARGIN_LIMIT = 0.05
# Minimax polynomial of log2(m) - (m - 1) in m - 1.5 on [1, 2].
_B0, _B1, _B2, _B3 = F(0.08496304253574172), F(-0.03817876505854282), F(-0.3206522947701217), F(0.14171805198923335)
_B4, _B5, _B6 = F(-0.07037672928716629), F(0.04392897100578191), F(-0.025691088816857655)


@kernel
def _multiply_add(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


#: a * b + c, fused where the CPU has an instruction for it: the error bounds hold with and without.
multiply_add = fma32 if {"fma", "neon"} & cpu_features() else _multiply_add


@kernel
def bulge(u: Any) -> Any:
    """Return an approximation of log2(m) - (m - 1) for the significand m of a float32's bits."""
    x = float32_from_bits(U(U(u & U(0x7FFFFF)) | U(0x3F800000))) - F(1.5)
    y = x * x
    upper = multiply_add(_B6, y, multiply_add(_B5, x, _B4))
    upper = multiply_add(upper, y, multiply_add(_B3, x, _B2))
    return multiply_add(upper, y, multiply_add(_B1, x, _B0))


@kernel
def decide(a: float, below: float, above: float, rule: int) -> bool:
    """Return whether a magnitude takes the upper of two neighbouring grid values (0 < below <= above), ties included.

    Sums and products of two float32 numbers are exact in float64, so the first two rules are exact. The logarithmic
    mean is rounded: (above - below) / ln(above / below), with the denominator from the series of 2 artanh((above -
    below) / (above + below)) if the values are close.
    """
    if rule == LINEAR:
        return a + a >= below + above
    if rule == LOG:
        return a * a >= below * above
    if rule == STOCHASTIC:
        return a >= above
    return a >= log_mean(below, above)


@kernel
def log_mean(below: float, above: float) -> float:
    """Return the logarithmic mean of two positive numbers by fixed float64 operations."""
    r = (above - below) / (above + below)
    if r > 0.2:
        return (above - below) / log64(above / below)
    q = r * r
    p = 1.0 / 25.0
    p = p * q + 1.0 / 23.0
    p = p * q + 1.0 / 21.0
    p = p * q + 1.0 / 19.0
    p = p * q + 1.0 / 17.0
    p = p * q + 1.0 / 15.0
    p = p * q + 1.0 / 13.0
    p = p * q + 1.0 / 11.0
    p = p * q + 1.0 / 9.0
    p = p * q + 1.0 / 7.0
    p = p * q + 1.0 / 5.0
    p = p * q + 1.0 / 3.0
    return 0.5 * (above + below) / (1.0 + q * p)


@kernel
def _find_shares(steps: Doubles, rule: int, shares: Doubles) -> None:
    """Write the threshold's position in each step of a grid, as a fraction of the step: loops that vectorize."""
    if rule == LINEAR:
        for i in range(Index(steps.size)):
            shares[i] = log2_exact_ops((1.0 + exp2_exact_ops(steps[i])) * 0.5) / steps[i]
    elif rule == LOG:
        shares[:] = 0.5
    elif rule == STOCHASTIC:
        shares[:] = 1.0
    else:
        for i in range(Index(steps.size)):
            shares[i] = log2_exact_ops((exp2_exact_ops(steps[i]) - 1.0) / (steps[i] * _LN2)) / steps[i]


@kernel
def prepare(
    low: Doubles, steps: Doubles, bits: int, rule: int, scales: Floats, slopes: Floats, lifts: Floats, margins: Floats
) -> None:
    """Compute the constants of t - 1/2 for each tile of a group: loops that vectorize."""
    codes = np.float64(1 << (bits - 1))
    shares, safe = np.empty(steps.size, np.float64), np.empty(steps.size, np.float64)
    for i in range(Index(steps.size)):
        safe[i] = max(steps[i], 1e-9)  # the margin of such a step exceeds the limit
    _find_shares(safe, rule, shares)
    for i in range(Index(steps.size)):
        inverse = 1.0 / safe[i]
        scales[i] = F(inverse * 2.0**-23)
        slopes[i] = F(inverse)
        lifts[i] = F((1.5 - shares[i]) - inverse * np.float64(bulge(bits32(F(low[i])))))
        margins[i] = F((2.0 * BULGE_ERROR + 2.0 * _ROUND) * inverse + (4.0 * codes + 8.0) * _ROUND)


@kernel
def _find_ends(x: Floats, first: int, size: int) -> Any:
    """Return the bits of the smallest nonzero and the largest magnitude; 0 and NaN if a value is not finite."""
    largest, smallest = U(0), U(0xFFFFFFFF)
    for i in range(Index(size)):
        magnitude = U(bits32(x[Index(Index(first) + i)]) & _MAGNITUDE)
        largest = max(largest, magnitude)
        # Minus one, so that zero wraps to the largest number and does not affect the minimum.
        smallest = min(smallest, U(magnitude - U(1)))
    if largest >= _INFINITY:
        return U(0), _NAN
    return U(smallest + U(1)), largest


@kernel
def _outwards(smallest: Any, largest: Any) -> Any:
    """Return the ends in bfloat16: the lower rounded down, but not to zero, and the upper rounded up; NaN is kept."""
    if largest == U(0) or largest == _NAN:
        return smallest, largest
    return max(U(smallest & U(0xFFFF0000)), U(0x00010000)), U(U(largest + U(0xFFFF)) & U(0xFFFF0000))


@kernel
def find_group(
    x: Floats,
    columns: int,
    tile: int,
    octaves: int,
    bfloat16_ends: bool,
    leader: int,
    count: int,
    amin: Floats,
    amax: Floats,
    firsts: Any,
    sizes: Any,
    low: Doubles,
    high: Doubles,
) -> int:
    """Compute ends, positions and grid limits of `count` tiles, of which tile `leader` is the first.

    Tiles without a grid get the limits 1 and 1. Returns the number of the first non-finite tile, or -1.
    """
    across = (columns + tile - 1) // tile
    row, part = leader // across, leader % across
    bad = -1
    for j in range(count):
        first, size = row * columns + part * tile, min(tile, columns - part * tile)
        smallest, largest = _find_ends(x, first, size)
        if bfloat16_ends:
            smallest, largest = _outwards(smallest, largest)
        if largest >= _INFINITY and bad < 0:
            bad = leader + j
        least, most = float32_from_bits(smallest), float32_from_bits(largest)
        proper = largest > U(0) and largest < _INFINITY
        firsts[j], sizes[j], amin[leader + j], amax[leader + j] = first, size, least, most
        high[j] = np.float64(most) if proper else 1.0
        low[j] = lower_end(least, most, octaves) if proper else 1.0
        part += 1
        if part == across:
            row, part = row + 1, 0
    return bad


@kernel
def _guess(
    x: Floats,
    first: int,
    size: int,
    base: Any,
    scale: Any,
    slope: Any,
    lift: Any,
    bits: int,
    codes: Codes,
    doubts: Floats,
) -> Any:
    """Write floor(t) for a tile, with signs, and the fraction of t minus 1/2; return the largest magnitude of these."""
    half = U(base - _OCTAVE)  # half of the lower end, below which values become zero
    sign_bit, sign_place = U(U(1) << U(bits - 1)), U(32 - bits)
    code_bits = U(sign_bit - U(1))
    most = U(0)
    for i in range(Index(size)):
        place = Index(Index(first) + i)
        u = bits32(x[place])
        magnitude = U(u & _MAGNITUDE)
        t = max(multiply_add(F(np.int32(U(magnitude - base))), scale, multiply_add(bulge(u), slope, lift)), F(1.0))
        k = t + TO_INTEGER
        doubt = t - (k - TO_INTEGER)
        doubts[i] = doubt
        most = max(most, U(bits32(doubt) & _MAGNITUDE))
        code = U(bits32(k) & code_bits) if magnitude >= half else U(0)
        codes[place] = U(U(shift_right(u, sign_place) & sign_bit) | code)
    return float32_from_bits(most)


@kernel
def settle(
    x: Floats,
    first: int,
    size: int,
    doubts: Floats,
    limit: Any,
    low: float,
    high: Any,
    step: float,
    bits: int,
    rule: int,
    codes: Codes,
) -> None:
    """Recompute exactly the codes of a tile's values with t within the error margin of an integer."""
    top = (1 << (bits - 1)) - 1
    for i in range(size):
        if abs(doubts[i]) > limit:
            code = np.int64(codes[first + i])
            sign, k = code & ~top, code & top
            if doubts[i] > F(0.0):
                k += 1
            if 1 < k <= top:
                below = np.float64(grid_value(k - 1, low, high, step, bits))
                above = np.float64(grid_value(k, low, high, step, bits))
                k -= int(not decide(np.float64(abs(x[first + i])), below, above, rule))
                codes[first + i] = sign | k


@kernel
def largest_not_above(a: float, top: int, grid: Floats) -> int:
    """Return the largest k <= top with grid[k] <= a; grid[0] = 0."""
    first, end = 0, top + 1
    while end - first > 1:
        middle = (first + end) >> 1
        if np.float64(grid[middle]) <= a:
            first = middle
        else:
            end = middle
    return first


@kernel
def _search(x: Floats, first: int, size: int, bits: int, rule: int, grid: Floats, codes: Codes) -> None:
    """Encode one tile by comparison with its grid only."""
    top = (1 << (bits - 1)) - 1
    for i in range(size):
        a = np.float64(abs(x[first + i]))
        k = largest_not_above(a, top, grid)
        if k == 0:
            k = int(a + a >= np.float64(grid[1]))
        elif k < top:
            k += int(decide(a, np.float64(grid[k]), np.float64(grid[k + 1]), rule))
        codes[first + i] = k | (int(bits32(x[first + i]) > _MAGNITUDE) << (bits - 1))


@kernel
def only_signs(x: Floats, first: int, size: int, bits: int, codes: Codes) -> None:
    """Encode a tile of zeros, or one with NaN or infinity."""
    for i in range(first, first + size):
        codes[i] = int(bits32(x[i]) > _MAGNITUDE) << (bits - 1)


@kernel
def group_of(tile: int) -> int:
    """Return the number of tiles per group: many hide each other's latencies, few fit in the L1 cache."""
    return min(GROUP, max(8, 8192 // tile))


@kernel
def encode_tiles(
    x: Floats,
    columns: int,
    bits: int,
    tile: int,
    octaves: int,
    rule: int,
    bfloat16_ends: bool,
    codes: Codes,
    amin: Floats,
    amax: Floats,
    start: int,
    stop: int,
) -> int:
    """Encode tiles start .. stop of the flat array x with a rule that needs no random bits.

    A tile with a NaN or an infinity gets NaN for amax, 0 for amin and sign-only codes. Returns the number of the first
    such tile, or -1. With `bfloat16_ends`, an upper end above the largest bfloat16 becomes infinite, and its tile is
    reported too.
    """
    group = group_of(tile)
    firsts, sizes = np.empty(group, np.int64), np.empty(group, np.int64)
    low, high, steps = np.ones(group, np.float64), np.ones(group, np.float64), np.empty(group, np.float64)
    scales, slopes = np.empty(group, np.float32), np.empty(group, np.float32)
    lifts, margins = np.empty(group, np.float32), np.empty(group, np.float32)
    doubts = np.empty(tile, np.float32)
    fine, coarse = np.empty(1 << (bits // 2), np.float64), np.empty(1 << (bits - 1 - bits // 2), np.float64)
    grid = np.empty((1 << (bits - 1)) + 1, np.float32)
    bad = -1
    for leader in range(start, stop, group):
        count = min(group, stop - leader)
        found = find_group(
            x, columns, tile, octaves, bfloat16_ends, leader, count, amin, amax, firsts, sizes, low, high
        )
        if bad < 0:
            bad = found
        find_steps(low, high, bits, steps)
        prepare(low, steps, bits, rule, scales, slopes, lifts, margins)
        for j in range(count):
            first, size, largest = firsts[j], sizes[j], amax[leader + j]
            base = bits32(F(low[j]))
            if not (largest > F(0.0) and largest < F(np.inf)):
                only_signs(x, first, size, bits, codes)
            elif margins[j] < F(MARGIN_LIMIT) and base >= U(2 * _OCTAVE):
                limit = F(0.5) - margins[j]
                most = _guess(x, first, size, base, scales[j], slopes[j], lifts[j], bits, codes, doubts)
                if most > limit:
                    settle(x, first, size, doubts, limit, low[j], largest, steps[j], bits, rule, codes)
            else:
                fill_powers(low[j : j + 1], steps[j : j + 1], bits, fine, coarse)
                fill_grid(low[j], largest, steps[j], bits, fine, coarse, grid)
                _search(x, first, size, bits, rule, grid, codes)
    return bad
