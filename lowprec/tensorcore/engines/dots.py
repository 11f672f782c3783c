"""Dot products in plain float32 and float64 lanes: CPUs, CDNA1 and CDNA2 (`kernels.tensorcore.dots.tile`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._threads import Allocate, aligned_empty, parallel_over_rows, scratch
from ...format.catalogue import Format
from ...kernels.tensorcore.dots import loop
from ...kernels.tensorcore.dots.tile import COLUMNS, ROWS, Form
from ...kernels.vectors import F32
from ..accumulator import Accumulator
from ..problem import Float32Matrix, GemmProblem, Matrix, Places
from .engine import NO_PLACES, Engine, PartialResult, find_nonfinite, products_fit_float32, union

_WORK = 1 << 25  # multiply-adds that justify a thread
_ROWS_AT_ONCE = 512
_STEPS = 4  # steps per iteration of a tile


class ExponentRanges(NamedTuple):
    """Exponents of the smallest and the largest nonzero magnitude of each row, or (127, -127) for a row of zeros."""

    low: NDArray[np.int32]
    high: NDArray[np.int32]

    @classmethod
    def of(cls, x: Float32Matrix, least: int) -> ExponentRanges:
        """Return the exponents of rows [R, K], at least the smallest normal one, `least`; 128 for Inf and NaN."""
        low, high = (np.empty(len(x), np.uint32) for _ in range(2))
        loop.extents(x, low, high)
        exponents = [np.maximum((bits >> 23).astype(np.int32) - 127, least) for bits in (low, high)]
        exponents[0][high == 0], exponents[1][high == 0] = 127, -127
        return cls(exponents[0], exponents[1])


class PackedDots(NamedTuple):
    """B packed in panels, with the exponents of its rows."""

    panels: NDArray[Any]
    spread: ExponentRanges


@dataclass(frozen=True)
class DotEngine(Engine):
    """Engine of dot products; every step of a tile has the arithmetic of the accumulator.

    Parameters
    ----------
    form : type of Form
        Arithmetic of one step.
    """

    accumulator: DotSum
    form: type[Form]

    @classmethod
    def find(cls, accumulator: DotSum, fa: Format, fb: Format, machine: str) -> DotEngine | None:
        """Return the engine for operands of at most 12 significant bits, if a form has the accumulator's arithmetic."""
        form = accumulator.dots_form() if products_fit_float32(fa, fb) else None
        return None if form is None else cls(accumulator, fa, fb, "", form)

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None, allocate: Allocate = aligned_empty) -> PackedDots:
        """Pack B, and compute its rows' exponents."""
        y = self.accumulator.values(b, fmt)
        columns, dtype = -(-len(b) // COLUMNS) * COLUMNS, np.float32 if self.form.element is F32 else np.float64
        panels = allocate("dots_b", columns * self._depth(b.shape[1])[1], dtype)
        loop.pack_panels(y, dtype(2.0**self.accumulator.product_scale_log2), panels)
        return PackedDots(panels, ExponentRanges.of(y, fmt.emin))

    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Run the kernel; its limits are bounded exponents of operands and C, and finite results."""
        (m, n, k), form = p.shape, self.form
        panels, right = parts or self.pack(p.b, p.fb, None, scratch)
        whole, depth = self._depth(k)
        x, out = self.accumulator.values(p.a, p.fa), np.array(p.start, np.float32)
        if self.accumulator.zero_c_is_positive:
            with np.errstate(invalid="ignore"):  # signalling NaNs
                out += np.float32(0)
        left, bounds = (
            ExponentRanges.of(x, p.fa.emin),
            self._bounds_normal if form.element is F32 else self._bounds_exact,
        )
        beyond = bounds(left, right, k, p.start)
        dots, steps = loop.dots[form], self.accumulator.group_size // form.products if form.lanes else 0

        def some_rows(first: int, stop: int) -> None:
            quads = scratch("dots_a", -(-(stop - first) // ROWS) * ROWS * depth, panels.dtype)
            loop.pack_quads(x[first:stop], whole, quads)
            dots(quads, panels, form.products, steps, out[first:stop])

        parallel_over_rows(some_rows, m, n * depth, _WORK, _ROWS_AT_ONCE)
        return PartialResult(out, *union(beyond, find_nonfinite(out)))

    def _depth(self, k: int) -> tuple[int, int]:
        """Return K rounded up to whole groups, and this rounded up to whole iterations of a tile."""
        group, products = self.accumulator.group_size, self.form.products
        whole = -(-max(k, 1) // group) * group
        every = group if self.form.lanes else products * _STEPS
        return whole, -(-whole // every) * every

    def _bounds_normal(self, left: ExponentRanges, right: ExponentRanges, k: int, c: Matrix) -> tuple[Places, Places]:
        """Return rows and columns to exclude so that all terms are multiples of 2^-126 and all sums below 2^126."""
        least = -126 + self.fa.mantissa_bits + self.fb.mantissa_bits  # smallest exponent of a product's last bit
        most = 126 - 2 - max(k, 1).bit_length()
        rows, columns = NO_PLACES, NO_PLACES
        if left.low.min() + right.low.min() < least or left.high.max() + right.high.max() > most:
            rows = np.flatnonzero((left.low < least // 2) | (left.high > most // 2))
            columns = np.flatnonzero((right.low < least - least // 2) | (right.high > most - most // 2))
        magnitude = c.view(np.uint32) & np.uint32(0x7FFFFFFF)
        usual = (magnitude == 0) | ((magnitude >= (127 - 103) << 23) & (magnitude < (127 + 125) << 23))
        return np.union1d(rows, np.flatnonzero(~usual.all(axis=1))), columns

    def _bounds_exact(self, left: ExponentRanges, right: ExponentRanges, k: int, c: Matrix) -> tuple[Places, Places]:
        """Return rows and columns to exclude so that every sum of a group and C is exact in float64."""
        bits = self.fa.mantissa_bits + self.fb.mantissa_bits
        shift, more = self.accumulator.product_scale_log2, 3 + max(k, 1).bit_length()
        low = left.low + right.low.min() + (shift - bits)
        if (c.view(np.uint32) & np.uint32(0x7FFFFFFF)).any():
            of_c = ExponentRanges.of(np.ascontiguousarray(c, np.float32), -126)
            low = np.minimum(low, of_c.low - 23)
            high = np.maximum(left.high + right.high.max() + shift, of_c.high)
            return np.flatnonzero((high + more - low > self.form.span) | (low < -149)), NO_PLACES
        rows = np.flatnonzero(low < -149)
        room = self.form.span - bits - more  # largest distance between the exponents of an output's products
        spans = [s.high - s.low for s in (left, right)]
        if spans[0].max() + spans[1].max() <= room:
            return rows, NO_PLACES
        return np.union1d(rows, np.flatnonzero(spans[0] > room // 2)), np.flatnonzero(spans[1] > room // 2)


class DotSum(Accumulator):
    """Base class of accumulators that `DotEngine` can compute."""

    #: Whether C = -0 is read as +0.
    zero_c_is_positive: ClassVar[bool] = False

    engines: ClassVar[tuple[Any, ...]] = (DotEngine,)

    @abstractmethod
    def dots_form(self) -> type[Form] | None:
        """Return the form with the accumulator's arithmetic, or None."""
