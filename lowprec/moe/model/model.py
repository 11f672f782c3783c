"""The whole model: parameters by name, loss, and explicit gradients.

A block adds to the residual stream twice, x += attention(norm(x)) and x += feed_forward(norm(x)); the stream and its
gradient are stored after each addition in the recipe's activation format.
"""

from __future__ import annotations

import copy
import hashlib
import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowprec._threads import keep_freed_memory
from lowprec.kernels.model import nn
from lowprec.moe.model.block import Block
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.config_file import check_tiles, get_config
from lowprec.moe.model.layers import (
    Array,
    Embedding,
    Linear,
    Params,
    RMSNorm,
    cross_entropy,
    token_cross_entropy,
)
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy, recompute_policies, saved_activation_bytes
from lowprec.moe.model.mtp import MultiTokenPrediction
from lowprec.moe.model.routing import Routing
from lowprec.recipe import BoundRecipe, Recipe, load_recipe


def initial_parameters(config: MoEConfig, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Draw the initial parameters: gains of norms are 1, all others normal with standard deviation `config.init_std`.

    A parameter's generator depends only on the seed and the parameter's name, so its values stay the same when other
    parameters are added or removed.

    Parameters
    ----------
    config : MoEConfig
        Names and shapes.
    seed : int
        Integer seed.

    Returns
    -------
    dict of str to float32 array
        Parameters, in the order of `MoEConfig.parameter_shapes`.
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


class Model:
    """A Mixture-of-Experts language model over bytes, with its gradients.

    Parameters
    ----------
    config : MoEConfig, str or path
        Shape, given as an object, by name, or as a TOML file.
    recipe : Recipe or str
        Precision of every GEMM, of storage and of transfers to the experts, given as an object, by name, or as a TOML
        file.
    seed : int
        Seed of the initial parameters.
    recompute : RecomputePolicy or str
        Activations that the backward pass recomputes, or the name of a policy; it does not affect any bit.
    rounding_seed : int, optional
        Seed of the recipe's random bits, by default `seed`.

    Attributes
    ----------
    recipe : BoundRecipe
        Bound recipe, with its state.
    params : dict of str to float32 array
        Master weights by name; an optimizer changes the arrays in place or replaces them.
    biases : dict of str to float32 array [E]
        Load-balancing biases by the name of the gate; see `lowprec.moe.model.routing.update_bias`.
    loads : dict of str to int64 array [E]
        Number of slots of each expert in the last `loss_and_grads`, by the same names; in the prediction module, only
        positions that have a target are counted.
    balance_loss : float
        Sum over layers of the sequence-wise balance loss in the last `loss_and_grads`.
    mtp_weight : float
        Weight of the multi-token prediction loss, `config.mtp_weight` at first; a schedule may change it.
    mtp_loss : float
        Multi-token prediction loss in the last `loss_and_grads`, unweighted; 0 for a model without the module.

    Raises
    ------
    ValueError
        If the shapes do not suit the recipe's tiles; see `lowprec.moe.model.config_file.check_tiles`.

    Examples
    --------
    >>> model = Model("nano", "bf16", seed=0)
    >>> tokens = np.frombuffer(b"the quick brown fox", np.uint8)[None]        # [B, S + 1]
    >>> loss, grads = model.loss_and_grads(tokens)
    >>> 5 < loss < 6, grads["head"].shape
    (True, (256, 128))
    """

    def __init__(
        self,
        config: MoEConfig | str | os.PathLike[str],
        recipe: Recipe | str,
        seed: int = 0,
        recompute: RecomputePolicy | str = SAVE_ALL,
        rounding_seed: int | None = None,
    ) -> None:
        self.config = get_config(config)
        check_tiles(self.config, load_recipe(recipe))
        self.params: dict[str, Array] = dict(initial_parameters(self.config, seed))
        gates = [name for name in self.params if name.endswith(".gate")]
        self.biases: dict[str, Array] = {name: np.zeros(self.config.experts, dtype=np.float32) for name in gates}
        self.rounding_seed = seed if rounding_seed is None else rounding_seed
        self.recompute = recompute_policies.get(recompute)
        self.mtp_weight = self.config.mtp_weight
        self._bind(load_recipe(recipe).bind(self.rounding_seed, self.config.layers))

    def _bind(self, recipe: BoundRecipe) -> None:
        """Build the layers for a bound recipe; parameters are kept separately."""
        config = self.config
        self.recipe = recipe
        self.loads: dict[str, Array] = {}
        self.balance_loss = self.mtp_loss = 0.0
        self._dtype = recipe.dtype
        self._embed = Embedding("embed", recipe)
        self._blocks = [Block(i, config, recipe, self.recompute) for i in range(config.layers)]
        self._norm = RMSNorm("norm", config.norm_eps, recipe)
        self._head = Linear("head", recipe)
        self._mtp = MultiTokenPrediction(config, recipe, self.recompute) if config.mtp_depth else None

    def with_recipe(self, recipe: Recipe | str) -> Model:
        """Return this model under another recipe; parameters and biases are shared, not copied."""
        return self.with_bound(load_recipe(recipe).bind(self.rounding_seed, self.config.layers))

    def with_bound(self, recipe: BoundRecipe) -> Model:
        """Return this model under a bound recipe; parameters and biases are shared, not copied."""
        other = copy.copy(self)
        other._bind(recipe)
        return other

    @property
    def max_violation(self) -> float:
        """Largest load of an expert / mean load - 1 in the last `loss_and_grads`, maximum over layers."""
        loads = [load for load in self.loads.values() if load.any()]
        return max((float(load.max() * load.size / load.sum()) - 1.0 for load in loads), default=0.0)

    def loss(self, tokens: npt.NDArray[np.uint8]) -> float:
        """Return the mean cross-entropy of predicting each next byte, in nats.

        Parameters
        ----------
        tokens : uint8 array [B, S + 1]
            Sequences; the first S bytes of each are read, the last S are predicted.

        Raises
        ------
        TypeError
            If `tokens` are not bytes.
        ValueError
            If the shape does not fit, or a byte is outside the vocabulary.
        """
        return float(nn.mean(self.token_losses(tokens).reshape(-1)))

    def token_losses(self, tokens: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Return the cross-entropy of predicting each next byte, in nats, float64 [B, S]; see `loss`."""
        _check_tokens(tokens, self.config.vocabulary)
        logits, _ = self._forward(self._parameters(), tokens[:, :-1])
        losses, _ = token_cross_entropy(logits, np.ascontiguousarray(tokens[:, 1:]).reshape(-1))
        return losses.reshape(len(tokens), -1)

    def predictions(self, tokens: npt.NDArray[np.uint8]) -> tuple[Array, Array | None]:
        """Return the logits of each next byte and of the byte after that.

        Parameters
        ----------
        tokens : uint8 array [B, S + 1]
            See `loss`.

        Returns
        -------
        float array [B, S, V]
            Logits of the next byte.
        float array [B, S, V] or None
            Logits of the byte after the next, computed with the next one as input; None without the prediction module.
        """
        _check_tokens(tokens, self.config.vocabulary)
        params, shape = self._parameters(), (len(tokens), tokens.shape[1] - 1, -1)
        logits, saved = self._forward(params, tokens[:, :-1])
        further = None if self._mtp is None else self._further(params, saved.hidden, tokens)[0].reshape(shape)
        return logits.reshape(shape), further

    def activation_bytes(self, tokens: npt.NDArray[np.uint8]) -> dict[str, int]:
        """Return the number of bytes that the forward pass saves for the backward pass, by kind.

        Parameters
        ----------
        tokens : uint8 array [B, S + 1]
            See `loss`. The prediction module is not counted, as its backward pass ends before the main model's begins.

        Examples
        --------
        >>> tokens = np.zeros((1, 129), np.uint8)
        >>> models = {name: Model("nano", "dsv3", recompute=name) for name in ("none", "dsv3")}
        >>> {name: sum(model.activation_bytes(tokens).values()) // 128 for name, model in models.items()}
        {'none': 16268, 'dsv3': 9360}
        """
        _check_tokens(tokens, self.config.vocabulary)
        return saved_activation_bytes(self._forward(self._parameters(), tokens[:, :-1])[1])

    def loss_and_grads(
        self, tokens: npt.NDArray[np.uint8], weights: npt.ArrayLike | None = None
    ) -> tuple[float, dict[str, Array]]:
        """Return the mean cross-entropy in nats and the gradient of every parameter.

        The gradient is that of the cross-entropy plus the balance loss plus `mtp_weight` times `mtp_loss`; the returned
        number is the cross-entropy.

        Parameters
        ----------
        tokens : uint8 array [B, S + 1]
            Sequences; the first S bytes of each are read, the last S are predicted.
        weights : float array [B, S], optional
            Factor of each byte's cross-entropy: a mask, or an advantage in a policy gradient. The mean is over all
            bytes. Not for a model with a prediction module.

        Returns
        -------
        tuple of float and dict of str to float32 array
            Loss and gradients, the latter in the order of `params`.

        Raises
        ------
        TypeError
            If `tokens` are not bytes.
        ValueError
            If a shape does not fit, a byte is outside the vocabulary, or weights are not finite.
        """
        _check_tokens(tokens, self.config.vocabulary)
        keep_freed_memory()
        factors = None if weights is None else self._check_weights(weights, tokens)
        params = self._parameters()
        grads: dict[str, Array] = {}
        inputs = np.ascontiguousarray(tokens[:, :-1]).reshape(-1)
        targets = np.ascontiguousarray(tokens[:, 1:]).reshape(-1)
        logits, saved = self._forward(params, tokens[:, :-1])
        self.loads = {block.gate_name: r.loads for block, r in zip(self._blocks, saved.routings, strict=True) if r}
        self.balance_loss = sum((r.balance_loss for r in saved.routings if r), 0.0)

        losses, d_logits = token_cross_entropy(logits, targets)
        if factors is not None:
            losses *= factors
            d_logits *= factors[:, None].astype(d_logits.dtype)
        d_normed = self._head.backward(grads, self.recipe.store(d_logits), saved.head)
        d_x, embedded, d_embedded = np.zeros_like(d_normed), [inputs], []
        if self._mtp is not None:
            further = self._predict_further(params, grads, saved.hidden, tokens)
            d_x, embedded, d_embedded = further[0], [inputs, targets], [further[1]]
        d_x = self._norm.backward(params, grads, d_normed, saved.norm, d_x)
        while saved.blocks:  # from the last one; popping a block frees its activations
            d_x = self._blocks[len(saved.blocks) - 1].backward(params, grads, d_x, saved.blocks.pop())
        self._embed.backward(params, grads, [d_x, *d_embedded], embedded)
        return float(nn.mean(losses)), {name: grads[name] for name in self.params}

    def _check_weights(self, weights: npt.ArrayLike, tokens: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Return the weights of all bytes in one vector, or raise ValueError."""
        found = np.asarray(weights, dtype=np.float64)
        expected = len(tokens), tokens.shape[1] - 1
        if found.shape != expected:
            raise ValueError(f"loss_and_grads: weights must have shape {expected}, got {found.shape}")
        if not np.isfinite(found).all():
            raise ValueError(f"loss_and_grads: weights must be finite, got {found[~np.isfinite(found)][0]}")
        if self._mtp is not None:
            raise ValueError("loss_and_grads: weights must be None for a model with a prediction module, got an array")
        return found.reshape(-1)

    def _predict_further(
        self, params: Params, grads: dict[str, Array], hidden: Array, tokens: Array
    ) -> tuple[Array, Array]:
        """Predict the byte after the next; return the gradients of the last block's output and of the embeddings.

        The shared head's gradient is added to that of the main model.
        """
        assert self._mtp is not None
        sequence = tokens.shape[1] - 1
        logits, saved, saved_head = self._further(params, hidden, tokens)
        # The last position of a sequence has no target: the byte after the next is outside.
        targets = np.full((len(tokens), sequence), -1, dtype=np.int64)
        targets[:, :-1] = tokens[:, 2:]
        self.mtp_loss, d_logits = cross_entropy(logits, targets.reshape(-1))
        self.loads[self._mtp.gate_name] = saved.routing.loads
        self.balance_loss += saved.routing.balance_loss
        d_logits *= d_logits.dtype.type(self.mtp_weight)
        of_head: dict[str, Array] = {}
        d_normed = self._head.backward(of_head, self.recipe.store(d_logits), saved_head)
        grads[self._head.name] = grads[self._head.name] + of_head[self._head.name]
        return self._mtp.backward(params, grads, d_normed, saved)

    def _further(self, params: Params, hidden: Array, tokens: Array) -> tuple[Array, Any, Any]:
        """Return the logits [T, V] of the byte after the next, and the saved data of the module and the head."""
        assert self._mtp is not None
        embedded = self._embed.forward(params, np.ascontiguousarray(tokens[:, 1:]).reshape(-1))
        normed, saved = self._mtp.forward(params, self.biases, hidden, embedded, tokens.shape[1] - 1)
        logits, saved_head = self._head.forward(params, normed)
        return logits, saved, saved_head

    def _forward(self, params: Params, inputs: Array) -> tuple[Array, _SavedModel]:
        """Map bytes [B, S] to logits [T, V]."""
        x = self._embed.forward(params, np.ascontiguousarray(inputs).reshape(-1))
        blocks, routings = [], []
        for block in self._blocks:
            x, saved, routing = block.forward(params, self.biases, x, inputs.shape[1])
            blocks.append(saved)
            routings.append(routing)
        normed, norm = self._norm.forward(params, x)
        logits, head = self._head.forward(params, normed)
        return logits, _SavedModel(blocks, routings, x, norm, head)

    def _parameters(self) -> dict[str, Array]:
        """Return the parameters in the recipe's compute dtype; in training they are not copied."""
        return {name: np.asarray(value, dtype=self._dtype) for name, value in self.params.items()}


class _SavedModel(NamedTuple):
    blocks: list[Any]
    routings: list[Routing | None]
    hidden: Array
    norm: Any
    head: Any


def _check_tokens(tokens: npt.NDArray[np.uint8], vocabulary: int) -> None:
    """Raise unless the tokens are a batch of sequences within the vocabulary."""
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.uint8:
        found = f"{tokens.dtype} array" if isinstance(tokens, np.ndarray) else type(tokens).__name__
        raise TypeError(f"tokens must be a uint8 array [batch, sequence + 1], got {found}")
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise ValueError(f"tokens must have shape [batch >= 1, sequence + 1 >= 2], got {tokens.shape}")
    if vocabulary < 256 and tokens.max() >= vocabulary:
        raise ValueError(f"tokens must be below vocabulary={vocabulary}, got {tokens.max()}")
