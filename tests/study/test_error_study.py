"""Studies of formats: published tables come out and wrong ones do not, figures show what was measured."""

import csv
from dataclasses import replace

import pytest
from contract import MeasuringContract, Toy
from refusals import refusals

from lowprec.study import ErrorArm, ErrorSetting, ErrorStudy, PublishedTable, load
from lowprec.study.design import modules, registration
from lowprec.study.run.store import read_json
from lowprec.study.tensors.formats import claims_of, sweep

ATLAS = modules.load(registration.folder() / "error_atlas.py")
SMALL = ErrorSetting(rows=64, columns=1024, seeds=2)
TOY = Toy(
    ErrorStudy(
        name="mine", question="Which?", expected="One.", source="me", data=("gauss",),
        arms=(ErrorArm("bf16", "BF16", "cast"), ErrorArm("logfmt8", "LogFMT-8", "LogFMT")), quick=SMALL, full=SMALL,
        figures=(ATLAS.pareto("A finding", "The front", ("gauss",)),),
        tables=(PublishedTable("SQNR", "sqnr", "me", ("gauss",), {"logfmt8": (37.0,)}, within=1.5),),
    ),
    ErrorSetting(4, 256, 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def study():
    return load("error_atlas")


@pytest.fixture(scope="module")
def outcome(study):
    arms = tuple(arm for arm in study.arms if arm.name in ("logfmt8", "fp8_1x128", "int8_1x128", "bf16", "mxfp8_floor"))
    part = replace(study, arms=arms, data=("gauss", "laplace", "expert"), tables=(), claims=())
    return sweep(part, SMALL)


def test_the_atlas_is_a_study(study):
    assert study.tier == "T1"
    assert {table.measure for table in study.tables} == {"sqnr", "relative_rms"}
    assert sum(len(row) for table in study.tables for row in table.rows.values()) == 18 * 10 + 18 * 6
    assert len(study.claims) == 13


def test_a_table_comes_out(study, outcome):
    """Small arrays scatter more than the study's: the light-tailed columns, within half a decibel."""
    for table in study.tables:
        rows = {arm.name: tuple(table.rows[arm.name][table.data.index(d)] for d in ("gauss", "laplace"))
                for arm in outcome.study.arms if arm.name != "mxfp8_floor"}  # fmt: skip
        part = replace(table, data=("gauss", "laplace"), rows=rows, within=0.5)
        for claim, ours in claims_of(part, outcome):
            assert ours.holds, (claim.claim, ours.words)


def test_a_wrong_number_does_not(outcome):
    table = PublishedTable("SQNR", "sqnr", "nowhere", ("gauss",), {"logfmt8": (36.0,), "bf16": (55.6,)})
    (_, wrong), (_, right) = claims_of(table, outcome)
    assert not wrong.holds
    assert right.holds
    assert "1.0" in wrong.words
    excused = replace(table, exceptions={("logfmt8", "gauss"): "a reason"})
    (_, ours), _ = claims_of(excused, outcome)
    assert ours.holds
    assert "a reason" in ours.words


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(13))
def test_claims_of_bias_and_deepep(study, number):
    claim = study.claims[number]
    ours = claim.measure()
    assert ours.holds, f"{claim.claim}: published {claim.published}, ours {ours.words}"


def test_numbers_behind_the_figures(outcome):
    rows = ATLAS.pareto_rows(outcome, "gauss")
    assert [row["format"] for row in rows if row["on_front"]] == ["int8_1x128", "bf16"]
    assert {row["bits_per_value"] for row in rows if row["format"] == "logfmt8"} == {8.25}
    rows = ATLAS.magnitude_rows(outcome, "gauss", ("logfmt8", "int8_1x128"), 9)
    by = {(row["format"], row["octaves_below_amax"]): row["relative_rms"] for row in rows}
    assert by["logfmt8", 0] / by["logfmt8", 5] == pytest.approx(1, abs=0.2)
    assert by["int8_1x128", 5] / by["int8_1x128", 3] == pytest.approx(4, abs=0.6)
    assert by["int8_1x128", 8] == 1.0
    rows = ATLAS.bias_rows(("gauss",), (5,), 256)
    found = {row["rounding"]: row["magnitude_bias"] / row["s"] ** 2 for row in rows}
    assert found["linear"] == pytest.approx(-1 / 12, abs=0.015)
    assert found["log"] == pytest.approx(1 / 24, abs=0.015)
    assert abs(found["logmean"]) < 0.015


@pytest.mark.slow
def test_figures_are_drawn(outcome, tmp_path):
    formats = ("logfmt8", "int8_1x128", "bf16", "fp8_1x128")
    ATLAS.magnitude_rows.__defaults__ = ("gauss", formats, 6)
    ATLAS.bias_rows.__defaults__ = (("gauss", "uniform"), (5, 6), 64)
    made = (ATLAS.pareto("A finding", "The front", ("gauss", "expert")), ATLAS.against_magnitude, ATLAS.bias)
    files = [path for figure in made for path in figure(outcome).write(tmp_path)]
    assert [path.suffix for path in files] == [".csv", ".png", ".svg"] * 3
    assert all(path.stat().st_size > 5000 for path in files if path.suffix != ".csv")


class TestContract(MeasuringContract):
    pass


@pytest.mark.slow
def test_the_report_has_numbers_claims_and_figures(tmp_path):
    found = TOY.measure(tmp_path)
    assert {path.name for path in found.files} >= {"mine_figure.csv", "mine.png", "claims.csv"}
    rows = list(csv.DictReader((tmp_path / "mine.csv").read_text().splitlines()))
    assert float(rows[0]["sqnr"]) == found.outcome.errors["bf16", "gauss"][0].sqnr
    assert read_json(tmp_path / "summary.json")["claims"][0]["agrees"] == "yes"
    assert "| LogFMT-8 | 8.5 |" in (tmp_path / "report.md").read_text()
    assert "<p>The front</p>" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_wire_cost_in_small():
    study = load("wire_cost")
    arms = tuple(arm for arm in study.arms if arm.name in ("bf16", "logfmt4", "logfmt8", "int8_1x128", "fp8_1x128"))
    part = replace(study, arms=arms, figures=())
    outcome = sweep(part, ErrorSetting(32, 512, 1, training_steps=2))
    rows = {row["format"]: row for row in modules.load(registration.folder() / "wire_cost.py").cost_rows(outcome)}
    assert rows["bf16"]["kl"] == 0
    assert rows["bf16"]["sqnr"] > 100
    assert rows["logfmt4"]["kl"] > rows["logfmt8"]["kl"] > 0
    assert rows["logfmt8"]["combine_us"] / rows["bf16"]["combine_us"] == pytest.approx(8.25 / 16)
    assert abs(rows["logfmt8"]["sqnr"] - 36.97) < 0.5
    assert not rows["fp8_1x128"]["sqnr_on_front"]


test_refused = refusals([
    ("replace(TOY.study, arms=TOY.study.arms[:1] * 2)", "every arm must have a different name"),
    ("replace(TOY.study, data=())", "every kind of data must have"),
    ("replace(TOY.study, tables=(PublishedTable('t', 'sqnr', '', ('gauss',), {'fp16': (1.0,)}),))",
     r"study 'mine': table 't' must name formats of the study, got \['fp16'\]"),
    ("replace(SMALL, rows=0)", "rows must be an integer from 1 to.*got .*"),
    ("replace(SMALL, columns=-1)", "columns must be an integer from 1 to.*got .*"),
    ("replace(SMALL, seeds=True)", "seeds must be an integer from 1 to.*got .*"),
    ("replace(SMALL, training_steps=0)", "training_steps must be an integer from 1 to.*got .*"),
], lambda: globals())  # fmt: skip
