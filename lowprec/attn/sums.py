"""Orders in which attention kernels add a row's probabilities in float32: one class per layout of threads."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._values import Value, normalize_fields
from ..kernels import attn as kernels
from ..special.reciprocal import flushed

Floats = NDArray[np.float32]
Numbers = Floats | np.float32


def added(a: Floats, b: Floats, flush: bool = True) -> Floats:
    """Return a + b; with `flush`, subnormal operands and sums count as zero: red.global.add.f32 and add.ftz.f32."""
    return flushed(flushed(a) + flushed(b)) if flush else a + b


def times(a: Numbers, b: Numbers, flush: bool = True) -> Floats:
    """Return a * b; with `flush`, subnormal operands and products count as zero."""
    with np.errstate(invalid="ignore", over="ignore"):
        return flushed(flushed(a) * flushed(b)) if flush else np.asarray(a * b)


def multiply_add(a: Numbers, b: Numbers, c: Numbers, flush: bool = True, fused: bool = True) -> Floats:
    """Return a * b + c, rounded once if `fused`; with `flush`, subnormal operands and results count as zero."""
    if not fused:
        return added(times(a, b, flush), np.asarray(c), flush)
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c))
    x, y, z = (
        np.ascontiguousarray(n) if np.shape(n) == shape else np.array(np.broadcast_to(n, shape), order="C")
        for n in (a, b, c)
    )
    out = np.empty_like(x)
    kernels.multiply_add(x.reshape(-1), y.reshape(-1), z.reshape(-1), flush, out.reshape(-1))
    return out


def promote(out: Floats, factors: Floats | None, part: Floats, flush: bool) -> Floats:
    """Return out + part, after out is rescaled by `factors` in one fused multiply-add, if they are given."""
    return added(out, part, flush) if factors is None else multiply_add(out, factors, part, flush)


class RowSum(Value):
    """Base class of the orders in which the probabilities of a row are added."""

    #: Number of partial sums of a row, and their first value.
    lanes: int
    start = np.float32(0)

    @abstractmethod
    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the partial sums [M, lanes] by a scale per row and add a tile P [M, keys], in place."""

    @abstractmethod
    def total(self, sums: Floats) -> Floats:
        """Return the sum of each row's partial sums [M]."""


@dataclass(frozen=True, eq=False, repr=False)
class QuadSum(RowSum):
    """Sum by four threads per row: thread t adds keys 2t and 2t + 1 of every eight; the total is (t0 + t2) + (t1 + t3).

    This is the layout of the results of mma.sync and wgmma, with two shuffles (by 2, then by 1) after the last tile.

    Parameters
    ----------
    fused : bool
        Whether a thread's first key is added by the fused multiply-add that also rescales its sum.
    """

    fused: bool = True
    lanes = 4

    def __post_init__(self) -> None:
        normalize_fields(self)

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the partial sums [M, 4] by a scale per row and add a tile P [M, keys], in place."""
        kernels.sum_by_quad(p, scales, self.fused, flush, sums)

    def total(self, sums: Floats) -> Floats:
        """Return the sum of each row's partial sums [M]."""
        return (sums[:, 0] + sums[:, 2]) + (sums[:, 1] + sums[:, 3])


@dataclass(frozen=True, eq=False, repr=False)
class QuadPairSum(QuadSum):
    """Sum by the threads of `QuadSum`, which add keys 2t and 2t + 1 first: FlashMLA's ``cur_sum += p[i] + p[i + 1]``.

    A fused multiply-add multiplies the sum of earlier tiles by its scale and adds that of the tile; the total is
    (t0 + t1) + (t2 + t3).
    """

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the partial sums [M, 4] by a scale per row and add a tile P [M, keys], in place."""
        whole = np.pad(p, ((0, 0), (0, -p.shape[1] % 8))).reshape(len(p), -1, 4, 2)
        tile = np.zeros((len(p), 4, 2), np.float32)
        for pairs in np.moveaxis(whole, 1, 0):
            tile[..., 0] += pairs[..., 0] + pairs[..., 1]
        super().add(tile.reshape(len(p), 8), scales, flush, sums)

    def total(self, sums: Floats) -> Floats:
        """Return the sum of each row's partial sums [M]."""
        return (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])


@dataclass(frozen=True, eq=False, repr=False)
class QuadQuartetSum(QuadPairSum):
    """Sum by the threads of `QuadSum`, which add four keys of sixteen first: SageAttention's ``accumulate_d``.

    These are ``((p[2t] + p[2t + 1]) + p[2t + 8]) + p[2t + 9]``. All partial sums start from 1, the probability of a key
    at the maximum before the first tile. The total is that of `QuadPairSum`.
    """

    start = np.float32(1)

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the partial sums [M, 4] by a scale per row and add a tile P [M, keys], in place."""
        whole = np.pad(p, ((0, 0), (0, -p.shape[1] % 16))).reshape(len(p), -1, 2, 4, 2)
        spread = np.zeros((*whole.shape[:2], 4, 2), np.float32)
        spread[..., 0] = (whole[:, :, 0, :, 0] + whole[:, :, 0, :, 1] + whole[:, :, 1, :, 0]) + whole[:, :, 1, :, 1]
        QuadSum.add(self, spread.reshape(len(p), -1), scales, flush, sums)


@dataclass(frozen=True, eq=False, repr=False)
class PackedPairSum(RowSum):
    """Sum by one thread per row: eight chains over the keys of a tile, which packed additions join in pairs.

    FlashAttention-4's ``fadd_reduce``: chain c adds keys c, c + 8, ...; the first one starts from the rescaled sum.
    Then (c0 + c2) + (c4 + c6) and (c1 + c3) + (c5 + c7) are added.
    """

    lanes = 1

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the sum [M, 1] by a scale per row and add a tile P [M, keys], in place."""
        kernels.sum_by_packed_pairs(p, scales, flush, sums)

    def total(self, sums: Floats) -> Floats:
        """Return each row's sum [M]."""
        return sums[:, 0].copy()
