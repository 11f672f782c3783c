"""FlashMLA's decoding kernels on sm_90: pairs of tiles of two warpgroups, and the tiles of sparse attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._checks import check_int
from .._values import normalize_fields
from ..cast.casts import encode
from ..kernels import attn as kernels
from .kernel import AttentionKernel
from .sums import Numbers, RowTotals, times
from .tiles import Call, Schedule, SquareSchedule, Visit

Floats = NDArray[np.float32]
HIDDEN = np.float32(-1e33)  # score of a hidden key
_LEAST_MAXIMUM = np.float32(-1e30)  # maximum, times the scale, before the first tile


#: Function that returns P V + O from codes of P [M, keys], codes of V transposed [columns, keys] and O.
Product = Callable[[NDArray[Any], NDArray[Any], Floats], Floats]


@dataclass(frozen=True, eq=False, repr=False)
class FlashMla(Schedule):
    """Tiles of FlashMLA's dense decoding kernel on sm_90: csrc/sm90/decode/dense/splitkv_mla.cuh, csrc/api.

    Parameters
    ----------
    rotation : int
        Channel of Q and K at which the sum of a score starts in every second tile; the channels before it follow.
    half : int
        Number of columns of V of the first warpgroup.
    """

    rotation: int = 256
    half: int = 256
    page_multiple = 64
    is_paired = has_fixed_sizes = has_scaled_maxima = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_int("FlashMla", "rotation", self.rotation, 0)
        check_int("FlashMla", "half", self.half, 1)

    def normalized(self, call: Call) -> Call:
        """Return the call with a causal mask, unless there is one query, replaced by the equivalent window.

        Raises
        ------
        ValueError
            If the mask is a window, or the page does not have one tile of keys.
        """
        if call.left >= 0 or call.right > 0 or (call.right == 0 and not call.causal):
            raise ValueError(f"attention: window must be None for FlashMLA, got ({call.left}, {call.right})")
        if call.page_size > self.page_multiple:
            raise ValueError(f"attention: page_size must be {self.page_multiple} for FlashMLA, got {call.page_size}")
        return call._replace(causal=False, right=0 if call.causal and call.queries > 1 else -1)

    def packs(self, call: Call, queries: int) -> bool:
        """Return whether a key head has several query heads."""
        return call.group > 1

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return the tiles up to the last key that the block's last row sees; rows after the last query see all."""
        last = call.keys if call.right < 0 else min(stop + call.shift, call.keys)
        return [Visit(start) for start in range(0, last, keys)][::-1]

    def rotated(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return rows of Q or K with their channels in the order of every second tile, padded with zeros."""
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % 64)))
        return np.concatenate((x[:, self.rotation :], x[:, : self.rotation]), 1)


@dataclass(frozen=True, eq=False, repr=False)
class FlashMlaSparse(SquareSchedule):
    """Tiles of FlashMLA's sparse decoding kernel on sm_90: csrc/sm90/decode/sparse_fp8/splitkv_mla.cuh.

    Keys are those that a query has selected, in the order of their indices; a mask hides those without a valid index.
    """

    library = "FlashMLA's sparse decoding"
    has_fixed_sizes = takes_masks = has_scaled_maxima = True

    def normalized(self, call: Call) -> Call:
        """Return the call; raise ValueError if it is causal or has a window."""
        if call.causal:
            raise ValueError(f"attention: causal must be False for {self.library}, got True")
        return super().normalized(call)


class PairedSoftmax:
    """State of a block of rows, of which each warpgroup has four partial sums per row and some columns of the output.

    For a pair of tiles 0 and 1, with the scale s and the maximum m times s::

        m0 = max(m, max(S0) s)         a = 2^(m - m0)        P0 = 2^(S0 s - m0)      # first warpgroup
        m1 = max(m0, max(S1) s)        b = 2^(m0 - m1)       P1 = 2^(S1 s - m1)      # second warpgroup
        O  = ((O a) + round(P0) V0) b + round(P1) V1         l = (l a + sum of P0) b
        O' = (O' (b a)) + round(P1) V1 + round(P0 b) V0      l' = l' (b a) + sum of P1

    A last tile without another leaves O and l without the factor b.
    """

    def __init__(self, kernel: AttentionKernel, rows: int, channels: int, half: int) -> None:
        self.kernel, self.half = kernel, half
        self.maxima = np.full(rows, _LEAST_MAXIMUM)
        self.sums = [np.zeros((rows, kernel.row_sum.lanes), np.float32) for _ in range(2)]
        self.out = [np.zeros((rows, size), np.float32) for size in (min(half, channels), max(channels - half, 0))]
        self.underflowed = np.zeros(rows, np.int64)

    def add(
        self, scores: Sequence[Floats], values: Sequence[NDArray[Any]], scale: np.float32, product: Product
    ) -> None:
        """Add one or two tiles, given scores [M, keys] and codes of V transposed [Dv, keys]."""
        kernel, flush, has_two = self.kernel, self.kernel.flush_subnormals, len(scores) > 1
        first = self._raised(scores[0], scale)
        p = self._probabilities(scores[0], scale)
        codes = [self._codes(p)]
        self.underflowed += ((p > 0) & (codes[0] == 0)).sum(1)
        second = self._raised(scores[1] if has_two else np.full_like(p[:, :1], HIDDEN), scale)
        both = times(second, first, flush)
        for factors, part in ((first, self.out[0]), (both, self.out[1])):
            kernels.rescale_rows(part, factors, flush)
        kernel.row_sum.add(p, first, flush, self.sums[0])
        kernels.rescale_rows(p, second, flush)
        later = self._codes(p)
        self.out[0] = product(codes[0], values[0][: self.half], self.out[0])
        p = self._probabilities(scores[1], scale) if has_two else p[:, :0]
        kernel.row_sum.add(p, both, flush, self.sums[1])
        if has_two:
            codes.append(self._codes(p))
            self.underflowed += ((p > 0) & (codes[1] == 0)).sum(1)
            for x in (self.out[0], self.sums[0]):
                kernels.rescale_rows(x, second, flush)
            for i, columns in enumerate((values[1][: self.half], values[1][self.half :])):
                self.out[i] = product(codes[1], columns, self.out[i])
        self.out[1] = product(later, values[0][self.half :], self.out[1])

    def _codes(self, p: Floats) -> NDArray[Any]:
        return encode(p, self.kernel.p_format, policy=self.kernel.p_policy)

    def _raised(self, scores: Floats, scale: np.float32) -> Floats:
        """Raise the maxima to those of a tile of scores, and return the factors that rescale sums and outputs."""
        flush = self.kernel.flush_subnormals
        largest = np.full_like(self.maxima, HIDDEN)
        kernels.raise_maxima(scores, largest, flush, largest)
        raised = np.fmax(self.maxima, times(largest, scale, flush))
        factors = self.kernel.exp2.factors(self.maxima - raised)
        self.maxima = raised
        return factors

    def _probabilities(self, scores: Floats, scale: np.float32) -> Floats:
        kernel, arguments = self.kernel, np.empty_like(scores)
        kernels.scale_and_shift(scores, scale, self.maxima, kernel.fused_scores, kernel.flush_subnormals, arguments)
        return kernel.exp2(arguments)

    def finish(self, v_descale: Numbers, is_split: bool) -> tuple[Floats, Floats]:
        """Return the output divided by the sums, and the log-sum-exp: of a split, in octaves and -inf without a sum."""
        kernel, flush = self.kernel, self.kernel.flush_subnormals
        sums = np.add(*(kernel.row_sum.total(x) for x in self.sums))
        is_empty, out = (sums == 0) | np.isnan(sums), np.concatenate(self.out, 1)
        rows = RowTotals(self.maxima, sums, is_empty, np.float32(1), 0, kernel.exp2, flush)
        kernels.rescale_rows(out, (kernel.reciprocal(rows.safe_sums) * v_descale).astype(np.float32), flush)
        if is_split:
            octaves = kernel.exp2.log2(rows.safe_sums) + self.maxima
            return out, np.where(is_empty, np.float32(-np.inf), octaves)
        return out, kernel.lse(rows)
