"""Sums of decoded messages: combine of experts' outputs, and all-reduce, with a codec on every hop.

The error of a sum depends on where its values are rounded and how often. With q the signal to noise ratio of the codec
alone, in power, and shards of independent values, a sum over R ranks has the ratio q / n(R):

========== ============================================================== ==================
algorithm  rounded values                                                 n(R)
========== ============================================================== ==================
one_shot   each rank's shard, once; float32 sum at the receiver           1
two_step   as one_shot, on parts; then the sums, to send them to all      2
tree       both operands of each addition, R a power of two               log2 R
ring       the running sum, at each of R - 1 hops                         (R - 1) / 2
two_level  sums of nodes of 4 ranks, in a ring of nodes                   (R / 4 - 1) / 2
========== ============================================================== ==================

For ring and tree, n(R) excludes the rounding of the result before it is sent to all ranks, which adds 1. The formulas
hold for noise far below the signal: a ring of 32 ranks in NVFP4, with 8.5 dB by the formula, is 1 dB lower. The two
combines are those of DeepEP,
https://github.com/deepseek-ai/DeepEP: ``internode_ll.cu`` for the low-latency one, ``internode.cu`` for the other. Sums
are in float32, one rounding each, in the order of slots or ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._arrays import as_float32

from .._fpenv import quiet_nan, with_default_fpenv
from .._values import Value
from ..cast.casts import round_to
from ..registry import Registry
from . import Codec, codecs

Floats = npt.NDArray[np.float32]
#: Ranks per node.
NODE = 4


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Floats:
    """Return ``a * b + c`` in float32 with one rounding, as a GPU's fused multiply-add.

    Parameters
    ----------
    a, b, c : float32 arrays that broadcast
        Operands.

    Returns
    -------
    float32 array
        Result, rounded to nearest even; the product is exact in float64, and the sum is rounded there to odd, so the
        second rounding never sees a false tie.

    Examples
    --------
    >>> x = np.float32(1 + 2**-12)
    >>> fma(x, x, np.float32(-1)) == 2**-11 + 2**-24, x * x - np.float32(1) == 2**-11
    (np.True_, np.True_)
    """
    wide = [np.asarray(value, dtype=np.float32).astype(np.float64) for value in (a, b, c)]
    with np.errstate(invalid="ignore", over="ignore"):
        product = wide[0] * wide[1]
        total = np.asarray(product + wide[2])
        part = total - product
        error = (product - (total - part)) + (wide[2] - part)  # rounding error of the sum, exactly (Knuth's two-sum)
        even = (total.view(np.int64) & 1) == 0
        inexact = np.isfinite(total) & (error != 0) & even
        total = np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
        result: Floats = total.astype(np.float32)
    return result


@with_default_fpenv
def combine_low_latency(
    outputs: npt.ArrayLike,
    weights: npt.ArrayLike,
    codec: str | Codec = "bf16",
    *,
    topk_idx: npt.ArrayLike | None = None,
    out_format: str = "bfloat16",
) -> Floats:
    """Combine experts' outputs as DeepEP's low-latency kernel does.

    Each output is encoded once, before it is weighted; the token's own rank decodes and adds ``weight * value`` in
    float32, one fused multiply-add for each slot in order, and rounds the sum once.

    Parameters
    ----------
    outputs : float array [tokens, slots, columns]
        Outputs of the experts; rounded to bfloat16 first, as their GEMM stores them.
    weights : float array [tokens, slots]
        Gates, converted to float32.
    codec : str or Codec
        Codec of the messages.
    topk_idx : integer array [tokens, slots], optional
        Chosen experts; slots with a negative number are skipped.
    out_format : str
        Format of the result: "bfloat16", or "float32" for the unrounded sum.

    Returns
    -------
    float32 array [tokens, columns]
        Values of the format `out_format`.

    Raises
    ------
    ValueError
        If shapes do not fit together.

    Examples
    --------
    >>> outputs = np.array([[[1.0, 2.0], [3.0, 5.0]]], np.float32)
    >>> combine_low_latency(outputs, [[0.5, 0.25]])
    array([[1.25, 2.25]], dtype=float32)
    """
    x = _slots("combine_low_latency", outputs)
    gates = _matching("combine_low_latency", "weights", weights, x).astype(np.float32)
    used = _used("combine_low_latency", topk_idx, x)
    arrived = codecs.get(codec).round_trip(x.reshape(-1, x.shape[2])).reshape(x.shape)
    total = np.zeros((x.shape[0], x.shape[2]), np.float32)
    for slot in range(x.shape[1]):
        at = used[:, slot]
        total[at] = fma(arrived[at, slot], gates[at, slot, None], total[at])
    return round_to(quiet_nan(total), out_format)


@with_default_fpenv
def combine_normal(
    outputs: npt.ArrayLike,
    nodes: npt.ArrayLike,
    codec: str | Codec = "bf16",
    *,
    bias: npt.ArrayLike | None = None,
    out_format: str = "bfloat16",
) -> Floats:
    """Combine experts' outputs between nodes as DeepEP's training kernels do (its "normal" kernels).

    On each node the forwarding GPU adds its experts' outputs in float32, rounds to bfloat16 and sends the result; the
    token's own rank adds the nodes in float32 and rounds again. Experts have applied the gates before.

    Parameters
    ----------
    outputs : float array [tokens, slots, columns]
        Weighted outputs; rounded to bfloat16 first, as the experts store them.
    nodes : integer array [tokens, slots]
        Node of the expert of each slot; slots with a negative number are skipped.
    codec : str or Codec
        Codec of messages between nodes: "bf16" is DeepEP's and adds no rounding.
    bias : float array [tokens, columns], optional
        Bias, added in float32 before the nodes.
    out_format : str
        Format of the result.

    Returns
    -------
    float32 array [tokens, columns]
        Values of the format `out_format`.

    Raises
    ------
    ValueError
        If shapes do not fit together.
    """
    x = _slots("combine_normal", outputs)
    where = _matching("combine_normal", "nodes", nodes, x)
    if where.dtype.kind not in "iu":
        raise ValueError(f"combine_normal: nodes must be integers, got {where.dtype}")
    total = np.zeros((x.shape[0], x.shape[2]), np.float32)
    if bias is not None:
        added = np.asarray(bias, np.float32)
        if added.shape != total.shape:
            raise ValueError(f"combine_normal: bias must have shape {total.shape}, got {added.shape}")
        total += added
    wire = codecs.get(codec)
    for node in np.unique(where[where >= 0]):
        partial = np.zeros_like(total)
        for slot in range(x.shape[1]):
            at = where[:, slot] == node
            partial[at] += x[at, slot]
        at = (where == node).any(axis=1)
        total[at] += wire.round_trip(round_to(partial[at], "bfloat16"))
    return round_to(quiet_nan(total), out_format)


def _no_estimate(ranks: int) -> float:
    return math.nan


@dataclass(frozen=True, eq=False, repr=False)
class AllReduce(Value):
    """An algorithm that adds arrays of several ranks.

    Attributes
    ----------
    name : str
        Name in the catalogue.
    reduce : callable
        ``add(shards, round_trip) -> sum``: shards [ranks, rows, columns].
    noise_gain : callable
        n(ranks): factor by which the noise, relative to the signal, exceeds the codec's for independent shards; NaN if
        unknown. It does not affect results.
    source : str
        Publication of the algorithm.
    """

    name: str = field(compare=False)
    reduce: Callable[[Floats, Callable[[Any], Floats]], Floats]
    noise_gain: Callable[[int], float] = field(default=_no_estimate, compare=False)
    source: str = field(default="user-defined", compare=False)

    def snr_loss(self, ranks: int) -> float:
        """Return by how many dB the signal to noise ratio of the sum over `ranks` ranks is below the codec's."""
        noise = self.noise_gain(ranks)
        return 10 * math.log10(noise) if noise else -math.inf


