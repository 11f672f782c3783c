"""Replays: recorded operands, what is measured of them, extended ones, and a study from the plan to its report."""

import math
from fractions import Fraction

import numpy as np
import pytest
import small_trainer
from contract import Toy, TrainingContract, refused, replaced
from refusals import refusals

import lowprec as lp
from lowprec.moe.data.corpus import batches
from lowprec.moe.data.sources import load_corpus
from lowprec.study import Expectation, GemmArm, Replay, ReplaySetting, load
from lowprec.study.analysis.estimates import pigeonhole_bootstrap
from lowprec.study.measurements import operands
from lowprec.study.measurements.gemms import (
    GemmOperands,
    coherence_of,
    errors,
    exact_product,
    multiply,
    variance_growth,
)
from lowprec.study.measurements.operands import record_operands, sample_rows, shared, tile_operands

FP22 = GemmArm("fp22", "FP22", "hopper_fp8", role="control")
ARMS = (
    GemmArm("fp32", "FP32", "float32", role="reference"), FP22,
    GemmArm("fp22_128", "FP22, every 128", "hopper_fp8", promote_every=128),
    GemmArm("bits_9", "9 bits", lp.accumulators["hopper_fp8"].with_(fraction_bits=9)),
    GemmArm("bits_20", "20 bits", lp.accumulators["hopper_fp8"].with_(fraction_bits=20, output_format="float32")),
    GemmArm("tiles", "tiles", "hopper_fp8", blocks="1x128"),
)  # fmt: skip
SIZE = ReplaySetting(checkpoint_steps=2, checkpoints=2, seeds=1, tokens=4096, rows=16, columns=4, warmup_steps=1)


# --- what is measured ------------------------------------------------------------------------------------------------


def test_the_truth_is_exact():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-448, 449, (3, 257)) * 2.0 ** rng.integers(-9, 1, (3, 257)) for _ in range(2))
    for i, row in enumerate(exact_product(a, b)):
        for j, value in enumerate(row):
            assert Fraction(value) == sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[j], strict=True))


def test_errors_are_seen_apart():
    truth = np.array([[3.0, -4.0]])
    assert errors(truth, truth) == (0.0, 0.0, 0.0)
    assert errors(0.5 * truth, truth) == (0.5, -0.5, 2.0 / 3.5)
    assert errors(truth + np.array([[4.0, 3.0]]), truth) == (1.0, 0.0, 4.0 / 3.5)  # across the truth: no bias


def test_coherence_is_the_correlation_of_products():
    ones = np.ones((2, 512), np.float32)
    assert coherence_of(variance_growth(ones, ones), 512) == 1.0
    for wanted in (0.0, 0.04):
        rng = np.random.default_rng(5)
        found = [coherence_of(variance_growth(*shared(wanted)(rng, (128, 256))), 256) for _ in range(4)]
        assert np.mean(found) == pytest.approx(wanted, rel=0.25, abs=2e-4)
    assert math.isnan(variance_growth(0 * ones, ones))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("family", "length", "expected"), [
    ("normal", 2048, 0.026), ("normal", 4096, 0.043), ("normal", 16384, 0.13),
    ("channels", 2048, 0.05), ("channels", 4096, 0.08), ("channels", 16384, 0.19),
])  # fmt: skip
def test_figures_known_from_elsewhere(family, length, expected):
    pair = operands.FAMILIES[family](np.random.default_rng(1), (64, length))
    row = multiply(GemmOperands("synthetic", 0, "", family, 0, *pair), ARMS[-1:])[0]
    assert row[9] / row[8] == pytest.approx(expected, rel=0.15)


def test_an_arm_is_what_the_gemm_makes_of_the_operands():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((8, 640), np.float32), rng.standard_normal((4, 640), np.float32)
    rows = {row[7]: row for row in multiply(GemmOperands("fprop", 0, "", "x", 3, a, b), ARMS)}
    assert all(row[:6] == ("fprop", 0, "", "x", 3, 640) for row in rows.values())
    qa, qb = (lp.quantize(x, "e4m3fn tensor") for x in (a, b))
    truth = exact_product(qa.dequantize(), qb.dequantize())
    got = lp.gemm(qa, qb, accumulator="hopper_fp8", promote_every=128)
    assert rows["fp22_128"][9] == errors(got.astype(np.float64), truth)[0]
    assert rows["bits_9"][9] > 4 * rows["fp22"][9] > 4 * rows["fp22_128"][9] > 16 * rows["bits_20"][9]
    assert rows["fp22"][8] != rows["tiles"][8]  # tiles lose less in quantization
    short = multiply(GemmOperands("fprop", 0, "", "x", 3, np.abs(a), np.abs(b)), [FP22])[0]
    assert -short[9] == pytest.approx(short[10], rel=0.02)  # truncation is towards zero: all error is bias


