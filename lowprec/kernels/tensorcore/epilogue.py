"""Float32 operations on chains' results outside the tensor core: promotion, scales, alpha, the addend, splits of K."""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, fma32, kernel

from ..cast.nearest import round_bits

#: Operations of `join`, three bits each: the computation, and in the lowest bit whether its result is rounded.
BITS, ROUND, ADD, SCALE, FMA = 3, 1, 2, 4, 6
#: Uses of a chain's sum: to continue it in units of the next scale, as a new sum, or as an addend of the last sum.
CONTINUE, PUSH, PROMOTE = 0, 1, 2


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
def load_tile(x, row, end, column, width, tile, panel):
    """Copy rows and columns of `x` to a tile of `panel` columns."""
    for i in range(row, end):
        source, into = x[i, column : column + width], tile[(i - row) * panel : (i - row) * panel + width]
        for j in range(width):
            into[j] = source[j]


@kernel
def store_tile(tile, panel, row, end, column, width, x):
    """Copy a tile to rows and columns of `x`, with canonical NaN."""
    for i in range(row, end):
        source, into = tile[(i - row) * panel : (i - row) * panel + width], x[i, column : column + width]
        for j in range(width):
            into[j] = canonical(source[j])


@kernel
def begin_stack(stack, levels, size, onto, factors, row, end, column, width, panel, out):
    """Initialize the first sum of a stack with the contents of `out` or +0; return the tile of factors above the stack.

    It is empty if `factors` is.
    """
    first, above = stack[:size], stack[levels * size : (levels + 1 if factors.size else levels) * size]
    first[:] = np.float32(0)
    if onto:
        load_tile(out, row, end, column, width, first, panel)
    if factors.size:
        load_tile(factors, row, end, column, width, above, panel)
    return above


@kernel
def is_short(word):
    """Return whether `round_short` rounds to a format: it has float32's exponents and no additional rules."""
    # No rule for subnormals, and the carry out of the largest number makes the result of an overflow.
    next_above_max = word[6] + (np.int64(1) << np.uint32(word[0] & np.uint32(31)))
    return word[2] == 1 and word[4] == 0 and word[10] == 0 and next_above_max == word[7]


@kernel
def round_number(x, word):
    """Round x as `round_bits` does for a format for which `is_short` is true; a NaN must be one of the format."""
    u = bits32(x)
    odd = np.uint32(np.uint32(u >> np.uint32(word[0] & np.uint32(31))) & np.uint32(1))
    return float32_from_bits(np.uint32(np.uint32(np.uint32(u + word[1]) + odd) & word[3]))


@kernel
def round_short(x, word):
    """Round x as `round_bits` does for a format for which `is_short` is true; any NaN becomes the format's."""
    return round_number(x, word) if x == x else float32_from_bits(word[8])


@kernel
def join(stack, size, top, operations, word, factors):
    """Apply operations to a stack of `top` tiles of `size` float32 sums.

    The lowest bits of `operations` are the first operation. ``ADD`` replaces the last two tiles by their sum, ``FMA``
    by ``factors * last + previous``; ``SCALE`` computes ``factors * last + 0``; empty `factors` are 1.
    ``ROUND``, alone or with one of these, rounds the result by `word`, the constants of `round_bits` as an array. A NaN
    may have any bits.
    """
    w = (
        word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7], word[8], word[9], word[10]
    )  # fmt: skip
    short = is_short(word)
    while operations:
        operation, rounds = operations & 6, operations & ROUND
        both = short and operations & 63 == ROUND | (ADD | ROUND) << BITS
        if both:
            operation, operations = ADD, operations >> BITS
        x = stack[(top - 1) * size : top * size]
        top -= (operation & ADD) // ADD
        total = stack[(top - 1) * size : top * size]
        if both:  # in one pass; both terms are rounded before, so that a NaN of their sum is one of the format
            for j in range(size):
                total[j] = round_number(total[j] + round_short(x[j], w), w)
            rounds = 0
        elif operation == ADD and rounds and short:
            for j in range(size):
                total[j] = round_short(total[j] + x[j], w)
            rounds = 0
        elif operation == ADD:
            for j in range(size):
                total[j] = total[j] + x[j]
        elif operation == FMA:
            for j in range(size):
                total[j] = fma32(factors[j], x[j], total[j])
        elif operation == SCALE and factors.size:
            for j in range(size):
                total[j] = fma32(factors[j], x[j], np.float32(0))
        elif operation == SCALE:
            for j in range(size):
                total[j] = x[j] + np.float32(0)
        if rounds and short:
            for j in range(size):
                total[j] = round_short(total[j], w)
        elif rounds:
            for j in range(size):
                total[j] = float32_from_bits(round_bits(bits32(canonical(total[j])), w))
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
