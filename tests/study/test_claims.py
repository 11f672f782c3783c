"""Studies that are tables of claims, and that every shipped ablation can be planned."""

import csv

import pytest
from contract import MeasuringContract, Toy, command
from refusals import refusals

from lowprec.study import (
    Ablation,
    Arm,
    Claims,
    ClaimSetting,
    ErrorArm,
    MeasurementStudy,
    PlannedStudy,
    Study,
    catalogue,
)
from lowprec.study.analysis.findings import AS_EXPECTED, AS_PUBLISHED
from lowprec.study.catalogue import TIERS
from lowprec.study.design.expectations import Expectation
from lowprec.study.run.store import read_json

EXPECTATIONS = (
    Expectation("a is twice b", "m", "a", "b", expected=(2.0, 2.0)),
    Expectation("b is large", "m", "b", expected=(9.0, 99.0), published=(0.0, 2.0)),
)
MEASURED = {("m", "a"): 2.0, ("m", "b"): 1.0}
TOY = Toy(
    Claims(name="toy", question="Is it?", arms=(ErrorArm("a"), ErrorArm("b")), expectations=EXPECTATIONS,
           values=lambda seeds: {key: seeds * value for key, value in MEASURED.items()}),
    ClaimSetting(2),
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
    if isinstance(item, PlannedStudy):
        planned = item.plan(item.quick, tmp_path / name)
        assert item.tier == "T3" or item.expectations
        roles = {"reference", "control"}
        if all(isinstance(arm, Arm) for arm in item.arms):  # those of a replay are accumulators, no trainings
            asked = item.at(item.quick) if isinstance(item, Ablation) else item
            precisions = {getattr(arm.precision, "name", arm.precision) for arm in asked.arms}
            assert {task.recipe_name for task in planned.arms} == precisions
            roles |= {"repeat", "floor"}
        if isinstance(item, MeasurementStudy) and item.measurement.own_controls:
            roles -= {"floor", "control"}
        if isinstance(item, Ablation) and item.second_reference:  # all of its budget goes into pairs, and it says so
            assert "There is no control" in item.notes
            roles -= {"repeat", "control"}
        assert roles <= {arm.role for arm in item.arms}
        assert all(arm.expected for arm in item.arms if arm.role in ("treatment", "control"))
    assert not list(tmp_path.iterdir())


class TestContract(MeasuringContract):
    pass


def test_claims_are_measured_and_judged(tmp_path):
    found = TOY.measure(tmp_path / "toy")
    assert [item.outcome for item in found.outcome] == [AS_EXPECTED, AS_PUBLISHED]
    rows = csv.DictReader((tmp_path / "toy/table.csv").read_text().splitlines())
    assert [(row["arm"], float(row["value"])) for row in rows] == [("a", 4.0), ("b", 2.0)]
    assert read_json(tmp_path / "toy/summary.json")["findings"][1]["outcome"] == AS_PUBLISHED


def test_logfmt_claims(tmp_path):
    result = command("ablate", "logfmt_rounding", "--quick", "--seeds", 1, "--csv", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 5
    assert all(row["which happened"] != "neither" for row in rows)


test_refused = refusals([
    ("Claims(name='x', question='?', arms=TOY.study.arms, values=dict, expectations=(Expectation('w', 'm', 'c'),))",
     "study 'x': unknown arm 'c' in expectation 'w': expected one of a, b"),
    ("ClaimSetting(0)", "seeds must be an integer .*, got 0"),
], lambda: globals())  # fmt: skip
