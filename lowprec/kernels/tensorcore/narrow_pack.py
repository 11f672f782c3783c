"""Operand layouts of the fast tensor-core kernels: values, un-normalised exponents and sign masks of FP8 codes.

A is laid out by rows, or by quads of rows, each [padded K][4]; B by panels of columns, each [padded K][panel].
Padding is zero, and zeros carry an exponent so small that no product with them is ever the largest. Masks hold, for
each group of up to 32 products, the bits of its positive and of its negative nonzero operands.

NaN and Inf are laid out like numbers; the rows and columns that hold them are computed elsewhere.
"""

import numpy as np

from lowprec._jit import float32_from_bits, intrinsic, ir, kernel, types

from ..cast.nearest import decode_bits

U = np.uint32
ZERO_EXPONENT = np.int8(-64)  # of a zero operand: its products stay below -40 whatever the other operand
_SIDE = 64  # columns that are transposed at a time


@kernel
def _exponent(code, mantissa_bits, emin, magnitude):
    """Return the un-normalised exponent of a code: subnormals keep the smallest normal one."""
    a = U(code & magnitude)
    field = np.int32(U(a >> mantissa_bits))
    e = np.int8(max(field, np.int32(1)) + emin)
    return ZERO_EXPONENT if a == U(0) else e


@kernel
def pack_rows(codes, reading, values, exponents):
    """Lay out A's codes [M, K] by rows: values and exponents [at least M, padded K].

    `reading` is `cast.constants.decode_constants` and (mantissa bits, emin - 1, magnitude mask, places from the sign
    to bit 7).
    """
    constants, layout = reading
    m, k = codes.shape
    shift, emin, magnitude = U(layout[0]), np.int32(layout[1]), U(layout[2])
    for i in range(m):
        v, e, row = values[i], exponents[i], codes[i]
        for p in range(k):
            v[p] = float32_from_bits(decode_bits(U(row[p]), constants))
        for p in range(k):
            e[p] = _exponent(U(row[p]), shift, emin, magnitude)
        for p in range(k, values.shape[1]):
            v[p] = np.float32(0)
            e[p] = ZERO_EXPONENT


@kernel
def _turn(codes, first, k, group, g, turned):
    """Gather codes [rows, K] of `_SIDE` rows from `first` and of group `g` as turned [group][_SIDE], zero outside."""
    depth = min(group, max(k - g * group, 0))
    width = min(_SIDE, codes.shape[0] - first)
    if width < _SIDE or depth < group:
        turned[:, :] = 0
    whole = width // 8 * 8
    at = g * group
    for j in range(0, whole, 8):
        r0, r1, r2, r3 = codes[first + j], codes[first + j + 1], codes[first + j + 2], codes[first + j + 3]
        r4, r5, r6, r7 = codes[first + j + 4], codes[first + j + 5], codes[first + j + 6], codes[first + j + 7]
        for t in range(depth):
            line = turned[t]
            line[j], line[j + 1], line[j + 2], line[j + 3] = r0[at + t], r1[at + t], r2[at + t], r3[at + t]
            line[j + 4], line[j + 5], line[j + 6], line[j + 7] = r4[at + t], r5[at + t], r6[at + t], r7[at + t]
    for j in range(whole, width):
        row = codes[first + j]
        for t in range(depth):
            turned[t, j] = row[at + t]


@kernel
def largest_magnitude(codes, magnitude):
    """Return the largest code of an array with its sign masked away."""
    top = np.uint8(0)
    for i in range(codes.size):
        top = max(top, np.uint8(codes[i] & magnitude))
    return top


def _signs(typingctx, address):
    """Return the positive codes among 32 at an address as bits 0..31, the negative ones as bits 32..63.

    The codes are bytes with their sign in bit 7; zeros of either sign are neither.
    """
    if address != types.intp:
        return None

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(8), 32)
        codes = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=1)
        zero, minus_zero = (ir.Constant(vector, [value] * 32) for value in (0, -128))
        positive = builder.icmp_signed(">", codes, zero)
        negative = builder.and_(builder.icmp_signed("<", codes, zero), builder.icmp_signed("!=", codes, minus_zero))
        low, high = (builder.zext(builder.bitcast(x, ir.IntType(32)), ir.IntType(64)) for x in (positive, negative))
        return builder.or_(low, builder.shl(high, ir.IntType(64)(32)))

    return types.uint64(types.intp), codegen


signs = intrinsic(_signs)


