"""The last step of a GEMM: scales, alpha and the addend, in float32."""

import numpy as np

from lowprec._jit import bits32, fma32, kernel


@kernel
def finish(total, scale_a, scale_b, alpha, out):
    """Do ``out = fma(alpha * (scale_a * scale_b), total, out)``; scales [M] and [N], total and out [M, N], float32."""
    m, n = out.shape
    for i in range(m):
        s = scale_a[i]
        for j in range(n):
            factor = np.float32(np.float32(s * scale_b[j]) * alpha)
            out[i, j] = fma32(factor, total[i, j], out[i, j])


@kernel
def all_positive(scale):
    """Tell whether all scales [rows, blocks] are positive and finite."""
    wrong = np.uint32(0)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            bits = np.uint32(bits32(scale[i, j]) - np.uint32(1))  # zeros, negative numbers, Inf and NaN come out large
            wrong |= np.uint32(bits >= np.uint32(0x7F7FFFFF))
    return wrong == np.uint32(0)
