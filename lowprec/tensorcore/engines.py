"""The ways to compute chains of products: one engine per kind of accumulator, chosen by `engine`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._threads import fresh, over_rows
from ..cast.casts import decode
from ..format.catalogue import Format, formats
from ..kernels.tensorcore import exact_dot, fused_dot, fused_pack
from ..kernels.tensorcore import promote as promotion
from ..registry import cached
from .accumulator import Accumulator
from .engine import Engine, Float32Matrix, Kept, Matrix, Plan
from .float32 import accumulate_f32
from .fused_kernels import FusedKernel, fused_kernels, operand_tables, selected_kernel
from .reference_dots import (
    BlockScales,
    exact_groups,
    float16_unit,
    fused,
    fused_runs,
    halves,
    in_halves,
    pairwise,
    two_floors,
)
from .run_kernels import RunKernel, run_kernel
from .wide_kernels import WideKernel, wide_kernel

_WORK = 1 << 25  # multiply-adds that are worth a thread: some hundred microseconds, a few times what waking it costs
_ROWS_AT_ONCE = 512  # of A, laid out for the fused kernels
_MAX_EXACT_K = 1 << 20


class Reference(Engine):
    """A machine in integers or in its own order: any codes that it takes, any C."""

    DOTS: ClassVar[dict[str, Any]] = {
        "fused": fused, "fused_runs": fused_runs, "halves": halves,
        "two_floors": two_floors, "pairwise": pairwise, "exact_groups": exact_groups,
    }  # fmt: skip

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return one chain over all K, starting from C."""
        dot = self.DOTS[self.machine.kind]
        return dot(self.machine, self.fa, self.fb, a, b, c, scales)  # type: ignore[no-any-return]


class Sequential(Engine):
    """Float32 fused multiply-adds in increasing k."""

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return one chain over all K, starting from C."""
        out: Float32Matrix = c.copy()
        accumulate_f32(decode(a, self.fa), decode(b, self.fb), out)
        promotion.canonical_nan(out)
        return out


class Exact(Engine):
    """The exact sum, rounded once."""

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        super().__init__(machine, fa, fb)
        if fa.smallest_subnormal * fb.smallest_subnormal < 2.0**-32 or fa.max * fb.max >= 2.0**32:
            raise ValueError(f"{machine.name}: products of {fa} and {fb} leave 2^-32 .. 2^32; FP8 and narrower fit")

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return the exact sum over all K and C, rounded once."""
        if a.shape[1] > _MAX_EXACT_K:
            raise ValueError(f"{self.machine.name}: K = {a.shape[1]} is beyond {_MAX_EXACT_K}")
        x, y, out = decode(a, self.fa), decode(b, self.fb), np.empty_like(c)
        per_row = b.shape[0] * 32 * max(a.shape[1], 1)
        over_rows(lambda i, j: exact_dot.exact_dot(x, y, c, out, i, j), a.shape[0], per_row, _WORK, _ROWS_AT_ONCE)
        promotion.canonical_nan(out)
        return out


