"""Float32 operations on chains' results outside the tensor core: promotion, scales, alpha, the addend, splits of K."""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, kernel

from ..cast.nearest import round_bits

#: Operations of `join`, three bits each.
BITS, ROUND, ADD, ADD_AND_ROUND, FROM_ZERO = 3, 1, 2, 3, 4


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


@kernel
def _round_short(x, shift, half, keep, nan):
    """Round x as `round_bits` does for formats with float32's exponents; any NaN becomes `nan`."""
    u = bits32(x)
    r = np.uint32(np.uint32(np.uint32(u + half) + np.uint32(np.uint32(u >> shift) & np.uint32(1))) & keep)
    return float32_from_bits(nan if np.uint32(u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else r)


@kernel
def join(stack, size, top, operations, word):
    """Apply operations to a stack of `top` tiles of `size` float32 sums.

    The lowest bits of `operations` are the first operation. ``ROUND`` rounds the last tile, ``ADD`` replaces the last
    two by their sum, ``ADD_AND_ROUND`` rounds that sum, ``FROM_ZERO`` adds +0. `word` are the constants of `round_bits`
    as an array. A NaN of the tile may have any bits.
    """
    constants = (
        word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7], word[8], word[9], word[10]
    )  # fmt: skip
    shift, half, keep, nan = np.uint32(word[0] & np.uint32(31)), word[1], word[3], word[8]
    # No rule for subnormals, and the carry out of the largest number makes the result of an overflow.
    short = word[2] == 1 and word[4] == 0 and word[10] == 0 and word[6] + (np.int64(1) << shift) == word[7]
    while operations:
        operation = operations & 7
        x = stack[(top - 1) * size : top * size]
        if operation == FROM_ZERO:
            for j in range(size):
                x[j] = canonical(x[j] + np.float32(0))
        elif operation == ROUND:
            if short and (operations >> BITS) & 7 == ADD_AND_ROUND:  # both in one pass
                operations >>= BITS
                top -= 1
                total = stack[(top - 1) * size : top * size]
                for j in range(size):
                    total[j] = _round_short(
                        total[j] + _round_short(x[j], shift, half, keep, nan), shift, half, keep, nan
                    )
            elif short:
                for j in range(size):
                    x[j] = _round_short(x[j], shift, half, keep, nan)
            else:
                for j in range(size):
                    x[j] = float32_from_bits(round_bits(bits32(canonical(x[j])), constants))
        else:
            top -= 1
            total = stack[(top - 1) * size : top * size]
            if operation == ADD:
                for j in range(size):
                    total[j] = canonical(total[j] + x[j])
            elif short:
                for j in range(size):
                    total[j] = _round_short(total[j] + x[j], shift, half, keep, nan)
            else:
                for j in range(size):
                    total[j] = float32_from_bits(round_bits(bits32(canonical(total[j] + x[j])), constants))
        operations >>= BITS


@kernel
def gather_runs(x, runs, out):
    """Copy runs of elements of each row of `x` into `out`; `runs` has rows of (origin, destination, length)."""
    for i in range(x.shape[0]):
        row, into = x[i], out[i]
        for r in range(runs.shape[0]):
            origin, at = runs[r, 0], runs[r, 1]
            for j in range(runs[r, 2]):
                into[at + j] = row[origin + j]
