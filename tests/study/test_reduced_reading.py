"""Gradients of more and more ranks, reduced as a recipe says: against the sums written out."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.codec.reductions import all_reduce
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model
from lowprec.moe.run.parallel import bucket
from lowprec.study import ReducedGradients

BF16 = lp.recipes["bf16"]


@pytest.fixture(scope="module")
def tokens():
    return load_corpus("stdlib").held_out[: 8 * 33].reshape(8, 33).copy()


@pytest.fixture(scope="module")
def model():
    return Model("nano", "bf16", seed=0)


@pytest.mark.slow
def test_errors_are_those_of_the_reduction(model, tokens):
    recipe = BF16.with_(all_reduce="2 ring e5m2_1x128")
    rows = dict(ReducedGradients(ranks=(2, 8)).read(model, recipe, BF16, tokens, 0))
    assert [*rows] == ["2", "8"]
    parts = [model.loss_and_grads(part)[1] for part in np.split(tokens, 8)]
    shards = np.stack([bucket(part) for part in parts]) / np.float32(8)
    exact = shards.astype(np.float64).sum(axis=0)
    error = np.sum((all_reduce(shards, "e5m2_1x128", "ring") - exact) ** 2)
    assert rows["8"]["gradient_error"] == pytest.approx(np.sqrt(error / np.sum(exact**2)), rel=1e-9)
    assert rows["2"]["gradient_error"] < rows["8"]["gradient_error"] < rows["8"]["worst_tensor"]
    assert 0 < rows["8"]["one_minus_cos"] < 0.1


def test_without_a_reduction_float32_is_all_that_is_lost(model, tokens):
    rows = dict(ReducedGradients(ranks=(2, 8)).read(model, BF16, BF16, tokens, 0))
    assert all(0 < row["gradient_error"] < 1e-6 for row in rows.values())


def test_ranks_share_evenly(model, tokens):
    with pytest.raises(ValueError, match="64 ranks cannot share 8 sequences"):
        next(ReducedGradients().read(model, BF16, BF16, tokens, 0))
