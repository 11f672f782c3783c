"""A recipe's attention kernel in the trainer: its forward pass, and the backward pass straight through."""

import dataclasses

import numpy as np
import pytest
from small_models import layer_weights, loss_and_bytes, random_bytes

import lowprec as lp
from lowprec.attn.operands import quantize_operands
from lowprec.moe.model.attention import LatentAttention
from lowprec.moe.model.config import configs
from lowprec.moe.model.model import Model
from lowprec.recipe import recipes

CONFIG = dataclasses.replace(configs["nano"], layers=2, sequence=32, batch=2)
TOKENS = random_bytes(2, 32)


def layer_of(kernel):
    """Return a layer, its parameters, an input of two sequences and the gradient of its output."""
    recipe, rng = recipes["bf16"].with_(attention=kernel).bind(), np.random.default_rng(2)
    params = layer_weights(CONFIG, "layers.0.attn", rng, size=0.3)
    x, d_y = (recipe.store(rng.standard_normal((64, CONFIG.dim)).astype(np.float32)) for _ in range(2))
    return LatentAttention("layers.0.attn", CONFIG, recipe), params, x, d_y


@pytest.mark.parametrize("kernel", ["fa3_bf16", "fa3_fp8", "fa4_fp8"])
def test_the_forward_pass_is_the_kernels(kernel):
    layer, params, x, _ = layer_of(kernel)
    _, saved = layer.forward(params, x, 32)
    shape = (2, CONFIG.heads, 32, -1)  # sequences, heads, tokens, channels
    *operands, descale = quantize_operands(
        *(part.reshape(shape) for part in (saved.q, saved.k, saved.v)), lp.attentions[kernel]
    )
    found = lp.attention(*operands, kernel=kernel, causal=True, descale=descale)
    assert np.array_equal(saved.output.reshape(2, 32, CONFIG.heads, -1), found.out.swapaxes(1, 2))
    assert np.array_equal(saved.lse.reshape(2, CONFIG.heads, 32), found.lse)
    assert saved.probs is None


def test_the_backward_pass_has_the_softmax_of_the_stored_operands_and_the_kernels_log_sum_exp():
    layer, params, x, _ = layer_of("fa3_fp8")
    _, saved = layer.forward(params, x, 32)
    *_, probs = layer._remade(params, saved)
    scores = np.float64(saved.q) @ np.float64(saved.k).swapaxes(1, 2) * CONFIG.query_dim**-0.5
    wanted = np.where(np.tri(32, dtype=bool), np.exp(scores - saved.lse[..., None]), 0)
    np.testing.assert_allclose(probs, wanted, rtol=2**-8)
    assert np.array_equal(probs, lp.round_to(probs, "bfloat16"))
    assert abs(probs.sum(-1) - 1).max() > 1e-3  # FP8's log-sum-exp is not that of the stored operands


def test_without_a_kernel_in_low_precision_the_gradients_are_those_of_the_plain_path():
    plain, exact = (layer_of(kernel) for kernel in (None, lp.attentions["fa3_bf16"]))
    grads = []
    for layer, params, x, d_y in (plain, exact):
        found = {}
        _, saved = layer.forward(params, x, 32)
        found["x"] = layer.backward(params, found, d_y, saved)
        grads.append(found)
    for name, value in grads[0].items():
        assert 0 < np.linalg.norm(grads[1][name] - value) < 0.03 * np.linalg.norm(value), name


def test_a_plain_gradient_is_that_of_attention_without_the_kernel():
    """All bits are the same, except for the weights after attention, which read the kernel's output."""
    kernel, grads = lp.attentions["fa3_fp8"].with_(plain_gradient=True), []
    for layer, params, x, d_y in map(layer_of, (None, kernel, "fa3_fp8")):
        found = {}
        y, saved = layer.forward(params, x, 32)
        found["x"] = layer.backward(params, found, d_y, saved)
        grads.append(found | {"y": y})
    differing = [[name for name in grads[0] if (grads[0][name] != other[name]).any()] for other in grads[1:]]
    assert differing[0] == ["layers.0.attn.wo", "y"]
    assert set(differing[1]) == set(grads[0])


def test_recomputing_changes_no_bit_and_the_kernel_changes_the_loss():
    for gradient in ("plain_gradient", "kernel_gradient"):
        recipe = recipes["dsv3"].with_(attention=f"fa3_fp8 {gradient}")
        saved_all, recomputed = (loss_and_bytes(Model(CONFIG, recipe, recompute=r), TOKENS) for r in ("none", "dsv3"))
        assert saved_all == recomputed
    assert saved_all[0] != loss_and_bytes(Model(CONFIG, "dsv3"), TOKENS)[0]
    assert Model(CONFIG, recipe).loss(TOKENS) == saved_all[0]


def test_bits_follow_the_kernels_fields_not_its_name():
    renamed = lp.attentions["fa3_fp8"].with_(name="mine")
    coarser = lp.attentions["fa3_fp8"].with_(p_format=lp.formats["e5m2"])
    one, same, other = (Model(CONFIG, recipes["bf16"].with_(attention=k)).loss(TOKENS)
                        for k in ("fa3_fp8", renamed, coarser))  # fmt: skip
    assert one == same != other


def test_a_head_size_that_the_kernel_does_not_have_is_refused_before_the_first_step():
    wide = dataclasses.replace(CONFIG, nope_dim=256)
    with pytest.raises(ValueError, match="head sizes must be at most D = 256, Dv = 256 for fa3_fp8, got D = 288"):
        Model(wide, recipes["bf16"].with_(attention="fa3_fp8"))


def test_float64_recipes_ignore_it():
    recipe = recipes["float64"].with_(attention="fa3_fp8")
    assert loss_and_bytes(Model(CONFIG, recipe), TOKENS) == loss_and_bytes(Model(CONFIG, "float64"), TOKENS)
