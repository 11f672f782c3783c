"""Norm, SwiGLU, embedding, rotation and loss against their formulas, written with plain NumPy in float64."""

import numpy as np
import pytest

from lowprec.kernels.model import nn
from lowprec.kernels.model.nn import dot
from lowprec.moe.model import attention, layers
from lowprec.recipe import recipes

RNG_SHAPE = (70, 12)  # more than one block of rows, the last one ragged


def values(seed, shape=RNG_SHAPE):
    return np.random.default_rng(seed).standard_normal(shape)


def gradient(function, x, d_y, step=1e-6):
    """Central differences of sum(function(x) * d_y), element by element."""
    out = np.empty_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        out[index] = ((function(up) - function(down)) * d_y).sum() / (2 * step)
    return out


@pytest.fixture
def exact():
    return recipes["float64"].bind()


def test_rms_norm(exact):
    x, gain = values(0), values(1, 12)
    norm = layers.RMSNorm("n", 1e-6, exact)
    y, _ = norm.forward({"n": gain}, x)
    np.testing.assert_allclose(y, gain * x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6), rtol=1e-14)


def test_rms_norm_gradients(exact):
    x, gain, d_y, residual = values(0), values(1, 12), values(2), values(3)
    norm = layers.RMSNorm("n", 0.01, exact)
    _, saved = norm.forward({"n": gain}, x)
    grads = {}
    d_x = norm.backward({"n": gain}, grads, d_y, saved, residual.copy())
    by_x = gradient(lambda x: norm.forward({"n": gain}, x)[0], x, d_y)
    by_gain = gradient(lambda gain: norm.forward({"n": gain}, x)[0], gain, d_y)
    np.testing.assert_allclose(d_x - residual, by_x, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(grads["n"], by_gain, rtol=1e-6, atol=1e-8)


def test_rms_norm_of_a_row_of_zeros_is_zero(exact):
    y, _ = layers.RMSNorm("n", 1e-6, exact).forward({"n": np.ones(4)}, np.zeros((1, 4)))
    assert y.tolist() == [[0.0] * 4]


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


def test_swiglu(exact):
    x = values(0, (9, 5))
    params = {"f.w1": values(1, (7, 5)), "f.w3": values(2, (7, 5)), "f.w2": values(3, (5, 7))}
    y, _ = layers.FeedForward("f", exact).forward(params, x)
    a, b = x @ params["f.w1"].T, x @ params["f.w3"].T
    np.testing.assert_allclose(y, (a / (1 + np.exp(-a)) * b) @ params["f.w2"].T, rtol=1e-12)


def test_swiglu_gradients(exact):
    x, d_y = values(0, (9, 5)), values(4, (9, 5))
    params = {"f.w1": values(1, (7, 5)), "f.w3": values(2, (7, 5)), "f.w2": values(3, (5, 7))}
    layer = layers.FeedForward("f", exact)
    grads = {}
    d_x = layer.backward(grads, d_y, layer.forward(params, x)[1])
    np.testing.assert_allclose(d_x, gradient(lambda x: layer.forward(params, x)[0], x, d_y), rtol=1e-6, atol=1e-7)
    for name in params:
        by_weight = gradient(lambda w, name=name: layer.forward(params | {name: w}, x)[0], params[name], d_y)
        np.testing.assert_allclose(grads[name], by_weight, rtol=1e-6, atol=1e-7)


def test_swiglu_with_a_limit(exact):
    """DeepSeek-V4's: the gate is cut from above, what it multiplies on both sides, and neither has a gradient there."""
    pairs = [(20, 3), (-20, 3), (1, 50), (1, -50), (10, 10), (0, 7)]
    wanted = [29.998638, -1.2366921e-07, 7.310586, -7.310586, 99.99546, 0]
    a, b = (np.array([side], np.float64) for side in zip(*pairs, strict=True))
    layer = layers.FeedForward("f", exact, limit=10.0)
    params = {"f.w1": a.T.copy(), "f.w3": b.T.copy(), "f.w2": np.eye(6)}
    x = np.ones((1, 1))
    y, saved = layer.forward(params, x)
    np.testing.assert_allclose(y[0], wanted, rtol=1e-6)
    grads = {}
    layer.backward(grads, np.ones((1, 6)), saved)
    assert (grads["f.w1"][:, 0] == 0).tolist() == [True, False, False, False, False, False]
    assert (grads["f.w3"][:, 0] == 0).tolist() == [False, False, True, True, False, True]  # silu(0) is 0, too
    without = {}
    free = layers.FeedForward("f", exact)
    free.backward(without, np.ones((1, 6)), free.forward(params, x)[1])
    assert grads["f.w3"][1, 0] == without["f.w3"][1, 0] != 0


def test_gradients_with_a_limit(exact):
    x, d_y = values(0, (9, 5)), values(4, (9, 5))
    params = {"f.w1": values(1, (7, 5)), "f.w3": values(2, (7, 5)), "f.w2": values(3, (5, 7))}
    layer, grads = layers.FeedForward("f", exact, limit=0.7), {}
    d_x = layer.backward(grads, d_y, layer.forward(params, x)[1])
    a, b = x @ params["f.w1"].T, x @ params["f.w3"].T
    assert (a > 0.7).any()
    assert (np.abs(b) > 0.7).any()
    np.testing.assert_allclose(d_x, gradient(lambda x: layer.forward(params, x)[0], x, d_y), rtol=1e-6, atol=1e-7)
    for name in params:
        by_weight = gradient(lambda w, name=name: layer.forward(params | {name: w}, x)[0], params[name], d_y)
        np.testing.assert_allclose(grads[name], by_weight, rtol=1e-6, atol=1e-7)


def test_feed_forward_without_tokens_has_zero_gradients():
    for name in ("bf16", "float64"):
        recipe = recipes[name].bind()
        dtype = np.float64 if name == "float64" else np.float32
        params = {f"f.{w}": np.ones((128, 128), dtype=dtype) for w in ("w1", "w3", "w2")}
        layer, grads = layers.FeedForward("f", recipe), {}
        y, saved = layer.forward(params, np.empty((0, 128), dtype=dtype))
        assert y.shape == (0, 128)
        assert layer.backward(grads, np.empty((0, 128), dtype=dtype), saved).shape == (0, 128)
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

    def loss(logits):
        return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(70), targets])

    got, d_logits = layers.cross_entropy(logits, targets)
    np.testing.assert_allclose(got, loss(logits), rtol=1e-14)
    want = gradient(loss, logits, 1.0)
    np.testing.assert_allclose(d_logits, want, rtol=1e-5, atol=1e-9)


def test_cross_entropy_of_far_apart_logits_is_finite():
    logits = np.array([[3e38, -3e38, 0], [0, 0, -3e38]], dtype=np.float32)
    loss, d_logits = layers.cross_entropy(logits, np.array([0, 0], np.uint8))
    assert loss == np.log(2) / 2
    assert d_logits.tolist() == [[0, 0, 0], [-0.25, 0.25, 0]]


def test_rotation_turns_pairs_by_position():
    cosine, sine = attention.rotary_angles(5, rope_dim=6, theta=10000.0, dtype=np.float64)
    position, pair = np.meshgrid(np.arange(5), np.arange(3), indexing="ij")
    np.testing.assert_allclose(cosine + 1j * sine, np.exp(1j * position * 10000.0 ** (-pair / 3)), rtol=1e-14)
    rounded, _ = attention.rotary_angles(5, rope_dim=6, theta=10000.0)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, cosine.astype(np.float32))
