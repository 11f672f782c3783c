"""PyTorch's layer norm on CPUs: Welford's moments in lanes, joined in a cascade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.exact import fma
from ..order.order import DTYPES, FormatName
from .operations import Rule

Floats = NDArray[np.float32]


class Moments(NamedTuple):
    """Number of elements, mean and sum of squared deviations."""

    number: int
    mean: Floats
    squares: Floats

    def join(self, other: Moments, *, fused: bool) -> Moments:
        """Return the moments of both; `fused` where the compiler contracts products and sums of scalars."""
        count = self.number + other.number
        share = np.float32(other.number) / np.float32(max(count, 1))
        delta = other.mean - self.mean
        if fused:
            part = fma(delta * delta * share, np.float32(self.number), other.squares)
            return Moments(count, fma(share, delta, self.mean), self.squares + part)
        step = share * delta
        return Moments(
            count, self.mean + step, fma(delta * np.float32(self.number), step, self.squares + other.squares)
        )


@dataclass(frozen=True, eq=False, repr=False)
class LayerNorm(Rule):
    """Layer norm with moments in lanes: chunks of vectors, joined in a cascade, then the rest, then each lane.

    Parameters
    ----------
    vector_bytes : int
        Size of a vector, whose lanes are float32.
    chunk : int
        Vectors of a chunk.
    """

    vector_bytes: int = 32
    chunk: int = 16

    def compute(self, x: Floats, weight: Floats, bias: Floats, eps: Any, dtype: FormatName) -> Floats:
        """Return the normalized rows of x [M, N] in float32."""
        found = self.moments(x, dtype)
        mean = found.mean[:, None]
        inverse = np.float32(1) / np.sqrt(found.squares / np.float32(x.shape[1]) + eps)[:, None]
        if dtype == "float32":
            return fma((x - mean) * inverse, weight, bias)
        return fma(fma(x, inverse, -inverse * mean), weight, bias)

    def moments(self, x: Floats, dtype: FormatName) -> Moments:
        """Return the moments of each row of x [M, N]."""
        lanes, step = self.vector_bytes // 4, self.vector_bytes // DTYPES[dtype].itemsize
        whole = x.shape[1] // step
        vectors = x[:, : whole * step].reshape(len(x), whole, step // lanes, lanes)
        zeros = Moments(0, np.zeros((len(x), lanes), np.float32), np.zeros((len(x), lanes), np.float32))
        depth = max((-(-whole // self.chunk) - 1).bit_length(), 1)
        levels = [zeros] * depth
        for i in range(0, whole, self.chunk):
            some = vectors[:, i : i + self.chunk]
            mean, squares = np.zeros((2, len(x), *some.shape[2:]), np.float32)
            for j in range(some.shape[1]):
                delta = some[:, j] - mean
                mean = fma(np.float32(1) / np.float32(j + 1), delta, mean)
                squares = fma(delta, some[:, j] - mean, squares)
            for part in range(some.shape[2]):
                levels[0] = levels[0].join(Moments(some.shape[1], mean[:, part], squares[:, part]), fused=False)
            count = i // self.chunk + 1
            for level in range(1, depth):
                if count % (1 << level):
                    break
                levels[level] = levels[level].join(levels[level - 1], fused=False)
                levels[level - 1] = zeros
        for upper in levels[1:]:
            levels[0] = levels[0].join(upper, fused=False)
        total = Moments(0, np.zeros(len(x), np.float32), np.zeros(len(x), np.float32))
        for j in range(whole * step, x.shape[1]):
            delta = x[:, j] - total.mean
            mean = total.mean + delta / np.float32(total.number + 1)
            total = Moments(total.number + 1, mean, total.squares + delta * (x[:, j] - mean))
        for lane in range(lanes):
            lane_moments = Moments(whole * step // lanes, levels[0].mean[:, lane], levels[0].squares[:, lane])
            total = total.join(lane_moments, fused=True)
        return total
