"""The innermost step of the fast tensor-core kernels: one group of products for 4 rows x 64 columns.

Written in LLVM's vector IR because two things cannot be said in Python syntax: a fused multiply-add that rounds
toward zero by its own encoding (AVX-512), and accumulators that stay in registers over the whole group.

With M + S in the accumulator (see `gemm_fused`) and B multiplied by 1 + 2^-16 beforehand, one fused multiply-add
that rounds toward zero multiplies, aligns, truncates and adds:

* M + S > 0, so rounding toward zero is rounding down: p / q becomes floor(p / q * (1 + 2^-16)).
* p >= 0: p / q = n + f with f <= 1 - 2^-8 below 2^7 and f = 0 above (8 significant bits), and n < 2^(F + 2); the
  extra p / q * 2^-16 is below 2^-9 in the first case and below 1 in the second, so the floor is n, for F <= 14.
* p < 0: the floor is -(n + 1) whether or not f = 0, one more than truncation takes away. So the sum lacks exactly
  one q for every nonzero negative product, and those are counted: popcount(A+ & B- | A- & B+) of bit masks.

M follows from the accumulator's own exponent, as M <= M + S < 2^24 q and M + S >= 2^23 q.
"""

from typing import Any, NamedTuple

from lowprec._jit import cgutils, intrinsic, ir, types

ROWS, COLUMNS = 4, 64
UNROLL = 4  # products of a group that are written out between two tests of the loop's end
NO_PRODUCT = -40  # every nonzero product has a larger exponent (>= -32)
TOWARD_ZERO = 8 | 3  # rounding control of the AVX-512 encodings: toward zero, exceptions suppressed
I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


class Shape(NamedTuple):
    """How a machine's registers are used: `lanes` float32 in a vector, `vectors` of them side by side."""

    lanes: int
    vectors: int
    embedded: bool  # rounding in the instruction's encoding; otherwise the thread's mode must be toward zero


def make_tile(shape: Shape) -> Any:
    """Return the intrinsic ``tile(`` the twelve arguments below ``)`` for use inside kernels.

    Arrays are passed as addresses::

        a_values, a_exponents   [4][a_stride] float32, int8: the group's first product comes first
        a_masks                 [4][mask_stride] uint32: positive, negative
        a_stride, mask_stride   in items
        b_values, b_exponents   [group][64] float32 times 1 + 2^-16, int8
        b_masks                 [2][64] uint32: positive, negative
        state                   [4][64] float32: C on entry, D on return
        group                   a multiple of 4, at most 32
        fraction_bits, keep     int32: F, and the fraction bits of D
    """
    signature = types.void(*[types.intp] * 10, types.int32, types.int32)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        _Tile(builder, shape, *values).emit()
        return context.get_dummy_value()

    def tile(
        typingctx: Any, a_values: Any, a_exponents: Any, a_masks: Any, a_stride: Any, mask_stride: Any,
        b_values: Any, b_exponents: Any, b_masks: Any, state: Any, group: Any, fraction_bits: Any, keep: Any,
    ) -> Any:  # fmt: skip
        return signature, codegen

    return intrinsic(tile)


