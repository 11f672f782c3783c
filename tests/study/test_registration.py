"""Expectations are registered before they are judged; amendments need a reason and stay."""

import ast
import json
import math
import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
from contract import command

import lowprec.study
from lowprec.study import Claims, ErrorArm, Expectation, PrecisionSwitch, load, names
from lowprec.study.analysis.estimates import Estimate, SeedMeans, estimate
from lowprec.study.analysis.findings import judge, outcome_of
from lowprec.study.design import registration
from lowprec.study.design.expectations import NOT_REGISTERED, span
from lowprec.study.design.registration import Registration, Version
from lowprec.study.report.parts import found_cell

RESULTS = sorted((registration.folder() / "results").glob("*.json"))
EXPECTATION = Expectation("one is less", "size", "one", "two", expected=(0.4, 0.6), published=(0.0, 1.0))
MINE = """
from lowprec.study import Claims, ErrorArm, Expectation
ablation = Claims(name="mine", question="Which is less?", arms=(ErrorArm("one"), ErrorArm("two")),
    expectations=(Expectation("one is less", "size", "one", "two", expected=(0.4, {high})),),
    values=lambda seeds: {{("size", "one"): 1.0, ("size", "two"): 2.0}})
"""


def study(*items):
    return Claims(
        name="mine", question="?", arms=(ErrorArm("one"), ErrorArm("two")), expectations=items, values=lambda seeds: {}
    )


def results_of(file):
    return json.loads(file.read_text(encoding="utf-8"))


# --- hashes ----------------------------------------------------------------------------------------------------------


def test_every_field_of_a_range_counts_and_nothing_else():
    changes = {"words": "one is more", "metric": "width", "arm": "two", "over": "", "expected": (0.4, 0.61),
               "published": None, "condition": "rain", "minus": "two"}  # fmt: skip
    assert changes.keys() == {field.name for field in fields(Expectation)}
    same = registration.hash_of(EXPECTATION)
    alone = replace(EXPECTATION, over="")  # a ratio cannot be a difference as well
    for name, value in changes.items():
        before = alone if name == "minus" else EXPECTATION
        assert registration.hash_of(replace(before, **{name: value})) != registration.hash_of(before), name
    assert registration.hash_of(replace(EXPECTATION, expected=(0.4, 0.6), published=(0, 1))) == same
    assert registration.hash_of(replace(EXPECTATION, expected=(0.4, math.inf))) != same


def test_words_of_arms_and_the_margin_count_too():
    found = load("fp8_vs_bf16")
    same = registration.words_of(found)
    arms = tuple(replace(arm, expected="better") if arm.name == "dsv3" else arm for arm in found.arms)
    assert registration.words_of(replace(found, arms=arms)) != same
    assert registration.words_of(replace(found, margin=0.005)) != same
    arms = tuple(replace(arm, source="elsewhere") for arm in found.arms)
    assert registration.words_of(replace(found, arms=arms)) == same


def test_sizes_arms_and_the_stopping_rule_count_too():
    found = load("fp8_vs_bf16")
    first = registration.register(Registration(), Version.of(found, "abc", "2026-01-01"))
    tail = tuple(replace(arm, tail=PrecisionSwitch(0.5)) if arm.name == "dsv3" else arm for arm in found.arms)
    changes = (
        {"full": replace(found.full, checkpoints=5)}, {"quick": replace(found.quick, branch_steps=7)},
        {"full": replace(found.full, learning_rate=1e-4)}, {"full": replace(found.full, first_checkpoint=3)},
        {"arms": tail}, {"interim": False}, {"seed_block": 99},
    )  # fmt: skip
    for change in changes:
        changed = replace(found, **change)
        assert first.state(changed) == "changed since 2026-01-01: not registered", change
    with pytest.raises(
        ValueError, match=r"the study has changed since it was registered on 2026-01-01 \(its sizes or arms\);"
    ):
        registration.register(first, Version.of(changed, "def", "2026-01-02"))
    older = Registration((replace(first.versions[0], design={}),))
    assert older.state(changed) == "2026-01-01"


# --- versions --------------------------------------------------------------------------------------------------------


def test_amendments_need_a_reason_and_what_they_amend_stays(tmp_path):
    first = registration.register(Registration(), Version.of(study(EXPECTATION), "abc", "2026-01-01"))
    assert first.covers(EXPECTATION)
    assert first.state(study(EXPECTATION)) == "2026-01-01"
    wider = replace(EXPECTATION, expected=(0.3, 0.6))
    assert not first.covers(wider)
    assert first.state(study(wider)) == "changed since 2026-01-01: not registered"
    with pytest.raises(
        ValueError, match=r"the study has changed since it was registered on 2026-01-01 \(one is less: 0.3 to"
    ):
        registration.register(first, Version.of(study(wider), "def", "2026-01-02"))
    with pytest.raises(ValueError, match="the study is registered already, on 2026-01-01, with the same ranges"):
        registration.register(first, Version.of(study(EXPECTATION), "def", "2026-01-02"))
    more = {"reason": "a first run was broken", "after_results": True}
    second = registration.register(first, Version.of(study(wider), "def", "2026-01-02", **more))
    assert second.versions[0] == first.versions[0]
    assert second.covers(wider)
    assert not second.covers(EXPECTATION)
    assert second.state(study(wider)) == "2026-01-01, amended 2026-01-02"
    assert second.amendments() == ("2026-01-02, after a run: a first run was broken",)
    registration.write(tmp_path, {"mine": second})
    assert registration.read(tmp_path) == {"mine": second}
    assert registration.read(tmp_path / "elsewhere") == {}
    (tmp_path / "registered.json").write_text('{"mine": [{"date": 3}]}')
    with pytest.raises(ValueError, match="is damaged"):
        registration.read(tmp_path)


