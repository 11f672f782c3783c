"""Groups of FP8 products in float32 lanes and the default rounding, at the speed of an ordinary float32 GEMM.

One group of L products and C is added like this: E is the largest exponent among the nonzero terms, every
term is truncated toward zero to a multiple of q = 2^(E - F), the sum is exact, and the result is truncated
to the accumulator's fraction bits. The float32 FPU does nearly all of it:

* The running sum is kept as M + S with M = 1.5 * 2^23 * q, so that its unit in the last place is q as long as
  |S| < 2^22 q: adding t to it in the default rounding rounds t to the nearest multiple of q.
* A product of two FP8 numbers has at most 8 significant bits. So p / q = n + f with f <= 1 - 2^-8: for
  |p| >= 2^7 q, f = 0; below, f is a multiple of 2^-8. Taking 255/512 q from its magnitude first leaves
  n + (f - 255/512) with |f - 255/512| < 1/2, whose nearest integer is n: truncation. The subtraction is exact,
  or harmless for |p| < q/2: its bits run from 2^(F + 1) q (un-normalised products are below 4 * 2^E) down to
  2^-9 q, which is F + 11 <= 24 bits for F <= 13.
* |S| <= (L * 4 * 2^F + 2^(F + 1)) q < 2^22 q for L <= 64 and F = 13.
* C, with up to 24 significant bits, is truncated by masking its bits instead.
* v = S is exact, and truncating it to `keep` fraction bits clears its low 23 - keep bits. S = 0 gives +0.

Operands are finite codes with exponents in -16..15; C (and with it every intermediate result) is zero or has
an exponent in -100..110. What is outside is the caller's to send elsewhere.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, kernel

from ..vectors import aligned_f32, aligned_i8
from .gemm import make_gemm

U = np.uint32
PANEL = 256  # columns in one panel of packed B
BATCH = 128  # rows that sweep over one slice of a panel while it stays in the L2 cache
NO_PRODUCT = -40  # every nonzero product has a larger exponent (>= -32)


@kernel
def _sweep(a, b, state, place, sums, groups):
    """Add a block's products onto the running sums: A laid out by rows, B in panels, without masks.

    It is one function of some length because its loops are short, a microsecond for a group: LLVM does not inline
    callees that are already vectorised, and calls with so many arrays would show.
    """
    k, group = groups * sums.group, sums.group
    acc, bias, top = aligned_f32(4 * PANEL), aligned_f32(4 * PANEL), aligned_i8(4 * PANEL)
    clear = U(U(0xFFFFFFFF) << U(23 - sums.keep))
    fraction_bits = np.int32(sums.fraction_bits)
    drop_all = np.int32(23 - sums.fraction_bits)
    padded = (place.width + 63) // 64 * 64
    for i0 in range(place.row, place.end, 4):
        last = place.end - 1
        at0, at1, at2, at3 = i0 * k, min(i0 + 1, last) * k, min(i0 + 2, last) * k, min(i0 + 3, last) * k
        held = state[(i0 - place.row) * PANEL : (i0 - place.row + 4) * PANEL]
        for p0 in range(place.group * group, place.stop * group, group):
            # 1. The largest exponent of the group's products, 64 columns to a vector.
            t0, t1 = top[:padded], top[PANEL : PANEL + padded]
            t2, t3 = top[2 * PANEL : 2 * PANEL + padded], top[3 * PANEL : 3 * PANEL + padded]
            for j in range(padded):
                t0[j] = t1[j] = t2[j] = t3[j] = np.int8(-128)
            for p in range(p0, p0 + group, 4):
                at = (place.column * k) + p * PANEL
                x0 = b.exponents[at : at + padded]
                x1 = b.exponents[at + PANEL : at + PANEL + padded]
                x2 = b.exponents[at + 2 * PANEL : at + 2 * PANEL + padded]
                x3 = b.exponents[at + 3 * PANEL : at + 3 * PANEL + padded]
                e00, e01, e02, e03 = _four(a.exponents, at0 + p)
                e10, e11, e12, e13 = _four(a.exponents, at1 + p)
                e20, e21, e22, e23 = _four(a.exponents, at2 + p)
                e30, e31, e32, e33 = _four(a.exponents, at3 + p)
                for j in range(padded):
                    t0[j] = max(t0[j], _top4(e00, e01, e02, e03, x0[j], x1[j], x2[j], x3[j]))
                    t1[j] = max(t1[j], _top4(e10, e11, e12, e13, x0[j], x1[j], x2[j], x3[j]))
                    t2[j] = max(t2[j], _top4(e20, e21, e22, e23, x0[j], x1[j], x2[j], x3[j]))
                    t3[j] = max(t3[j], _top4(e30, e31, e32, e33, x0[j], x1[j], x2[j], x3[j]))
            # 2. C joins: E, the truncated C on top of M, and the bias of 255/512 q.
            for r in range(4):
                t = top[r * PANEL : r * PANEL + padded]
                d = held[r * PANEL : r * PANEL + padded]
                m = acc[r * PANEL : r * PANEL + padded]
                h = bias[r * PANEL : r * PANEL + padded]
                for j in range(padded):
                    bits = bits32(d[j])
                    e_c = np.int32(U(U(bits >> U(23)) & U(0xFF)))
                    e_p = np.int32(t[j]) + np.int32(127)
                    e_p = e_p if e_p > np.int32(NO_PRODUCT + 127) else np.int32(20)
                    e = max(e_p, e_c)
                    drop = np.int32(e - e_c) + drop_all
                    kept = U(bits & U(U(0xFFFFFFFF) << U(min(drop, np.int32(23)))))
                    kept = kept if drop < np.int32(24) else U(0)
                    q = np.int32(e - fraction_bits)  # biased exponent of the quantum
                    m[j] = float32_from_bits(U(U(U(q + np.int32(23)) << U(23)) | U(0x400000))) + (
                        float32_from_bits(kept)
                    )
                    h[j] = float32_from_bits(U(U(U(q - np.int32(2)) << U(23)) | U(0x7F0000)))
            # 3. The products: 255/512 q toward zero, then added at the quantum q.
            m0, m1 = acc[:padded], acc[PANEL : PANEL + padded]
            m2, m3 = acc[2 * PANEL : 2 * PANEL + padded], acc[3 * PANEL : 3 * PANEL + padded]
            h0, h1 = bias[:padded], bias[PANEL : PANEL + padded]
            h2, h3 = bias[2 * PANEL : 2 * PANEL + padded], bias[3 * PANEL : 3 * PANEL + padded]
            for p in range(p0, p0 + group, 4):
                at = (place.column * k) + p * PANEL
                b0 = b.values[at : at + padded]
                b1 = b.values[at + PANEL : at + PANEL + padded]
                b2 = b.values[at + 2 * PANEL : at + 2 * PANEL + padded]
                b3 = b.values[at + 3 * PANEL : at + 3 * PANEL + padded]
                a00, a01, a02, a03 = _four(a.values, at0 + p)
                a10, a11, a12, a13 = _four(a.values, at1 + p)
                a20, a21, a22, a23 = _four(a.values, at2 + p)
                a30, a31, a32, a33 = _four(a.values, at3 + p)
                for j in range(padded):
                    x0, x1, x2, x3 = b0[j], b1[j], b2[j], b3[j]
                    m0[j] = _add4(m0[j], bits32(h0[j]), a00 * x0, a01 * x1, a02 * x2, a03 * x3)
                    m1[j] = _add4(m1[j], bits32(h1[j]), a10 * x0, a11 * x1, a12 * x2, a13 * x3)
                    m2[j] = _add4(m2[j], bits32(h2[j]), a20 * x0, a21 * x1, a22 * x2, a23 * x3)
                    m3[j] = _add4(m3[j], bits32(h3[j]), a30 * x0, a31 * x1, a32 * x2, a33 * x3)
            # 4. Off with M (its bits follow from the bias's exponent), and truncate.
            for r in range(4):
                d = held[r * PANEL : r * PANEL + padded]
                m = acc[r * PANEL : r * PANEL + padded]
                h = bias[r * PANEL : r * PANEL + padded]
                for j in range(padded):
                    q2 = U(bits32(h[j]) >> U(23))
                    base = float32_from_bits(U(U(U(q2 + U(25)) << U(23)) | U(0x400000)))
                    d[j] = float32_from_bits(U(bits32(m[j] - base) & clear))


@kernel
def _four(row, p):
    """Return four consecutive numbers."""
    return row[p], row[p + 1], row[p + 2], row[p + 3]


@kernel
def _top4(a0, a1, a2, a3, b0, b1, b2, b3):
    """Return the largest of four products' exponents."""
    low = max(np.int8(a0 + b0), np.int8(a1 + b1))
    return max(low, max(np.int8(a2 + b2), np.int8(a3 + b3)))


@kernel
def _add4(acc, bias, p0, p1, p2, p3):
    """Add four products, each truncated to the accumulator's quantum."""
    sign = U(0x80000000)
    acc = acc + (p0 - float32_from_bits(U(bias | U(bits32(p0) & sign))))
    acc = acc + (p1 - float32_from_bits(U(bias | U(bits32(p1) & sign))))
    acc = acc + (p2 - float32_from_bits(U(bias | U(bits32(p2) & sign))))
    return acc + (p3 - float32_from_bits(U(bias | U(bits32(p3) & sign))))


gemm_portable = make_gemm("gemm_narrow_portable", _sweep, PANEL, BATCH, aligned_f32, toward_zero=False)
