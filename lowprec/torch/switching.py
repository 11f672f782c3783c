"""Running one model under several recipes, and comparing its predictions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lowprec.recipe import LayerPrecision

from .convert import SlowPath, restore
from .emulation.forward import KEY, use_stack
from .linear import Converted
from .sdpa import use_attention

Floats = NDArray[np.float64]
#: Precisions of a model's layers, by module name; see `lowprec.torch.ops`.
Keys = dict[str, tuple[str, ...]]


@contextmanager
def preserve_model(model: nn.Module) -> Iterator[None]:
    """Context manager that disables gradients, and restores the model's classes and mode on exit."""
    modules = dict(model.named_modules())
    kinds = {name: type(module) for name, module in modules.items()}
    before = {name: module.__dict__.copy() for name, module in modules.items() if isinstance(module, Converted)}
    recipe, training = model.__dict__.get("_lowprec"), model.training
    was_slow, stacked = "_lowprec_slow" in model.__dict__, model.__dict__.get(KEY)
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        restore(model)
        for name, module in modules.items():
            module.__class__ = kinds[name]
            module.__dict__.update(before.get(name, {}))
        if recipe is not None:
            model._lowprec = recipe
            use_attention(model, recipe[0] and recipe[0].attention)
        if stacked is not None:
            use_stack(model, stacked.mode.stack, strict=stacked.mode.strict)
        if was_slow:
            model.__dict__["_lowprec_slow"] = SlowPath()
        model.train(training)


def get_precisions(model: nn.Module) -> Keys:
    """Return the precisions of a converted model's layers."""
    return {name: m.keys for name, m in model.named_modules() if isinstance(m, Converted)}


def set_precisions(model: nn.Module, keys: Keys) -> None:
    """Set the precisions of a converted model's layers, with new state."""
    for name, module in model.named_modules():
        if isinstance(module, Converted):
            module.set_precision([LayerPrecision.from_key(key) for key in keys[name]], 0)


def log_probabilities(output: Any) -> Tensor:
    """Return log p of every next token, in float64 [tokens, vocabulary]; the last position has no target."""
    logits = getattr(output, "logits", output)[:, :-1]
    return torch.log_softmax(logits.reshape(-1, logits.shape[-1]).double(), 1)


def divergence(p: Tensor, q: Tensor) -> Floats:
    """Return KL(p || q) of each token, given log-probabilities; -inf in p, as of masked logits, adds 0."""
    found: Floats = torch.where(p.exp() > 0, p.exp() * (p - q), 0).sum(1).numpy()
    return found
