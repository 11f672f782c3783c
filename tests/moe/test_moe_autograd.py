"""Loss and every gradient against PyTorch's, of a model written from the DeepSeek-V3 report's equations alone.

Numbers in brackets are those of arXiv 2412.19437, section 2. The model here takes names and shapes of parameters and
the sizes of a configuration from lowprec, and no code; all of it is float64. What the report leaves open is as in the
released code: rotary pairs are neighbours, and the module for a byte further reads the last block's output before the
final norm.
"""

import dataclasses
import math

import numpy as np
import pytest

from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.model import Model

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.torch


class Report:
    """The model of the report.

    Parameters
    ----------
    config : MoEConfig
        Its sizes.
    params, biases : mapping of str to float64 array
        Weights by name; the biases of the choice of experts by their gates.
    """

    def __init__(self, config, params, biases):
        self.c = config
        self.w = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in params.items()}
        self.biases = {name: torch.tensor(value, dtype=torch.float64) for name, value in biases.items()}
        self.balance, self.loads = torch.zeros((), dtype=torch.float64), {}

    def linear(self, name, x):
        return x @ self.w[name].T

    def norm(self, name, x):
        return self.w[name] * x / (x.square().mean(-1, keepdim=True) + self.c.norm_eps).sqrt()

    def rotated(self, x):
        """Turn neighbouring channels of x [..., positions, channels] by position * theta^(-2 i / channels)."""
        size = x.shape[-1]
        turns = self.c.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * turns
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()
        return torch.stack(turned, -1).flatten(-2)

    def attention(self, name, x):
        """Multi-head latent attention of x [B, S, d], (1) to (11)."""
        c = self.c
        compressed_q = self.norm(f"{name}.q_norm", self.linear(f"{name}.wq_a", x))
        q = self.by_head(self.linear(f"{name}.wq_b", compressed_q))
        latent, shared_key = self.linear(f"{name}.wkv_a", x).split([c.kv_rank, c.rope_dim], -1)
        kv = self.by_head(self.linear(f"{name}.wkv_b", self.norm(f"{name}.kv_norm", latent)))
        key, value = kv.split([c.nope_dim, c.value_dim], -1)
        shared_key = self.rotated(shared_key)[:, None].expand(-1, c.heads, -1, -1)
        q = torch.cat([q[..., : c.nope_dim], self.rotated(q[..., c.nope_dim :])], -1)
        scores = q @ torch.cat([key, shared_key], -1).mT / math.sqrt(c.nope_dim + c.rope_dim)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        out = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        return self.linear(f"{name}.wo", out.transpose(1, 2).flatten(2))

    def by_head(self, x):
        return x.unflatten(-1, (self.c.heads, -1)).transpose(1, 2)

    def swiglu(self, name, x):
        a, b = self.linear(f"{name}.w1", x), self.linear(f"{name}.w3", x)
        if self.c.swiglu_limit:
            a, b = a.clamp(max=self.c.swiglu_limit), b.clamp(-self.c.swiglu_limit, self.c.swiglu_limit)
        return self.linear(f"{name}.w2", F.silu(a) * b)

    def experts(self, name, x):
        """Shared and routed experts of x [B, S, d], (12) to (16) and node-limited routing; note the balance loss."""
        c = self.c
        affinity = self.linear(f"{name}.gate", x).sigmoid()
        biased = affinity.detach() + self.biases[f"{name}.gate"]
        nodes = biased.unflatten(-1, (c.expert_groups, -1))
        best = nodes.sort(-1, descending=True).values[..., : c.top_k // c.topk_groups].sum(-1)
        kept = F.one_hot(best.topk(c.topk_groups).indices, c.expert_groups).sum(-2).bool()
        chosen = nodes.masked_fill(~kept[..., None], -math.inf).flatten(-2).topk(c.top_k).indices
        gates = torch.zeros_like(affinity).scatter(-1, chosen, affinity.gather(-1, chosen))
        gates = c.route_scale * gates / gates.sum(-1, keepdim=True)
        outputs = [self.swiglu(f"{name}.experts.{e}", x) for e in range(c.experts)]
        y = sum(gates[..., e, None] * output for e, output in enumerate(outputs))
        if c.shared_experts:
            y = y + self.swiglu(f"{name}.shared", x)
        # (17) to (20): the best experts by affinity alone are counted, in each sequence by itself.
        uses = F.one_hot(affinity.topk(c.top_k).indices, c.experts).double().mean(1).sum(1) * c.experts / c.top_k
        share = (affinity / affinity.sum(-1, keepdim=True)).mean(1)
        self.balance = self.balance + c.balance_alpha * (uses * share).sum(-1).mean()
        self.loads[f"{name}.gate"] = torch.bincount(chosen.flatten(), minlength=c.experts)
        return y

    def block(self, index, x):
        name = f"layers.{index}"
        x = x + self.attention(f"{name}.attn", self.norm(f"{name}.attn_norm", x))
        network = self.swiglu if index < self.c.dense_layers else self.experts
        return x + network(f"{name}.ffn", self.norm(f"{name}.ffn_norm", x))

    def losses(self, tokens):
        """Return the cross-entropy of the next byte and that of the byte after it, of tokens [B, T + 1]."""
        c = self.c
        embedded = self.w["embed"][tokens]
        x = embedded[:, :-1]
        for index in range(c.layers):
            x = self.block(index, x)
        loss = F.cross_entropy(self.linear("head", self.norm("norm", x)).flatten(0, 1), tokens[:, 1:].flatten())
        if not c.mtp_depth:
            return loss, torch.zeros((), dtype=torch.float64)
        # (21) to (24): positions 1 to T - 1, the sum over them divided by T.
        name = f"layers.{c.layers}"
        both = self.norm(f"{name}.hidden_norm", x[:, :-1]), self.norm(f"{name}.embed_norm", embedded[:, 1:-1])
        x = self.block(c.layers, self.linear(f"{name}.projection", torch.cat(both, -1)))
        logits = self.linear("head", self.norm(f"{name}.norm", x)).flatten(0, 1)
        further = F.cross_entropy(logits, tokens[:, 2:].flatten(), reduction="sum")
        return loss, further / tokens[:, 1:].numel()


ODD = MoEConfig(
    "odd", dim=18, layers=3, dense_layers=1, heads=3, nope_dim=5, rope_dim=4, value_dim=7, q_rank=11, kv_rank=9,
    experts=12, top_k=4, expert_groups=4, topk_groups=2, expert_width=7, dense_width=13, vocabulary=29,
    balance_alpha=1e-4, route_scale=1.7, allow_partial_tiles=True,
)  # fmt: skip
CONFIGS = {
    "the report's constants": {},
    "a byte further": {"mtp_depth": 1},
    "a byte further and a strong balance loss": {"mtp_depth": 1, "balance_alpha": 0.1, "layers": 2},
    "one expert a token": {"top_k": 1, "expert_groups": 1, "topk_groups": 1, "balance_alpha": 0.1},
    "no shared expert": {"shared_experts": 0, "dense_layers": 0, "heads": 1},
    "two shared experts, SwiGLU cut": {"shared_experts": 2, "swiglu_limit": 0.4, "mtp_depth": 1},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_the_model_is_the_reports(changes):
    config = dataclasses.replace(ODD, **changes)
    rng = np.random.default_rng(0)
    model = Model(config, "float64", seed=1)
    model.params = {name: value + 0.2 * rng.standard_normal(value.shape) for name, value in model.params.items()}
    for bias in model.biases.values():
        bias[:] = 0.1 * rng.standard_normal(bias.shape)
    tokens = rng.integers(0, config.vocabulary, (3, 20), dtype=np.uint8)
    loss, grads = model.loss_and_grads(tokens)

    report = Report(config, model.params, model.biases)
    theirs, further = report.losses(torch.tensor(tokens, dtype=torch.long))
    (theirs + config.mtp_weight * further + report.balance).backward()

    got, wanted = (loss, model.mtp_loss, model.balance_loss), (theirs, further, report.balance)
    assert got == pytest.approx([float(value.detach()) for value in wanted], rel=1e-13, abs=0)
    assert {gate: load.tolist() for gate, load in model.loads.items()} == {
        gate: load.tolist() for gate, load in report.loads.items()
    }
    for name, weight in report.w.items():
        automatic = weight.grad.numpy()
        assert np.abs(grads[name] - automatic).max() <= 1e-12 * np.abs(automatic).max(), name
