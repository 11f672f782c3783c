"""Operand layouts of the fast tensor-core kernels: values, un-normalised exponents and sign masks of FP8 codes.

A is laid out by rows [padded M][padded K], B by panels of columns, each [padded K][panel]. Padding is zero, and
zeros carry an exponent so small that no product with them is ever the largest. Masks hold, for each group of
up to 32 products, the bits of its positive and of its negative nonzero operands.

NaN and Inf are laid out like numbers; the rows and columns that hold them are computed elsewhere.
"""

import numpy as np

from lowprec._jit import float32_from_bits, kernel

from .cast import decode_bits

U = np.uint32
ZERO_EXPONENT = np.int8(-64)  # of a zero operand: its products stay below -40 whatever the other operand
_SIDE = 64  # columns that are transposed at a time


@kernel
def _exponent(code, mantissa_bits, emin, magnitude):
    """Return the un-normalised exponent of a code: subnormals keep the smallest normal one."""
    a = U(code & magnitude)
    field = np.int32(U(a >> mantissa_bits))
    e = np.int8(max(field, np.int32(1)) + emin)
    return ZERO_EXPONENT if a == U(0) else e


@kernel
def pack_rows(codes, group, constants, layout, values, exponents, masks):
    """Lay out A's codes [M, K]: values and exponents [padded M, padded K], masks [padded M, 2 * groups].

    `constants` are `lowprec.cast.decode_constants`, `layout` is (mantissa bits, emin - 1, magnitude mask).
    """
    m, k = codes.shape
    shift, emin, magnitude = U(layout[0]), np.int32(layout[1]), U(layout[2])
    padded = values.shape[1]
    for i in range(values.shape[0]):
        v, e = values[i], exponents[i]
        inside = k if i < m else 0
        if i < m:
            row = codes[i]
            for p in range(k):
                v[p] = float32_from_bits(decode_bits(U(row[p]), constants))
            for p in range(k):
                e[p] = _exponent(U(row[p]), shift, emin, magnitude)
        for p in range(inside, padded):
            v[p] = np.float32(0)
            e[p] = ZERO_EXPONENT
        for g in range(masks.shape[1] // 2):
            positive = U(0)
            negative = U(0)
            for t in range(group):
                x = v[g * group + t]
                positive = U(positive | U(U(x > np.float32(0)) << U(t)))
                negative = U(negative | U(U(x < np.float32(0)) << U(t)))
            masks[i, 2 * g] = positive
            masks[i, 2 * g + 1] = negative


@kernel
def pack_panels(codes, panel, group, constants, layout, factor, padded_k, values, exponents, masks):
    """Lay out B's codes [N, K] in panels of `panel` columns (a multiple of 64), values multiplied by `factor`.

    values and exponents are flat, masks [panels * groups, 2, panel] flat or empty. Columns beyond the next multiple
    of 64 are left as they are: nobody reads them.
    """
    n, k = codes.shape
    shift, emin, magnitude = U(layout[0]), np.int32(layout[1]), U(layout[2])
    groups = padded_k // group
    turned = np.zeros((group, _SIDE), np.uint8)
    positive = np.empty(_SIDE, np.uint32)
    negative = np.empty(_SIDE, np.uint32)
    for j0 in range(0, n, _SIDE):
        width = min(_SIDE, n - j0)
        base = j0 // panel * panel * padded_k + j0 % panel
        if width < _SIDE:
            turned[:, :] = 0
        for g in range(groups):
            depth = min(group, max(k - g * group, 0))
            for j in range(width):
                row = codes[j0 + j]
                for t in range(depth):
                    turned[t, j] = row[g * group + t]
            for t in range(depth, group):
                turned[t, :] = 0
            positive[:] = U(0)
            negative[:] = U(0)
            for t in range(group):
                at = base + (g * group + t) * panel
                v, e, c = values[at : at + _SIDE], exponents[at : at + _SIDE], turned[t]
                bit = U(U(1) << U(t & 31))
                for j in range(_SIDE):
                    x = float32_from_bits(decode_bits(U(c[j]), constants))
                    v[j] = x * factor
                    positive[j] = U(positive[j] | (bit if x > np.float32(0) else U(0)))
                    negative[j] = U(negative[j] | (bit if x < np.float32(0) else U(0)))
                for j in range(_SIDE):
                    e[j] = _exponent(U(c[j]), shift, emin, magnitude)
            if masks.size:
                at = (j0 // panel * groups + g) * 2 * panel + j0 % panel
                masks[at : at + _SIDE] = positive
                masks[at + panel : at + panel + _SIDE] = negative
