"""Scales of the operands of attention kernels: how they are computed, and which numbers each of them multiplies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import brief_repr, check_int, check_optional_int, check_positive_float32
from .._values import Value, normalize_fields
from ..cast.casts import decode, encode, round_to
from ..format.catalogue import Format, formats
from ..special.reciprocal import flushed
from ..tensorcore.catalogue import accumulators
from ..tensorcore.mma import mma
from .sums import Numbers, times
from .tiles import KeyTile

Floats = NDArray[np.float32]
Shape = tuple[int, ...]
Three = tuple[Floats, Floats, Floats]  # of q, k and v
Scales = tuple[NDArray[Any], ...]  # of q, k and v, perhaps with other arrays
Head = tuple[int, int, int]  # numbers of a sequence, a query head and a key head
BLOCK, SCALE_FORMAT = (
    16,
    formats["e4m3fn"],
)  # numbers with one scale in SageAttention 3's operands, and format of the scales
_LEAST = np.float32(1e-7)
_LARGEST = np.float32(127)


class BlockOperands(NamedTuple):
    """Codes of the scales of blocks of q [M, D / 16], k [N, D / 16] and v [Dv, N / 16], and the addends of the scores.

    Query i has the addends ``shifts[group[i]]`` [N].
    """

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    shifts: Floats
    group: NDArray[np.intp]


class ScalesOfHead(NamedTuple):
    """Scales of a head: of its scores, of its queries [M] and keys [N], of its output, and of blocks."""

    scores: np.float32 = np.float32(1)
    threads: tuple[Floats, Floats] | None = None
    values: Numbers = np.float32(1)
    blocks: BlockOperands | None = None


class OperandScales(Value):
    """Base class of the rules by which Q, K and V have scales."""

    #: Contents of `descale`, for messages.
    names = "three scales, of q, k and v"

    def check_tiles(self, caller: str, tiles: Sequence[KeyTile]) -> None:
        """Raise ValueError if the scales do not fit tiles."""

    @abstractmethod
    def quantize(self, q: Floats, k: Floats, v: Floats, fmt: Format, v_format: Format) -> tuple[Three, Scales]:
        """Return q, k and v on the grids of the formats, and their scales, which multiply them back."""

    @abstractmethod
    def shapes(self, q: Shape, v: Shape) -> tuple[Shape, ...]:
        """Return the shapes of the scales, given the shapes of q and v."""

    @abstractmethod
    def of_head(self, scales: Scales, head: Head, flush: bool) -> ScalesOfHead:
        """Return the scales of a head; with `flush`, subnormal ones count as zero."""

    def lse_offset(self, q: Floats, k: Floats, scale: float) -> Floats | np.float32:
        """Return the number [B, H, M] that the library adds to log-sum-exps of the quantized operands."""
        return np.float32(-0.0)

    def read(self, descale: tuple[ArrayLike, ...] | None, q: Shape, v: Shape) -> Scales:
        """Check the scales and return them in float32, as `of_head` reads them; None: scales of 1, addends of 0.

        Raises
        ------
        ValueError
            If their number is wrong, or one is neither a number nor of its shape.
        """
        shapes = self.shapes(q, v)
        given = (1, 1, 1, 0)[: len(shapes)] if descale is None else descale
        if not isinstance(given, tuple | list) or len(given) != len(shapes):
            count = len(given) if isinstance(given, tuple | list) else brief_repr(given)
            raise ValueError(f"attention: descale must be {self.names}, got {count}")
        try:
            with np.errstate(over="ignore"):  # beyond float32: Inf
                arrays = [np.asarray(x, np.float32) for x in given]
            return tuple(np.broadcast_to(x, to) for x, to in zip(arrays, shapes, strict=True))
        except ValueError:
            *some, last = shapes
            allowed = str(last) if len(set(shapes)) == 1 else f"{', '.join(map(str, some))} and {last}"
            got = [np.shape(x) for x in given]
            raise ValueError(f"attention: descale must be numbers or of shape {allowed}, got {got}") from None


@dataclass(frozen=True, eq=False, repr=False)
class HeadScales(OperandScales):
    """One scale of each operand per sequence and key head: amax divided by the largest number, and 1 for zeros.

    The scales of Q and K multiply the scale of the scores, the scale of V multiplies the output. Operands in formats of
    16 bits or more are not scaled.
    """

    def __post_init__(self) -> None:
        normalize_fields(self)

    def quantize(self, q: Floats, k: Floats, v: Floats, fmt: Format, v_format: Format) -> tuple[Three, Scales]:
        """Return q, k and v on the grids of the formats, and their scales [B, Hk]."""
        pairs = [_by_head(x, f, k.shape[:2]) for x, f in ((q, fmt), (k, fmt), (v, v_format))]
        return (pairs[0][0], pairs[1][0], pairs[2][0]), (pairs[0][1], pairs[1][1], pairs[2][1])

    def shapes(self, q: Shape, v: Shape) -> tuple[Shape, ...]:
        """Return (B, Hk) for each operand."""
        return v[:2], v[:2], v[:2]

    def of_head(self, scales: Scales, head: Head, flush: bool) -> ScalesOfHead:
        """Return the product of the scales of Q and K, and the scale of V."""
        q, k, v = (x[head[0], head[2]] for x in scales)
        return ScalesOfHead(np.float32(times(q, k, flush)), values=times(v, np.float32(1), flush))


def _by_head(x: Floats, fmt: Format, groups: Shape) -> tuple[Floats, Floats]:
    ones = np.ones(groups, np.float32)
    if fmt.bits > 8:
        return round_to(x, fmt), ones
    if not x.size:
        return x, ones
    with np.errstate(all="ignore"):  # inputs may be Inf or NaN: the head is then NaN, as on the GPU
        amax = np.abs(x).reshape(*groups, -1).max(-1)
        scale = np.where(amax == 0, ones, amax / np.float32(fmt.max))
        per_head = np.repeat(scale, x.shape[1] // groups[1], axis=1)[:, :, None, None]
        return round_to(x / per_head, fmt, policy="ocp_sat"), scale


@dataclass(frozen=True, eq=False, repr=False)
class SmoothedScales(OperandScales):
    """Base class of SageAttention's rules, which shift K by its mean over the tokens: this changes no probability."""

    def mean(self, k: Floats) -> Floats:
        """Return the mean [B, Hk, 1, D] of keys in BF16: ``torch.mean``, with a sum in float64 that is rounded once."""
        factor = np.float32(k[:, :, :1].size) / np.float32(k.size or 1)
        return round_to(k.sum(2, np.float64, keepdims=True).astype(np.float32) * factor, "bfloat16")

    def _shifted(self, k: Floats, mean: Floats) -> Floats:
        return round_to(k - mean, "bfloat16")

    def lse_offset(self, q: Floats, k: Floats, scale: float) -> Floats:
        """Return the scores [B, H, M] of K's mean, which was subtracted: a product in BF16, times the scale."""
        q, mean = round_to(q, "bfloat16"), self.mean(round_to(k, "bfloat16"))
        return _products(q, mean)[..., 0] * np.float32(scale)


