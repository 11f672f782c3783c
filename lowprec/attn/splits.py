"""Splits of the keys: each split computes an output and a log-sum-exp, and a second kernel combines them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._values import Value, normalize_fields
from ..kernels import attn as kernels
from ..special.exp2 import LN_2, Exp2
from ..special.reciprocal import Reciprocal
from .sums import multiply_add
from .tiles import Block, Visit

Floats = NDArray[np.float32]
_LOG2_E = np.float32(math.log2(math.e))


@dataclass(frozen=True, eq=False, repr=False)
class Combine(Value):
    """Division of keys into splits, and combination of the splits' outputs: a weighted sum in increasing order.

    The weights are ``exp(lse - max) / sum``. Thread t of a row adds the exponentials of splits t, t + lanes, ...; a
    butterfly of shuffles, by lanes / 2, lanes / 4, ..., 1, adds the threads.

    Parameters
    ----------
    lanes : tuple of (int, int)
        Threads per row, a power of two, by head size of V, in increasing order.
    by_total : bool
        Whether weights are ``exp(lse - total lse)`` instead.
    scaled : bool
        Whether the argument of 2^x is ``lse log2(e) - (max log2(e))``, one fused multiply-add, instead of
        ``(lse - max) log2(e)``.
    skips_zeros : bool
        Whether splits are omitted if their weight is not positive, even if their output is NaN.
    empty_lse : float
        Log-sum-exp of a row that sees no key in any split.
    divides_all : bool
        Whether all tiles are divided among the splits, instead of only the tiles that a block of queries sees.
    in_octaves : bool
        Whether the log-sum-exps of the splits are in octaves; the argument of 2^x is then ``lse - max``.
    """

    lanes: tuple[tuple[int, int], ...] = ((256, 32),)
    by_total: bool = False
    scaled: bool = False
    skips_zeros: bool = True
    empty_lse: float = float("-inf")
    divides_all: bool = False
    in_octaves: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)
        object.__setattr__(self, "lanes", tuple(tuple(row) for row in self.lanes))
        if not self.lanes or any(n < 1 or n & (n - 1) for _, n in self.lanes):
            raise ValueError(f"Combine: lanes must be rows of a head size and a power of two, got {self.lanes}")

    def weights(self, lse: Floats, channels: int, exp2: Exp2, reciprocal: Reciprocal) -> tuple[Floats, Floats]:
        """Return the weights of the splits [splits, M] and the log-sum-exp [M]."""
        largest = lse[0].copy()
        kernels.raise_maxima(np.ascontiguousarray(lse.T), largest, False, largest)
        safe = np.where(largest == -np.inf, np.float32(0), largest)
        weights = self._exp(lse, safe, exp2)
        total = self._sum(weights, channels)
        is_empty = (total == 0) | (np.isnan(total) & (not self.in_octaves))
        octaves = exp2.log2(total)
        sums = octaves + safe if self.in_octaves else multiply_add(octaves, LN_2, largest)
        sums = np.where(is_empty, np.float32(self.empty_lse), sums) if self.by_total else sums
        if self.by_total:
            return self._exp(lse, sums, exp2), sums * LN_2 if self.in_octaves else sums
        inverse = np.where(is_empty, np.float32(0), reciprocal(np.where(is_empty, np.float32(1), total)))
        return weights * inverse, sums

    def _exp(self, lse: Floats, offsets: Floats, exp2: Exp2) -> Floats:
        """Return exp(lse - offset) [splits, M]."""
        x = multiply_add(lse, _LOG2_E, -(offsets * _LOG2_E)) if self.scaled else lse - offsets
        if not self.scaled and not self.in_octaves:
            x = x * _LOG2_E
        return exp2(x.reshape(-1, 1)).reshape(lse.shape)

    def _sum(self, weights: Floats, channels: int) -> Floats:
        lanes = next((n for size, n in self.lanes if channels <= size), self.lanes[-1][1])
        threads = np.zeros((lanes, weights.shape[1]), np.float32)
        for start in range(0, len(weights), lanes):
            part = weights[start : start + lanes]
            threads[: len(part)] += part
        while len(threads) > 1:
            threads = threads[: len(threads) // 2] + threads[len(threads) // 2 :]
        total: Floats = threads[0]
        return total

    def outputs(self, weights: Floats, outs: list[Floats], flush: bool) -> Floats:
        """Return the sum of the splits' outputs [M, Dv] times their weights, each by a fused multiply-add."""
        found = np.zeros_like(outs[0])
        for weight, out in zip(weights, outs, strict=True):
            total = multiply_add(out, weight[:, None], found, flush)
            found = np.where((weight > 0)[:, None] | (not self.skips_zeros), total, found)
        return found


def split_blocks(blocks: list[Block], keys: int, split: int, splits: int, tiles: int | None) -> list[Block]:
    """Return the blocks with the tiles of one split: a share of the tiles that a block visits, or of all `tiles`."""
    found = []
    for block in blocks:
        each = -(-(len(block.visits) if tiles is None else tiles) // splits)
        if tiles is None:
            rest = len(block.visits) - split * each
            visits = block.visits[max(rest - each, 0) : max(rest, 0)]
        else:
            visits = tuple(x for x in block.visits if x.start // keys // max(each, 1) == split)
        guarded = tuple(Visit(x.start, x.is_guarded or i < block.guarded) for i, x in enumerate(visits))
        found.append(block._replace(visits=guarded))
    return found
