"""State of the online softmax of a block of rows: one class per layout of scales."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import encode
from ..format.catalogue import Format
from ..kernels import attn as kernels
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.mma import mma
from .bounds import Bounds
from .cpu import blocked_product
from .kernel import AttentionKernel
from .scales import BLOCK, SCALE_FORMAT
from .sums import Floats, Numbers, RowTotals, added, multiply_add, promote, times

LEAST_SCORE = np.float32(-5e6)  # SageAttention's score of a hidden key, and maximum before the first tile


class HeadResult(NamedTuple):
    """Output [M, Dv] and log-sum-exp [M] in float32, and numbers [M] of probabilities that saturated or became zero.

    `low` and `high` are bounds on the output, or the output itself if no bounds were requested.
    """

    out: Floats
    lse: Floats
    saturated: NDArray[np.int64]
    underflowed: NDArray[np.int64]
    low: Floats
    high: Floats

    def without_bounds(self) -> HeadResult:
        """Return the results with bounds of -inf and +inf on the output."""
        return self._replace(low=np.full_like(self.out, -np.inf), high=np.full_like(self.out, np.inf))


class OnlineSoftmax:
    """State of the online softmax of a block of rows."""

    #: Whether a sum of NaN counts as that of a row without keys, unless the kernel propagates NaN.
    replaces_nan = True
    #: Whether each output is divided by the sum, instead of multiplied by a quotient of the row.
    divides = False

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int, bounded: bool) -> None:
        self.kernel, self.offset, self.lse = kernel, kernel.p_offset, kernel.lse
        self.maxima = np.full(rows, -np.inf, np.float32)
        self.sums = np.full((rows, kernel.row_sum.lanes), kernel.row_sum.start)
        self.out = np.zeros((rows, channels), np.float32)
        self.promoted = None if kernel.promote_every is None else np.zeros((rows, channels), np.float32)
        self.saturated, self.underflowed = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.largest = kernel.p_format.max  # P above it counts as saturated
        self.bounds = Bounds(kernel, rows, channels) if bounded else None
        self._is_first = True

    def update(self, scores: Floats, scale: np.float32, is_guarded: bool) -> Floats:
        """Update maxima and sums for a tile of scores, rescale the output, and return P in float32."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        maxima = np.empty_like(self.maxima)
        kernels.raise_maxima(scores, self.maxima, flush, maxima)
        if kernel.propagates_nan:
            maxima[np.isnan(scores).any(1)] = np.nan
        # The maximum of a row without scores is -inf. Kernels that check it take 0, because -inf - -inf is NaN.
        growth = times(added(self.maxima, -(_finite(maxima) if is_guarded else maxima), flush), scale, flush)
        is_kept = self._is_first and not kernel.propagates_nan  # exp(-inf - NaN) is NaN
        factors = np.ones_like(growth) if is_kept else kernel.exp2.factors(growth)
        keep = np.full(len(growth), False)
        if kernel.rescale_threshold and not self._is_first:
            keep = growth >= np.float32(-kernel.rescale_threshold)
            maxima, factors = np.where(keep, self.maxima, maxima), np.where(keep, np.float32(1), factors)
        safe = _finite(maxima) if is_guarded or kernel.schedule.guards_shift else maxima
        shifts = self._shifts(safe, scale)
        arguments = np.empty_like(scores)
        kernels.scale_and_shift(scores, scale, shifts, kernel.fused_scores, flush, arguments)
        self.maxima = maxima
        return self._exponentials(arguments, growth, factors, keep)

    def _exponentials(self, arguments: Floats, growth: Floats, factors: Floats, keep: NDArray[np.bool_]) -> Floats:
        """Return P in float32, add it to the sums, and rescale sums and output."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        p = kernel.exp2(arguments)
        if self.bounds is not None:
            self.bounds.update(arguments, None if self._is_first else growth, keep)
        kernel.row_sum.add(p, factors, flush, self.sums)
        for x in (self.out, None if kernel.fused_promotion else self.promoted):
            if x is not None and not self._is_first:
                kernels.rescale_rows(x, factors, flush)
        self._factors, self._is_first = factors[:, None] if kernel.fused_promotion else None, False
        if kernel.normalizes_p:
            sums = kernel.row_sum.total(self.sums)
            kernels.rescale_rows(p, kernel.reciprocal(np.where(sums == 0, np.float32(1), sums)), flush)
        return p

    def _shifts(self, maxima: Floats, scale: np.float32) -> Floats:
        """Return ``maximum * scale - offset`` of each row [M]."""
        kernel = self.kernel
        return multiply_add(maxima, scale, np.float32(-self.offset), kernel.flush_subnormals, kernel.fused_shift)

    def add_values(self, p: Floats, values: NDArray[Any], done: int, scales: tuple[Any, Any] = (None, None)) -> None:
        """Add round(P) V of a tile to the output, given codes of block scales; `done` counts the tiles."""
        kernel = self.kernel
        p = p if kernel.p_scale == 1 else times(p, np.float32(kernel.p_scale), kernel.flush_subnormals)
        codes = encode(p, kernel.p_format, policy=kernel.p_policy)
        self.saturated += (np.abs(p) > self.largest).sum(1)
        is_zero = codes == 0 if scales[0] is None else (codes == 0) | (scales[0] == 0).repeat(BLOCK, 1)
        self.underflowed += ((p > 0) & is_zero).sum(1)
        formats = kernel.p_format, kernel.values_format
        self.out = multiply_tile(kernel, kernel.values, formats, codes, values, self.out if done > 1 else None, scales)
        if self.promoted is not None and kernel.promote_every is not None and done % kernel.promote_every == 0:
            self.promoted = promote(self.promoted, self._factors, self.out, kernel.flush_subnormals)
            self.out = np.zeros_like(self.out)
        if self.bounds is not None:
            self.bounds.add_values(values, done)

    def finish(
        self, scale: np.float32, softmax_scale: np.float32, v_descale: Numbers, sink: np.float32 | None
    ) -> HeadResult:
        """Add the sink and divide by the sums."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        if self.promoted is not None:
            self.out = self.promoted if kernel.fused_promotion else added(self.promoted, self.out, flush)
        sums, argument = kernel.row_sum.total(self.sums), None
        if kernel.propagates_nan:
            sums, self.maxima = np.where(sums == 0, np.float32(1), sums), _finite(self.maxima)
        divisors = sums
        if sink is not None and kernel.sink is not None:
            shifts = self._shifts(_finite(self.maxima), scale)
            if kernel.sink.replaces_empty:
                sums = np.where(self.maxima == -np.inf, np.float32(0), sums)
            argument, self.maxima = kernel.sink.argument(self.maxima, shifts, sink, scale, self.offset)
            divisors = sums + kernel.exp2(argument[:, None])[:, 0]
            sums = divisors if kernel.sink.in_lse else sums
        is_empty = (sums == 0) | (np.isnan(sums) & (self.replaces_nan and not kernel.propagates_nan))
        is_empty &= not kernel.keeps_sums
        safe, shared = np.where(is_empty | kernel.normalizes_p, np.float32(1), divisors), kernel.shared_scale(v_descale)
        if self.divides:
            self.out, safe = kernel.reciprocal.divide(self.out, safe[:, None]), np.ones_like(safe)
        factors = np.where(is_empty, np.float32(kernel.empty_scale) * shared, kernel.reciprocal.divide(shared, safe))
        kernels.rescale_rows(self.out, factors.astype(np.float32), flush)
        self.out = times(self.out, v_descale, flush) if v_descale.ndim else self.out
        ends = (self.out, self.out) if self.bounds is None else self.bounds.finish(v_descale, argument)
        factor = self.lse.factor(scale, softmax_scale, kernel.exp2)
        lse = self.lse(RowTotals(self.maxima, sums, is_empty, factor, self.offset, kernel.exp2, flush))
        return HeadResult(self.out, lse, self.saturated, self.underflowed, *ends)


