"""Runs of an expert's tokens: their tiles begin with the run, and zero rows up to whole tiles would change no bit.

DeepGEMM's and Megatron's grouped products need each expert's run padded with zero rows to a multiple of 128. Here a
run's last tile is as short as it happens to be, which costs nothing: this is the proof that it is the same.
"""

import numpy as np
import pytest
from small_models import random_bytes

import lowprec as lp
from lowprec.moe.model.config import configs
from lowprec.moe.model.model import Model
from lowprec.moe.model.routing import MixtureOfExperts

LAYERS = ("layers.1.ffn.experts.0.w1", "layers.1.ffn.experts.0.w2")


def bf16(rng, *shape):
    return lp.round_to(rng.standard_normal(shape).astype(np.float32) * np.float32(0.01), "bfloat16")


def deterministic(name):
    spec = lp.recipes[name].spec(LAYERS[0], 3)
    return name != "float64" and "stochastic" not in str(spec)


def linear(recipe, layer=LAYERS[0]):
    return lp.recipes[recipe].bind(seed=0, layers=3).linear(layer)


@pytest.mark.sampled(31)
@pytest.mark.parametrize("tokens", [1, 127, 200])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("recipe", [name for name in lp.recipes.names() if deterministic(name)])
def test_zero_rows_up_to_whole_tiles_change_no_bit(recipe, layer, tokens):
    rng, found = np.random.default_rng(tokens), []
    x, dy, w = bf16(rng, tokens, 128), bf16(rng, tokens, 128), rng.standard_normal((128, 128), dtype=np.float32)
    for zeros in (np.zeros((0, 128), np.float32), np.zeros((-tokens % 128, 128), np.float32)):
        ops, x_rows, dy_rows = linear(recipe, layer), np.concatenate([x, zeros]), np.concatenate([dy, zeros])
        y, saved = ops.fprop(x_rows, w)
        dx, dw = ops.dgrad(dy_rows, saved), ops.wgrad(dy_rows, saved)
        assert not y[tokens:].any()
        assert not dx[tokens:].any()
        found.append([a.tobytes() for a in (y[:tokens], dx[:tokens], dw)])
    assert found[0] == found[1]


def test_a_run_that_does_not_begin_a_tile_has_other_bits():
    """The reason that tiles must begin with the run: tokens of two experts would share scales."""
    rng = np.random.default_rng(0)
    x, dy = bf16(rng, 200, 128), bf16(rng, 200, 128)
    dy[:70] = 0  # another expert's

    def wgrad(x, dy):
        ops = linear("dsv3")
        return ops.wgrad(dy, ops.fprop(x, np.eye(128, dtype=np.float32))[1])

    assert (wgrad(x, dy) != wgrad(x[70:], dy[70:])).any()


def test_every_expert_works_on_its_own_run(monkeypatch):
    """The layer hands an expert its rows and nothing else, so that its tiles begin with its first token."""
    seen, model = {}, Model("nano", "dsv3")
    moe = next(block.ffn for block in model._blocks if isinstance(block.ffn, MixtureOfExperts))
    for e, expert in enumerate(moe.experts):

        def fprop(x, w, cached=None, *, e=e, plain=expert.w1.ops.fprop):
            seen[e] = len(x)
            return plain(x, w, cached)

        monkeypatch.setattr(expert.w1.ops, "fprop", fprop)
    model.loss_and_grads(random_bytes(2, 64))
    loads = model.loads["layers.1.ffn.gate"]
    assert [seen[e] for e in range(configs["nano"].experts)] == loads.tolist()
    assert any(load % 128 for load in loads)
