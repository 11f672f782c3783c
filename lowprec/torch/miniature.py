"""The NumPy trainer's model as a torch module, loaded from a checkpoint, with the same parameter names and weights.

After `TrainerModel.use`, linear layers give the trainer's bits. torch computes the rest in the trainer's order:
activations are rounded at the same points; norms, SwiGLU and softmax use float64 internally.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowprec.codec.wire import Codec
from lowprec.moe.model.attention import rotary_angles
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.run import checkpoint
from lowprec.recipe import Recipe, load_recipe
from lowprec.recipe.description import DIRECTIONS

from .convert import convert
from .linear import apply_codec, checkpoint_with_codec


class RoundActivations(nn.Module):
    """Rounding of stored activations and their gradients to the activation format; values remain float32."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """Return x rounded to the activation format."""
        return x.to(torch.float32).to(self.dtype).to(torch.float32)


class Norm(nn.Module):
    """RMSNorm, computed in float64."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.store = eps, RoundActivations()

    def forward(self, x: Tensor) -> Tensor:
        """Return gain * x / rms(x)."""
        wide = x.double()
        return self.store(self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)))


class FeedForward(nn.Module):
    """SwiGLU network W2 (silu(W1 x) * W3 x). Its inputs are saved in the format `cache`."""

    def __init__(self, width: int, hidden: int, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.store = RoundActivations()
        self.cache: Codec | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map x [T, d] to y [T, d]."""
        a, b = self.w1(x), self.w3(x)
        return self._down(a, b) if self.cache is None else checkpoint_with_codec(self._down, a, b, codec=self.cache)

    def _down(self, a: Tensor, b: Tensor) -> Tensor:
        if self.limit:
            a, b = a.clamp(max=self.limit), b.clamp(-self.limit, self.limit)
        y: Tensor = self.w2(self.store(nn.functional.silu(a.double()) * b))
        return y


class Attention(nn.Module):
    """Multi-head latent attention; see `lowprec.moe.model.attention`."""

    def __init__(self, c: MoEConfig) -> None:
        super().__init__()
        self.config, self.store = c, RoundActivations()
        self.wq_a = nn.Linear(c.dim, c.q_rank, bias=False)
        self.wq_b = nn.Linear(c.q_rank, c.heads * c.query_dim, bias=False)
        self.wkv_a = nn.Linear(c.dim, c.kv_rank + c.rope_dim, bias=False)
        self.wkv_b = nn.Linear(c.kv_rank, c.heads * (c.nope_dim + c.value_dim), bias=False)
        self.wo = nn.Linear(c.heads * c.value_dim, c.dim, bias=False)
        self.q_norm, self.kv_norm = Norm(c.q_rank, c.norm_eps), Norm(c.kv_rank, c.norm_eps)

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotate pairs of neighbouring channels [B, H, S, r] by the angle of their position."""
        angles = rotary_angles(x.shape[-2], self.config.rope_dim, self.config.rope_theta)
        cosine, sine = (torch.from_numpy(part) for part in angles)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, S, d] to y [B, S, d]."""
        c, store = self.config, self.store
        latent, rope = self.wkv_a(x).split((c.kv_rank, c.rope_dim), -1)
        q = self.wq_b(self.q_norm(self.wq_a(x)))
        kv = self.wkv_b(self.kv_norm(latent))
        q, kv = (t.unflatten(-1, (c.heads, -1)).transpose(1, 2) for t in (q, kv))
        k, v = kv.split((c.nope_dim, c.value_dim), -1)
        rope = self._rotated(rope.unsqueeze(1)).expand(-1, c.heads, -1, -1)
        q = store(torch.cat((q[..., : c.nope_dim], self._rotated(q[..., c.nope_dim :])), -1))
        k = store(torch.cat((k, rope), -1))
        scores = (q @ k.transpose(-1, -2)).double() / c.query_dim**0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        probs = store(scores.masked_fill(later, -torch.inf).softmax(-1))
        out = store((probs @ v).transpose(1, 2).flatten(-2))
        y: Tensor = self.wo(out)
        return y


class MoELayer(nn.Module):
    """Mixture of experts with a shared expert. Codecs of the recipe apply to tokens sent to and from experts.

    Attributes
    ----------
    bias : Tensor [E]
        Bias of the scores, used only to select experts.
    loads : Tensor of int [E] or None
        Slots per expert in the last pass.
    wires : dict of str to Codec
        Codecs by direction of transfer, without lossless ones.
    """

    bias: Tensor

    def __init__(self, c: MoEConfig) -> None:
        super().__init__()
        self.config, self.store = c, RoundActivations()
        self.gate = nn.Linear(c.dim, c.experts, bias=False)
        self.shared = (
            FeedForward(c.dim, c.shared_experts * c.expert_width, c.swiglu_limit) if c.shared_experts else None
        )
        self.experts = nn.ModuleList(FeedForward(c.dim, c.expert_width, c.swiglu_limit) for _ in range(c.experts))
        self.register_buffer("bias", torch.zeros(c.experts))
        self.loads: Tensor | None = None
        self.wires: dict[str, Codec] = {}

    def _sent(self, x: Tensor, there: str, back: str) -> Tensor:
        ways = [self.wires.get(direction) for direction in (there, back)]
        return x if ways == [None, None] else apply_codec(x, *(codec or "float32" for codec in ways))

    def _choose(self, scores: Tensor) -> Tensor:
        """Return the experts of each token [T, K], best first: the best experts of the best groups."""
        c = self.config
        by_group = (scores.detach() + self.bias).unflatten(-1, (c.expert_groups, -1))
        best = by_group.topk(c.top_k // c.topk_groups, -1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(c.topk_groups, -1).indices, True)
        allowed = by_group.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
        return allowed.topk(c.top_k, -1).indices

    def forward(self, x: Tensor) -> Tensor:
        """Map x [T, d] to y [T, d]."""
        c, store = self.config, self.store
        scores = self.gate(x).sigmoid()
        chosen = self._choose(scores)
        gates = scores.gather(-1, chosen)
        gates = gates * (c.route_scale / gates.sum(-1, keepdim=True))
        experts, order = chosen.flatten().sort(stable=True)
        self.loads = torch.bincount(experts, minlength=c.experts)
        rows = store(self._sent(x[order // c.top_k], "dispatch", "dispatch_grad"))
        runs = rows.split(self.loads.tolist())
        outputs = torch.cat([expert(run) for expert, run in zip(self.experts, runs, strict=True)])
        back = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
        returned = self._sent(outputs, "combine", "combine_grad")[back].unflatten(0, chosen.shape)
        y = self.shared(x) if self.shared is not None else torch.zeros_like(x)
        for slot in range(c.top_k):
            y = y + gates[:, slot, None] * returned[:, slot]
        return store(y)


class Block(nn.Module):
    """Layer with attention and a feed-forward network, each with a pre-norm and a residual connection."""

    def __init__(self, c: MoEConfig, *, dense: bool) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(c.dim, c.norm_eps), Norm(c.dim, c.norm_eps)
        self.attn, self.store = Attention(c), RoundActivations()
        self.ffn = FeedForward(c.dim, c.dense_width, c.swiglu_limit) if dense else MoELayer(c)

    def forward(self, x: Tensor) -> Tensor:
        """Map the residual stream x [B, S, d] to the next block's input."""
        x = self.store(x + self.attn(self.attn_norm(x)))
        return self.store(x + self.ffn(self.ffn_norm(x).flatten(0, 1)).view_as(x))


