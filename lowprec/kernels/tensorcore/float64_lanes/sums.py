"""Both ends of a fused group sum in float64 lanes: the addition of M and C, and the conversion to the result's format.

`tile` has the proof of exactness; the tiles add products, or scaled runs of them, in between.
"""

from typing import Any, NamedTuple

from lowprec._jit import ir

from ...vectors import F32, F64, I8, I32, I64, TOWARD_ZERO, VectorCode, fill

ROWS, COLUMNS = 4, 32  # of a tile
RESULTS = ("normal", "float32", "float16")
FACTOR = 1 + 2.0**-42
MAX_FRACTION_BITS = 40


class Align(NamedTuple):
    """How a term becomes a multiple of q in the multiply-add that adds it to M + S q > 0.

    Rounding toward zero is rounding down there: for truncation, the excess of negative terms is added back, and
    `FACTOR` protects exact multiples. The default rounding mode gives nearest even, because M / q is even.
    """

    give_back: bool = False
    to_nearest: bool = False

    @property
    def factor(self) -> float:
        """Factor of B's values."""
        return FACTOR if self.give_back else 1.0


TRUNCATE, FLOOR, NEAREST = Align(give_back=True), Align(), Align(to_nearest=True)


class Shape(NamedTuple):
    """Register allocation of an instruction set: `lanes` float64 per vector, `vectors` at a time."""

    lanes: int
    vectors: int
    # Rounding in the instruction's encoding; otherwise the thread's mode must be toward zero.
    embedded: bool
    # Search for the next group's largest exponents while this group's products are added.
    interleaved: bool
    result: str = "normal"
    align: Align = TRUNCATE


class WideSum(VectorCode):
    """Emits the beginning and the end of group sums; `shape.result` is one of `RESULTS`."""

    def __init__(self, builder: Any, shape: Shape, fraction_bits: Any, keep: Any) -> None:
        super().__init__(builder)
        self.shape = shape
        lanes = shape.lanes
        self.doubles, self.longs = ir.VectorType(F64, lanes), ir.VectorType(I64, lanes)
        # M = 2^E times this: 1.5 * 2^(52 - F).
        exponent = builder.sub(I64(1023 + 52), builder.zext(fraction_bits, I64))
        m_bits = builder.or_(builder.shl(exponent, I64(52)), I64(1 << 51))
        self.m_factor = self.splat(builder.bitcast(m_bits, F64), self.doubles)
        self.clear = self.splat(builder.shl(I64(-1), builder.zext(builder.sub(I32(52), keep), I64)), self.longs)
        self.narrow = ir.VectorType(I32, lanes)
        self.clear_narrow = self.splat(builder.shl(I32(-1), builder.sub(I32(23), keep)), self.narrow)

    def magic(self, c: Any, top: Any) -> Any:
        """Return M of a group from C and `top`, the largest power of two of its products."""
        b, power = self.builder, self.binade(c)
        if self.shape.result != "normal":
            zero, least = fill(self.doubles, 0.0), -14 if self.shape.result == "float16" else -126
            power = b.select(b.fcmp_ordered("==", c, zero), zero, self.larger(power, fill(self.doubles, 2.0**least)))
        return b.fmul(self.larger(top, power), self.m_factor)

    def start(self, c: Any, m: Any) -> Any:
        """Return M plus C as a multiple of q."""
        b = self.builder
        cut = self.multiply_add(c, fill(self.doubles, self.shape.align.factor), m)
        if not self.shape.align.give_back:
            return cut
        sign = b.lshr(b.bitcast(c, self.longs), fill(self.longs, 63))
        return b.bitcast(b.add(b.bitcast(cut, self.longs), sign), self.doubles)

    def joined(self, a: Any, b: Any, total: Any, m: Any) -> Any:
        """Return the sum plus another product, rounded to a multiple of q; M is used only for rounding to nearest."""
        if self.shape.align.to_nearest:
            return self.builder.fadd(total, self.builder.fsub(self.multiply_add(a, b, m), m))
        return self.multiply_add(a, b, total)

    def binade(self, x: Any) -> Any:
        """Return the power of two at or below each magnitude; 0 for 0."""
        bits = self.builder.and_(self.builder.bitcast(x, self.longs), fill(self.longs, 0x7FF << 52))
        return self.builder.bitcast(bits, self.doubles)

    def larger(self, x: Any, y: Any) -> Any:
        """Return the larger number of each lane."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return the fused a * b + c, rounded toward zero, or to nearest."""
        if self.shape.embedded and not self.shape.align.to_nearest:
            return self.call("llvm.x86.avx512.vfmadd.pd.512", self.doubles, a, b, c, I32(TOWARD_ZERO))
        return self.call(f"llvm.fma.v{self.shape.lanes}f64", self.doubles, a, b, c)

    def finish(self, total: Any) -> Any:
        """Return D: subtract M, truncate."""
        b = self.builder
        m = b.or_(b.and_(b.bitcast(total, self.longs), fill(self.longs, -1 << 52)), fill(self.longs, 1 << 51))
        value = b.fsub(total, b.bitcast(m, self.doubles))
        if self.shape.result == "float16":
            magic = b.fmul(
                self.larger(self.binade(value), fill(self.doubles, 2.0**-14)), fill(self.doubles, 1.5 * 2.0**42)
            )
            return self.below(b.fsub(b.fadd(value, magic), magic), 2.0**16)
        if self.shape.result == "float32":
            d = b.and_(b.bitcast(self.to_float32(value), self.narrow), self.clear_narrow)
            wide = b.fpext(b.bitcast(d, ir.VectorType(F32, self.shape.lanes)), self.doubles)
            return self.below(b.fadd(wide, fill(self.doubles, 0.0)), 2.0**128, value)  # -0 + 0 is +0
        return b.bitcast(b.and_(b.bitcast(value, self.longs), self.clear), self.doubles)

    def below(self, d: Any, limit: float, tested: Any = None) -> Any:
        """Return `d`, or NaN where it, or `tested` instead, reaches the limit."""
        b = self.builder
        magnitude = self.call(f"llvm.fabs.v{self.shape.lanes}f64", self.doubles, d if tested is None else tested)
        return b.select(b.fcmp_ordered("<", magnitude, fill(self.doubles, limit)), d, fill(self.doubles, float("nan")))

    def to_float32(self, x: Any) -> Any:
        """Convert float64 to float32, rounding toward zero."""
        floats = ir.VectorType(F32, self.shape.lanes)
        if not self.shape.embedded:
            return self.builder.fptrunc(x, floats)
        name = "llvm.x86.avx512.mask.cvtpd2ps.512"
        return self.call(name, floats, x, ir.Constant(floats, ir.Undefined), I8(-1), I32(TOWARD_ZERO))
