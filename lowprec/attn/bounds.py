"""Bounds on an attention kernel's output that hold for any functions 2**x and 1/x within their documented errors.

Scores and maxima are exact, so that only values of 2**x and of the last reciprocal are uncertain. Row sums, rescalings
and roundings are monotone in them: evaluated at both ends, they give bounds. A tensor core's sum is monotone in C as
long as the largest exponent, to which all terms are aligned, is the same at both ends; elsewhere the accumulator's own
error bound is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode
from ..kernels import attn as kernels
from ..tensorcore.kinds.nvidia import FusedSum
from ..tensorcore.mma import mma
from .kernel import AttentionKernel
from .sums import added

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class Bounds:
    """Bounds on the state of the online softmax of a block of rows: each list holds the lower and the upper end.

    Outputs in the mask `lost` are unbounded: an operation could give NaN at one end only, or no rule bounds the
    accumulator.
    """

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int) -> None:
        self.kernel = kernel
        self.sums = [np.zeros((rows, kernel.row_sum.lanes), np.float32) for _ in range(2)]
        self.out = [np.zeros((rows, channels), np.float32) for _ in range(2)]
        self.promoted = None if kernel.promote_every is None else [np.zeros_like(x) for x in self.out]
        self.lost = np.zeros((rows, channels), bool)
        self.p: list[Floats] = []
        core, formats = kernel.values, (kernel.p_format, kernel.operands)
        self._has_rule = (
            isinstance(core, FusedSum) and core.promote_every is None and not core.product_scale_log2
            and not any(core.is_daz(f) for f in formats)
        )  # fmt: skip

    def update(self, arguments: Floats, growth: Floats | None, keep: Bools) -> None:
        """Update P, sums and output, given a tile's arguments of 2**x and the growth of maxima (first tile: None)."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        self.p = list(kernel.exp2.bounds(arguments))
        factors = [np.ones(len(keep), np.float32)] * 2
        if growth is not None:
            factors = [np.where(keep, np.float32(1), x) for x in kernel.exp2.factor_bounds(growth)]
            self.out = self._scaled(self.out, factors)
            if self.promoted is not None:
                self.promoted = self._scaled(self.promoted, factors)
        for p, factor, sums in zip(self.p, factors, self.sums, strict=True):
            kernel.row_sum.add(p, factor, flush, sums)

    def _scaled(self, ends: list[Floats], factors: list[Floats]) -> list[Floats]:
        """Return bounds on the products of rows and factors, given the bounds on both."""
        corners = []
        for x in ends:
            for factor in factors:
                corners.append(x.copy())
                kernels.rescale_rows(corners[-1], np.ascontiguousarray(factor), self.kernel.flush_subnormals)
        stacked = np.stack(corners)
        empty = np.isnan(stacked)
        self.lost |= empty.any(0) & ~empty.all(0)
        return [stacked.min(0), stacked.max(0)]

    def add_values(self, values: NDArray[Any], done: int) -> None:
        """Add a tile's P V to the output, one instruction at a time; `done` counts the tiles."""
        kernel = self.kernel
        codes = [encode(p, kernel.p_format, policy=kernel.p_policy) for p in self.p]
        step = kernel.values.group_size if self._has_rule else values.shape[1]
        for start in range(0, values.shape[1], step):
            part = slice(start, start + step)
            self._step([np.ascontiguousarray(x[:, part]) for x in codes], np.ascontiguousarray(values[:, part]))
        if self.promoted is not None and kernel.promote_every is not None and done % kernel.promote_every == 0:
            self._promote()

    def _promote(self) -> None:
        assert self.promoted is not None
        flush = self.kernel.flush_subnormals
        self.promoted = [added(a, b, flush) for a, b in zip(self.promoted, self.out, strict=True)]
        empty = [np.isnan(x) for x in self.promoted]
        self.lost |= empty[0] != empty[1]
        self.out = [np.zeros_like(x) for x in self.out]

    def _step(self, codes: list[NDArray[Any]], values: NDArray[Any]) -> None:
        kernel = self.kernel
        formats: dict[str, Any] = {"a_format": kernel.p_format, "b_format": kernel.operands}
        before = self.out
        self.out = [mma(codes[0], values, c, accumulator=kernel.values, **formats) for c in before]
        open_rows = (codes[0] != codes[1]).any(1)
        moved = before[0].view(np.uint32) != before[1].view(np.uint32)
        if not self._has_rule:
            self.lost |= moved | open_rows[:, None]
            return
        exponents = [np.frexp(c)[1] for c in before]
        shifted = (exponents[0] != exponents[1]) | (np.sign(before[0]) != np.sign(before[1]))
        row, channel = np.nonzero(open_rows[:, None] | (moved & shifted))
        if not len(row):
            return
        p = [decode(x, kernel.p_format)[row].astype(np.float64) for x in codes]
        v = decode(values, kernel.operands)[channel].astype(np.float64)
        products = np.stack([x * v for x in p])
        c = np.stack([x[row, channel] for x in before])
        largest = np.where(p[0] * v == 0, -1000, np.frexp(p[0])[1] + np.frexp(v)[1] - 1).max(1)
        fixed = ~open_rows[row] & np.isfinite(products).all((0, 2)) & np.isfinite(c).all(0)
        fixed &= largest >= np.maximum(*(x[row, channel] for x in exponents))
        row, channel, products, c = row[~fixed], channel[~fixed], products[:, ~fixed], c[:, ~fixed]
        error = kernel.values.step_error()
        least = kernel.values.stored_format.smallest_normal
        size = np.maximum(np.abs(products).max(0), least).sum(1) + np.maximum(np.abs(c).max(0), least)
        margin = (error.relative + 2.0**-40) * size + error.absolute
        low = products.min(0).sum(1) + c[0] - margin
        high = products.max(0).sum(1) + c[1] + margin
        bad = ~(np.isfinite(low) & np.isfinite(high) & (np.maximum(abs(low), abs(high)) < 2.0**127))
        self.lost[row, channel] |= bad
        self.out[0][row, channel] = np.where(bad, 0, np.nextafter(low.astype(np.float32), np.float32(-np.inf)))
        self.out[1][row, channel] = np.where(bad, 0, np.nextafter(high.astype(np.float32), np.float32(np.inf)))

    def finish(self, v_descale: np.float32, sink: Floats | None = None) -> tuple[Floats, Floats]:
        """Return bounds on the output, infinite for outputs in `lost`; `sink` is the argument of a sink's 2**x."""
        kernel = self.kernel
        if self.promoted is not None:
            self._promote()
            self.out = self.promoted
        sums = [kernel.row_sum.total(x) for x in self.sums]
        if sink is not None:
            sums = [a + b[:, 0] for a, b in zip(sums, kernel.exp2.bounds(sink[:, None]), strict=True)]
        empty = [(x == 0) | np.isnan(x) for x in sums]
        self.lost |= (empty[0] != empty[1])[:, None]
        safe = [np.where(empty[0] | empty[1], np.float32(1), x) for x in sums]
        ends = kernel.reciprocal.bounds(safe[1])[0], kernel.reciprocal.bounds(safe[0])[1]
        factors = [np.where(empty[0], np.float32(kernel.empty_scale), x) * v_descale for x in ends]
        differ = self.out[0].view(np.uint32) != self.out[1].view(np.uint32)
        low, high = self._scaled(self.out, [x.astype(np.float32) for x in factors])
        self.lost |= differ & (low == 0)  # 0 is between the ends: its sign is unknown
        return np.where(self.lost, np.float32(-np.inf), low), np.where(self.lost, np.float32(np.inf), high)
