"""Studies that read something off trained models: readings, their means and intervals, reports, resumption."""

import csv
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import small_trainer
from contract import Toy, TrainingContract, cut, replaced, same_results
from refusals import refusals
from toys import summarize

import lowprec as lp
from lowprec.collective.catalogue import collectives
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.config import configs
from lowprec.moe.model.model import Model
from lowprec.moe.run.parallel import flatten_gradients
from lowprec.study import Acceptance, Arm, ByPosition, CheckpointSize, Expectation, MeasurementStudy, ReducedGradients
from lowprec.study.analysis.estimates import half_width
from lowprec.study.catalogue import read as read_study
from lowprec.study.measurements.gradients import kl_of_tokens, losses_of_tokens
from lowprec.study.measurements.measurement import ALL_CONDITIONS, Measurement, Row, predicted
from lowprec.study.measurements.predictions import octaves, probabilities

SMALL = CheckpointSize("nano", checkpoint_steps=2, checkpoints=2, seeds=2, warmup_steps=1)
BF16, FP4 = lp.recipes["bf16"], lp.recipes["fp4_naive"]


def by_condition(measurement, *arguments):
    return {row.condition: row.values for row in measurement.measure(*arguments)}


TOY = Toy(
    MeasurementStudy(
        name="toy", question="Is it?", measurement=ByPosition(),
        arms=(
            Arm("bf16", role="reference"), Arm("again", role="repeat"), Arm("float32", recipe="float32", role="floor"),
            Arm("e5m2", change={"storage": {"layers.*.attn.kv_norm": "e5m2_1x128"}}, expected="more"),
            Arm("fp4_naive", recipe="fp4_naive", role="control", expected="more"),
        ),
        expectations=(Expectation("more", "kl_percent", "e5m2", "float32", expected=(1.0, 1e9), condition="64-127"),),
        quick=SMALL,
    ),
    SMALL, small_trainer.SMALL, ("as expected",), lost=("e5m2/c1", "again/c0"),
    damage={
        "again is NOT bit-identical to bf16": replaced("again/c0/rows.csv", "\n0,", "\n7,"),
        "fp4_naive (positive control) is NOT detected": same_results("", "fp4_naive", "bf16"),
        "fp4_naive/c1 has 1 of 2 rows": cut("fp4_naive/c1/metrics.csv", 1),
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def tokens():
    return load_corpus("stdlib").held_out[: 4 * 129].reshape(4, 129).copy()


@pytest.fixture(scope="module")
def model():
    return Model(replace(configs["nano"], mtp_depth=1), "bf16", seed=3)


# --- what is read ----------------------------------------------------------------------------------------------------


def test_predictions_are_what_losses_are_made_of(model, tokens):
    logits, further = model.predictions(tokens)
    losses = losses_of_tokens(logits, tokens[:, 1:])
    assert losses.mean() == pytest.approx(model.loss(tokens), rel=1e-14)
    model.loss_and_grads(tokens)
    assert losses_of_tokens(further[:, :-1], tokens[:, 2:]).sum() / further[:, :, 0].size == pytest.approx(
        model.mtp_loss, rel=1e-14
    )
    assert Model("nano", "bf16").predictions(tokens)[1] is None


def test_octaves_partition_positions():
    found = octaves(100)
    assert [*found] == ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127"]
    assert sorted(i for part in found.values() for i in range(100)[part]) == [*range(100)]


@pytest.mark.slow
def test_by_position_agrees_with_its_definition(model, tokens):
    rows = by_condition(ByPosition(), model, FP4, BF16, tokens, 0)
    ours, theirs = (predicted(model, recipe, tokens, 0)[0] for recipe in (FP4, BF16))
    kl = kl_of_tokens(theirs.reshape(-1, 256), ours.reshape(-1, 256)).reshape(4, 128)
    base, loss = (losses_of_tokens(x, tokens[:, 1:]) for x in (theirs, ours))
    assert [*rows][-1] == ALL_CONDITIONS
    assert rows[ALL_CONDITIONS]["kl_percent"] == pytest.approx(100 * kl.sum() / base.sum())
    assert rows["64-127"]["loss_percent"] == pytest.approx(100 * (loss[:, 64:].sum() / base[:, 64:].sum() - 1))
    assert by_condition(ByPosition(), model, BF16, BF16, tokens, 0)[ALL_CONDITIONS] == {
        "kl_percent": 0.0,
        "loss_percent": 0.0,
    }


def test_acceptance_agrees_with_its_definition(model, tokens):
    rows = by_condition(Acceptance(), model, BF16, BF16, tokens, 0)
    logits, further = predicted(model, BF16, tokens, 0)
    accepted, overlap = [], []
    for b in range(4):
        for i in range(127):  # the draft at i and the model at i + 1 both predict byte i + 2
            p, q = (np.exp(x.astype(np.float64)) for x in (logits[b, i + 1], further[b, i]))
            accepted.append(p.argmax() == q.argmax())
            overlap.append(np.minimum(p / p.sum(), q / q.sum()).sum())
    assert rows[ALL_CONDITIONS]["greedy"] == pytest.approx(100 * np.mean(accepted))
    assert rows[ALL_CONDITIONS]["sampled"] == pytest.approx(100 * np.mean(overlap))
    assert rows[ALL_CONDITIONS]["speed"] == pytest.approx((1 + np.mean(accepted)) * 61 / 62)
    quarters = [values["greedy"] for place, values in rows.items() if place != ALL_CONDITIONS]
    assert np.mean(quarters) == pytest.approx(rows[ALL_CONDITIONS]["greedy"])


def test_probabilities_sum_to_one():
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32) * 9
    p = probabilities(x)
    assert np.allclose(p, np.exp(x.astype(float)) / np.exp(x.astype(float)).sum(axis=1, keepdims=True), rtol=1e-12)
    assert np.allclose(p.sum(axis=1), 1, rtol=0, atol=1e-14)


# --- means and intervals ---------------------------------------------------------------------------------------------


def test_intervals_cover_where_checkpoints_and_batches_are_samples():
    """Of studies of 4 checkpoints x 4 batches with equal variances at both levels, 90 % and more cover the mean."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        values = rng.standard_normal((4, 1)) + rng.standard_normal((1, 4)) + rng.standard_normal((4, 4))
        rows = np.array([[c, b, values[c, b]] for c in range(4) for b in range(4)])
        inside += abs(values.mean()) <= half_width(rows)
    assert inside / 400 >= 0.88


def test_an_interval_needs_two_of_something():
    assert np.isnan([half_width(np.array([[0.0, 0.0, 1.0]])), half_width(np.empty((0, 3)))]).all()
    assert half_width(np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])) == 0.0


# --- the study -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
class TestContract(TrainingContract):
    pass


@pytest.mark.slow
def test_a_study_has_means_at_every_place(finished, reported):
    summary = reported.outcome
    assert summary.mean("kl_percent", "fp4_naive") > summary.mean("kl_percent", "float32") > 0
    assert summary.shown == ["float32", "e5m2", "fp4_naive"]
    rows = list(csv.DictReader(reported.table_csv().splitlines()))
    assert {row["condition"] for row in rows} == {"", ALL_CONDITIONS, *octaves(128)}
    one = next(row for row in rows if (row["arm"], row["condition"], row["metric"]) == ("e5m2", "8-15", "kl_percent"))
    assert int(one["count"]) == 4
    read, setting = read_study(finished)
    assert (read.measurement.metrics, setting) == (dict(ByPosition.metrics), SMALL)
    with pytest.raises(TypeError, match="use the measurement in the ablation's file"):
        read.measurement.measure()


@dataclass(frozen=True)
class Two(Measurement):
    metrics: ClassVar = {"m": "a number"}
    panels: ClassVar = ("m",)
    number: int = 1

    def measure(self, model, recipe, reference, tokens, seed):
        yield Row("a", {"m": float(self.number)})
        yield Row("b", {"m": float("nan") if seed % 2 else 3.0 * self.number})


@pytest.mark.slow
def test_without_a_place_for_all_the_mean_is_over_places_and_nan_is_left_out(tmp_path):
    """Read by a worker process, to which the reading is sent."""
    arms = (Arm("bf16", role="reference"), Arm("other", expected="the same"))
    study = replace(TOY.study, measurement=Two(number=2), arms=arms, expectations=())
    summary = summarize(replace(TOY, study=study, setting=replace(SMALL, checkpoints=1)).run(tmp_path / "toy", jobs=1))
    assert summary.mean("m", "other", "b") == 6.0
    assert summary.mean("m", "other") == pytest.approx((2 + 2 + 6) / 3)


def test_another_configuration_has_checkpoints_of_its_own(tmp_path):
    configs = ({}, {"sequence": 64}, {"sequence": 64, "mtp_depth": 1})
    assert len({TOY.plan(tmp_path / "toy", config=config).checkpoints[0].name for config in configs}) == 3


# --- gradients of more and more ranks --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sequences():
    return load_corpus("stdlib").held_out[: 8 * 33].reshape(8, 33).copy()


@pytest.mark.slow
def test_errors_are_those_of_the_reduction(sequences):
    model, recipe = Model("nano", "bf16", seed=0), BF16.with_(all_reduce="2 ring e5m2_1x128")
    rows = by_condition(ReducedGradients(ranks=(2, 8)), model, recipe, BF16, sequences, 0)
    assert [*rows] == ["2", "8"]
    parts = [model.loss_and_grads(part)[1] for part in np.split(sequences, 8)]
    shards = np.stack([flatten_gradients(part) for part in parts]) / np.float32(8)
    exact = shards.astype(np.float64).sum(axis=0)
    error = np.sum((collectives["ring"].all_reduce(shards, "e5m2_1x128") - exact) ** 2)
    assert rows["8"]["gradient_error"] == pytest.approx(np.sqrt(error / np.sum(exact**2)), rel=1e-9)
    assert rows["2"]["gradient_error"] < rows["8"]["gradient_error"] < rows["8"]["worst_tensor"]
    assert 0 < rows["8"]["one_minus_cos"] < 0.1


def test_without_a_reduction_float32_is_all_that_is_lost(sequences):
    rows = by_condition(ReducedGradients(ranks=(2, 8)), Model("nano", "bf16", seed=0), BF16, BF16, sequences, 0)
    assert all(0 < row["gradient_error"] < 1e-6 for row in rows.values())


def read(reading, tokens=None):
    return next(iter(reading.measure(Model("nano", "bf16", seed=0), BF16, BF16, tokens, 0)))


test_refused = refusals([
    ("replace(TOY.study, expectations=(Expectation('w', 'm', 'e5m2'),))", "unknown metric 'm'"),
    ("replace(TOY.study, arms=(Arm('a', role='reference'), Arm('a')))", "different name"),
    ("replace(TOY.study, arms=(Arm('a'),))", "exactly one arm must be the reference"),
    ("read(Acceptance(), np.zeros((4, 129), np.uint8))", "mtp_depth must be 1, to predict a further byte, got 0 in"),
    ("read(ReducedGradients(), np.zeros((8, 33), np.uint8))", "ranks must divide the batch of 8 sequences, got 64"),
], lambda: globals())  # fmt: skip
