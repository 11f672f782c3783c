"""`FusedSum`: what NVIDIA's tensor cores do. Products of a group and C are aligned, cut and summed at once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._threads import fresh, over_rows
from ...format.catalogue import Format
from ...kernels.tensorcore import fused_dot, narrow_pack
from ..accumulator import FLOAT16, FLOAT32, Align, AlignedSum, Computed, FastKernel, StepError
from ..fused_kernels import FusedKernel, Limits, fused_kernels, operand_tables, reading
from ..integers import bits_of, by_rows, group_rule, result_layout, take_apart, values_of
from ..order import Aligned, Products, Sum
from ..panel_kernels import fastest, proves_itself
from ..product import Float32Matrix, Matrix, Product, Schedule
from ..selection import selected_kernel
from ..wide_kernels import KERNELS, WideKernel
from .panels import Float64Lanes

_WORK = 1 << 25  # multiply-adds that are worth a thread: some hundred microseconds, a few times what waking it costs
_ROWS_AT_ONCE, _NUMBERS_AT_ONCE = 256, 1 << 16  # of A, laid out for the kernel: whichever is more
_NONE = np.empty(0, np.intp)


def aligned_error(accumulator: AlignedSum, terms: int) -> StepError:
    """Return the error of a sum of so many terms that are aligned, cut, added and brought to the result's format.

    The largest exponent E is at most that of the terms' magnitudes, of the result's smallest normal number (a
    subnormal C has its exponent), or of a zero. Each term loses less than 2^(E - F), half of it where it is rounded,
    and the sum less than a unit in its last place, half of it for float16.
    """
    half, least = accumulator.output_format == FLOAT16, accumulator.stored_format.smallest_normal
    lost = terms * 2.0**-accumulator.fraction_bits * (0.5 if accumulator.align == "nearest" else 1.0)
    last = 2.0 ** -(accumulator.output_bits + half)
    zero = 0.0 if accumulator.zero_exponent is None else 2.0**accumulator.zero_exponent
    return StepError(
        lost + last * (1 + lost), lost * (1 + last) * (zero + least) + least * 2.0**-accumulator.output_bits
    )


#: How terms are cut, in a drawing's words.
_CUT = {"truncate": "cut toward zero", "floor": "cut downwards", "nearest": "rounded to nearest"}


def aligned_words(accumulator: AlignedSum) -> tuple[str, ...]:
    """Return what happens in a fused sum, line by line."""
    last = f"{'rounded' if accumulator.output_format == FLOAT16 else 'cut'} to {accumulator.output_format}"
    return (
        "aligned to the largest exponent",
        f"{_CUT[accumulator.align]}, {accumulator.fraction_bits} fraction bits kept",
        f"added exactly, {last}",
    )


def aligned(accumulator: AlignedSum, operands: str = "") -> Aligned:
    """Return what happens in a fused sum, as data."""
    a = accumulator
    return Aligned(a.fraction_bits, a.align, a.output_format.name, a.zero_exponent, operands)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FusedSum(AlignedSum):
    """Sums of a group and C at once, as NVIDIA's tensor cores do; scales inside the instruction are powers of two."""

    words = "groups of products and C aligned, cut and summed at once"

    def check(self) -> None:
        """Take scales that join the exponents."""
        super().check()
        if self.scale_format is not None and self.scale_format.mantissa_bits:
            raise ValueError(
                f"FusedSum {self.name}: scale_format must have no mantissa bits (its values are powers of two), "
                f"got {self.scale_format}"
            )

    def instruction(self, state: Sum | str, start: int) -> Sum:
        """Join a group with C in one sum."""
        products = Products(tuple(range(start, start + self.group)))
        scaled = () if self.scale_format is None else (f"exponents of {self.scale_format} scales added",)
        return Sum((*scaled, *aligned_words(self)), (state, products), aligned(self))

    def step_error(self) -> StepError:
        """Return that of a group's products and C."""
        return aligned_error(self, self.group + 1)

    def reference(self, product: Product) -> Matrix:
        """Return one chain in integers."""
        p, group = product, self.group
        sa, sb = (None, None) if p.scales is None else p.scales
        scaling = self.scale_format, self.scale_block
        left, right = take_apart(p.a, p.fa, group, sa, *scaling), take_apart(p.b, p.fb, group, sb, *scaling).T
        rule = group_rule(self, p.fa.mantissa_bits + p.fb.mantissa_bits)
        state, layout = bits_of(p.start), result_layout(self)

        def piece(start: int, stop: int) -> None:
            fused_dot.fused_dot(left, right, rule, layout, state, start, stop)

        by_rows(piece, p)
        return values_of(state, self)

    def fast(self, fa: Format, fb: Format) -> FastKernel | None:
        """Return the kernel in float32 lanes where it holds, else that in float64 lanes."""
        narrow = narrow_kernel(self, fa, fb)
        if narrow is not None:
            return Float32Lanes(self, narrow)
        wide = wide_kernel(self, fa, fb)
        return None if wide is None else Float64Lanes(self, wide)


# FP8 products and FP22 sums, in float32 lanes


def narrow_kernel(accumulator: AlignedSum, fa: Format, fb: Format) -> FusedKernel | None:
    """Return the fastest kernel in float32 lanes that is exact for an accumulator and two formats."""
    forms = selected_kernel(), fused_kernels["portable"]
    return next((form for form in forms if form.supports(accumulator, fa, fb)), None)


