"""Float32 matrix product in one fixed order, so that its bits depend only on its inputs.

Every output is the chain ``acc = fma(a[i, k], b[j, k], acc)`` for k = 0, 1, 2, ... from +0 (or from C): one rounding
per step. Blocking and vectorization apply to rows and columns only and never change that order. The NaN that an ``fma``
of two NaNs returns depends on LLVM's order of operands, so NaN results are replaced by the canonical NaN.
"""

import numpy as np

from lowprec._jit import bits32, cpu_features, float32_from_bits, fma32, kernel

from ...cast.nearest import round_bits
from ...vectors import aligned_f32
from ..epilogue import begin_stack, canonical, join, store_tile
from .tile import COLUMNS, make_f32_tile

DEPTH = 128  # k per pass: that slice of 64 columns stays in the L1 cache while rows sweep over it
BATCH = 128  # rows per sweep, with their sums in memory
JOINED = 64  # these rows if K is split: partial sums of several parts stay in the caches

# 32 vector registers hold 4 rows x 64 columns; with fewer or narrower registers, 16 columns at a time.
tile = make_f32_tile(16, 4) if "avx512f" in cpu_features() else make_f32_tile(8, 2)


@kernel
def pack_quads(a, quads):
    """Pack A [M, K] in quads of rows, each [K][4], the last one zero-padded."""
    m, k = a.shape
    for i in range(0, m // 4 * 4, 4):
        into = quads[i * k : (i + 4) * k]
        r0, r1, r2, r3 = a[i], a[i + 1], a[i + 2], a[i + 3]
        for p in range(k):
            into[4 * p] = r0[p]
            into[4 * p + 1] = r1[p]
            into[4 * p + 2] = r2[p]
            into[4 * p + 3] = r3[p]
    if m % 4:
        first = m // 4 * 4
        into = quads[first * k : (first + 4) * k]
        for p in range(k):
            for r in range(4):
                into[4 * p + r] = a[first + r, p] if first + r < m else np.float32(0)


@kernel
def pack_quads_transposed(at, start, stop, quads):
    """Pack the rows `start` to `stop` of an A given as its transpose [K, M] in quads, each [K][4]."""
    k, m = at.shape[0], stop - start
    whole = m // 16 * 16
    for i0 in range(0, whole, 16):
        q0, q1 = quads[i0 * k : (i0 + 4) * k], quads[(i0 + 4) * k : (i0 + 8) * k]
        q2, q3 = quads[(i0 + 8) * k : (i0 + 12) * k], quads[(i0 + 12) * k : (i0 + 16) * k]
        for p in range(k):
            row = at[p, start + i0 : start + i0 + 16]
            for r in range(4):
                q0[4 * p + r] = row[r]
                q1[4 * p + r] = row[4 + r]
                q2[4 * p + r] = row[8 + r]
                q3[4 * p + r] = row[12 + r]
    for i in range(whole, (m + 3) // 4 * 4):
        for p in range(k):
            quads[i // 4 * 4 * k + p * 4 + i % 4] = at[p, start + i] if i < m else np.float32(0)


@kernel
def pack_panels(b, panels):
    """Pack B [N, K] in panels of 64 columns, each [K][64], the last one zero-padded."""
    n, k = b.shape
    for j0 in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j0)
        panel = panels[j0 * k : (j0 + COLUMNS) * k]
        whole = width // 4 * 4
        for j in range(0, whole, 4):  # four rows at once: four of their numbers are one store
            r0, r1, r2, r3 = b[j0 + j], b[j0 + j + 1], b[j0 + j + 2], b[j0 + j + 3]
            for p in range(k):
                panel[p * COLUMNS + j] = r0[p]
                panel[p * COLUMNS + j + 1] = r1[p]
                panel[p * COLUMNS + j + 2] = r2[p]
                panel[p * COLUMNS + j + 3] = r3[p]
        for j in range(whole, width):
            row = b[j0 + j]
            for p in range(k):
                panel[p * COLUMNS + j] = row[p]
        if width < COLUMNS:
            for p in range(k):
                for j in range(width, COLUMNS):
                    panel[p * COLUMNS + j] = np.float32(0)


@kernel
def pack_panels_transposed(bt, panels):
    """Pack a B given as its transpose [K, N] in panels, each [K][64]: rows are copied."""
    k, n = bt.shape
    for j0 in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j0)
        panel = panels[j0 * k : (j0 + COLUMNS) * k]
        for p in range(k):
            row, into = bt[p, j0 : j0 + width], panel[p * COLUMNS : (p + 1) * COLUMNS]
            for j in range(width):
                into[j] = row[j]
            for j in range(width, COLUMNS):
                into[j] = np.float32(0)


@kernel
def transpose(x, out):
    """Write ``out = x.T`` for x [R, C]: eight columns at a time, read by cache lines and written in eight streams.

    More streams would map to one set of the L1 cache if R is a power of two.
    """
    rows, columns = x.shape
    whole = columns // 8 * 8
    for c in range(0, whole, 8):
        o0, o1, o2, o3 = out[c], out[c + 1], out[c + 2], out[c + 3]
        o4, o5, o6, o7 = out[c + 4], out[c + 5], out[c + 6], out[c + 7]
        for i in range(rows):
            row = x[i]
            o0[i], o1[i], o2[i], o3[i] = row[c], row[c + 1], row[c + 2], row[c + 3]
            o4[i], o5[i], o6[i], o7[i] = row[c + 4], row[c + 5], row[c + 6], row[c + 7]
    for c in range(whole, columns):
        for i in range(rows):
            out[c, i] = x[i, c]


@kernel
def _chains(quads, panels, k, first, stop, r0, r1, j0, width, state):
    """Add products `first` to `stop` of rows r0 to r1 and the panel at column j0 to `state`, [r1 - r0][64]."""
    whole = first + (stop - first) // 4 * 4
    a_at, b_at, state_at = quads.ctypes.data, panels.ctypes.data, state.ctypes.data
    for p0 in range(first, whole, DEPTH):
        steps = min(DEPTH, whole - p0)
        for i0 in range(r0, r1, 4):
            tile(
                a_at + (i0 * k + p0 * 4) * 4,
                b_at + (j0 * k + p0 * COLUMNS) * 4,
                state_at + (i0 - r0) * COLUMNS * 4,
                steps,
            )
    # Not by padding: a step with zeros would turn -0 into +0.
    for p in range(whole, stop):
        line = panels[j0 * k + p * COLUMNS : j0 * k + (p + 1) * COLUMNS]
        for i in range(r0, r1):
            x = quads[i // 4 * 4 * k + p * 4 + i % 4]
            sums = state[(i - r0) * COLUMNS : (i - r0 + 1) * COLUMNS]
            for j in range(width):
                sums[j] = fma32(x, line[j], sums[j])


@kernel
def gemm_packed(quads, panels, k, out, start, stop):
    """Add rows `start` (a multiple of 4) to `stop` of ``A @ B.T`` to `out` [M, N], which contains C or zeros."""
    n = out.shape[1]
    state = aligned_f32(BATCH * COLUMNS)
    state[:] = np.float32(0)
    for r0 in range(start, stop, BATCH):
        r1 = min(r0 + BATCH, stop)
        for j0 in range(0, n, COLUMNS):
            width = min(COLUMNS, n - j0)
            for i in range(r0, r1):
                row, sums = out[i, j0 : j0 + width], state[(i - r0) * COLUMNS : (i - r0) * COLUMNS + width]
                for j in range(width):
                    sums[j] = row[j]
            _chains(quads, panels, k, 0, k, r0, r1, j0, width, state)
            for i in range(r0, r1):
                row, sums = out[i, j0 : j0 + width], state[(i - r0) * COLUMNS : (i - r0) * COLUMNS + width]
                for j in range(width):
                    row[j] = canonical(sums[j])


@kernel
def gemm_packed_rounded(quads, panels, k, constants, out, start, stop):
    """Write rows `start` (a multiple of 4) to `stop` of ``A @ B.T``, rounded to a format by its constants.

    `out` [M, N] need not be initialized.
    """
    n = out.shape[1]
    state = aligned_f32(BATCH * COLUMNS)
    for r0 in range(start, stop, BATCH):
        r1 = min(r0 + BATCH, stop)
        for j0 in range(0, n, COLUMNS):
            width = min(COLUMNS, n - j0)
            state[:] = np.float32(0)
            _chains(quads, panels, k, 0, k, r0, r1, j0, width, state)
            for i in range(r0, r1):
                row, sums = out[i, j0 : j0 + width], state[(i - r0) * COLUMNS : (i - r0) * COLUMNS + width]
                for j in range(width):
                    row[j] = float32_from_bits(round_bits(bits32(canonical(sums[j])), constants))


@kernel
def gemm_packed_joined(quads, panels, k, plan, runs, word, onto, factors, out, start, stop):
    """Write rows `start` (a multiple of 4) to `stop` of a product; `epilogue.join` joins its chains.

    Row i of `plan` has the end of chain i, the number of sums on the stack with it, ``PUSH``, and the operations that
    follow. Chains are consecutive in `runs`, with rows of (first k, place in the chains, length). With `onto`, the
    first sum on the stack is the contents of `out`.
    """
    n, size, levels = out.shape[1], JOINED * COLUMNS, plan[:, 1].max()
    stack = aligned_f32((levels + 1 if factors.size else levels) * size)
    for j0 in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j0)
        for r0 in range(start, stop, JOINED):
            r1, first, run = min(r0 + JOINED, stop), 0, 0
            used = (r1 - r0 + 3) // 4 * 4 * COLUMNS
            above = begin_stack(stack, levels, used, onto, factors, r0, r1, j0, width, COLUMNS, out)
            for i in range(plan.shape[0]):
                end, top = plan[i, 0], plan[i, 1]
                state = stack[(top - 1) * used : top * used]
                state[:] = np.float32(0)
                while first < end:
                    shift, after = runs[run, 0] - runs[run, 1], runs[run, 1] + runs[run, 2]
                    to = min(end, after)
                    _chains(quads, panels, k, first + shift, to + shift, r0, r1, j0, width, state)
                    first, run = to, run + (to == after)
                join(stack, used, top, plan[i, 3], word, above)
            store_tile(stack, COLUMNS, r0, r1, j0, width, out)