class Fused(Engine):
    """Fused sums: the fastest kernel whose conditions hold, the integer reference for the rest."""

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        super().__init__(machine, fa, fb)
        self.kernel = _fast_kernel(machine, fa, fb)  # None: only the reference holds for this machine
        self.reference = Reference(machine, fa, fb)

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return one chain over all K, starting from C."""
        if self.kernel is None:
            return self.reference.chain(a, b, c, scales)
        plan = Plan.one_chain(a.shape[0], b.shape[0], a.shape[1], self.machine.group)
        field = (c.view(np.uint32) >> 23) & 0xFF
        usual = (c.view(np.uint32) << 1 == 0) | ((field >= 127 - 100) & (field <= 127 + 110))
        return self._patched(a, b, plan, c, ~usual.all(axis=1))

    def scaled(self, a: Matrix, b: Matrix, plan: Plan, kept: Kept | None = None) -> Float32Matrix:
        """Return the scaled sum of the blocks' chains; the fast kernel scales on the way."""
        if self.kernel is None:
            return self.reference.scaled(a, b, plan)
        if not plan.promote and _spread(plan.scale_a) + _spread(plan.scale_b) > 50:
            return super().scaled(a, b, plan)  # a running sum could leave the fast kernel's exponents
        return self._patched(a, b, plan, None, None, self.kept_parts(kept))

    def keep(self, b: Matrix, scale: Matrix | None = None) -> Kept | None:
        """Lay out B."""
        if self.kernel is None:
            return None
        panels = self.kernel.pack_panels(b, self.fb, self.machine.group, fresh)
        return Kept(self.machine, self.kernel, (panels, _rows_with_special(b, self.fb)))

    def _patched(
        self, a: Matrix, b: Matrix, plan: Plan, c: Float32Matrix | None, odd_rows: NDArray[np.bool_] | None,
        kept: Any = None,
    ) -> Float32Matrix:  # fmt: skip
        """Run the fast kernel on everything, then the reference on rows and columns that hold NaN, Inf or an odd C."""
        panels, columns = kept or (None, _rows_with_special(b, self.fb))
        out = self._run_fast(a, b, plan, c, panels)
        rows = _rows_with_special(a, self.fa)
        if odd_rows is not None:
            rows = np.union1d(rows, np.flatnonzero(odd_rows))
        if rows.size:
            out[rows] = self._reference(a[rows], b, plan.of_rows(rows), None if c is None else c[rows])
        if columns.size:
            some = None if c is None else np.ascontiguousarray(c[:, columns])
            out[:, columns] = self._reference(a, b[columns], plan.of_columns(columns), some)
        return out

    def _run_fast(self, a: Matrix, b: Matrix, plan: Plan, c: Float32Matrix | None, panels: Any) -> Float32Matrix:
        m, n, machine, kernel = a.shape[0], b.shape[0], self.machine, self.kernel
        assert kernel is not None
        packed_b = panels or kernel.pack_panels(b, self.fb, machine.group)
        out = np.zeros((m, n), np.float32)
        addend = out if c is None else c

        def some_rows(first: int, stop: int) -> None:
            packed_a = kernel.pack_rows(a[first:stop], self.fa, machine.group)
            kernel.run(
                *packed_a, *packed_b, machine.group, machine.fraction_bits, machine.output_bits,
                plan.length, plan.promote, plan.scale_a, plan.scale_b, addend, c is not None, out, first, stop,
            )  # fmt: skip

        over_rows(some_rows, m, n * a.shape[1], _WORK, _ROWS_AT_ONCE)
        return out

    def _reference(self, a: Matrix, b: Matrix, plan: Plan, c: Matrix | None) -> Matrix:
        if c is not None:
            return self.reference.chain(a, b, np.ascontiguousarray(c))
        return self.reference.scaled(a, b, plan)


class Wide(Engine):
    """Fused sums in float64 lanes; what comes out other than finite is left to the integer reference."""

    def __init__(self, machine: Accumulator, fa: Format, fb: Format, kernel: WideKernel | RunKernel) -> None:
        super().__init__(machine, fa, fb)
        self.kernel: WideKernel | RunKernel = kernel
        self.reference = Reference(machine, fa, fb)

    def keep(self, b: Matrix, scale: Matrix | None = None) -> Kept | None:
        """Lay out B."""
        return Kept(self.machine, self.kernel, list(self.kernel.panels(self.machine, self.fb, b, scale, fresh)))

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return one chain over all K, starting from C."""
        plan = Plan.one_chain(a.shape[0], b.shape[0], a.shape[1], self.machine.group)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            addend = c.astype(np.float32) if c.view(f"uint{8 * c.itemsize}").any() else None
        out = self.kernel.compute(self.machine, (self.fa, self.fb), a, b, plan, addend, scales, self.kept_parts(kept))
        result = out.astype(self.machine.dtype, copy=False)
        rows, columns = _not_finite(out)
        if rows.size:
            some = scales and scales._replace(a=scales.a[rows])
            result[rows] = self.reference.chain(a[rows], b, c[rows], some)
        if columns.size:
            some = scales and scales._replace(b=scales.b[columns])
            result[:, columns] = self.reference.chain(a, b[columns], np.ascontiguousarray(c[:, columns]), some)
        return result

    def scaled(self, a: Matrix, b: Matrix, plan: Plan, kept: Kept | None = None) -> Float32Matrix:
        """Return the scaled sum of the blocks' chains; the kernel scales on the way."""
        if self.machine.output == "float16" and not plan.promote and plan.scale_a.shape[0] > 1:
            return self.reference.scaled(a, b, plan)
        out = self.kernel.compute(self.machine, (self.fa, self.fb), a, b, plan, None, None, self.kept_parts(kept))
        rows, columns = _not_finite(out)
        if rows.size:
            out[rows] = self.reference.scaled(a[rows], b, plan.of_rows(rows))
        if columns.size:
            out[:, columns] = self.reference.scaled(a, b[columns], plan.of_columns(columns))
        return out


