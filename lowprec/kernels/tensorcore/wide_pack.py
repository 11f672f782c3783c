"""Operand layouts of the float64 tensor-core kernels: values, un-normalised exponents and sign masks.

Operands come as float32 values [rows, K] of a format whose smallest normal exponent is `emin`. A is laid out by quads
of rows, each [K][4]; B by panels of 32 columns, each [K][32]. Every group is padded with zeros to a multiple of 4.
Masks hold the bits of each group's positive and of its negative nonzero operands, 32 to a word. Exponents are those
that `wide_tile` describes; NaN and Inf are laid out like numbers.

Scales inside the instruction are powers of two. What they do to a product is add to its exponent (ST-FDPA of
arXiv:2511.10909), which is what multiplying the values by them does: exactly so, as 2^-381 (the smallest scaled
bfloat16, bit by bit) and 2^255 are far within float64. `shift` [rows, K / block] holds their exponents; without
scales it has no columns. With them, groups are multiples of 4.
"""

import numpy as np

from lowprec._jit import bits32, float64_from_bits, intrinsic, ir, kernel, types

U, L = np.uint32, np.uint64
ROWS, COLUMNS = 4, 32
ZERO = np.int16(-16384)  # exponent of a zero: its products stay below the smallest exponent of any accumulator
NOT_A_NUMBER = -(1 << 12)  # a NaN among the shifts


@kernel
def _exponent(x, emin, bias):
    """Return the un-normalised exponent of `x` as the high bits of a float64; A brings the bias."""
    field = np.int32(U(U(bits32(x) >> U(23)) & U(0xFF)))
    e = max(field - np.int32(127), emin) + bias
    return ZERO if x == np.float32(0) else np.int16(e << np.int32(4))


@kernel
def _exponent_twice(x, least, bias):
    """Return the same of an operand whose smallest exponent field is `least`, as both halves of 32 bits."""
    magnitude = U(bits32(x) & U(0x7FFFFFFF))
    e = U(U(max(np.int32(magnitude >> U(23)), least) + bias) << U(4))
    low = U(0xC000) if magnitude == U(0) else U(e & U(0xFFFF))  # 0xC000 is `ZERO`
    return np.int32(U(low | U(low << U(16))))


@kernel
def power_of_two(shift):
    """Return 2^shift, or NaN for `NOT_A_NUMBER`."""
    return np.nan if shift == NOT_A_NUMBER else float64_from_bits(L(np.int64(shift) + 1023) << L(52))


@kernel
def added(shift):
    """Return what a scale adds to exponents: those of a NaN's block mean nothing."""
    return np.int32(0) if shift == NOT_A_NUMBER else np.int32(shift)


@kernel
def _turn(x, first, p, group, turned):
    """Gather a group from `p` of 32 rows of x [rows, K] from `first`, as turned [depth][32]."""
    rows = min(COLUMNS, x.shape[0] - first)
    inside = min(group, x.shape[1] - p)
    if rows < COLUMNS or inside < turned.shape[0]:
        turned[:, :] = np.float32(0)
    for r in range(rows):
        row = x[first + r]
        for t in range(inside):
            turned[t, r] = row[p + t]


def _signs(typingctx, address):
    """Return which of 32 float32 at an address are positive as bits 0..31, the negative ones as bits 32..63."""
    if address != types.intp:
        return None

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.FloatType(), 32)
        x = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=4)
        zero = ir.Constant(vector, [0.0] * 32)
        halves = [builder.bitcast(builder.fcmp_ordered(test, x, zero), ir.IntType(32)) for test in "><"]
        low, high = (builder.zext(half, ir.IntType(64)) for half in halves)
        return builder.or_(low, builder.shl(high, ir.IntType(64)(32)))

    return types.uint64(types.intp), codegen


signs = intrinsic(_signs)


