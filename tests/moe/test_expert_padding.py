"""Runs of an expert's tokens: their tiles begin with the run, and zero rows up to whole tiles would change no bit.

DeepGEMM's and Megatron's grouped products need each expert's run padded with zero rows to a multiple of 128. Here a
run's last tile is as short as it happens to be, which costs nothing: this is the proof that it is the same.
"""

import numpy as np
import pytest

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


@pytest.mark.sampled(31)
@pytest.mark.parametrize("tokens", [1, 127, 200])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("recipe", [name for name in lp.recipes.names() if deterministic(name)])
def test_zero_rows_up_to_whole_tiles_change_no_bit(recipe, layer, tokens):
    rng = np.random.default_rng(tokens)
    x, dy, w = bf16(rng, tokens, 128), bf16(rng, tokens, 128), rng.standard_normal((128, 128), dtype=np.float32)
    padded = [np.concatenate([a, np.zeros((-tokens % 128, 128), np.float32)]) for a in (x, dy)]
    found = []
    for x_rows, dy_rows in ((x, dy), padded):
        ops = lp.recipes[recipe].bind(seed=0, layers=3).linear(layer)
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
    dy[:70] *= np.float32(1000)  # another expert's

    def wgrad(first):
        ops = lp.recipes["dsv3"].bind(seed=0, layers=3).linear(LAYERS[0])
        mine = dy.copy()
        mine[:70] *= np.float32(first)
        return ops.wgrad(mine, ops.fprop(x, np.eye(128, dtype=np.float32))[1])

    ops = lp.recipes["dsv3"].bind(seed=0, layers=3).linear(LAYERS[0])
    alone = ops.wgrad(dy[70:], ops.fprop(x[70:], np.eye(128, dtype=np.float32))[1])
    assert (wgrad(0) != alone).any()


def test_every_expert_works_on_its_own_run(monkeypatch):
    """The layer hands an expert its rows and nothing else, so that its tiles begin with its first token."""
    seen = {}
    model = Model("nano", "dsv3")
    moe = next(block.ffn for block in model._blocks if isinstance(block.ffn, MixtureOfExperts))
    for e, expert in enumerate(moe.experts):
        ops = expert.w1.ops

        class Noted:
            def __init__(self, e, ops):
                self.e, self.ops, self.input_spec = e, ops, ops.input_spec

            def __getattr__(self, name):
                return getattr(self.ops, name)

            def fprop(self, x, w, cached=None):
                seen[self.e] = len(x)
                return self.ops.fprop(x, w, cached)

        monkeypatch.setattr(expert.w1, "ops", Noted(e, ops))
    tokens = np.random.default_rng(0).integers(0, 256, (2, 65), dtype=np.uint8)
    model.loss_and_grads(tokens)
    loads = model.loads["layers.1.ffn.gate"]
    assert [seen[e] for e in range(configs["nano"].experts)] == loads.tolist()
    assert any(load % 128 for load in loads)
