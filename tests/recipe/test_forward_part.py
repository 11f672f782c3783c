"""What of a recipe a forward pass depends on: equal parts give equal bits, and what is left out changes none."""

import numpy as np
import pytest

from lowprec.moe.model.model import Model
from lowprec.recipe import recipes

TOKENS = np.frombuffer(b"what of it does a forward pass depend on, and what not? " * 3, np.uint8)[None, :129].copy()
BACKWARD = {
    "dgrad": {"a": "e5m2 1x128", "b": "e4m3fn 1x128", "accumulator": "float32"},
    "wgrad": {"a": "e5m2 1x128", "b": "e4m3fn 1x128", "accumulator": "float32"},
    "wgrad_input": "source",
    "moments": "float32",
    "dispatch_grad": "e5m2_1x128",
    "combine_grad": "e5m2_1x128",
    "cache_swiglu_input": "mxfp4_floor",
    "cache_attention_output": "mxfp4_floor",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", list(recipes))
def test_the_forward_part_gives_the_bits_of_the_whole(name):
    model = Model("nano", "bf16", seed=0)
    whole = model.with_recipe(recipes[name]).token_losses(TOKENS)
    assert np.array_equal(whole, model.with_recipe(recipes[name].forward).token_losses(TOKENS))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["bf16", "dsv3", "te_current", "nvfp4"])
def test_what_is_left_out_changes_no_bit_and_no_part(name):
    other = recipes[name].with_(**BACKWARD)
    assert other != recipes[name]
    model = Model("nano", "bf16", seed=0)
    assert np.array_equal(
        model.with_recipe(recipes[name]).token_losses(TOKENS), model.with_recipe(other).token_losses(TOKENS)
    )
    if name != "bf16":  # a change of all quantized layers makes some there
        assert other.forward == recipes[name].forward


@pytest.mark.parametrize("change", [{"x": "e5m2 1x128"}, {"dispatch": "bf16"}, {"fprop": {"promote_every": 64}}])
def test_what_a_forward_pass_does_is_in_it(change):
    assert recipes["dsv3"].with_(**change).forward != recipes["dsv3"].forward


def test_which_recipes_draw_and_which_remember():
    assert [name for name in recipes if recipes[name].remembers] == ["te_delayed"]
    assert not any(recipes[name].stochastic for name in recipes)  # nvfp4 rounds gradients alone so
    assert recipes["nvfp4"].with_(fprop={"a": "nvfp4_te stochastic"}).stochastic
