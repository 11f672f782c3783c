"""What the DeepSeek-V3 report (arXiv 2412.19437) says of its FP8 training, held against what the trainer does."""

import dataclasses

import numpy as np
import pytest
from small_models import layer_weights, random_bytes

import lowprec as lp
from lowprec.moe.model.attention import LatentAttention
from lowprec.moe.model.config import configs
from lowprec.moe.model.layers import FeedForward
from lowprec.moe.model.model import Model
from lowprec.moe.model.routing import route
from lowprec.recipe import recipes
from lowprec.recipe.operands import quantize_operand

CONFIG = dataclasses.replace(configs["nano"], layers=2, sequence=32, batch=2)
FROM_DEEPSEEK = [name for name in recipes if name.startswith("dsv3") and "tensor" not in name]


# --- section 3.3.3: inputs of the linear layer after attention are used by attention's backward pass, too ------------


TOKENS = random_bytes(2, 32)


def gradients(codec=None):
    """Return loss and gradients in BF16 that keeps attention's output in another form until the backward pass."""
    return Model(CONFIG, kept_in(codec) if codec else "bf16").loss_and_grads(TOKENS)


def kept_in(codec):
    return recipes["bf16"].with_(saved_attention_output=codec)


def test_the_form_in_which_attentions_output_waits_reaches_attentions_own_gradients():
    (loss, exact), (same, rough) = gradients(), gradients("fp8_1x128")
    assert loss == same
    changed = {name for name in exact if not np.array_equal(exact[name], rough[name])}
    # The last block is the first that the backward pass meets.
    assert {f"layers.1.attn.{name}" for name in ("wo", "wq_a", "wq_b", "q_norm", "wkv_a", "wkv_b")} <= changed
    assert not {name for name in changed if name.startswith("layers.1.ffn.")}


def test_e5m6_spares_attentions_gradients_what_e4m3_does_to_them():
    exact, *rough = (
        gradients(codec)[1]["layers.1.attn.wq_b"] for codec in (None, "e5m6_1x128_ue8m0", "fp8_1x128_ue8m0")
    )
    e5m6, e4m3 = (np.linalg.norm(grad - exact) for grad in rough)
    # Three bits of mantissa more are a factor of 8 on what is kept; the rest of the gradient's rounding stays.
    assert 0 < e5m6 < e4m3 / 4


def test_the_gradient_of_scores_loses_the_sum_of_output_and_its_gradient_as_they_are():
    config = dataclasses.replace(CONFIG, heads=1)
    recipe, rng, grads = kept_in("e5m6_1x128_ue8m0").bind(), np.random.default_rng(1), {}
    layer, params = LatentAttention("layers.0.attn", config, recipe), layer_weights(config, "layers.0.attn", rng)
    x, d_y = (recipe.store(rng.standard_normal((32, config.dim)).astype(np.float32)) for _ in range(2))
    _, saved = layer.forward(params, x, 32)
    assert saved.output is None
    layer.backward(params, grads, d_y, saved)

    out = recipe.cache("attention_output").decode(saved.linears["wo"].x.kept)
    d_out = layer.linears["wo"].ops.dgrad(d_y, saved.linears["wo"])
    d_probs = lp.matmul_f32(d_out, saved.v[0])
    means = (d_out.astype(np.float64) * out.astype(np.float64)).sum(axis=1, keepdims=True)
    d_scores = recipe.store(np.tril(layer.scale * (saved.probs[0] * (d_probs - means))).astype(np.float32))
    d_q = lp.matmul_f32(d_scores, saved.k[0].T)
    nope = config.nope_dim  # the channels without position turn nowhere
    weight = lp.matmul_f32(recipe.store(d_q)[:, :nope].T, saved.linears["wq_b"].x.kept.T)
    np.testing.assert_array_equal(grads["layers.0.attn.wq_b"][:nope], weight)


@pytest.mark.parametrize("name", FROM_DEEPSEEK)
def test_what_attention_gives_to_wo_has_scales_of_powers_of_two_in_both_directions(name):
    recipe = recipes[name]
    codec = recipe.saved_attention_output
    spec = recipe.spec("layers.1.attn.wo")
    assert (codec.scale_format.name, str(spec.fprop.a)) == ("e8m0fnu", "e4m3fn 1x128 ue8m0")
    assert str(spec.wgrad.b.T) == "e4m3fn 128x1 ue8m0"
    # So turning tiles loses nothing: what E4M3 tiles hold along the channels, tiles along the tokens hold, too.
    x = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    rows = quantize_operand(spec.fprop.a, x).dequantize()
    columns = quantize_operand(spec.wgrad.b.T, rows).T.dequantize()
    assert np.mean(rows != columns.T) < 0.01  # but for a few that become subnormal


# --- section 3.3.3: the gradient before the down-projection is dispatched in FP8, combines are BF16 ------------------


