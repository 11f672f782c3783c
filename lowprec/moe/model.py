"""The whole model: parameters by name, loss, and gradients by hand.

A block adds to the residual stream twice, x += attention(norm(x)) and x += feed_forward(norm(x)); the stream and its
gradient are stored after each addition in the recipe's activation format.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowprec.moe.attention import LatentAttention
from lowprec.moe.config import MoEConfig, configs
from lowprec.moe.layers import Array, Embedding, FeedForward, Grads, Linear, Params, RMSNorm, cross_entropy
from lowprec.moe.routing import MixtureOfExperts, Routing
from lowprec.recipe import BoundRecipe, Recipe, recipes


def initial_parameters(config: MoEConfig, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Draw the initial parameters: norm gains 1, everything else normal with `config.init_std`.

    Each parameter has its own generator, keyed by the seed and the parameter's name: a parameter keeps its values when
    others come or go.

    Parameters
    ----------
    config : MoEConfig
        Names and shapes.
    seed : int
        Any whole number.

    Returns
    -------
    dict of str to float32 array
        In the order of `MoEConfig.parameter_shapes`.
    """
    params = {}
    for name, shape in config.parameter_shapes().items():
        if len(shape) == 1:
            params[name] = np.ones(shape, dtype=np.float32)
        else:
            key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "little")
            normal = np.random.Generator(np.random.Philox(key=key)).standard_normal(shape)
            params[name] = (normal * config.init_std).astype(np.float32)
    return params


class _SavedBlock(NamedTuple):
    attn_norm: Any
    attn: Any
    ffn_norm: Any
    ffn: Any


class Block:
    """One layer: attention, then a dense network or a mixture of experts, each behind a norm and beside the stream.

    Parameters
    ----------
    index : int
        Its place, which decides between dense and experts.
    config : MoEConfig
        Sizes.
    recipe : BoundRecipe
        Precision of everything in it.
    """

    def __init__(self, index: int, config: MoEConfig, recipe: BoundRecipe) -> None:
        name = f"layers.{index}"
        self.store = recipe.store
        self.attn_norm = RMSNorm(f"{name}.attn_norm", config.norm_eps, recipe)
        self.attn = LatentAttention(f"{name}.attn", config, recipe)
        self.ffn_norm = RMSNorm(f"{name}.ffn_norm", config.norm_eps, recipe)
        self.ffn: FeedForward | MixtureOfExperts
        if index < config.dense_layers:
            self.ffn = FeedForward(f"{name}.ffn", recipe)
        else:
            self.ffn = MixtureOfExperts(f"{name}.ffn", config, recipe)
        self.gate_name = f"{name}.ffn.gate"

    def forward(
        self, params: Params, biases: Params, x: Array, sequence: int
    ) -> tuple[Array, _SavedBlock, Routing | None]:
        """Map the stream x [T, d] to the next [T, d]; `routing` is None in a dense block."""
        normed, attn_norm = self.attn_norm.forward(params, x)
        update, attn = self.attn.forward(params, normed, sequence)
        x = self._add(x, update)
        normed, ffn_norm = self.ffn_norm.forward(params, x)
        routing: Routing | None = None
        ffn: Any
        if isinstance(self.ffn, FeedForward):
            update, ffn = self.ffn.forward(params, normed)
        else:
            update, ffn = self.ffn.forward(params, normed, biases[self.gate_name], sequence)
            routing = ffn.routing
        return self._add(x, update), _SavedBlock(attn_norm, attn, ffn_norm, ffn), routing

    def backward(self, params: Params, grads: Grads, d_x: Array, saved: _SavedBlock) -> Array:
        """Return the gradient of the incoming stream; `d_x`, that of the outgoing one, is used up."""
        d_normed = self.ffn.backward(grads, d_x, saved.ffn)
        d_x = self.ffn_norm.backward(params, grads, d_normed, saved.ffn_norm, d_x)
        d_normed = self.attn.backward(params, grads, d_x, saved.attn)
        return self.attn_norm.backward(params, grads, d_normed, saved.attn_norm, d_x)

    def _add(self, x: Array, update: Array) -> Array:
        update += x
        stored: Array = self.store(update)
        return stored


