"""Decoding of LogFMT as vector code: with a table of a tile's values, in memory or in registers, or its factors.

LLVM does not vectorize loops this short well.
"""

from __future__ import annotations

from typing import Any

from lowprec._jit import cgutils, intrinsic, ir, types

from ..vectors import F32, F64, I8, I16, I32, I64, VectorCode, fill

LANES = 8


def _signed_table(
    typingctx: Any, coarse: Any, fine: Any, table: Any, blocks: Any, width: Any, low: Any, high: Any
) -> Any:
    """Fill a tile's table with the values of all codes: 0, float32(coarse[b] * fine[q]) .., and their negatives.

    The first three arguments are addresses. Products are computed in float64; there are size = blocks * width of them,
    of which the last is unused; `width` is a multiple of 8. The first and the last nonzero code get `low` and `high`.
    The table has space for 2 * size + 1 numbers.
    """
    signature = types.void(*[types.intp] * 5, types.float32, types.float32)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (coarse, fine, table, blocks, width, low, high) = VectorCode(builder), values
        doubles, singles = ir.VectorType(F64, LANES), ir.VectorType(F32, LANES)
        half = builder.mul(builder.mul(blocks, width), I64(4))  # size in bytes of the table's positive half
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


def _from_registers(
    typingctx: Any, codes: Any, out: Any, count: Any, fine: Any, coarse: Any, bits: Any, high: Any
) -> Any:
    """Decode `count` uint16 codes of up to 10 bits, a multiple of 8, with a tile's factors in AVX-512 registers.

    There are 32 fine and 16 coarse factors, and the addresses must hold as many. The first, second, fourth and fifth
    argument are addresses.
    """
    signature = types.void(*[types.intp] * 6, types.float32)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (codes, out, count, fine, coarse, bits, high) = VectorCode(builder), values
        doubles, singles = ir.VectorType(F64, LANES), ir.VectorType(F32, LANES)
        longs, words = ir.VectorType(I64, LANES), ir.VectorType(I32, LANES)
        fines, coarses = (
            [code.load(code.at(address, 64 * r), doubles, align=8) for r in range(registers)]
            for address, registers in ((fine, 4), (coarse, 2))
        )

        def pick(factors: list[Any], index: Any) -> Any:
            """Select among 16 or 32 factors."""
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
        with cgutils.for_range(builder, builder.udiv(count, I64(LANES))) as step:
            first = builder.mul(step.index, I64(LANES))
            place = code.at(codes, builder.mul(first, I64(2)))
            c = builder.zext(code.load(place, ir.VectorType(I16, LANES), align=1), longs)
            m = builder.and_(builder.sub(c, fill(longs, 1)), mask)  # magnitude code minus one; zero comes last
            product = builder.fmul(pick(coarses, builder.lshr(m, halves)), pick(fines, builder.and_(m, widths)))
            value = builder.bitcast(builder.fptrunc(product, singles), words)
            value = builder.select(builder.icmp_unsigned("==", m, last), builder.bitcast(highs, words), value)
            value = builder.select(builder.icmp_unsigned("==", m, mask), fill(words, 0), value)
            sign = builder.shl(builder.trunc(builder.lshr(c, sign_place), words), fill(words, 31))
            code.store(builder.or_(value, sign), code.at(out, builder.mul(first, I64(4))), align=4)
        return context.get_dummy_value()

    return signature, codegen


from_registers: Any = intrinsic(_from_registers)


def _entry(code: VectorCode, entries: list[Any], index: Any) -> Any:
    """Select for 16 indices among 128 entries in 8 registers."""
    builder, words = code.builder, index.type
    picked = [
        code.call("llvm.x86.avx512.vpermi2var.ps.512", entries[r].type, entries[r], index, entries[r + 1])
        for r in range(0, 8, 2)
    ]

    def bit(which: int) -> Any:
        return builder.icmp_unsigned("!=", builder.and_(index, fill(words, which)), fill(words, 0))

    lower, upper = (builder.select(bit(32), picked[r + 1], picked[r]) for r in (0, 2))
    return builder.select(bit(64), upper, lower)


def _from_table(typingctx: Any, codes: Any, out: Any, count: Any, table: Any, bits: Any) -> Any:
    """Decode `count` uint8 codes of up to 8 bits, a multiple of 16, with a table in registers (AVX-512).

    The first, second and fourth argument are addresses; the last one holds 128 numbers, for the magnitudes 0, 1 ..
    """
    signature = types.void(*[types.intp] * 5)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (codes, out, count, table, bits) = VectorCode(builder), values
        singles, words = ir.VectorType(F32, 16), ir.VectorType(I32, 16)
        entries = [code.load(code.at(table, 64 * r), singles, align=4) for r in range(8)]
        places = builder.trunc(builder.sub(bits, I64(1)), I32)
        mask = code.splat(builder.sub(builder.shl(I32(1), places), I32(1)), words)
        to_sign = code.splat(builder.sub(I32(31), places), words)
        with cgutils.for_range(builder, builder.udiv(count, I64(16))) as step:
            first = builder.mul(step.index, I64(16))
            c = builder.zext(code.load(code.at(codes, first), ir.VectorType(I8, 16), align=1), words)
            value = builder.bitcast(_entry(code, entries, builder.and_(c, mask)), words)
            sign = builder.and_(builder.shl(c, to_sign), fill(words, -(2**31)))
            code.store(builder.or_(value, sign), code.at(out, builder.mul(first, I64(4))), align=4)
        return context.get_dummy_value()

    return signature, codegen


from_table: Any = intrinsic(_from_table)


def _around(typingctx: Any, codes: Any, below: Any, above: Any, count: Any, table: Any) -> Any:
    """Write the entry of each uint8 code below 128, and the next entry, from a table in registers (AVX-512).

    All arguments but `count`, a multiple of 16, are addresses; the last one holds 129 numbers.
    """
    signature = types.void(*[types.intp] * 5)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (codes, below, above, count, table) = VectorCode(builder), values
        singles, words = ir.VectorType(F32, 16), ir.VectorType(I32, 16)
        entries = [[code.load(code.at(table, 64 * r + 4 * n), singles, align=4) for r in range(8)] for n in (0, 1)]
        with cgutils.for_range(builder, builder.udiv(count, I64(16))) as step:
            first = builder.mul(step.index, I64(16))
            c = builder.zext(code.load(code.at(codes, first), ir.VectorType(I8, 16), align=1), words)
            for n, out in enumerate((below, above)):
                code.store(_entry(code, entries[n], c), code.at(out, builder.mul(first, I64(4))), align=4)
        return context.get_dummy_value()

    return signature, codegen


around: Any = intrinsic(_around)