@pytest.mark.parametrize("name", FROM_DEEPSEEK)
def test_an_experts_gradient_is_quantized_once(name):
    """What Dgrad of the down-projection multiplies are the values that the wire delivered."""
    recipe, rows = recipes[name], np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32)
    delivered = recipe.bind().store(recipe.combine_grad.round_trip(rows))
    multiplied = quantize_operand(recipe.spec("layers.1.ffn.experts.0.w2").dgrad.a, delivered).dequantize()
    np.testing.assert_array_equal(multiplied, lp.codecs["fp8_1x128_ue8m0"].round_trip(rows))
    assert not np.array_equal(multiplied, rows)


@pytest.mark.parametrize("name", FROM_DEEPSEEK)
def test_both_combines_are_bf16(name):
    sent = {wire: getattr(recipes[name], wire) for wire in ("dispatch", "combine", "combine_grad", "dispatch_grad")}
    assert [codec.name for codec in sent.values()] == ["fp8_1x128_ue8m0", "bf16"] * 2


# --- section 3.3.2: one sum cannot change its scale on the way -------------------------------------------------------


def test_which_sums_without_promotion_hardware_could_do():
    never = {
        name: recipe.typical_linear for name, recipe in ((n, recipes[n]) for n in recipes) if "no_promotion" in name
    }
    assert all(spec.fprop.promote_every is None for spec in never.values())
    what_if = {
        name
        for name, spec in never.items()
        if spec.x.tile is not None and spec.x.resolved.scale_format == lp.formats["float32"]
    }
    assert what_if == {"dsv3_no_promotion"}
    assert "hypothetical" in recipes["dsv3_no_promotion"].description
    assert never["dsv3_tensor_no_promotion"].x.granularity == "tensor"
    assert never["dsv3_ue8m0_no_promotion"].x.resolved.scale_format == lp.formats["e8m0fnu"]


# --- section 2.1.2: node-limited routing -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", configs.names())
def test_the_limit_to_some_groups_of_experts_is_at_work(name):
    config = configs[name]
    logits = np.random.default_rng(0).standard_normal((256, config.experts)).astype(np.float32)
    limited, free = (
        np.sort(route(logits, np.zeros(config.experts, np.float32), shape, 128).chosen, axis=1)
        for shape in (config, dataclasses.replace(config, expert_groups=1, topk_groups=1))
    )
    assert np.mean((limited != free).any(axis=1)) > 0.2


# --- the released weights: the projection of the module that predicts a byte further is BF16 -------------------------


@pytest.mark.parametrize("name", [name for name in recipes if name.startswith("dsv3")])
def test_the_projection_of_the_module_for_a_byte_further_is_in_bf16(name):
    for recipe in (recipes[name], recipes[name].with_(dy="e5m2 1x128")):
        quantized = {layer: recipe.spec(layer).quantized for layer in ("layers.3.projection", "layers.3.attn.wq_a")}
        assert quantized == {"layers.3.projection": False, "layers.3.attn.wq_a": True}


# --- section 3.3.3 (2): Wgrad of the down-projection, whose input is computed again ----------------------------------

#: dsv3 and, of the reading that quantizes the recomputed input once, what differs.
TWICE = recipes["dsv3"]
ONCE = TWICE.with_(layers={"layers.*.ffn.experts.*.w2": {"wgrad_input": "high_precision"}})


def down_projection(recipe):
    """Return an expert's gradients, its recomputed input and the output gradient of its down-projection."""
    bound, rng, grads = recipe.bind(layers=3), np.random.default_rng(0), {}
    network = FeedForward("layers.1.ffn.experts.0", bound, cache=bound.cache("swiglu_input"))
    params = layer_weights(configs["nano"], "layers.1.ffn.experts.0", rng, size=1 / 8)
    x, d_y = (bound.store(rng.standard_normal((512, 128)).astype(np.float32)) for _ in range(2))
    _, saved = network.forward(params, x)
    network.backward(grads, d_y, saved)
    hidden = network._hidden(*(bound.store(network.cache.decode(kept)) for kept in (saved.a, saved.b)))
    return grads, hidden, d_y


def test_wgrad_of_the_down_projection_reads_fprops_operand_and_by_choice_the_source():
    of = {}
    for name, recipe in (("twice", TWICE), ("once", ONCE)):
        grads, hidden, d_y = down_projection(recipe)
        read = lp.quantize(hidden, "e4m3fn 1x128").dequantize() if name == "twice" else hidden
        x = lp.quantize(read, "e4m3fn 128x1")
        dy = lp.quantize(d_y, "e4m3fn 128x1 ue8m0")
        expected = lp.gemm(dy.T, x.T, accumulator="hopper_fp8", promote_every=128)
        got = grads.pop("layers.1.ffn.experts.0.w2")
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))
        exact = dy.dequantize().T.astype(np.float64) @ hidden
        pairs = ((x.dequantize(), hidden), (got, exact))
        of[name] = grads, [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]
    assert all(np.array_equal(grad, of["once"][0][name]) for name, grad in of["twice"][0].items())
    # As docs/training.md says: of the operand, and of the gradient that is made with it.
    assert of["twice"][1] == pytest.approx([0.032, 0.032], abs=1e-3)
    assert of["once"][1] == pytest.approx([0.022, 0.022], abs=1e-3)
