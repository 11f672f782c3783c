"""The innermost step of the wide tensor-core kernels: a chain of groups for 4 rows x 32 columns, in float64 lanes.

One group of L products and C: E is the largest exponent among the nonzero terms (and at least `lowest`, the exponent
that an accumulator assigns to zeros), every term is truncated toward zero to a multiple of q = 2^(E - F), the sum S q
is exact, and the result is S q truncated to the accumulator's format. Let an operand have at most 11 significant bits
(FP8 and narrower, float16, bfloat16, tf32), C 24, and F be at most 40. The float64 FPU does nearly all of this:

* The running sum is stored as M + S q with M = 1.5 * 2^52 q, so that its ulp is q as long as |S| < 2^51. Unnormalized
  products are below 4 * 2^E and C is below 2 * 2^E, so |S| <= L * 2^(F + 2) + 2^(F + 1) + L + 1 (the last terms are
  for terms rounded away from zero, see below), which holds for L <= 256 at F = 40.
* M + S q > 0, so one fused multiply-add that rounds toward zero rounds down, to a multiple of q.
* B is multiplied by 1 + 2^-42 beforehand, which is exact in 53 bits, and the product within the fused operation is
  exact. Let a term t >= 0 have P significant bits and t / q = n + f, 0 <= f < 1. If t / q >= 2^(P - 1), then
  f = 0 and the extra n * 2^-42 is below 1 because n < 2^(F + 2) <= 2^42. If t / q is in [2^s, 2^(s + 1)) with
  s <= P - 2, then f <= 1 - 2^(s - P + 1), and the extra is below 2^(s + 1 - 42) <= 2^(s - P + 1) because P <= 42.
  So rounding down gives n: truncation.
* For -t < 0 rounding down gives -(n + 1) whether or not f = 0, one q too little. Counting corrects this: the nonzero
  negative products are popcount(A+ & B- | A- & B+) of bit masks, and C counts by its sign (a zero is +0). The
  accumulator's bits are (its exponent, S + constant), so the count is simply added to them as an integer.
* C is treated as the products are, as C * (1 + 2^-42).
* ``align="floor"`` uses the same multiply-add with B unchanged and no counting; ``"nearest"`` a multiply-add onto M in
  the default rounding mode: M / q is even, so that ties go to the even multiple of q; the difference to M is added to
  the sum.
* S q = (M + S q) - M is exact, and M follows from the accumulator's own exponent, as 2^52 q <= M + S q < 2^53 q.
  Clearing the low 52 - keep bits truncates it. x - x is +0.

Between groups, D stays a float64. The limits of the result's range need a few more instructions, so there are three
`RESULTS`:

* ``normal``: C is zero or at least 2^-126, e - F >= -126 for the smallest exponent e of a nonzero product, and nothing
  reaches 2^128. Then every D is a multiple of 2^-126, or C without some of its low bits.
* ``float32``: any C. A subnormal C has the exponent -126, and D is converted to float32 and back, toward zero.
* ``float16``: S q is rounded to nearest even at float16's quantum, by adding and subtracting 1.5 * 2^52 times that;
  a subnormal C has the exponent -14. This requires rounding by encoding, because other additions are to nearest.

If one of the last two reaches the next power of two above the largest number, D becomes NaN and remains NaN along the
chain; NaN or Inf in A, B or C has the same effect in all three. The caller recomputes outputs that are not finite.

Exponents are stored as the high 16 bits of a float64: 2^e has the bits (e + 1023) << 4 there. A's include the 1023. The
search for E therefore consists of 16-bit additions and comparisons, and a shuffle expands its result. Zeros have
exponents so small that no sum with them exceeds `lowest`, for lowest >= -800.
"""

from typing import Any

from lowprec._jit import cgutils, intrinsic, ir, types, variant

from ...vectors import F64, I8, I16, I32, I64, address, aligned_f64, aligned_i16, fields, fill, indices
from ..loop import Operand, make_gemm
from .portable import tiles as portable_tiles
from .sums import COLUMNS, FLOOR, NEAREST, RESULTS, ROWS, TRUNCATE, Align, Shape, WideSum