class TrainerModel(nn.Module):
    """Small DeepSeek-V3 as a torch module: a language model over bytes.

    Parameters have the trainer's names followed by ``.weight``. Multi-token prediction and the balance loss of experts
    exist only in the trainer.

    Parameters
    ----------
    config : MoEConfig
        Shape of the model.

    Examples
    --------
    >>> from lowprec.moe.model.config import configs
    >>> model = TrainerModel(configs["nano"]).use("dsv3")
    >>> print(model.layers[1].ffn.experts[0].w2.spec)
    x e4m3fn 1x128, w e4m3fn 128x128, dy e4m3fn 1x128 ue8m0 on hopper_fp8, promoted every 128
    >>> model(torch.zeros((2, 16), dtype=torch.long)).shape
    torch.Size([2, 16, 256])
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleList(Block(config, dense=i < config.dense_layers) for i in range(config.layers))
        self.norm, self.store = Norm(config.dim, config.norm_eps), RoundActivations()
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, S, V] of the bytes after tokens [B, S]."""
        x = self.store(self.embed(tokens))
        for block in self.layers:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats, of the last S of tokens [B, S + 1]."""
        logits = self(tokens[:, :-1].long()).double()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().long())

    def use(self, recipe: str | Recipe, *, seed: int = 0) -> TrainerModel:
        """Apply a recipe to linear layers, stored activations, transfers to experts and SwiGLU's cache; return self.

        Raises
        ------
        UnknownNameError
            If the recipe does not exist.
        TypeError
            If the recipe is ``float64``.
        """
        recipe = load_recipe(recipe)
        convert(self, recipe, roles=lambda name: name, seed=seed)
        bound = recipe.bind(seed, self.config.layers)
        cache = None if bound.cache("swiglu_input") is None else recipe.saved_swiglu_input
        for module in self.modules():
            if isinstance(module, RoundActivations):
                module.dtype = torch.bfloat16 if recipe.activations == "bfloat16" else torch.float32
            elif isinstance(module, MoELayer):
                module.wires = {name: getattr(recipe, name) for name in DIRECTIONS if bound.changes(name)}
                for network in module.modules():
                    if isinstance(network, FeedForward):
                        network.cache = cache
        return self


def load_checkpoint(path: str | os.PathLike[str]) -> TrainerModel:
    """Load a trainer's checkpoint as a torch module, in float32 until a recipe is applied with `TrainerModel.use`.

    Parameters
    ----------
    path : str or path
        Checkpoint written by ``lowprec train --out`` or `Trainer.save`.

    Raises
    ------
    CheckpointError
        If the file is not a trainer's checkpoint.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from lowprec.moe.data.synthetic import synthetic
    >>> from lowprec.moe.run.schedule import Schedule
    >>> from lowprec.moe.run.trainer import Trainer
    >>> trainer = Trainer("nano", "bf16", synthetic(0), seed=0, schedule=Schedule(1e-3, 0, 9))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer.save(pathlib.Path(folder, "checkpoint.npz"))
    ...     model = load_checkpoint(pathlib.Path(folder, "checkpoint.npz")).use("dsv3")
    >>> tokens = np.frombuffer(b"a few bytes", np.uint8)[None].copy()
    >>> abs(model.loss(torch.from_numpy(tokens)).item() - trainer.model.with_recipe("dsv3").loss(tokens)) < 1e-3
    True
    """
    config, weights, biases = read_checkpoint(path)
    model = TrainerModel(config)
    state = {f"{name}.weight": torch.from_numpy(array) for name, array in weights.items()}
    state |= {f"{name.removesuffix('.gate')}.bias": torch.from_numpy(array) for name, array in biases.items()}
    further = f"layers.{config.layers}."
    model.load_state_dict({name: array for name, array in state.items() if not name.startswith(further)})
    return model


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[MoEConfig, dict[str, Any], dict[str, Any]]:
    """Return the config of a checkpoint's model, its weights by name, and the experts' biases by the name of the gate.

    Raises
    ------
    CheckpointError
        If the file is not a trainer's checkpoint.
    """
    header, arrays = checkpoint.read(path)
    try:
        config = MoEConfig(**header["config"])
    except (KeyError, TypeError):
        raise checkpoint.CheckpointError(f"checkpoint {os.fspath(path)!r} is not that of a trainer") from None
    return config, _of_kind(arrays, "weights/"), _of_kind(arrays, "biases/")


def _of_kind(arrays: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
    return {name: np.array(array) for name, array in found.items()}
