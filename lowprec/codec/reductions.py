"""Combine of experts' outputs as DeepEP's kernels do, with a codec on every message.

https://github.com/deepseek-ai/DeepEP: ``internode_ll.cu`` has the low-latency kernel, ``internode.cu`` the training
kernel. Sums are in float32, one rounding per addition, in the order of slots or nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._arrays import as_float32

from .._fpenv import quiet_nan, with_default_fpenv
from ..cast.casts import round_to
from ..order.exact import fma
from . import Codec, codecs

Floats = npt.NDArray[np.float32]


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
        Bias, to which the nodes' results are added in float32.
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
