"""Tensor cores that scale runs of products inside the instruction: Blackwell's mxf4 and mxf4nvf4.

Runs of (16) products are summed exactly and unscaled; the run's sum times both scales' significands is one term, with
the exponent of the scales. The terms of a group and C are then summed as in `aligned.fused_dot`.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import kernel

from .aligned import COLUMNS, FAR, NONZERO, close_result, cut, open_result

U = np.uint32


class ScaledParts(NamedTuple):
    """An operand [R, K] and its scales [R, K / block], or both transposed."""

    value: Any  # int32: multiples of the format's smallest subnormal
    scale: Any  # int32: significand
    exponent: Any  # int32
    nan: Any  # bool


@kernel
def scaled_dot(a, b, rule, spans, result, state, start, stop):
    """Compute rows `start` to `stop` of ``D = A @ B.T + C``, groups chained in increasing k.

    It is one long function because its parts share buffers for a group's terms and exponents.

    Parameters
    ----------
    a, b : ScaledParts
        Fields of A [M, K], and of B transposed, [K, N].
    rule : Rule
        A run's term is worth ``sum * ma * mb * 2^(ea + eb - low_bits)``. A run without products, or with a zero scale,
        gives a zero term. A run that cancels to zero keeps its exponent.
    spans : (int, int)
        Products per exact sum, and codes per scale; of these and the group, each divides the next or is a multiple of
        it.
    result, state
        Arguments of `aligned.fused_dot`.
    """
    (low_bits, group, fraction_bits, align, zero_exponent), (run, scale_block) = rule, spans
    value_a, scale_a, exponent_a, nan_a = a
    value_b, scale_b, exponent_b, nan_b = b
    k = value_a.shape[1]
    n = state.shape[1]
    infinity, sign = result[3], result[4]
    runs = max((group + run - 1) // run, 1)
    left = max(np.int64(fraction_bits - low_bits), np.int64(0))
    places = np.int64(low_bits + left - fraction_bits)
    left_c = max(np.int64(fraction_bits - result[0]), np.int64(0))
    places_c = np.int64(result[0] + left_c - fraction_bits)
    term = np.empty((runs, COLUMNS), np.int64)
    e_term = np.empty((runs, COLUMNS), np.int32)
    some = np.empty(COLUMNS, np.bool_)
    for i in range(start, stop):
        for j0 in range(0, n, COLUMNS):
            width = min(COLUMNS, n - j0)
            d = state[i, j0 : j0 + width]
            for p0 in range(0, max(k, 1), group):
                count = 0
                for q0 in range(p0, min(p0 + group, k), run):
                    t, e_t = term[count], e_term[count]
                    count += 1
                    t[:width] = 0
                    some[:width] = False
                    for p in range(q0, min(q0 + run, k)):
                        v = np.int64(value_a[i, p])
                        if v != 0:
                            w = value_b[p, j0 : j0 + width]
                            for j in range(width):
                                t[j] += v * np.int64(w[j])
                                some[j] |= w[j] != 0
                    at = q0 // scale_block
                    s, x = np.int64(scale_a[i, at]), exponent_a[i, at]
                    m, y = scale_b[at, j0 : j0 + width], exponent_b[at, j0 : j0 + width]
                    for j in range(width):
                        scale = s * np.int64(m[j])
                        t[j] *= scale
                        e_t[j] = x + y[j] if some[j] and scale != 0 else FAR
                for j in range(width):
                    s_c, e_c, special = open_result(d[j], result)
                    c_bits = np.int64(d[j])
                    top = np.int64(e_c)
                    low = np.int64(e_c) if count == runs else np.int64(FAR)
                    for r in range(count):
                        top = max(top, np.int64(e_term[r, j]))
                        low = min(low, np.int64(e_term[r, j]))
                    if low < NONZERO:
                        top = max(top, np.int64(zero_exponent))
                    total = cut(s_c << left_c, min(top - e_c + places_c, np.int64(62)), align)
                    for r in range(count):
                        away = min(top - np.int64(e_term[r, j]) + places, np.int64(62))
                        total += cut(term[r, j] << left, away, align)
                    bits = close_result(total, top - fraction_bits, result)
                    nan = (c_bits & (sign - 1)) > infinity
                    for at in range(p0 // scale_block, (min(p0 + group, k) + scale_block - 1) // scale_block):
                        nan = nan or nan_a[i, at] or nan_b[at, j0 + j]
                    if nan:
                        bits = U(sign - 1)
                    elif special:
                        bits = d[j]
                    d[j] = bits
