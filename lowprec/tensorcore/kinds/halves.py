"""`SplitF16Sum`: FP8 ``mma.sync`` on chips that compile it to two float16 instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import decode, encode
from ...format.catalogue import Format
from ..accumulator import FLOAT16, FLOAT32, Accumulator, Computed, FastKernel, StepError
from ..order import Products, Rounded, Sum
from ..product import Matrix, Product, Schedule, canonical_nan
from ..wide_kernels import WideKernel
from .fused import FusedSum, aligned, aligned_error, aligned_words, wide_kernel
from .panels import not_finite


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SplitF16Sum(Accumulator):
    """Two fused sums from +0, of k % 4 in {0, 1} and in {2, 3}, as float16; C is added to the second's result.

    Parameters
    ----------
    group, fraction_bits, output_format, zero_exponent
        Those of each fused sum, see `FusedSum`.
    """

    group: int = 16
    fraction_bits: int = 25
    output_format: Format = FLOAT32
    zero_exponent: int | None = None

    words = "two fused sums from +0 of float16 operands, C added to the second's result"
    oracle = "Halves"
    output_formats = (FLOAT32, FLOAT16)
    reference_is_compiled = False

    def check_formats(self, fa: Format, fb: Format) -> None:
        """Raise a ValueError unless float16 holds all values: it is what the chip makes of them first."""
        for fmt in (fa, fb):
            whole = fmt.is_integer and fmt.mantissa_bits <= 11 and fmt.smallest_subnormal >= 2.0**-24
            if not (FLOAT16.holds(fmt) or (whole and -fmt.min <= FLOAT16.max)):
                raise ValueError(f"{self.name}: float16 does not hold all values of {fmt}")

    def step(self) -> int:
        """Return both groups."""
        return 2 * self.group

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Sum both halves from +0 and add C."""
        inner, step = float16_part(self), self.step()
        words, how = aligned_words(inner), aligned(inner, "float16")
        ks = tuple(start + i for i in _order(step))
        first = Sum(words, ("+0", Products(ks[: step // 2])), how)
        second = Sum(words, (first, Products(ks[step // 2 :])), how)
        return Sum((f"added, rounded to {self.output_format}",), (state, second), Rounded(self.output_format.name))

    def step_error(self) -> StepError:
        """Return that of two groups summed one after the other, and of C's addition, which rounds to nearest."""
        inner = aligned_error(float16_part(self), self.group + 1)
        both = 2 * inner.relative * (1 + inner.relative) ** 2
        last = 2.0 ** -(self.output_bits + 1)
        least = self.stored_format.smallest_subnormal
        return StepError(both + last * (1 + both), (1 + last) * 2 * inner.absolute * (1 + inner.relative) + least)

    def reference(self, product: Product) -> Matrix:
        """Return one chain, instruction by instruction."""
        p, step, inner = product, self.step(), float16_part(self)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            d = p.start + np.zeros((), p.start.dtype)  # no product: the sum of +0 and C
        left, right = in_halves(p.a, p.fa, step), in_halves(p.b, p.fb, step)
        for k in range(0, p.shape[2], step):
            x, y = (np.ascontiguousarray(side[:, k : k + step]) for side in (left, right))
            half = inner.reference(Product(FLOAT16, FLOAT16, x, y, np.zeros_like(d)))
            with np.errstate(over="ignore", invalid="ignore"):
                if self.output_format == FLOAT16:  # float64 holds the sum, so that it is rounded once
                    d = (half.astype(np.float64) + d.astype(np.float64)).astype(np.float16)
                else:
                    d = half + d
        return canonical_nan(d)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel for wide fused sums, fed with promoted chains."""
        inner = float16_part(self)
        kernel = wide_kernel(inner, FLOAT16, FLOAT16)
        return None if kernel is None else Promoted(self, inner, kernel)


@dataclass(frozen=True)
class Promoted:
    """Two float16 instructions for each FP8 one: a promotion after each two groups, of operands in another order.

    An instruction's chain starts from +0 and its result is added to C, rounded to nearest: that is a promoted chain
    with scales of 1. For float16 results the float32 sum is rounded once more; that gives what one rounding gives:
    24 bits are twice float16's 11, and two more (Figueroa 1995).
    """

    accumulator: SplitF16Sum
    inner: FusedSum
    kernel: WideKernel

    def covers(self, product: Product) -> bool:
        """Take chains only."""
        return product.schedule is None

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None) -> Any:
        """Keep nothing: chains of a schedule are cut from B anew."""
        return None

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel; what comes out other than finite is left to the reference."""
        p, step = product, self.accumulator.step()
        x, y = in_halves(p.a, p.fa, step), in_halves(p.b, p.fb, step)
        ones = [np.ones((x.shape[1] // step, len(side)), np.float32) for side in (x, y)]
        with np.errstate(invalid="ignore"):  # signalling NaNs
            out = p.start.astype(np.float32) + np.float32(0)
        schedule = Schedule(step, ones[0], ones[1], promote_every=step)
        self.kernel.compute(self.inner, (FLOAT16, FLOAT16), x, y, schedule, None, onto=out)
        return Computed(out.astype(self.accumulator.dtype, copy=False), *not_finite(out))


def float16_part(accumulator: SplitF16Sum) -> FusedSum:
    """Return the accumulator that does each half."""
    return FusedSum(
        accumulator.name, group=accumulator.group, fraction_bits=accumulator.fraction_bits,
        output_format=accumulator.output_format, zero_exponent=accumulator.zero_exponent,
    )  # fmt: skip


def _order(step: int) -> list[int]:
    """Return the order of an instruction's products: the first half's, then the second's."""
    return sorted(range(step), key=lambda i: i % 4 >= 2) if step % 4 == 0 else list(range(step))


def in_halves(codes: Matrix, fmt: Format, step: int) -> NDArray[np.uint16]:
    """Return codes [R, K] as float16, K filled up with zeros; of each `step` those with k % 4 in {0, 1} come first.

    The products of a step that is no multiple of four keep their order.
    """
    rows, k = codes.shape
    wide = np.zeros((rows, -(-k // step) * step), codes.dtype)
    wide[:, :k] = codes
    if step % 4 == 0 and wide.itemsize == 1:  # two bytes are moved at a time
        pairs = wide.view(np.uint16).reshape(rows, -1, step // 4, 2)
        wide = np.ascontiguousarray(pairs.swapaxes(2, 3)).view(np.uint8).reshape(wide.shape)
    elif step % 4 == 0:
        wide = np.ascontiguousarray(wide.reshape(rows, -1, step // 4, 2, 2).swapaxes(2, 3)).reshape(wide.shape)
    return encode(decode(wide, fmt), FLOAT16)
