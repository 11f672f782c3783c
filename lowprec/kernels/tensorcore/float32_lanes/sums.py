"""One group's sum in float32 lanes: the addition of C, of the products, and the final step.

One group of L products and C: E is the largest exponent among the nonzero terms, every term is truncated to a multiple
of q = 2^(E - F), the sum is exact, and the result is truncated to the accumulator's fraction bits. The float32 FPU does
nearly all of this. The running sum is stored as M + S with M = 1.5 * 2^23 q, so that its ulp is q as long as
|S| < 2^22 q: |S| <= L * 4 * 2^F q + 2^(F + 1) q. S = (M + S) - M is exact, M follows from the sum's own exponent, as
2^23 q <= M + S < 2^24 q, and x - x is +0. Products of two FP8 numbers have at most 8 significant bits.

Between groups S is not truncated, as long as a result has at least F fraction bits: the bits that truncation would
clear are also below the next q, which is at least 2^-F of S's leading bit. The result is truncated at the end of a
chain.

`TowardZero`: one fused multiply-add that rounds toward zero, by its encoding or by the thread's mode, multiplies,
aligns, truncates and adds. B is multiplied by 1 + 2^-16 beforehand.

* M + S > 0, so rounding toward zero is rounding down: p / q becomes floor(p / q * (1 + 2^-16)).
* p >= 0: p / q = n + f with f <= 1 - 2^-8 below 2^7 and f = 0 above (8 significant bits), and n < 2^(F + 2); the
  extra p / q * 2^-16 is below 2^-9 in the first case and below 1 in the second, so the floor is n, for F <= 14.
* p < 0: the floor is -(n + 1) whether or not f = 0, one less than truncation gives. The sum is therefore too small by
  exactly one unit per negative product, and these are counted: the bits of (A's signs ^ B's signs). Zeros are included:
  they are packed as 2^-126 with their sign, so their products are below 2^-110 and below every q; n = 0.
* C is treated in the same way, as a product of itself and 1 + 2^-23, which the FPU does not round. C has P <= 23
  significant bits (2^(F + 7) bounds |S| / q, and an external C is truncated to F bits, as the alignment would do).
  Below 2^(i + 1), C / q = n + f has f <= 1 - 2^(i + 1 - P), and the extra is below 2^(i + 1 - 23). If f = 0, n * 2^-23
  < 1.

`Biased`, in the default rounding mode: adding t to M + S rounds t to the nearest multiple of q.

* p / q = n + f as above, in magnitude. Subtracting 255/512 q leaves n + (f - 255/512), which is nearest to n. The
  subtraction is exact, or harmless for |p| < q/2: its bits extend from 2^(F + 1) q (unnormalized products are below
  4 * 2^E) down to 2^-9 q, which is F + 11 <= 24 bits for F <= 13. The product is exact and may therefore be fused.
* C has F + 1 <= 14 bits. C / q = n + f in magnitude, f <= 1 - 2^(i - 13): (n + f)(1 + 2^-16) - 1/2 is above n - 1/2
  (or is -1/2, which rounds to the even 0) and below n + 1/2.

`Floored`, and its encoded form: the same fused multiply-add, with B unchanged, computes ``align="floor"``.

`Rounded`, for ``align="nearest"``: fma(a, b, M), in the default rounding mode, is M plus the nearest multiple of q,
ties to even because M / q is even; M is subtracted and the difference is added. For both, C must be truncated as a
result is, so S is truncated after every group.

Operands are finite codes with exponents in -16..15; C (and every intermediate result) is zero or has an exponent in
-95..F + 97, so q is at least 2^-109 and M below 2^122. Callers must compute all other cases elsewhere.
"""

from typing import Any

from lowprec._jit import cpu_features, ir

from ...vectors import F32, I8, I16, I32, TOWARD_ZERO, VectorCode, fill

FACTOR = 1 + 2.0**-16  # factor of B's values for products rounded toward zero
_EXPONENT, _SIGN = 0x7F800000, 0x80000000


