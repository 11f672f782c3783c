"""Casts to and from formats that are a table of values, and casts with given random words.

A deterministic rounding is a step function of the number, so a table's codes follow from thresholds: numbers are
compared as order-preserving integers (`_key32`, `_key64`), and `lowprec.cast.tables` computes the thresholds from the
rounding and the policy. Stochastic rounding compares integers, in a unit in which every random fraction of every gap is
an integer.
"""

import numpy as np

from lowprec._jit import bits32, bits64, kernel, shift_left, shift_right

from .rounding import encode_word, encode_word64, random_part

U = np.uint32
U64 = np.uint64
SIGN32, SIGN64 = U(0x80000000), U64(1 << 63)


@kernel
def _key32(u):
    """Return an order-preserving integer for a float32, given as its bits: NaNs outermost, -0 before +0."""
    return U(~u) if u >= SIGN32 else U(u | SIGN32)


@kernel
def _key64(u):
    return U64(~u) if u >= SIGN64 else U64(u | SIGN64)


@kernel
def _passed(thresholds, low, high, key):
    """Return the number of sorted thresholds <= the key, known to be between `low` and `high`."""
    while low < high:
        middle = (low + high) >> 1
        if thresholds[middle] <= key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def encode32_steps(x, out, buckets, codes, shift):
    """Encode contiguous float32 `x` if every bucket of leading bits contains at most one step of the code.

    A bucket contains the rank of its first code, shifted by `shift` bits, and in the low bits an addend that makes the
    low bits of a number carry into the rank from the step onwards.
    """
    by = U(shift & U(31))
    below = U(U(U(1) << by) - U(1))
    for i in range(x.size):
        u = bits32(x[i])
        out[i] = codes[U(U(buckets[U(u >> by)] + U(u & below)) >> by)]


@kernel
def _log2(d):
    """Return floor(log2 d) + 127 of an integer from 1 to 2^24."""
    return U(bits32(np.float32(np.int32(d))) >> U(23))


@kernel
def _encode_hif8(u, limits, even):
    """Return the HiF8 code of a float32, given as its bits, rounded to nearest; overflow is reduced to `clamp`.

    The fraction has 3 bits up to an exponent of +-3, then 2, 1 and none: d, the magnitude of the exponent, determines
    the position of the rounding. A carry into the next binade leaves a zero fraction. Values from `smallest` to 2^-22
    count as `least`, about 1.5 * 2^-23. Ties go to the even code if `even` is 1 (without fraction bits, its last bit is
    the exponent's), away from zero if it is 0.
    """
    smallest, least, clamp, nan = limits
    a = U(u & U(0x7FFFFFFF))
    c = min(max(a, least), clamp)
    e = U(c >> U(23))
    d = U(max(e, U(127)) - min(e, U(127)))
    half = U(_log2(U(d | U(3))) - U(109))
    r = U(U(c + shift_left(U(1), half)) - U(even & U(~shift_right(c, U(half + U(1))))))
    e = U(r >> U(23))
    d = U(max(e, U(127)) - min(e, U(127)))
    prefix = _log2(U(d | U(3)))
    below = U(8) if e < U(127) else U(0)
    digits = shift_right(U(U(d << U(23)) | U(r & U(0x7FFFFF))), U(prefix - U(108)))
    code = U(U(U(prefix << U(5)) + digits) + U(U(below << U(1)) - U(16 + 127 * 32)))
    code = U(code - U(below + U(8))) if d < U(2) else code
    code = U(e - U(104)) if e < U(112) else code
    code = U(code | U(U(u >> U(24)) & U(0x80)))
    code = code if a >= smallest else U(0)
    return nan if a > U(0x7F800000) else code


@kernel
def encode32_hif8(x, out, limits, even):
    """Encode contiguous float32 `x` in HiF8: vectorized equivalent of `encode32_steps`."""
    if even:
        for i in range(x.size):
            out[i] = _encode_hif8(bits32(x[i]), limits, U(1))
    else:
        for i in range(x.size):
            out[i] = _encode_hif8(bits32(x[i]), limits, U(0))


@kernel
def encode32_thresholds(x, out, thresholds, starts, codes):
    """Encode contiguous float32 `x`; `starts` counts the thresholds below each value of the leading 16 bits."""
    for i in range(x.size):
        key = _key32(bits32(x[i]))
        b = np.intp(key >> U(16))
        out[i] = codes[_passed(thresholds, np.intp(starts[b]), np.intp(starts[b + 1]), key)]


@kernel
def encode64_thresholds(x, out, thresholds, starts, codes):
    """Encode contiguous float64 `x`, as `encode32_thresholds`."""
    for i in range(x.size):
        key = _key64(bits64(x[i]))
        b = np.intp(key >> U64(48))
        out[i] = codes[_passed(thresholds, np.intp(starts[b]), np.intp(starts[b + 1]), key)]


@kernel
def decode_table(codes, out, values):
    """Decode contiguous codes that are in range of the table."""
    for i in range(codes.size):
        out[i] = values[codes[i]]


@kernel
def _goes_up(distance, sticky, gap, word, bits, variant):
    """Return whether P3109's StochasticA, B or C (0, 1, 2) rounds away, by a random word's leading bits.

    The number is `distance` units above the value nearer to zero, plus a part of a unit if `sticky`; the next value is
    `gap` units above it, a multiple of 2^(bits + 1).
    """
    r = np.int64(U(word >> U(U(32) - U(bits))))
    full = np.int64(1) << bits
    if variant == 0:
        return distance >= (full - r) * (gap >> bits)
    half = gap >> (bits + 1)
    if variant == 1:
        return distance >= (2 * full - 2 * r - 1) * half
    needed = full - r
    tie = (2 * needed - 1) * half
    return distance > tie or (distance == tie and (sticky or needed & 1 == 0))


@kernel
def encode64_random(x, out, grid, words, bits, variant):
    """Encode contiguous float64 `x` with stochastic rounding; `grid` is the arrays of `lowprec.cast.tables.RandomGrid`.

    Interval j is between thresholds j - 1 and j: its numbers round to one of two codes, `base` (nearer to zero) or
    `away`. If `gap` is 0, both are the same.
    """
    thresholds, starts, base, away, scale, origin, gap = grid
    for i in range(x.size):
        u = bits64(x[i])
        key = _key64(u)
        b = np.intp(key >> U64(48))
        j = _passed(thresholds, np.intp(starts[b]), np.intp(starts[b + 1]), key)
        out[i] = base[j]
        if gap[j] != 0:
            scaled = np.abs(x[i]) * scale[j]
            units = np.int64(scaled)
            sticky = np.float64(units) != scaled
            if _goes_up(units - origin[j], sticky, gap[j], words[i], np.int64(bits), variant):
                out[i] = away[j]


@kernel
def encode32_given(x, out, constants, words, random):
    """Encode contiguous float32 `x` with stochastic rounding and one given random word per element."""
    for i in range(x.size):
        out[i] = encode_word(bits32(x[i]), constants, random_part(random[i], words))


@kernel
def encode64_given(x, out, constants, words, m, emin, first, random):
    """Encode contiguous float64 `x` in any format with one given random word per element."""
    for i in range(x.size):
        word = U64(random_part(random[i], words)) << U64(32)
        out[i] = encode_word64(bits64(x[i]), constants, word, m, emin, first)
