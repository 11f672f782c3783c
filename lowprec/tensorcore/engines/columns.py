"""Engine for CDNA3 in float64 columns: products are truncated toward zero, then added to C by rounding down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._threads import parallel_over_rows, scratch
from ...cast.constants import decode_constants
from ...format.catalogue import Format
from ...kernels.cast.nearest import decode32
from ...kernels.tensorcore import columns as kernels
from ..accumulator import FLOAT32
from ..problem import Float32Matrix, GemmProblem, Matrix, Places
from .dots import ExponentRanges
from .engine import NO_PLACES, Engine, PartialResult, find_nonfinite, products_fit_float32, union

_WORK = 1 << 20  # multiply-adds that justify a thread
_MAX_GROUP = 256  # largest number of products whose sum is exact in float64
_ROWS_AT_ONCE, _COLUMNS_AT_ONCE = 64, 512


@dataclass(frozen=True)
class ColumnEngine(Engine):
    """Engine for `TruncateFloorSum` with products exact in float64; a sum that may exceed float32 counts as Inf."""

    accumulator: Any

    @classmethod
    def find(cls, accumulator: Any, fa: Format, fb: Format, machine: str) -> ColumnEngine | None:
        """Return the engine for operands of at most 12 significant bits, within the limits of the kernel."""
        few = accumulator.fraction_bits <= kernels.MAX_FRACTION_BITS and accumulator.output_format == FLOAT32
        few = few and accumulator.group_size <= _MAX_GROUP
        return (
            cls(accumulator, fa, fb, "") if few and products_fit_float32(fa, fb) and fa.emin + fb.emin > -900 else None
        )

    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Run the kernel on blocks of columns of the result; its limits are products below 2^128 and finite results."""
        a, (m, n, k) = self.accumulator, p.shape
        depth = -(-a.group_size // (a.lanes * kernels.STEP)) * kernels.STEP
        rule = kernels.Floors(a.lanes, depth, a.fraction_bits, 2.0 ** min(a.window, 900))
        per_row = max(-(-k // a.group_size), 1) * a.lanes * depth
        with np.errstate(invalid="ignore"):  # signalling NaNs
            out = np.array(p.start, np.float32)

        def dealt(side: str, codes: Matrix, fmt: Format) -> kernels.Dealt:
            shape = len(codes), per_row
            parts = (scratch(f"floors_{side}_{of}", len(codes) * per_row, np.float64) for of in ("values", "powers"))
            found = kernels.Dealt(*(part.reshape(shape) for part in parts))
            kernels.deal(_decoded(codes, fmt), 2.0**fmt.emin, a.group_size, rule, found)
            return found

        for first in range(0, n, _COLUMNS_AT_ONCE):
            some = slice(first, min(first + _COLUMNS_AT_ONCE, n))
            y = dealt("b", p.b[some], p.fb)
            size = -(-len(y.values) // kernels.COLUMNS) * kernels.COLUMNS * per_row
            panels = kernels.Dealt(*(scratch(f"floors_panels_{i}", size, np.float64) for i in range(2)))
            kernels.turn(y, panels)

            def some_rows(start: int, stop: int, some: slice = some, panels: kernels.Dealt = panels) -> None:
                kernels.floored_columns(dealt("a", p.a[start:stop], p.fa), panels, rule, out[start:stop, some])

            parallel_over_rows(some_rows, m, (some.stop - some.start) * per_row, _WORK, _ROWS_AT_ONCE)
        return PartialResult(out, *union(_large(p), find_nonfinite(out)))


def _large(p: GemmProblem) -> tuple[Places, Places]:
    """Return the rows and columns to exclude so that all products are below 2^128."""
    if p.fa.emax + p.fb.emax + 2 <= 128:
        return NO_PLACES, NO_PLACES
    left, right = (ExponentRanges.of(_decoded(codes, fmt), fmt.emin).high for codes, fmt in ((p.a, p.fa), (p.b, p.fb)))
    if left.max() + right.max() + 2 <= 128:
        return NO_PLACES, NO_PLACES
    return np.flatnonzero(left > 63), np.flatnonzero(right > 63)


def _decoded(codes: Matrix, fmt: Format) -> Float32Matrix:
    """Return the values of codes in a buffer that this thread's next call overwrites."""
    x = scratch("floors_decoded", codes.size, np.float32)
    decode32(np.ascontiguousarray(codes).reshape(-1), x, decode_constants(fmt))
    return x.reshape(codes.shape)
