"""Studies of the same weights: the probe changes nothing, the metrics are what they say, the study runs and resumes."""

import csv
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import small_trainer
from contract import Toy, TrainingContract, cut, replaced, same_results
from refusals import refusals
from toys import snapshot, summarize

import lowprec as lp
from lowprec.measure.spread import kurtosis
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model
from lowprec.recipe import TensorSpec
from lowprec.study import Arm, CheckpointSize, Expectation, MeasurementStudy
from lowprec.study.analysis.findings import NOT_RESOLVED
from lowprec.study.fixed_weights.report import results
from lowprec.study.measurements.conditions import AlignedSwiGLU, ChannelOutliers, Healthy, ScaledLoss, UnevenTokens
from lowprec.study.measurements.gradients import GradientComparison, compare, compare_layers, kl_of_tokens, record
from lowprec.study.measurements.tensors import TILE, describe

SMALL = CheckpointSize("nano", checkpoint_steps=2, checkpoints=1, seeds=1, warmup_steps=1)
F32, BF16, DSV3 = (lp.recipes[name] for name in ("float32", "bf16", "dsv3"))
ARMS = (
    Arm("float32", recipe="float32", role="reference"), Arm("bf16", role="floor"), Arm("again", role="repeat"),
    Arm("dsv3", recipe="dsv3"), Arm("hybrid", recipe="dsv3", change={"dy": "e5m2 1x128"}),
    Arm("fp4_naive", recipe="fp4_naive", role="control"),
)  # fmt: skip
EXPECTATIONS = (
    Expectation("FP4 is worse", "kl", "fp4_naive", "dsv3", expected=(1.0, math.inf), published=(0.0, 1.0)),
    Expectation("never", "kl", "dsv3", expected=(-1.0, -0.5)),
)
TOY = Toy(
    MeasurementStudy(name="toy", question="Does it?", arms=ARMS, expectations=EXPECTATIONS, quick=SMALL,
                     measurement=GradientComparison((Healthy(), UnevenTokens()))),
    SMALL, small_trainer.SMALL, (NOT_RESOLVED, NOT_RESOLVED), lost=("dsv3/c0", "again/c0"),
    damage={
        "again is NOT bit-identical to bf16": replaced("again/c0/layers.csv", "0.0", "0.1"),
        "fp4_naive (positive control) is NOT detected": same_results("", "fp4_naive", "bf16"),
        "dsv3/c0 lacks rows in rows.csv": cut("dsv3/c0/rows.csv", 1),
        "fp4_naive/c0 has 0 of 1 rows in metrics.csv": cut("fp4_naive/c0/metrics.csv", 0),
        "hybrid/c0 lacks rows in layers.csv": cut("hybrid/c0/layers.csv", 20),
        "again/c0 lacks rows in layers.csv": cut("again/c0/layers.csv", 0),
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def tokens():
    return load_corpus("stdlib").held_out[: 4 * 129].reshape(4, 129).copy()


@pytest.fixture(scope="module")
def model():
    return Model("nano", "bf16", seed=3)


@pytest.fixture(scope="module")
def recordings(model, tokens):
    return {recipe.name: record(model, recipe, Healthy(), tokens) for recipe in (F32, BF16, DSV3)}


# --- probe and metrics -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_probe_changes_no_bit_and_sees_every_linear_layer(model, tokens, recordings):
    loss, gradients = model.with_recipe(DSV3).loss_and_grads(tokens)
    seen = recordings["dsv3"]
    assert seen.loss == loss
    assert all(np.array_equal(seen.gradients[name], gradients[name]) for name in gradients)
    linears = {name for name, shape in model.config.parameter_shapes().items() if len(shape) == 2} - {"embed"}
    assert seen.linears.keys() == linears
    assert all({"x", "w", "dy"} == record.tensors.keys() for record in seen.linears.values())
    assert seen.logits.shape == (4 * 128, 256)


def test_metrics_of_equal_recordings_are_zero_and_of_others_are_not(recordings):
    same = compare(recordings["bf16"], recordings["bf16"])
    for name in ("kl", "kl_percent", "gradient_error", "token_error_p99", "routing_flips", "embedding_error"):
        assert same[name] == 0.0
    bf16, dsv3 = (compare(recordings[name], recordings["float32"]) for name in ("bf16", "dsv3"))
    assert dsv3.keys() == GradientComparison.metrics.keys()
    for name in ("kl", "gradient_error", "one_minus_cos", "token_error_median"):
        assert 0 < bf16[name] < dsv3[name]
    assert compare(recordings["dsv3"], recordings["float32"]) == dsv3  # the same bits
    assert bf16["flushed"] == bf16["saturated"] == 0.0


def test_metrics_by_their_definitions(recordings):
    """Against plain NumPy in float64, and against exact rationals for the sums of the gradient's error."""
    arm, reference = recordings["dsv3"], recordings["float32"]
    found = compare(arm, reference)
    p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in
            (r.logits.astype(np.float64) for r in (reference, arm)))  # fmt: skip
    assert found["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(axis=1).mean(), rel=1e-9)
    name = "layers.0.attn.wkv_a"
    ours, theirs = ([Fraction(x) for x in r.gradients[name].ravel()[:3000].tolist()] for r in (arm, reference))
    error, size = sum((x - y) ** 2 for x, y in zip(ours, theirs, strict=True)), sum(y * y for y in theirs)
    part = [replace(r, gradients={name: r.gradients[name].ravel()[:3000]}) for r in (arm, reference)]
    layer, kind, values = compare_layers(*part)[0]
    assert (layer, kind) == (0, "attn.wkv_a")
    assert values["gradient_error"] == pytest.approx(math.sqrt(error / size), rel=1e-12)
    dx = [r.linears["layers.0.attn.wq_a"].dx.astype(np.float64) for r in (arm, reference)]
    some = np.linalg.norm(dx[1], axis=1) > 0  # nothing reads the query of a sequence's first token
    by_token = (np.linalg.norm(dx[0] - dx[1], axis=1)[some]) / np.linalg.norm(dx[1], axis=1)[some]
    place = next(v for layer, kind, v in compare_layers(arm, reference) if (layer, kind) == (0, "attn.wq_a"))
    assert place["token_error_median"] == pytest.approx(np.median(by_token), rel=1e-12)


def test_kl_is_zero_for_shifted_logits_and_never_negative():
    rng = np.random.default_rng(0)
    p = rng.standard_normal((50, 7)).astype(np.float32)
    assert kl_of_tokens(p, p + np.float32(64)).max() < 1e-6
    assert not kl_of_tokens(p, p).any()
    assert (kl_of_tokens(p, rng.standard_normal((50, 7)).astype(np.float32)) > 0).all()


def test_flush_and_saturation_are_counted_from_the_specs():
    x = np.array([[448.0, 1.0, 2.0**-20, 0.0]], np.float32)
    assert describe(x, TensorSpec.parse("e4m3fn 1x128")).flushed == 1
    assert describe(x, None).flushed == 0
    assert describe(np.zeros((2, 4), np.float32), TensorSpec.parse("bfloat16")).rows == 0
    # Scales rounded down cut the largest value of a block; rounded up they do not.
    large = np.array([[1.9, 1.0]], np.float32)
    for name, saturated in (("mxfp8_floor", 1), ("mxfp8_ceil", 0)):
        assert describe(large, TensorSpec.parse(name)).saturated == saturated
    uneven = np.full((2, 128), [[1.0], [2.0**-30]], np.float32)
    assert describe(uneven, TensorSpec.parse("e4m3fn 128x128")).rows_flushed == 1
    assert describe(uneven, TensorSpec.parse("e4m3fn 1x128")).rows_flushed == 0


def test_tile_range_is_in_octaves():
    tile = [0.0, 4.0, -1.0, 0.5] * (TILE // 4)
    record = describe(np.array([[*tile, 0.0]], np.float32), None)
    assert record.tile_range == 3.0  # the median of what is a number
    assert record.kurtosis == kurtosis([*tile, 0.0])
    assert math.isnan(describe(np.zeros((2, 3), np.float32), None).tile_range)
    assert math.isnan(describe(np.ones((2, 3), np.float32), None).kurtosis)


# --- stress ----------------------------------------------------------------------------------------------------------


def test_channel_outliers_preserve_the_function(model, tokens, recordings):
    before = {name: value.tobytes() for name, value in model.params.items()}
    stressed = record(model, F32, ChannelOutliers(octaves=6, every=16), tokens)
    assert stressed.loss == pytest.approx(recordings["float32"].loss, rel=1e-5)
    inputs = [r.linears["layers.0.attn.wq_a"].tensors["x"] for r in (stressed, recordings["float32"])]
    assert inputs[0].kurtosis > 3 * inputs[1].kurtosis
    assert {name: value.tobytes() for name, value in model.params.items()} == before  # the caller's own are left alone
    assert model.params.keys() == stressed.gradients.keys()


def test_token_weights_are_those_of_the_loss(model, tokens):
    """The gradient of the weighted loss, by hand: for a weight that is 0 except for one sequence."""

    class OneSequence(Healthy):
        def token_weights(self, tokens):
            return np.repeat(np.float32([4, 0, 0, 0]), tokens // 4)

    weighted = record(model, F32, OneSequence(), tokens).gradients["head"]
    alone = record(model, F32, Healthy(), tokens[:1]).gradients["head"]
    assert np.allclose(weighted, alone, rtol=1e-4, atol=1e-9)  # mean over four sequences, times four


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", ["float32", "bf16", "dsv3"])
def test_scaled_loss_scales_every_gradient_exactly(model, tokens, recipe):
    """The balance loss's too: a part left unscaled would drown the rest."""
    plain, scaled = (record(model, lp.recipes[recipe], stress, tokens) for stress in (Healthy(), ScaledLoss(-20)))
    assert scaled.loss == plain.loss
    for name, gradient in plain.gradients.items():
        assert (scaled.gradients[name] * np.float32(2.0**20)).tobytes() == gradient.tobytes(), name


def test_aligned_rows_are_equal_and_the_rest_untouched(model):
    changed = AlignedSwiGLU(factor=4.0, every=8).change(model.params)
    w1, w3 = (changed[f"layers.0.ffn.{w}"] for w in ("w1", "w3"))
    assert np.array_equal(w1[::8], w3[::8])
    assert np.array_equal(w1[::8], 4 * model.params["layers.0.ffn.w1"][::8])
    assert np.array_equal(w3[1], model.params["layers.0.ffn.w3"][1])


def test_uneven_tokens_weigh_powers_of_two_of_mean_one():
    weights = UnevenTokens(sigma=2.0).token_weights(20_000)
    octaves = np.log2(weights)
    assert np.array_equal(octaves, np.rint(octaves))
    assert weights.tobytes() == UnevenTokens(sigma=2.0).token_weights(20_000).tobytes()
    assert weights.tobytes() != UnevenTokens(sigma=2.0, seed=1).token_weights(20_000).tobytes()
    # exp(N(-sigma^2 / 2, sigma)) has mean 1; in octaves, within four standard errors.
    error = 2.0 / np.log(2) / np.sqrt(octaves.size)
    assert abs(octaves.mean() + 2.0 / np.log(2)) < 4 * error
    assert abs(octaves.std() * np.log(2) / 2.0 - 1) < 0.03


# --- the study -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
class TestContract(TrainingContract):
    @pytest.mark.ci
    def test_finished_runs_are_never_done_again(self, toy, finished):
        super().test_finished_runs_are_never_done_again(toy, finished)

    def test_what_is_cut_off_is_made_again(self, copied):
        whole = {path: text for path, text in snapshot(copied).items() if path.suffix == ".csv"}
        for reason, damage in TOY.damage.items():
            if "rows" in reason:
                damage(copied)
                assert reason in summarize(copied).invalid_reasons[0]
                TOY.run(copied)
        assert {path: path.read_bytes() for path in whole} == whole
        assert not summarize(copied).invalid_reasons


@pytest.mark.slow
def test_a_study_from_checkpoint_to_findings(finished):
    found = summarize(finished)
    assert found.mean("kl", "fp4_naive") > found.mean("kl", "dsv3") > found.mean("kl", "bf16") > 0
    # What the backward pass computes in cannot move predictions.
    assert found.mean("kl", "hybrid") == found.mean("kl", "dsv3")
    assert found.mean("gradient_error", "hybrid") != found.mean("gradient_error", "dsv3")
    assert found.mean("kl", "dsv3", "uneven tokens") == found.mean("kl", "dsv3", "healthy")
    assert found.mean("gradient_error", "dsv3", "uneven tokens") != found.mean("gradient_error", "dsv3", "healthy")
    rows = {
        (row["arm"], row["condition"], row["metric"]): row
        for row in csv.DictReader(results(found, finished).table_csv().splitlines())
    }
    assert float(rows["dsv3", "healthy", "kl"]["mean"]) == found.mean("kl", "dsv3")


@pytest.mark.slow
def test_the_report_says_what_was_expected_and_found(finished, reported):
    text = (finished / "report.md").read_text()
    assert "| FP4 is worse | kl of fp4_naive over dsv3 | at least 1 | 0 to 1 |" in text


def changed(**expectation):
    return replace(
        TOY.study, expectations=(Expectation(**{"words": "w", "metric": "kl", "arm": "dsv3", **expectation}),)
    )


def planned(**change):
    return Toy(replace(TOY.study, arms=(*ARMS, Arm("odd", recipe="dsv3", change=change))), SMALL).plan("nowhere")


test_refused = refusals([
    ("Expectation('w', 'kl', 'a', expected=(2.0, 1.0))", r"expectation 'w': expected must be \(low, high\), got"),
    ("changed(metric='kll')", "unknown metric 'kll'"),
    ("changed(arm='x')", "unknown arm 'x'"),
    ("changed(over='y')", "unknown arm 'y'"),
    ("changed(condition='z')", "unknown condition 'z'"),
    ("replace(TOY.study, arms=(Arm('a'),), expectations=())", "exactly one arm must be the reference"),
    ("replace(TOY.study, arms=(ARMS[0], ARMS[0]), expectations=())", "every arm must have a different name"),
    ("replace(TOY.study, headline='x')", "headline must be one of"),
    ("planned(dyy='e5m2 1x128')", TypeError, "unknown field 'dyy'"),
    ("planned(dy='e5m9 1x128')", KeyError, "unknown word 'e5m9'"),
], lambda: globals())  # fmt: skip
