"""Forward pass of an attention kernel for one head: rows of queries against tiles of keys."""

from __future__ import annotations

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

    def head(self, h: Head) -> HeadResult:
        """Return the results of all rows."""
        with np.errstate(all="ignore"):  # Inf and NaN are inputs, too
            parts = [self._rows(h, i, min(i + ROWS, len(h.q))) for i in range(0, len(h.q), ROWS)]
        return HeadResult(*map(np.concatenate, zip(*parts, strict=True)))

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
        return state.finish(self.scale, self.v_descale)

    def _scores(self, q: NDArray[Any], k: NDArray[Any], key: int) -> Floats:
        f = self.kernel.operands
        keys = _columns(k.T, key, self.tile).T
        return mma(q, np.ascontiguousarray(keys), accumulator=self.kernel.scores, a_format=f, b_format=f)


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
        maxima, shifts = np.empty_like(self.maxima), np.empty_like(self.maxima)
        kernels.raise_maxima(scores, self.maxima, maxima)
        # A row without any score so far has no maximum: 0 instead, since -inf - -inf is NaN.
        growth = (self.maxima - np.where(maxima == -np.inf, np.float32(0), maxima)) * scale
        factors = np.ones_like(growth) if self._is_first else kernel.exp2(growth[:, None])[:, 0]
        keep = np.full(len(growth), False)
        if kernel.rescale_threshold and not self._is_first:
            keep = growth >= np.float32(-kernel.rescale_threshold)
            maxima, factors = np.where(keep, self.maxima, maxima), np.where(keep, np.float32(1), factors)
        safe = np.where(maxima == -np.inf, np.float32(0), maxima)
        offsets = np.full((len(safe), 1), kernel.p_offset, np.float32)
        kernels.scale_and_shift(safe[:, None], scale, offsets[:, 0], kernel.fused_shift, flush, shifts[:, None])
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

    def finish(self, scale: np.float32, v_descale: np.float32) -> HeadResult:
        """Divide by the sums."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        if self.promoted is not None:
            self.out = self.promoted + self.out
        sums = kernel.row_sum.total(self.sums)
        is_empty = (sums == 0) | np.isnan(sums)
        inverse = kernel.reciprocal(np.where(is_empty, np.float32(1), sums))
        factors = np.where(is_empty, np.float32(kernel.empty_scale), inverse) * v_descale
        kernels.rescale_rows(self.out, factors.astype(np.float32), flush)
        ends = (self.out, self.out) if self.bounds is None else self.bounds.finish(v_descale)
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
