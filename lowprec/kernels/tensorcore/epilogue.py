"""Float32 operations on chains' results outside the tensor core: promotion, scales, alpha and the addend."""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, kernel


@kernel
def finish(total, scale_a, scale_b, alpha, out):
    """Compute ``out = fma(alpha * (scale_a * scale_b), total, out)``; scales [M], [N]; total, out [M, N]; float32."""
    m, n = out.shape
    for i in range(m):
        s = scale_a[i]
        for j in range(n):
            factor = np.float32(np.float32(s * scale_b[j]) * alpha)
            out[i, j] = fma32(factor, total[i, j], out[i, j])


@kernel
def all_positive(scale):
    """Return whether all scales [rows, blocks] are positive and finite."""
    wrong = np.uint32(0)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            bits = np.uint32(bits32(scale[i, j]) - np.uint32(1))  # zeros, negative numbers, Inf and NaN become large
            wrong |= np.uint32(bits >= np.uint32(0x7F7FFFFF))
    return wrong == np.uint32(0)


@kernel
def promote(partial, scale_a, scale_b, out):
    """Compute ``out = fma(scale_a * scale_b, partial, out)``: scales [M], [>= N]; partial, out [M, N]; float32."""
    m, n = out.shape
    for i in range(m):
        s = scale_a[i]
        for j in range(n):
            out[i, j] = fma32(np.float32(s * scale_b[j]), partial[i, j], out[i, j])


@kernel
def rescale(state, before_a, before_b, now_a, now_b, keep):
    """Convert a running sum [M, N] to units of the next block's scale, truncated to `keep` fraction bits."""
    m, n = state.shape
    clear = np.uint32(np.uint32(0xFFFFFFFF) << np.uint32(23 - keep))
    for i in range(m):
        for j in range(n):
            ratio = np.float32(before_a[i] * before_b[j]) / np.float32(now_a[i] * now_b[j])
            bits = bits32(state[i, j] * ratio)
            if np.uint32(bits & np.uint32(0x7FFFFFFF)) < np.uint32(0x7F800000):
                bits = np.uint32(bits & clear)
            state[i, j] = float32_from_bits(bits)


@kernel
def canonical(x):
    """Return float32 x, with NVIDIA's NaN 0x7FFFFFFF for any NaN, because CPUs differ in the NaN of a result."""
    return x if x == x else float32_from_bits(np.uint32(0x7FFFFFFF))


@kernel
def canonical_nan(x):
    """Make every NaN of `x` [M, N] canonical, in place."""
    m, n = x.shape
    for i in range(m):
        for j in range(n):
            if x[i, j] != x[i, j]:
                x[i, j] = canonical(x[i, j])
