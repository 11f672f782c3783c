"""Operands of bounds on the errors of chains: values, exponents of their lowest bits, and magnitudes of blocks of K."""

from typing import NamedTuple

import numpy as np

from lowprec._jit import bits64, float64_from_bits, kernel

NO_BITS = np.float32(8000)  # exponent of the lowest bit of a zero: no sum of two is below a unit


class Operand(NamedTuple):
    """An operand of chains: A [M, K] with blocks in columns, or B transposed, [K, N] with blocks in rows.

    Attributes
    ----------
    values : float64 array [M, K]
        Exact values.
    bits : float32 array [M, K]
        Exponents of the lowest bits of the values.
    tops, norms : float64 arrays [M, blocks]
        Largest power of two, and norm, of a block's numbers as the alignment reads them.
    lowest : float32 array [M, blocks]
        Smallest of `bits` in a block.
    scales : float64 array [M, blocks]
        Factors of the results of chains.
    """

    values: np.ndarray
    bits: np.ndarray
    tops: np.ndarray
    norms: np.ndarray
    lowest: np.ndarray
    scales: np.ndarray


class Scope(NamedTuple):
    """Products for chains in any order: magnitudes, values, squares [M, K], and largest powers [M, chains]."""

    sizes: np.ndarray
    values: np.ndarray
    squares: np.ndarray
    tops: np.ndarray


_EXPONENT = np.uint64(0x7FF << 52)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)


@kernel
def power_below(x):
    """Return the largest power of two that is at most x, for positive normal numbers; 0 for 0."""
    return float64_from_bits(bits64(x) & _EXPONENT)


@kernel
def exponent(power):
    """Return the exponent of a power of two."""
    return np.int64(bits64(power) >> np.uint64(52)) - 1023


@kernel
def _read_row(given, scale, large, normal, floor, values, powers, bits):
    """Write the exact values of a row, their magnitudes as powers of two, and the exponents of their lowest bits."""
    for k in range(given.size):
        x = np.float64(given[k])
        value, size = x * scale[k], max(max(abs(x), normal) * large[k], floor)
        power = power_below(size) if size < np.inf and x != 0 and large[k] != 0 else 0.0
        word = bits64(value)
        whole = word & _FRACTION | _HIDDEN
        low = np.float64(np.int64(whole & (~whole + np.uint64(1))))
        lowest = np.float32(exponent(abs(value)) - 52 + exponent(low))
        values[k], powers[k], bits[k] = value, power, lowest if 0.0 < abs(value) < np.inf else NO_BITS


@kernel
def _sum(x, start, count):
    """Return the sum of `count` numbers of x from index `start`, in eight interleaved sums."""
    if count < 8:
        total = 0.0
        for i in range(start, start + count):
            total += x[i]
        return total
    whole = count // 8 * 8
    a, b, c, d = x[start], x[start + 1], x[start + 2], x[start + 3]
    e, f, g, h = x[start + 4], x[start + 5], x[start + 6], x[start + 7]
    for i in range(start + 8, start + whole, 8):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
        e += x[i + 4]
        f += x[i + 5]
        g += x[i + 6]
        h += x[i + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(start + whole, start + count):
        total += x[i]
    return total


@kernel
def prepare(given, scale, large, rows_of_scale, normal, floor, edges, out, powers):
    """Write the arrays of an operand [R, K], but its `scales`.

    Parameters
    ----------
    given : float32 array [R, K]
        Values without scales.
    scale, large : float64 arrays [R / rows_of_scale, K]
        Scales, and the scales as the alignment reads them.
    normal, floor : float
        Smallest magnitudes that the alignment reads, of values, and of those with scales.
    edges : int64 array
        Edges of blocks of K.
    out : Operand
        Arrays [R, K] and [R, blocks].
    powers : float64 array [R, K] or empty
        Powers of two of the magnitudes that the alignment reads.
    """
    k = given.shape[1]
    sizes, squares = np.empty(k), np.empty(k)
    for i in range(given.shape[0]):
        at = i // rows_of_scale
        _read_row(given[i], scale[at], large[at], normal, floor, out.values[i], sizes, out.bits[i])
        if powers.size:
            powers[i] = sizes
        for p in range(k):
            square = max(abs(out.values[i, p]), sizes[p])
            squares[p] = square * square
        for b in range(edges.size - 1):
            start, stop = edges[b], edges[b + 1]
            largest, lowest = 0.0, 2 * NO_BITS
            for p in range(start, stop):
                largest, lowest = max(largest, sizes[p]), min(lowest, out.bits[i, p])
            out.norms[i, b], out.tops[i, b] = np.sqrt(_sum(squares, start, stop - start)), largest
            out.lowest[i, b] = lowest
