"""Largest magnitudes and codes of blocks, one row of blocks at a time; `values` computes decoded values.

Blocks are contiguous in a row, each of length `width`, the last perhaps shorter. `WIDTH` is a placeholder: the variants
below are compiled for the widths in use (`lowprec._jit.variant`), so that a block of 16 is one vector; 0 means any
width. In blocks with a finite scale no value is NaN, Inf or out of range for the cast, so that the cast here needs
neither tests nor selects; `mend_codes` corrects the other blocks afterwards.
"""

import numpy as np

from lowprec._jit import bits32, cgutils, intrinsic, ir, kernel, types, variant

from ..cast.bounded import INF, encode_bounded
from ..cast.nearest import encode_bits
from ..vectors import F32, I8, I16, I32, I64, VectorCode, fill, swapped

U = np.uint32
F = np.float32
WIDTH = 0
AHEAD = 1 << 14  # bytes to prefetch ahead: beyond the next blocks, as random words take longer than memory


def AMAX(address):
    """Serve as a placeholder, rebound to the intrinsic of a variant."""


def AMAX_16(address, amax):
    """Serve as a placeholder, rebound to the intrinsic of a variant."""


def _largest_of(code, address, vectors):
    """Emit the largest magnitudes, per lane, as bits, of 16 * `vectors` float32 at an address."""
    lanes, top = ir.VectorType(I32, 16), None
    for v in range(vectors):
        part = code.builder.and_(code.load(code.at(address, 64 * v), lanes, align=4), fill(lanes, 0x7FFFFFFF))
        top = part if top is None else code.call("llvm.umax.v16i32", lanes, top, part)
    return top


def _amax_of(vectors):
    """Return an intrinsic for the largest magnitude, as bits, of 16 * `vectors` float32 at an address.

    It emits vectors because LLVM unrolls such a short loop before vectorizing, and then branches.
    """

    def typed(typingctx, address):
        if address != types.int64:
            return None

        def codegen(context, builder, signature, args):
            code = VectorCode(builder)
            return code.call("llvm.vector.reduce.umax.v16i32", I32, _largest_of(code, args[0], vectors))

        return types.uint32(types.int64), codegen

    return intrinsic(typed)


