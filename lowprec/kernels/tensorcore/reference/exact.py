"""Chains in float64: the exact sum of 8-bit products and C, rounded once, and the FP64 units of all vendors.

No hardware computes the exact sum. A product of two FP8 numbers is a multiple of 2^-32 below 2^32 * 4. The FPU splits
it at 1 (adding and subtracting 1.5 * 2^52); its integer part and its fraction are summed in two float64 numbers, both
exactly for K <= 2^18.
"""

import numpy as np

from lowprec._jit import bits64, float64_from_bits, intrinsic, kernel, types


@kernel
def two_sum(a, b):
    """Return float64 s, t with s + t = a + b exactly and s the rounded sum."""
    s = a + b
    bb = s - a
    return s, (a - (s - bb)) + (b - bb)


@kernel
def round_to_odd(head, tail):
    """Return head + tail rounded to odd in float64, |tail| <= ulp(head) / 2.

    Rounding the result again to 51 bits or fewer equals rounding the exact sum once.
    """
    if tail == 0.0 or head == 0.0:
        return head + tail
    u = bits64(head)
    if u & np.uint64(1):
        return head
    # `head` is even and inexact: the odd neighbour on the tail's side.
    if (tail > 0.0) == (head > 0.0):
        return float64_from_bits(u + np.uint64(1))
    return float64_from_bits(u - np.uint64(1))


@kernel
def grow(parts, count, x):
    """Add x exactly to a sum of `count` nonoverlapping float64 numbers, smallest first; return the new count."""
    kept = 0
    for t in range(count):
        x, rest = two_sum(x, parts[t])
        if rest != 0.0:
            parts[kept] = rest
            kept += 1
    parts[kept] = x
    return kept + 1


@kernel
def collapse(parts, count):
    """Return the sum of nonoverlapping float64 numbers as one float64, rounded to odd."""
    total = parts[0]
    for t in range(1, count):
        head, tail = two_sum(parts[t], total)
        total = round_to_odd(head, tail)
    return total


@kernel
def sum3_to_float32(x, y, z):
    """Return the exact x + y + z rounded once to float32 (nearest even)."""
    s, t = two_sum(x, y)
    u, v = two_sum(s, z)
    # x + y + z = u + v + t; combine the two tails into one number that preserves the rounding decision.
    w, r = two_sum(v, t)
    head, tail = two_sum(u, w)
    tail, rest = two_sum(tail, r)
    return np.float32(round_to_odd(head, round_to_odd(tail, rest)))


@kernel
def exact_dot(a, b, c, out, start, stop):
    """Compute rows `start` to `stop` of ``A @ B.T + C``: values a [M, K], b [N, K], c and out [M, N], float32.

    NaN and Inf among the values follow IEEE 754; a zero sum is +0.
    """
    n, k = b.shape
    magic = 1.5 * 2.0**52
    for i in range(start, stop):
        for j in range(n):
            whole = 0.0
            fraction = 0.0
            special = 0.0
            for p in range(k):
                product = np.float64(a[i, p]) * np.float64(b[j, p])
                special += product - product  # NaN as soon as a product is NaN or Inf
                part = (product + magic) - magic
                whole += part
                fraction += product - part
            c64 = np.float64(c[i, j])
            if special == 0.0 and c64 - c64 == 0.0:
                out[i, j] = sum3_to_float32(whole, fraction, c64) + np.float32(0)
            else:
                total = c64
                for p in range(k):
                    total += np.float64(a[i, p]) * np.float64(b[j, p])
                out[i, j] = np.float32(total)


def _fma64(typingctx, a, b, c):
    if (a, b, c) != (types.float64,) * 3:
        return None

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


fma64 = intrinsic(_fma64)  # a * b + c with one rounding


@kernel
def sequential64(a, b, state, start, stop):
    """Add rows `start` to `stop` of ``A @ B.T`` to `state` [M, N] in increasing k; a [M, K], b [K, N], float64."""
    for i in range(start, stop):
        d = state[i]
        for p in range(a.shape[1]):
            x = np.float64(a[i, p])
            y = b[p]
            for j in range(d.size):
                d[j] = fma64(x, y[j], d[j])
