"""Groups of FP8 products in float32 lanes: the innermost step, for 4 rows x 64 columns.

Written in LLVM's vector IR because Python syntax cannot express two things: rounding by an instruction's encoding, and
sums that stay in registers during the whole group. `sums` has the proof of exactness.

E is computed in bytes, 64 columns per vector: exponents are unsigned, A's have the bias of a float32 plus 15, and B's
are subtracted from them with saturation, so that zero operands (A's are 0, B's 255) are below every product. The search
for the next group's E is interleaved with this group's products: it uses the execution ports that they leave free.
"""

from typing import Any, NamedTuple

from lowprec._jit import cgutils, intrinsic, ir, types

from ...vectors import F32, I8, I32, I64, VectorCode, fields, fill, indices
from .pack import COLUMNS, ROWS
from .sums import GroupSum

PANEL = 128  # columns of the running sums
LEAST = 127 - 95  # biased E of a group without a product: not above that of any C
_TOP = ROWS * COLUMNS  # size in bytes of the largest exponents


class Shape(NamedTuple):
    """Register allocation of an instruction set: `lanes` float32 per vector, `vectors` at a time."""

    lanes: int
    vectors: int
    sum: type[GroupSum]

    @property
    def parts(self) -> int:
        """Number of parts into which the columns are divided."""
        return COLUMNS // (self.lanes * self.vectors)


