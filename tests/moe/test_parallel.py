"""Gradients of several ranks: what one rank would have found, but for the wires."""

import numpy as np
import pytest
from refusals import refusals
from small_models import held_out_bytes, in_bytes

import lowprec as lp
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model
from lowprec.moe.run.parallel import DataParallel, SingleRank, flatten_gradients, gradient_backend, unflatten_gradients
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe.reduction import GradientAllReduce
from lowprec.registry import UnknownNameError


@pytest.fixture(scope="module")
def tokens():
    return held_out_bytes(4)


def test_a_lossless_reduction_gives_the_mean_of_the_ranks(tokens):
    model = Model("nano", "float32", seed=0)
    loss, gradients = DataParallel(GradientAllReduce(4, "one_shot", "float32"), 4).loss_and_grads(model, tokens)
    loads = {name: load.tolist() for name, load in model.loads.items()}
    whole, exact = model.loss_and_grads(tokens)
    assert loss == pytest.approx(whole, rel=1e-12)
    for name, gradient in gradients.items():
        assert np.allclose(gradient, exact[name], rtol=1e-3, atol=1e-6), name
        assert (gradient.shape, gradient.dtype) == (exact[name].shape, np.float32)
    assert loads == {name: load.tolist() for name, load in model.loads.items()}


def test_every_parameter_goes_through_the_codec(tokens):
    model = Model("nano", "bf16", seed=0)
    shards = [model.loss_and_grads(part)[1] for part in np.split(tokens, 4)]
    _, got = DataParallel(GradientAllReduce(4, "ring", "e5m2_1x128"), 4).loss_and_grads(model, tokens)
    shards = np.stack([flatten_gradients(shard) / np.float32(4) for shard in shards])
    rows = lp.collectives["ring"].all_reduce(shards, "e5m2_1x128")
    assert all(np.array_equal(gradient, unflatten_gradients(rows, got)[name]) for name, gradient in got.items())
    assert sum(g.size for g in got.values()) <= rows.size < sum(g.size + 128 for g in got.values())


def test_a_bucket_keeps_every_value_and_begins_rows_with_parameters():
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 100), "b": (5,), "c": (2, 128), "d": (0, 4), "e": ()}
    given = {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}
    rows = flatten_gradients(given)
    assert rows.shape == (3 + 1 + 2 + 0 + 1, 128)
    assert np.array_equal(rows[4:6], given["c"])
    assert all(np.array_equal(back, given[name]) for name, back in unflatten_gradients(rows, given).items())
    assert np.count_nonzero(rows) == sum(value.size for value in given.values())


@pytest.mark.slow
def test_a_trainer_reduces_as_its_recipe_says_and_one_rank_has_the_same_bits():
    corpus, schedule = load_corpus("stdlib"), Schedule(peak_lr=1e-3, warmup_steps=1, total_steps=3)

    def trained(all_reduce):
        recipe = lp.recipes["bf16"].with_(all_reduce=all_reduce) if all_reduce else "bf16"
        trainer = Trainer("nano", recipe, corpus, seed=0, schedule=schedule)
        trainer.step()
        return trainer.step(), in_bytes(trainer.model.params)

    plain, weights = trained(None)
    assert trained("1 one_shot float32") == (plain, weights)
    several, others = trained("8 two_level fp8_1x128")
    assert several.loss == pytest.approx(plain.loss, rel=1e-3)
    assert several.max_violation >= 0
    assert others != weights


def test_what_recipes_say_of_it():
    recipe = lp.recipes["dsv3"].with_(all_reduce="16 ring logfmt8")
    assert lp.Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.name == "dsv3(all_reduce=16 ring logfmt8)"
    assert isinstance(gradient_backend(None, 3), SingleRank)


test_refused = refusals([
    ("gradient_backend(GradientAllReduce.parse('5 ring bf16'), 16)",
     "all_reduce: ranks must divide the batch of 16 sequences, got 5"),
    *((f"GradientAllReduce.parse({text!r})",
      "all_reduce must be 'none' or ranks, algorithm")
      for text in ("ring bf16", "0 ring bf16", "16 ring", 16, "")),
    ("lp.recipes['bf16'].with_(all_reduce='16 rung bf16')", UnknownNameError, "did you mean 'ring'"),
    ("GradientAllReduce.parse('16 ring bf61')", UnknownNameError, "unknown codec"),
], lambda: {"gradient_backend": gradient_backend, "GradientAllReduce": GradientAllReduce})  # fmt: skip
