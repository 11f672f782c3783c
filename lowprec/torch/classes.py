"""Classes of linear layers and their converted counterparts, for torch and for two kinds of layer of transformers.

This module does not import transformers. It recognizes transformers' Conv1D if the caller has imported it. Classes of
mixture-of-experts modules differ between models: they are recognized by weights with three axes, first the experts.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from .linear import Converted, Linear, linear_forward


class Conv1D(Converted):
    """transformers' Conv1D: a linear layer that stores its weight transposed, [K, N]."""

    weight: Tensor
    bias: Tensor

    def matrices(self) -> list[Tensor]:
        """Return the weight, transposed to [N, K]."""
        return [self.weight.t()]

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + bias."""
        return linear_forward(x, self.weight.t(), self.bias, self.keys[0], self.slot, 0, self.training)


class Experts(Converted):
    """transformers' mixture of experts: two products per expert, the first with fused gate and up projections."""

    has_gate: bool
    has_bias: bool
    is_transposed: bool

    def parts_of(self) -> list[str]:
        """Return the names of the products, expert by expert."""
        up = "up_proj" if not self.has_gate else "gate_proj"  # the fused product has the gate's name
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
        """Return the weighted sum of each token's expert outputs."""
        shape, width = hidden_states.shape, top_k_index.shape[-1]
        tokens = hidden_states.reshape(-1, shape[-1])
        ids, order = torch.sort(top_k_index.reshape(-1), stable=True)
        counts = torch.bincount(ids, minlength=len(_first(self))).tolist()
        matrices, biases = self.matrices(), self._biases()
        outputs = [
            # an index beyond the local experts: the expert is on another device
            self._expert(e, rows, matrices, biases) if e < len(matrices) // 2 else torch.zeros_like(rows)
            for e, rows in enumerate(tokens[order // width].split(counts))
        ]
        weighted = torch.cat(outputs) * top_k_weights.reshape(-1)[order, None]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return weighted[back].reshape(len(tokens), width, -1).sum(1).to(hidden_states.dtype).reshape(shape)

    def _expert(self, e: int, rows: Tensor, matrices: list[Tensor], biases: list[Any]) -> Tensor:
        up, down = 2 * e, 2 * e + 1
        y = linear_forward(rows, matrices[up], biases[up], self.keys[up], self.slot, up, self.training)
        y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
        return linear_forward(y, matrices[down], biases[down], self.keys[down], self.slot, down, self.training)


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
    """Return the converted class for a class that is recognized by its module or its weights."""
    if kind not in _MADE:
        _MADE[kind] = type(base.__name__, (base, kind), {"__doc__": base.__doc__, "was": kind})
    return _MADE[kind]


def converted_class(module: nn.Module) -> type[Converted] | None:
    """Return the converted class of a module, which may be converted already, or None if it is not linear."""
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
    """Return (input features, output features) of each product of a linear layer, by name."""
    kind: Any = converted_class(module)
    parts = zip(kind.parts_of(module), kind.matrices(module), strict=True)
    return {f"{name}{part}": (w.shape[1], w.shape[0]) for part, w in parts}


def original_class(module: Converted) -> type[nn.Module]:
    """Return the original class of a converted module."""
    kind: type[nn.Module] = getattr(type(module), "was", nn.Linear)
    return kind
