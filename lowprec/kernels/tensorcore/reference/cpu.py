"""Dot-product instructions of CPUs, for any operands and any C: the reference loops that define the bits.

x86 (VDPBF16PS, AMX) rounds to nearest even and flushes: a subnormal operand counts as the zero of its sign, and so does
a result that is tiny *after* rounding, that is, with an unbounded exponent. Arm's BFDOT rounds to odd and flushes
(EBF = 0), or sums two products exactly before it rounds (EBF = 1). Arm's FP8 instructions round a group and C once.
"""

import numpy as np

from lowprec._jit import bits64, float64_from_bits, kernel

from .amd import flushed
from .exact import collapse, grow, round_to_odd, two_sum

L = np.uint64
_BELOW = L((1 << 29) - 1)  # bits of a float64 below the last bit of float32


@kernel
def exact64(x, y):
    """Return the float64 x + y rounded to odd, with IEEE 754's zeros, NaN and Inf."""
    head, tail = two_sum(x, y)
    if tail == 0.0 or head - head != 0.0:
        return head
    return round_to_odd(head, tail)


@kernel
def flushed_sum(x, y):
    """Return float64 x + y as float32, to nearest even; a tiny result becomes the zero of its sign."""
    total = exact64(x, y)
    if abs(total) < 2.0**-125:
        near = np.float32(total * 2.0**64)
        if abs(near) < np.float32(2.0**-62):
            return np.float32(total * 0.0)
        return np.float32(near * np.float32(2.0**-64))
    return np.float32(total)


@kernel
def flushed_fma(x, y, c):
    """Return float32 x * y + c, rounded once; subnormal operands and results are flushed."""
    return flushed_sum(np.float64(flushed(x)) * np.float64(flushed(y)), np.float64(flushed(c)))


@kernel
def flushed_fma_dot(a, b, group, state, start, stop):
    """Add products with fused multiply-adds, the last of each group first, for rows `start` to `stop`.

    Float32 values a [M, K], b [N, K], state [M, N]: C, then D. A short last group is zero-padded.
    """
    k = a.shape[1]
    for i in range(start, stop):
        for j in range(b.shape[0]):
            d = flushed(state[i, j])
            for p0 in range(0, max(k, 1), group):
                for p in range(p0 + group - 1, p0 - 1, -1):
                    x = a[i, p] if p < k else np.float32(0)
                    y = b[j, p] if p < k else np.float32(0)
                    d = flushed_fma(x, y, d)
            state[i, j] = d


@kernel
def lanes_dot(a, b, group, lanes, together, state, start, stop):
    """Deal the products of each group to chains from +0, and add their sum to C, for rows `start` to `stop`.

    Arrays are those of `flushed_fma_dot`. `together` products are assigned at a time. A single one is added by a fused
    multiply-add; several are each rounded to float32 and their sum is added.
    """
    k = a.shape[1]
    chains = np.empty(lanes, np.float32)
    for i in range(start, stop):
        for j in range(b.shape[0]):
            d = flushed(state[i, j])
            for p0 in range(0, max(k, 1), group):
                chains[:] = np.float32(0)
                for t in range(0, group, together):
                    lane = t // together % lanes
                    some = np.float32(0)
                    for p in range(p0 + t, min(p0 + t + together, p0 + group)):
                        x = a[i, p] if p < k else np.float32(0)
                        y = b[j, p] if p < k else np.float32(0)
                        if together == 1:
                            chains[lane] = flushed_fma(x, y, chains[lane])
                        else:
                            one = flushed_fma(x, y, np.float32(-0.0))
                            some = one if p == p0 + t else flushed_sum(np.float64(some), np.float64(one))
                    if together > 1:
                        chains[lane] = flushed_sum(np.float64(chains[lane]), np.float64(some))
                total = chains[0]
                for lane in range(1, lanes):
                    total = flushed_sum(np.float64(total), np.float64(chains[lane]))
                d = flushed_sum(np.float64(d), np.float64(total))
            state[i, j] = d


