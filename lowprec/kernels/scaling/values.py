"""Values of blocks, one row of blocks at a time: the products of decoded `elements` and their scales.

Results too large for any cache are written with non-temporal stores (`streamed`), which do not read the memory first.
"""

import numpy as np

from lowprec._jit import bits32, float32_from_bits, intrinsic, kernel, types, variant

from ..cast.bounded import INF, quiet, round_bounded
from ..cast.nearest import round_bits
from ..vectors import F32, I32, I64, fill
from .elements import WIDTHS, BlockCode, either

U = np.uint32
F = np.float32
WIDTH = 0
STORED = 16  # size in bytes of a non-temporal store: NumPy's arrays begin at multiples of it


def _round_of(width):
    """Return the intrinsic that writes the values of whole blocks with `round_bounded`."""

    def typed(typingctx, x, values, factor, scale, tensor, count, divide, streamed, constants, ahead):
        """Take addresses, the tensor's scale, the block count, `round_bounded`'s constants, the prefetch distance."""

        def codegen(context, builder, signature, args):
            x, values, factor, scale, tensor, count, divide, streamed, constants, ahead = args
            code = BlockCode(builder, constants)
            whole, past = code.splat(tensor, code.singles), builder.module.add_metadata([I32(1)])

            def block_of(block, divide, streamed):
                own = builder.mul(block, I64(4))
                f, s = (code.splat(code.load(code.at(a, own), F32), code.singles) for a in (factor, scale))
                for v in range(0, width, 16):
                    offset = code.at(builder.mul(block, I64(4 * width)), 4 * v)
                    place = code.at(x, offset)
                    code.prefetch(code.at(place, ahead))
                    u = builder.bitcast(code.scaled(place, f, divide), code.words)
                    total, magic, _ = code.rounded(u)
                    r = builder.bitcast(builder.fsub(total, builder.bitcast(magic, code.singles)), code.words)
                    r = builder.or_(r, builder.and_(u, fill(code.words, 0x80000000)))
                    r = builder.fmul(builder.fmul(builder.bitcast(r, code.singles), s), whole)
                    place = builder.inttoptr(code.at(values, offset), code.singles.as_pointer())
                    store = builder.store(r, place, align=STORED if streamed else 4)
                    if streamed:
                        store.set_metadata("nontemporal", past)

            def emit(divide, streamed):
                for block in code.blocks(count):
                    block_of(block, divide, streamed)
                if streamed:
                    builder.fence("seq_cst")  # non-temporal stores are unordered until then

            either(builder, streamed, lambda s: either(builder, divide, lambda d: emit(d, s)))
            return context.get_dummy_value()

        flags = (types.boolean, types.boolean)
        return types.void(*[types.intp] * 4, types.float32, types.intp, *flags, constants, types.intp), codegen

    return intrinsic(typed)


def ROUND(x, values, factor, scale, tensor, count, divide, streamed, constants, ahead):
    """Serve as a placeholder, rebound to the intrinsic of a variant."""


def _round_whole(x, width, divide, factor, scale, tensor, constants, ahead, streamed, values):
    whole = x.size // WIDTH
    place, into = np.intp(x.ctypes.data), np.intp(values.ctypes.data)
    own, back = np.intp(factor.ctypes.data), np.intp(scale.ctypes.data)
    past = streamed and into % STORED == 0
    ROUND(place, into, own, back, F(tensor), np.intp(whole), divide, past, constants, np.intp(ahead))
    for j in range(whole * WIDTH, x.size):
        y = F(x[j] / factor[whole]) if divide else F(x[j] * factor[whole])
        values[j] = F(F(round_bounded(bits32(y), constants) * scale[whole]) * tensor)


def _round_columns(x, width, divide, factor, scale, tensor, constants, ahead, streamed, values):
    if divide:
        for j in range(x.size):
            values[j] = F(F(round_bounded(bits32(F(x[j] / factor[j])), constants) * scale[j]) * tensor)
    else:
        for j in range(x.size):
            values[j] = F(F(round_bounded(bits32(F(x[j] * factor[j])), constants) * scale[j]) * tensor)


def _round_row(x, width, divide, factor, scale, tensor, constants, ahead, streamed, values):
    for b in range(factor.size):
        first, last = b * width, min(b * width + width, x.size)
        tile, into, f, s = x[first:last], values[first:last], factor[b], scale[b]
        if divide:
            for j in range(tile.size):
                into[j] = F(F(round_bounded(bits32(F(tile[j] / f)), constants) * s) * tensor)
        else:
            for j in range(tile.size):
                into[j] = F(F(round_bounded(bits32(F(tile[j] * f)), constants) * s) * tensor)


@kernel
def mend_values(x, width, divide, amax, factor, scale, tensor, constants, values):
    """Recompute the values that `round_bounded` cannot round: blocks with NaN or Inf."""
    for b in range(amax.size):
        if amax[b] >= INF:
            for j in range(b * width, min(b * width + width, x.size)):
                y = F(x[j] / factor[b]) if divide else F(x[j] * factor[b])
                r = float32_from_bits(round_bits(bits32(y), constants))
                values[j] = quiet(F(F(r * scale[b]) * tensor))


@kernel
def round_any(u, constants):
    """Return a float32 rounded by `round_bits`, for formats that `round_bounded` does not support."""
    return float32_from_bits(round_bits(u, constants))


round_rows = (
    kernel(_round_row),
    kernel(_round_columns),
    *(variant(_round_whole, f"round_row_{w}", WIDTH=w, ROUND=_round_of(w)) for w in WIDTHS[2:]),
)
round_row_any = variant(_round_row, "round_row_any", round_bounded=round_any)
