"""Attention, norm, SwiGLU, embedding, rotation and loss against their formulas, written with NumPy in float64."""

import dataclasses

import numpy as np
import pytest
from small_models import layer_weights

from lowprec.kernels.model import attention as plain_kernels
from lowprec.kernels.model import attention_f32, nn
from lowprec.kernels.model.nn import dot
from lowprec.moe.model import layers
from lowprec.moe.model.attention import LatentAttention, rotary_angles
from lowprec.moe.model.config import MoEConfig
from lowprec.recipe import recipes

RNG_SHAPE = (70, 12)  # more than one block of rows, the last one ragged


def values(seed, shape=RNG_SHAPE):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def exact():
    return recipes["float64"].bind()


def test_rms_norm(exact):
    x, gain = np.concatenate([np.zeros((1, 12)), values(0)]), values(1, 12)
    y, _ = layers.RMSNorm("n", 1e-6, exact).forward({"n": gain}, x)
    np.testing.assert_allclose(y, gain * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6), rtol=1e-14)


def test_sums_over_tokens_run_block_by_block():
    # 2**53 | 1 - 2**53: token by token the 1 would be lost.
    x = np.ones((nn.BLOCK + 2, 4))
    d_y = np.zeros_like(x)
    d_y[0], d_y[nn.BLOCK], d_y[nn.BLOCK + 1] = 2.0**53, 1.0, -(2.0**53)
    partial, total = np.zeros((2, 4)), np.empty(4, dtype=np.float32)
    nn.rms_norm_backward(d_y, x, np.ones(4), np.ones(len(x)), np.zeros_like(x), partial, 0, len(x))
    nn.sum_blocks(partial, total)
    assert total.tolist() == [1.0] * 4


@pytest.mark.parametrize("size", [1, 3, 4, 11])
def test_dot_takes_every_element(size):
    a, b = np.arange(1.0, size + 1), np.arange(2.0, size + 2)
    assert dot(a.astype(np.float32), b.astype(np.float32)) == (a * b).sum()


def test_swiglu_with_a_limit(exact):
    """DeepSeek-V4's: the gate is cut from above, what it multiplies on both sides, and neither has a gradient there."""
    a, b = np.array([(20, 3), (-20, 3), (1, 50), (1, -50), (10, 10), (0, 7)], np.float64).T
    params = {"f.w1": a[:, None].copy(), "f.w3": b[:, None].copy(), "f.w2": np.eye(6)}

    def results(**limit):
        layer, grads = layers.FeedForward("f", exact, **limit), {}
        y, saved = layer.forward(params, np.ones((1, 1)))
        layer.backward(grads, np.ones((1, 6)), saved)
        return y[0], grads["f.w1"][:, 0], grads["f.w3"][:, 0]

    y, d_a, d_b = results(limit=10.0)
    np.testing.assert_allclose(y, [29.998638, -1.2366921e-07, 7.310586, -7.310586, 99.99546, 0], rtol=1e-6)
    assert (d_a == 0).tolist() == [True, False, False, False, False, False]
    assert (d_b == 0).tolist() == [False, False, True, True, False, True]  # silu(0) is 0, too
    assert d_b[1] == results()[2][1] != 0


@pytest.mark.parametrize(("name", "dtype"), [("bf16", np.float32), ("float64", np.float64)])
def test_feed_forward_without_tokens_has_zero_gradients(name, dtype):
    params = {f"f.{w}": np.ones((128, 128), dtype=dtype) for w in ("w1", "w3", "w2")}
    layer, grads, none = layers.FeedForward("f", recipes[name].bind()), {}, np.empty((0, 128), dtype=dtype)
    y, saved = layer.forward(params, none)
    assert y.shape == layer.backward(grads, none, saved).shape == (0, 128)
    assert all(not grad.any() and grad.shape == (128, 128) for grad in grads.values())


def test_swiglu_of_extremes_is_finite():
    a = np.array([[-1000.0, -88.0, 0.0, 88.0, 1000.0]], dtype=np.float32)
    out, d_a, d_b = np.empty_like(a), np.empty_like(a), np.empty_like(a)
    nn.swiglu_forward(a, np.ones_like(a), out, 0, 1)
    nn.swiglu_backward(np.ones_like(a), a, np.ones_like(a), d_a, d_b, 0, 1)
    assert out[0, [0, 2, 3, 4]].tolist() == [0.0, 0.0, 88.0, 1000.0]
    assert d_a[0, [0, 2, 4]].tolist() == [0.0, 0.5, 1.0]
    assert np.isfinite(np.concatenate([out, d_a, d_b])).all()


