"""Gradients against PyTorch's automatic ones, on the same model written once more with torch tensors in float64."""

import dataclasses

import numpy as np
import pytest

from lowprec.moe.model.attention import rotary_angles
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.model import Model

torch = pytest.importorskip("torch")

CONFIG = MoEConfig(
    "small", dim=16, layers=3, dense_layers=1, heads=2, nope_dim=6, rope_dim=4, value_dim=5, q_rank=8, kv_rank=9,
    experts=8, top_k=4, groups=4, kept_groups=2, expert_width=6, dense_width=10, vocabulary=23, balance_alpha=0.3,
    route_scale=1.7, shared_experts=2,
)  # fmt: skip


def norm(x, gain):
    return gain * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + CONFIG.norm_eps)


def feed_forward(p, x):
    return (torch.nn.functional.silu(x @ p("w1").T) * (x @ p("w3").T)) @ p("w2").T


def attention(p, x):
    batch, sequence, _ = x.shape
    n, r = CONFIG.nope_dim, CONFIG.rope_dim
    turn = torch.complex(*map(torch.tensor, rotary_angles(sequence, r, CONFIG.rope_theta, np.float64)))

    def rotate(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], r // 2, 2).contiguous())
        return torch.view_as_real(pairs * turn[:, None]).reshape(x.shape)

    q = (norm(x @ p("wq_a").T, p("q_norm")) @ p("wq_b").T).view(batch, sequence, CONFIG.heads, n + r)
    latent, k_rope = (x @ p("wkv_a").T).split([CONFIG.kv_rank, r], dim=-1)
    kv = (norm(latent, p("kv_norm")) @ p("wkv_b").T).view(batch, sequence, CONFIG.heads, n + CONFIG.value_dim)
    k_rope = rotate(k_rope[:, :, None]).expand(-1, -1, CONFIG.heads, -1)
    q = torch.cat([q[..., :n], rotate(q[..., n:])], dim=-1).transpose(1, 2)
    k = torch.cat([kv[..., :n], k_rope], dim=-1).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, kv[..., n:].transpose(1, 2), is_causal=True)
    return out.transpose(1, 2).reshape(batch, sequence, -1) @ p("wo").T


def experts(p, x, bias):
    scores = torch.sigmoid(x @ p("gate").T)
    with torch.no_grad():
        biased = (scores + bias).unflatten(-1, (CONFIG.groups, -1))
        judged = biased.topk(CONFIG.top_k // CONFIG.kept_groups, dim=-1).values.sum(-1)
        kept = torch.zeros_like(judged).scatter(-1, judged.topk(CONFIG.kept_groups, dim=-1).indices, 1)
        chosen = (biased * kept[..., None] - 1e9 * (1 - kept[..., None])).flatten(-2).topk(CONFIG.top_k, dim=-1).indices
        unbiased = torch.zeros_like(scores).scatter(-1, scores.topk(CONFIG.top_k, dim=-1).indices, 1)
        uses = unbiased.mean(1) * CONFIG.experts / CONFIG.top_k
    gates = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    gates = gates / gates.sum(-1, keepdim=True) * CONFIG.route_scale
    share = (scores / scores.sum(-1, keepdim=True)).mean(1)
    balance = CONFIG.balance_alpha * (uses * share).sum(-1).mean()
    routed = sum(
        gates[..., e, None] * feed_forward(lambda w, e=e: p(f"experts.{e}.{w}"), x) for e in range(CONFIG.experts)
    )
    return feed_forward(lambda w: p(f"shared.{w}"), x) + routed, balance


def block(params, biases, i, x):
    def p(name):
        return params[f"layers.{i}.{name}"]

    x = x + attention(lambda w: p(f"attn.{w}"), norm(x, p("attn_norm")))
    normed = norm(x, p("ffn_norm"))
    if i < CONFIG.dense_layers:
        return x + feed_forward(lambda w: p(f"ffn.{w}"), normed), 0.0
    update, balance = experts(lambda w: p(f"ffn.{w}"), normed, biases[f"layers.{i}.ffn.gate"])
    return x + update, balance


def objective(params, biases, tokens, mtp):
    """Cross-entropy, balance loss and the loss of a byte further."""
    x, balance = params["embed"][tokens[:, :-1]], 0.0
    for i in range(CONFIG.layers):
        x, loss = block(params, biases, i, x)
        balance = balance + loss
    logits = norm(x, params["norm"]) @ params["head"].T
    cross_entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    if not mtp:
        return cross_entropy, balance, torch.zeros(())
    last = f"layers.{CONFIG.layers}"
    following = norm(params["embed"][tokens[:, 1:]], params[f"{last}.embed_norm"])
    x = torch.cat([norm(x, params[f"{last}.hidden_norm"]), following], dim=-1) @ params[f"{last}.projection"].T
    x, loss = block(params, biases, CONFIG.layers, x)
    logits = (norm(x, params[f"{last}.norm"]) @ params["head"].T)[:, :-1]
    summed = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten(), reduction="sum")
    return cross_entropy, balance + loss, summed / tokens[:, 1:].numel()


@pytest.mark.parametrize("mtp", [0, 1])
def test_every_gradient_is_that_of_automatic_differentiation(mtp):
    rng = np.random.default_rng(0)
    model = Model(dataclasses.replace(CONFIG, mtp_depth=mtp), "float64", seed=1)
    model.params = {name: value + 0.2 * rng.standard_normal(value.shape) for name, value in model.params.items()}
    for bias in model.biases.values():
        bias[:] = 0.1 * rng.standard_normal(bias.shape)
    tokens = rng.integers(0, CONFIG.vocabulary, (3, 14), dtype=np.uint8)
    loss, grads = model.loss_and_grads(tokens)

    params = {name: torch.tensor(value, requires_grad=True) for name, value in model.params.items()}
    biases = {name: torch.tensor(value) for name, value in model.biases.items()}
    want, balance, further = objective(params, biases, torch.tensor(tokens, dtype=torch.long), mtp)
    (want + balance + CONFIG.mtp_weight * further).backward()

    assert abs(loss - want.item()) < 1e-12
    assert abs(model.balance_loss - balance.item()) < 1e-12
    assert abs(model.mtp_loss - further.item()) < 1e-12
    for name, grad in grads.items():
        automatic = params[name].grad.numpy()
        assert np.abs(grad - automatic).max() <= 1e-11 * max(1, np.abs(automatic).max()), name
