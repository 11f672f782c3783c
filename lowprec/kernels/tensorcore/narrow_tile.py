"""Groups of FP8 products in float32 lanes, rounding toward zero: the innermost step, for 4 rows x 64 columns.

The same conditions hold as for `narrow_portable`, with groups of up to 32 products (a multiple of 4) and fraction bits
up to 14. Written in LLVM's vector IR because two things cannot be said in Python syntax: a fused multiply-add that
rounds toward zero by its own encoding (AVX-512), and accumulators that stay in registers over the whole group.

With M + S in the accumulator (see `narrow_portable`) and B multiplied by 1 + 2^-16 beforehand, one fused multiply-add
that rounds toward zero multiplies, aligns, truncates and adds:

* M + S > 0, so rounding toward zero is rounding down: p / q becomes floor(p / q * (1 + 2^-16)).
* p >= 0: p / q = n + f with f <= 1 - 2^-8 below 2^7 and f = 0 above (8 significant bits), and n < 2^(F + 2); the
  extra p / q * 2^-16 is below 2^-9 in the first case and below 1 in the second, so the floor is n, for F <= 14.
* p < 0: the floor is -(n + 1) whether or not f = 0, one more than truncation takes away. So the sum lacks exactly
  one q for every nonzero negative product, and those are counted: popcount(A+ & B- | A- & B+) of bit masks.

C takes the same way as a product of 1 and C, cut to F fraction bits beforehand (which truncation at q would do
anyway): C / q in [2^t, 2^(t + 1)) has f <= 1 - 2^(t - F), and the extra 2^(t - 15) stays below that for F <= 14.

M follows from the accumulator's own exponent, as 2^23 q <= M + S < 2^24 q.
"""

from typing import Any, NamedTuple

import numpy as np

from lowprec._jit import cgutils, intrinsic, ir, types, variant

from ..vectors import F32, I8, I32, I64, TOWARD_ZERO, VectorCode, aligned_f32, aligned_i8, fields, fill
from .gemm import Operand, make_gemm

ROWS, COLUMNS = 4, 64
BATCH = 256  # rows that sweep over one slice of a panel; their running sums are kept meanwhile
FACTOR = 1 + 2.0**-16  # of B's values
NO_PRODUCT = -40  # every nonzero product has a larger exponent (>= -32)


class Shape(NamedTuple):
    """How a machine's registers are used: `lanes` float32 in a vector, `vectors` of them side by side."""

    lanes: int
    vectors: int
    # Rounding in the instruction's encoding; otherwise the thread's mode must be toward zero.
    embedded: bool
    # Look for the next group's largest exponents while this group's products are added: other execution ports do
    # it, but it takes a quarter of 32 registers.
    interleaved: bool


def make_tile(shape: Shape) -> Any:
    """Return the intrinsic ``tile(a, b, state, groups, sums, following)`` for use inside kernels.

    Arrays are passed as addresses of the chain's first group::

        a           values, exponents   [groups * group][4] float32, int8
                    masks               [groups][2][4] uint32: positive, negative
        b           the same, [64] for [4]; values times `FACTOR`
        state       [4][64] float32: C on entry (zero is +0), D on return
        groups      at least 1
        sums        `gemm.Sums`: the group is a multiple of 4, at most 32
        following   top [4][64] int8, a's and b's exponents: the largest exponents of the first group's products on
                    entry (from `make_first_exponents`), of the group at these two addresses on return; only used if
                    `shape.interleaved`
    """

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, b, state, groups, sums, following = values
        parts = (fields(builder, part) for part in (a, b, sums, following))
        _Tile(builder, shape, state, groups, *parts).emit()
        return context.get_dummy_value()

    def tile(typingctx: Any, a: Any, b: Any, state: Any, groups: Any, sums: Any, following: Any) -> Any:
        return types.void(a, b, types.intp, types.intp, sums, following), codegen

    return intrinsic(tile)


def make_first_exponents(shape: Shape) -> Any:
    """Return the intrinsic ``first_exponents(a_exponents, b_exponents, group, top)`` for a sweep's first tile."""

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        a_exponents, b_exponents, group, top = values
        code = _Exponents(builder, shape)
        for k in code.steps(group):
            code.compare(a_exponents, b_exponents, k)
        code.save(top)
        return context.get_dummy_value()

    def first_exponents(typingctx: Any, a_exponents: Any, b_exponents: Any, group: Any, top: Any) -> Any:
        return types.void(*[types.intp] * 4), codegen

    return intrinsic(first_exponents)