def _amax_16_of(vectors):
    """Return an intrinsic that updates 16 maxima at an address with the largest magnitudes of 16 consecutive blocks.

    Pairs of vectors are merged into one with lanes of both: after four rounds there is one lane per block.
    """

    def typed(typingctx, address, amax):
        def codegen(context, builder, signature, args):
            code, lanes = VectorCode(builder), ir.VectorType(I32, 16)
            tops = [_largest_of(code, code.at(args[0], 64 * vectors * b), vectors) for b in range(16)]
            for h in (8, 4, 2, 1):
                low, high = swapped(h)
                tops = [
                    code.call(
                        "llvm.umax.v16i32",
                        lanes,
                        *(builder.shuffle_vector(tops[i], tops[i + h], m) for m in (low, high)),
                    )
                    for i in range(h)
                ]
            top = code.call("llvm.umax.v16i32", lanes, tops[0], code.load(args[1], lanes, align=4))
            code.store(top, args[1], align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return intrinsic(typed)


class BlockCode(VectorCode):
    """Emits operations on blocks of float32, 16 at a time, because LLVM does not vectorize such short loops."""

    def __init__(self, builder, constants=None):
        super().__init__(builder)
        self.words, self.singles = ir.VectorType(I32, 16), ir.VectorType(F32, 16)
        if constants is not None:
            parts = cgutils.unpack_tuple(builder, constants, 6)
            self.smallest, self.up, self.shift, self.top, _, self.sign = (self.splat(p, self.words) for p in parts)

    def blocks(self, count):
        """Yield the block indices of a loop."""
        with cgutils.for_range(self.builder, count) as loop:
            yield loop.index

    def scaled(self, x, factor, divide):
        """Return 16 numbers at an address, divided or multiplied by their block's factor."""
        values = self.load(x, self.singles, align=4)
        return (self.builder.fdiv if divide else self.builder.fmul)(values, factor)

    def rounded(self, u):
        """Return the magnitude plus the addend that rounds it, the addend, and its exponent; see `encode_bounded`."""
        b = self.builder
        a = self.call("llvm.umin.v16i32", self.words, b.and_(u, fill(self.words, 0x7FFFFFFF)), self.top)
        e = self.call("llvm.umax.v16i32", self.words, b.and_(a, fill(self.words, 0x7F800000)), self.smallest)
        magic = b.add(e, self.up)
        return b.fadd(b.bitcast(a, self.singles), b.bitcast(magic, self.singles)), magic, e

    def prefetch(self, address):
        """Prefetch the cache line of an address, which may be invalid."""
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        ask = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(ask, [self.builder.inttoptr(address, I8.as_pointer()), I32(0), I32(2), I32(1)])


def either(builder, flag, emit):
    """Emit a branch on `flag`, with the code of `emit` for each of its values."""
    with builder.if_else(flag) as (yes, no):
        for branch, value in ((yes, True), (no, False)):
            with branch:
                emit(value)


def scale_of(width):
    """Return the intrinsic that writes the numbers of whole blocks, divided or multiplied by their factors."""

    def typed(typingctx, x, scaled, factor, count, divide):
        def codegen(context, builder, signature, args):
            x, scaled, factor, count, divide = args
            code = BlockCode(builder)

            def emit(divide):
                for block in code.blocks(count):
                    f = code.splat(code.load(code.at(factor, builder.mul(block, I64(4))), F32), code.singles)
                    for v in range(0, width, 16):
                        offset = code.at(builder.mul(block, I64(4 * width)), 4 * v)
                        code.prefetch(code.at(x, offset, AHEAD))
                        code.store(code.scaled(code.at(x, offset), f, divide), code.at(scaled, offset), align=4)

            either(builder, divide, emit)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, types.boolean), codegen

    return intrinsic(typed)


