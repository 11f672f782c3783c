"""The loops around `fused_tile_runs`: tensor cores that scale runs of 16 products inside the instruction.

`_portable_tile` does the tile's work in plain loops and default rounding, for every CPU: a term has at most 20
significant bits, so that it and its multiple by the power of two 1 / q are exact in float64, and its whole part is
below 2^53 as the tile's sums are.

As with `gemm_fused_f64`, outputs that are not finite mean nothing but that.
"""

import numpy as np

from lowprec._jit import cpu_features, kernel, set_rounding, variant

from ..buffers import aligned_f64
from .fused_pack_runs import A_BYTES, B_BYTES, RUN
from .fused_tile_runs import make_tile
from .gemm_fused_f64 import close_sums, open_sums
from .wide_sum import COLUMNS, ROWS, Shape

BATCH = 256  # rows that sweep over one slice of a panel
SLICE = 1024  # products after which the next rows get their turn
N = COLUMNS
RESULTS = ("normal", "float32")
tile, toward_zero = None, False  # what `variant` gives another meaning


def _gemm(a, b, groups, runs, fraction_bits, lowest, keep, c, use_c, out, first, columns, start, stop):
    """Compute rows `start` to `stop` and columns `first` to ``first + columns`` of ``D = A @ B.T + C``.

    a and b are uint8, from `fused_pack_runs`; the other arguments as for `gemm_fused_f64`.
    """
    chunk = max(SLICE // (runs * RUN), 1)
    state = aligned_f64(BATCH * COLUMNS)
    for r0 in range(start, stop, BATCH):
        r1 = min(r0 + BATCH, stop)
        for j0 in range(0, columns, COLUMNS):
            width, left = min(COLUMNS, columns - j0), first + j0
            state[:] = 0.0
            if use_c:
                for i in range(r0, r1):
                    for j in range(width):
                        state[(i - r0) * COLUMNS + j] = np.float64(c[i, left + j]) + 0.0  # -0 becomes +0
            if toward_zero:
                set_rounding(np.int32(0))
            for g0 in range(0, groups, chunk):
                count = min(chunk, groups - g0)
                panel = b[(j0 // COLUMNS * groups + g0) * runs * B_BYTES :]
                for i0 in range(r0, r1, ROWS):
                    quad = a[(i0 // ROWS * groups + g0) * runs * A_BYTES :]
                    d = state[(i0 - r0) * COLUMNS : (i0 - r0 + ROWS) * COLUMNS]
                    tile(quad, panel, d, count, runs, np.int32(fraction_bits), np.int32(lowest), np.int32(keep))
            if toward_zero:
                set_rounding(np.int32(1))
            for i in range(r0, r1):
                d = state[(i - r0) * COLUMNS : (i - r0 + 1) * COLUMNS]
                into = out[i, left : left + width]
                for j in range(width):
                    into[j] = np.float32(d[j])


def _portable_tile(a, b, state, groups, runs, fraction_bits, lowest, keep):
    """Do the tile's work in plain loops; B's scales come without the factor."""
    top, summed = np.empty(4 * N, np.int16), np.empty(N, np.int32)
    total, inverse = aligned_f64(4 * N), aligned_f64(4 * N)
    a_words, a_numbers = a.view(np.int32), a.view(np.float64)
    b_words, b_numbers, b_shorts = b.view(np.int32), b.view(np.float64), b.view(np.int16)
    for g in range(groups):
        top[:] = np.int16((lowest + np.int32(1023)) << np.int32(4))
        for run in range(g * runs, (g + 1) * runs):
            y = b_shorts[run * (B_BYTES // 2) + 384 : run * (B_BYTES // 2) + 416]
            z = b_shorts[run * (B_BYTES // 2) + 416 : run * (B_BYTES // 2) + 448]
            for r in range(ROWS):
                at = run * (A_BYTES // 4) + r
                e, bits = np.int16(a_words[at + 28]), np.int16(a_words[at + 32])
                t = top[r * N : (r + 1) * N]
                for j in range(N):
                    sum_e = np.int16(e + y[j])
                    t[j] = max(t[j], sum_e) if np.int16(bits & z[j]) != np.int16(0) else t[j]
        open_sums(state, top, fraction_bits, False, total, inverse)
        for run in range(g * runs, (g + 1) * runs):
            w = b_words[run * (B_BYTES // 4) : run * (B_BYTES // 4) + 4 * N]
            scale = b_numbers[run * (B_BYTES // 8) + 64 : run * (B_BYTES // 8) + 96]
            for r in range(ROWS):
                at = run * (A_BYTES // 4) + r
                summed[:] = a_words[at + 24]
                for t in range(4):
                    x = a_words[at + 4 * t]
                    x0, x1 = np.int32(x << np.int32(24)) >> np.int32(24), np.int32(x << np.int32(16)) >> np.int32(24)
                    x2, x3 = np.int32(x << np.int32(8)) >> np.int32(24), np.int32(x) >> np.int32(24)
                    line = w[t * N : (t + 1) * N]
                    for j in range(N):
                        summed[j] += _four(line[j], np.int32(x0), np.int32(x1), np.int32(x2), np.int32(x3))
                s = a_numbers[run * (A_BYTES // 8) + 8 + r]
                into, inv = total[r * N : (r + 1) * N], inverse[r * N : (r + 1) * N]
                for j in range(N):
                    into[j] += np.trunc(np.float64(summed[j]) * (s * scale[j]) * inv[j])
        close_sums(total, inverse, keep, False, state)


@kernel
def _four(word, x0, x1, x2, x3):
    """Return the sum of four products of A's elements and a word of B's."""
    mask = np.int32(0xFF)
    low = np.int32(x0 * np.int32(word & mask)) + np.int32(x1 * np.int32(np.int32(word >> np.int32(8)) & mask))
    high = np.int32(x2 * np.int32(np.int32(word >> np.int32(16)) & mask)) + np.int32(
        x3 * np.int32(np.int32(word >> np.int32(24)) & mask)
    )
    return np.int32(np.int32(low) + np.int32(high))


def _fast(result, lanes, embedded):
    shape = Shape(lanes, 2, embedded, interleaved=False, result=result)
    dots = embedded and "avx512vnni" in cpu_features()
    name = f"gemm_runs_{lanes}_{result}" + "_dot" * dots
    return variant(_gemm, name, tile=make_tile(shape, dots), toward_zero=not embedded)


gemm_avx512 = {result: _fast(result, 8, True) for result in RESULTS}
gemm_fma = {result: _fast(result, 4, False) for result in RESULTS}
gemm_portable = dict.fromkeys(RESULTS, variant(_gemm, "gemm_runs_portable", tile=variant(_portable_tile, "runs_tile")))
