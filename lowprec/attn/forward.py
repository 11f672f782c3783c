"""Forward pass of an attention kernel for one head: rows of queries against tiles of keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode
from ..format.catalogue import Format, formats
from ..kernels import attn as kernels
from ..special.reciprocal import flushed
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.mma import mma
from .bounds import Bounds
from .cpu import blocked_product
from .kernel import AttentionKernel
from .paired import HIDDEN, FlashMla, PairedSoftmax
from .splits import split_blocks
from .sums import Numbers, RowEnds, added, multiply_add, promote, times
from .tiles import Block, Visit

Floats = NDArray[np.float32]
_LOG2_E = math.log2(math.e)
_FLOAT32 = formats["float32"]
LEAST_SCORE = np.float32(-5e6)  # SageAttention's score of a hidden key, and maximum before the first tile
ROWS = 512  # largest number of queries at a time, which limits the memory of a tile of scores


class Head(NamedTuple):
    """Operands of one head: codes of Q [M, D], K [N, D] and V transposed [Dv, N], and the keys that each row sees."""

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    low: NDArray[np.int64]  # [M], the first key of a row
    high: NDArray[np.int64]  # [M], one past its last key
    blocks: list[Block]  # blocks of consecutive rows, with the tiles that they visit
    mask: Floats | None = None  # [M, N], added to the scaled scores
    scales: tuple[Floats, Floats] | None = None  # of queries [M] and keys [N], see `ThreadScales`


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


@dataclass(frozen=True)
class Forward:
    """Forward pass of an attention kernel with the options of one call."""

    kernel: AttentionKernel
    tile: int
    scale: np.float32  # factor of the scores, see `scale_of_scores`
    softmax_scale: np.float32  # the same without log2(e)
    v_descale: Numbers  # one number, or [Dv], which the output is multiplied by after its division
    bounded: bool = False  # whether to compute bounds on the output
    cap: np.float32 | None = None  # factor of the scores below tanh
    sink: np.float32 | None = None
    is_split: bool = False  # whether the keys are a split, whose results are combined later
    advance: Callable[[int], None] | None = None  # called with the number of rows of each finished part

    def head(self, h: Head) -> HeadResult:
        """Return the results of all rows."""
        parts = []
        with np.errstate(all="ignore"):  # inputs may be Inf or NaN
            h = self._scaled(h)
            for (visits, is_covered), blocks in groupby(h.blocks, lambda block: (block.visits, self._covers(h, block))):
                same = list(blocks)
                first, stop = same[0].first, same[-1].stop
                for i in range(first, stop, ROWS):
                    part = self._rows(h, i, min(i + ROWS, stop), visits)
                    parts.append(part if is_covered else part.without_bounds())
                    if self.advance is not None:
                        self.advance(len(part.lse))
        return HeadResult(*map(np.concatenate, zip(*parts, strict=True)))

    def _scaled(self, h: Head) -> Head:
        """Return the head; if the kernel scales operands, Q and K are float32, times the square root of the scale."""
        kernel = self.kernel
        if not kernel.scales_operands:
            return h
        q, k = (decode(x, kernel.operands) * factor for x, factor in ((h.q, self.scale), (h.k, abs(self.scale))))
        return h._replace(q=encode(q, _FLOAT32, policy="ieee"), k=encode(k, _FLOAT32, policy="ieee"))

    def split(self, h: Head, splits: int) -> HeadResult:
        """Return the combined results of all splits of the keys; the first split adds the sink."""
        kernel, combine = self.kernel, self.kernel.combine
        assert combine is not None
        tiles = -(-len(h.k) // self.tile) if combine.divides_all else None
        parts, each = [], kernel.with_(lse=kernel.lse.with_(empty=-np.inf))  # an infinite sum gives +inf
        for i in range(splits):
            blocks = split_blocks(h.blocks, self.tile, i, splits, tiles)
            run = dataclasses.replace(self, kernel=each, sink=None if i else self.sink, is_split=True)
            parts.append(run.head(h._replace(blocks=blocks)))
        lse = np.stack([part.lse for part in parts])
        with np.errstate(all="ignore"):
            flush = kernel.flush_subnormals
            weights, total = combine.weights(lse, len(h.v), kernel.exp2, kernel.reciprocal)
            out = combine.outputs(flushed(weights) if flush else weights, [part.out for part in parts], flush)
        saturated, underflowed = (np.sum([part[field] for part in parts], 0) for field in (2, 3))
        return HeadResult(out, total, saturated, underflowed, out, out)

    def _rows(self, h: Head, start: int, stop: int, visits: tuple[Visit, ...]) -> HeadResult:
        kernel, rows = self.kernel, stop - start
        if isinstance(kernel.schedule, FlashMla):
            return self._paired_rows(h, slice(start, stop), visits[::-1], kernel.schedule)
        if h.scales is not None:
            return self._thread_rows(h, slice(start, stop), visits[::-1], *h.scales)
        q, low, high = h.q[start:stop], h.low[start:stop], h.high[start:stop]
        state = OnlineSoftmax(kernel, rows, len(h.v), self.bounded and not kernel.is_determined)
        scale = np.float32(1) if kernel.scales_first or kernel.scales_operands else self.scale
        for done, visit in enumerate(visits if kernel.last_tile_first else visits[::-1], 1):
            keys = self._width(h, visit)
            scores = self._scores(q, h.k, visit.start, keys)
            if low.max() > visit.start or high.min() < visit.start + keys:
                hidden = np.zeros_like(scores) if kernel.adds_mask else scores
                kernels.mask_scores(hidden, visit.start, low, high)
                scores = scores + hidden if kernel.adds_mask else hidden
            if kernel.scales_first:
                scores *= self.scale
            if h.mask is not None:
                scores += h.mask[start:stop, visit.start : visit.start + keys]
            p = state.update(scores, scale, visit.is_guarded)
            state.add_values(p, _columns(h.v, visit.start, keys), done)
        found = state.finish(scale, self.softmax_scale, self.v_descale, self.sink)
        if visits or self.sink is not None:
            return found
        return found._replace(lse=np.full_like(found.lse, kernel.lse.empty))

    def _paired_rows(self, h: Head, rows: slice, visits: Sequence[Visit], schedule: FlashMla) -> HeadResult:
        kernel, q = self.kernel, (h.q[rows], schedule.rotated(h.q[rows]))
        state = PairedSoftmax(kernel, len(q[0]), len(h.v), schedule.half)

        def product(p: NDArray[Any], v: NDArray[Any], out: Floats) -> Floats:
            pair = kernel.p_format, kernel.operands
            return _product(kernel, kernel.values, pair, p, np.ascontiguousarray(v), out)

        for i in range(0, len(visits), 2):
            starts, scores = [visit.start for visit in visits[i : i + 2]], []
            for odd, start in enumerate(starts):
                keys = np.ascontiguousarray(_columns(h.k.T, start, self.tile).T)
                f = kernel.operands, kernel.operands
                scores.append(_product(kernel, kernel.scores, f, q[odd], schedule.rotated(keys) if odd else keys))
                key = np.arange(start, start + self.tile)
                scores[-1][(key < h.low[rows, None]) | (key >= h.high[rows, None])] = HIDDEN
            state.add(scores, [_columns(h.v, start, self.tile) for start in starts], self.scale, product)
        out, lse = state.finish(self.v_descale, self.is_split)
        return HeadResult(out, lse, np.zeros_like(state.underflowed), state.underflowed, out, out)

    def _thread_rows(
        self, h: Head, rows: slice, visits: Sequence[Visit], q_scales: Floats, k_scales: Floats
    ) -> HeadResult:
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        state = ThreadSoftmax(kernel, rows.stop - rows.start, len(h.v), self.bounded and not kernel.is_determined)
        for done, visit in enumerate(visits, 1):
            scores, tile = self._scores(h.q[rows], h.k, visit.start, self.tile), slice(visit.start, visit.start + 8)
            each = np.resize(k_scales[tile], 8)[::2]  # a thread's keys have one scale; keys beyond the last are hidden
            scales = times(q_scales[rows, None], each, flush)
            if done > len(visits) - 2:
                hidden = np.arange(visit.start, visit.start + self.tile) >= h.high[rows, None]
                by_key = np.tile(scales.repeat(2, 1), self.tile // 8)
                scores = np.where(hidden, LEAST_SCORE, times(scores, by_key, flush))
                scales = np.ones_like(scales)
            p = state.update_threads(scores, times(self.scale, scales, flush))
            state.add_values(p, _columns(h.v, visit.start, self.tile), done)
        return state.finish(np.float32(1), np.float32(1), self.v_descale, None)

    def _width(self, h: Head, visit: Visit) -> int:
        """Return the number of keys of a tile."""
        return min(self.tile, len(h.k) - visit.start) if self.kernel.schedule.is_ragged else self.tile

    def _covers(self, h: Head, block: Block) -> bool:
        """Return whether the orders of all products of a block are known."""
        rows, covers = block.stop - block.first, self.kernel.schedule.covers
        return all(covers(rows, self._width(h, visit), h.q.shape[1], len(h.v)) for visit in block.visits)

    def _scores(self, q: NDArray[Any], k: NDArray[Any], key: int, count: int) -> Floats:
        f = _FLOAT32 if self.kernel.scales_operands else self.kernel.operands
        keys = np.ascontiguousarray(_columns(k.T, key, count).T)
        scores = _product(self.kernel, self.kernel.scores, (f, f), q, keys)
        if self.cap is None:
            return scores
        return np.tanh(times(scores, self.cap, self.kernel.flush_subnormals), dtype=np.float64).astype(np.float32)


class OnlineSoftmax:
    """State of the online softmax of a block of rows."""

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int, bounded: bool) -> None:
        self.kernel, self.offset = kernel, kernel.p_offset
        self.maxima = np.full(rows, -np.inf, np.float32)
        self.sums = np.full((rows, kernel.row_sum.lanes), kernel.row_sum.start)
        self.out = np.zeros((rows, channels), np.float32)
        self.promoted = None if kernel.promote_every is None else np.zeros((rows, channels), np.float32)
        self.saturated, self.underflowed = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
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
        return multiply_add(maxima, scale, np.float32(-kernel.p_offset), kernel.flush_subnormals, kernel.fused_shift)

    def add_values(self, p: Floats, values: NDArray[Any], done: int) -> None:
        """Add round(P) V of a tile to the output; `done` counts the tiles."""
        kernel = self.kernel
        p = p if kernel.p_scale == 1 else times(p, np.float32(kernel.p_scale), kernel.flush_subnormals)
        codes = encode(p, kernel.p_format, policy=kernel.p_policy)
        self.saturated += (np.abs(p) > kernel.p_format.max).sum(1)
        self.underflowed += ((p > 0) & (codes == 0)).sum(1)
        formats = kernel.p_format, kernel.values_format
        self.out = _product(kernel, kernel.values, formats, codes, values, self.out if done > 1 else None)
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
        if sink is not None and kernel.sink is not None:
            shifts = self._shifts(_finite(self.maxima), scale)
            if kernel.sink.replaces_empty:
                sums = np.where(self.maxima == -np.inf, np.float32(0), sums)
            argument, self.maxima = kernel.sink.argument(self.maxima, shifts, sink, scale, kernel.p_offset)
            sums = sums + kernel.exp2(argument[:, None])[:, 0]
        is_empty = (sums == 0) | (np.isnan(sums) & (not kernel.propagates_nan))
        is_empty &= kernel.empty_scale is not None
        safe, shared = np.where(is_empty | kernel.normalizes_p, np.float32(1), sums), kernel.shared_scale(v_descale)
        of_empty = np.float32(kernel.empty_scale or 0) * shared
        factors = np.where(is_empty, of_empty, kernel.reciprocal.divide(shared, safe))
        kernels.rescale_rows(self.out, factors.astype(np.float32), flush)
        self.out = times(self.out, v_descale, flush) if v_descale.ndim else self.out
        ends = (self.out, self.out) if self.bounds is None else self.bounds.finish(v_descale, argument)
        factor = kernel.lse.factor(scale, softmax_scale, kernel.exp2)
        lse = kernel.lse(RowEnds(self.maxima, sums, is_empty, factor, self.offset, kernel.exp2, flush))
        return HeadResult(self.out, lse, self.saturated, self.underflowed, *ends)


class ThreadSoftmax(OnlineSoftmax):
    """State of a block of rows with scales of threads; a maximum m is an exponent of 2 that includes the offset.

    The scale s and the scores S of a thread give, for each tile::

        m' = max(m, max(S) s - `p_offset`)      a = 2^(m - m')      P = 2^(S s - m')
    """

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int, bounded: bool) -> None:
        super().__init__(kernel, rows, channels, bounded)
        self.maxima[:], self.offset, self._is_first = LEAST_SCORE, 0, False

    def update_threads(self, scores: Floats, scales: Floats) -> Floats:
        """Update maxima and sums for a tile of scores, given the scales [M, 4] of threads, and return P in float32."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        threads, offset = scores.reshape(len(scores), -1, 4, 2), np.float32(-kernel.p_offset)
        largest = np.fmax.reduce(np.fmax(threads[..., 0], threads[..., 1]), 1, initial=LEAST_SCORE)
        maxima = np.fmax.reduce(multiply_add(largest, scales, offset, flush, kernel.fused_shift), 1)
        maxima = np.fmax(self.maxima, maxima)
        shifts = -maxima[:, None, None, None]
        arguments = multiply_add(threads, scales[:, None, :, None], shifts, flush, kernel.fused_scores)
        growth, self.maxima = added(self.maxima, -maxima, flush), maxima
        keep = np.zeros(len(growth), bool)
        return self._exponentials(arguments.reshape(scores.shape), growth, kernel.exp2.factors(growth), keep)


def _product(
    kernel: AttentionKernel, core: Accumulator, formats: tuple[Format, Format], a: Any, b: Any, c: Floats | None = None
) -> Floats:
    """Return A B^T + C, computed from codes by one of the kernel's accumulators."""
    if kernel.product_block is not None:
        return blocked_product(a, b, c, kernel.product_block, core, formats)
    c = None if c is None else c.astype(core.dtype, copy=False)
    product: Floats = mma(a, b, c, accumulator=core, a_format=formats[0], b_format=formats[1])
    return product.astype(np.float32, copy=False)


def scale_of_scores(kernel: AttentionKernel, scale: float, qk_descale: np.float32) -> np.float32:
    """Return the factor of the scores in float32: the softmax scale, times log2(e) unless the kernel computes e^x.

    For kernels that scale their operands, return the factor of Q: the square root of the scale's magnitude, with the
    sign of the scale.
    """
    start = np.float32(scale)
    with np.errstate(over="ignore"):  # a descale may be as large as float32 allows
        if kernel.scales_operands:
            factor = scale * float(qk_descale)
            return np.float32(math.copysign(math.sqrt(abs(factor)), factor))
        if kernel.exp2.is_natural:
            return np.float32(start * qk_descale)
        if kernel.descale_first:
            flush = kernel.flush_subnormals
            return np.float32(times(times(qk_descale, start, flush), np.float32(_LOG2_E), flush))
        octaves = start * np.float32(_LOG2_E) if kernel.rounded_log2_e else np.float32(float(start) * _LOG2_E)
        return np.float32(octaves * qk_descale)


def _finite(maxima: Floats) -> Floats:
    """Return the maxima, with 0 for rows that have seen no key."""
    return np.where(maxima == -np.inf, np.float32(0), maxima)


def _columns(x: NDArray[Any], start: int, count: int) -> NDArray[Any]:
    """Return contiguous columns of x, with zero codes for columns beyond x, as the kernel's loads return them."""
    part = x[:, start : start + count] if start >= 0 else x[:, :0]
    if part.shape[1] < count:
        part = np.pad(part, ((0, 0), (0, count - part.shape[1])))
    return np.ascontiguousarray(part)