def _encode_of(width, item):
    """Return the intrinsic that writes the codes of whole blocks with `encode_bounded`; codes have type `item`."""

    def typed(typingctx, x, codes, factor, count, divide, constants, ahead):
        """Take addresses, the number of blocks, `encode_bounded`'s constants, and the prefetch distance in bytes."""

        def codegen(context, builder, signature, args):
            x, codes, factor, count, divide, constants, ahead = args
            code = BlockCode(builder, constants)
            # e has no fraction bits, so that (e - smallest) >> shift can be split into two shifts.
            plus = builder.sub(builder.neg(code.up), builder.lshr(code.smallest, code.shift))
            minus = builder.add(plus, code.sign)

            def emit(divide):
                for block in code.blocks(count):
                    f = code.splat(code.load(code.at(factor, builder.mul(block, I64(4))), F32), code.singles)
                    first = builder.mul(block, I64(width))
                    for v in range(0, width, 16):
                        place = code.at(x, builder.mul(first, I64(4)), 4 * v)
                        code.prefetch(code.at(place, ahead))
                        u = builder.bitcast(code.scaled(place, f, divide), code.words)
                        total, _, e = code.rounded(u)
                        negative = builder.icmp_signed("<", u, fill(code.words, 0))
                        c = builder.sub(builder.bitcast(total, code.words), e)
                        c = builder.add(c, builder.lshr(e, code.shift))
                        c = builder.add(c, builder.select(negative, minus, plus))
                        place = code.at(codes, builder.mul(builder.add(first, I64(v)), I64(item.width // 8)))
                        code.store(builder.trunc(c, ir.VectorType(item, 16)), place, align=1)

            either(builder, divide, emit)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4, types.boolean, constants, types.intp), codegen

    return intrinsic(typed)


def _amax_whole(x, width, amax):
    address, own = np.int64(x.ctypes.data), np.int64(amax.ctypes.data)
    whole = x.size // WIDTH
    sixteens = whole // 16
    for b in range(sixteens):
        AMAX_16(np.int64(address + np.int64(b) * np.int64(64 * WIDTH)), np.int64(own + np.int64(b) * np.int64(64)))
    for b in range(16 * sixteens, whole):
        top = AMAX(np.int64(address + np.int64(b) * np.int64(4 * WIDTH)))
        amax[b] = max(amax[b], top)
    if whole * WIDTH < x.size:
        amax[whole] = max(amax[whole], _largest(x[whole * WIDTH :]))


@kernel
def _largest(x):
    top = U(0)
    for j in range(x.size):
        top = max(top, U(bits32(x[j]) & U(0x7FFFFFFF)))
    return top


def _amax_any(x, width, amax):
    for b in range(amax.size):
        amax[b] = max(amax[b], _largest(x[b * width : min(b * width + width, x.size)]))


def _amax_columns(x, width, amax):
    for j in range(x.size):
        amax[j] = max(amax[j], U(bits32(x[j]) & U(0x7FFFFFFF)))


def _encode_columns(x, width, divide, factor, constants, ahead, codes):
    if divide:
        for j in range(x.size):
            codes[j] = encode_bounded(bits32(F(x[j] / factor[j])), constants)
    else:
        for j in range(x.size):
            codes[j] = encode_bounded(bits32(F(x[j] * factor[j])), constants)


def ENCODE_8(x, codes, factor, count, divide, constants, ahead):
    """Serve as a placeholder, rebound to the intrinsic of a variant."""


def ENCODE_16(x, codes, factor, count, divide, constants, ahead):
    """Serve as a placeholder, rebound to the intrinsic of a variant."""


def _encode_whole(x, width, divide, factor, constants, ahead, codes):
    whole = x.size // WIDTH
    place, into, own = np.intp(x.ctypes.data), np.intp(codes.ctypes.data), np.intp(factor.ctypes.data)
    if codes.itemsize == 1:
        ENCODE_8(place, into, own, np.intp(whole), divide, constants, np.intp(ahead))
    else:
        ENCODE_16(place, into, own, np.intp(whole), divide, constants, np.intp(ahead))
    for j in range(whole * WIDTH, x.size):
        y = F(x[j] / factor[whole]) if divide else F(x[j] * factor[whole])
        codes[j] = encode_bounded(bits32(y), constants)


def _encode_row(x, width, divide, factor, constants, ahead, codes):
    for b in range(factor.size):
        first, last = b * width, min(b * width + width, x.size)
        tile, into, f = x[first:last], codes[first:last], factor[b]
        if divide:
            for j in range(tile.size):
                into[j] = encode_bounded(bits32(F(tile[j] / f)), constants)
        else:
            for j in range(tile.size):
                into[j] = encode_bounded(bits32(F(tile[j] * f)), constants)


@kernel
def mend_codes(x, width, divide, amax, factor, constants, codes):
    """Re-encode the blocks that `encode_bounded` cannot encode: those with NaN or Inf."""
    for b in range(amax.size):
        if amax[b] >= INF:
            for j in range(b * width, min(b * width + width, x.size)):
                y = F(x[j] / factor[b]) if divide else F(x[j] * factor[b])
                codes[j] = encode_bits(bits32(y), constants)


# Kernels for a row of blocks, by width (0: any), and for formats that require the general cast.
WIDTHS = (0, 1, 16, 32, 128)
amax_rows = (
    kernel(_amax_any),
    kernel(_amax_columns),
    *(
        variant(_amax_whole, f"amax_row_{w}", WIDTH=w, AMAX=_amax_of(w // 16), AMAX_16=_amax_16_of(w // 16))
        for w in WIDTHS[2:]
    ),
)
encode_rows = (
    kernel(_encode_row),
    kernel(_encode_columns),
    *(
        variant(_encode_whole, f"encode_row_{w}", WIDTH=w, ENCODE_8=_encode_of(w, I8), ENCODE_16=_encode_of(w, I16))
        for w in WIDTHS[2:]
    ),
)
encode_row_any = variant(_encode_row, "encode_row_any", encode_bounded=encode_bits)