def test_what_is_not_registered_is_not_judged():
    half = SeedMeans({(EXPECTATION.metric, "one"): 1.0, (EXPECTATION.metric, "two"): 2.0})
    assert judge(EXPECTATION, partial(estimate, half)).outcome == "as published and expected"
    found = judge(EXPECTATION, partial(estimate, half), registered=False)
    assert (found.value, found.outcome) == (0.5, "not registered")
    assert judge(EXPECTATION, partial(estimate, half), ["it broke"], registered=False).outcome == "void: it broke"


def test_every_kind_of_study_asks_whether_a_range_is_registered():
    package = Path(lowprec.study.__file__).parent
    asked = []
    for file in package.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        judging = [call for call in calls if getattr(call.func, "id", "") == "judge"]
        asked += [(file.parent.name, [keyword.arg for keyword in call.keywords]) for call in judging]
    assert len(asked) >= 5
    assert all("registered" in keywords for _, keywords in asked), asked


# --- the command line ------------------------------------------------------------------------------------------------


def test_a_file_of_ones_own_is_judged_once_it_is_registered(tmp_path):
    mine = tmp_path / "mine.py"

    def ablate(out):
        """Return what the command says, and what becomes of the one expectation."""
        told = command("ablate", mine, "--out", tmp_path / out, "--no-plot")
        assert told.exit_code == 0
        return told.output, results_of(tmp_path / out / "mine-full" / "summary.json")["findings"][0]["outcome"]

    mine.write_text(MINE.format(high=0.6))
    told, outcome = ablate("runs")
    assert "mine: not registered; it runs, but its results are not judged (lowprec register)" in told
    assert outcome == "not registered"

    assert "1 ranges registered" in command("register", mine, "--prototype").output
    written = results_of(tmp_path / "registered.json")["mine"]
    assert [version["prototype"] for version in written] == [["one is less"]]
    assert ablate("runs")[1] == "not registered"  # these runs began before
    told, outcome = ablate("new")
    assert ("not registered" in told, outcome) == (False, "as expected")

    mine.write_text(MINE.format(high=0.7))
    told, outcome = ablate("newer")
    assert ("mine: changed since" in told, outcome) == (True, "not registered")
    refused = command("register", mine)
    assert (refused.exit_code, "; give --reason" in refused.output) == (2, True)
    command("register", mine, "--reason", "the first was a slip")
    (row,) = json.loads(command("ablate", "--list", mine, "--json").output)
    assert "amended" in row["registered"]
    assert ablate("newest")[1] == "as expected"


# --- what is published -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(34)
@pytest.mark.parametrize("name", names())
def test_what_the_files_expect_is_registered(name):
    state = registration.registered_of(name, name).state(load(name))
    assert not state.endswith("not registered"), (
        f"{name}: {state}; lowprec register {name}, if it changed with --reason"
    )


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_what_published_reports_judged_was_registered(file):
    published = [tuple(row[:4]) for row in results_of(file)["expectations"]["rows"]]
    versions = registration.registered_of(file.stem, file.stem).versions
    known = {(item.words, item.quantity, item.expected, item.published) for v in versions for item in v.ranges}
    assert versions
    assert set(published) <= known


def test_every_outcome_that_was_neither_is_explained():
    explained = json.loads((registration.folder() / "explained.json").read_text(encoding="utf-8"))
    neither = {
        (f.stem, row[0]) for f in RESULTS for row in results_of(f)["expectations"]["rows"] if row[-1] == "neither"
    }
    assert {(name, words) for name, sentences in explained.items() for words in sentences} == neither
    assert all(sentence.endswith(".") for sentences in explained.values() for sentence in sentences.values())


def test_amendments_are_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "ablations.md").read_text(encoding="utf-8")
    for file in RESULTS:
        for reason in registration.registered_of(file.stem, file.stem).amendments():
            assert reason.rstrip(".") in page
    assert " outcomes are neither, each with an explanation: " in page


def test_what_changed_since_a_study_ran_is_said_of_what_is_published():
    """An entry goes when its study has run again."""
    changed = json.loads((registration.folder() / "since.json").read_text())
    published = {file.stem: json.loads(file.read_text())["code"] for file in RESULTS}
    assert {name: entry["code"] for name, entry in changed.items()}.items() <= published.items()


def test_an_edit_in_the_same_second_is_seen(tmp_path, monkeypatch):
    """Python would take cached byte code for a source of the same size and time as current."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    mine = tmp_path / "mine.py"
    for high in (0.6, 0.7):
        mine.write_text(MINE.format(high=high))
        os.utime(mine, (1, 1))
        assert load(str(mine)).expectations[0].expected == (0.4, high)


def test_published_outcomes_are_those_of_their_unrounded_numbers():
    judged = 0
    for path in RESULTS:
        found = json.loads(path.read_text())["expectations"]
        if not found["rows"]:
            continue
        ranges = {item.words: item for item in load(path.stem).expectations}
        for (words, _, expected, published, cell, outcome), numbers in zip(found["rows"], found["found"], strict=True):
            if numbers is None:
                continue
            estimate, item = Estimate(numbers[0], (numbers[1], numbers[2])), ranges[words]
            assert found_cell(estimate) == cell, (path.stem, words)
            amended = (span(item.expected), span(item.published)) != (expected, published)
            if not amended and not outcome.startswith(("void", NOT_REGISTERED)):
                judged += 1
                assert outcome_of(estimate, item.expected, item.published) == outcome, (path.stem, words)
    assert judged > 100
