"""Operand layouts of the float32 tensor-core kernels: values, unnormalized exponents and signs of FP8 codes.

A is packed in quads of rows, each [padded K][4]; B in panels of 64 columns, each [padded K][64]. Padding is zero. A
zero may be packed as 2^-126 with its sign (see `sums`). Signs are bit masks of each group of up to 32 products, omitted
if their array is empty. Exponents are those that `tile` describes, with A's stored four times, so that one 32-bit load
fills a vector.

Codes are first interleaved or transposed as bytes, so that all later steps process contiguous lines. NaN and Inf are
packed like numbers; the rows and columns that contain them are computed elsewhere.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import cgutils, intrinsic, ir, kernel, types

from ...vectors import F32, I8, I32, I64, VectorCode, fields, fill, indices

U = np.uint32
ROWS, COLUMNS = 4, 64
SLACK = 64  # items after the end of A's arrays that may be overwritten
_SIDE = 16  # bytes of a row that are processed at a time


class Signed(NamedTuple):
    """A or B as packed, in flat arrays."""

    values: Any  # float32
    exponents: Any  # A: uint32, B: uint8
    signs: Any  # uint32


class Reading(NamedTuple):
    """Parameters of a format that the packers take, as integers."""

    mantissa_bits: int
    offset: int  # of a float32's exponent field relative to the format's, shifted into position
    quantum: int  # bits of the smallest subnormal as a float32
    emin_a: int  # emin - 1 plus the bias of A's exponents, `A_BIAS`
    emin_b: int  # `B_BIAS` minus (emin - 1): B's exponents are negated
    magnitude: int  # mask of all bits except the sign
    to_bit_7: int  # shift from the sign bit to bit 7
    zero: int  # bits of a packed zero without its sign


A_BIAS, B_BIAS = 127 + 15, 15  # A's exponent is e + `A_BIAS`, B's is `B_BIAS` - e; their difference is biased


class _Decoder(VectorCode):
    """Emits instructions that decode vectors of codes."""

    def __init__(self, builder: Any, reading: Any) -> None:
        super().__init__(builder)
        self.reading = dict(zip(Reading._fields, fields(builder, reading), strict=True))

    def field(self, name: str, vector: Any) -> Any:
        """Return a parameter of the format in every lane."""
        narrow = self.builder.trunc(self.reading[name], vector.element)
        return self.splat(narrow, vector)

    def values(self, codes: Any) -> Any:
        """Return the float32 values of a vector of codes."""
        b, n = self.builder, codes.type.count
        ints, floats = ir.VectorType(I32, n), ir.VectorType(F32, n)
        wide = b.zext(codes, ints)
        a = b.and_(wide, self.field("magnitude", ints))
        shift = b.sub(fill(ints, 23), self.field("mantissa_bits", ints))
        normal = b.add(b.shl(a, shift), self.field("offset", ints))
        quantum = b.bitcast(self.field("quantum", ints), floats)
        tiny = b.bitcast(b.fmul(b.sitofp(a, floats), quantum), ints)
        is_normal = b.icmp_unsigned("!=", b.lshr(a, self.field("mantissa_bits", ints)), fill(ints, 0))
        bits = self.call(f"llvm.umax.v{n}i32", ints, b.select(is_normal, normal, tiny), self.field("zero", ints))
        sign = b.and_(b.shl(wide, b.add(self.field("to_bit_7", ints), fill(ints, 24))), fill(ints, 0x80000000))
        return b.bitcast(b.or_(bits, sign), floats)

    def exponents(self, codes: Any, turned: bool) -> Any:
        """Return the exponents as bytes: A's, or if `turned`, B's, which are negated."""
        b, octets = self.builder, codes.type
        a = b.and_(codes, self.field("magnitude", octets))
        place = b.lshr(a, self.field("mantissa_bits", octets))
        place = self.call(f"llvm.umax.v{octets.count}i8", octets, place, fill(octets, 1))
        e = b.sub(self.field("emin_b", octets), place) if turned else b.add(place, self.field("emin_a", octets))
        return b.select(b.icmp_unsigned("==", a, fill(octets, 0)), fill(octets, 255 if turned else 0), e)


def _turn(code: VectorCode, rows: list[Any]) -> list[Any]:
    """Transpose a power-of-two number of 16-byte rows into 16 contiguous columns."""
    half = len(rows) // 2
    masks = [indices([n + 16 * side for n in range(first, first + 8) for side in (0, 1)]) for first in (0, 8)]
    # Bytes of the first half's and the second half's rows are interleaved until every byte is in place.
    for _ in range(half.bit_length()):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [code.builder.shuffle_vector(x, y, mask) for x, y in pairs for mask in masks]
    return rows


def _lay_out_quad(typingctx, codes, stride, reading, values, exponents):
    """Pack 16 codes of each of 4 rows, `stride` bytes apart; the other arguments are addresses."""

    def codegen(context, builder, signature, args):
        at, stride, reading, values, exponents = args
        code, octets = _Decoder(builder, reading), ir.VectorType(I8, _SIDE)
        rows = [code.load(code.at(at, builder.mul(stride, I64(r))), octets, 1) for r in range(ROWS)]
        for i, line in enumerate(_turn(code, rows)):
            code.store(code.values(line), code.at(values, 4 * _SIDE * i), 64)
            e = code.exponents(line, turned=False)
            four = builder.shuffle_vector(e, e, indices([n for n in range(_SIDE) for _ in range(4)]))
            code.store(four, code.at(exponents, 4 * _SIDE * i), 64)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, reading, types.intp, types.intp), codegen


def _lay_out_lines(typingctx, turned, count, reading, factor, values, exponents):
    """Pack `count` lines of 64 codes of B, values times `factor`; the other arguments are addresses."""

    def codegen(context, builder, signature, args):
        at, count, reading, factor, values, exponents = args
        code, octets = _Decoder(builder, reading), ir.VectorType(I8, _SIDE)
        times = code.splat(factor, ir.VectorType(F32, _SIDE))
        with cgutils.for_range(builder, count) as loop:
            line = builder.mul(loop.index, I64(COLUMNS))
            for j in range(0, COLUMNS, _SIDE):
                codes = code.load(code.at(at, line, j), octets, 1)
                value = builder.fmul(code.values(codes), times)
                code.store(value, code.at(values, builder.mul(line, I64(4)), 4 * j), 64)
            whole = code.load(code.at(at, line), ir.VectorType(I8, COLUMNS), 1)
            code.store(code.exponents(whole, turned=True), code.at(exponents, line), 64)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, reading, types.float32, types.intp, types.intp), codegen


def _turn_square(typingctx, codes, stride, turned, width):
    """Transpose 16 x 16 bytes, from rows `stride` bytes apart to rows `width` bytes apart."""

    def codegen(context, builder, signature, args):
        at, stride, into, width = args
        code, octets = VectorCode(builder), ir.VectorType(I8, _SIDE)
        rows = [code.load(code.at(at, builder.mul(stride, I64(r))), octets, 1) for r in range(_SIDE)]
        for r, row in enumerate(_turn(code, rows)):
            code.store(row, code.at(into, builder.mul(width, I64(r))), 1)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), codegen


def _signs(typingctx, address):
    """Return bit 7 of each of 32 bytes at an address."""

    def codegen(context, builder, signature, args):
        codes = VectorCode(builder).load(args[0], ir.VectorType(I8, 32), 1)
        return builder.bitcast(builder.icmp_signed("<", codes, fill(codes.type, 0)), I32)

    return types.uint32(types.intp), codegen


lay_out_quad, lay_out_lines = intrinsic(_lay_out_quad), intrinsic(_lay_out_lines)
turn_square, signs = intrinsic(_turn_square), intrinsic(_signs)


@kernel
def _read(numbers):
    """Return a `Reading` from an array of its fields, because tuples are slower as arguments."""
    n = numbers
    return Reading(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7])


@kernel
def largest_magnitude(codes, numbers):
    """Return the largest of a matrix's codes with sign bits cleared; `numbers` is a `Reading` as an int64 array."""
    flat, magnitude, largest = codes.reshape(-1), np.uint8(_read(numbers).magnitude), np.uint8(0)
    for i in range(flat.size):
        largest = max(largest, np.uint8(flat[i] & magnitude))
    return largest


