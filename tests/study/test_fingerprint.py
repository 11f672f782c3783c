"""Runs of something else are not mixed, and what makes a run's numbers is in the hash."""

import json
from dataclasses import replace

import pytest
from toys import SMALL, make, snapshot

from lowprec.study import run_study
from lowprec.study.kinds.branches.summary import summarize
from lowprec.study.run.fingerprint import differences
from lowprec.study.run.runner import check_same
from lowprec.study.run.store import StudyError


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("branch_steps", {"setting": replace(SMALL, branch_steps=21)}),
        ("learning_rate", {"setting": replace(SMALL, learning_rate=1e-3)}),
        ("data", {"data": "other"}),
    ],
)
def test_runs_of_something_else_are_not_mixed(tmp_path, what, changes):
    planned = run_study(make(tmp_path), jobs=0)
    before = snapshot(planned.folder)
    words = {
        "branch_steps": "schedule.total_steps: 20 then, 21 now",
        "learning_rate": "schedule.peak: 0.002 then, 0.001",
    }
    with pytest.raises(StudyError, match=words.get(what, "data: ")) as caught:
        run_study(make(tmp_path, **changes), jobs=0)
    assert "--fresh" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(planned.folder) == before


@pytest.mark.parametrize("key", ["code", "versions", "recipe"])
def test_runs_of_other_code_versions_or_recipes_are_not_mixed(tmp_path, key):
    planned = run_study(make(tmp_path), jobs=0)
    run_file = planned.folder / "dsv3/c0-s0/run.json"
    run = json.loads(run_file.read_text())
    run["fingerprint"][key] = "something else"
    run_file.write_text(json.dumps(run))
    with pytest.raises(StudyError, match=f"{key}: 'something else' then, .* now"):
        check_same(make(tmp_path).tasks)


def test_differences_name_the_place():
    assert differences({"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": [1, 3]}, "d": 1}) == [
        "a.b[1]: 2 then, 3 now", "c: 1 then, None now", "d: None then, 1 now",
    ]  # fmt: skip
    assert differences([1], [1, 2]) == [": [1] then, [1, 2] now"]


@pytest.mark.parametrize(
    ("run", "key"),
    [("dsv3/c1-s1", "code"), ("bf16/c0-s1", "versions"), ("perturb/c0-s0", "data"), ("dsv3/c1-s0", "recipe")]
)  # fmt: skip
def test_a_report_over_mixed_runs_is_refused(tmp_path, run, key):
    planned = run_study(make(tmp_path), jobs=0)
    summarize(planned.folder)
    path = planned.folder / run / "run.json"
    record = json.loads(path.read_text())
    record["fingerprint"][key] = "another"
    path.write_text(json.dumps(record))
    with pytest.raises(
        StudyError, match=f"mixes runs that cannot be compared: {run} differs from .* in {key}: .*another"
    ):
        summarize(planned.folder)