class Model:
    """A Mixture-of-Experts language model over bytes, with its gradients.

    Parameters
    ----------
    config : MoEConfig or str
        Shape, or the name of one.
    recipe : Recipe or str
        Precision of every GEMM, of storage and of the wires to the experts, or the name of one.
    seed : int
        Of the initial parameters, and of the recipe's random bits.

    Attributes
    ----------
    recipe : BoundRecipe
        The precision, with its state.
    params : dict of str to float32 array
        Master weights by name; an optimizer changes the arrays in place or replaces them.
    biases : dict of str to float32 array [E]
        Load-balancing biases by the name of the gate; see `lowprec.moe.routing.update_bias`.
    loads : dict of str to int64 array [E]
        Slots per expert in the last `loss_and_grads`, by the same names.
    balance_loss : float
        Sum over layers of the sequence-wise balance loss in the last `loss_and_grads`.

    Examples
    --------
    >>> model = Model("nano", "bf16", seed=0)
    >>> tokens = np.frombuffer(b"the quick brown fox", np.uint8)[None]        # [B, S + 1]
    >>> loss, grads = model.loss_and_grads(tokens)
    >>> 5 < loss < 6, grads["head"].shape
    (True, (256, 128))
    """

    def __init__(self, config: MoEConfig | str, recipe: Recipe | str, seed: int = 0) -> None:
        self.config = configs.get(config)
        self.params: dict[str, Array] = dict(initial_parameters(self.config, seed))
        gates = [name for name in self.params if name.endswith(".gate")]
        self.biases: dict[str, Array] = {name: np.zeros(self.config.experts, dtype=np.float32) for name in gates}
        self.seed = seed
        self._bind(recipes.get(recipe).bind(seed))

    def _bind(self, recipe: BoundRecipe) -> None:
        """Build the layers for a bound recipe; they hold no parameters."""
        config = self.config
        self.recipe = recipe
        self.loads: dict[str, Array] = {}
        self.balance_loss = 0.0
        self._dtype = recipe.dtype
        self._embed = Embedding("embed", recipe)
        self._blocks = [Block(i, config, recipe) for i in range(config.layers)]
        self._norm = RMSNorm("norm", config.norm_eps, recipe)
        self._head = Linear("head", recipe)

    def with_recipe(self, recipe: Recipe | str) -> Model:
        """Return this model in another precision; parameters and biases are shared, not copied."""
        return self.with_bound(recipes.get(recipe).bind(self.seed))

    def with_bound(self, recipe: BoundRecipe) -> Model:
        """Return this model with the GEMMs, stores and codecs of a bound recipe; parameters and biases are shared."""
        other = copy.copy(self)
        other._bind(recipe)
        return other

    @property
    def max_violation(self) -> float:
        """The busiest expert's load over the mean, minus 1, in the last `loss_and_grads`; the highest over layers."""
        return max((float(loads.max() * loads.size / loads.sum()) - 1.0 for loads in self.loads.values()), default=0.0)

    def loss(self, tokens: npt.NDArray[np.uint8]) -> float:
        """Return the mean cross-entropy of predicting each next byte, in nats.

        Parameters
        ----------
        tokens : uint8 array [B, S + 1]
            Sequences; the first S bytes of each are read, the last S predicted.

        Raises
        ------
        TypeError
            If they are not bytes.
        ValueError
            If the shape does not fit, or a byte is outside the vocabulary.
        """
        _check_tokens(tokens, self.config.vocabulary)
        logits, _ = self._forward(self._parameters(), tokens[:, :-1])
        return cross_entropy(logits, np.ascontiguousarray(tokens[:, 1:]).reshape(-1))[0]

    def loss_and_grads(self, tokens: npt.NDArray[np.uint8]) -> tuple[float, dict[str, Array]]:
        """Return the mean cross-entropy in nats and the gradient of every parameter.

        The gradient is that of the cross-entropy plus the balance loss; the number returned is the cross-entropy alone.

        Parameters
        ----------
        tokens : uint8 array [B, S + 1]
            Sequences; the first S bytes of each are read, the last S predicted.

        Returns
        -------
        tuple of float and dict of str to float32 array
            Loss and gradients, the latter in the order of `params`.

        Raises
        ------
        TypeError
            If they are not bytes.
        ValueError
            If the shape does not fit, or a byte is outside the vocabulary.
        """
        _check_tokens(tokens, self.config.vocabulary)
        params = self._parameters()
        grads: dict[str, Array] = {}
        inputs = np.ascontiguousarray(tokens[:, :-1]).reshape(-1)
        targets = np.ascontiguousarray(tokens[:, 1:]).reshape(-1)
        logits, saved = self._forward(params, tokens[:, :-1])
        self.loads = {block.gate_name: r.loads for block, r in zip(self._blocks, saved.routings, strict=True) if r}
        self.balance_loss = sum((r.balance_loss for r in saved.routings if r), 0.0)

        loss, d_logits = cross_entropy(logits, targets)
        d_normed = self._head.backward(grads, self.recipe.store(d_logits), saved.head)
        d_x = self._norm.backward(params, grads, d_normed, saved.norm, np.zeros_like(d_normed))
        while saved.blocks:  # from the last one; what a block saved is freed with it
            d_x = self._blocks[len(saved.blocks) - 1].backward(params, grads, d_x, saved.blocks.pop())
        self._embed.backward(params, grads, d_x, inputs)
        return loss, {name: grads[name] for name in self.params}

    def _forward(self, params: Params, inputs: Array) -> tuple[Array, _SavedModel]:
        """Map bytes [B, S] to logits [T, V]."""
        x = self._embed.forward(params, np.ascontiguousarray(inputs).reshape(-1))
        blocks, routings = [], []
        for block in self._blocks:
            x, saved, routing = block.forward(params, self.biases, x, inputs.shape[1])
            blocks.append(saved)
            routings.append(routing)
        # A multi-token prediction module starts from this x: it is one more Block, before the norm and the shared head.
        normed, norm = self._norm.forward(params, x)
        logits, head = self._head.forward(params, normed)
        return logits, _SavedModel(blocks, routings, norm, head)

    def _parameters(self) -> dict[str, Array]:
        """Return the parameters in the type the recipe computes in; no copies in training."""
        return {name: np.asarray(value, dtype=self._dtype) for name, value in self.params.items()}


class _SavedModel(NamedTuple):
    blocks: list[_SavedBlock]
    routings: list[Routing | None]
    norm: Any
    head: Any


def _check_tokens(tokens: npt.NDArray[np.uint8], vocabulary: int) -> None:
    """Reject what cannot be trained on, saying what came."""
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.uint8:
        found = f"{tokens.dtype} array" if isinstance(tokens, np.ndarray) else type(tokens).__name__
        raise TypeError(f"tokens: {found}; a uint8 array [batch, sequence + 1] is needed")
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise ValueError(f"tokens: shape {tokens.shape}; [batch >= 1, sequence + 1 >= 2] is needed")
    if vocabulary < 256 and tokens.max() >= vocabulary:
        raise ValueError(f"tokens: byte {tokens.max()}; the vocabulary has {vocabulary}")
