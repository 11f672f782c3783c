"""The innermost step of plain dot products of CPUs and AMD: 4 rows x 64 columns, running sums in registers.

Each form computes one instruction on a few products and its running sum, in plain float32 or float64 arithmetic. It is
exact if no operand, product or sum is subnormal, if products are exact in a lane, and if nothing overflows (an Inf or
NaN may be wrong, but remains Inf or NaN). Flushing then changes no number, and

* a product of two float32 numbers with 12 significant bits or fewer is exact, so that ``fma(a1, b1, a0 * b0)`` rounds
  the exact sum of two products once;
* the sum rounded to odd is the sum rounded toward zero, with its last bit set if it is inexact. For s = x + y rounded
  toward zero, s - x rounded toward zero equals y if and only if s is exact: if it is, y is a float32; otherwise
  y - (s - x) has the sign of the sum, and s - x, rounded toward zero or exact, does not reach y;
* float64 sums a group's products and C exactly if all are multiples of some q and the sum stays below 2^53 q; its
  conversion to float32 rounds once;
* if the sum only stays below 2^100 q, each addition's error is a float64, as is the errors' sum r, at most about
  2^53 q. The sum plus r, rounded to odd (of two neighbours the one with the last bit set, if it is neither), has enough
  bits that its conversion to float32 rounds as the exact sum would (Boldo and Melquiond 2008).

The addition of -0 * +0 changes nothing, not even -0: it pads K to whole steps.
"""

from typing import Any

from lowprec._jit import cgutils, intrinsic, ir, types

from ...vectors import F32, F64, I32, I64, VectorCode, fill

ROWS, COLUMNS = 4, 64


class Form:
    """Operations of a tile; its methods emit instructions for one register of columns."""

    products = 2  # per step
    lanes = 0  # running sums of an instruction in addition to D; 0: steps add to D
    element: Any = F32
    toward_zero = False
    span = 52  # bits from the highest of an exact sum to the lowest of its terms

    def __init__(self, code: VectorCode, vector: Any) -> None:
        self.code, self.b, self.vector = code, code.builder, vector

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """Return x * y + z, rounded once."""
        return self.code.call(f"llvm.fma.v{self.vector.count}{self.element.intrinsic_name}", self.vector, x, y, z)

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add products of x and y to running sums, those of D or of an instruction: stack slots."""
        raise AssertionError("every form has its own")

    def add(self, slot: Any, value: Any) -> None:
        """Add a value to a running sum."""
        self.b.store(self.b.fadd(self.b.load(slot), value), slot)


class FlushedFma(Form):
    """VDPBF16PS: two fused multiply-adds, the second product first."""

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add two products."""
        self.b.store(self.fma(x[0], y[0], self.fma(x[1], y[1], self.b.load(sums[0]))), sums[0])


class Lanes(Form):
    """AMX: separate chains for even and odd products."""

    lanes = 2

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add two products."""
        for t in (0, 1):
            self.b.store(self.fma(x[t], y[t], self.b.load(sums[t])), sums[t])


class PairLanes(Form):
    """AMX-FP8: sums of two products, with separate chains for the first and the second pair of four."""

    products = 4
    lanes = 2

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add four products."""
        for t in (0, 1):
            i = 2 * t
            self.add(sums[t], self.fma(x[i + 1], y[i + 1], self.b.fmul(x[i], y[i])))


class Odd(Form):
    """BFDOT with EBF = 0: the sum of two products is rounded to odd, as is its sum with D."""

    toward_zero = True

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add two products."""
        pair = self.odd(self.b.fmul(x[0], y[0]), self.b.fmul(x[1], y[1]))
        self.b.store(self.odd(self.b.load(sums[0]), pair), sums[0])

    def odd(self, x: Any, y: Any) -> Any:
        """Return x + y, rounded to odd."""
        b, ints = self.b, ir.VectorType(I32, self.vector.count)
        total = b.fadd(x, y)
        bits = b.bitcast(total, ints)
        inexact = b.fcmp_unordered("!=", b.fsub(total, x), y)
        return b.bitcast(b.select(inexact, b.or_(bits, fill(ints, 1)), bits), self.vector)


class RoundedPairs(Form):
    """BFDOT with EBF = 1: the exact sum of two products is rounded and added."""

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add two products."""
        self.add(sums[0], self.fma(x[1], y[1], self.b.fmul(x[0], y[0])))


class ScaledGroups(Form):
    """Arm's FP8 FDOT: the exact sum of four products and C, rounded once to float32."""

    products = 4
    element = F64

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add four products."""
        total = self.b.load(sums[0])
        for p, q in zip(x, y, strict=True):
            total = self.fma(p, q, total)
        narrow = self.b.fptrunc(total, ir.VectorType(F32, self.vector.count))
        self.b.store(self.b.fpext(narrow, self.vector), sums[0])


class Pairs(Form):
    """CDNA2 with groups of two: neighbours added, their sum added."""

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add two products."""
        self.add(sums[0], self.neighbours(x, y))

    def neighbours(self, x: list[Any], y: list[Any]) -> Any:
        """Return the sum of two products, each rounded."""
        return self.b.fadd(self.b.fmul(x[0], y[0]), self.b.fmul(x[1], y[1]))


