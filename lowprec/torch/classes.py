"""Classes of linear layers, each with what it becomes: torch's own, and two kinds that transformers has.

transformers is not imported here. Its Conv1D is known once somebody imported it; its mixtures of experts, which have a
class in every model, are known by their weights: three axes, experts first.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from .linear import Converted, Linear, apply


class Conv1D(Converted):
    """transformers' Conv1D: a linear layer whose weight [K, N] lies transposed."""

    weight: Tensor
    bias: Tensor

    def matrices(self) -> list[Tensor]:
        """Return the weight, turned."""
        return [self.weight.t()]

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + bias."""
        return apply(x, self.weight.t(), self.bias, self.keys[0], self.slot, 0, self.training)


class Experts(Converted):
    """transformers' mixture of experts: two products an expert, gate and up projections fused in the first."""

    has_gate: bool
    has_bias: bool
    is_transposed: bool

    def parts_of(self) -> list[str]:
        """Return the names of the products: both of the first expert, both of the next ..."""
        up = "up_proj" if not self.has_gate else "gate_proj"  # fused, they are one product: the gate's
        return [f".{e}.{name}" for e in range(len(_first(self))) for name in (up, "down_proj")]

    def matrices(self) -> list[Tensor]:
        """Return the weights."""
        pairs = zip(_first(self), self.down_proj, strict=True)
        return [w.t() if self.is_transposed else w for pair in pairs for w in pair]

    def _biases(self) -> list[Tensor | None]:
        if not self.has_bias:
            return [None] * len(self.keys)
        first = self.gate_up_proj_bias if self.has_gate else self.up_proj_bias
        return [b for pair in zip(first, self.down_proj_bias, strict=True) for b in pair]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return each token's weighted sum of its experts' outputs."""
        shape, width = hidden_states.shape, top_k_index.shape[-1]
        tokens = hidden_states.reshape(-1, shape[-1])
        ids, order = torch.sort(top_k_index.reshape(-1), stable=True)
        counts = torch.bincount(ids, minlength=len(_first(self))).tolist()
        matrices, biases = self.matrices(), self._biases()
        outputs = [
            # an index beyond the experts there are: those tokens belong to experts that are elsewhere
            self._expert(e, rows, matrices, biases) if e < len(matrices) // 2 else torch.zeros_like(rows)
            for e, rows in enumerate(tokens[order // width].split(counts))
        ]
        weighted = torch.cat(outputs) * top_k_weights.reshape(-1)[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return weighted[back].reshape(len(tokens), width, -1).sum(1).to(hidden_states.dtype).reshape(shape)

    def _expert(self, e: int, rows: Tensor, matrices: list[Tensor], biases: list[Any]) -> Tensor:
        up, down = 2 * e, 2 * e + 1
        y = apply(rows, matrices[up], biases[up], self.keys[up], self.slot, up, self.training)
        y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
        return apply(y, matrices[down], biases[down], self.keys[down], self.slot, down, self.training)


def _first(module: Any) -> Tensor:
    weight: Tensor = module.gate_up_proj if module.has_gate else module.up_proj
    return weight


def _is_experts(module: nn.Module) -> bool:
    weights = [getattr(module, name, None) for name in ("gate_up_proj", "up_proj", "down_proj")]
    stacked = [isinstance(w, nn.Parameter) and w.dim() == 3 for w in weights]
    return (
        stacked[2]
        and any(stacked[:2])
        and all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed"))
    )


_MADE: dict[Any, type[Converted]] = {}


def _converted(kind: Any, base: type[Converted]) -> type[Converted]:
    """Return the class of converted modules of a class that is known by its place or its weights alone."""
    if kind not in _MADE:
        _MADE[kind] = type(base.__name__, (base, kind), {"__doc__": base.__doc__, "was": kind})
    return _MADE[kind]


def becomes(module: nn.Module) -> type[Converted] | None:
    """Return the class that a module becomes; its own if it was converted, None if it is no linear layer."""
    kind = type(module)
    if isinstance(module, Converted):
        return kind
    if kind is nn.Linear:
        return Linear
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is not None and kind is transformers.Conv1D:
        return _converted(kind, Conv1D)
    return _converted(kind, Experts) if _is_experts(module) else None


def shapes_of(name: str, module: nn.Module) -> dict[str, tuple[int, int]]:
    """Return input and output features of a linear layer's products, by the names of the products."""
    kind: Any = becomes(module)
    parts = zip(kind.parts_of(module), kind.matrices(module), strict=True)
    return {f"{name}{part}": (w.shape[1], w.shape[0]) for part, w in parts}


def was(module: Converted) -> type[nn.Module]:
    """Return the class that a converted module had."""
    kind: type[nn.Module] = getattr(type(module), "was", nn.Linear)
    return kind
