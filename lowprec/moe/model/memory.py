"""Recompute policies, as data: which activations are saved for the backward pass and which are recomputed.

Recomputation gives the same bits: a policy changes memory and time, never a result. (The recipe has all that changes
results, such as the format of a saved activation.) DeepSeek-V3 recomputes every RMSNorm, the up-projections of latent
attention and SwiGLU (arXiv 2412.19437, sections 3.2.3 and 3.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lowprec.registry import Registry


@dataclass(frozen=True)
class RecomputePolicy:
    """Activations that the backward pass recomputes.

    Attributes
    ----------
    name : str
        Name in the catalogue.
    norms : bool
        Whether to recompute the outputs of every RMSNorm in the blocks, and their quantized copies that are inputs of
        linear layers. The first inputs of the head and of the prediction module are saved, because their backward pass
        follows immediately.
    up_projections : bool
        Whether to recompute queries, keys and values from the latents.
    probabilities : bool
        Whether to recompute the softmax of attention from queries and keys, as in fused attention kernels.
    swiglu : bool
        Whether to recompute the input of w2 from the outputs of w1 and w3.

    Examples
    --------
    >>> str(recompute_policies["dsv3"])
    'norms, up_projections, probabilities, swiglu again'
    """

    name: str
    norms: bool = False
    up_projections: bool = False
    probabilities: bool = False
    swiglu: bool = False

    def __str__(self) -> str:
        again = [field.name for field in fields(self) if getattr(self, field.name) is True]
        return f"{', '.join(again)} again" if again else "everything saved"


#: Policy that recomputes nothing.
SAVE_ALL = RecomputePolicy("none")

recompute_policies: Registry[RecomputePolicy] = Registry("recompute policy", RecomputePolicy)
"""Policies by name: each measure alone, and all that the reports use together."""
for _policy in (
    SAVE_ALL,
    RecomputePolicy("norms", norms=True),
    RecomputePolicy("up_projections", up_projections=True),
    RecomputePolicy("probabilities", probabilities=True),
    RecomputePolicy("swiglu", swiglu=True),
    RecomputePolicy("dsv3", norms=True, up_projections=True, probabilities=True, swiglu=True),
):
    recompute_policies.register(_policy.name, _policy)

#: Kinds of saved tensors, by the last field names of their path; the first match applies.
_KINDS = (
    ("w1.x", "inputs of w1, w3"), ("w3.x", "inputs of w1, w3"), ("w2.x", "inputs of w2"),
    ("ffn.a", "inputs of SwiGLU"), ("ffn.b", "inputs of SwiGLU"), ("experts.a", "inputs of SwiGLU"),
    ("experts.b", "inputs of SwiGLU"), ("shared.a", "inputs of SwiGLU"), ("shared.b", "inputs of SwiGLU"),
    ("wo.x", "input of wo"), (".x", "inputs of other linear layers"),
    ("q", "queries, keys, values"), ("k", "queries, keys, values"), ("v", "queries, keys, values"),
    ("k_rope", "queries, keys, values"), ("probs", "probabilities"), ("lse", "log-sum-exp"),
    ("output", "output of attention"), ("returned", "outputs of experts"),
)  # fmt: skip


def saved_activation_bytes(saved: Any) -> dict[str, int]:
    """Return the number of bytes that a forward pass saves, by kind; a tensor that is saved twice counts once.

    Codes and scales count in their storage formats. A float32 array of bfloat16 values counts two bytes per value, its
    storage size. Weights and tables of angles do not count: they are not activations.

    Parameters
    ----------
    saved : nested tuples, lists and dicts
        Data that the model's forward pass returned for its backward pass.

    Returns
    -------
    dict of str to int
        Number of bytes by kind, the largest first.
    """
    seen: set[int] = set()
    found: dict[str, int] = {}
    for path, leaf in _leaves(saved, ()):
        key = leaf.__array_interface__["data"][0] if isinstance(leaf, np.ndarray) else id(leaf)
        if key in seen or (isinstance(leaf, np.ndarray) and leaf.size == 0):
            continue
        seen.add(key)
        kind = _kind(path)
        found[kind] = found.get(kind, 0) + _stored_bytes(leaf)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _kind(path: tuple[str, ...]) -> str:
    if path[-2:-1] and path[-2].endswith("norm"):
        return "inputs of norms, the residual stream among them"
    name = ".".join(path)
    return next((kind for end, kind in _KINDS if f".{name}".endswith(f".{end.lstrip('.')}")), "routing")


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every array or other object with a size in bytes, preceded by the names of the fields on its path."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif hasattr(value, "kept"):  # a linear layer's input: the source of Wgrad's operand
        yield path, value.kept
    elif hasattr(value, "nbytes"):
        yield path, value
    elif hasattr(value, "_fields"):
        for name in value._fields:
            if name not in ("w", "angles"):
                yield from _leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part, path)


def _stored_bytes(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray) and leaf.dtype == np.float32:
        bf16 = not (np.ascontiguousarray(leaf).view(np.uint32) & np.uint32(0xFFFF)).any()
        return leaf.size * (2 if bf16 else 4)
    return int(leaf.nbytes)