def test_embedding_and_its_gradient(exact):
    table, tokens, d_y = values(0, (6, 4)), np.array([3, 0, 3, 5, 3], np.uint8), values(1, (5, 4))
    layer, grads = layers.Embedding("e", exact), {}
    np.testing.assert_array_equal(layer.forward({"e": table}, tokens), table[tokens])
    layer.backward({"e": table}, grads, [d_y], [tokens])
    want = np.zeros_like(table)
    np.add.at(want, tokens, d_y)
    np.testing.assert_array_equal(grads["e"], want)


def test_cross_entropy_and_its_gradient():
    logits, targets = values(0, (70, 11)) * 3, (np.arange(70) * 7 % 11).astype(np.uint8)
    loss, d_logits = layers.cross_entropy(logits, targets)
    exps = np.exp(logits)
    np.testing.assert_allclose(loss, np.mean(np.log(exps.sum(1)) - logits[np.arange(70), targets]), rtol=1e-14)
    shares = exps / exps.sum(1, keepdims=True)
    np.testing.assert_allclose(d_logits, (shares - np.eye(11)[targets]) / 70, rtol=1e-12)


def test_cross_entropy_of_far_apart_logits_is_finite():
    logits = np.array([[3e38, -3e38, 0], [0, 0, -3e38]], dtype=np.float32)
    loss, d_logits = layers.cross_entropy(logits, np.array([0, 0], np.uint8))
    assert loss == np.log(2) / 2
    assert d_logits.tolist() == [[0, 0, 0], [-0.25, 0.25, 0]]


def test_rotation_turns_pairs_by_position():
    cosine, sine = rotary_angles(5, rope_dim=6, theta=10000.0, dtype=np.float64)
    position, pair = np.meshgrid(np.arange(5), np.arange(3), indexing="ij")
    np.testing.assert_allclose(cosine + 1j * sine, np.exp(1j * position * 10000.0 ** (-pair / 3)), rtol=1e-14)
    rounded, _ = rotary_angles(5, rope_dim=6, theta=10000.0)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, cosine.astype(np.float32))


# --- latent attention -------------------------------------------------------------------------------------------------


CONFIG = MoEConfig(
    "small", dim=10, layers=1, dense_layers=1, heads=3, nope_dim=6, rope_dim=4, value_dim=5, q_rank=7, kv_rank=9,
    experts=2, top_k=1, expert_groups=1, topk_groups=1, expert_width=4, dense_width=4,
)  # fmt: skip


def draw(config, tokens, seed=0):
    rng = np.random.default_rng(seed)
    return layer_weights(config, "layers.0.attn", rng, np.float64, 0.6), rng.standard_normal((tokens, config.dim))


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
    y, _ = LatentAttention("layers.0.attn", CONFIG, recipes["float64"].bind()).forward(params, x, sequence)
    np.testing.assert_allclose(y, reference(CONFIG, params, x, sequence), rtol=1e-10, atol=1e-12)


def test_probabilities_are_stored_in_the_recipes_format():
    config = dataclasses.replace(CONFIG, dim=128, q_rank=128, kv_rank=128, nope_dim=64, rope_dim=32, value_dim=64)
    (params, x), recipe = draw(config, 32), recipes["bf16"].bind()
    params = {name: value.astype(np.float32) for name, value in params.items()}
    layer = LatentAttention("layers.0.attn", config, recipe)
    y, saved = layer.forward(params, recipe.store(x.astype(np.float32)), 16)
    for array in (y, saved.q, saved.k, saved.v, saved.probs):
        assert array.dtype == np.float32
        assert not (array.view(np.uint32) & 0xFFFF).any()
    assert np.abs(saved.probs.sum(axis=-1) - 1).max() < 2**-7


@pytest.mark.parametrize(("sequence", "width", "values"), [(128, 96, 64), (37, 11, 5), (1, 4, 3), (70, 33, 65)])
def test_products_on_the_gemm_tile_have_the_bits_of_sums_one_by_one(sequence, width, values):
    rng, heads, store, found = np.random.default_rng(sequence), 4, recipes["bf16"].bind().store, []
    shapes = *[(heads, sequence, width)] * 2, (heads, sequence, values), (2 * sequence, 2 * values)
    q, k, v, d_out = (store(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)
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
