"""The innermost step of the float32 GEMM: 4 rows x 64 columns, accumulators in registers.

Each of the 256 sums is a chain of fused multiply-adds in increasing k. LLVM's ``fma`` on vectors is a fused
multiply-add on every machine (a library call on CPUs without it), so that the bits are the same everywhere.
"""

from typing import Any

from lowprec._jit import cgutils, intrinsic, ir, types

from ...vectors import F32, I64, VectorCode

ROWS, COLUMNS = 4, 64


def make_f32_tile(lanes: int, vectors: int) -> Any:
    """Return the intrinsic ``tile(a, b, state, steps)`` for registers of `lanes` float32, `vectors` per row.

    Addresses of a [steps][4], b [steps][64] and state [4][64], float32; state holds the sums so far, and `steps` is a
    multiple of 4.
    """
    signature = types.void(types.intp, types.intp, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (a, b, state, steps) = VectorCode(builder), values
        vector = ir.VectorType(F32, lanes)
        with cgutils.for_range(builder, I64(COLUMNS // (lanes * vectors))) as part:
            j0 = builder.mul(part.index, I64(4 * lanes * vectors))
            places = [[code.at(state, j0, 4 * (r * COLUMNS + v * lanes)) for v in range(vectors)] for r in range(ROWS)]
            sums = [[code.variable(code.load(place, vector)) for place in row] for row in places]
            for k in code.steps(steps):
                line = code.at(b, builder.mul(k, I64(4 * COLUMNS)), j0)
                columns = [code.load(code.at(line, 4 * v * lanes), vector) for v in range(vectors)]
                quad = code.at(a, builder.mul(k, I64(4 * ROWS)))
                for r in range(ROWS):
                    x = code.splat(code.load(code.at(quad, 4 * r), F32), vector)
                    for v in range(vectors):
                        total = code.call(f"llvm.fma.v{lanes}f32", vector, x, columns[v], builder.load(sums[r][v]))
                        builder.store(total, sums[r][v])
            for r in range(ROWS):
                for v in range(vectors):
                    code.store(builder.load(sums[r][v]), places[r][v])
        return context.get_dummy_value()

    def tile(typingctx: Any, a: Any, b: Any, state: Any, steps: Any) -> Any:
        return signature, codegen

    return intrinsic(tile)