class Halves(Engine):
    """Two float16 instructions for each FP8 one: a promotion after each two groups, of operands in another order.

    An instruction's chain starts from +0 and its result is added to C, rounded to nearest (`reference_dots.halves`):
    that is a promoted chain with scales of 1. For float16 results the float32 sum is rounded once more; that gives what
    one rounding gives: 24 bits are twice float16's 11, and two more (Figueroa 1995).
    """

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        super().__init__(machine, fa, fb)
        self.inner, self.reference = float16_unit(machine), Reference(machine, fa, fb)
        self.kernel = wide_kernel(self.inner, formats["float16"], formats["float16"])

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return one chain over all K, starting from C."""
        step, half = 2 * self.machine.group, formats["float16"]
        if self.kernel is None or a.shape[1] == 0:
            return self.reference.chain(a, b, c)
        x, y = in_halves(a, self.fa, step), in_halves(b, self.fb, step)
        count = x.shape[1] // step
        ones = [np.ones((count, len(side)), np.float32) for side in (a, b)]
        plan = Plan(step, ones[0], ones[1], promote=True)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            out = c.astype(np.float32) + np.float32(0)
        self.kernel.compute(self.inner, (half, half), x, y, plan, None, onto=out)
        rows, columns = _not_finite(out)
        result = out.astype(self.machine.dtype, copy=False)
        if rows.size:
            result[rows] = self.reference.chain(a[rows], b, c[rows])
        if columns.size:
            result[:, columns] = self.reference.chain(a, b[columns], np.ascontiguousarray(c[:, columns]))
        return result


_NONE = np.empty(0, np.intp)


def _not_finite(x: Float32Matrix) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows, or else the columns, that hold everything that is not finite: whichever are fewer."""
    finite = np.isfinite(x)
    if finite.all():
        return _NONE, _NONE
    wrong = ~finite
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    return (rows, columns[:0]) if rows.size * x.shape[1] <= columns.size * x.shape[0] else (rows[:0], columns)


def engine(machine: Accumulator, fa: Format, fb: Format) -> Engine:
    """Return the engine of a machine for two operand formats, with the kernels in use now."""
    return _engine(machine, fa, fb, selected_kernel().name)


@cached(256)
def _engine(machine: Accumulator, fa: Format, fb: Format, kernel_name: str) -> Engine:
    if machine.kind == "fused" and _fast_kernel(machine, fa, fb) is None:
        wide = wide_kernel(machine, fa, fb)
        return Reference(machine, fa, fb) if wide is None else Wide(machine, fa, fb, wide)
    if machine.kind == "fused_runs":
        runs = run_kernel(machine, fa, fb)
        return Reference(machine, fa, fb) if runs is None else Wide(machine, fa, fb, runs)
    kinds: dict[str, type[Engine]] = {"fused": Fused, "halves": Halves, "exact": Exact, "sequential": Sequential}
    return kinds.get(machine.kind, Reference)(machine, fa, fb)


def _fast_kernel(machine: Accumulator, fa: Format, fb: Format) -> FusedKernel | None:
    """Return the fastest kernel that is exact for a machine and two formats, None if there is none."""
    narrow = fa.mantissa_bits + fb.mantissa_bits <= 6 and all(f.emin >= -16 and f.emax <= 15 for f in (fa, fb))
    plain = machine.align == "truncate" and machine.output != "float16" and machine.scale_format is None
    unseen = machine.zero_exponent is None or machine.zero_exponent <= -100  # below all that the kernels work on
    if not (narrow and plain and unseen):
        return None
    return next((k for k in (selected_kernel(), fused_kernels["portable"]) if k.supports(machine)), None)


def _rows_with_special(codes: Matrix, fmt: Format) -> NDArray[np.intp]:
    """Return the rows that hold NaN or Inf."""
    if not operand_tables(fmt).kind.any():
        return _NONE
    if fmt.specials != "fnuz":  # their codes lie above the largest finite one; there are hardly ever any
        largest = fused_pack.largest_magnitude(codes.reshape(-1), np.uint8(0xFF & ~fmt.sign_mask))
        if largest <= fmt.max_code:
            return _NONE
    out = np.empty(codes.shape[0], np.bool_)
    fused_dot.rows_with_special(codes, operand_tables(fmt).kind, out)
    return np.flatnonzero(out)


def _spread(scale: Float32Matrix) -> int:
    """Return the binades that scales span; a large number if one of them is not finite or not positive."""
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return 1 << 10
    exponents = np.frexp(scale)[1]
    return int(exponents.max() - exponents.min()) + 1