@kernel
def _pack_signs(codes, first, rows, group, reading, width, piece, masks):
    """Pack the signs of `rows` rows from `first` as [groups][width], 0 outside the matrix.

    `piece` is a buffer of 32 bytes.
    """
    k = codes.shape[1]
    start, buffer = np.intp(codes.ctypes.data) + first * k, np.intp(piece.ctypes.data)
    for g in range(masks.size // width):
        line, p = masks[g * width : (g + 1) * width], g * group
        depth = max(min(group, k - p), 0)
        wanted = U((np.uint64(1) << np.uint64(depth)) - np.uint64(1))
        if p + 32 <= k and reading.to_bit_7 == 0:
            for r in range(rows):
                line[r] = U(signs(start + r * k + p) & wanted)
        else:
            for r in range(rows):
                for t in range(depth):
                    piece[t] = np.uint8(codes[first + r, p + t] << reading.to_bit_7)
                line[r] = U(signs(buffer) & wanted)
        for r in range(rows, width):
            line[r] = U(0)


@kernel
def pack_quads(codes, group, padded_k, numbers, packed):
    """Pack A's codes [M, K] in quads of rows, each [padded K][4], and signs [quads][groups][4].

    `numbers` is a `Reading` as an int64 array. Values and exponents have space for `SLACK` more items, which may be
    overwritten.
    """
    reading = _read(numbers)
    values, exponents, masks = packed
    m, k = codes.shape
    groups = padded_k // group
    piece = np.zeros(64, np.uint8)
    first, buffer = np.intp(codes.ctypes.data), np.intp(piece.ctypes.data)
    v, e = np.intp(values.ctypes.data), np.intp(exponents.ctypes.data)
    for i in range(0, m, ROWS):
        rows = min(ROWS, m - i)
        for p in range(0, padded_k, _SIDE):
            at = (i * padded_k + ROWS * p) * 4
            if rows == ROWS and p + _SIDE <= k:
                lay_out_quad(first + i * k + p, np.intp(k), reading, v + at, e + at)
            else:
                piece[:] = np.uint8(0)
                for r in range(rows):
                    for t in range(min(_SIDE, k - p)):
                        piece[_SIDE * r + t] = codes[i + r, p + t]
                lay_out_quad(buffer, np.intp(_SIDE), reading, v + at, e + at)
        if masks.size:
            _pack_signs(codes, i, rows, group, reading, ROWS, piece, masks[i * groups : (i + ROWS) * groups])


@kernel
def pack_panels(codes, group, padded_k, numbers, factor, packed, start, stop):
    """Pack rows `start` (a multiple of 64) to `stop` of B's codes [N, K] in panels, each [padded K][64].

    `numbers` is a `Reading` as an int64 array. Values are multiplied by `factor`; signs are [panels][groups][64].
    """
    reading = _read(numbers)
    values, exponents, masks = packed
    k, groups = codes.shape[1], padded_k // group
    turned, piece = np.zeros((_SIDE, COLUMNS), np.uint8), np.zeros(32, np.uint8)
    v, e, t = np.intp(values.ctypes.data), np.intp(exponents.ctypes.data), np.intp(turned.ctypes.data)
    for j0 in range(start, stop, COLUMNS):
        width = min(COLUMNS, stop - j0)
        for p in range(0, padded_k, _SIDE):
            _turn_panel(codes, j0, width, p, min(_SIDE, max(k - p, 0)), turned)
            at = j0 * padded_k + p * COLUMNS
            lay_out_lines(t, np.intp(min(_SIDE, padded_k - p)), reading, factor, v + 4 * at, e + at)
        if masks.size:
            _pack_signs(codes, j0, width, group, reading, COLUMNS, piece, masks[j0 * groups : (j0 + COLUMNS) * groups])


@kernel
def _turn_panel(codes, j0, width, p, depth, turned):
    """Gather 16 codes of each of 64 rows from `j0`, from column `p`, as turned [16][64]; zero outside the matrix."""
    k = codes.shape[1]
    whole = width // _SIDE * _SIDE if depth == _SIDE else 0
    if whole < COLUMNS:
        turned[:, :] = np.uint8(0)
    first, into = np.intp(codes.ctypes.data), np.intp(turned.ctypes.data)
    for j in range(0, whole, _SIDE):
        turn_square(first + (j0 + j) * k + p, np.intp(k), into + j, np.intp(COLUMNS))
    for j in range(whole, width):
        for t in range(depth):
            turned[t, j] = codes[j0 + j, p + t]
