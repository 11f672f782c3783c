"""Multi-token prediction: a module that predicts the byte after the next one, for a denser training signal.

Its inputs are the main model's last hidden state h and the embedding of the next byte; it uses the main model's
embedding and head (arXiv 2412.19437, section 2.2)::

    x = projection [RMSNorm(h_i) ; RMSNorm(embed(t_{i+1}))]     projection: [d, 2 d]
    logits_i = head(RMSNorm(block(x)))                          predicts t_{i+2}

The block has experts. It is stored at ``layers.{layers}``, after the last one, as in the released models. h is the
output of the last block, before the main model's final norm. Every position runs through the module, so that its
products see as many tokens as the main model's; the last one of a sequence, without a target, adds nothing to the loss,
to the loads of the module's experts or to their balance loss (equation 22).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowprec.moe.model.block import Block
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.layers import Array, Grads, Linear, Params, RMSNorm
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy
from lowprec.moe.model.routing import Routing

if TYPE_CHECKING:
    from lowprec.recipe import BoundRecipe


class _Saved(NamedTuple):
    hidden_norm: Any
    embed_norm: Any
    projection: Any
    block: Any
    norm: Any
    routing: Routing


class MultiTokenPrediction:
    """Multi-token prediction module of depth 1. It shares embedding and head with the model.

    Parameters
    ----------
    config : MoEConfig
        Sizes; the module's block comes after `config.layers` others.
    recipe : BoundRecipe
        Precision of the whole module.
    recompute : RecomputePolicy
        Activations that the backward pass recomputes.
    """

    def __init__(self, config: MoEConfig, recipe: BoundRecipe, recompute: RecomputePolicy = SAVE_ALL) -> None:
        name = f"layers.{config.layers}"
        self.hidden_norm = RMSNorm(f"{name}.hidden_norm", config.norm_eps, recipe)
        self.embed_norm = RMSNorm(f"{name}.embed_norm", config.norm_eps, recipe)
        self.projection = Linear(f"{name}.projection", recipe)
        self.block = Block(config.layers, config, recipe, recompute)
        self.norm = RMSNorm(f"{name}.norm", config.norm_eps, recipe)
        self.gate_name = self.block.gate_name

    def forward(
        self, params: Params, biases: Params, hidden: Array, embedded: Array, sequence: int
    ) -> tuple[Array, _Saved]:
        """Map hidden states and next bytes' embeddings, both [T, d], to the head's input [T, d]."""
        normed_hidden, hidden_norm = self.hidden_norm.forward(params, hidden)
        normed_embed, embed_norm = self.embed_norm.forward(params, embedded)
        x, projection = self.projection.forward(params, np.concatenate([normed_hidden, normed_embed], axis=1))
        x, block, routing = self.block.forward(params, biases, x, sequence)
        normed, norm = self.norm.forward(params, x)
        assert routing is not None
        return normed, _Saved(hidden_norm, embed_norm, projection, block, norm, routing)

    def backward(self, params: Params, grads: Grads, d_normed: Array, saved: _Saved) -> tuple[Array, Array]:
        """Return the gradients of the hidden states and of the embeddings, both [T, d]."""
        d_x = self.norm.backward(params, grads, d_normed, saved.norm, np.zeros_like(d_normed))
        d_x = self.block.backward(params, grads, d_x, saved.block)
        d_both = self.projection.backward(grads, d_x, saved.projection)
        d_hidden, d_embed = (np.ascontiguousarray(part) for part in np.split(d_both, 2, axis=1))
        return (
            self.hidden_norm.backward(params, grads, d_hidden, saved.hidden_norm, np.zeros_like(d_hidden)),
            self.embed_norm.backward(params, grads, d_embed, saved.embed_norm, np.zeros_like(d_embed)),
        )