class GroupSum(VectorCode):
    """Emits a group's sum for vectors of `lanes` outputs; the constructor takes fields of `loop.Sums`."""

    counts = False  # whether `begin` takes masks of the negative products; zeros are then packed as 2^-126

    def __init__(self, builder: Any, lanes: int, fraction_bits: Any, keep: Any) -> None:
        super().__init__(builder)
        self.lanes = lanes
        self.ints, self.floats = ir.VectorType(I32, lanes), ir.VectorType(F32, lanes)
        # M for the biased exponent e is the float with the bits (e << 23) + m_bits: 1.5 * 2^(23 - F) above 2^e.
        m_bits = builder.add(builder.shl(builder.sub(I32(23), fraction_bits), I32(23)), I32(0x400000))
        self.m_bits = self.splat(m_bits, self.ints)
        self.cut, self.kept = (
            self.splat(builder.shl(I32(-1), builder.sub(I32(23), bits)), self.ints) for bits in (fraction_bits, keep)
        )

    def entry(self, c: Any) -> Any:
        """Return C's bits in the form that a chain's first group takes."""
        return self.builder.and_(c, self.cut)

    def begin(self, c: Any, top: Any, negative: Any) -> list[Any]:
        """Return M plus C, and the other values that a group needs; `top` is 2^E of the products; both as bits."""
        raise NotImplementedError

    def product(self, a: Any, b: Any, kept: list[Any]) -> Any:
        """Return the sum after another product, from the values of `begin` and the sum so far."""
        raise NotImplementedError

    def end(self, total: Any) -> Any:
        """Return the bits of S."""
        b = self.builder
        m = b.or_(b.and_(b.bitcast(total, self.ints), fill(self.ints, _EXPONENT)), fill(self.ints, 0x400000))
        return b.bitcast(b.fsub(total, b.bitcast(m, self.floats)), self.ints)

    def m(self, c: Any, top: Any) -> Any:
        """Return M's bits."""
        b = self.builder
        e = b.and_(c, fill(self.ints, _EXPONENT))
        return b.add(b.select(b.icmp_unsigned(">", top, e), top, e), self.m_bits)

    def constant(self, value: float) -> Any:
        """Return a vector with one number in every lane."""
        return ir.Constant(self.floats, [ir.Constant(F32, value)] * self.lanes)


class TowardZero(GroupSum):
    """Sums rounded toward zero by the FPU in the thread's rounding mode."""

    counts = True

    def begin(self, c: Any, top: Any, negative: Any) -> list[Any]:
        """Return M plus C, truncated."""
        b = self.builder
        m = b.bitcast(self.m(c, top), self.floats)
        down = self.multiply_add(b.bitcast(c, self.floats), self.constant(1 + 2.0**-23), m)
        # C is counted by its sign only: a zero is +0. Even if it becomes 0, it was rounded down, like a product.
        lacking = b.add(self.count(negative), b.lshr(c, fill(self.ints, 31)))
        return [b.bitcast(b.add(b.bitcast(down, self.ints), lacking), self.floats)]

    def product(self, a: Any, b: Any, kept: list[Any]) -> Any:
        """Return the sum after another product."""
        return self.multiply_add(a, b, kept[0])

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return the fused a * b + c, rounded toward zero."""
        return self.call(f"llvm.fma.v{self.lanes}f32", self.floats, a, b, c)

    def count(self, masks: Any) -> Any:
        """Return the number of set bits in each of the 32-bit masks."""
        b, lanes = self.builder, self.lanes
        if "avx512vpopcntdq" in cpu_features() or lanes != 8:
            return self.call(f"llvm.ctpop.v{lanes}i32", self.ints, masks)
        octets, pairs = ir.VectorType(I8, 4 * lanes), ir.VectorType(I16, 2 * lanes)
        table = ir.Constant(octets, [bin(n).count("1") for n in range(16)] * 2)
        nibble, found = fill(octets, 15), []
        for part in (masks, b.lshr(masks, fill(self.ints, 4))):
            found.append(self.call("llvm.x86.avx2.pshuf.b", octets, table, b.and_(b.bitcast(part, octets), nibble)))
        both = self.call("llvm.x86.avx2.pmadd.ub.sw", pairs, b.add(*found), fill(octets, 1))
        return self.call("llvm.x86.avx2.pmadd.wd", self.ints, both, fill(pairs, 1))


class Encoded(TowardZero):
    """Sums rounded toward zero by the instructions' encoding, on AVX-512."""

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Return the fused a * b + c, rounded toward zero."""
        return self.call(f"llvm.x86.avx512.vfmadd.ps.{32 * self.lanes}", self.floats, a, b, c, I32(TOWARD_ZERO))


class Floored(TowardZero):
    """Sums of terms that are rounded down, in a thread that rounds toward zero."""

    counts = False

    def entry(self, c: Any) -> Any:
        """Return C's bits unchanged."""
        return c

    def begin(self, c: Any, top: Any, negative: Any) -> list[Any]:
        """Return M plus C, truncated."""
        b = self.builder
        m = b.bitcast(self.m(c, top), self.floats)
        return [self.multiply_add(b.bitcast(c, self.floats), self.constant(1.0), m)]

    def end(self, total: Any) -> Any:
        """Return the bits of S, truncated as a result."""
        return self.builder.and_(super().end(total), self.kept)


