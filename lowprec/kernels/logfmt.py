"""LogFMT tiles: from magnitudes to codes on a logarithmic grid and back, exactly.

The grid of a tile is *defined* by the float64 arithmetic below (only IEEE + - * / and constants), and a code is defined
by comparisons with that grid in linear space. So codes depend on nobody's logarithm: the float32 one used here is a
first guess that the comparisons correct.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._jit import bits32, bits64, float32_from_bits, float64_from_bits, kernel
from lowprec.kernels.logfmt_tables import EXP2, EXP2_SERIES, LOG2, LOG2_SERIES

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_NAN = np.uint32(0x7FC00000)


@kernel
def log2_exact_ops(x: float) -> float:
    """Return log2 of a normal float64 >= 1 by a fixed sequence of IEEE operations; powers of two are exact."""
    u = bits64(x)
    exponent = np.float64(np.int64(np.uint64(u >> np.uint64(52))) - 1023)
    m = float64_from_bits(np.uint64(np.uint64(u & np.uint64(0xFFFFFFFFFFFFF)) | np.uint64(0x3FF0000000000000)))
    j = np.int64(np.uint64(np.uint64(u >> np.uint64(45)) & np.uint64(127)))
    c = 1.0 + j / 128.0
    z = (m - c) / c
    p = LOG2_SERIES[7]
    for k in range(6, -1, -1):
        p = p * z + LOG2_SERIES[k]
    return exponent + (LOG2[j] + p * z)


@kernel
def exp2_exact_ops(y: float) -> float:
    """Return 2**y for 0 <= y <= 33 by a fixed sequence of IEEE operations; whole y are exact."""
    i = np.int64(64.0 * y)
    r = y - i / 64.0
    p = EXP2_SERIES[5]
    for k in range(4, -1, -1):
        p = p * r + EXP2_SERIES[k]
    power = float64_from_bits(np.uint64(np.uint64((i >> 6) + 1023) << np.uint64(52)))
    return EXP2[i & 63] * (1.0 + p * r) * power


@kernel
def tile_grid(amin: Any, amax: Any, bits: int, octaves: int, coarse: Any, grid: Floats) -> Any:
    """Fill grid[k] with the magnitude of code k, 0 .. K; return the lower end and the step in octaves.

    `coarse` is scratch for 2**(bits // 2) numbers.
    """
    top = (1 << (bits - 1)) - 1
    half = bits // 2
    low = max(
        np.float64(amin), np.float64(amax) * float64_from_bits(np.uint64(np.uint64(1023 - octaves) << np.uint64(52)))
    )
    grid[0] = np.float32(0.0)
    if low == np.float64(amax):
        for k in range(1, top + 1):
            grid[k] = amax
        return low, 0.0
    step = log2_exact_ops(np.float64(amax) / low) / np.float64(top - 1)
    for q in range(1 << half):
        coarse[q] = exp2_exact_ops(step * np.float64(q))
    for block in range(((top - 1) >> half) + 1):
        a = low * exp2_exact_ops(step * np.float64(block << half))
        first = (block << half) + 1
        part = grid[first : min(first + (1 << half), top + 1)]
        for q in range(part.size):
            part[q] = np.float32(a * coarse[q])
    grid[1] = np.float32(low)
    grid[top] = amax
    return low, step


@kernel
def _rough_log2(u: Any) -> Any:
    """Return about log2 of a normal float32 magnitude, within 3e-6; only a guess, and for subnormals not even that."""
    e = np.float32(np.int32(np.uint32(u >> np.uint32(23))) - np.int32(127))
    z = float32_from_bits(np.uint32(np.uint32(u & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000))) - np.float32(1.0)
    p = np.float32(-0.02579235)
    p = p * z + np.float32(0.12147295)
    p = p * z + np.float32(-0.27734165)
    p = p * z + np.float32(0.45715812)
    p = p * z + np.float32(-0.71803359)
    p = p * z + np.float32(1.44253478)
    return e + p * z


@kernel
def _guess(magnitudes: Any, low: Any, step: float, top: int, guesses: Any) -> None:
    """Estimate the codes of a tile's magnitudes, in 0 .. top; almost always right, never relied on."""
    if step == 0.0:
        guesses[:] = top
        return
    inverse = np.float32(1.0 / step)
    base = _rough_log2(bits32(np.float32(low)))
    # The linear midpoint of a step lies above its logarithmic one by this much, to first order.
    lift = np.float32(1.5 - 0.0866 * step)
    limit = np.float32(top)
    for i in range(guesses.size):
        g = (_rough_log2(magnitudes[i]) - base) * inverse + lift
        guesses[i] = np.int32(min(max(g, np.float32(0.0)), limit))


@kernel
def _corrected(twice: float, edges: Any, top: int) -> Any:
    """Return how many of edges[1 .. top] are <= twice; edges[0] = -inf, edges[top + 1] = inf."""
    low, high = 0, top + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if twice >= edges[middle]:
            low = middle
        else:
            high = middle
    return low


@kernel
def _decide(magnitudes: Any, guesses: Any, edges: Any, top: int) -> None:
    """Turn guesses into the codes they should be: code k is for edges[k] <= 2 * magnitude < edges[k + 1]."""
    misses = 0
    for i in range(guesses.size):
        twice = 2.0 * np.float64(float32_from_bits(magnitudes[i]))
        guess = np.int64(guesses[i])
        misses += int(not (twice >= edges[guess] and twice < edges[guess + 1]))
    if misses > 0:
        for i in range(guesses.size):
            twice = 2.0 * np.float64(float32_from_bits(magnitudes[i]))
            guess = np.int64(guesses[i])
            if not (twice >= edges[guess] and twice < edges[guess + 1]):
                guesses[i] = _corrected(twice, edges, top)


@kernel
def _ends(magnitudes: Any) -> Any:
    """Return the bits of the smallest non-zero and of the largest magnitude; 0 and NaN if one is not finite."""
    largest = np.uint32(0)
    smallest = np.uint32(0xFFFFFFFF)
    for i in range(magnitudes.size):
        largest = max(largest, magnitudes[i])
        # One less, so that zero wraps to the top and drops out of the minimum.
        smallest = min(smallest, np.uint32(magnitudes[i] - np.uint32(1)))
    if largest >= _INFINITY:
        return np.uint32(0), _NAN
    return np.uint32(smallest + np.uint32(1)), largest


@kernel
def encode_tiles(
    x: Floats, bits: int, tile: int, octaves: int, codes: Codes, amin: Floats, amax: Floats, start: int, stop: int
) -> int:
    """Encode tiles start .. stop of x [rows, columns]; tiles count along rows, the last of a row may be short.

    A tile with a NaN or an infinity gets NaN for amax, 0 for amin and sign-only codes; the first such tile's number is
    returned, else -1.
    """
    columns = x.shape[1]
    across = (columns + tile - 1) // tile
    top = (1 << (bits - 1)) - 1
    sign_shift = np.uint32(32 - bits)
    sign_bit = np.uint32(np.uint32(1) << np.uint32(bits - 1))
    grid = np.empty(top + 1, np.float32)
    edges = np.empty(top + 2, np.float64)
    edges[0] = -np.inf
    edges[top + 1] = np.inf
    inner = edges[1 : top + 1]
    coarse = np.empty(1 << (bits // 2), np.float64)
    magnitude_room = np.empty(tile, np.uint32)
    guess_room = np.empty(tile, np.int32)
    bad = -1
    for t in range(start, stop):
        row = t // across
        first = (t - row * across) * tile
        n = min(tile, columns - first)
        values = x[row, first : first + n]
        own_codes = codes[row, first : first + n]
        magnitudes = magnitude_room[:n]
        guesses = guess_room[:n]
        for i in range(n):
            magnitudes[i] = np.uint32(bits32(values[i]) & _MAGNITUDE)
        smallest, largest = _ends(magnitudes)
        if largest == _NAN and bad < 0:
            bad = t
        low_end = float32_from_bits(smallest)
        high_end = float32_from_bits(largest)
        amin[row, t - row * across] = low_end
        amax[row, t - row * across] = high_end
        if high_end > np.float32(0.0):
            low, step = tile_grid(low_end, high_end, bits, octaves, coarse, grid)
            for k in range(top):
                inner[k] = np.float64(grid[k]) + np.float64(grid[k + 1])  # twice the threshold, exactly
            _guess(magnitudes, low, step, top, guesses)
            _decide(magnitudes, guesses, edges, top)
        else:  # all zeros, or poisoned
            guesses[:] = 0
        for i in range(n):
            sign = np.uint32(np.uint32(bits32(values[i]) >> sign_shift) & sign_bit)
            own_codes[i] = np.uint32(sign | np.uint32(guesses[i]))
    return bad


@kernel
def decode_tiles(
    codes: Codes, amin: Floats, amax: Floats, bits: int, tile: int, octaves: int, out: Floats, start: int, stop: int
) -> None:
    """Decode tiles start .. stop into out [rows, columns]; a tile whose amax is NaN becomes NaN."""
    columns = out.shape[1]
    across = (columns + tile - 1) // tile
    top = (1 << (bits - 1)) - 1
    grid = np.empty(top + 1, np.float32)
    coarse = np.empty(1 << (bits // 2), np.float64)
    for t in range(start, stop):
        row = t // across
        first = (t - row * across) * tile
        high = amax[row, t - row * across]
        if high > np.float32(0.0):
            tile_grid(amin[row, t - row * across], high, bits, octaves, coarse, grid)
        else:  # all zeros, or poisoned
            grid[:] = high
        n = min(tile, columns - first)
        own_codes = codes[row, first : first + n]
        values = out[row, first : first + n]
        for i in range(n):
            code = np.uint32(own_codes[i])
            magnitude = bits32(grid[np.int64(np.uint32(code & np.uint32(top)))])
            sign = np.uint32(np.uint32(code >> np.uint32(bits - 1)) << np.uint32(31))
            values[i] = float32_from_bits(np.uint32(magnitude | sign))