# --- operands --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer():
    from lowprec.moe.run.schedule import Schedule
    from lowprec.moe.run.trainer import Trainer

    return Trainer(
        "nano", "bf16", load_corpus("stdlib"), seed=0, schedule=Schedule(peak_lr=1e-3, warmup_steps=0, total_steps=2)
    )


def test_a_recorder_changes_no_bit_and_notes_whole_multiplications(trainer):
    tokens = batches(trainer.corpus, 0, 2, 64)[0]
    model = trainer.model
    plain = model.with_recipe(lp.recipes["bf16"]).loss_and_grads(tokens)
    loss, found = record_operands(
        model, tokens, lambda name: name in ("layers.0.attn.wo", "layers.1.ffn.shared.w1"), 9, 5
    )
    assert loss == float(plain[0])
    assert list(found) == ["layers.0.attn.wo", "layers.1.ffn.shared.w1"]
    _, whole = record_operands(model, tokens, lambda name: name == "layers.0.attn.wo", 1 << 20, 1 << 20)
    everything = whole["layers.0.attn.wo"]
    assert everything.x.shape == everything.x_columns.T.shape == (128, 128)
    gradient = exact_product(everything.dy_columns, everything.x_columns)
    np.testing.assert_allclose(plain[1]["layers.0.attn.wo"], gradient, rtol=1e-3, atol=1e-7)
    some = found["layers.0.attn.wo"]
    assert some.x.shape == (9, 128)
    assert some.dy_columns.shape == (5, 128)
    assert {row.tobytes() for row in some.x} <= {row.tobytes() for row in everything.x}


def test_rows_are_no_comb():
    """At equal distances all rows would be the first tokens of sequences, whose queries have no gradient."""
    places = sample_rows(np.arange(2048.0)[:, None], 16).ravel()
    assert len(set(places % 128)) > 10
    assert (np.diff(places) > 0).all()
    assert sample_rows(np.ones((3, 2)), 5).shape == (3, 2)


@pytest.mark.parametrize("coherence", [0.0, 1e-3, 3e-2])
def test_extended_operands_are_as_coherent_as_asked(coherence):
    rng = np.random.default_rng(7)
    a, b = shared(coherence)(rng, (96, 192))
    growth = variance_growth(a, b)
    here = coherence_of(growth, 192)
    longer = tile_operands(a, b, 6144, growth, 1 + here * (6144 - 1), rng)
    assert longer[0].shape == longer[1].shape == (96, 6144)
    assert coherence_of(variance_growth(*longer), 6144) == pytest.approx(max(here, 0.0), rel=0.2, abs=1e-4)
    same = tile_operands(a, b, 6144, growth, growth, rng)
    assert variance_growth(*same) == pytest.approx(growth, rel=0.2)
    assert np.array_equal(np.sort(np.abs(longer[0][0])), np.sort(np.tile(np.abs(a[0]), 32)))


# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_intervals_count_both_samples():
    """As much spread between checkpoints as between layers: an interval of independent values would be too narrow."""
    covered, independent = 0, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rows, columns = rng.standard_normal(6), rng.standard_normal(30)
        values = {(i, j): rows[i] + columns[j] + rng.standard_normal() for i in range(6) for j in range(30)}
        found = pigeonhole_bootstrap(values, seed=seed)
        covered += found.low <= 0 <= found.high
        independent += abs(found.mean) <= 1.645 * np.std(list(values.values())) / math.sqrt(180)
    assert independent < 100 < 160 <= covered <= 195


def test_intervals_of_little():
    assert math.isnan(pigeonhole_bootstrap({}).mean)
    assert pigeonhole_bootstrap({}).count == 0
    one = pigeonhole_bootstrap({("a", "b"): 2.0, ("a", "c"): math.nan})
    assert (one.mean, one.low, one.high, one.count) == (2.0, 2.0, 2.0, 1)