MAX_SIGNIFICANT_BITS = 11  # of an operand
# A slice of the products of a batch of rows stays in the L2 cache while it is multiplied by the columns of a panel, 32
# at a time, with their slice of B in the L1 cache. Running sums are in memory.
BATCH, PANEL, SLICE = 256, 128, 64


def make_tile(shape: Shape) -> Any:
    """Return the intrinsic ``tile(a, b, state, groups, sums, top, following)`` for use inside kernels.

    Arrays begin with the slice's first group; `depth` is the group size, padded with zeros to a multiple of 4::

        a           values, exponents   [groups * depth][4] float64, int32 (the 16 bits twice)
                    masks               [groups][words of 32 products][4] uint64: positive << 32 | negative
        b           values, exponents   [groups * depth][32] float64 times `FACTOR`, int16
                    masks               [groups][words][32] uint64: negative << 32 | positive
        state       [4] lines of 32 float64, `PANEL` apart: C on entry (zero is +0), D on return
        groups      at least 1
        sums        `loop.Sums`
        top         [4][32] int16: the largest exponents of the first group's products on entry (from
                    `make_first_exponents`), on return those of the group at b's and
        following   the exponents of A that come next; both are only used if `shape.interleaved`
    """

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, b, state, groups, sums, *more = values
        operands = [
            [address(context, builder, *pair) for pair in zip(kind, fields(builder, operand), strict=True)]
            for kind, operand in zip(signature.args[:2], (a, b), strict=True)
        ]
        at = address(context, builder, signature.args[2], state)
        more = [address(context, builder, *pair) for pair in zip(signature.args[5:], more, strict=True)]
        _Tile(builder, shape, operands[0], operands[1], at, groups, fields(builder, sums)).emit(*more)
        return context.get_dummy_value()

    def tile(typingctx: Any, a: Any, b: Any, state: Any, groups: Any, sums: Any, top: Any, following: Any) -> Any:
        return types.void(a, b, state, types.intp, sums, top, following), codegen

    return intrinsic(tile)


