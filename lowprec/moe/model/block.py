"""One block of the model: attention and a feed-forward network, each with a pre-norm and a residual connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lowprec.moe.model.attention import LatentAttention
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.layers import Array, FeedForward, Grads, Params, RMSNorm
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy
from lowprec.moe.model.routing import MixtureOfExperts, Routing

if TYPE_CHECKING:
    from lowprec.recipe import BoundRecipe


class _SavedBlock(NamedTuple):
    attn_norm: Any
    attn: Any
    ffn_norm: Any
    ffn: Any


class Block:
    """One block: attention, then a dense network or experts, each with a pre-norm and a residual connection.

    Parameters
    ----------
    index : int
        Index of the block, which determines whether it has a dense network or experts.
    config : MoEConfig
        Sizes.
    recipe : BoundRecipe
        Precision of the whole block.
    recompute : RecomputePolicy
        Activations that the backward pass recomputes.
    """

    def __init__(
        self, index: int, config: MoEConfig, recipe: BoundRecipe, recompute: RecomputePolicy = SAVE_ALL
    ) -> None:
        name = f"layers.{index}"
        self.keep_input = not recompute.norms
        self.store = recipe.store
        self.attn_norm = RMSNorm(f"{name}.attn_norm", config.norm_eps, recipe)
        self.attn = LatentAttention(f"{name}.attn", config, recipe, recompute)
        self.ffn_norm = RMSNorm(f"{name}.ffn_norm", config.norm_eps, recipe)
        self.ffn: FeedForward | MixtureOfExperts
        if index < config.dense_layers:
            self.ffn = FeedForward(f"{name}.ffn", recipe, recompute, limit=config.swiglu_limit)
        else:
            # The k-th module after the last block predicts no byte from the last k positions (equation 22: 1:T-k).
            self.ffn = MixtureOfExperts(
                f"{name}.ffn", config, recipe, recompute, idle=max(0, index - config.layers + 1)
            )
        self.gate_name = f"{name}.ffn.gate"
        # A branch is consumed at once by the addition: its gradient is the stream's, whatever its codec.
        self.branches = [recipe.storage(f"{name}.{part}", passing=True) for part in ("attn_branch", "ffn_branch")]

    def forward(
        self, params: Params, biases: Params, x: Array, sequence: int
    ) -> tuple[Array, _SavedBlock, Routing | None]:
        """Map the stream x [T, d] to the next [T, d]; the returned routing is None in a dense block."""
        normed, attn_norm = self.attn_norm.forward(params, x)
        update, attn = self.attn.forward(params, normed, sequence, keep_input=self.keep_input)
        x = self._add(x, self.branches[0](update))
        normed, ffn_norm = self.ffn_norm.forward(params, x)
        routing: Routing | None = None
        ffn: Any
        if isinstance(self.ffn, FeedForward):
            update, ffn = self.ffn.forward(params, normed, keep_input=self.keep_input)
        else:
            update, ffn = self.ffn.forward(params, normed, biases[self.gate_name], sequence, keep_input=self.keep_input)
            routing = ffn.routing
        return self._add(x, self.branches[1](update)), _SavedBlock(attn_norm, attn, ffn_norm, ffn), routing

    def backward(self, params: Params, grads: Grads, d_x: Array, saved: _SavedBlock) -> Array:
        """Return the gradient of the incoming stream; `d_x`, the gradient of the outgoing stream, is overwritten."""
        normed = None if self.keep_input else self.ffn_norm.again(params, saved.ffn_norm)
        d_normed = self.ffn.backward(grads, d_x, saved.ffn, normed)
        d_x = self.ffn_norm.backward(params, grads, d_normed, saved.ffn_norm, d_x)
        normed = None if self.keep_input else self.attn_norm.again(params, saved.attn_norm)
        d_normed = self.attn.backward(params, grads, d_x, saved.attn, normed)
        return self.attn_norm.backward(params, grads, d_normed, saved.attn_norm, d_x)

    def _add(self, x: Array, update: Array) -> Array:
        update += x
        stored: Array = self.store(update)
        return stored
