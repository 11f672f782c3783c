"""Memory policies: the same bits whatever is kept, and as many bytes kept as the shapes say."""

import dataclasses
import functools

import numpy as np
import pytest
from small_models import loss_and_bytes, random_bytes

import lowprec as lp
from lowprec.moe.model.config import configs
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy, recompute_policies, saved_activation_bytes
from lowprec.moe.model.model import Model

CONFIG = dataclasses.replace(configs["nano"], layers=2, experts=4, top_k=2, expert_groups=2, topk_groups=1, mtp_depth=1)


THREE = "float64", "bf16", "dsv3"
SOME = [(policy, recipe) for policy in recompute_policies if policy != "none" for recipe in THREE]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "recipe"), sorted({*SOME, *(("dsv3", name) for name in lp.recipes)}))
def test_computing_again_gives_the_same_bits(recipe, policy):
    again = Model(CONFIG, recipe, recompute=policy)
    assert loss_and_bytes(again, random_bytes(2, 32)) == all_kept(recipe)


@functools.cache
def all_kept(recipe):
    return loss_and_bytes(Model(CONFIG, recipe), random_bytes(2, 32))


def test_a_cached_swiglu_input_changes_the_gradients_of_the_experts_alone():
    tokens, exact = random_bytes(2, 32), Model(CONFIG, "bf16")
    rough = exact.with_recipe(lp.recipes["bf16"].with_(name="mine", saved_swiglu_input="fp8_1x128"))
    (loss, grads), (same_loss, other) = exact.loss_and_grads(tokens), rough.loss_and_grads(tokens)
    assert loss == same_loss
    changed = {name for name in grads if (grads[name] != other[name]).any()}
    # The prediction module's block comes last: what is behind its SwiGLU is as it was.
    assert {"layers.2.ffn.experts.0.w2", "layers.2.ffn.shared.w2", "layers.1.ffn.experts.0.w1"} <= changed
    assert not changed & {"layers.2.norm", "layers.2.ffn.gate", "norm"}
    dense = dataclasses.replace(configs["nano"], layers=1)  # SwiGLU outside of experts is not cached
    plain, cached = Model(dense, "bf16"), Model(dense, lp.recipes["bf16"].with_(saved_swiglu_input="fp8_1x128"))
    assert loss_and_bytes(plain, tokens) == loss_and_bytes(cached, tokens)


# Bytes a token, from the shapes alone. B = bytes of a value where a linear layer's input waits: 2 in BF16, and in E4M3
# with a float32 scale for each 128 values 1 + 4 / 128.


def formula(c, policy, linear):
    n, r, v, h = c.nope_dim, c.rope_dim, c.value_dim, c.heads
    bf16 = 2
    latents = (c.q_rank + c.kv_rank) * bf16 + 2 * 8  # inputs of their norms, and the norms' float64 factors
    attention = c.dim * bf16 + 8 + latents + h * v * linear  # the stream, what wo multiplies
    if not policy.norms:
        attention += (c.dim + c.q_rank + c.kv_rank) * linear
    attention += r * bf16 if policy.up_projections else h * (2 * (n + r) + v) * bf16
    attention += 0 if linear == bf16 else h * v * bf16  # attention's own backward pass reads its output, too
    attention += 0 if policy.probabilities else h * c.sequence * bf16

    def network(width, x):
        return x + 2 * width * bf16 + (0 if policy.swiglu else width * linear)

    stream = c.dim * bf16 + 8
    own = 0 if policy.norms else c.dim * linear
    dense = stream + network(c.dense_width, own)
    # The gate is BF16: its input waits apart from the quantized one of the shared expert.
    gate = 0 if policy.norms or linear == bf16 else c.dim * bf16
    routed = c.top_k * (network(c.expert_width, c.dim * linear) + c.dim * bf16)  # and what the experts returned
    # scores and their gradient, chosen experts, gates, two ways to find rows
    routing = 2 * 4 * c.experts + c.top_k * (8 + 4 + 8 + 8)
    experts = stream + network(c.shared_experts * c.expert_width, own) + gate + routed + routing
    blocks = c.layers * attention + c.dense_layers * dense + (c.layers - c.dense_layers) * experts
    return blocks + 2 * (c.dim * bf16) + 8  # the last norm's input and the head's


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["nano", "tiny"])
@pytest.mark.parametrize("policy", recompute_policies.names())
@pytest.mark.parametrize(("recipe", "linear"), [("bf16", 2.0), ("fp8", 1 + 4 / 128)])
def test_bytes_kept_are_those_of_the_shapes(name, policy, recipe, linear):
    config, tokens = configs[name], random_bytes(2, 128)
    if recipe == "fp8":  # all scales float32, nothing cached in another format
        plain = {"dispatch": "bf16", "saved_attention_output": "bf16", "saved_swiglu_input": "bf16"}
        recipe = lp.recipes["dsv3"].with_(name="fp8", x="e4m3fn 1x128", **plain)
    found = Model(config, recipe, recompute=policy).activation_bytes(tokens)
    per_sequence = 8 * config.experts * (config.layers - config.dense_layers)  # loads
    want = formula(config, recompute_policies[policy], linear) * 256 + per_sequence
    assert sum(found.values()) == want, found


def test_what_waits_in_a_narrow_format_counts_its_own_bytes():
    tokens, config = random_bytes(2, 128), configs["nano"]

    def kept(**changes):
        return Model(config, lp.recipes["dsv3"].with_(name="mine", **changes)).activation_bytes(tokens)

    plain = kept(saved_attention_output="bf16", saved_swiglu_input="bf16")
    e5m6 = kept(saved_attention_output="e5m6_1x128_ue8m0", saved_swiglu_input="bf16")
    values = 256 * config.heads * config.value_dim * config.layers
    assert e5m6["input of wo"] == values * 12 // 8 + values // 128
    assert plain["input of wo"] == values + values // 128
    assert plain["output of attention"] == 2 * values
    assert "output of attention" not in e5m6
    fp8 = kept(saved_attention_output="bf16", saved_swiglu_input="fp8_1x128")
    width = 256 * 3 * config.expert_width * (config.layers - config.dense_layers)
    dense = 2 * 2 * 256 * config.dense_width
    assert plain["inputs of SwiGLU"] == 2 * 2 * width + dense
    assert fp8["inputs of SwiGLU"] == 2 * (width + 4 * width // 128) + dense
    assert fp8["inputs of w2"] == 256 * (config.dense_width + 4 * config.dense_width // 128)


def test_arrays_that_are_kept_twice_count_once():
    x = np.ones((4, 8), np.float32)
    assert saved_activation_bytes((x, [x, {"again": x}])) == {"routing": 64}
    assert saved_activation_bytes(x + np.float32(2**-20)) == {"routing": 128}


def test_a_policy_says_what_it_does():
    assert str(SAVE_ALL) == "everything saved"
    assert str(RecomputePolicy("mine", norms=True, swiglu=True)) == "norms, swiglu again"