class EncodedFloored(Floored, Encoded):
    """Sums of terms that are rounded down by the instructions' encoding."""


class Rounded(GroupSum):
    """Sums of terms that are rounded to nearest even."""

    def entry(self, c: Any) -> Any:
        """Return C's bits unchanged."""
        return c

    def begin(self, c: Any, top: Any, negative: Any) -> list[Any]:
        """Return M plus C, rounded, and M."""
        b = self.builder
        m = b.bitcast(self.m(c, top), self.floats)
        return [b.fadd(b.bitcast(c, self.floats), m), m]

    def product(self, a: Any, b: Any, kept: list[Any]) -> Any:
        """Return the sum after another product."""
        total, m = kept
        return self.builder.fadd(total, self.builder.fsub(multiply_add(self, a, b, m), m))

    def end(self, total: Any) -> Any:
        """Return the bits of S, truncated as a result."""
        return self.builder.and_(super().end(total), self.kept)


def multiply_add(code: GroupSum, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, fused if the CPU supports it: products are exact, and C may be rounded either way."""
    if "fma" in cpu_features():
        return code.call(f"llvm.fma.v{code.lanes}f32", code.floats, a, b, c)
    return code.builder.fadd(code.builder.fmul(a, b), c)


class Biased(GroupSum):
    """Sums in the default rounding mode, for any CPU."""

    def begin(self, c: Any, top: Any, negative: Any) -> list[Any]:
        """Return M plus C, truncated, and the reduction of products' magnitudes, negated."""
        b, ints = self.builder, self.ints
        c = self.entry(c)
        m = self.m(c, top)
        half = b.sub(m, fill(ints, (24 << 23) | 0x400000))  # q / 2
        half = b.xor(b.or_(half, b.and_(c, fill(ints, _SIGN))), fill(ints, _SIGN))
        whole = multiply_add(self, b.bitcast(c, self.floats), self.constant(FACTOR), b.bitcast(half, self.floats))
        bias = b.or_(b.sub(m, fill(ints, (25 << 23) | 0x400000)), fill(ints, _SIGN | 0x7F0000))
        return [b.fadd(b.bitcast(m, self.floats), whole), bias]

    def product(self, a: Any, b: Any, kept: list[Any]) -> Any:
        """Return the sum after another product."""
        build, sign = self.builder, fill(self.ints, _SIGN)
        total, bias = kept
        signs = [build.and_(build.bitcast(x, self.ints), sign) for x in (a, b)]
        taken = build.xor(build.xor(signs[0], signs[1]), bias)
        return build.fadd(total, multiply_add(self, a, b, build.bitcast(taken, self.floats)))