def make_tile(shape: Shape) -> Any:
    """Return the intrinsic ``tile(a, b, state, groups, sums, following)`` for use inside kernels.

    Arrays are passed as addresses of the slice's first group::

        a           values, exponents   [groups * group][4] float32, uint32 (a byte four times)
                    signs               [groups][4] uint32
        b           values, exponents   [groups * group][64] float32, uint8
                    signs               [groups][64] uint32
        state       [4] lines of 64 float32, `PANEL` apart: C on entry (zero is +0), S on return
        groups      at least 1
        sums        `loop.Sums`: the group is a multiple of 4, at most 32 if products are counted
        following   top [2][4][64] uint8: the largest exponents of the first group's products on entry (from
                    `make_first_exponents`), on return those of the group at a's and b's exponents, the two addresses
                    that follow; then the mask that truncates S at the end
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
        search = _Search(builder, shape.lanes, ROWS)
        for k in search.steps(group):
            search.compare(a_exponents, b_exponents, k)
        search.save(top)
        return context.get_dummy_value()

    def first_exponents(typingctx: Any, a_exponents: Any, b_exponents: Any, group: Any, top: Any) -> Any:
        return types.void(*[types.intp] * 4), codegen

    return intrinsic(first_exponents)


class _Search(VectorCode):
    """The search for each output's largest exponent among the products of a group, for some rows."""

    def __init__(self, builder: Any, lanes: int, rows: int) -> None:
        super().__init__(builder)
        self.wide = 4 * lanes  # number of bytes in a float vector
        self.octets = ir.VectorType(I8, self.wide)
        self.best = [
            [self.variable(fill(self.octets, LEAST)) for _ in range(COLUMNS // self.wide)] for _ in range(rows)
        ]

    def start(self) -> None:
        """Reset the maxima."""
        for _, _, slot in self.slots():
            self.builder.store(fill(self.octets, LEAST), slot)

    def compare(self, a_exponents: Any, b_exponents: Any, k: Any) -> None:
        """Update the maxima with product `k` of the group at these addresses."""
        b = self.builder
        line, quad = self.at(b_exponents, b.mul(k, I64(COLUMNS))), self.at(a_exponents, b.mul(k, I64(4 * ROWS)))
        columns = [self.load(self.at(line, w * self.wide), self.octets) for w in range(COLUMNS // self.wide)]
        quads, name = ir.VectorType(I32, self.wide // 4), f"v{self.wide}i8"
        for r, slots in enumerate(self.best):
            e = b.bitcast(self.splat(self.load(self.at(quad, 4 * r), I32), quads), self.octets)
            for slot, column in zip(slots, columns, strict=True):
                total = self.call(f"llvm.usub.sat.{name}", self.octets, e, column)
                b.store(self.call(f"llvm.umax.{name}", self.octets, total, b.load(slot)), slot)

    def save(self, top: Any) -> None:
        """Write the maxima to memory."""
        for r, w, slot in self.slots():
            self.store(self.builder.load(slot), self.at(top, r * COLUMNS + w * self.wide))

    def restore(self, top: Any) -> None:
        """Load the maxima from memory."""
        for r, w, slot in self.slots():
            self.builder.store(self.load(self.at(top, r * COLUMNS + w * self.wide), self.octets), slot)

    def slots(self) -> list[tuple[int, int, Any]]:
        """Return row, vector and slot of every maximum."""
        return [(r, w, slot) for r, row in enumerate(self.best) for w, slot in enumerate(row)]


class _Tile(VectorCode):
    """Emits the instructions of one tile; methods are in the order of execution."""

    def __init__(
        self, builder: Any, shape: Shape, state: Any, groups: Any, a: Any, b: Any, sums: Any, following: Any
    ) -> None:
        super().__init__(builder)
        self.shape, self.state, self.groups = shape, state, groups
        self.a_values, self.a_exponents, self.a_signs = a
        self.b_values, self.b_exponents, self.b_signs = b
        self.group = sums[0]
        self.top, self.next_a, self.next_b, last = following
        self.sum = shape.sum(builder, shape.lanes, *(builder.trunc(bits, I32) for bits in sums[1:3]))
        self.last = self.splat(builder.trunc(last, I32), self.sum.ints)
        self.search = _Search(builder, shape.lanes, ROWS // shape.parts)
        self.bits = [[self.variable(fill(self.sum.ints, 0)) for _ in range(shape.vectors)] for _ in range(ROWS)]

    def emit(self) -> None:
        if self.shape.parts == 1:
            self.emit_whole()
        else:
            self.emit_parts()

    def emit_whole(self) -> None:
        """Emit code that keeps sums and exponents in registers from group to group."""
        b = self.builder
        self.search.restore(self.top)
        self.load_state(I64(0))
        with cgutils.for_range(b, self.groups) as loop:
            found = [b.load(slot) for _, _, slot in self.search.slots()]
            tops = [[self.widened(e, v) for v in range(self.shape.vectors)] for e in found]
            self.search.start()
            self.columns(loop.index, I64(0), tops, self.next_group(loop.index))
        self.store_state(I64(0))
        self.search.save(self.top)

    def emit_parts(self) -> None:
        """Emit code that processes some columns at a time, and searches exponents of some rows of the next group."""
        b, (lanes, vectors, _) = self.builder, self.shape
        narrow, step = ir.VectorType(I8, lanes), lanes * vectors
        rows = ROWS // self.shape.parts
        with cgutils.for_range(b, self.groups) as loop:
            odd = b.and_(loop.index, I64(1))
            now = self.at(self.top, b.mul(odd, I64(_TOP)))
            later = self.at(self.top, b.mul(b.xor(odd, I64(1)), I64(_TOP)))
            with cgutils.for_range(b, I64(self.shape.parts)) as parts:
                j0, row = b.mul(parts.index, I64(step)), b.mul(parts.index, I64(rows))
                self.load_state(j0)
                tops = []
                for r in range(ROWS):
                    places = [self.at(now, j0, r * COLUMNS + v * lanes) for v in range(vectors)]
                    wide = [b.zext(self.load(place, narrow), self.sum.ints) for place in places]
                    tops.append([b.shl(e, fill(self.sum.ints, 23)) for e in wide])
                self.search.start()
                a_next, b_next = self.next_group(loop.index)
                self.columns(loop.index, j0, tops, (self.at(a_next, b.mul(row, I64(4))), b_next))
                self.search.save(self.at(later, b.mul(row, I64(COLUMNS))))
                self.store_state(j0)
        # The maxima of the next tile are copied to the front.
        search = _Search(b, lanes, ROWS)
        search.restore(self.at(self.top, b.mul(b.and_(self.groups, I64(1)), I64(_TOP))))
        search.save(self.top)

    def next_group(self, g: Any) -> tuple[Any, Any]:
        """Return the addresses of the exponents of the group after `g`."""
        b, following = self.builder, self.builder.add(g, I64(1))
        last, inside = b.icmp_signed("==", following, self.groups), b.mul(following, self.group)
        a_next = b.select(last, self.next_a, self.at(self.a_exponents, b.mul(inside, I64(4 * ROWS))))
        return a_next, b.select(last, self.next_b, self.at(self.b_exponents, b.mul(inside, I64(COLUMNS))))

    def places(self, j0: Any) -> list[tuple[Any, Any]]:
        """Return address and slot of the running sums of ``lanes * vectors`` columns from `j0`."""
        start = self.at(self.state, self.builder.mul(j0, I64(4)))
        return [
            (self.at(start, 4 * (r * PANEL + v * self.shape.lanes)), slot)
            for r, row in enumerate(self.bits)
            for v, slot in enumerate(row)
        ]

    def load_state(self, j0: Any) -> None:
        """Load the running sums from memory."""
        for place, slot in self.places(j0):
            self.builder.store(self.sum.entry(self.load(place, self.sum.ints)), slot)

    def store_state(self, j0: Any) -> None:
        """Store the sums in memory, truncated by the given mask."""
        for place, slot in self.places(j0):
            self.store(self.builder.and_(self.builder.load(slot), self.last), place)

    def widened(self, e: Any, v: int) -> Any:
        """Return 2^E as bits for the `v`-th float vector's columns."""
        lanes, zero = self.shape.lanes, 4 * self.shape.lanes
        order = [n for lane in range(lanes) for n in (zero, zero, zero, v * lanes + lane)]
        picked = self.builder.shuffle_vector(e, fill(e.type, 0), indices(order))
        return self.builder.lshr(self.builder.bitcast(picked, self.sum.ints), fill(self.sum.ints, 1))

    def columns(self, g: Any, j0: Any, tops: list[list[Any]], next_group: tuple[Any, Any]) -> None:
        """Compute group `g` for ``lanes * vectors`` columns from `j0`."""
        b, (lanes, vectors, _) = self.builder, self.shape
        offset = b.mul(j0, I64(4))
        kept: list[list[Any]] = [[] for _ in range(ROWS)]
        for v in range(vectors):
            negative = self.negative(g, offset, v) if self.sum.counts else [None] * ROWS
            for r in range(ROWS):
                parts = self.sum.begin(b.load(self.bits[r][v]), tops[r][v], negative[r])
                kept[r].append([self.variable(x) for x in parts])
        first = b.mul(g, self.group)
        for within in self.steps(self.group):
            self.search.compare(*next_group, within)
            k = b.add(first, within)
            line = self.at(self.b_values, b.mul(k, I64(4 * COLUMNS)), offset)
            quad = self.at(self.a_values, b.mul(k, I64(4 * ROWS)))
            columns = [self.load(self.at(line, 4 * v * lanes), self.sum.floats) for v in range(vectors)]
            for r in range(ROWS):
                a = self.splat(self.load(self.at(quad, 4 * r), F32), self.sum.floats)
                for slots, column in zip(kept[r], columns, strict=True):
                    b.store(self.sum.product(a, column, [b.load(slot) for slot in slots]), slots[0])
        for v in range(vectors):
            for r in range(ROWS):
                b.store(self.sum.end(b.load(kept[r][v][0])), self.bits[r][v])

    def negative(self, g: Any, offset: Any, v: int) -> list[Any]:
        """Return the negative products of group `g` as bit masks, for the `v`-th vector of every row."""
        b, ints = self.builder, self.sum.ints
        line = self.at(self.b_signs, b.mul(g, I64(4 * COLUMNS)), offset, 4 * v * self.shape.lanes)
        quad, column = self.at(self.a_signs, b.mul(g, I64(4 * ROWS))), self.load(line, ints)
        return [b.xor(self.splat(self.load(self.at(quad, 4 * r), I32), ints), column) for r in range(ROWS)]
