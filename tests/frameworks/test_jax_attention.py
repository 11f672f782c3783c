"""Attention kernels in JAX: the bits of `lowprec.attention` under transforms, gradients straight through."""

import functools

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.operands import quantize_operands

jax = pytest.importorskip("jax")

import lowprec.jax as lpj  # noqa: E402

pytestmark = pytest.mark.jax


def drawn():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 5, 16), (2, 2, 9, 16), (2, 2, 9, 8))]


def test_outputs_are_those_of_the_kernel_also_compiled():
    q, k, v = drawn()
    kernel = lp.attentions["fa3_fp8"]
    *operands, descale = quantize_operands(q, k, v, kernel)
    wanted = lp.attention(*operands, kernel=kernel, causal=True, descale=descale, out_format="float32").out

    def compute(*x):
        return lpj.attention(*x, causal=True)

    assert np.array_equal(compute(q, k, v), wanted)
    assert np.array_equal(jax.jit(compute)(q, k, v), wanted)
    half = lpj.attention(*(jax.numpy.asarray(x, jax.numpy.bfloat16) for x in (q, k, v)), "fa3_bf16")
    assert half.dtype == jax.numpy.bfloat16


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_nearly_those_of_exact_attention(causal):
    q, k, v = drawn()
    seen = np.tri(5, 9, 4 if causal else 9, dtype=bool)

    def exact(q, k, v):
        k, v = (jax.numpy.repeat(x, 2, 1) for x in (k, v))
        scores = jax.numpy.where(seen, q @ k.mT / 4, -np.inf)
        return (jax.nn.softmax(scores) @ v)[..., 0].sum()

    def found(q, k, v, kernel="fa3_fp8"):
        return lpj.attention(q, k, v, kernel, causal=causal)[..., 0].sum()

    plain = functools.partial(found, kernel=lp.attentions["fa3_fp8"].with_(plain_gradient=True))
    for ours, same, theirs in zip(*(jax.grad(f, (0, 1, 2))(q, k, v) for f in (found, plain, exact)), strict=True):
        assert 0 < np.linalg.norm(ours - theirs) < 0.15 * np.linalg.norm(theirs)
        np.testing.assert_allclose(same, theirs, 1e-5, 1e-5)


def test_masks_are_those_of_a_kernel():
    """Padding on the left is left out; with any other mask, the message has its first row that differs."""
    q, k, v = (x[:1] for x in drawn())
    seen = np.tri(5, 9, 4, dtype=bool)[None, None]
    assert np.array_equal(lpj.attention(q, k, v, mask=seen), lpj.attention(q, k, v, causal=True))
    padded = seen.copy()
    padded[..., :2] = False
    wanted = lpj.attention(q, k[:, :, 2:], v[:, :, 2:], causal=True)
    assert np.array_equal(jax.jit(lpj.attention)(q, k, v, mask=padded), wanted)
    padded[0, 0, 3, 5] = False
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"mask must be full, causal .* got row 3 of sequence 0"):
        lpj.attention(q, k, v, mask=padded)
    with pytest.raises(ValueError, match="mask must be None with causal=True"):
        lpj.attention(q, k, v, mask=seen, causal=True)
    with pytest.raises(ValueError, match=r"mask must be bool of shape \(1, 1, 5, 9\), one for all heads, got float32"):
        lpj.attention(q, k, v, mask=seen.astype(np.float32))


def test_any_mask_reaches_the_kernels_of_torch_and_their_gradients():
    q, k, v = drawn()
    seen = np.random.default_rng(1).random((2, 1, 5, 9)) < 0.5
    seen[1, 0, 2] = False

    def exact(q, k, v):
        k, v = (jax.numpy.repeat(x, 2, 1) for x in (k, v))
        p = jax.numpy.where(seen, jax.numpy.exp(q @ k.mT / 4), 0)
        return (p @ v / jax.numpy.maximum(p.sum(-1, keepdims=True), 1e-30))[..., 0].sum()

    def found(q, k, v):
        return lpj.attention(q, k, v, "sdpa_math", mask=seen)[..., 0].sum()

    wanted = lp.attention(q, k, v, kernel="sdpa_math", mask=seen).out
    assert np.array_equal(lpj.attention(q, k, v, "sdpa_math", mask=seen), wanted)
    for ours, theirs in zip(*(jax.grad(f, (0, 1, 2))(q, k, v) for f in (found, exact)), strict=True):
        assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)
