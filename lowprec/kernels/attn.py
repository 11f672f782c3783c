"""Softmax over one tile of keys in float32: maxima, exponentials, row sums and rescaling, in the order of GPU kernels.

Arrays are float32 and C-contiguous: scores and probabilities [M, keys of a tile], outputs [M, D], one number per row
[M]. If `flush` is set, subnormal operands and results count as zero: nvcc's ``--use_fast_math`` implies ``-ftz=true``,
with which additions, products, fused multiply-adds, maxima and ``ex2.approx`` have the suffix ``.ftz``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, kernel
from lowprec.kernels.logfmt.rounded_log2 import exp2_rounded, log2_rounded

F, U = np.float32, np.uint32
_LEAST_NORMAL = F(2.0**-126)
_ROUND_DOWN_TO_INTEGER = F(12582912.0)  # 1.5 * 2^23: the ulp of numbers near it is 1


@kernel
def flushed(x: Any, flush: bool) -> Any:
    """Return a float32 number, or a zero of its sign if it is subnormal and `flush` is set."""
    return F(x * F(0)) if flush and abs(x) < _LEAST_NORMAL else x


@kernel
def mask_scores(scores: Any, first_key: int, low: Any, high: Any) -> None:
    """Set scores of keys outside ``[low, high)``, one pair of bounds per row, to -inf in place."""
    for i in range(scores.shape[0]):
        row = scores[i]
        for j in range(row.size):
            if not low[i] <= first_key + j < high[i]:
                row[j] = F(-np.inf)


@kernel
def raise_maxima(scores: Any, maxima: Any, flush: bool, out: Any) -> None:
    """Write the maximum of each row's scores and its maximum so far; NaN is ignored, as by fmaxf."""
    for i in range(scores.shape[0]):
        row, largest = scores[i], maxima[i]
        for j in range(row.size):
            x = flushed(row[j], flush)
            if x > largest or largest != largest:
                largest = x
        out[i] = largest


@kernel
def scale_and_shift(scores: Any, scale: Any, shifts: Any, fused: bool, flush: bool, out: Any) -> None:
    """Write ``scores * scale - shift``, rounded once if `fused`, else after each operation."""
    factor = flushed(scale, flush)
    for i in range(scores.shape[0]):
        row, into, shift = scores[i], out[i], flushed(shifts[i], flush)
        for j in range(row.size):
            x = flushed(row[j], flush)
            if fused:
                into[j] = flushed(fma32(x, factor, F(-shift)), flush)
            else:
                into[j] = flushed(F(flushed(F(x * factor), flush) - shift), flush)


@kernel
def multiply_add(a: Any, b: Any, c: Any, flush: bool, out: Any) -> None:
    """Write ``a * b + c``, rounded once, for one-dimensional arrays."""
    for i in range(out.size):
        out[i] = flushed(fma32(flushed(a[i], flush), flushed(b[i], flush), flushed(c[i], flush)), flush)


@kernel
def exp2(x: Any, out: Any, flush: bool) -> None:
    """Write 2**x, correctly rounded, for one-dimensional arrays."""
    for i in range(x.size):
        out[i] = flushed(exp2_rounded(x[i]), flush)


@kernel
def log2(x: Any, out: Any) -> None:
    """Write log2(x), correctly rounded, for one-dimensional arrays."""
    for i in range(x.size):
        out[i] = log2_rounded(x[i])


@kernel
def exp2_polynomial(x: Any, coefficients: Any, chosen: Any, out: Any) -> None:
    """Write 2**x by a polynomial in the fraction of x in the chosen columns of `out` [M, keys]; leave the others.

    Numbers below -127 and NaN first become -127, as by fmaxf. The floor of x is added to the exponent field of the
    polynomial's value: below -126 the result is a subnormal number or zero, and is not flushed.
    """
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if not chosen[j]:
                continue
            clamped = x[i, j] if x[i, j] > F(-127.0) else F(-127.0)
            whole = F(np.floor(clamped))
            fraction = F(clamped - whole)
            value = coefficients[coefficients.size - 1]
            for k in range(coefficients.size - 2, -1, -1):
                value = fma32(value, fraction, coefficients[k])
            shifted = U(U(bits32(F(whole + _ROUND_DOWN_TO_INTEGER))) << U(23))
            out[i, j] = float32_from_bits(U(shifted + U(bits32(value))))


@kernel
def sum_by_quad(p: Any, scales: Any, fused: bool, flush: bool, sums: Any) -> None:
    """Rescale the sums [M, 4] of a quad's threads and add a tile's probabilities in increasing order of keys.

    Thread t holds the keys 2t and 2t + 1 of every eight. If `fused`, its first key is added with the rescaling in one
    fused multiply-add.
    """
    for i in range(p.shape[0]):
        row = p[i]
        for t in range(4):
            total = F(0)
            for j in range(2 * t, row.size, 8):
                x = flushed(row[j], flush)
                if j == 2 * t and fused:
                    total = flushed(fma32(sums[i, t], scales[i], x), flush)
                elif j == 2 * t:
                    total = flushed(F(flushed(F(sums[i, t] * scales[i]), flush) + x), flush)
                else:
                    total = flushed(F(total + x), flush)
                if j + 1 < row.size:
                    total = flushed(F(total + flushed(row[j + 1], flush)), flush)
            sums[i, t] = total


@kernel
def sum_by_packed_pairs(p: Any, scales: Any, flush: bool, sums: Any) -> None:
    """Rescale the sums [M, 1] and add a tile's probabilities in eight chains, which packed additions join in pairs.

    Chain c adds the keys c, c + 8, c + 16 ...; chain 0 starts from the rescaled sum.
    """
    chains = np.empty(8, np.float32)
    for i in range(p.shape[0]):
        row = p[i]
        chains[:] = F(0)
        chains[0] = flushed(F(sums[i, 0] * scales[i]), flush)
        for j in range(row.size):
            chains[j % 8] = flushed(F(chains[j % 8] + flushed(row[j], flush)), flush)
        for width in (2, 4):
            for c in range(0, 8, 2 * width):
                for lane in range(2):
                    chains[c + lane] = flushed(F(chains[c + lane] + chains[c + width + lane]), flush)
        sums[i, 0] = flushed(F(chains[0] + chains[1]), flush)


@kernel
def rescale_rows(x: Any, scales: Any, flush: bool) -> None:
    """Multiply each row of x [M, D] by its scale in place."""
    for i in range(x.shape[0]):
        scale, row = flushed(scales[i], flush), x[i]
        for j in range(row.size):
            row[j] = flushed(F(flushed(row[j], flush) * scale), flush)


@kernel
def dot_rows(a: Any, b: Any, columns: int, flush: bool, out: Any) -> None:
    """Write the dot product of each row of a and b [M, D].

    Thread t adds the columns 8t to 8t + 7 of every `columns` by fused multiply-adds, after its first product; a
    butterfly adds the threads.
    """
    threads = np.empty(columns // 8, np.float32)
    for i in range(a.shape[0]):
        for t in range(threads.size):
            total = F(-0.0)  # of a sum without terms
            for start in range(8 * t, max(a.shape[1], 1) + 8 * t, columns):
                for j in range(start, start + 8):
                    x, y = (a[i, j], b[i, j]) if j < a.shape[1] else (F(0), F(0))
                    total = flushed(fma32(flushed(x, flush), flushed(y, flush), total), flush)
            threads[t] = total
        half = threads.size // 2
        while half:
            for t in range(half):
                threads[t] = flushed(F(threads[t] + threads[t + half]), flush)
            half //= 2
        out[i] = threads[0]
