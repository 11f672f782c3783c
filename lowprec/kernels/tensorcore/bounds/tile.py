"""Innermost loops of the bounds, for 4 rows and some columns: exact sums, and counts of products that lose bits.

Written in LLVM's vector IR because sums must stay in registers for a whole block, and exponents are added and compared
as 16-bit integers, which Numba widens to 64 bits.
"""

from lowprec._jit import cgutils, cpu_features, intrinsic, ir, types

from ...vectors import F64, I16, I64, VectorCode

_HAS_512 = "avx512f" in cpu_features()
ROWS = 4  # of a tile
COLUMNS = 32 if _HAS_512 else 8  # columns of exact sums: their vectors fill the registers
COUNTED = 64 if _HAS_512 else 32
_VECTOR = 64 if _HAS_512 else 32  # bytes


def _grid(code, count, item, initial):
    """Return slots for the vectors of 4 rows, initialized by row and byte offset in the row."""
    return [[code.variable(initial(r, v * _VECTOR)) for v in range(count * item // _VECTOR)] for r in range(ROWS)]


def _add_products(typingctx, x, y, source, target, stride, count):
    """Write ``source + X.T @ Y`` to ``target``, added in increasing k; X [K, 4], Y [K, COLUMNS], sums [4, COLUMNS].

    Operands and sums are addresses of float64; `stride` is the number of bytes between rows.
    """

    def codegen(context, builder, signature, args):
        x, y, source, target, stride, count = args
        code, vector = VectorCode(builder), ir.VectorType(F64, _VECTOR // 8)

        def place(base, r, offset):
            return code.at(base, builder.mul(stride, I64(r)), offset)

        sums = _grid(code, COLUMNS, 8, lambda r, at: code.load(place(source, r, at), vector, 8))
        with cgutils.for_range(builder, count) as loop:
            line, quad = (code.at(base, builder.mul(loop.index, stride)) for base in (y, x))
            columns = [code.load(code.at(line, v * _VECTOR), vector, 8) for v in range(len(sums[0]))]
            for r, slots in enumerate(sums):
                factor = code.splat(code.load(code.at(quad, 8 * r), F64), vector)
                for slot, column in zip(slots, columns, strict=True):
                    total = code.call(f"llvm.fma.v{vector.count}f64", vector, factor, column, builder.load(slot))
                    builder.store(total, slot)
        for r, slots in enumerate(sums):
            for v, slot in enumerate(slots):
                code.store(builder.load(slot), place(target, r, v * _VECTOR), 8)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), codegen


def _count_below(typingctx, x, y, limits, counts, stride, count):
    """Count the products with an exponent ``x + y`` below each output's limit; X [K, 4], Y [K, COUNTED], all int16."""

    def codegen(context, builder, signature, args):
        x, y, limits, counts, stride, count = args
        code, vector = VectorCode(builder), ir.VectorType(I16, _VECTOR // 2)

        def place(base, r, offset):
            return code.at(base, builder.mul(stride, I64(r)), offset)

        zero = ir.Constant(vector, None)
        found = _grid(code, COUNTED, 2, lambda r, at: zero)
        least = [
            [code.load(place(limits, r, v * _VECTOR), vector, 2) for v in range(len(found[0]))] for r in range(ROWS)
        ]
        with cgutils.for_range(builder, count) as loop:
            line, quad = (code.at(base, builder.mul(loop.index, stride)) for base in (y, x))
            columns = [code.load(code.at(line, v * _VECTOR), vector, 2) for v in range(len(found[0]))]
            for r, slots in enumerate(found):
                row = code.splat(code.load(code.at(quad, 2 * r), I16), vector)
                for slot, column, limit in zip(slots, columns, least[r], strict=True):
                    below = builder.icmp_signed("<", builder.add(row, column), limit)
                    builder.store(builder.sub(builder.load(slot), builder.sext(below, vector)), slot)
        for r, slots in enumerate(found):
            for v, slot in enumerate(slots):
                code.store(builder.load(slot), place(counts, r, v * _VECTOR), 2)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), codegen


add_products, count_below = intrinsic(_add_products), intrinsic(_count_below)
