"""Forward pass of an attention kernel for one head: rows of queries against tiles of keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode
from ..format.catalogue import formats
from ..kernels import attn as kernels
from ..special.reciprocal import flushed
from .kernel import AttentionKernel
from .paired import HIDDEN, FlashMla, FlashMlaSparse, PairedSoftmax
from .scales import BLOCK, BlockOperands, ScalesOfHead
from .schedules import SageAttention3, TritonFused
from .softmax import (
    LEAST_SCORE,
    BlockSoftmax,
    DividedSoftmax,
    HeadResult,
    OnlineSoftmax,
    SparseSoftmax,
    ThreadSoftmax,
    multiply_tile,
)
from .splits import split_blocks
from .sums import Base2LogSumExp, Floats, Numbers, multiply_add, times
from .tiles import Block, Visit

_LOG2_E = math.log2(math.e)
_FLOAT32 = formats["float32"]
_MASKED = np.float32(-1e6)  # Triton's addend of the scaled scores of hidden keys
ROWS = 512  # largest number of queries at a time, which limits the memory of a tile of scores

#: Scores [M, keys], their scales [M, lanes] and codes of V transposed [Dv, keys] of each tile, in order.
Tiles = Iterator[tuple[Floats, Floats, NDArray[Any]]]


class Head(NamedTuple):
    """Operands of one head: codes of Q [M, D], K [N, D] and V transposed [Dv, N], and the keys that each row sees."""

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    low: NDArray[np.int64]  # [M], the first key of a row
    high: NDArray[np.int64]  # [M], one past its last key
    blocks: list[Block]  # blocks of consecutive rows, with the tiles that they visit
    mask: Floats | None = None  # [M, N], added to the scaled scores
    scales: ScalesOfHead = ScalesOfHead()


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
        if isinstance(kernel.schedule, FlashMlaSparse):
            spans = map(slice, (start, *(ends := _changes(h.mask, start, stop))), (*ends, stop))
            parts = [self._thread_rows(h, x, self._sparse_tiles(h, x, visits[::-1]), SparseSoftmax) for x in spans]
            return HeadResult(*map(np.concatenate, zip(*parts, strict=True)))
        if isinstance(kernel.schedule, TritonFused):
            tiles = self._triton_tiles(h, slice(start, stop), visits[::-1])
            return self._thread_rows(h, slice(start, stop), tiles, DividedSoftmax)
        if h.scales.blocks is not None:
            return self._block_rows(h, slice(start, stop), visits, h.scales.blocks)
        if h.scales.threads is not None:
            tiles = self._sage_tiles(h, slice(start, stop), visits[::-1], *h.scales.threads)
            return self._thread_rows(h, slice(start, stop), tiles, ThreadSoftmax)
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
            return multiply_tile(kernel, kernel.values, pair, p, np.ascontiguousarray(v), out)

        for i in range(0, len(visits), 2):
            starts, scores = [visit.start for visit in visits[i : i + 2]], []
            for odd, start in enumerate(starts):
                keys = np.ascontiguousarray(_columns(h.k.T, start, self.tile).T)
                f = kernel.operands, kernel.operands
                scores.append(multiply_tile(kernel, kernel.scores, f, q[odd], schedule.rotated(keys) if odd else keys))
                key = np.arange(start, start + self.tile)
                scores[-1][(key < h.low[rows, None]) | (key >= h.high[rows, None])] = HIDDEN
            state.add(scores, [_columns(h.v, start, self.tile) for start in starts], self.scale, product)
        out, lse = state.finish(self.v_descale, self.is_split)
        return HeadResult(out, lse, np.zeros_like(state.underflowed), state.underflowed, out, out)

    def _thread_rows(self, h: Head, rows: slice, tiles: Tiles, kind: type[ThreadSoftmax]) -> HeadResult:
        """Return the results of rows, given scores, their scales [M, 4 or 1] and codes of V of each tile."""
        kernel = self.kernel
        state = kind(kernel, rows.stop - rows.start, len(h.v), self.bounded and not kernel.is_determined)
        state.lse = Base2LogSumExp() if self.is_split else kernel.lse
        for done, (scores, scales, values) in enumerate(tiles, 1):
            p = state.update_threads(scores, scales)
            state.add_values(p, values, done)
        return state.finish(np.float32(1), np.float32(1), self.v_descale, self.sink)

    def _sage_tiles(self, h: Head, rows: slice, visits: Sequence[Visit], of_q: Floats, of_k: Floats) -> Tiles:
        flush = self.kernel.flush_subnormals
        for left, visit in zip(range(len(visits), 0, -1), visits, strict=True):
            scores, tile = self._scores(h.q[rows], h.k, visit.start, self.tile), slice(visit.start, visit.start + 8)
            each = np.resize(of_k[tile], 8)[::2]  # a thread's keys have one scale; keys beyond the last are hidden
            scales = times(of_q[rows, None], each, flush)
            if left <= 2:
                by_key = np.tile(scales.repeat(2, 1), self.tile // 8)
                scores = np.where(self._hidden(h, rows, visit), LEAST_SCORE, times(scores, by_key, flush))
                scales = np.ones_like(scales)
            yield scores, times(self.scale, scales, flush), _columns(h.v, visit.start, self.tile)

    def _sparse_tiles(self, h: Head, rows: slice, visits: Sequence[Visit]) -> Tiles:
        for visit in visits:
            scores, key = self._scores(h.q[rows], h.k, visit.start, self.tile), np.arange(self.tile) + visit.start
            hidden, values = key >= len(h.k), _columns(h.v, visit.start, self.tile).copy()
            if h.mask is not None:
                hidden[~hidden] = h.mask[rows.start, key[~hidden]] != 0
            scores[:, hidden], values[:, hidden] = -np.inf, 0
            yield scores, np.full((len(scores), 1), self.scale), values

    def _triton_tiles(self, h: Head, rows: slice, visits: Sequence[Visit]) -> Tiles:
        kernel = self.kernel
        for visit in visits:
            scores, scale = self._scores(h.q[rows], h.k, visit.start, self.tile), self.scale
            if visit.is_masked:
                addends = np.where(self._hidden(h, rows, visit), _MASKED, np.float32(0))
                scores = multiply_add(scores, scale, addends, kernel.flush_subnormals, kernel.fused_scores)
                scale = np.float32(1)
            yield scores, np.full((len(scores), 1), scale), _columns(h.v, visit.start, self.tile)

    def _hidden(self, h: Head, rows: slice, visit: Visit) -> NDArray[np.bool_]:
        return np.arange(visit.start, visit.start + self.tile) >= h.high[rows, None]

    def _block_rows(self, h: Head, rows: slice, visits: Sequence[Visit], scales: BlockOperands) -> HeadResult:
        kernel, schedule = self.kernel, self.kernel.schedule
        assert isinstance(schedule, SageAttention3)
        pair, state = (kernel.operands,) * 2, BlockSoftmax(kernel, rows.stop - rows.start, len(h.v))
        for done, visit in enumerate(visits, 1):
            keys, shifts = (_columns(x, visit.start, self.tile) for x in (h.k.T, scales.shifts[scales.group[rows]]))
            both = scales.q[rows], _columns(scales.k.T, visit.start, self.tile).T
            scores = multiply_tile(
                kernel, kernel.scores, pair, h.q[rows], np.ascontiguousarray(keys.T), shifts, both
            )  # fmt: skip
            if done == 1:
                scores[schedule.is_hidden(h.high[rows] - visit.start, self.tile)] = -np.inf
            p, p_scales = state.update_blocks(scores, self.scale)
            if visit.is_added:
                of_v = _columns(scales.v, visit.start // BLOCK, self.tile // BLOCK)
                state.add_blocks(p, p_scales, _columns(h.v, visit.start, self.tile), of_v)
        return state.finish(self.scale, self.softmax_scale, self.v_descale, None)

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
        scores = multiply_tile(self.kernel, self.kernel.scores, (f, f), q, keys)
        if self.cap is None or self.kernel.softcap is None:
            return scores
        return self.kernel.softcap(times(scores, self.cap, self.kernel.flush_subnormals))


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


def _changes(mask: Floats | None, start: int, stop: int) -> list[int]:
    """Return the rows between two whose masks differ from those of the row before."""
    if mask is None:
        return []
    differs = (mask[start + 1 : stop] != mask[start : stop - 1]).any(1)
    return [int(i) + start + 1 for i in np.flatnonzero(differs)]


def _columns(x: NDArray[Any], start: int, count: int) -> NDArray[Any]:
    """Return contiguous columns of x, with zero codes for columns beyond x, as the kernel's loads return them."""
    part = x[:, start : start + count] if start >= 0 else x[:, :0]
    if part.shape[1] < count:
        part = np.pad(part, ((0, 0), (0, count - part.shape[1])))
    return np.ascontiguousarray(part)
