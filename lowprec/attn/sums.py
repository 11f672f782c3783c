"""Sums of a row's probabilities in float32, one class per layout of threads, and rules of log-sum-exps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._values import Value, normalize_fields
from ..kernels import attn as kernels
from ..special.exp2 import LN_2, Exp2
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

    def total(self, sums: Floats) -> Floats:
        """Return the sum of each row's partial sums [M]: by default, the only one."""
        return sums[:, 0].copy()


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
        tile = np.zeros_like(sums)
        for pairs in np.moveaxis(whole, 1, 0):
            tile += pairs[..., 0] + pairs[..., 1]
        sums[:] = multiply_add(sums, scales[:, None], tile, flush, self.fused)

    def total(self, sums: Floats) -> Floats:
        """Return the sum of each row's partial sums [M]."""
        return (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])


@dataclass(frozen=True, eq=False, repr=False)
class QuadTileSum(QuadPairSum):
    """Sum by the threads of `QuadSum`, which add the keys of a tile to 0 first, as in FlashMLA's sparse decoding.

    A fused multiply-add joins the sum of earlier tiles and that of the tile; the total is that of `QuadPairSum`.
    """

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the partial sums by a scale per row and add a tile P [M, keys], in place."""
        tile = np.zeros((len(p), 4), np.float32)
        kernels.sum_by_quad(p, np.ones(len(p), np.float32), True, flush, tile)
        sums[:] = multiply_add(sums, scales[:, None], self._of_tile(tile), flush, self.fused)

    def _of_tile(self, sums: Floats) -> Floats:
        return sums


@dataclass(frozen=True, eq=False, repr=False)
class QuadTotalSum(QuadTileSum):
    """Sum of each tile by the threads of `QuadSum`; a fused multiply-add joins it with the sum of earlier tiles.

    Triton's ``l_i * alpha + tl.sum(p, 1)``: a tile's total is that of `QuadSum`, and the first tile's is added to 1
    times its scale.
    """

    lanes, start = 1, np.float32(1)

    def _of_tile(self, sums: Floats) -> Floats:
        return QuadSum.total(self, sums)[:, None]

    total = RowSum.total


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
class QuadOctetSum(QuadPairSum):
    """Sum by four threads per row: thread t adds keys 8t to 8t + 7 of every 32, as in SageAttention 3.

    The total is that of `QuadPairSum`.
    """

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the partial sums [M, 4] by a scale per row and add a tile P [M, keys], in place."""
        pairs = p.reshape(len(p), -1, 4, 4, 2).swapaxes(2, 3)
        QuadSum.add(self, pairs.reshape(p.shape), scales, flush, sums)


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


class RowTotals(NamedTuple):
    """Maxima and sums [M] of a block of rows after their last tile, and the other arguments of `LogSumExp`."""

    maxima: Floats
    sums: Floats
    is_empty: NDArray[np.bool_]  # whether a sum of 0 or NaN counts as 1
    factor: np.float32  # of the maxima, see `LogSumExp.factor`
    offset: float  # exponent of the power of two in the sums
    exp2: Exp2
    flush: bool

    @property
    def safe_sums(self) -> Floats:
        """The sums, with 1 for empty rows."""
        return np.where(self.is_empty, np.float32(1), self.sums)


@dataclass(frozen=True, eq=False, repr=False)
class LogSumExp(Value):
    """Base class of the rules by which a row's log-sum-exp follows from its maximum m and its sum l.

    Parameters
    ----------
    fused : bool
        Whether a multiplication and the addition after it are one fused multiply-add.
    empty : float
        Log-sum-exp of rows without tiles, and of rows with a sum of 0 or NaN if the kernel replaces such sums.
    """

    fused: bool = True
    empty: float = float("-inf")
    #: Factor that converts results to nats.
    unit: ClassVar[np.float32] = np.float32(1)

    def __post_init__(self) -> None:
        normalize_fields(self)

    def factor(self, scale: np.float32, softmax_scale: np.float32, exp2: Exp2) -> np.float32:
        """Return the factor s of m, given that in the argument of exp2, and the same without log2(e)."""
        return scale

    @abstractmethod
    def __call__(self, rows: RowTotals) -> Floats:
        """Return the log-sum-exps [M]."""


@dataclass(frozen=True, eq=False, repr=False)
class NatsLogSumExp(LogSumExp):
    """Log-sum-exp in nats: m (s ln 2) + log2(l / 2^p_offset) ln 2.

    Parameters
    ----------
    fused, empty
        As in `LogSumExp`.
    from_scale : bool
        Whether the softmax scale itself is the factor of m, in place of s ln 2.
    """

    from_scale: bool = False

    def factor(self, scale: np.float32, softmax_scale: np.float32, exp2: Exp2) -> np.float32:
        """Return the factor of m: `scale` without log2(e)."""
        if exp2.is_natural:
            return scale
        return softmax_scale if self.from_scale else np.float32(scale * LN_2)

    def __call__(self, rows: RowTotals) -> Floats:
        """Return the log-sum-exps [M]."""
        logs = rows.exp2.log(rows.safe_sums * np.exp2(np.float32(-rows.offset)))
        nats = multiply_add(rows.maxima, rows.factor, logs, rows.flush, self.fused)
        return np.where(rows.is_empty, np.float32(self.empty), nats)


@dataclass(frozen=True, eq=False, repr=False)
class OctavesLogSumExp(LogSumExp):
    """Log-sum-exp that is converted to nats at the end: (m s + (log2(l) - p_offset)) ln 2."""

    def __call__(self, rows: RowTotals) -> Floats:
        """Return the log-sum-exps [M]."""
        logs = rows.exp2.log2(rows.safe_sums) - np.float32(rows.offset)
        octaves = multiply_add(rows.maxima, rows.factor, logs, rows.flush, self.fused)
        return np.where(rows.is_empty, np.float32(self.empty), octaves * LN_2)


@dataclass(frozen=True, eq=False, repr=False)
class TermwiseLogSumExp(LogSumExp):
    """Log-sum-exp whose terms are converted to nats one by one, as in FlashMLA: log2(l) ln 2 + (m s) ln 2."""

    def __call__(self, rows: RowTotals) -> Floats:
        """Return the log-sum-exps [M]."""
        octaves, shift = rows.exp2.log2(rows.safe_sums), rows.maxima * rows.factor * LN_2
        found = multiply_add(octaves, LN_2, shift, rows.flush, self.fused)
        return np.where(rows.is_empty, np.float32(self.empty), found)


@dataclass(frozen=True, eq=False, repr=False)
class Base2LogSumExp(LogSumExp):
    """Log-sum-exp to base 2, m s + log2(l); sums of 0 and NaN are not replaced."""

    unit: ClassVar[np.float32] = LN_2

    def __call__(self, rows: RowTotals) -> Floats:
        """Return the log-sum-exps [M]."""
        return multiply_add(rows.maxima, rows.factor, rows.exp2.log2(rows.sums), rows.flush, self.fused)