def _products(a: Floats, b: Floats) -> Floats:
    """Return the products [B, H, M, N] of numbers in BF16, added in order in float32 and rounded to BF16."""
    found, group = np.zeros((*a.shape[:3], b.shape[2]), np.float32), a.shape[1] // max(b.shape[1], 1)
    for i, h in np.ndindex(a.shape[:2]):
        pair = (encode(x, "bfloat16", policy="ieee") for x in (a[i, h], b[i, h // group]))
        scores = mma(*pair, accumulator=accumulators["float32"], a_format="bfloat16", b_format="bfloat16")
        found[i, h] = round_to(scores, "bfloat16")
    return found


@dataclass(frozen=True, eq=False, repr=False)
class ThreadScales(SmoothedScales):
    """Scales of the threads of a warp, as SageAttention's Triton kernels compute them, and one of V per channel.

    In each group of rows of Q, or of K without its mean, the scale is
    ``amax / 127 + 1e-7``, and ``x / scale`` is rounded to the nearest integer, halves away from zero. Groups are rows r
    of 32 queries with the same r mod 8, and keys j of a tile with the same (j mod 8) div 2: those of a thread's scores.

    Parameters
    ----------
    v_max : float
        Magnitude to which the largest value of a channel of V is scaled.
    queries, rows, keys : int
        Queries of a block, for which the library allocates scales; rows of a warp; keys of a tile.
    """

    v_max: float = 448.0
    queries: int = 128
    rows: int = 32
    keys: int = 64

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = type(self).__name__
        check_positive_float32(caller, "v_max", self.v_max)
        for name in ("queries", "rows", "keys"):
            check_int(caller, name, getattr(self, name), 8)
        if self.queries % 8 or self.rows % 8 or self.keys % 16:
            sizes = f"{self.queries}, {self.rows} and {self.keys}"
            raise ValueError(f"{caller}: queries and rows must be multiples of 8, keys of 16, got {sizes}")
        if self.queries % self.rows:
            raise ValueError(f"{caller}: queries must be a multiple of rows, got {self.queries} and {self.rows}")

    def check_tiles(self, caller: str, tiles: Sequence[KeyTile]) -> None:
        """Raise ValueError unless all tiles have `keys` keys."""
        if any(keys != self.keys for row in tiles for keys in row[1:4]):
            raise ValueError(f"{caller}: key_tiles must have {self.keys} keys, as its scales, got {tiles}")

    def query_groups(self, m: int) -> tuple[NDArray[np.intp], int]:
        """Return the scale of each query [M], and the number of scales."""
        row = np.arange(m)
        return row // self.rows * 8 + row % 8, -(-m // self.queries) * (self.queries // self.rows) * 8

    def key_groups(self, n: int) -> tuple[NDArray[np.intp], int]:
        """Return the scale of each key [N], and the number of scales."""
        key = np.arange(n)
        return key // self.keys * 4 + key % 8 // 2, -(-n // self.keys) * 4

    def quantize(self, q: Floats, k: Floats, v: Floats, fmt: Format, v_format: Format) -> tuple[Three, Scales]:
        """Return integers, values in FP8, and the scales [B, H, groups], [B, Hk, groups] and [B, Hk, Dv].

        Operands are first rounded to BF16. A channel of V that is zero becomes NaN, as its scale is 0.
        """
        with np.errstate(all="ignore"):
            q, k, v = (round_to(x, "bfloat16") for x in (q, k, v))
            q, q_scale = self._integers(q, *self.query_groups(q.shape[2]))
            k, k_scale = self._integers(self._shifted(k, self.mean(k)), *self.key_groups(k.shape[2]))
            v = flushed(v)
            amax = np.fmax.reduce(np.abs(v), axis=2, initial=np.float32(0))
            values = round_to(v * _divided(self.v_max, amax)[:, :, None], v_format, policy="ocp_sat")
            return (q, k, values), (q_scale, k_scale, flushed(amax / np.float32(self.v_max)))

    def _integers(self, x: Floats, groups: NDArray[np.intp], count: int) -> tuple[Floats, Floats]:
        """Return the integers of x [B, H, M, D], NaN as 0, and the scales of the groups of rows."""
        scale = _amax(x, groups, count) / _LARGEST + _LEAST
        ratio = x / scale[:, :, groups, None]
        return np.nan_to_num(np.trunc(ratio + np.where(ratio >= 0, np.float32(0.5), np.float32(-0.5)))), scale

    def shapes(self, q: Shape, v: Shape) -> tuple[Shape, ...]:
        """Return (B, H, groups of queries), (B, Hk, groups of keys) and (B, Hk, Dv)."""
        return (*q[:2], self.query_groups(q[2])[1]), (*v[:2], self.key_groups(v[2])[1]), (*v[:2], v[3])

    def read(self, descale: tuple[ArrayLike, ...] | None, q: Shape, v: Shape) -> Scales:
        """Check the scales, and return those of queries [B, H, M], keys [B, Hk, N] and channels [B, Hk, Dv]."""
        queries, keys, channels = super().read(descale, q, v)
        return queries[..., self.query_groups(q[2])[0]], keys[..., self.key_groups(v[2])[0]], channels

    def of_head(self, scales: Scales, head: Head, flush: bool) -> ScalesOfHead:
        """Return the scales of queries and keys, and those of the channels."""
        q, k, v = (
            times(x[head[0], i], np.float32(1), flush) for x, i in zip(scales, (head[1], head[2], head[2]), strict=True)
        )
        return ScalesOfHead(threads=(q, k), values=v)


@dataclass(frozen=True, eq=False, repr=False)
class WarpScales(ThreadScales):
    """Scales of warps, as SageAttention's CUDA kernels compute them, and one of V per channel.

    Groups are the rows of a warp and the keys of a tile. The scale is ``max(amax, 1e-7) / 127``, and ``x * (127 /
    amax)`` is rounded to the nearest integer, halves to even. The shifted K is not rounded to BF16.
    """

    def query_groups(self, m: int) -> tuple[NDArray[np.intp], int]:
        """Return the scale of each query [M], and the number of scales."""
        return np.arange(m) // self.rows, -(-m // self.queries) * (self.queries // self.rows)

    def key_groups(self, n: int) -> tuple[NDArray[np.intp], int]:
        """Return the scale of each key [N], and the number of scales."""
        return np.arange(n) // self.keys, -(-n // self.keys)

    def _shifted(self, k: Floats, mean: Floats) -> Floats:
        return k - mean

    def _integers(self, x: Floats, groups: NDArray[np.intp], count: int) -> tuple[Floats, Floats]:
        amax: Floats = np.fmax(_amax(x, groups, count), _LEAST)
        codes = np.rint(x * _divided(127, amax)[:, :, groups, None]).clip(np.float32(-128), _LARGEST)
        return np.nan_to_num(codes), amax / _LARGEST


@dataclass(frozen=True, eq=False, repr=False)
class BlockScales(SmoothedScales):
    """Scales of blocks of 16 numbers in E4M3, as SageAttention 3 computes them, and addends of the scores.

    Blocks are channels of q and k, and keys of v. With a block's largest magnitude, ``amax / 6`` is rounded to E4M3,
    and ``x * (1 / scale)`` to E2M1. Q is shifted by its mean over `queries` tokens; the products of these means and K,
    rounded to BF16, are the addends.

    Parameters
    ----------
    queries : int or None
        Queries with one mean, the last ones padded with zeros; None: all (``per_block_mean=False``).
    """

    queries: int | None = 128
    names = "four arrays, the scales of q, k and v and the addends of the scores"

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_optional_int("BlockScales", "queries", self.queries, 1)

    def check_tiles(self, caller: str, tiles: Sequence[KeyTile]) -> None:
        """Raise ValueError unless tiles have multiples of 32 keys."""
        if any(keys % 32 for row in tiles for keys in row[1:4]):
            raise ValueError(f"{caller}: key_tiles must have multiples of 32 keys with scales of blocks, got {tiles}")
        if any(row.causal < row.queries for row in tiles):
            raise ValueError(
                f"{caller}: key_tiles must have as many keys as queries with scales of blocks, got {tiles}"
            )

    def _group(self, m: int) -> NDArray[np.intp]:
        """Return the group of each query [M]."""
        return np.arange(m) // (self.queries or max(m, 1))

    def quantize(self, q: Floats, k: Floats, v: Floats, fmt: Format, v_format: Format) -> tuple[Three, Scales]:
        """Return numbers in E2M1, the scales of `shapes`, and the addends [B, H, groups, N].

        Operands are first rounded to BF16.
        """
        with np.errstate(all="ignore"):
            q, k, v = (round_to(x, "bfloat16") for x in (q, k, v))
            k = self._shifted(k, self.mean(k))
            groups, size = self._group(q.shape[2]), self.queries or max(-(-q.shape[2] // 128), 1) * 128
            whole = np.pad(q, ((0, 0), (0, 0), (0, -q.shape[2] % size), (0, 0)))
            sums = whole.reshape(*q.shape[:2], whole.shape[2] // size, size, q.shape[3]).sum(3, np.float64)
            means = sums.astype(np.float32) * (np.float32(1) / np.float32(size))
            shifted = round_to(q - (means if self.queries else round_to(means, "bfloat16"))[:, :, groups], "bfloat16")
            pairs = [_in_blocks(x, fmt) for x in (shifted, k)] + [_in_blocks(np.swapaxes(v, 2, 3), v_format)]
            addends = _products(round_to(means, "bfloat16"), k)
        return (pairs[0][0], pairs[1][0], np.ascontiguousarray(np.swapaxes(pairs[2][0], 2, 3))), (
            *(pair[1] for pair in pairs), addends,
        )  # fmt: skip

    def shapes(self, q: Shape, v: Shape) -> tuple[Shape, ...]:
        """Return (B, H, M, D / 16), (B, Hk, N, D / 16), (B, Hk, Dv, N / 16) and (B, H, groups, N), rounded up."""
        blocks, groups = -(-q[3] // BLOCK), int(self._group(q[2]).max(initial=-1)) + 1
        return (*q[:3], blocks), (*v[:3], blocks), (*v[:2], v[3], -(-v[2] // BLOCK)), (*q[:2], groups, v[2])

    def read(self, descale: tuple[ArrayLike, ...] | None, q: Shape, v: Shape) -> Scales:
        """Check the arrays, and return the codes of the scales and the addends.

        Raises
        ------
        ValueError
            If a shape is wrong, or a scale is not on the grid of E4M3.
        """
        *scales, addends = super().read(descale, q, v)
        codes = [encode(x, SCALE_FORMAT, policy="ocp_sat") for x in scales]
        for name, x, found in zip("qkv", scales, codes, strict=True):
            wrong = ((decode(found, SCALE_FORMAT) != x) | (x < 0)) & ~np.isnan(x)
            if wrong.any():
                raise ValueError(
                    f"attention: descale of {name} must hold numbers >= 0 of {SCALE_FORMAT}, got {x[wrong][0]}"
                )
        return *codes, addends

    def of_head(self, scales: Scales, head: Head, flush: bool) -> ScalesOfHead:
        """Return the scales of blocks; the tensor core applies them, and keeps subnormal ones."""
        b, h, group = head
        q, k, v, addends = scales[0][b, h], scales[1][b, group], scales[2][b, group], scales[3][b, h]
        return ScalesOfHead(blocks=BlockOperands(q, k, v, addends, self._group(len(q))))


def _in_blocks(x: Floats, fmt: Format) -> tuple[Floats, Floats]:
    """Return x on the grid of a format, and the scales of its blocks along the last axis."""
    whole = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, -x.shape[3] % BLOCK)))
    blocks = np.abs(whole).reshape(*whole.shape[:3], whole.shape[3] // BLOCK, BLOCK)
    amax = np.fmax.reduce(blocks, -1, initial=np.float32(0))
    scales = round_to(times(amax, np.float32(1 / fmt.max)), SCALE_FORMAT, policy="ocp_sat")
    inverse = np.where(scales == 0, np.float32(0), np.float32(1) / scales).repeat(BLOCK, -1)
    values = times(whole, inverse)[..., : x.shape[3]]
    return round_to(np.where(np.isnan(values), np.float32(fmt.max), values), fmt, policy="ocp_sat"), scales


def _amax(x: Floats, groups: NDArray[np.intp], count: int) -> Floats:
    """Return the largest magnitude of the rows [B, H, M, D] of each group without NaN; 0 for no rows."""
    found = np.zeros((count, *x.shape[:2]), np.float32)
    np.fmax.at(found, groups, np.moveaxis(np.fmax.reduce(np.abs(x), -1, initial=np.float32(0)), 2, 0))
    return np.moveaxis(found, 0, 2)


def _divided(a: float, b: Floats) -> Floats:
    """Return a / b by div.approx.ftz.f32, correctly rounded; 0 for b above 2^126 (PTX ISA)."""
    return np.where(np.abs(b) > np.float32(2.0**126), np.float32(0), times(np.float32(a) / flushed(b), np.float32(1)))
