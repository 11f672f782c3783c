"""Studies that are tables of claims, and that every shipped ablation can be planned."""

import csv
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from lowprec.cli import app as cli
from lowprec.study import Ablation, Arm, Readings, catalogue
from lowprec.study.catalogue import TIERS, Study
from lowprec.study.design.expectations import AS_EXPECTED, AS_PUBLISHED, Expectation
from lowprec.study.kinds.catalogue import kind_of
from lowprec.study.kinds.claims.study import ClaimArm, Claims, ClaimSetting
from lowprec.study.kinds.kind import TrainingKind
from lowprec.study.report.document import Document

TOY = Claims(
    "toy",
    "Is it?",
    (ClaimArm("a"), ClaimArm("b")),
    (Expectation("a is twice b", "m", "a", "b", expected=(2.0, 2.0)),
     Expectation("b is large", "m", "b", expected=(9.0, 99.0), published=(0.0, 2.0))),
    lambda seeds: {("m", "a"): 2.0 * seeds, ("m", "b"): 1.0 * seeds},
)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", catalogue.names())
def test_every_ablation_is_complete_and_can_be_planned(name, tmp_path):
    item = catalogue.load(name)
    assert isinstance(item, Study)
    assert item.tier in TIERS
    assert item.name == name
    assert item.question.endswith("?")
    assert getattr(item, "source", "x")
    kind = kind_of(item)
    if isinstance(kind, TrainingKind):
        planned = kind.plan(item, item.quick, tmp_path / name)
        assert item.tier == "T3" or item.expectations
        roles = {"reference", "control"}
        if all(isinstance(arm, Arm) for arm in item.arms):  # those of a replay are accumulators, no trainings
            asked = item.at(item.quick) if isinstance(item, Ablation) else item
            precisions = {getattr(arm.precision, "name", arm.precision) for arm in asked.arms}
            assert {task.recipe_name for task in planned.arms} == precisions
            roles |= {"repeat", "floor"}
        if isinstance(item, Readings) and item.reading.own_controls:
            roles -= {"floor", "control"}
        assert roles <= {arm.role for arm in item.arms}
        assert all(arm.expected for arm in item.arms if arm.role in ("treatment", "control"))
    assert not list(tmp_path.iterdir())


def test_claims_are_measured_judged_and_written(tmp_path):
    report = kind_of(TOY).measure(TOY, TOY.quick, tmp_path / "toy", command="lowprec ablate toy")
    outcome, files = report.outcome, report.files
    assert [item.outcome for item in outcome.findings] == [AS_EXPECTED, AS_PUBLISHED]
    assert {path.name for path in files} == {path.name for path in (tmp_path / "toy").iterdir()}
    rows = list(csv.DictReader((tmp_path / "toy/table.csv").read_text().splitlines()))
    assert [(row["arm"], float(row["value"])) for row in rows] == [("a", 4.0), ("b", 2.0)]
    assert json.loads((tmp_path / "toy/summary.json").read_text())["findings"][1]["outcome"] == AS_PUBLISHED
    assert Document.read(tmp_path / "toy").name == "toy"
    result = CliRunner().invoke(cli.cli, ["report", str(tmp_path), "--no-plot"])
    assert result.exit_code == 0, result.output


def test_claims_that_make_no_sense():
    with pytest.raises(ValueError, match="names the unknown arm 'c'"):
        replace(TOY, expectations=(Expectation("w", "m", "c"),))
    with pytest.raises(ValueError, match="seeds=0: a whole number"):
        ClaimSetting(0)


def test_logfmt_claims(tmp_path):
    result = CliRunner().invoke(cli.cli, ["ablate", "logfmt_rounding", "--quick", "--seeds", "1", "--csv", "--out",
                                          str(tmp_path)])  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 5
    assert all(row["which happened"] != "neither" for row in rows)