@kernel
def odd_sum(x, y):
    """Return float64 x + y as float32, rounded to odd; a subnormal becomes the zero of its sign, 2^128 and more Inf."""
    total = exact64(x, y)
    if total - total != 0.0 or abs(total) >= 2.0**128:
        return np.float32(total)
    if abs(total) < 2.0**-126:
        return np.float32(total * 0.0)
    u = bits64(total)
    cut = L(u & L(~_BELOW))
    if u & _BELOW:
        cut = L(cut | L(_BELOW + L(1)))
    return np.float32(float64_from_bits(cut))


@kernel
def odd_dot(a, b, group, state, start, stop):
    """Round every product, every sum of a group's products and every sum with C to odd, for rows `start` to `stop`.

    Arrays are those of `flushed_fma_dot`.
    """
    k = a.shape[1]
    for i in range(start, stop):
        for j in range(b.shape[0]):
            d = flushed(state[i, j])
            for p0 in range(0, max(k, 1), group):
                total = np.float32(0)
                for p in range(p0, p0 + group):
                    x = flushed(a[i, p]) if p < k else np.float32(0)
                    y = flushed(b[j, p]) if p < k else np.float32(0)
                    one = odd_sum(np.float64(x) * np.float64(y), -0.0)
                    total = one if p == p0 else odd_sum(np.float64(total), np.float64(one))
                d = odd_sum(np.float64(d), np.float64(total))
            state[i, j] = d


@kernel
def _exact_products(a, b, i, j, p0, p1, factor, first, parts):
    """Return the exact sum of products times a power of two and `first`, as a float64 rounded to odd.

    A zero is -0 only if every term is -0; NaN and Inf follow IEEE 754. `parts` is a buffer for one number more than
    there are products.
    """
    k = a.shape[1]
    parts[0] = first
    count, plain = 1, first
    for p in range(p0, p1):
        x = (np.float64(a[i, p]) * np.float64(b[j, p])) * factor if p < k else 0.0
        plain += x
        count = grow(parts, count, x)
    if plain - plain != 0.0:
        return plain
    total = collapse(parts, count)
    if total == 0.0:
        return plain if plain == 0.0 else 0.0
    return total


@kernel
def rounded_groups_dot(a, b, group, state, start, stop):
    """Round each group's exact sum to float32, then its sum with C, for rows `start` to `stop`; subnormals are kept.

    Arrays are those of `flushed_fma_dot`.
    """
    k = a.shape[1]
    parts = np.empty(group + 1, np.float64)
    for i in range(start, stop):
        for j in range(b.shape[0]):
            d = state[i, j]
            for p0 in range(0, max(k, 1), group):
                d = np.float32(d + np.float32(_exact_products(a, b, i, j, p0, p0 + group, 1.0, -0.0, parts)))
            state[i, j] = d


@kernel
def scaled_groups_dot(a, b, group, factor, layout, state, start, stop):
    """Round the exact sum of a group, times a power of two, and C once: rows `start` to `stop`.

    Parameters
    ----------
    a, b : [M, K], [N, K] float32
    group : int
    factor : float64
        Power of two that multiplies the products.
    layout : (float64, int, float64, float64)
        Smallest normal number of the results, their fraction bits, their largest number, and the overflow result: that
        or Inf.
    state : [M, N] float64
        C, then D.
    """
    k = a.shape[1]
    least, fraction_bits, largest, beyond = layout
    parts = np.empty(group + 1, np.float64)
    for i in range(start, stop):
        for j in range(b.shape[0]):
            d = state[i, j]
            for p0 in range(0, max(k, 1), group):
                total = _exact_products(a, b, i, j, p0, p0 + group, factor, d, parts)
                d = total
                if total - total == 0.0:
                    d = _nearest(total, least, fraction_bits)
                    if abs(d) > largest:
                        d = beyond if d > 0.0 else -beyond
            state[i, j] = d


@kernel
def _nearest(x, least, fraction_bits):
    """Round float64 x to `fraction_bits` fraction bits, to nearest even; the exponent is unbounded above."""
    power = float64_from_bits(L(bits64(max(abs(x), least)) & L(0x7FF0000000000000)))
    unit = power * 2.0**-fraction_bits
    return np.rint(x / unit) * unit