# --- a study ---------------------------------------------------------------------------------------------------------

TOY = Toy(
    Replay(
        name="toy", question="Which?", arms=ARMS, quick=SIZE, full=SIZE,
        expectations=(
            Expectation("promotion helps", "over_quantization", "fp22_128", over="fp22", condition="wgrad_4k",
                        expected=(0.0, 1.0)),
            Expectation("not of this size", "over_quantization", "fp22", condition="wgrad_64k", expected=(0.0, 1.0)),
        ),
    ),
    SIZE, small_trainer.SMALL, ("as expected",),  # of the one that this size can judge
    lost=("recorded/c1", "synthetic/s0"),
)  # fmt: skip


@pytest.mark.slow
class TestContract(TrainingContract):
    test_damage_voids_every_verdict = None  # an emulated sum has neither chaos nor a control that could go unseen

    @pytest.mark.ci
    def test_finished_runs_are_never_done_again(self, toy, finished):
        super().test_finished_runs_are_never_done_again(toy, finished)

    @pytest.mark.ci
    def test_lost_runs_are_missed_and_done_again_with_the_same_bits(self, toy, copied, reported):
        super().test_lost_runs_are_missed_and_done_again_with_the_same_bits(toy, copied, reported)


@pytest.mark.slow
def test_classes_and_what_becomes_of_them(finished, reported):
    summary = reported.outcome
    assert summary.classes == ("fprop", "dgrad", "wgrad_2k", "wgrad_4k")
    assert summary.far == ("fprop_at_16k", "fprop_at_16k_diluted", "dgrad_at_16k", "dgrad_at_16k_diluted")
    assert summary.checks == ("wgrad_4k_extended",)
    assert [bits for bits, _ in summary.bits] == [9, 13, 20]
    assert [length for length, _ in summary.intervals] == [128]
    places = summary.values["fprop", "fp22"]
    assert {checkpoint for checkpoint, _ in places} == {0, 1}
    assert all(numbers["K"] == 16384 for numbers in summary.values["fprop_at_16k", "fp22"].values()
               if numbers["K"] % 384)  # fmt: skip
    dense = [layer for _, layer in places if ".experts." not in layer and not layer.endswith("gate")]
    assert all(summary.values["wgrad_4k", "fp22"][0, layer]["K"] == 4096 for layer in dense)
    costs = [summary.of("over_quantization", arm, "wgrad_4k") for arm in ("bits_9", "fp22", "fp22_128", "bits_20")]
    assert [item.mean for item in costs] == sorted((item.mean for item in costs), reverse=True)
    assert all(item.low < item.mean < item.high for item in costs)
    (finding,) = summary.findings
    assert 0 < finding.found.ci90[0] < finding.value < finding.found.ci90[1] < 1
    assert summary.sufficient_bits("fprop") in (13, 20)
    assert summary.of("bias_percent", "fp22", "fprop_at_16k").high < 0
    assert {path.name for path in reported.files} >= {"toy.csv", "toy.png", "toy.svg", "table.csv"}
    assert "Wgrad, 4k tokens, extended" in (finished / "report.md").read_text()
    assert len(reported.table_csv().splitlines()) == 1 + 9 * len(ARMS) * 7


@pytest.mark.slow
def test_a_damaged_table_is_refused(copied):
    replaced("recorded/c1/products.csv", "gain_minus_1", "gain")(copied)
    refused(copied, "has other columns")


def test_the_published_study_has_every_number_of_bits():
    study = load("replay")
    bits = [arm.machine for arm in study.arms if "fraction_bits" in arm.machine.name]
    assert len(bits) == 18
    assert {arm.promote_every for arm in study.arms} == {None, 32, 64, 128, 256, 512}


test_refused = refusals([
    ("TOY.plan('x', arms=(FP22, FP22), expectations=())", "every arm must have a different name"),
    ("TOY.plan('x', expectations=(Expectation('w', 'loss', 'fp22'),))", "unknown metric 'loss'"),
    ("GemmArm('a', 'A', 'hopper_fp8', promote_every=0)", "promote_every"),
    ("TOY.plan('x', arms=(GemmArm('a', 'A', 'hoper_fp8'),), expectations=())", KeyError, "hopper_fp8"),
], lambda: globals())  # fmt: skip
