"""Filling the table of a LogFMT tile, as vector code: loops this short are not vectorised well from scalar ones."""

from __future__ import annotations

from typing import Any

from lowprec._jit import cgutils, intrinsic, ir, types

from .vector_ir import F32, F64, I64, VectorCode

LANES = 8


def _signed_table(
    typingctx: Any, coarse: Any, fine: Any, table: Any, blocks: Any, width: Any, low: Any, high: Any
) -> Any:
    """Fill a tile's table with the values of all codes: 0, float32(coarse[b] * fine[q]) .., and all of them negated.

    The first three arguments are addresses. Products are made in float64; there are size = blocks * width of them, the
    last one without a meaning; `width` is a multiple of 8. The first and the last code that are no zero get `low` and
    `high`. The table has 2 * size numbers and one to spare.
    """
    signature = types.void(*[types.intp] * 5, types.float32, types.float32)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (coarse, fine, table, blocks, width, low, high) = VectorCode(builder), values
        doubles, singles = ir.VectorType(F64, LANES), ir.VectorType(F32, LANES)
        half = builder.mul(builder.mul(blocks, width), I64(4))  # bytes of the table's positive half
        mirror = code.at(table, half)
        with cgutils.for_range(builder, builder.udiv(width, I64(LANES))) as part:
            place = builder.mul(part.index, I64(LANES))
            factors = code.load(code.at(fine, builder.mul(place, I64(8))), doubles, align=8)
            with cgutils.for_range(builder, blocks) as block:
                factor = code.splat(code.load(code.at(coarse, builder.mul(block.index, I64(8))), F64), doubles)
                product = builder.fptrunc(builder.fmul(factor, factors), singles)
                offset = builder.mul(builder.add(builder.mul(block.index, width), place), I64(4))
                code.store(product, code.at(table, offset, 4), align=4)
                code.store(builder.fneg(product), code.at(mirror, offset, 4), align=4)
        for start, sign in ((table, lambda value: value), (mirror, builder.fneg)):
            code.store(sign(F32(0.0)), start)
            code.store(sign(low), code.at(start, 4))
            code.store(sign(high), code.at(start, half, -4))
        return context.get_dummy_value()

    return signature, codegen


signed_table: Any = intrinsic(_signed_table)