def make_first_exponents(shape: Shape) -> Any:
    """Return the intrinsic ``first_exponents(a_exponents, b_exponents, sums, top)`` for a sweep's first tile."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        a, b, sums, top = values
        a, b, top = (address(context, builder, signature.args[i], array) for i, array in ((0, a), (1, b), (3, top)))
        unused = I64(0)
        tile = _Tile(builder, shape, (unused, a, unused), (unused, b, unused), unused, unused, fields(builder, sums))
        for k in tile.steps(tile.depth):
            tile.compare_exponents(a, b, k)
        tile.save(top)
        return context.get_dummy_value()

    def first_exponents(typingctx: Any, a_exponents: Any, b_exponents: Any, sums: Any, top: Any) -> Any:
        return types.void(a_exponents, b_exponents, sums, top), codegen

    return intrinsic(first_exponents)


class _Tile(WideSum):
    """Emits the instructions of one tile; methods are in the order of execution."""

    def __init__(self, builder: Any, shape: Shape, a: Any, b: Any, state: Any, groups: Any, sums: Any) -> None:
        group, fraction_bits, keep, lowest = sums[0], *(builder.trunc(number, I32) for number in sums[1:])
        super().__init__(builder, shape, fraction_bits, keep)
        self.a_values, self.a_exponents, self.a_masks = a
        self.b_values, self.b_exponents, self.b_masks = b
        self.state, self.groups = state, groups
        self.depth = builder.and_(builder.add(group, I64(3)), I64(-4))
        self.words = builder.udiv(builder.add(group, I64(31)), I64(32))
        lanes = shape.lanes
        self.ints = ir.VectorType(I32, 2 * lanes)
        self.shorts = ir.VectorType(I16, 4 * lanes)  # number of bytes in a vector of float64
        least = builder.shl(builder.add(lowest, I32(1023)), I32(4))
        self.least = self.splat(builder.trunc(least, I16), self.shorts)
        self.best = [[self.variable(self.least) for _ in range(COLUMNS // (4 * lanes))] for _ in range(ROWS)]
        zero = fill(self.doubles, 0.0)
        self.sums = [[self.variable(zero) for _ in range(shape.vectors)] for _ in range(ROWS)]

    def emit(self, top: Any, following: Any) -> None:
        b, lanes, step = self.builder, self.shape.lanes, self.shape.vectors * self.shape.lanes
        if self.shape.interleaved:
            assert step == COLUMNS == 4 * lanes
            self.restore(top)
            self.load_state(I64(0))
            with cgutils.for_range(b, self.groups) as loop:
                found = self.largest_exponents()
                tops = [[self.power_of_two(e, v) for v in range(self.shape.vectors)] for (e,) in found]
                after = b.add(loop.index, I64(1))
                last, a_next, b_next = b.icmp_signed("==", after, self.groups), *self.exponents_of(after)
                following_b = b.select(last, self.b_exponents, b_next)
                self.columns(loop.index, I64(0), tops, (b.select(last, following, a_next), following_b))
            self.store_state(I64(0))
            self.save(top)
            return
        place = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(I8, 2 * ROWS * COLUMNS)), I64)
        narrow = ir.VectorType(I16, lanes)
        with cgutils.for_range(b, self.groups) as loop:
            for k in self.steps(self.depth):
                self.compare_exponents(*self.exponents_of(loop.index), k)
            for r, row in enumerate(self.largest_exponents()):
                for w, e in enumerate(row):
                    self.store(e, self.at(place, 2 * (r * COLUMNS + w * 4 * lanes)), align=1)
            with cgutils.for_range(b, I64(COLUMNS // step)) as parts:
                j0 = b.mul(parts.index, I64(step))
                tops = []
                for r in range(ROWS):
                    line = self.at(place, b.mul(j0, I64(2)), 2 * r * COLUMNS)
                    words = [self.load(self.at(line, 2 * v * lanes), narrow, 1) for v in range(self.shape.vectors)]
                    wide = [b.shl(b.zext(word, self.longs), fill(self.longs, 48)) for word in words]
                    tops.append([b.bitcast(word, self.doubles) for word in wide])
                self.load_state(j0)
                self.columns(loop.index, j0, tops, None)
                self.store_state(j0)

    def places(self, j0: Any) -> list[tuple[Any, Any]]:
        """Return address and slot of the running sums of ``lanes * vectors`` columns from `j0`."""
        start = self.at(self.state, self.builder.mul(j0, I64(8)))
        return [
            (self.at(start, 8 * (r * PANEL + v * self.shape.lanes)), slot)
            for r, row in enumerate(self.sums)
            for v, slot in enumerate(row)
        ]

    def load_state(self, j0: Any) -> None:
        """Load the running sums from memory."""
        for place, slot in self.places(j0):
            self.builder.store(self.load(place, self.doubles), slot)

    def store_state(self, j0: Any) -> None:
        """Store the running sums in memory."""
        for place, slot in self.places(j0):
            self.store(self.builder.load(slot), place)

    def exponents_of(self, g: Any) -> tuple[Any, Any]:
        """Return the addresses of the exponents of group `g`."""
        first = self.builder.mul(g, self.depth)
        return tuple(
            self.at(start, self.builder.mul(first, I64(each)))
            for start, each in ((self.a_exponents, 4 * ROWS), (self.b_exponents, 2 * COLUMNS))
        )

    def compare_exponents(self, a_exponents: Any, b_exponents: Any, k: Any) -> None:
        """Update the largest exponents with product `k` of the group at these addresses."""
        b, wide = self.builder, 4 * self.shape.lanes
        line = self.at(b_exponents, b.mul(k, I64(2 * COLUMNS)))
        a_line = self.at(a_exponents, b.mul(k, I64(4 * ROWS)))
        columns = [self.load(self.at(line, 2 * w * wide), self.shorts) for w in range(COLUMNS // wide)]
        for r in range(ROWS):
            e = b.bitcast(self.splat(self.load(self.at(a_line, 4 * r), I32), self.ints), self.shorts)
            for w, column in enumerate(columns):
                total, before = b.add(e, column), b.load(self.best[r][w])
                b.store(b.select(b.icmp_signed(">", total, before), total, before), self.best[r][w])

    def save(self, top: Any) -> None:
        """Write the maxima to memory."""
        for r, row in enumerate(self.best):
            for w, slot in enumerate(row):
                self.store(self.builder.load(slot), self.at(top, 2 * (r * COLUMNS + w * 4 * self.shape.lanes)))

    def restore(self, top: Any) -> None:
        """Load the maxima from memory."""
        for r, row in enumerate(self.best):
            for w, slot in enumerate(row):
                place = self.at(top, 2 * (r * COLUMNS + w * 4 * self.shape.lanes))
                self.builder.store(self.load(place, self.shorts), slot)

    def largest_exponents(self) -> list[list[Any]]:
        """Return the largest exponents, [4] rows of vectors, and reset them for the next group."""
        found = []
        for row in self.best:
            found.append([self.builder.load(slot) for slot in row])
            for slot in row:
                self.builder.store(self.least, slot)
        return found

    def power_of_two(self, e: Any, v: int) -> Any:
        """Return the `v`-th vector of 2^E: the 16 bits of each exponent at the top of 64."""
        lanes, zero = self.shape.lanes, 4 * self.shape.lanes
        order = [n for lane in range(lanes) for n in (zero, zero, zero, v * lanes + lane)]
        picked = self.builder.shuffle_vector(e, fill(self.shorts, 0), indices(order))
        return self.builder.bitcast(picked, self.doubles)

    def columns(self, g: Any, j0: Any, tops: list[list[Any]], next_group: tuple[Any, Any] | None) -> None:
        """Compute group `g` for ``lanes * vectors`` columns from `j0`: M and C, the products, minus M."""
        b, lanes, vectors = self.builder, self.shape.lanes, self.shape.vectors
        offset, sums = b.mul(j0, I64(8)), self.sums
        magic: list[list[Any]] = []
        for slots, powers in zip(sums, tops, strict=True):
            magic.append([])
            for slot, power in zip(slots, powers, strict=True):
                c = b.load(slot)
                m = self.magic(c, power)
                b.store(self.start(c, m), slot)
                magic[-1].append(m)
        first = b.mul(g, self.depth)
        for within in self.steps(self.depth):
            if next_group is not None:
                self.compare_exponents(*next_group, within)
            k = b.add(first, within)
            line = self.at(self.b_values, b.mul(k, I64(8 * COLUMNS)), offset)
            a_line = self.at(self.a_values, b.mul(k, I64(8 * ROWS)))
            columns = [self.load(self.at(line, 8 * v * lanes), self.doubles) for v in range(vectors)]
            for r in range(ROWS):
                a = self.splat(self.load(self.at(a_line, 8 * r), F64), self.doubles)
                for v in range(vectors):
                    b.store(self.joined(a, columns[v], b.load(sums[r][v]), magic[r][v]), sums[r][v])
        if self.shape.align.give_back:
            first_word = b.mul(g, self.words)
            with cgutils.for_range(b, b.sub(self.words, I64(1))) as loop:  # groups of more than 32
                self.give_back(b.add(first_word, b.add(loop.index, I64(1))), offset, sums)
            self.give_back(first_word, offset, sums)
        for slots in sums:
            for slot in slots:
                b.store(self.finish(b.load(slot)), slot)

    def give_back(self, word: Any, offset: Any, sums: list[list[Any]]) -> None:
        """Add q to each sum once per negative product among the 32 products of a mask word."""
        b, lanes = self.builder, self.shape.lanes
        line = self.at(self.b_masks, b.mul(word, I64(8 * COLUMNS)), offset)
        a_line = self.at(self.a_masks, b.mul(word, I64(8 * ROWS)))
        masks = [self.load(self.at(line, 8 * v * lanes), self.longs) for v in range(self.shape.vectors)]
        for r in range(ROWS):
            a = self.splat(self.load(self.at(a_line, 8 * r), I64), self.longs)
            for slot, mask in zip(sums[r], masks, strict=True):
                count = self.call(f"llvm.ctpop.v{lanes}i64", self.longs, b.and_(a, mask))
                b.store(b.bitcast(b.add(b.bitcast(b.load(slot), self.longs), count), self.doubles), slot)


# Placeholders that `variant` replaces: the tile, and the search before a sweep's first one, if required.
tile, first_exponents, interleaved = None, None, False


def _sweep(a, b, state, place, sums, groups):
    """Add a block's products to the running sums; A and B are packed by `pack`."""
    depth, words = (sums.group + 3) // 4 * 4, (sums.group + 31) // 32
    chunk = max(SLICE // depth, 1)
    top = aligned_i16(ROWS * COLUMNS)
    for g0 in range(place.group, place.stop, chunk):
        count = min(chunk, place.stop - g0)
        for j0 in range(0, place.width, COLUMNS):
            b_at = (place.column + j0) // COLUMNS * groups + g0
            b_part = Operand(
                b.values[b_at * depth * COLUMNS :],
                b.exponents[b_at * depth * COLUMNS :],
                b.masks[b_at * words * COLUMNS :],
            )
            if interleaved:
                first = a.exponents[(place.row // ROWS * groups + g0) * depth * ROWS :]
                first_exponents(first, b_part.exponents, sums, top)
            for i0 in range(place.row, place.end, ROWS):
                a_at = i0 // ROWS * groups + g0
                a_part = Operand(
                    a.values[a_at * depth * ROWS :], a.exponents[a_at * depth * ROWS :], a.masks[a_at * words * ROWS :]
                )
                following = a_part.exponents[groups * depth * ROWS if i0 + ROWS < place.end else 0 :]
                tile(a_part, b_part, state[(i0 - place.row) * place.panel + j0 :], count, sums, top, following)


def _variant(name: str, tile: Any, toward_zero: bool, first_exponents: Any = None, panel: int = PANEL) -> Any:
    names = {"tile": tile, "first_exponents": first_exponents, "interleaved": first_exponents is not None}
    sweep = variant(_sweep, f"sweep_{name}", **names)
    return make_gemm(f"gemm_wide_{name}", sweep, panel, BATCH, aligned_f64, toward_zero)


def _fast(align: Align, name: str, result: str, lanes: int, vectors: int, embedded: bool) -> Any:
    shape = Shape(lanes, vectors, embedded, interleaved=embedded and vectors == 4, result=result, align=align)
    first = make_first_exponents(shape) if shape.interleaved else None
    return _variant(f"{lanes}_{name}_{result}", make_tile(shape), toward_zero=not embedded, first_exponents=first)


def _forms(align: Align, name: str) -> dict[str, dict[str, Any]]:
    """Return the compiled kernels of an alignment, by form and by kind of result (`RESULTS`)."""
    portable = {
        result: _variant(f"portable_{name}_{result}", tile, False, panel=COLUMNS)
        for result, tile in portable_tiles[name].items()
    }
    forms = {
        "avx512": {result: _fast(align, name, result, 8, 2 if align.to_nearest else 4, True) for result in RESULTS},
        "fma": {result: _fast(align, name, result, 4, 2, False) for result in RESULTS if result != "float16"},
        "portable": portable | {"normal": portable["float32"]},
    }
    if align.to_nearest:  # a thread cannot round products to nearest and results toward zero
        del forms["fma"]
    return forms


ALIGNED = {"truncate": TRUNCATE, "floor": FLOOR, "nearest": NEAREST}
#: By alignment, by form, and by kind of result; each is compiled on first use.
FORMS = {name: _forms(align, name) for name, align in ALIGNED.items()}
