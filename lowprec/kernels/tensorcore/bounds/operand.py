"""Operands of bounds on the errors of chains: values, exponents of their lowest bits, and magnitudes of blocks of K."""

from typing import NamedTuple

import numpy as np

from lowprec._jit import bits64, float64_from_bits, kernel

WIDTH = 64  # rows of an operand in a panel
NO_BITS = np.int16(8000)  # exponent of the lowest bit of a zero: no sum of two is below a unit


class Operand(NamedTuple):
    """Operand of chains in panels of `WIDTH` rows, each panel transposed; the last one is padded.

    Attributes
    ----------
    values : float64 array [panels, K, WIDTH]
        Exact values.
    bits : int16 array [panels, K, WIDTH]
        Exponents of the lowest bits of the values.
    tops, norms : float64 arrays [panels, blocks, WIDTH]
        Largest power of two, and norm, of a block's numbers as the alignment reads them.
    lowest : int16 array [panels, blocks, WIDTH]
        Smallest of `bits` in a block.
    scales : float64 array [panels, blocks, WIDTH]
        Factors of the results of chains.
    """

    values: np.ndarray
    bits: np.ndarray
    tops: np.ndarray
    norms: np.ndarray
    lowest: np.ndarray
    scales: np.ndarray


class Scope(NamedTuple):
    """Products for chains in any order: magnitudes, values, squares, and largest powers [panels, chains, WIDTH]."""

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
def prepare(given, scale, large, normal, floor, edges, out, powers):
    """Write the arrays of an operand, but its `scales`.

    Parameters
    ----------
    given : float32 array [panels, K, WIDTH]
        Values without scales.
    scale, large : float64 arrays [panels, K, WIDTH] or [1, 1, WIDTH]
        Scales, and the scales as the alignment reads them.
    normal, floor : float
        Smallest magnitudes that the alignment reads, of values, and of those with scales.
    edges : int64 array
        Edges of blocks of K.
    out : Operand
        Destination.
    powers : float64 array [panels, K, WIDTH] or [1, 1, WIDTH]
        Destination of the powers of two of the magnitudes that the alignment reads; a single row is not written.
    """
    sums = np.empty((9, WIDTH))  # eight interleaved sums of squares, then those of the rest
    size, largest, lowest = np.empty(WIDTH), np.empty(WIDTH), np.empty(WIDTH, np.int16)
    for panel in range(given.shape[0]):
        s = panel if scale.size > WIDTH else 0
        for b in range(edges.size - 1):
            start, stop = edges[b], edges[b + 1]
            whole = start + (stop - start) // 8 * 8
            sums[:], largest[:], lowest[:] = 0.0, 0.0, 2 * NO_BITS
            for k in range(start, stop):
                at, to = k if scale.size > WIDTH else 0, (k - start) % 8 if k < whole else 8
                if k == whole:
                    _join(sums)
                for i in range(WIDTH):
                    x, read = np.float64(given[panel, k, i]), large[s, at, i]
                    reads = max(max(abs(x), normal) * read, floor)
                    size[i] = power_below(reads) if reads < np.inf and x != 0 and read != 0 else 0.0
                    out.values[panel, k, i] = x * scale[s, at, i]
                for i in range(WIDTH):
                    value = out.values[panel, k, i]
                    whole_value = bits64(value) & _FRACTION | _HIDDEN
                    low = np.float64(np.int64(whole_value & (~whole_value + np.uint64(1))))
                    bit = np.int16(exponent(abs(value)) - 52 + exponent(low))
                    out.bits[panel, k, i] = bit if 0.0 < abs(value) < np.inf else NO_BITS
                for i in range(WIDTH):
                    largest[i], lowest[i] = max(largest[i], size[i]), min(lowest[i], out.bits[panel, k, i])
                    square = max(abs(out.values[panel, k, i]), size[i])
                    sums[to, i] += square * square
                if powers.size > WIDTH:
                    powers[panel, k] = size
            if whole == stop:
                _join(sums)
            out.tops[panel, b], out.lowest[panel, b], out.norms[panel, b] = largest, lowest, np.sqrt(sums[8])


@kernel
def _join(sums):
    """Write the total of eight interleaved sums to the ninth."""
    for i in range(WIDTH):
        a, b, c, d = sums[0, i], sums[1, i], sums[2, i], sums[3, i]
        e, f, g, h = sums[4, i], sums[5, i], sums[6, i], sums[7, i]
        sums[8, i] = ((a + b) + (c + d)) + ((e + f) + (g + h))
