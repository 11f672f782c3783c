"""Forward pass of an attention kernel for one head: rows of queries against tiles of keys."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import encode
from ..kernels import attn as kernels
from ..tensorcore.mma import mma
from .bounds import Bounds
from .kernel import AttentionKernel
from .splits import Place, split_ranges

Floats = NDArray[np.float32]
_LOG2_E, _LN_2 = math.log2(math.e), np.float32(math.log(2))
ROWS = 512  # queries at once: bounds the memory of a tile of scores


class Head(NamedTuple):
    """Operands of one head: codes of Q [M, D] and K [N, D], and of V transposed [Dv, N]; the keys that a row sees."""

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    low: NDArray[np.int64]  # [M], the first key of a row
    high: NDArray[np.int64]  # [M], one past its last key


class HeadResult(NamedTuple):
    """Output [M, Dv] and log-sum-exp [M] in float32; numbers of P per row that saturated or became zero [M].

    `low` and `high` are bounds on the output, or the output itself if none were asked for.
    """

    out: Floats
    lse: Floats
    saturated: NDArray[np.int64]
    underflowed: NDArray[np.int64]
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Forward:
    """An attention kernel with the options of one call."""

    kernel: AttentionKernel
    tile: int
    scale: np.float32  # of the scores, times log2(e) and the descales of Q and K
    v_descale: np.float32
    bounded: bool = False  # whether to bound the output, too
    cap: np.float32 | None = None  # factor of the scores below tanh
    sink: np.float32 | None = None

    def head(self, h: Head) -> HeadResult:
        """Return the results of all rows."""
        with np.errstate(all="ignore"):  # Inf and NaN are inputs, too
            parts = [self._rows(h, i, min(i + ROWS, len(h.q))) for i in range(0, len(h.q), ROWS)]
        return HeadResult(*map(np.concatenate, zip(*parts, strict=True)))

    def with_sink(self, sink: np.float32 | None) -> Forward:
        """Return the pass with a sink."""
        return dataclasses.replace(self, sink=sink)

    def split(self, h: Head, splits: int, place: Place, sink: np.float32 | None) -> HeadResult:
        """Return the results of split keys, combined; the first split adds the sink."""
        kernel, combine = self.kernel, self.kernel.combine
        assert combine is not None
        ranges = split_ranges(place, self.tile, len(h.q), len(h.k), splits, combine.divides_all)
        parts = []
        for i, (low, high) in enumerate(ranges):
            low, high = np.maximum(h.low, low), np.minimum(h.high, high)
            part = self.with_sink(sink if i == 0 else None).head(h._replace(low=low, high=np.maximum(low, high)))
            parts.append(part)
        lse = np.stack([np.where(part.lse == kernel.empty_lse, np.float32(-np.inf), part.lse) for part in parts])
        with np.errstate(all="ignore"):
            weights, total = combine.weights(lse, len(h.v), kernel.exp2, kernel.reciprocal)
            out = combine.outputs(weights, [part.out for part in parts])
        saturated, underflowed = (np.sum([part[field] for part in parts], 0) for field in (2, 3))
        return HeadResult(out, total, saturated, underflowed, out, out)

    def _rows(self, h: Head, start: int, stop: int) -> HeadResult:
        kernel, rows = self.kernel, stop - start
        q, low, high = h.q[start:stop], h.low[start:stop], h.high[start:stop]
        state = _Rows(kernel, rows, len(h.v), self.bounded)
        first, last = int(low.min()) // self.tile, -(-int(high.max()) // self.tile)
        tiles = range(last - 1, first - 1, -1) if kernel.last_tile_first else range(first, last)
        for done, tile in enumerate(tiles, 1):
            scores = self._scores(q, h.k, tile * self.tile)
            if low.max() > tile * self.tile or high.min() < (tile + 1) * self.tile:
                kernels.mask_scores(scores, tile * self.tile, low, high)
            p = state.update(scores, self.scale)
            state.add_values(p, _columns(h.v, tile * self.tile, self.tile), done)
        return state.finish(self.scale, self.v_descale, self.sink)

    def _scores(self, q: NDArray[Any], k: NDArray[Any], key: int) -> Floats:
        f = self.kernel.operands
        keys = _columns(k.T, key, self.tile).T
        scores = mma(q, np.ascontiguousarray(keys), accumulator=self.kernel.scores, a_format=f, b_format=f)
        if self.cap is not None:
            scores = np.tanh((scores * self.cap).astype(np.float64)).astype(np.float32)
        return scores


class _Rows:
    """State of the online softmax of a block of rows."""

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int, bounded: bool) -> None:
        self.kernel = kernel
        self.maxima = np.full(rows, -np.inf, np.float32)
        self.sums = np.zeros((rows, kernel.row_sum.lanes), np.float32)
        self.out = np.zeros((rows, channels), np.float32)
        self.promoted = None if kernel.promote_every is None else np.zeros((rows, channels), np.float32)
        self.saturated, self.underflowed = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.bounds = Bounds(kernel, rows, channels) if bounded else None
        self._is_first = True

    def update(self, scores: Floats, scale: np.float32) -> Floats:
        """Take in a tile of scores: new maxima and sums, a rescaled output; return P in float32."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        maxima = np.empty_like(self.maxima)
        kernels.raise_maxima(scores, self.maxima, maxima)
        # A row without any score so far has no maximum: 0 instead, since -inf - -inf is NaN.
        growth = (self.maxima - np.where(maxima == -np.inf, np.float32(0), maxima)) * scale
        factors = np.ones_like(growth) if self._is_first else kernel.exp2(growth[:, None])[:, 0]
        keep = np.full(len(growth), False)
        if kernel.rescale_threshold and not self._is_first:
            keep = growth >= np.float32(-kernel.rescale_threshold)
            maxima, factors = np.where(keep, self.maxima, maxima), np.where(keep, np.float32(1), factors)
        shifts = self._shifts(maxima, scale)
        arguments = np.empty_like(scores)
        kernels.scale_and_shift(scores, scale, shifts, kernel.fused_scores, flush, arguments)
        p = kernel.exp2(arguments)
        if self.bounds is not None:
            self.bounds.update(arguments, None if self._is_first else growth, keep)
        kernel.row_sum.add(p, factors, flush, self.sums)
        for x in (self.out, self.promoted):
            if x is not None and not self._is_first:
                kernels.rescale_rows(x, factors, flush)
        self.maxima, self._is_first = maxima, False
        return p

    def _shifts(self, maxima: Floats, scale: np.float32) -> Floats:
        """Return maximum * scale - offset [M], with 0 for a row without a maximum."""
        safe = np.where(maxima == -np.inf, np.float32(0), maxima)
        shifts, offsets = np.empty_like(safe), np.full_like(safe, self.kernel.p_offset)
        fused, flush = self.kernel.fused_shift, self.kernel.flush_subnormals
        kernels.scale_and_shift(safe[:, None], scale, offsets, fused, flush, shifts[:, None])
        return shifts

    def add_values(self, p: Floats, values: NDArray[Any], done: int) -> None:
        """Add round(P) V of a tile to the output; `done` counts the tiles."""
        kernel = self.kernel
        codes = encode(p, kernel.p_format, policy=kernel.p_policy)
        self.saturated += (np.abs(p) > kernel.p_format.max).sum(1)
        self.underflowed += ((p > 0) & (codes == 0)).sum(1)
        formats: dict[str, Any] = {"a_format": kernel.p_format, "b_format": kernel.operands}
        self.out = mma(codes, values, self.out, accumulator=kernel.values, **formats)
        if self.promoted is not None and kernel.promote_every is not None and done % kernel.promote_every == 0:
            self.promoted += self.out
            self.out = np.zeros_like(self.out)
        if self.bounds is not None:
            self.bounds.add_values(values, done)

    def finish(self, scale: np.float32, v_descale: np.float32, sink: np.float32 | None) -> HeadResult:
        """Add the sink and divide by the sums."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        if self.promoted is not None:
            self.out = self.promoted + self.out
        sums, argument = kernel.row_sum.total(self.sums), None
        if sink is not None and kernel.sink is not None:
            shifts = self._shifts(self.maxima, scale)
            if kernel.sink.replaces_empty:
                sums = np.where(self.maxima == -np.inf, np.float32(0), sums)
            argument, self.maxima = kernel.sink.argument(self.maxima, shifts, sink, scale, kernel.p_offset)
            sums = sums + kernel.exp2(argument[:, None])[:, 0]
        is_empty = (sums == 0) | np.isnan(sums)
        inverse = kernel.reciprocal(np.where(is_empty, np.float32(1), sums))
        factors = np.where(is_empty, np.float32(kernel.empty_scale), inverse) * v_descale
        kernels.rescale_rows(self.out, factors.astype(np.float32), flush)
        ends = (self.out, self.out) if self.bounds is None else self.bounds.finish(v_descale, argument)
        return HeadResult(self.out, self._log_sum_exp(sums, is_empty, scale), self.saturated, self.underflowed, *ends)

    def _log_sum_exp(self, sums: Floats, is_empty: NDArray[np.bool_], scale: np.float32) -> Floats:
        kernel = self.kernel
        octaves = np.empty_like(sums)
        kernels.log2(np.where(is_empty, np.float32(1), sums * np.float32(2.0**-kernel.p_offset)), octaves)
        if kernel.lse_in_octaves:
            lse = (self.maxima * scale + octaves) * _LN_2
        else:
            lse = self.maxima * np.float32(scale * _LN_2) + octaves * _LN_2
        return np.where(is_empty, np.float32(kernel.empty_lse), lse).astype(np.float32)


def scale_of_scores(kernel: AttentionKernel, scale: float, qk_descale: np.float32) -> np.float32:
    """Return the factor of the scores in octaves, in float32."""
    start = float(np.float32(scale)) if kernel.rounded_scale else scale
    return np.float32(np.float32(start * _LOG2_E) * qk_descale)


def _columns(x: NDArray[Any], start: int, count: int) -> NDArray[Any]:
    """Return columns of x, contiguous; columns beyond the end are zero codes, as those that loads fill in."""
    part = x[:, start : start + count]
    if part.shape[1] < count:
        part = np.pad(part, ((0, 0), (0, count - part.shape[1])))
    return np.ascontiguousarray(part)
