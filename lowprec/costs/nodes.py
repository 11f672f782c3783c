"""Number of nodes that a token is sent to, with and without node-limited routing, and the network traffic it causes.

Tokens for several experts of one node cross the slow network once and are forwarded inside the node, so a token costs
the network M rows for M nodes instead of one for each expert (arXiv 2505.09343, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._checks import check_int, check_positive
from lowprec._values import normalize_fields

from .hardware import Hardware, find_hardware
from .models import ModelShape, find_model
from .traffic import Bits, row_bytes

#: Larger than in any model; time and memory of the counts below grow with it.
_MOST_EXPERTS, _MOST_CHOSEN = 1 << 16, 1 << 8


@dataclass(frozen=True)
class NodesPerToken:
    """Distribution of the number of nodes per token.

    Attributes
    ----------
    fractions : tuple of float
        Shares of the tokens that are sent to 0, 1, 2 ... nodes.
    """

    fractions: tuple[float, ...]

    def __post_init__(self) -> None:
        normalize_fields(self)

    @property
    def mean(self) -> float:
        """Mean number of nodes per token."""
        return float(sum(count * share for count, share in enumerate(self.fractions)))

    @property
    def max(self) -> int:
        """Largest number of nodes of a token."""
        return max(count for count, share in enumerate(self.fractions) if share > 0)


def uniform_nodes(experts: int, top_k: int, nodes: int, kept: int | None = None) -> NodesPerToken:
    """Return the distribution of the number of nodes with a token's experts, if all choices are equally likely.

    Parameters
    ----------
    experts, top_k : int
        Number of routed experts and of those that a token uses.
    nodes : int
        Number of nodes among which the experts are divided evenly.
    kept : int, optional
        Number of nodes that a token's experts may come from, also chosen uniformly; all by default.

    Returns
    -------
    NodesPerToken
        Distribution, exact by inclusion and exclusion up to the last conversion to float.

    Raises
    ------
    ValueError
        If the numbers do not fit together.

    Examples
    --------
    >>> round(uniform_nodes(256, 8, 8).mean, 4), round(uniform_nodes(256, 8, 8, kept=4).mean, 4)
    (5.2947, 3.629)
    """
    experts = check_int("uniform_nodes", "experts", experts, 1, _MOST_EXPERTS)
    top_k = check_int("uniform_nodes", "top_k", top_k, 1, _MOST_CHOSEN)
    nodes = check_int("uniform_nodes", "nodes", nodes, 1, _MOST_EXPERTS)
    kept = check_int("uniform_nodes", "kept", nodes if kept is None else kept, 1)
    if experts % nodes or kept > nodes or top_k > kept * (experts // nodes):
        raise ValueError(
            f"uniform_nodes: nodes must divide experts and the kept ones hold top_k of them, got {top_k} of {experts} "
            f"experts on {kept} of {nodes} nodes"
        )
    each = experts // nodes
    ways = comb(kept * each, top_k)
    shares = []
    for m in range(min(kept, top_k) + 1):
        hits = sum((-1) ** (m - j) * comb(m, j) * comb(j * each, top_k) for j in range(m + 1))
        shares.append(float(Fraction(comb(kept, m) * hits, ways)))
    return NodesPerToken((*shares, *[0.0] * (kept + 1 - len(shares))))


def measured_nodes(chosen: npt.ArrayLike, experts: int, nodes: int) -> NodesPerToken:
    """Return the distribution of the number of nodes per token, from the decisions of a router.

    Parameters
    ----------
    chosen : integer array [tokens, top_k]
        Experts of each token, as ``lowprec.moe.model.routing.route(...).chosen``; expert e lives on node
        e // (experts / nodes). Negative numbers are empty slots.
    experts, nodes : int
        Number of routed experts, and of nodes among which they are divided evenly in order.

    Returns
    -------
    NodesPerToken
        Shares of the tokens.

    Raises
    ------
    ValueError
        If `chosen` is empty, or an expert does not exist.

    Examples
    --------
    >>> measured_nodes([[0, 1], [0, 7], [6, 7]], experts=8, nodes=2).fractions
    (0.0, 0.6666666666666666, 0.3333333333333333)
    """
    experts = check_int("measured_nodes", "experts", experts, 1, _MOST_EXPERTS)
    nodes = check_int("measured_nodes", "nodes", nodes, 1, _MOST_EXPERTS)
    array = np.asarray(chosen)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"measured_nodes: chosen must be integers of shape [tokens, top_k], not empty, got {array.dtype} "
            f"{array.shape}"
        )
    if array.max() >= experts:
        raise ValueError(f"measured_nodes: chosen must be below experts={experts}, got {array.max()}")
    if experts % nodes:
        raise ValueError(f"measured_nodes: nodes must divide experts={experts}, got {nodes}")
    on_node = np.where(array < 0, -1, array.astype(np.int64) // (experts // nodes))
    is_new = np.diff(np.sort(on_node, axis=1), axis=1, prepend=-1) > 0  # empty slots sort first and do not count
    counts = np.bincount(is_new.sum(axis=1), minlength=nodes + 1)
    return NodesPerToken(tuple((counts / len(array)).tolist()))


@dataclass(frozen=True)
class NodeTraffic:
    """Traffic of one GPU's tokens on the two networks in one direction.

    Attributes
    ----------
    scale_out_bytes, scale_up_bytes : float
        Number of bytes sent between nodes, and of bytes forwarded within them.
    scale_out_s, scale_up_s : float
        Duration of each in seconds; the networks work in parallel.
    seconds : float
        The longer of the two times.
    """

    scale_out_bytes: float
    scale_up_bytes: float
    scale_out_s: float
    scale_up_s: float
    seconds: float


def node_traffic(
    model: str | ModelShape | Mapping[str, Any] = "deepseek_v3",
    machine: str | Hardware | Mapping[str, Any] = "h800_ib400",
    codec: Bits = "fp8_1x128",
    *,
    nodes_per_token: float,
    tokens: int = 4096,
    use_effective_bandwidth: bool = True,
) -> NodeTraffic:
    """Return the traffic in one direction if each token crosses the network once for each node.

    Parameters
    ----------
    model : str, ModelShape or mapping
        Shape of a model with experts.
    machine : str, Hardware or mapping
        GPU and its links.
    codec : Codec, str or float
        Codec of the sent tokens, its name, or bits per value.
    nodes_per_token : float
        Number of nodes to which a token is sent, M in arXiv 2505.09343, section 4.3: the routing's limit, or a mean
        such as `NodesPerToken.mean`. As in that paper, the token's own node counts too.
    tokens : int
        Number of tokens of one GPU.
    use_effective_bandwidth : bool
        Whether to compute with the bandwidths that are reached in practice.

    Returns
    -------
    NodeTraffic
        Traffic of `tokens` tokens.

    Raises
    ------
    ValueError
        If a token would be sent to more nodes than it has experts, or a number is out of range.

    Examples
    --------
    >>> everywhere, limited = (node_traffic(nodes_per_token=m).scale_out_bytes for m in (8, 4))
    >>> everywhere / limited
    2.0
    """
    shape, gpu = find_model(model), find_hardware(machine)
    nodes_per_token = check_positive("node_traffic", "nodes_per_token", nodes_per_token, zero=True)
    tokens = check_int("node_traffic", "tokens", tokens, 1)
    if not shape.experts:
        raise ValueError(f"node_traffic: model must have experts, got {shape.name!r} without")
    if nodes_per_token > shape.top_k:
        raise ValueError(
            f"node_traffic: nodes_per_token must be at most {shape.name}'s top_k={shape.top_k}, got {nodes_per_token:g}"
        )
    row = row_bytes(codec, shape.dim)
    out, up = tokens * nodes_per_token * row, tokens * shape.top_k * row
    slow = gpu.effective_bandwidth if use_effective_bandwidth else gpu.bandwidth
    fast = gpu.effective_scale_up_bandwidth if use_effective_bandwidth else gpu.scale_up_bandwidth
    assert slow is not None
    assert fast is not None
    return NodeTraffic(out, up, out / slow, up / fast, max(out / slow, up / fast))
