"""What fused kinds share: kernels in float64 lanes, whose results that are not finite mean nothing but that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._threads import fresh
from ...format.catalogue import Format
from ..accumulator import FLOAT16, AlignedSum, Computed
from ..product import Float32Matrix, Matrix, Product, Schedule
from ..run_kernels import RunKernel
from ..wide_kernels import WideKernel

_NONE = np.empty(0, np.intp)


@dataclass(frozen=True)
class Float64Lanes:
    """A kernel that lays B out in panels, for one accumulator."""

    accumulator: AlignedSum
    kernel: WideKernel | RunKernel

    def covers(self, product: Product) -> bool:
        """Refuse float16 sums that are rescaled on the way: the kernel would round them in another place."""
        s = product.schedule
        return s is None or s.promote or s.scale_a.shape[0] == 1 or self.accumulator.output_format != FLOAT16

    def lay_out(self, b: Matrix, fmt: Format, scale: Matrix | None) -> Any:
        """Lay out all panels."""
        return list(self.kernel.panels(self.accumulator, fmt, b, scale, fresh))

    def compute(self, product: Product, laid_out: Any = None) -> Computed:
        """Run the kernel; what comes out other than finite is left to the reference."""
        p, (m, n, k) = product, product.shape
        schedule, addend = p.schedule or Schedule.one_chain(m, n, k, self.accumulator.group), None
        if p.c is not None and p.c.view(f"uint{8 * p.c.itemsize}").any():
            with np.errstate(invalid="ignore"):  # signalling NaNs
                addend = p.c.astype(np.float32)
        out = self.kernel.compute(
            self.accumulator, (p.fa, p.fb), p.a, p.b, schedule, addend, p.scales, laid_out
        )  # fmt: skip
        rows, columns = not_finite(out)
        return Computed(out.astype(self.accumulator.dtype, copy=False) if p.schedule is None else out, rows, columns)


def not_finite(x: Float32Matrix) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows, or else the columns, that hold everything that is not finite: whichever are fewer."""
    finite = np.isfinite(x)
    if finite.all():
        return _NONE, _NONE
    wrong = ~finite
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    return (rows, columns[:0]) if rows.size * x.shape[1] <= columns.size * x.shape[0] else (rows[:0], columns)
