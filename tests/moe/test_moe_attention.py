"""Latent attention against the same formulas in NumPy einsums, and its gradients against finite differences."""

import dataclasses

import numpy as np
import pytest

from lowprec.kernels.model import attention as plain_kernels
from lowprec.kernels.model import attention_f32
from lowprec.moe.model.attention import LatentAttention, rotary_angles
from lowprec.moe.model.config import MoEConfig
from lowprec.recipe import recipes

CONFIG = MoEConfig(
    "small", dim=10, layers=1, dense_layers=1, heads=3, nope_dim=6, rope_dim=4, value_dim=5, q_rank=7, kv_rank=9,
    experts=2, top_k=1, groups=1, kept_groups=1, expert_width=4, dense_width=4,
)  # fmt: skip


def draw(config, tokens, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {name: s for name, s in config.parameter_shapes().items() if name.startswith("layers.0.attn.")}
    params = {name: rng.standard_normal(shape) * 0.6 for name, shape in shapes.items()}
    return params, rng.standard_normal((tokens, config.dim))


def attention(config=CONFIG):
    return LatentAttention("layers.0.attn", config, recipes["float64"].bind())


def reference(config, params, x, sequence):
    """The formulas of the module's docstring with complex rotation."""
    w = {name.removeprefix("layers.0.attn."): value for name, value in params.items()}
    h, n, r = config.heads, config.nope_dim, config.rope_dim

    def norm(x, gain):
        return gain * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.norm_eps)

    cosine, sine = rotary_angles(sequence, r, config.rope_theta, np.float64)

    def rotate(x):  # [B, S, H, r]
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * (cosine + 1j * sine)[:, None, :]
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    x = x.reshape(-1, sequence, config.dim)
    q = (norm(x @ w["wq_a"].T, w["q_norm"]) @ w["wq_b"].T).reshape(*x.shape[:2], h, n + r)
    latent = x @ w["wkv_a"].T
    kv = (norm(latent[..., : config.kv_rank], w["kv_norm"]) @ w["wkv_b"].T).reshape(*x.shape[:2], h, -1)
    k_rope = np.broadcast_to(rotate(latent[..., None, config.kv_rank :]), (*x.shape[:2], h, r))
    q = np.concatenate([q[..., :n], rotate(q[..., n:])], axis=-1)
    k = np.concatenate([kv[..., :n], k_rope], axis=-1)
    scores = np.einsum("bshc,bthc->bhst", q, k) / np.sqrt(n + r)
    scores[..., np.triu_indices(sequence, 1)[0], np.triu_indices(sequence, 1)[1]] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("bhst,bthc->bshc", weights, kv[..., n:]).reshape(*x.shape[:2], -1)
    return (out @ w["wo"].T).reshape(-1, config.dim)


@pytest.mark.parametrize("sequence", [1, 5, 16, 37])  # groups of four rows and of sixteen columns, whole and not
def test_forward_is_the_formula(sequence):
    params, x = draw(CONFIG, 3 * sequence)
    y, _ = attention().forward(params, x, sequence)
    np.testing.assert_allclose(y, reference(CONFIG, params, x, sequence), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sequence", [1, 7, 20])
def test_gradients_against_finite_differences(sequence):
    params, x = draw(CONFIG, 2 * sequence, seed=sequence)
    rng = np.random.default_rng(9)
    d_y = rng.standard_normal(x.shape)
    layer, grads = attention(), {}
    d_x = layer.backward(params, grads, d_y, layer.forward(params, x, sequence)[1])

    def directional(change):
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = {name: value + sign * step * change.get(name, 0) for name, value in params.items()}
            y, _ = layer.forward(moved, x + sign * step * change.get("x", 0), sequence)
            ends.append((y * d_y).sum())
        return (ends[0] - ends[1]) / (2 * step)

    assert grads.keys() == params.keys()
    for name, analytic in [*grads.items(), ("x", d_x)]:
        direction = rng.standard_normal(analytic.shape)
        want = directional({name: direction})
        assert abs((analytic * direction).sum() - want) < 1e-6 * max(1, abs(want)), name


def test_nothing_is_seen_of_the_future():
    params, x = draw(CONFIG, 2 * 11)
    before, _ = attention().forward(params, x, 11)
    changed = x.copy()
    changed[7] += 1.0  # the eighth token of the first sequence
    after, _ = attention().forward(params, changed, 11)
    moved = np.flatnonzero((before != after).any(axis=1))
    assert moved.tolist() == [7, 8, 9, 10]


def test_scores_depend_on_the_distance_of_positions_only():
    params, x = draw(CONFIG, 1)
    same = np.repeat(x, 6, axis=0)
    _, saved = attention().forward(params, same, 6)
    scores = saved.q[0] @ saved.k[0].T
    np.testing.assert_allclose(np.diagonal(scores, -2), scores[2, 0], rtol=1e-10)
    assert not np.isclose(scores[2, 0], scores[1, 0])


def test_probabilities_are_stored_in_the_recipes_format():
    config = dataclasses.replace(CONFIG, dim=128, q_rank=128, kv_rank=128, nope_dim=64, rope_dim=32, value_dim=64)
    params, x = draw(config, 32)
    params = {name: value.astype(np.float32) for name, value in params.items()}
    layer = LatentAttention("layers.0.attn", config, recipes["bf16"].bind())
    y, saved = layer.forward(params, recipes["bf16"].bind().store(x.astype(np.float32)), 16)
    for array in (y, saved.q, saved.k, saved.v, saved.probs):
        assert array.dtype == np.float32
        assert not (array.view(np.uint32) & 0xFFFF).any()
    assert np.abs(saved.probs.sum(axis=-1) - 1).max() < 2**-7


@pytest.mark.parametrize(("sequence", "width", "values"), [(128, 96, 64), (37, 11, 5), (1, 4, 3), (70, 33, 65)])
def test_products_on_the_gemm_tile_have_the_bits_of_sums_one_by_one(sequence, width, values):
    rng, heads = np.random.default_rng(sequence), 4

    def bf16(*shape):
        return recipes["bf16"].bind().store(rng.standard_normal(shape).astype(np.float32))

    q, k, v = bf16(heads, sequence, width), bf16(heads, sequence, width), bf16(heads, sequence, values)
    d_out, store = bf16(2 * sequence, 2 * values), recipes["bf16"].bind().store
    found = []
    for kernels in (plain_kernels, attention_f32):
        probs, d_scores = (np.full((heads, sequence, sequence), np.nan, np.float32) for _ in range(2))
        out, *grads = (np.full_like(x, np.nan) for x in (d_out, q, k, v))
        kernels.probabilities(q, k, 0.3, probs, 0, heads)
        store(probs)
        kernels.attend(probs, v, out, 0, heads)
        kernels.score_gradients(d_out, out, probs, v, 0.3, d_scores, 0, heads)
        store(d_scores)
        kernels.operand_gradients(d_out, d_scores, probs, q, k, *grads, 0, heads)
        found.append([array.tobytes() for array in (probs, out, d_scores, *grads)])
    assert found[0] == found[1]
