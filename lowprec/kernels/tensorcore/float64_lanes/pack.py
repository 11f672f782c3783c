"""Operand layouts of the float64 tensor-core kernels: values, unnormalized exponents and sign masks.

Operands are float32 values [rows, K] of a format with the smallest normal exponent `emin`. A is packed in quads of
rows, each [K][4]; B in panels of 32 columns, each [K][32]. Every group is zero-padded to a multiple of 4. Masks hold
the bits of each group's positive and negative nonzero operands, 32 per word. Exponents are those that `tile` describes;
NaN and Inf are packed like numbers.

Scales inside the instruction are powers of two and add to the exponents of products (ST-FDPA of arXiv:2511.10909),
which is equivalent to multiplying the values by them: exactly, as 2^-381 (the smallest scaled bfloat16, bit by bit) and
2^255 are well within float64. `shift` [rows, K / block] holds their exponents; without scales it is empty. With
scales, groups are multiples of 4.
"""

import numpy as np

from lowprec._jit import bits32, float64_from_bits, intrinsic, ir, kernel, types

from ...vectors import F32, F64, I32, I64, VectorCode, fill, indices

U, L = np.uint32, np.uint64
ROWS, COLUMNS = 4, 32
ZERO = np.int16(-16384)  # exponent of a zero: its products are below the smallest exponent of any accumulator
NOT_A_NUMBER = -(1 << 12)  # NaN among the shifts


@kernel
def _exponent(x, emin, bias):
    """Return the unnormalized exponent of `x` as the high bits of a float64; A's includes the bias."""
    field = np.int32(U(U(bits32(x) >> U(23)) & U(0xFF)))
    e = max(field - np.int32(127), emin) + bias
    return ZERO if x == np.float32(0) else np.int16(e << np.int32(4))


@kernel
def power_of_two(shift):
    """Return 2^shift, or NaN for `NOT_A_NUMBER`."""
    return np.nan if shift == NOT_A_NUMBER else float64_from_bits(L(np.int64(shift) + 1023) << L(52))


@kernel
def added(shift):
    """Return the exponent that a scale adds; for the block of a NaN it is irrelevant."""
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
    """Return masks of 32 float32 at an address: positive numbers in bits 0..31, negative ones in bits 32..63."""
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


def _lay_out_quad(typingctx, rows, stride, factors, biases, least, values, exponents):
    """Pack 4 float32 of each of 4 rows, `stride` bytes apart; all arguments but `stride` and `least` are addresses.

    Values are multiplied by the row's factor. Exponents, with float32 fields of at least `least`, are increased by the
    row's bias and stored in both halves of 32 bits.
    """

    def codegen(context, builder, signature, args):
        at, stride, factors, biases, least, values, exponents = args
        code, four = VectorCode(builder), ir.VectorType(F32, ROWS)
        rows = [code.load(code.at(at, builder.mul(stride, I64(r))), four, 4) for r in range(ROWS)]
        lines = code.join(code.join(rows[0], rows[1]), code.join(rows[2], rows[3]))
        # From [row][k] to [k][row].
        turned = builder.shuffle_vector(lines, lines, indices(4 * (n % 4) + n // 4 for n in range(16)))
        doubles, ints = ir.VectorType(F64, 16), ir.VectorType(I32, 16)
        again = indices(n % 4 for n in range(16))
        factor = code.load(factors, ir.VectorType(F64, ROWS), 8)
        bias = code.load(biases, ir.VectorType(I32, ROWS), 4)
        factor, bias = (builder.shuffle_vector(x, x, again) for x in (factor, bias))
        code.store(builder.fmul(builder.fpext(turned, doubles), factor), values, 64)
        magnitude = builder.and_(builder.bitcast(turned, ints), fill(ints, 0x7FFFFFFF))
        field = builder.lshr(magnitude, fill(ints, 23))
        field = code.call("llvm.umax.v16i32", ints, field, code.splat(least, ints))
        e = builder.and_(builder.shl(builder.add(field, bias), fill(ints, 4)), fill(ints, 0xFFFF))
        zero = fill(ints, int(ZERO) & 0xFFFF)
        low = builder.select(builder.icmp_unsigned("==", magnitude, fill(ints, 0)), zero, e)
        code.store(builder.or_(low, builder.shl(low, fill(ints, 16))), exponents, 64)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, types.int32, types.intp, types.intp), codegen


lay_out_quad = intrinsic(_lay_out_quad)


@kernel
def pack_quads(x, emin, group, shift, block, packed):
    """Pack A [M, K] as values, exponents [quads][groups][depth][4] float64, int32 and masks [][words][4] uint64."""
    values, exponents, masks = packed
    scaled = shift.shape[1] > 0
    m, k = x.shape
    depth, words = (group + 3) // 4 * 4, (group + 31) // 32
    groups = (max(k, 1) + group - 1) // group
    padded = groups * depth
    rows = np.zeros((ROWS, padded + 32), np.float32)
    stride = np.intp(4 * (padded + 32))
    # Convert exponent fields of float32 to those of float64.
    least, bias = np.int32(emin + 127), np.int32(1023 - 127)
    span = block if scaled else padded  # length in K over which scales are constant
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
        for first_p in range(0, padded, span):
            if scaled and first_p < k:
                for r in range(min(ROWS, m - i)):
                    s = shift[i + r, first_p // span]
                    factor[r], more[r] = power_of_two(s), bias + added(s)
            for p in range(first_p, min(first_p + span, padded), 4):
                at = i * padded + ROWS * p
                lay_out_quad(
                    np.intp(rows.ctypes.data + 4 * p), stride, factor.ctypes.data, more.ctypes.data, least,
                    np.intp(values.ctypes.data + 8 * at), np.intp(exponents.ctypes.data + 4 * at),
                )  # fmt: skip
    rows[0, 0] = factor[0] = more[0] = 0  # an address alone does not keep an array


@kernel
def pack_panels(x, emin, group, factor, shift, block, packed):
    """Pack B [N, K] as values (times `factor`), exponents [panels][groups][depth][32] and masks [..][words][32]."""
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
        low = min(low, U(magnitude - U(1)))  # a zero becomes the largest value
        high = max(high, magnitude)
    lowest = np.int64(U(low + U(1)) >> U(23)) if low != U(0xFFFFFFFF) else np.int64(255)
    return max(lowest, np.int64(1)) - 127, max(np.int64(high >> U(23)), np.int64(1)) - 127
