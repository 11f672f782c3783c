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
from ..special.reciprocal import around
from ..tensorcore.kinds.nvidia import FusedSum
from ..tensorcore.mma import mma
from .kernel import AttentionKernel
from .sums import Numbers, promote, times

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class Bounds:
    """Bounds on the state of the online softmax of a block of rows: each list holds the lower and the upper end.

    Outputs in the mask `lost` are unbounded: an operation could give NaN at one end only, or no rule bounds the
    accumulator.
    """

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int) -> None:
        self.kernel = kernel
        self.sums = [np.full((rows, kernel.row_sum.lanes), kernel.row_sum.start) for _ in range(2)]
        self.out = [np.zeros((rows, channels), np.float32) for _ in range(2)]
        self.promoted = None if kernel.promote_every is None else [np.zeros_like(x) for x in self.out]
        self.lost = np.zeros((rows, channels), bool)
        self.p: list[Floats] = []
        self._factors: list[Floats | None] = [None]  # of the promoted output, if its rescaling is fused
        core, formats = kernel.values, (kernel.p_format, kernel.values_format)
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
            if self.promoted is not None and not kernel.fused_promotion:
                self.promoted = self._scaled(self.promoted, factors)
        self._factors = [factor[:, None] for factor in factors] if kernel.fused_promotion else [None]
        for p, factor, sums in zip(self.p, factors, self.sums, strict=True):
            kernel.row_sum.add(p, factor, flush, sums)

    def _scaled(self, ends: list[Floats], factors: list[Floats]) -> list[Floats]:
        """Return bounds on the products of rows and factors, given the bounds on both."""
        flush = self.kernel.flush_subnormals
        return self._range([times(x, factor[:, None], flush) for x in ends for factor in factors])

    def _range(self, corners: list[Floats]) -> list[Floats]:
        stacked = np.stack(corners)
        empty = np.isnan(stacked)
        self.lost |= empty.any(0) & ~empty.all(0)
        return [stacked.min(0), stacked.max(0)]

    def add_values(self, values: NDArray[Any], done: int) -> None:
        """Add a tile's P V to the output, one instruction at a time; `done` counts the tiles."""
        kernel = self.kernel
        flush, factor = kernel.flush_subnormals, np.float32(kernel.p_scale)
        ends = self.p if factor == 1 else [times(p, factor, flush) for p in self.p]
        codes = [encode(p, kernel.p_format, policy=kernel.p_policy) for p in ends]
        step = kernel.values.group_size if self._has_rule else values.shape[1]
        for start in range(0, values.shape[1], step):
            part = slice(start, start + step)
            self._step([np.ascontiguousarray(x[:, part]) for x in codes], np.ascontiguousarray(values[:, part]))
        if self.promoted is not None and kernel.promote_every is not None and done % kernel.promote_every == 0:
            self._promote()

    def _promote(self) -> None:
        assert self.promoted is not None
        ends, flush = zip(self.promoted, self.out, strict=True), self.kernel.flush_subnormals
        self.promoted = self._range([promote(a, factor, b, flush) for a, b in ends for factor in self._factors])
        self.out = [np.zeros_like(x) for x in self.out]

    def _step(self, codes: list[NDArray[Any]], values: NDArray[Any]) -> None:
        kernel, core = self.kernel, self.kernel.values
        formats: dict[str, Any] = {"a_format": kernel.p_format, "b_format": kernel.values_format}
        before, dtype = self.out, core.dtype
        ends = (mma(codes[0], values, c.astype(dtype, copy=False), accumulator=core, **formats) for c in before)
        self.out = [x.astype(np.float32, copy=False) for x in ends]
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
        v = decode(values, kernel.values_format)[channel].astype(np.float64)
        products = np.stack([x * v for x in p])
        c = np.stack([x[row, channel] for x in before])
        largest = np.where(p[0] * v == 0, -1000, np.frexp(p[0])[1] + np.frexp(v)[1] - 1).max(1)
        fixed = ~open_rows[row] & np.isfinite(products).all((0, 2)) & np.isfinite(c).all(0)
        fixed &= largest >= np.maximum(*(x[row, channel] for x in exponents))
        row, channel, products, c = row[~fixed], channel[~fixed], products[:, ~fixed], c[:, ~fixed]
        error = core.step_error()
        least, most = core.stored_format.smallest_normal, min(core.largest_sum, 2.0**127)
        size = np.maximum(np.abs(products).max(0), least).sum(1) + np.maximum(np.abs(c).max(0), least)
        margin = (error.relative + 2.0**-40) * size + error.absolute
        low = products.min(0).sum(1) + c[0] - margin
        high = products.max(0).sum(1) + c[1] + margin
        bad = ~(np.isfinite(low) & np.isfinite(high) & (np.maximum(abs(low), abs(high)) < most))
        self.lost[row, channel] |= bad
        self.out[0][row, channel] = np.where(bad, 0, np.nextafter(low.astype(np.float32), np.float32(-np.inf)))
        self.out[1][row, channel] = np.where(bad, 0, np.nextafter(high.astype(np.float32), np.float32(np.inf)))

    def finish(self, v_descale: Numbers, sink: Floats | None = None) -> tuple[Floats, Floats]:
        """Return bounds on the output, infinite for outputs in `lost`; `sink` is the argument of a sink's 2**x."""
        kernel = self.kernel
        if self.promoted is not None:
            if not kernel.fused_promotion:
                self._promote()
            self.out = self.promoted
        sums = [kernel.row_sum.total(x) for x in self.sums]
        if sink is not None:
            sums = [a + b[:, 0] for a, b in zip(sums, kernel.exp2.bounds(sink[:, None]), strict=True)]
        empty = [((x == 0) | np.isnan(x)) & (not kernel.keeps_sums) for x in sums]
        self.lost |= (empty[0] != empty[1])[:, None]
        safe = [np.where(empty[0] | empty[1], np.float32(1), x) for x in sums]
        shared = kernel.shared_scale(v_descale)
        shares = (
            [shared] if kernel.p_scale == 1 else [np.copysign(y[0], shared) for y in around(np.abs(shared)[None], 2)]
        )
        corners = [y for x in safe for share in shares for y in kernel.reciprocal.divide_bounds(share, x)]
        ends = np.minimum.reduce(corners), np.maximum.reduce(corners)
        factors = [np.where(empty[0], np.float32(kernel.empty_scale) * shared, x) for x in ends]
        differ = self.out[0].view(np.uint32) != self.out[1].view(np.uint32)
        self.out = self._scaled(self.out, [x.astype(np.float32) for x in factors])
        if v_descale.ndim:
            self.out = self._range([times(x, v_descale, kernel.flush_subnormals) for x in self.out])
        low, high = self.out
        self.lost |= differ & (low == 0)  # 0 is between the ends: its sign is unknown
        return np.where(self.lost, np.float32(-np.inf), low), np.where(self.lost, np.float32(np.inf), high)
