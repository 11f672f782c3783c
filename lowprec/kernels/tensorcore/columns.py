"""CDNA3's sums for 128 columns of the result in float64 lanes: vectorized `reference.amd.floored_dot`.

With P = 2^E, the power of two of the largest product of a lane, a product in units of P 2^-F is p * (2^F / P): exact,
as are its truncation and sums of truncated products, which stay below 2^(F + 10) for groups of up to 256. All further
quantities are integers too: lanes aligned to the larger P, and the sum with C in units of T 2^-32, T the larger power
of products and C. F is at most 32, so that these stay below 2^44. The sum is rounded down to 31 bits below its leading
one, and its conversion to float32 is the only rounding.

Each operand comes with its power of two, 0 for a zero: the power of a product is the product of both, and zeros are
ignored. If any input is NaN or Inf, the result is not finite, and remains so, but may be the wrong special.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import bits64, float64_from_bits, kernel

from ..vectors import aligned_f64

COLUMNS = N = 128
STEP = 4  # products per step
MAX_FRACTION_BITS = 32
_SLICE = 32  # products, approximately, such that their part of a panel stays in a near cache while all rows use it
_EXPONENT = np.uint64(0x7FF << 52)
_LEAST = 2.0**-126
_NOTHING = 2.0**-900  # below the power of any product; 2^F divided by it is finite in float64


class Floors(NamedTuple):
    """Fields of an accumulator, and the layout of its operands."""

    lanes: int
    depth: int  # products per lane of a group, zero-padded to whole steps
    fraction_bits: int
    window: float  # C is dropped if its power of two is smaller than the largest one divided by this


class Dealt(NamedTuple):
    """Operands [R][groups][lanes][depth]: their values, and their powers of two."""

    values: Any
    powers: Any


@kernel
def deal(x, least, group, rule, dealt):
    """Assign the products of rows of x [R, K] cyclically to lanes; a subnormal's power of two is `least`."""
    lanes, depth = rule.lanes, rule.depth
    values, powers = dealt
    values[:] = 0.0
    powers[:] = 0.0
    for i in range(x.shape[0]):
        for p in range(x.shape[1]):
            g, t = p // group, p % group
            at = (g * lanes + t % lanes) * depth + t // lanes
            v = np.float64(x[i, p])
            values[i, at] = v
            if v != 0.0:
                powers[i, at] = max(_power(v), least)


@kernel
def turn(dealt, panels):
    """Pack dealt rows of B in panels, each [D][128]; the last one is padded."""
    for x, into in ((dealt.values, panels.values), (dealt.powers, panels.powers)):
        n, depth = x.shape
        for j in range((n + N - 1) // N * N):
            at = j // N * N * depth + j % N
            for p in range(depth):
                into[at + p * N] = x[j, p] if j < n else 0.0


@kernel
def floored_columns(a, b, rule, out):
    """Add A B^T to out [M, N] float32, group by group.

    `a` is dealt to lanes, `b` packed in panels. Many columns at a time amortize the checks that LLVM emits before
    loops.
    """
    lanes, depth, fraction_bits, window = rule
    m, n = out.shape
    whole = lanes * depth
    groups = a.values.shape[1] // whole
    chunk = max(_SLICE // whole, 1)
    scale = float64_from_bits(np.uint64(np.uint64(1023 + fraction_bits) << np.uint64(52)))
    finer = float64_from_bits(np.uint64(np.uint64(1023 + 32 - fraction_bits) << np.uint64(52)))
    state, dot, top = aligned_f64(N), aligned_f64(N), aligned_f64(N)
    total, power, units = aligned_f64(N), aligned_f64(N), aligned_f64(N)
    state[:] = 0.0
    for panel in range((n + N - 1) // N):
        j0 = panel * N
        width = min(N, n - j0)
        for g0 in range(0, groups, chunk):
            for i in range(m):
                row = out[i, j0 : j0 + width]
                for j in range(width):
                    state[j] = np.float64(row[j])
                for g in range(g0, min(g0 + chunk, groups)):
                    p0 = g * whole
                    at = (panel * groups * whole + p0) * N
                    x, z = a.values[i, p0 : p0 + whole], a.powers[i, p0 : p0 + whole]
                    y, w = b.values[at : at + whole * N], b.powers[at : at + whole * N]
                    _cut_products(x, z, y, w, 0, depth, scale, dot, top, units)
                    for lane in range(1, lanes):
                        _cut_products(x, z, y, w, lane * depth, depth, scale, total, power, units)
                        _join(total, power, dot, top)
                    _close(dot, top, scale, finer, window, state)
                for j in range(width):
                    row[j] = np.float32(state[j])


@kernel
def _cut_products(x, z, y, w, first, depth, scale, total, power, units):
    """Find the largest power of two of a lane's products, and sum them, truncated, in units of power / scale."""
    for j in range(N):
        power[j] = _NOTHING
        total[j] = 0.0
    for p in range(first, first + depth, STEP):
        z0, z1, z2, z3 = z[p], z[p + 1], z[p + 2], z[p + 3]
        v = w[p * N : (p + STEP) * N]
        for j in range(N):
            low, high = _larger(z0 * v[j], z1 * v[N + j]), _larger(z2 * v[2 * N + j], z3 * v[3 * N + j])
            power[j] = _larger(power[j], _larger(low, high))
    for j in range(N):
        units[j] = scale * _inverse(power[j])
    for p in range(first, first + depth, STEP):
        x0, x1, x2, x3 = x[p], x[p + 1], x[p + 2], x[p + 3]
        v = y[p * N : (p + STEP) * N]
        for j in range(N):
            unit = units[j]
            low = np.trunc(x0 * v[j] * unit) + np.trunc(x1 * v[N + j] * unit)
            total[j] += low + (np.trunc(x2 * v[2 * N + j] * unit) + np.trunc(x3 * v[3 * N + j] * unit))


@kernel
def _join(total, power, dot, top):
    """Add a lane's sum to the previous lanes', both rounded down at the larger power of two."""
    for j in range(N):
        both = _larger(top[j], power[j])
        inverse = _inverse(both)
        dot[j] = np.floor(dot[j] * (top[j] * inverse)) + np.floor(total[j] * (power[j] * inverse))
        top[j] = both


@kernel
def _close(dot, top, scale, finer, window, state):
    """Add the sums to C, all rounded down, and round to float32."""
    for j in range(N):
        c = state[j]
        of_c = _larger(_power(c), _LEAST)
        both = _larger(top[j], of_c)
        inverse = _inverse(both)
        s = np.floor(dot[j] * (top[j] * inverse * finer))
        joined = np.floor(c * (scale * inverse)) * finer
        s += joined if of_c * window >= both else 0.0
        quantum = _larger(_larger(_power(s) * 2.0**-31, 2.0**-125 * inverse), 1.0)
        s = np.floor(s * _inverse(quantum)) * quantum
        state[j] = np.float64(np.float32((s + 0.0) * (both * 2.0**-32)))  # -0 + 0 is +0


@kernel
def _power(x):
    """Return the power of two at or below a magnitude; 0 for 0 and for float64 subnormals."""
    return float64_from_bits(np.uint64(bits64(x) & _EXPONENT))


@kernel
def _inverse(power):
    """Return the inverse of a power of two."""
    return float64_from_bits(np.uint64(np.uint64(2046 << 52) - bits64(power)))


@kernel
def _larger(x, y):
    """Return the larger of two numbers."""
    return x if x > y else y