class ThreadSoftmax(OnlineSoftmax):
    """State of a block of rows with scales of threads; a maximum m is an exponent of 2 that includes the offset.

    The scale s and the scores S of a thread give, for each tile::

        m' = max(m, max(S) s - `p_offset`)      a = 2^(m - m')      P = 2^(S s - m')
    """

    #: Maximum before the first tile, and score below those of a tile.
    start = least = LEAST_SCORE

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int, bounded: bool) -> None:
        super().__init__(kernel, rows, channels, bounded)
        self.maxima[:], self.offset, self._is_first = self.start, 0, False

    def update_threads(self, scores: Floats, scales: Floats) -> Floats:
        """Update maxima and sums for a tile of scores, given the scales [M, 4] of threads, and return P in float32."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        lanes, offset = scales.shape[1], np.float32(-kernel.p_offset)
        threads = scores.reshape(len(scores), -1, lanes, 8 // lanes)
        largest = np.fmax.reduce(threads, (1, 3), initial=self.least)
        maxima = np.fmax.reduce(multiply_add(largest, scales, offset, flush, kernel.fused_shift), 1)
        maxima = np.fmax(self.maxima, maxima)
        shifts = -maxima[:, None, None, None]
        arguments = multiply_add(threads, scales[:, None, :, None], shifts, flush, kernel.fused_scores)
        growth, self.maxima = added(self.maxima, -maxima, flush), maxima
        keep = np.zeros(len(growth), bool)
        return self._exponentials(arguments.reshape(scores.shape), growth, kernel.exp2.factors(growth), keep)


class SparseSoftmax(ThreadSoftmax):
    """State of a block of rows with one scale of all scores; only a sum of 0 marks a row without keys."""

    start, least = np.float32(-1e30), np.float32(-np.inf)
    replaces_nan = False


class DividedSoftmax(ThreadSoftmax):
    """State of a block of rows with one scale of all scores, in which no key precedes the first tile."""

    start = least = np.float32(-np.inf)
    divides = True


class BlockSoftmax(OnlineSoftmax):
    """State of a block of rows whose P has a scale for every 16 keys of a tile.

    Besides P, each tile has the scales ``A = 2^(max(S) s - (m' s - p_offset) - log2(6))``, with the largest score of a
    block, and P / A is computed as P times 1/A. All maxima of the first tile are at least 0.
    """

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int) -> None:
        super().__init__(kernel, rows, channels, False)
        self.maxima[:] = 0
        self.largest += 2.0 ** (
            math.floor(math.log2(self.largest)) - kernel.p_format.mantissa_bits - 1
        )  # P / A is 6 + 1 ulp

    def update_blocks(self, scores: Floats, scale: np.float32) -> tuple[Floats, Floats]:
        """Update maxima and sums for a tile of scores, and return P and the scales of its blocks in float32."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        least = np.float32(0 if self._is_first else -np.inf)
        largest = np.fmax.reduce(scores.reshape(len(scores), -1, BLOCK), 2, initial=least)
        p = self.update(scores, scale, False)
        shifts = self._shifts(self.maxima, scale)[:, None]
        arguments = multiply_add(largest, scale, -shifts, flush, kernel.fused_scores)
        octaves = np.full_like(arguments, -math.log2(kernel.p_format.max))
        return p, kernel.exp2(added(arguments, octaves, flush))

    def add_blocks(self, p: Floats, scales: Floats, values: NDArray[Any], v_scales: NDArray[Any]) -> None:
        """Add round(P / A) round(A) V of a tile to the output, given codes of V and of its scales."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        inverse = kernel.reciprocal(scales.reshape(-1)).reshape(scales.shape)
        p = times(p, inverse.repeat(BLOCK, 1), flush)
        p = np.where(np.isnan(p), np.float32(kernel.p_format.max), p)
        self.add_values(p, values, 1, (encode(scales, SCALE_FORMAT, policy="ocp_sat"), v_scales))


def multiply_tile(
    kernel: AttentionKernel, core: Accumulator, formats: tuple[Format, Format], a: Any, b: Any,
    c: Floats | None = None, scales: tuple[Any, Any] = (None, None),
) -> Floats:  # fmt: skip
    """Return A B^T + C, computed from codes, and codes of block scales, by one of the kernel's accumulators."""
    if kernel.product_block is not None:
        return blocked_product(a, b, c, kernel.product_block, core, formats)
    c = None if c is None else c.astype(core.dtype, copy=False)
    a_scale, b_scale = scales
    product: Floats = mma(
        a, b, c, accumulator=core, a_format=formats[0], b_format=formats[1], a_scale=a_scale, b_scale=b_scale
    )
    return product.astype(np.float32, copy=False)


def _finite(maxima: Floats) -> Floats:
    """Return the maxima, with 0 for rows that have seen no key."""
    return np.where(maxima == -np.inf, np.float32(0), maxima)