@kernel
def pack_quads(codes, group, padded_k, reading, values, exponents, masks):
    """Lay out A's codes [M, K] in quads of rows, each [padded K][4], and masks [quads][groups][2][4], all flat."""
    constants, layout = reading
    m, k = codes.shape
    shift, emin, magnitude = U(layout[0]), np.int32(layout[1]), U(layout[2])
    to_bit_7 = U(layout[3])
    groups = padded_k // group
    wanted = (np.uint64(1) << np.uint64(group)) - np.uint64(1)
    v, e = np.zeros((4, padded_k), np.float32), np.zeros((4, padded_k), np.int8)
    bytes_ = np.zeros(padded_k + 32, np.uint8)
    first = np.intp(bytes_.ctypes.data)
    for i in range(0, m, 4):
        for r in range(4):
            values_r, exponents_r = v[r], e[r]
            inside = k if i + r < m else 0
            if inside:
                row = codes[i + r]
                for p in range(k):
                    values_r[p] = float32_from_bits(decode_bits(U(row[p]), constants))
                for p in range(k):
                    exponents_r[p] = _exponent(U(row[p]), shift, emin, magnitude)
                for p in range(k):
                    bytes_[p] = U(U(row[p]) << to_bit_7)
            else:
                bytes_[:] = 0
            for p in range(inside, padded_k):
                values_r[p] = np.float32(0)
                exponents_r[p] = ZERO_EXPONENT
            for g in range(groups):
                both = signs(first + g * group)
                masks[(i // 4 * groups + g) * 8 + r] = np.uint32(both & wanted)
                masks[(i // 4 * groups + g) * 8 + 4 + r] = np.uint32((both >> np.uint64(32)) & wanted)
        into = values[i * padded_k : (i + 4) * padded_k]
        v0, v1, v2, v3 = v[0], v[1], v[2], v[3]
        for p in range(padded_k):
            into[4 * p] = v0[p]
            into[4 * p + 1] = v1[p]
            into[4 * p + 2] = v2[p]
            into[4 * p + 3] = v3[p]
        small = exponents[i * padded_k : (i + 4) * padded_k]
        e0, e1, e2, e3 = e[0], e[1], e[2], e[3]
        for p in range(padded_k):
            small[4 * p] = e0[p]
            small[4 * p + 1] = e1[p]
            small[4 * p + 2] = e2[p]
            small[4 * p + 3] = e3[p]


@kernel
def pack_panels(codes, sizes, reading, factor, packed, start, stop):
    """Lay out rows `start` (a multiple of 64) to `stop` of B's codes [N, K] in panels.

    `sizes` are the columns of a panel, a multiple of 64, the group, and the padded K; values are multiplied by
    `factor`. `packed` is a `gemm.Operand`, all flat: masks are [panels * groups, 2, panel] or empty. Columns beyond the
    next multiple of 64 are left as they are: nobody reads them.
    """
    (panel, group, padded_k), (constants, layout) = sizes, reading
    values, exponents, masks = packed.values, packed.exponents, packed.masks
    k = codes.shape[1]
    shift, emin, magnitude = U(layout[0]), np.int32(layout[1]), U(layout[2])
    to_bit_7 = U(layout[3])
    groups = padded_k // group
    wanted = (np.uint64(1) << np.uint64(group & 63)) - np.uint64(1)
    turned = np.zeros((group, _SIDE), np.uint8)
    piece = np.zeros(32, np.uint8)
    for j0 in range(start, stop, _SIDE):
        width = min(_SIDE, stop - j0)
        base = j0 // panel * panel * padded_k + j0 % panel
        for g in range(groups):
            _turn(codes, j0, k, group, g, turned)
            for t in range(group):
                at = base + (g * group + t) * panel
                v, e, line = values[at : at + _SIDE], exponents[at : at + _SIDE], turned[t]
                for j in range(_SIDE):
                    v[j] = float32_from_bits(decode_bits(U(line[j]), constants)) * factor
                for j in range(_SIDE):
                    e[j] = _exponent(U(line[j]), shift, emin, magnitude)
            if masks.size:
                at = (j0 // panel * groups + g) * 2 * panel + j0 % panel
                depth = min(group, k - g * group)
                for j in range(width):
                    if depth == 32 and to_bit_7 == U(0):
                        both = signs(np.intp(codes.ctypes.data) + (j0 + j) * k + g * 32)
                    else:
                        piece[:] = 0
                        for t in range(depth):
                            piece[t] = U(U(codes[j0 + j, g * group + t]) << to_bit_7)
                        both = signs(np.intp(piece.ctypes.data))
                    masks[at + j] = np.uint32(both & wanted)
                    masks[at + panel + j] = np.uint32((both >> np.uint64(32)) & wanted)
                for j in range(width, _SIDE):
                    masks[at + j] = masks[at + panel + j] = U(0)
