"""Attention kernels in JAX: the bits of `lowprec.attention` under transforms, gradients straight through."""

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

    def found(q, k, v):
        return lpj.attention(q, k, v, "fa3_fp8", causal=causal)[..., 0].sum()

    for ours, theirs in zip(*(jax.grad(f, (0, 1, 2))(q, k, v) for f in (found, exact)), strict=True):
        assert 0 < np.linalg.norm(ours - theirs) < 0.15 * np.linalg.norm(theirs)
