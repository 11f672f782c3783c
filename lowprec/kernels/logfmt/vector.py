"""Decoding a LogFMT tile, as vector code: a table of all values, or factors in registers.

Loops this short are not vectorised well from scalar ones.
"""

from __future__ import annotations

from typing import Any

from lowprec._jit import cgutils, intrinsic, ir, types

from ..vectors import F32, F64, I32, I64, VectorCode, fill

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


def _from_registers(code_bits: int) -> Any:
    """Return the intrinsic ``from_registers(codes, out, count, fine, coarse, bits, high)`` for AVX-512.

    It decodes `count` codes, a multiple of 8, of a tile whose factors fit in registers: uint8 codes of up to 8 bits (16
    fine factors, 8 coarse), uint16 ones of up to 10 (32 fine, 16 coarse; there must be as many numbers at the
    addresses). The first, second, fourth and fifth argument are addresses.
    """
    signature = types.void(*[types.intp] * 6, types.float32)
    fine_registers, coarse_registers = (2, 1) if code_bits == 8 else (4, 2)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (codes, out, count, fine, coarse, bits, high) = VectorCode(builder), values
        doubles, singles = ir.VectorType(F64, LANES), ir.VectorType(F32, LANES)
        longs, words = ir.VectorType(I64, LANES), ir.VectorType(I32, LANES)

        def registers(address: Any, count: int) -> list[Any]:
            return [code.load(code.at(address, 64 * r), doubles, align=8) for r in range(count)]

        fines, coarses = registers(fine, fine_registers), registers(coarse, coarse_registers)

        def pick(factors: list[Any], index: Any) -> Any:
            """Choose among 8, 16 or 32 factors."""
            if len(factors) == 1:
                return code.call("llvm.x86.avx512.permvar.df.512", doubles, factors[0], index)
            pairs = [
                code.call("llvm.x86.avx512.vpermi2var.pd.512", doubles, factors[r], index, factors[r + 1])
                for r in range(0, len(factors), 2)
            ]
            if len(pairs) == 1:
                return pairs[0]
            upper = builder.icmp_unsigned("!=", builder.and_(index, fill(longs, 16)), fill(longs, 0))
            return builder.select(upper, pairs[1], pairs[0])

        half = builder.lshr(bits, I64(1))
        width = builder.sub(builder.shl(I64(1), half), I64(1))
        magnitude_bits = builder.sub(bits, I64(1))
        mask = code.splat(builder.sub(builder.shl(I64(1), magnitude_bits), I64(1)), longs)
        last = builder.sub(mask, fill(longs, 1))
        halves, widths, sign_place = (code.splat(v, longs) for v in (half, width, magnitude_bits))
        highs = code.splat(high, singles)
        narrow = ir.VectorType(ir.IntType(code_bits), LANES)
        with cgutils.for_range(builder, builder.udiv(count, I64(LANES))) as step:
            first = builder.mul(step.index, I64(LANES))
            place = code.at(codes, builder.mul(first, I64(code_bits // 8)))
            c = builder.zext(code.load(place, narrow, align=1), longs)
            m = builder.and_(builder.sub(c, fill(longs, 1)), mask)  # one less than the magnitude; zero comes last
            product = builder.fmul(pick(coarses, builder.lshr(m, halves)), pick(fines, builder.and_(m, widths)))
            value = builder.bitcast(builder.fptrunc(product, singles), words)
            value = builder.select(builder.icmp_unsigned("==", m, last), builder.bitcast(highs, words), value)
            value = builder.select(builder.icmp_unsigned("==", m, mask), fill(words, 0), value)
            sign = builder.shl(builder.trunc(builder.lshr(c, sign_place), words), fill(words, 31))
            code.store(builder.or_(value, sign), code.at(out, builder.mul(first, I64(4))), align=4)
        return context.get_dummy_value()

    def typed(typingctx: Any, codes: Any, out: Any, count: Any, fine: Any, coarse: Any, bits: Any, high: Any) -> Any:
        return signature, codegen

    return intrinsic(typed)


from_registers8, from_registers16 = _from_registers(8), _from_registers(16)
