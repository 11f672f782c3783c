"""The elements of blocks: largest magnitudes, codes and values, a row of blocks at a time.

Blocks lie side by side in a row, each `width` long, the last perhaps shorter. `WIDTH` is a placeholder: the variants
below are compiled for the widths in use (`lowprec._jit.variant`), so that a block of 16 is one vector; 0 stands for
any width. In blocks whose scale is finite no value is NaN, Inf or beyond reach of the cast, so that the cast here
needs neither tests nor selects; the rest is mended by `mend_codes` and `mend_values` afterwards.
"""

import numpy as np

from lowprec._jit import bits32, cgutils, float32_from_bits, intrinsic, ir, kernel, types, variant

from ..cast.bounded import INF, encode_bounded, round_bounded
from ..cast.nearest import encode_bits, round_bits
from ..vectors import I32, VectorCode, fill

U = np.uint32
F = np.float32
WIDTH = 0


def AMAX(address):
    """Stand in for the intrinsic that a variant gets."""


def _amax_of(vectors):
    """Return an intrinsic for the largest magnitude, as bits, of 16 * `vectors` float32 at an address.

    Spelled as vectors because LLVM unrolls so short a loop before it looks for vectors, and then branches.
    """
    lanes = ir.VectorType(I32, 16)

    def typed(typingctx, address):
        if address != types.int64:
            return None

        def codegen(context, builder, signature, args):
            code, top = VectorCode(builder), None
            for v in range(vectors):
                part = builder.and_(code.load(code.at(args[0], 64 * v), lanes, align=4), fill(lanes, 0x7FFFFFFF))
                top = part if top is None else code.call("llvm.umax.v16i32", lanes, top, part)
            return code.call("llvm.vector.reduce.umax.v16i32", I32, top)

        return types.uint32(types.int64), codegen

    return intrinsic(typed)


_amax_16, _amax_32, _amax_128 = _amax_of(1), _amax_of(2), _amax_of(8)


def _prefetch():
    """Return an intrinsic that asks for the cache lines of `size` bytes at an address; it may lie anywhere."""

    def typed(typingctx, address, lines):
        if (address, lines) != (types.int64,) * 2:
            return None

        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), I32, I32, I32])
            ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            with cgutils.for_range(builder, args[1]) as loop:
                place = builder.add(args[0], builder.mul(loop.index, ir.IntType(64)(64)))
                builder.call(ask, [builder.inttoptr(place, ir.IntType(8).as_pointer()), I32(0), I32(2), I32(1)])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return intrinsic(typed)


prefetch = _prefetch()


def _amax_whole(x, width, amax):
    address = np.int64(x.ctypes.data)
    whole = x.size // WIDTH
    for b in range(whole):
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


def _round_columns(x, width, divide, factor, scale, tensor, constants, values):
    if divide:
        for j in range(x.size):
            values[j] = F(F(round_bounded(bits32(F(x[j] / factor[j])), constants) * scale[j]) * tensor)
    else:
        for j in range(x.size):
            values[j] = F(F(round_bounded(bits32(F(x[j] * factor[j])), constants) * scale[j]) * tensor)


def _encode_row(x, width, divide, factor, constants, ahead, codes):
    size = WIDTH if WIDTH else width
    whole = x.size // size
    next_up = np.int64(x.ctypes.data) + np.int64(ahead)
    for b in range(whole):
        if size >= 64 or b % (64 // size) == 0:
            prefetch(np.int64(next_up + np.int64(b * size * 4)), np.int64((max(size, 64) + 15) // 16))
        tile, into = x[b * size : b * size + size], codes[b * size : b * size + size]
        f = factor[b]
        if divide:
            for j in range(size):
                into[j] = encode_bounded(bits32(F(tile[j] / f)), constants)
        else:
            for j in range(size):
                into[j] = encode_bounded(bits32(F(tile[j] * f)), constants)
    for j in range(whole * size, x.size):
        y = F(x[j] / factor[whole]) if divide else F(x[j] * factor[whole])
        codes[j] = encode_bounded(bits32(y), constants)


def _round_row(x, width, divide, factor, scale, tensor, constants, values):
    size = WIDTH if WIDTH else width
    whole = x.size // size
    for b in range(whole):
        tile, into = x[b * size : b * size + size], values[b * size : b * size + size]
        f, s = factor[b], scale[b]
        if divide:
            for j in range(size):
                into[j] = F(F(round_bounded(bits32(F(tile[j] / f)), constants) * s) * tensor)
        else:
            for j in range(size):
                into[j] = F(F(round_bounded(bits32(F(tile[j] * f)), constants) * s) * tensor)
    for j in range(whole * size, x.size):
        y = F(x[j] / factor[whole]) if divide else F(x[j] * factor[whole])
        values[j] = F(F(round_bounded(bits32(y), constants) * scale[whole]) * tensor)


@kernel
def mend_codes(x, width, divide, amax, factor, constants, codes):
    """Encode anew what `encode_bounded` cannot: blocks with NaN or Inf."""
    for b in range(amax.size):
        if amax[b] >= INF:
            for j in range(b * width, min(b * width + width, x.size)):
                y = F(x[j] / factor[b]) if divide else F(x[j] * factor[b])
                codes[j] = encode_bits(bits32(y), constants)


@kernel
def mend_values(x, width, divide, amax, factor, scale, tensor, constants, values):
    """Round anew what `round_bounded` cannot: blocks with NaN or Inf."""
    for b in range(amax.size):
        if amax[b] >= INF:
            for j in range(b * width, min(b * width + width, x.size)):
                y = F(x[j] / factor[b]) if divide else F(x[j] * factor[b])
                values[j] = F(F(float32_from_bits(round_bits(bits32(y), constants)) * scale[b]) * tensor)


@kernel
def round_any(u, constants):
    """Return a float32 rounded by `round_bits`, for formats that `round_bounded` does not serve."""
    return float32_from_bits(round_bits(u, constants))


# What a row of blocks needs, by width (0: any), and for formats that need the general cast.
WIDTHS = (0, 1, 16, 32, 128)
_AMAX = {16: _amax_16, 32: _amax_32, 128: _amax_128}
amax_rows = (
    kernel(_amax_any),
    kernel(_amax_columns),
    *(variant(_amax_whole, f"amax_row_{w}", WIDTH=w, AMAX=_AMAX[w]) for w in WIDTHS[2:]),
)
encode_rows = (
    kernel(_encode_row),
    kernel(_encode_columns),
    *(variant(_encode_row, f"encode_row_{w}", WIDTH=w) for w in WIDTHS[2:]),
)
round_rows = (
    kernel(_round_row),
    kernel(_round_columns),
    *(variant(_round_row, f"round_row_{w}", WIDTH=w) for w in WIDTHS[2:]),
)
encode_row_any = variant(_encode_row, "encode_row_any", encode_bounded=encode_bits)
round_row_any = variant(_round_row, "round_row_any", round_bounded=round_any)