@dataclass(frozen=True)
class Float32Lanes:
    """The kernel for one accumulator, exact within its `fused_kernels.Limits`."""

    accumulator: AlignedSum
    kernel: FusedKernel

    def covers(self, product: Product) -> bool:
        """Take all: single rows and columns may be beyond its limits."""
        return True

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None) -> Any:
        """Lay out B, and find its columns of the result that the kernel cannot do."""
        return self.kernel.pack_panels(self.accumulator, b, fmt, fresh), _rows_with_special(b, fmt)

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel; rows and columns beyond its limits are left to the reference."""
        p, (m, n, k) = product, product.shape
        accumulator, kernel, limits = self.accumulator, self.kernel, self.kernel.limits
        schedule = p.schedule or Schedule.one_chain(m, n, k, accumulator.group)
        at_once = max(_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // max(k, 1))
        panels, columns = laid_out or (None, None)
        if panels is None and (m > at_once or m * n * k > _WORK):  # for all parts of A
            panels, columns = kernel.pack_panels(accumulator, p.b, p.fb), _rows_with_special(p.b, p.fb)
        out = np.empty((m, n), np.float32)
        largest: list[tuple[int, int]] = []

        def some_rows(first: int, stop: int) -> None:
            rows = slice(first, stop)
            some = schedule if stop - first == m else schedule.of_rows(rows)
            c = None if p.c is None else p.c[rows]
            largest.append(kernel.compute(accumulator, p.a[rows], p.fa, p.b, p.fb, some, c, out[rows], panels))

        over_rows(some_rows, m, n * k, _WORK, at_once)
        rows = _rows_with_special(p.a, p.fa, max(found for found, _ in largest))
        if columns is None:
            columns = _rows_with_special(p.b, p.fb, largest[0][1])
        if p.c is not None:
            known = limits.lowest_c, limits.highest_c + accumulator.fraction_bits
            usual = (p.c.view(np.uint32) << 1 == 0) | _within(_exponents(p.c), known)
            rows = np.union1d(rows, np.flatnonzero(~usual.all(axis=1)))
        if len(schedule.scale_a) > 1 and not schedule.promote:
            rows = np.union1d(rows, _far_apart(schedule.scale_a, limits))
            columns = np.union1d(columns, _far_apart(schedule.scale_b, limits))
        return Computed(out, rows, columns)


def _exponents(x: Float32Matrix) -> NDArray[np.int32]:
    """Return the exponents of float32 numbers: -127 for zeros and subnormals, 128 for Inf and NaN."""
    found: NDArray[np.int32] = ((x.view(np.uint32) >> 23) & 0xFF).astype(np.int32) - 127
    return found


def _within(exponents: NDArray[np.int32], limits: tuple[int, int]) -> NDArray[np.bool_]:
    return (exponents >= limits[0]) & (exponents <= limits[1])


def _far_apart(scale: Float32Matrix, limits: Limits) -> NDArray[np.intp]:
    """Return the rows whose scales [blocks, rows] a running sum cannot be expressed in, one after the other."""
    exponents = _exponents(np.ascontiguousarray(scale))
    near = exponents.max(axis=0) - exponents.min(axis=0) < limits.binades
    return np.flatnonzero(~(near & _within(exponents, limits.scale).all(axis=0) & (scale > 0).all(axis=0)))


def _rows_with_special(codes: Matrix, fmt: Format, largest: int | None = None) -> NDArray[np.intp]:
    """Return the rows that hold NaN or Inf; `largest` is the largest code without its sign, looked for by default."""
    tables = operand_tables(fmt)
    if not tables.special:
        return _NONE
    if fmt.specials != "fnuz":  # their codes lie above the largest finite one; there are hardly ever any
        if largest is None:
            largest = narrow_pack.largest_magnitude(codes, reading(fmt))
        if largest <= tables.max_code:
            return _NONE
    out = np.empty(codes.shape[0], np.bool_)
    fused_dot.rows_with_special(codes, tables.kind, out)
    return np.flatnonzero(out)


# All other fused sums of up to 40 fraction bits, in float64 lanes


def wide_kernel(accumulator: AlignedSum, fa: Format, fb: Format) -> WideKernel | None:
    """Return the form to use for an accumulator and its operands, None if there is none."""
    return fastest(KERNELS[accumulator.align], functools.partial(passes, accumulator.align), accumulator, fa, fb)


@functools.cache
def passes(align: Align, name: str) -> bool:
    """Compare a form with the reference: all signs, zeros, and terms that lose bits."""
    return proves_itself(KERNELS[align][name], _trial)


def _trial(kernel: WideKernel) -> tuple[Float32Matrix, Float32Matrix]:
    """Return what a form makes of some products, and what is right."""
    rng = np.random.Generator(np.random.Philox(2025))
    x, y = (
        (rng.integers(0, 0x7C00, rows) | rng.integers(0, 2, rows) << 15).astype(np.uint16)
        for rows in ((6, 50), (40, 50))
    )
    x[rng.random(x.shape) < 0.2] = 0
    accumulator = FusedSum(
        "self-test", group=8, fraction_bits=25, output_format=FLOAT32, zero_exponent=-133, align=kernel.align
    )
    got = kernel.compute(accumulator, (FLOAT16, FLOAT16), x, y, Schedule.one_chain(6, 40, 50, accumulator.group), None)
    return got, accumulator.reference(Product(FLOAT16, FLOAT16, x, y, np.zeros_like(got)))
