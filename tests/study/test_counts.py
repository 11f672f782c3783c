"""Studies of counted successes: shares, their intervals, and a control that fails."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
from contract import MeasuringContract, Toy
from refusals import refusals

from lowprec.study import ClaimSetting, CountStudy, ErrorArm, Expectation
from lowprec.study.analysis.findings import AS_EXPECTED, NEITHER
from lowprec.study.tensors.counts import Share

SIZE = ClaimSetting(2)
EXPECTATIONS = (
    Expectation("b fails half of the time", "success_percent", "b", condition="near", expected=(25.0, 75.0)),
    Expectation("that is less than a", "success_percent", "b", minus="a", condition="near", expected=(-70.0, -30.0)),
    Expectation("b always succeeds", "success_percent", "b", condition="near", expected=(90.0, 100.0)),
)


def trials(seed):
    """All of a, every second of b."""
    return {("near", "a"): np.ones(20), ("near", "b"): np.arange(20) % 2, ("far", "a"): [1], ("far", "b"): [0]}


TOY = Toy(
    CountStudy(name="toy", question="Is it?", arms=(ErrorArm("a"), ErrorArm("b")), expectations=EXPECTATIONS,
               trials=trials, points=("near", "far"), axis="distance", success="found", control="a",
               quick=SIZE, full=SIZE),
    SIZE,
)  # fmt: skip


class TestContract(MeasuringContract):
    pass


def test_successes_are_counted_and_judged(tmp_path):
    found = TOY.measure(tmp_path / "toy", plot=False)
    assert [item.outcome for item in found.outcome] == [AS_EXPECTED, AS_EXPECTED, NEITHER]
    rows = csv.DictReader((tmp_path / "toy/table.csv").read_text().splitlines())
    assert [(row["condition"], row["arm"], row["successes"], row["trials"]) for row in rows] == [
        ("near", "a", "40", "40"), ("near", "b", "20", "40"), ("far", "a", "2", "2"), ("far", "b", "0", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(("outcomes", "message"), [
    ({("near", "a"): [1], ("near", "b"): [1], ("far", "a"): [1]}, "outcomes for each condition and arm, got"),
    (trials(0) | {("far", "b"): []}, "one or more outcomes of ('far', 'b'), got none"),
])  # fmt: skip
def test_trials_of_every_condition_and_arm_are_needed(tmp_path, outcomes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(TOY, study=replace(TOY.study, trials=lambda seed: outcomes)).measure(tmp_path / "toy", plot=False)


def test_a_control_that_fails_voids_all_verdicts(tmp_path):
    found = replace(TOY, study=replace(TOY.study, control="b")).measure(tmp_path / "toy", plot=False)
    assert found.invalid_reasons == (
        "b (control) has 20 successes in 40 trials at near", "b (control) has 0 successes in 2 trials at far",
    )  # fmt: skip
    assert all(item.outcome.startswith("void: b (control)") for item in found.outcome)


def test_intervals_are_those_of_the_binomial_distribution():
    """Against tables: 90 % of 10 and of 20 successes (Clopper and Pearson); seeds that differ count as fewer trials."""
    assert Share(0, 10, 1.0).estimate.ci90 == pytest.approx((0.0, 100 * (1 - 0.05**0.1)))
    assert Share(10, 10, 1.0).estimate.ci90 == pytest.approx((100 * 0.05**0.1, 100.0))
    low, high = Share(5, 10, 1.0).estimate.ci90
    assert (low, high) == pytest.approx((22.24, 77.76), abs=0.01)
    assert Share(50, 100, 10.0).estimate.ci90 == pytest.approx((low, high))
    difference = Share(56, 70, 1.0), Share(48, 80, 1.0)
    assert difference[1].subtracted_from(difference[0]).value == pytest.approx(20.0)


test_refused = refusals([
    ("replace(TOY.study, control='c')", "study 'toy': control must be an arm, got 'c'"),
    ("replace(TOY.study, expectations=(Expectation('w', 'success_percent', 'a', 'b', condition='near'),))",
     "study 'toy': over of expectation 'w' must be empty, got 'b'"),
    ("replace(TOY.study, expectations=(Expectation('w', 'success_percent', 'a', condition='here'),))",
     "study 'toy': unknown condition 'here' in expectation 'w': expected one of near, far"),
], lambda: globals())  # fmt: skip