class _Exponents(VectorCode):
    """The search for each output's largest exponent among the products of a group."""

    def __init__(self, builder: Any, shape: Shape) -> None:
        super().__init__(builder)
        self.shape = shape
        self.bytes_wide = 4 * shape.lanes  # as many bytes as a float vector has
        self.byte_vector = ir.VectorType(I8, self.bytes_wide)
        self.best = [
            [self.variable(fill(self.byte_vector, -128)) for _ in range(COLUMNS // self.bytes_wide)]
            for _ in range(ROWS)
        ]

    def compare(self, a_exponents: Any, b_exponents: Any, k: Any) -> None:
        """Let product `k` of the group at these addresses take part."""
        b = self.builder
        line, quad = self.at(b_exponents, b.mul(k, I64(COLUMNS))), self.at(a_exponents, b.mul(k, I64(ROWS)))
        columns = [self.load(self.at(line, w * self.bytes_wide), self.byte_vector) for w in range(len(self.best[0]))]
        for r in range(ROWS):
            e = self.splat(self.load(self.at(quad, r), I8), self.byte_vector)
            for w, column in enumerate(columns):
                total, before = b.add(e, column), b.load(self.best[r][w])
                b.store(b.select(b.icmp_signed(">", total, before), total, before), self.best[r][w])

    def biased(self) -> list[list[Any]]:
        """Return the largest exponents by row, biased as in a float32, as bytes; start anew for the next group."""
        b, vector = self.builder, self.byte_vector
        found: list[list[Any]] = []
        for row in self.best:
            found.append([])
            for slot in row:
                e = b.load(slot)
                some = b.icmp_signed(">", e, fill(vector, NO_PRODUCT))
                found[-1].append(b.select(some, b.add(e, fill(vector, 127)), fill(vector, 20)))
                b.store(fill(vector, -128), slot)
        return found

    def save(self, top: Any) -> None:
        """Write what was found to memory."""
        for place, slot in self._places(top):
            self.store(self.builder.load(slot), place)

    def restore(self, top: Any) -> None:
        """Go on with what was found before."""
        for place, slot in self._places(top):
            self.builder.store(self.load(place, self.byte_vector), slot)

    def _places(self, top: Any) -> list[tuple[Any, Any]]:
        return [
            (self.at(top, r * COLUMNS + w * self.bytes_wide), slot)
            for r, row in enumerate(self.best)
            for w, slot in enumerate(row)
        ]


class _Tile(_Exponents):
    """Emits the instructions of one tile; methods stand in the order of execution."""

    def __init__(
        self, builder: Any, shape: Shape, state: Any, groups: Any, a: Any, b: Any, sums: Any, following: Any
    ) -> None:
        super().__init__(builder, shape)
        self.state, self.groups = state, groups
        self.a_values, self.a_exponents, self.a_masks = a
        self.b_values, self.b_exponents, self.b_masks = b
        self.group = sums[0]
        fraction_bits, keep = (builder.trunc(bits, I32) for bits in sums[1:3])
        self.top, self.next_a, self.next_b = following
        self.int_vector = ir.VectorType(I32, shape.lanes)
        self.float_vector = ir.VectorType(F32, shape.lanes)
        # M for the biased exponent e is the float with the bits (e << 23) + m_bits: 1.5 * 2^(23 - F) above 2^e.
        m_bits = builder.add(builder.shl(builder.sub(I32(23), fraction_bits), I32(23)), I32(0x400000))
        self.m_bits = self.splat(m_bits, self.int_vector)
        self.clear = self.splat(builder.shl(I32(-1), builder.sub(I32(23), keep)), self.int_vector)
        self.clear_c = self.splat(builder.shl(I32(-1), builder.sub(I32(23), fraction_bits)), self.int_vector)

    def emit(self) -> None:
        b, step = self.builder, self.shape.vectors * self.shape.lanes
        if self.shape.interleaved:
            assert step == COLUMNS
            self.restore(self.top)
            with cgutils.for_range(b, self.groups) as loop:
                tops = [[self.part(e, v) for v in range(self.shape.vectors)] for (e,) in self.biased()]
                following = b.add(loop.index, I64(1))
                last = b.icmp_signed("==", following, self.groups)
                inside = b.mul(following, self.group)
                a_next = b.select(last, self.next_a, self.at(self.a_exponents, b.mul(inside, I64(ROWS))))
                b_next = b.select(last, self.next_b, self.at(self.b_exponents, b.mul(inside, I64(COLUMNS))))
                self.columns(loop.index, I64(0), tops, (a_next, b_next))
            self.save(self.top)
            return
        place = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(I8, ROWS * COLUMNS)), I64)
        narrow = ir.VectorType(I8, self.shape.lanes)
        with cgutils.for_range(b, self.groups) as loop:
            first = b.mul(loop.index, self.group)
            a_group = self.at(self.a_exponents, b.mul(first, I64(ROWS)))
            b_group = self.at(self.b_exponents, b.mul(first, I64(COLUMNS)))
            for k in self.steps(self.group):
                self.compare(a_group, b_group, k)
            for r, row in enumerate(self.biased()):
                for w, e in enumerate(row):
                    self.store(e, self.at(place, r * COLUMNS + w * self.bytes_wide), align=1)
            with cgutils.for_range(b, I64(COLUMNS // step)) as parts:
                j0 = b.mul(parts.index, I64(step))
                starts = [
                    [self.at(place, j0, r * COLUMNS + v * self.shape.lanes) for v in range(self.shape.vectors)]
                    for r in range(ROWS)
                ]
                tops = [[b.zext(self.load(at, narrow, 1), self.int_vector) for at in row] for row in starts]
                self.columns(loop.index, j0, tops, None)

    def part(self, e: Any, v: int) -> Any:
        """Return the exponents of the `v`-th float vector's columns, widened to 32 bits."""
        lanes = [v * self.shape.lanes + lane for lane in range(self.shape.lanes)]
        picked = self.builder.shuffle_vector(e, e, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))
        return self.builder.zext(picked, self.int_vector)

    def columns(self, g: Any, j0: Any, tops: list[list[Any]], next_group: tuple[Any, Any] | None) -> None:
        """Compute group `g` for ``lanes * vectors`` columns from `j0`: M and C, the products, and M taken away."""
        b, lanes, vectors = self.builder, self.shape.lanes, self.shape.vectors
        offset = b.mul(j0, I64(4))
        places = [
            [self.at(self.state, offset, 4 * (r * COLUMNS + v * lanes)) for v in range(vectors)] for r in range(ROWS)
        ]
        sums = []
        for r in range(ROWS):
            sums.append([self.variable(self.start(places[r][v], tops[r][v])) for v in range(vectors)])
        first = b.mul(g, self.group)
        for within in self.steps(self.group):
            if next_group is not None:
                self.compare(*next_group, within)
            k = b.add(first, within)
            line, a_line = (
                self.at(self.b_values, b.mul(k, I64(4 * COLUMNS)), offset),
                self.at(self.a_values, b.mul(k, I64(16))),
            )
            columns = [self.load(self.at(line, 4 * v * lanes), self.float_vector) for v in range(vectors)]
            for r in range(ROWS):
                a = self.splat(self.load(self.at(a_line, 4 * r), F32), self.float_vector)
                for v in range(vectors):
                    b.store(self.multiply_add(a, columns[v], b.load(sums[r][v])), sums[r][v])
        masks = self.at(self.b_masks, b.mul(g, I64(8 * COLUMNS)), offset)
        for v in range(vectors):
            line = self.at(masks, 4 * v * lanes)
            b_masks = [self.load(self.at(line, sign * 4 * COLUMNS), self.int_vector) for sign in (0, 1)]
            for r in range(ROWS):
                a_masks = self.at(self.a_masks, b.mul(g, I64(8 * ROWS)), 4 * r)
                self.store(self.finish(b.load(sums[r][v]), places[r][v], a_masks, b_masks), places[r][v])

    def start(self, place: Any, e_p: Any) -> Any:
        """Return M plus C rounded down to a multiple of q."""
        b, vector = self.builder, self.int_vector
        c = b.and_(self.load(place, vector), self.clear_c)
        e_c = b.lshr(b.shl(c, fill(vector, 1)), fill(vector, 24))
        e = b.select(b.icmp_signed(">", e_p, e_c), e_p, e_c)
        m = b.bitcast(b.add(b.shl(e, fill(vector, 23)), self.m_bits), self.float_vector)
        factor = ir.Constant(self.float_vector, [ir.Constant(F32, 1 + 2.0**-16)] * self.shape.lanes)
        return self.multiply_add(b.bitcast(c, self.float_vector), factor, m)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return the fused a * b + c, rounded toward zero."""
        lanes, embedded = self.shape.lanes, self.shape.embedded
        name = f"llvm.x86.avx512.vfmadd.ps.{32 * lanes}" if embedded else f"llvm.fma.v{lanes}f32"
        mode = [I32(TOWARD_ZERO)] if embedded else []
        return self.call(name, self.float_vector, a, b, c, *mode)

    def finish(self, total: Any, place: Any, a_masks: Any, b_masks: list[Any]) -> Any:
        """Return the bits of D: give back what was taken from negative terms, take M away, truncate."""
        b, vector = self.builder, self.int_vector
        positive, negative = (self.splat(self.load(self.at(a_masks, 4 * ROWS * sign), I32), vector) for sign in (0, 1))
        products = b.or_(b.and_(positive, b_masks[1]), b.and_(negative, b_masks[0]))
        # C is counted by its sign alone: a zero is +0. Cut to nothing it still was rounded down, like a product.
        count = b.add(
            self.call(f"llvm.ctpop.v{self.shape.lanes}i32", vector, products),
            b.lshr(self.load(place, vector), fill(vector, 31)),
        )
        exponent = b.and_(b.bitcast(total, vector), fill(vector, 0x7F800000))
        m = b.bitcast(b.or_(exponent, fill(vector, 0x400000)), self.float_vector)
        q = b.bitcast(b.sub(exponent, fill(vector, 23 << 23)), self.float_vector)
        value = self.multiply_add(b.sitofp(count, self.float_vector), q, b.fsub(total, m))
        return b.and_(b.bitcast(value, vector), self.clear)


# What `variant` gives another meaning: the tile, the search that comes before a sweep's first one, if it is wanted.
tile, first_exponents, interleaved = None, None, False


def _sweep(a, b, state, place, sums, groups):
    """Add a block's products onto the running sums; A and B are laid out by `narrow_pack`, in quads and panels."""
    k, inside = groups * sums.group, place.group * sums.group
    top = aligned_i8(ROWS * COLUMNS)
    b_at = Operand(
        np.intp(b.values.ctypes.data + (place.column * k + inside * COLUMNS) * 4),
        np.intp(b.exponents.ctypes.data + place.column * k + inside * COLUMNS),
        np.intp(b.masks.ctypes.data + (place.column // COLUMNS * groups + place.group) * 2 * COLUMNS * 4),
    )
    if interleaved:
        a_exponents = np.intp(a.exponents.ctypes.data + place.row * k + inside * ROWS)
        first_exponents(a_exponents, b_at.exponents, sums.group, np.intp(top.ctypes.data))
    for i0 in range(place.row, place.end, ROWS):
        a_at = Operand(
            np.intp(a.values.ctypes.data + (i0 * k + inside * ROWS) * 4),
            np.intp(a.exponents.ctypes.data + i0 * k + inside * ROWS),
            np.intp(a.masks.ctypes.data + (i0 // ROWS * groups + place.group) * 2 * ROWS * 4),
        )
        state_at = np.intp(state.ctypes.data + (i0 - place.row) * COLUMNS * 4)
        following = a_at.exponents + (ROWS * k if i0 + ROWS < place.end else 0)
        more = (np.intp(top.ctypes.data), following, b_at.exponents)
        tile(a_at, b_at, state_at, place.stop - place.group, sums, more)
    top[0] = 0  # an address alone does not keep an array


def _variant(name: str, shape: Shape) -> Any:
    names = {"tile": make_tile(shape), "first_exponents": make_first_exponents(shape)}
    sweep = variant(_sweep, f"sweep_{name}", **names, interleaved=shape.interleaved)
    return make_gemm(f"gemm_narrow_{name}", sweep, COLUMNS, BATCH, aligned_f32, toward_zero=not shape.embedded)


gemm_avx512 = _variant("avx512", Shape(lanes=16, vectors=4, embedded=True, interleaved=True))
gemm_fma = _variant("fma", Shape(lanes=8, vectors=2, embedded=False, interleaved=False))