class PairsOfPairs(Pairs):
    """CDNA2 with groups of four: sums of neighbours added, their sum added."""

    products = 4

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add four products."""
        self.add(sums[0], self.b.fadd(self.neighbours(x[:2], y[:2]), self.neighbours(x[2:], y[2:])))


class ExactPairs(Form):
    """CDNA1 with groups of two: the exact sum of products and C, rounded once to float32; an exact zero is +0."""

    element = F64
    span = 100

    def step(self, sums: list[Any], x: list[Any], y: list[Any]) -> None:
        """Add a group's products."""
        b, total, errors = self.b, self.b.load(sums[0]), []
        for p, q in zip(x, y, strict=True):
            total, error = self.two_sum(total, b.fmul(p, q))
            errors.append(error)
        left = errors[0]
        for error in errors[1:]:
            left = b.fadd(left, error)
        total = b.fadd(self.to_odd(*self.two_sum(total, left)), fill(self.vector, 0.0))  # -0 + 0 is +0
        narrow = b.fptrunc(total, ir.VectorType(F32, self.vector.count))
        b.store(b.fpext(narrow, self.vector), sums[0])

    def two_sum(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return x + y, rounded, and the rounding error (Knuth)."""
        b = self.b
        total = b.fadd(x, y)
        of_y = b.fsub(total, x)
        return total, b.fadd(b.fsub(x, b.fsub(total, of_y)), b.fsub(y, of_y))

    def to_odd(self, total: Any, left: Any) -> Any:
        """Return total + left rounded to odd, where `total` is the nearest float64."""
        b, longs, zero = self.b, ir.VectorType(I64, self.vector.count), fill(self.vector, 0.0)
        bits = b.bitcast(total, longs)
        outward = b.icmp_signed(">=", b.xor(bits, b.bitcast(left, longs)), fill(longs, 0))  # of the same sign
        even = b.icmp_signed("==", b.and_(bits, fill(longs, 1)), fill(longs, 0))
        moved = b.add(bits, b.select(outward, fill(longs, 1), fill(longs, -1)))
        inexact = b.and_(b.fcmp_ordered("!=", left, zero), even)
        return b.bitcast(b.select(inexact, moved, bits), self.vector)


class ExactQuads(ExactPairs):
    """CDNA1 with groups of four."""

    products = 4


def make_dot_tile(form_of: type[Form], lanes: int, vectors: int) -> Any:
    """Return the intrinsic ``tile(a, b, state, steps, instructions)`` for registers of `lanes` numbers.

    Addresses of a [K][4] and b [K][64], numbers of the form's `element`, and state [4][64], float32: D so far. K is
    ``instructions * steps * products``, steps a multiple of 4; forms without lanes have one instruction.
    """
    signature = types.void(*[types.intp] * 5)

    def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        code, (a, b, state, steps, instructions) = VectorCode(builder), values
        vector, narrow = ir.VectorType(form_of.element, lanes), ir.VectorType(F32, lanes)
        form, size, products = form_of(code, vector), 4 if form_of.element is F32 else 8, form_of.products

        def emit_steps(first: Any, j0: Any, sums: list[list[list[Any]]]) -> None:
            for step in code.steps(steps):
                k = builder.mul(builder.add(first, step), I64(products))
                lines = [
                    code.at(b, builder.mul(builder.add(k, I64(t)), I64(size * COLUMNS)), j0) for t in range(products)
                ]
                columns = [
                    [code.load(code.at(line, size * v * lanes), vector) for line in lines] for v in range(vectors)
                ]
                quads = code.at(a, builder.mul(k, I64(size * ROWS)))
                for r in range(ROWS):
                    x = [
                        code.splat(code.load(code.at(quads, size * (ROWS * t + r)), form_of.element), vector)
                        for t in range(products)
                    ]
                    for v in range(vectors):
                        form.step(sums[r][v], x, columns[v])

        zero = fill(vector, 0.0)
        with cgutils.for_range(builder, I64(COLUMNS // (lanes * vectors))) as part:
            j0 = builder.mul(part.index, I64(size * lanes * vectors))
            j4 = builder.mul(part.index, I64(4 * lanes * vectors))
            places = [[code.at(state, j4, 4 * (r * COLUMNS + v * lanes)) for v in range(vectors)] for r in range(ROWS)]

            def loaded(place: Any) -> Any:
                found = code.load(place, narrow)
                return found if form_of.element is F32 else builder.fpext(found, vector)

            ends = [[code.variable(loaded(place)) for place in row] for row in places]
            if form_of.lanes:
                own = [[[code.variable(zero) for _ in range(form_of.lanes)] for _ in row] for row in places]
                with cgutils.for_range(builder, instructions) as loop:
                    for row in own:
                        for slots in row:
                            for slot in slots:
                                builder.store(zero, slot)
                    emit_steps(builder.mul(loop.index, steps), j0, own)
                    for end_row, row in zip(ends, own, strict=True):
                        for end, (t0, t1) in zip(end_row, row, strict=True):
                            form.add(end, builder.fadd(builder.load(t0), builder.load(t1)))
            else:
                emit_steps(I64(0), j0, [[[end] for end in row] for row in ends])
            for row, end_row in zip(places, ends, strict=True):
                for place, end in zip(row, end_row, strict=True):
                    found = builder.load(end)
                    code.store(found if form_of.element is F32 else builder.fptrunc(found, narrow), place)
        return context.get_dummy_value()

    def tile(typingctx: Any, a: Any, b: Any, state: Any, steps: Any, instructions: Any) -> Any:
        return signature, codegen

    return intrinsic(tile)