def _one_shot(shards: Floats, send: Callable[[Any], Floats]) -> Floats:
    return _sum([send(shard) for shard in shards])


def _two_step(shards: Floats, send: Callable[[Any], Floats]) -> Floats:
    return send(_one_shot(shards, send))


def _tree(shards: Floats, send: Callable[[Any], Floats]) -> Floats:
    level = list(shards)
    while len(level) > 1:
        pairs = [send(a) + send(b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    total: Floats = level[0].copy()
    return total


def _ring(shards: Floats, send: Callable[[Any], Floats]) -> Floats:
    """Reduce part c of the rows, starting after rank c and ending on it: each hop sends the partial sum."""
    ranks = len(shards)
    parts = []
    for c, rows in enumerate(np.array_split(np.arange(shards.shape[1]), ranks)):
        order = [(c + 1 + hop) % ranks for hop in range(ranks)]
        total = shards[order[0], rows]
        for rank in order[1:]:
            total = send(total) + shards[rank, rows]
        parts.append(total)
    return np.concatenate(parts)


def _two_level(shards: Floats, send: Callable[[Any], Floats]) -> Floats:
    """Add within nodes in float32, where links are short and wide, and between them through the codec."""
    return _ring(np.stack([_sum([*shards[at : at + NODE]]) for at in range(0, len(shards), NODE)]), send)


def _sum(parts: Sequence[Floats]) -> Floats:
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def _tree_noise(ranks: int) -> float:
    """Return the power of all rounded values, summed over the additions, over the power of the sum."""
    powers, rounded = [1] * ranks, 0
    while len(powers) > 1:
        pairs = [a + b for a, b in zip(powers[::2], powers[1::2], strict=False)]
        rounded += sum(pairs)
        powers = pairs + powers[2 * len(pairs) :]
    return rounded / ranks


def _ring_noise(ranks: int) -> float:
    return (ranks - 1) / 2


def _two_level_noise(ranks: int) -> float:
    return _ring_noise(-(-ranks // NODE))


def _one_shot_noise(ranks: int) -> float:
    return 1.0


def _two_step_noise(ranks: int) -> float:
    return 2.0


all_reduces: Registry[AllReduce] = Registry("all-reduce", AllReduce)
"""Algorithms by name."""

for _algorithm in (
    AllReduce("ring", _ring, _ring_noise, "reduce-scatter of a ring, as NCCL's"),
    AllReduce("tree", _tree, _tree_noise, "pairwise halving; both partners of a pair round, so that they agree"),
    AllReduce("two_level", _two_level, _two_level_noise,
              "float32 within nodes of 4, a ring between them: hierarchical, as NCCL's trees and ZeRO++'s qgZ"),
    AllReduce("one_shot", _one_shot, _one_shot_noise, "all-to-all, then one sum: ZeRO++ (arXiv 2306.10209)"),
    AllReduce("two_step", _two_step, _two_step_noise,
              "all-to-all, sum, all-gather: FlashCommunication (arXiv 2412.04964), qgZ of ZeRO++"),
):  # fmt: skip
    all_reduces.register(_algorithm.name, _algorithm)
all_reduces.seal()


def all_reduce(shards: npt.ArrayLike, codec: str | Codec = "bf16", algorithm: str | AllReduce = "ring") -> Floats:
    """Add arrays of several ranks, with every message passing through a codec.

    Parameters
    ----------
    shards : float array [ranks, ..., columns]
        One array for each rank, converted to float32.
    codec : str or Codec
        Codec of the messages.
    algorithm : {"ring", "tree", "two_level", "one_shot", "two_step"} or AllReduce
        Algorithm, which defines the messages.

    Returns
    -------
    float32 array [..., columns]
        Sum that the ranks receive.

    Raises
    ------
    ValueError
        If `shards` lacks an axis of ranks, or a name is unknown.

    Examples
    --------
    >>> shards = np.ones((4, 2, 128), np.float32)
    >>> all_reduce(shards, "fp8_1x128", "ring")[0, :3]
    array([4., 4., 4.], dtype=float32)
    >>> round(all_reduces["ring"].snr_loss(8), 2), round(all_reduces["tree"].snr_loss(8), 2)
    (5.44, 4.77)
    """
    chosen, wire = all_reduces.get(algorithm), codecs.get(codec)
    x = as_float32("all_reduce", shards)
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(f"all_reduce: shards must have shape [ranks >= 1, ..., columns], got {x.shape}")
    rows = int(np.prod(x.shape[1:-1], dtype=np.int64))
    total = np.array(chosen.reduce(x.reshape(len(x), rows, x.shape[-1]), wire.round_trip))
    return quiet_nan(total).reshape(x.shape[1:])


def _slots(name: str, outputs: npt.ArrayLike) -> Floats:
    x = as_float32(name, outputs)
    if x.ndim != 3:
        raise ValueError(f"{name}: outputs must have shape [tokens, slots, columns], got {x.shape}")
    stored: Floats = round_to(x, "bfloat16")
    return stored


def _matching(name: str, what: str, given: npt.ArrayLike, x: Floats) -> npt.NDArray[Any]:
    array = np.asarray(given)
    if array.shape != x.shape[:2]:
        raise ValueError(f"{name}: {what} must have shape [tokens, slots] = {x.shape[:2]}, got {array.shape}")
    return array


def _used(name: str, chosen: npt.ArrayLike | None, x: Floats) -> npt.NDArray[np.bool_]:
    if chosen is None:
        return np.ones(x.shape[:2], bool)
    return np.asarray(_matching(name, "topk_idx", chosen, x) >= 0)
