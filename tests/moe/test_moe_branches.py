"""A codec on what a block adds to the residual stream."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model


@pytest.fixture(scope="module")
def model():
    return Model("nano", "bf16", seed=1)


def streams(model, recipe):
    """Return the stream after each addition of block 0, and what was added: of the embedding of some text."""
    model = model.with_recipe(recipe)
    params, block = model.params, model._blocks[0]
    seen = []
    block.branches = [lambda x, kept=kept: seen.append(x.copy()) or kept(x) for kept in block.branches]
    x = model._embed.forward(params, load_corpus("stdlib").held_out[:128])
    after, _, _ = block.forward(params, model.biases, x, 128)
    return x, seen, after


@pytest.mark.parametrize("part", [0, 1])
def test_a_branch_passes_its_codec_before_it_is_added(model, part):
    name = ("attn_branch", "ffn_branch")[part]
    recipe = lp.recipes["bf16"].with_(storage={f"layers.*.{name}": "e5m2_1x128"})
    x, added, after = streams(model, recipe)
    arrived = [lp.codecs["e5m2_1x128"].round_trip(a) if i == part else a for i, a in enumerate(added)]
    middle = lp.round_to(x + arrived[0], "bfloat16")
    assert np.array_equal(after, lp.round_to(middle + arrived[1], "bfloat16"))
    assert not np.array_equal(arrived[part], added[part])


def test_a_codec_that_loses_nothing_and_no_codec_give_the_same_bits(model):
    tokens = load_corpus("stdlib").held_out[: 2 * 129].reshape(2, 129).copy()
    loss, gradients = model.loss_and_grads(tokens)
    kept = model.with_recipe(lp.recipes["bf16"].with_(storage={"layers.*_branch": "float32"}))
    again, others = kept.loss_and_grads(tokens)
    assert again == loss
    assert all(np.array_equal(gradients[name], others[name]) for name in gradients)


def test_what_only_passes_is_left_alone():
    x = np.array([[1.001]], np.float32)
    bound = lp.recipes["bf16"].bind()
    assert bound.storage("layers.0.ffn_branch", passing=True)(x) is x
    assert x == np.float32(1.001)
    assert bound.storage("layers.0.ffn_norm")(x) == 1.0
