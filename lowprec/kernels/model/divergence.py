"""Relative entropy of predictions, and dynamic range of tiles, with the same bits on every machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowprec._jit import kernel
from lowprec.kernels.elementary import exp64, log64

#: 1 / ln 2.
_LOG2_E = 1.4426950408889634


@kernel
def relative_entropy(p_logits: Any, q_logits: Any, out: Any, start: int, stop: int) -> None:
    """Write out [T] float64: sum of p (ln p - ln q) in nats, p and q the softmax of each row [T, V].

    Logits are subtracted first, so equal rows give exactly 0.
    """
    vocabulary = p_logits.shape[1]
    for t in range(start, stop):
        p_top = np.float64(p_logits[t, 0])
        q_top = np.float64(q_logits[t, 0])
        for v in range(1, vocabulary):
            p_top = max(p_top, np.float64(p_logits[t, v]))
            q_top = max(q_top, np.float64(q_logits[t, v]))
        p_total = 0.0
        q_total = 0.0
        gap = 0.0
        for v in range(vocabulary):
            p_shifted = np.float64(p_logits[t, v]) - p_top
            q_shifted = np.float64(q_logits[t, v]) - q_top
            weight = exp64(p_shifted)
            p_total += weight
            q_total += exp64(q_shifted)
            gap += weight * (p_shifted - q_shifted)
        out[t] = gap / p_total + log64(q_total) - log64(p_total)


@kernel
def tile_range(x: Any, tile: int, out: Any, start: int, stop: int) -> None:
    """Write out [T, tiles] float64: log2 of the largest over the smallest non-zero magnitude in each tile of a row.

    NaN for a tile without a nonzero value, and for one with NaN or infinity. Exact between powers of two.
    """
    columns = x.shape[1]
    for t in range(start, stop):
        for j in range(out.shape[1]):
            low = np.inf
            high = 0.0
            finite = True
            for c in range(j * tile, min(columns, (j + 1) * tile)):
                size = abs(np.float64(x[t, c]))
                finite = finite and bool(size < np.inf)
                if size > 0.0:
                    low = min(low, size)
                    high = max(high, size)
            if finite and high > 0.0:
                top, binade = math.frexp(high)
                bottom, below = math.frexp(low)
                out[t, j] = np.float64(binade - below) + (log64(top) - log64(bottom)) * _LOG2_E
            else:
                out[t, j] = np.nan
