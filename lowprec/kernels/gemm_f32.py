"""Float32 matrix product in one fixed order, so that its bits depend on nothing but its inputs.

Every output is the chain ``acc = fma(a[i, k], b[j, k], acc)`` for k = 0, 1, 2, ... from +0 (or from C): one
rounding a step. Blocking and vectorisation run over rows and columns only and never touch that order.
"""

import numpy as np

from lowprec._jit import fma32, kernel

from .buffers import aligned_f32

PANEL = 256  # columns in one panel of packed B
DEPTH = 256  # k per pass: a panel's slice stays in the L2 cache while rows sweep over it


@kernel
def pack_panels(b, packed):
    """Lay B [N, K] out as panels of `PANEL` columns, each [K][PANEL]; the last is padded with zeros."""
    n, k = b.shape
    for j0 in range(0, n, 16):
        base = j0 // PANEL * PANEL * k + j0 % PANEL
        width = min(16, n - j0)
        for p in range(k):
            for j in range(width):
                packed[base + p * PANEL + j] = b[j0 + j, p]
            for j in range(width, 16):
                packed[base + p * PANEL + j] = np.float32(0)


@kernel
def pack_panels_transposed(bt, packed):
    """Do the same for B given as its transpose [K, N]: rows are copied as they are."""
    k, n = bt.shape
    for j0 in range(0, n, PANEL):
        width = min(PANEL, n - j0)
        padded = (width + 15) // 16 * 16
        for p in range(k):
            into = packed[j0 * k + p * PANEL : j0 * k + p * PANEL + padded]
            row = bt[p, j0 : j0 + width]
            for j in range(width):
                into[j] = row[j]
            for j in range(width, padded):
                into[j] = np.float32(0)


@kernel
def transpose(x, out):
    """Write ``out = x.T`` for x [R, C]: eight columns at a time, read in lines and written in eight streams.

    More streams would fall into one set of the L1 cache when R is a power of two.
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
def gemm_packed(a, packed, n, out, start, stop):
    """Accumulate rows `start` to `stop` of ``A @ B.T`` onto `out` [M, N], which holds C or zeros."""
    k = a.shape[1]
    acc = aligned_f32(4 * PANEL)
    for j0 in range(0, n, PANEL):
        width = min(PANEL, n - j0)
        padded = (width + 15) // 16 * 16
        panel = packed[j0 * k : (j0 + PANEL) * k]
        for p0 in range(0, k, DEPTH):
            p1 = min(p0 + DEPTH, k)
            for i0 in range(start, stop, 4):
                rows = min(4, stop - i0)
                for r in range(4):
                    for j in range(width):
                        acc[r * PANEL + j] = out[min(i0 + r, stop - 1), j0 + j]
                i1, i2, i3 = min(i0 + 1, stop - 1), min(i0 + 2, stop - 1), min(i0 + 3, stop - 1)
                acc0, acc1 = acc[:padded], acc[PANEL : PANEL + padded]
                acc2, acc3 = acc[2 * PANEL : 2 * PANEL + padded], acc[3 * PANEL : 3 * PANEL + padded]
                p = p0
                while p + 4 <= p1:
                    a00, a01, a02, a03 = a[i0, p], a[i0, p + 1], a[i0, p + 2], a[i0, p + 3]
                    a10, a11, a12, a13 = a[i1, p], a[i1, p + 1], a[i1, p + 2], a[i1, p + 3]
                    a20, a21, a22, a23 = a[i2, p], a[i2, p + 1], a[i2, p + 2], a[i2, p + 3]
                    a30, a31, a32, a33 = a[i3, p], a[i3, p + 1], a[i3, p + 2], a[i3, p + 3]
                    b0 = panel[p * PANEL : p * PANEL + padded]
                    b1 = panel[(p + 1) * PANEL : (p + 1) * PANEL + padded]
                    b2 = panel[(p + 2) * PANEL : (p + 2) * PANEL + padded]
                    b3 = panel[(p + 3) * PANEL : (p + 3) * PANEL + padded]
                    for j in range(padded):
                        x0, x1, x2, x3 = b0[j], b1[j], b2[j], b3[j]
                        acc0[j] = fma32(a03, x3, fma32(a02, x2, fma32(a01, x1, fma32(a00, x0, acc0[j]))))
                        acc1[j] = fma32(a13, x3, fma32(a12, x2, fma32(a11, x1, fma32(a10, x0, acc1[j]))))
                        acc2[j] = fma32(a23, x3, fma32(a22, x2, fma32(a21, x1, fma32(a20, x0, acc2[j]))))
                        acc3[j] = fma32(a33, x3, fma32(a32, x2, fma32(a31, x1, fma32(a30, x0, acc3[j]))))
                    p += 4
                while p < p1:
                    for r in range(4):
                        x = a[min(i0 + r, stop - 1), p]
                        for j in range(padded):
                            acc[r * PANEL + j] = fma32(x, panel[p * PANEL + j], acc[r * PANEL + j])
                    p += 1
                for r in range(rows):
                    for j in range(width):
                        out[i0 + r, j0 + j] = acc[r * PANEL + j]


@kernel
def packed_size(n, k):
    """Return how many floats `pack_panels` needs for B [n, k]."""
    return (n + PANEL - 1) // PANEL * PANEL * k


@kernel
def gemm_f32(a, b, out):
    """Compute ``out = A @ B.T`` serially: a [M, K], b [N, K], out [M, N], all float32 and contiguous in K."""
    packed = aligned_f32(packed_size(b.shape[0], b.shape[1]))
    pack_panels(b, packed)
    out[:, :] = np.float32(0)
    gemm_packed(a, packed, b.shape[0], out, 0, a.shape[0])
