"""Grid of a LogFMT tile, and decoding.

The grid is *defined* by the float64 arithmetic below: only IEEE + - * /, conversions and constants, in this order. Its
bits therefore do not depend on any library's logarithm, and a code is defined by comparisons with it in linear space
(`lowprec.kernels.logfmt.encode`).

Kernels receive a flat array with rows of length `columns`. Tiles are counted along rows; a tile has `tile` values, the
last of a row may be shorter. Loops use unsigned indices of whole arrays: the reference counting of slices would cost
more than the work on a tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._jit import (
    bits32,
    bits64,
    cpu_features,
    float32_from_bits,
    float64_from_bits,
    kernel,
    variant,
)
from lowprec.kernels.logfmt.tables import EXP2, EXP2_SERIES, LOG2, LOG2_SERIES
from lowprec.kernels.logfmt.vector import LANES, from_registers, from_table, signed_table

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

U = np.uint32
Index = np.uint64  # Numba tests whether signed indices are negative, and such loops do not vectorize


@kernel
def log2_exact_ops(x: float) -> float:
    """Return log2 of a normal float64 >= 1 by a fixed sequence of IEEE operations; powers of two are exact."""
    u = bits64(x)
    exponent = np.float64(np.int32(np.uint64(u >> np.uint64(52))) - 1023)
    m = float64_from_bits(np.uint64(np.uint64(u & np.uint64(0xFFFFFFFFFFFFF)) | np.uint64(0x3FF0000000000000)))
    j = np.int32(np.uint64(np.uint64(u >> np.uint64(45)) & np.uint64(127)))
    c = 1.0 + j / 128.0
    z = (m - c) / c
    p = LOG2_SERIES[7]
    for k in range(6, -1, -1):
        p = p * z + LOG2_SERIES[k]
    return exponent + (LOG2[j] + p * z)


@kernel
def exp2_exact_ops(y: float) -> float:
    """Return 2**y for 0 <= y <= 33 by a fixed sequence of IEEE operations; exact for integer y."""
    i = np.int32(64.0 * y)
    r = y - i / 64.0
    p = EXP2_SERIES[5]
    for k in range(4, -1, -1):
        p = p * r + EXP2_SERIES[k]
    power = float64_from_bits(np.uint64(np.uint64((i >> 6) + 1023) << np.uint64(52)))
    return EXP2[i & 63] * (1.0 + p * r) * power


@kernel
def lower_end(amin: Any, amax: Any, octaves: int) -> float:
    """Return the lower end of the grid: amin, but at least amax * 2**-octaves."""
    smallest = float64_from_bits(np.uint64(np.uint64(1023 - octaves) << np.uint64(52)))
    return max(np.float64(amin), np.float64(amax) * smallest)


@kernel
def find_steps(low: Doubles, high: Doubles, bits: int, steps: Doubles) -> None:
    """Write the step in octaves for pairs of ends (0 < low <= high): a loop that vectorizes."""
    intervals = np.float64((1 << (bits - 1)) - 2)
    for i in range(Index(steps.size)):
        steps[i] = log2_exact_ops(high[i] / low[i]) / intervals


@kernel
def grid_value(k: Any, low: float, high: Any, step: float, bits: int) -> Any:
    """Return the value of code k, 1 <= k <= K; a table has all of them, with the same bits."""
    half = bits // 2
    if k == (1 << (bits - 1)) - 1 or step == 0.0:
        return high
    if k == 1:
        return np.float32(low)
    place = k - 1
    coarse = low * exp2_exact_ops(step * np.float64((place >> half) << half))
    return np.float32(coarse * exp2_exact_ops(step * np.float64(place & ((1 << half) - 1))))


@kernel
def _fill_exp2(values: Doubles, count: int) -> None:
    """Apply `exp2_exact_ops` to the first `count` numbers in place."""
    for i in range(Index(count)):
        values[i] = exp2_exact_ops(values[i])


@kernel
def fill_powers(low: Doubles, steps: Doubles, bits: int, fine: Doubles, coarse: Doubles) -> None:
    """Fill the factors of several grids: for each, 2**(bits // 2) fine ones and 2**(bits - 1 - bits // 2) coarse ones.

    A single loop over the factors of all grids hides their latency.
    """
    width, blocks = Index(1 << (bits // 2)), Index(1 << (bits - 1 - bits // 2))
    for j in range(Index(steps.size)):
        for q in range(width):
            fine[Index(j * width + q)] = steps[j] * np.float64(np.int32(q))
        for b in range(blocks):
            coarse[Index(j * blocks + b)] = steps[j] * np.float64(np.int32(Index(b * width)))
    _fill_exp2(fine, steps.size << (bits // 2))
    _fill_exp2(coarse, steps.size << (bits - 1 - bits // 2))
    for j in range(Index(steps.size)):
        for b in range(blocks):
            coarse[Index(j * blocks + b)] *= low[j]


@kernel
def fill_grid(low: float, high: Any, step: float, bits: int, fine: Doubles, coarse: Doubles, grid: Floats) -> None:
    """Fill grid[k] with the magnitude of code k, 0 .. K, for ends above zero; factors are from `fill_powers`.

    The grid has space for one more number, which is unused.
    """
    top, width, blocks = (1 << (bits - 1)) - 1, 1 << (bits // 2), 1 << (bits - 1 - bits // 2)
    if step == 0.0:
        grid[1 : top + 1] = high
    else:
        for b in range(blocks):
            factor, part = coarse[b], grid[b * width + 1 : b * width + width + 1]
            for q in range(Index(part.size)):
                part[q] = np.float32(factor * fine[q])
        grid[1], grid[top] = np.float32(low), high
    grid[0] = np.float32(0.0)


@kernel
def _all_equal(codes: Codes, first: int, size: int, high: Any, bits: int, out: Floats) -> None:
    """Write the values of a tile in which all nonzero magnitudes are equal; NaN if `high` is NaN."""
    top = (1 << (bits - 1)) - 1
    for i in range(first, first + size):
        code = np.int64(codes[i])
        value = high if code & top else high * np.float32(0.0)
        out[i] = -value if code > top else value


@kernel
def _look_up(codes: Codes, first: int, size: int, tables: Floats, table: int, out: Floats) -> None:
    """Write tables[table + code] for the codes of a tile."""
    for i in range(Index(size)):
        place = Index(Index(first) + i)
        out[place] = tables[Index(Index(table) + Index(codes[place]))]


@kernel
def _multiply(
    codes: Codes,
    first: int,
    size: int,
    high: Any,
    bits: int,
    fine: Doubles,
    fines: int,
    coarse: Doubles,
    coarses: int,
    out: Floats,
) -> None:
    """Write a tile's values from the factors fine[fines ..] and coarse[coarses ..]; code 1 is low * 1 * 1."""
    half, last, sign_shift = U(bits // 2), U((1 << (bits - 1)) - 2), U(bits - 1)
    low_bits = U(U(U(1) << half) - U(1))
    for i in range(Index(size)):
        place = Index(Index(first) + i)
        code = U(codes[place])
        m = U(U(code - U(1)) & U(U(U(1) << sign_shift) - U(1)))  # magnitude code minus one; zero comes last
        value = np.float32(
            coarse[Index(Index(coarses) + Index(m >> half))] * fine[Index(Index(fines) + (m & low_bits))]
        )
        if m >= last:
            value = high if m == last else high * np.float32(0.0)
        out[place] = float32_from_bits(U(bits32(value) | U(U(code >> sign_shift) << U(31))))


@kernel
def _small_table(
    coarse: Doubles,
    coarses: int,
    fine: Doubles,
    fines: int,
    tables: Floats,
    table: int,
    blocks: int,
    width: int,
    low: Any,
    high: Any,
) -> None:
    """Fill the table as `signed_table` does, for blocks shorter than a vector."""
    size, k = Index(blocks * width), Index(table + 1)
    for b in range(Index(blocks)):
        for q in range(Index(width)):
            value = np.float32(coarse[Index(Index(coarses) + b)] * fine[Index(Index(fines) + q)])
            tables[k], tables[Index(k + size)] = value, -value
            k = Index(k + Index(1))
    first, middle, last = Index(table), Index(Index(table) + size), Index(Index(table) + size + size)
    tables[first], tables[middle] = np.float32(0.0), np.float32(-0.0)
    tables[Index(first + Index(1))], tables[Index(middle + Index(1))] = low, -low
    tables[Index(middle - Index(1))], tables[Index(last - Index(1))] = high, -high


@kernel
def _no_factors(codes: int, out: int, count: int, fine: int, coarse: int, bits: int, high: Any) -> None:
    """Serve as a placeholder for `from_registers` on CPUs without these registers."""


@kernel
def _no_table(codes: int, out: int, count: int, table: int, bits: int) -> None:
    """Serve as a placeholder for `from_table` on CPUs without these registers."""


IN_REGISTERS = "avx512f" in cpu_features()
if not IN_REGISTERS:
    from_registers, from_table = _no_factors, _no_table


def _decode_tiles(
    codes: Codes,
    amin: Floats,
    amax: Floats,
    columns: int,
    bits: int,
    tile: int,
    octaves: int,
    out: Floats,
    start: int,
    stop: int,
) -> None:
    """Decode tiles start .. stop of the flat codes into out; a tile with amax NaN becomes NaN."""
    group = 8  # several tiles at once hide each other's latencies
    low, high, steps = np.ones(group, np.float64), np.ones(group, np.float64), np.empty(group, np.float64)
    half = bits // 2
    width, blocks = 1 << half, 1 << (bits - 1 - half)
    fine, coarse = np.empty(group * width + 32, np.float64), np.empty(group * blocks + 32, np.float64)
    in_registers = IN_REGISTERS and bits <= 10
    # A table pays off unless there are far fewer values than entries.
    size = max((1 << bits) + 1, 128)
    with_table = (
        (in_registers or width >= LANES) and size <= 8 * tile + 1 and not (in_registers and codes.itemsize == 2)
    )
    tables = np.empty(group * size if with_table else 1, np.float32)
    fine_place, coarse_place, table_place = fine.ctypes.data, coarse.ctypes.data, tables.ctypes.data
    code_place, out_place = codes.ctypes.data, out.ctypes.data
    across = (columns + tile - 1) // tile
    row, part = start // across, start % across
    for leader in range(start, stop, group):
        count = min(group, stop - leader)
        for j in range(count):
            proper = amax[leader + j] > np.float32(0.0)
            high[j] = np.float64(amax[leader + j]) if proper else 1.0
            low[j] = lower_end(amin[leader + j], amax[leader + j], octaves) if proper else 1.0
        find_steps(low, high, bits, steps)
        fill_powers(low, steps, bits, fine, coarse)
        if with_table:
            for j in range(count):
                own_fine, own_coarse = fine_place + 8 * j * width, coarse_place + 8 * j * blocks
                ends = np.float32(low[j]), np.float32(high[j])
                if width >= LANES:
                    signed_table(own_coarse, own_fine, table_place + 4 * j * size, blocks, width, ends[0], ends[1])
                else:
                    _small_table(coarse, j * blocks, fine, j * width, tables, j * size, blocks, width, ends[0], ends[1])
        for j in range(count):
            first, values = row * columns + part * tile, min(tile, columns - part * tile)
            if steps[j] == 0.0:
                _all_equal(codes, first, values, amax[leader + j], bits, out)
            elif with_table:
                if in_registers:
                    own_table, many = table_place + 4 * j * size, values // 16 * 16
                    from_table(code_place + first, out_place + 4 * first, many, own_table, bits)
                    first, values = first + many, values - many
                _look_up(codes, first, values, tables, j * size, out)
            else:
                if in_registers and codes.itemsize == 2:
                    eights, to = values // LANES * LANES, out_place + 4 * first
                    own_fine, own_coarse = fine_place + 8 * j * width, coarse_place + 8 * j * blocks
                    at = code_place + 2 * first
                    from_registers(at, to, eights, own_fine, own_coarse, bits, np.float32(high[j]))
                    first, values = first + eights, values - eights
                if values > 0:
                    _multiply(codes, first, values, amax[leader + j], bits, fine, j * width, coarse, j * blocks, out)
            part += 1
            if part == across:
                row, part = row + 1, 0


decode_tiles = variant(_decode_tiles, "decode_tiles")
decode_tiles_portable = variant(
    _decode_tiles, "decode_tiles_portable", IN_REGISTERS=False, from_registers=_no_factors, from_table=_no_table
)