@kernel
def pack_quads(x, emin, group, shift, block, packed):
    """Lay out A [M, K] as values, exponents [quads][groups][depth][4] float64, int32 and masks [][words][4] uint64."""
    values, exponents, masks = packed
    scaled = shift.shape[1] > 0
    m, k = x.shape
    depth, words = (group + 3) // 4 * 4, (group + 31) // 32
    groups = (max(k, 1) + group - 1) // group
    padded = groups * depth
    rows = np.zeros((ROWS, padded + 32), np.float32)
    # Exponent fields of float32 become those of float64.
    least, bias = np.int32(emin + 127), np.int32(1023 - 127)
    span = block if scaled else padded  # of K, over which scales are constant
    factor, more = np.ones(ROWS), np.full(ROWS, bias, np.int32)
    for i in range(0, m, ROWS):
        for r in range(ROWS):
            row = rows[r]
            if i + r >= m:
                row[:] = np.float32(0)
            elif depth == group:
                for p in range(k):
                    row[p] = x[i + r, p]
            else:
                for g in range(groups):
                    for t in range(min(group, k - g * group)):
                        row[g * depth + t] = x[i + r, g * group + t]
            first = row.ctypes.data
            for g in range(groups):
                for w in range(words):
                    both = signs(first + 4 * (g * depth + 32 * w))
                    wanted = (L(1) << L(min(depth - 32 * w, 32))) - L(1)
                    at = ((i // ROWS * groups + g) * words + w) * ROWS + r
                    masks[at] = ((both & wanted) << L(32)) | ((both >> L(32)) & wanted)
        v_i = values[i * padded : (i + ROWS) * padded]
        e_i = exponents[i * padded : (i + ROWS) * padded]
        r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
        for first_p in range(0, padded, span):
            if scaled and first_p < k:
                for r in range(min(ROWS, m - i)):
                    s = shift[i + r, first_p // span]
                    factor[r], more[r] = power_of_two(s), bias + added(s)
            f0, f1, f2, f3 = factor[0], factor[1], factor[2], factor[3]
            b0, b1, b2, b3 = more[0], more[1], more[2], more[3]
            for p in range(first_p, min(first_p + span, padded)):
                v_i[4 * p] = np.float64(r0[p]) * f0
                v_i[4 * p + 1] = np.float64(r1[p]) * f1
                v_i[4 * p + 2] = np.float64(r2[p]) * f2
                v_i[4 * p + 3] = np.float64(r3[p]) * f3
            for p in range(first_p, min(first_p + span, padded)):
                e_i[4 * p] = _exponent_twice(r0[p], least, b0)
                e_i[4 * p + 1] = _exponent_twice(r1[p], least, b1)
                e_i[4 * p + 2] = _exponent_twice(r2[p], least, b2)
                e_i[4 * p + 3] = _exponent_twice(r3[p], least, b3)


@kernel
def pack_panels(x, emin, group, factor, shift, block, packed):
    """Lay out B [N, K] as values (times `factor`), exponents [panels][groups][depth][32] and masks [..][words][32]."""
    values, exponents, masks = packed
    scaled = shift.shape[1] > 0
    n, k = x.shape
    depth, words = (group + 3) // 4 * 4, (group + 31) // 32
    groups = (max(k, 1) + group - 1) // group
    turned = np.zeros((depth, COLUMNS), np.float32)
    found = np.zeros(COLUMNS, np.uint64)
    e0 = np.int32(emin)
    factors, more = np.full(COLUMNS, factor), np.zeros(COLUMNS, np.int32)
    for j0 in range(0, n, COLUMNS):
        for g in range(groups):
            _turn(x, j0, g * group, group, turned)
            base = j0 // COLUMNS * groups + g
            for t in range(depth):
                p = g * group + t
                if scaled and (t == 0 or p % block == 0) and p < k:
                    for j in range(min(COLUMNS, n - j0)):
                        s = shift[j0 + j, p // block]
                        factors[j], more[j] = factor * power_of_two(s), added(s)
                y = turned[t]
                at = (base * depth + t) * COLUMNS
                v, e = values[at : at + COLUMNS], exponents[at : at + COLUMNS]
                for j in range(COLUMNS):
                    v[j] = np.float64(y[j]) * factors[j]
                for j in range(COLUMNS):
                    e[j] = _exponent(y[j], e0, more[j])
            for w in range(words):
                found[:] = L(0)
                for t in range(32 * w, min(32 * w + 32, depth)):
                    y, plus, minus = turned[t], L(1) << L(t & 31), L(1) << L((t & 31) + 32)
                    for j in range(COLUMNS):
                        bit = plus if y[j] > np.float32(0) else (minus if y[j] < np.float32(0) else L(0))
                        found[j] |= bit
                at = (base * words + w) * COLUMNS
                masks[at : at + COLUMNS] = found


@kernel
def exponent_range(x):
    """Return the smallest and the largest exponent of nonzero float32 `x` (flat); subnormals count as -126."""
    low, high = U(0xFFFFFFFF), U(0)
    for i in range(x.size):
        magnitude = U(bits32(x[i]) & U(0x7FFFFFFF))
        low = min(low, U(magnitude - U(1)))  # a zero becomes the largest
        high = max(high, magnitude)
    lowest = np.int64(U(low + U(1)) >> U(23)) if low != U(0xFFFFFFFF) else np.int64(255)
    return max(lowest, np.int64(1)) - 127, max(np.int64(high >> U(23)), np.int64(1)) - 127