class _Tile:
    """Emits the instructions of one tile; methods stand in the order of execution."""

    def __init__(
        self, builder: Any, shape: Shape, a_values: Any, a_exponents: Any, a_masks: Any, a_stride: Any,
        mask_stride: Any, b_values: Any, b_exponents: Any, b_masks: Any, state: Any, group: Any,
        fraction_bits: Any, keep: Any,
    ) -> None:  # fmt: skip
        self.builder, self.shape = builder, shape
        self.a_values, self.a_exponents, self.a_masks = a_values, a_exponents, a_masks
        self.a_stride, self.mask_stride = a_stride, mask_stride
        self.b_values, self.b_exponents, self.b_masks = b_values, b_exponents, b_masks
        self.state, self.group, self.fraction_bits, self.keep = state, group, fraction_bits, keep
        self.bytes_wide = 4 * shape.lanes  # as many bytes as a float vector has
        self.byte_vector = ir.VectorType(I8, self.bytes_wide)
        self.int_vector = ir.VectorType(I32, shape.lanes)
        self.float_vector = ir.VectorType(F32, shape.lanes)

    def emit(self) -> None:
        top = self.largest_exponents()
        step = self.shape.vectors * self.shape.lanes
        if step == COLUMNS:
            self.columns(top, I64(0))
        else:
            with cgutils.for_range(self.builder, I64(COLUMNS // step)) as loop:
                self.columns(top, self.builder.mul(loop.index, I64(step)))

    def largest_exponents(self) -> Any:
        """Find the largest exponent of each output's products; returns the address of [4][64] int8 on the stack."""
        b, wide = self.builder, COLUMNS // self.bytes_wide
        best = [[self.variable(self.fill(self.byte_vector, -128)) for _ in range(wide)] for _ in range(ROWS)]
        for k in self.products():
            line = self.at(self.b_exponents, b.mul(k, I64(COLUMNS)))
            columns = [self.load(self.at(line, w * self.bytes_wide), self.byte_vector) for w in range(wide)]
            for r in range(ROWS):
                e = self.splat(self.load(self.at(self.a_exponents, self.rows(r), k), I8), self.byte_vector)
                for w in range(wide):
                    total, before = b.add(e, columns[w]), b.load(best[r][w])
                    b.store(b.select(b.icmp_signed(">", total, before), total, before), best[r][w])
        top = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(I8, ROWS * COLUMNS)), I64)
        for r in range(ROWS):
            for w in range(wide):
                self.store(b.load(best[r][w]), self.at(top, r * COLUMNS + w * self.bytes_wide), align=1)
        return top

    def columns(self, top: Any, j0: Any) -> None:
        """Compute ``lanes * vectors`` columns from `j0`: C truncated onto M, the products, and M taken away."""
        b, lanes, vectors = self.builder, self.shape.lanes, self.shape.vectors
        offset = b.mul(j0, I64(4))
        places = [
            [self.at(self.state, offset, 4 * (r * COLUMNS + v * lanes)) for v in range(vectors)] for r in range(ROWS)
        ]
        sums = []
        for r in range(ROWS):
            tops = [self.at(top, j0, r * COLUMNS + v * lanes) for v in range(vectors)]
            sums.append([self.variable(self.start(places[r][v], tops[v])) for v in range(vectors)])
        for k in self.products():
            line = self.at(self.b_values, b.mul(k, I64(4 * COLUMNS)), offset)
            columns = [self.load(self.at(line, 4 * v * lanes), self.float_vector) for v in range(vectors)]
            for r in range(ROWS):
                at = self.at(self.a_values, b.mul(self.rows(r), I64(4)), b.mul(k, I64(4)))
                a = self.splat(self.load(at, F32), self.float_vector)
                for v in range(vectors):
                    b.store(self.multiply_add(a, columns[v], b.load(sums[r][v])), sums[r][v])
        for v in range(vectors):
            line = self.at(self.b_masks, offset, 4 * v * lanes)
            b_masks = [self.load(self.at(line, sign * 4 * COLUMNS), self.int_vector) for sign in (0, 1)]
            for r in range(ROWS):
                self.store(self.finish(b.load(sums[r][v]), r, b_masks), places[r][v])

    def start(self, place: Any, top: Any) -> Any:
        """Return M plus C truncated to a multiple of q."""
        b, vector = self.builder, self.int_vector
        c = self.load(place, vector)
        e_c = b.and_(b.lshr(c, self.fill(vector, 23)), self.fill(vector, 0xFF))
        e_p = b.add(b.sext(self.load(top, ir.VectorType(I8, self.shape.lanes), 1), vector), self.fill(vector, 127))
        some = b.icmp_signed(">", e_p, self.fill(vector, 127 + NO_PRODUCT))
        e_p = b.select(some, e_p, self.fill(vector, 20))
        e = b.select(b.icmp_signed(">", e_p, e_c), e_p, e_c)
        # Bits of C below q: as many as E exceeds C's exponent, beyond those that F leaves out of 23.
        drop = b.add(b.sub(e, e_c), self.splat(b.sub(I32(23), self.fraction_bits), vector))
        inside = b.icmp_signed("<", drop, self.fill(vector, 24))
        mask = b.shl(self.fill(vector, -1), b.select(inside, drop, self.fill(vector, 31)))
        kept = b.select(inside, b.and_(c, mask), self.fill(vector, 0))
        q = b.sub(e, self.splat(self.fraction_bits, vector))
        m = b.or_(b.shl(b.add(q, self.fill(vector, 23)), self.fill(vector, 23)), self.fill(vector, 0x400000))
        return b.fadd(b.bitcast(m, self.float_vector), b.bitcast(kept, self.float_vector))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return the fused a * b + c, rounded toward zero."""
        lanes, embedded = self.shape.lanes, self.shape.embedded
        name = f"llvm.x86.avx512.vfmadd.ps.{32 * lanes}" if embedded else f"llvm.fma.v{lanes}f32"
        mode = [I32(TOWARD_ZERO)] if embedded else []
        return self.call(name, self.float_vector, a, b, c, *mode)

    def finish(self, total: Any, row: int, b_masks: list[Any]) -> Any:
        """Return the bits of D: give back what was taken from negative products, take M away, truncate."""
        b, vector = self.builder, self.int_vector
        at = self.at(self.a_masks, b.mul(b.mul(self.mask_stride, I64(row)), I64(4)))
        positive, negative = (self.splat(self.load(self.at(at, 4 * sign), I32), vector) for sign in (0, 1))
        products = b.or_(b.and_(positive, b_masks[1]), b.and_(negative, b_masks[0]))
        count = b.uitofp(self.call(f"llvm.ctpop.v{self.shape.lanes}i32", vector, products), self.float_vector)
        exponent = b.and_(b.bitcast(total, vector), self.fill(vector, 0x7F800000))
        m = b.bitcast(b.or_(exponent, self.fill(vector, 0x400000)), self.float_vector)
        q = b.bitcast(b.sub(exponent, self.fill(vector, 23 << 23)), self.float_vector)
        value = b.fadd(b.fsub(total, m), b.fmul(count, q))
        clear = self.splat(b.shl(I32(-1), b.sub(I32(23), self.keep)), vector)
        return b.and_(b.bitcast(value, vector), clear)

    def products(self) -> Any:
        """Yield the index of each product of the group, within a loop."""
        b = self.builder
        with cgutils.for_range(b, b.udiv(self.group, I64(UNROLL))) as loop:
            first = b.mul(loop.index, I64(UNROLL))
            for u in range(UNROLL):
                yield b.add(first, I64(u))

    def rows(self, r: int) -> Any:
        return self.builder.mul(self.a_stride, I64(r))

    def at(self, address: Any, *offsets: Any) -> Any:
        for offset in offsets:
            address = self.builder.add(address, I64(offset) if isinstance(offset, int) else offset)
        return address

    def load(self, address: Any, kind: Any, align: int | None = None) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align or self.size(kind))

    def store(self, value: Any, address: Any, align: int | None = None) -> None:
        place = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, place, align=align or self.size(value.type))

    def variable(self, value: Any) -> Any:
        """Return a stack slot that holds `value`; LLVM turns these into registers."""
        slot = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, slot)
        return slot

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def fill(self, vector: Any, value: int) -> Any:
        return ir.Constant(vector, [value] * vector.count)

    def splat(self, scalar: Any, vector: Any) -> Any:
        blank = ir.Constant(vector, ir.Undefined)
        seed = self.builder.insert_element(blank, scalar, I32(0))
        return self.builder.shuffle_vector(seed, blank, ir.Constant(ir.VectorType(I32, vector.count), None))

    @staticmethod
    def size(kind: Any) -> int:
        items, item = (kind.count, kind.element) if isinstance(kind, ir.VectorType) else (1, kind)
        return items * (4 if item == F32 else item.width // 8)
