"""Branches from shared checkpoints, with a trainer that takes milliseconds: what is planned, and what comes out."""

import csv
import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path

import fake_trainer
import numpy as np
import pytest
from contract import Toy, TrainingContract, cut, edited, gone, same_results
from refusals import refusals
from toys import SMALL, ablation, make, summarize

from lowprec.moe.data.sources import SOURCES
from lowprec.study import (
    Arm,
    Cell,
    CheckpointSize,
    Expectation,
    ReplaySetting,
    ScalingSetting,
    Setting,
    catalogue,
    run_study,
)
from lowprec.study.branches import curves, figures
from lowprec.study.catalogue import read as read_study
from lowprec.study.report.results import collect
from lowprec.study.run.store import RunFolder, StudyError, read_json

EXPECTATIONS = (
    Expectation("as good", "total_percent", "dsv3", expected=(-100.0, 100.0)),
    Expectation("as balanced", "max_violation", "dsv3", over="bf16", expected=(0.0, 100.0)),
)
BLIND = "fp4_naive (positive control) is NOT detected"
TOY = Toy(
    ablation(expectations=EXPECTATIONS[:1]), SMALL, fake_trainer.FAKE, ("as expected",),
    lost=("dsv3/c0-s1", "bf16/c1-s0"),
    damage={
        BLIND: same_results("", "fp4_naive", "bf16"),
        "again is NOT bit-identical to bf16": edited("again/c0-s0/run.json", {"weights": "other"}),
        "bf16/c0-s1 has 19 of 20 rows in metrics.csv": cut("bf16/c0-s1/metrics.csv", 19),
        "fp4_naive/c1-s0 has 0 of 20 rows in metrics.csv": gone("fp4_naive/c1-s0/metrics.csv"),
        "again/c0-s0 has 7 of 20 rows in metrics.csv": cut("again/c0-s0/metrics.csv", 7, "8,1."),
    },
    praise=("equivalent to bf16", "cheapest arm within", "Largest training effect", ": worse than"),
)  # fmt: skip


class TestContract(TrainingContract):
    pass


# --- the plan --------------------------------------------------------------------------------------------------------


def test_every_pair_shares_checkpoint_and_batches_and_only_those(tmp_path):
    planned = make(tmp_path)
    by_name = {task.name: task for task in planned.tasks}
    assert len(by_name) == len(planned.tasks) == 2 + 4 + 2 + 4 + 4 + 4
    for arm in ("perturb", "dsv3", "fp4_naive"):
        for pair in ("c0-s0", "c0-s1", "c1-s0", "c1-s1"):
            ours, theirs = by_name[f"{arm}/{pair}"], by_name[f"bf16/{pair}"]
            assert (ours.seed, ours.start) == (theirs.seed, theirs.start)
    seeds = {task.seed for task in planned.arms}
    assert len(seeds) == 4
    assert not seeds & {task.seed for task in planned.checkpoints}


def test_seeds_and_checkpoints_only_add_runs(tmp_path):
    few = {task.name: task for task in make(tmp_path).tasks}
    many = {task.name: task for task in make(tmp_path, setting=replace(SMALL, seeds=3, checkpoints=3)).tasks}
    assert few.items() < many.items()


@pytest.mark.parametrize("name", SOURCES)
def test_corpora_are_planned_by_name_and_texts_by_path(tmp_path, name):
    assert {task.context.data for task in make(tmp_path, data=name).tasks} == {name}
    assert {task.context.data for task in make(tmp_path, data="book.txt").tasks} == {str(Path("book.txt").resolve())}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (functools.partial(Setting, "nano", branch_steps=30, checkpoints=1, seeds=1), "checkpoint_steps"),
        (functools.partial(Setting, "nano", checkpoint_steps=0, checkpoints=1, seeds=1), "branch_steps"),
        (CheckpointSize, "checkpoint_steps"),
        (ReplaySetting, "checkpoint_steps"),
    ],
)
def test_the_default_warm_up_is_no_longer_than_the_training(make, field):
    for steps in (1, 8, 19, 20, 21, 300):
        assert make(**{field: steps}).warmup_steps == min(20, steps)
        assert make(**{field: steps}) == make(**{field: steps}, warmup_steps=min(20, steps))
    assert make(**{field: 300}).with_({field: "8"}) == make(**{field: 8})
    assert make(**{field: 8}).with_({field: 300}) == make(**{field: 300})
    for given, steps in (({"warmup_steps": 10}, 10), ({"warmup_steps": 5}, 5)):
        assert make(**{field: 300}, **given).with_({field: 30}).warmup_steps == steps
        assert make(**{field: 300}).with_({field: 30, **given}).warmup_steps == steps
    for wrong in (
        lambda: make(**{field: 8}, warmup_steps=9),
        lambda: make(**{field: 300}, warmup_steps=9).with_({field: 8}),
    ):
        with pytest.raises(ValueError, match=f"warmup_steps must be at most {field}=8, got 9"):
            wrong()


def test_short_cells_of_a_scaling_warm_up_all_along():
    size = ScalingSetting((Cell("nano", 8), Cell("nano", 300)))
    assert [size.of(cell).warmup_steps for cell in size.cells] == [8, 20]


def test_an_arm_can_differ_from_a_recipe_by_data():
    arm = Arm("hybrid", recipe="dsv3", change={"dy": "e5m2 1x128"})
    assert arm.recipe_name == arm.precision.name == "dsv3(dy=e5m2 1x128)"
    assert str(arm.precision.spec("layers.0.attn.wo").dy) == "e5m2 1x128"
    assert Arm("plain", recipe="dsv3").precision == "dsv3"


# --- what comes out --------------------------------------------------------------------------------------------------


def test_a_study_from_start_to_verdict(finished):
    study, planned = summarize(finished), TOY.plan(finished)
    verdicts = {item.arm.name: item.verdict for item in study.arms}
    assert verdicts == {"again": "bit-identical", "perturb": "equivalent", "dsv3": "equivalent", "fp4_naive": "worse"}
    assert study.floor == pytest.approx(np.sqrt(np.mean(study.arm("perturb").differences ** 2)), rel=1e-12)
    assert study.tokens_per_step == 2048
    control = study.arm("fp4_naive").effects
    assert study.arm("dsv3").sensitivity == {name: control[name].mean / 4 for name in control}
    assert study.mean_floor == study.arm("dsv3").mean_floor == pytest.approx(study.floor / math.sqrt(4))
    # The effects are those of the runs' own files, pair by pair: L[forward](weights).
    dsv3 = study.arm("dsv3")
    for place, run in enumerate(dsv3.runs):
        (own_arm, bf16_arm), (own_ref, bf16_ref) = (
            [record["forwards"][key] for key in ("dsv3", "bf16")]
            for arm in ("dsv3", "bf16")
            if (record := read_json(finished / f"{arm}/c{run.checkpoint}-s{run.seed}/run.json"))
        )
        for name, above, below in (
            ("forward", own_ref, bf16_ref), ("training", bf16_arm, bf16_ref), ("training_own", own_arm, own_ref),
            ("total", own_arm, bf16_ref),
        ):  # fmt: skip
            assert dsv3.by_effect[name].values[place] == (above - below) / below
        # A window's part in the difference: they sum to nothing, since the whole is the mean.
        assert abs(dsv3.by_effect["training"].text[place].sum()) < 1e-12
    assert dsv3.primary is dsv3.effects["training"]
    assert dsv3.primary.text_error >= 0.0
    for task in planned.tasks:
        run = task.folder.read()
        assert (run["status"], run["fingerprint"]) == ("done", task.fingerprint)
        assert {"cpu", "features", "cores", "openblas"} <= run["host"].keys()
        assert task.folder.rows() == task.steps
    assert read_study(finished) == (TOY.study, TOY.setting)
    with pytest.raises(StudyError, match="holds no study"):
        read_study(finished.parent)


def test_metrics_hold_every_bit_and_no_clock(finished):
    columns = RunFolder(finished / "bf16/c0-s0").columns()
    assert list(columns) == ["step", "loss", "learning_rate", "tokens", "max_violation"]
    start, schedule = TOY.plan(finished).arms[0].start_file, fake_trainer.Schedule(2e-3, 0, 20)
    trainer = fake_trainer.Trainer.load(start, recipe="bf16", schedule=schedule, data_seed=1000)
    assert columns["loss"] == [trainer.step().loss for _ in range(20)]


# --- verdicts that are void ------------------------------------------------------------------------------------------


def test_a_valid_study_says_what_it_says(finished):
    study = summarize(finished)
    assert study.invalid_reasons == []
    assert "dsv3: equivalent to bf16" in curves.curves(study).title
    assert "dsv3 is the cheapest arm within the margin" in figures.cost(study).title


@pytest.mark.sampled(1)
def test_no_arm_of_a_damaged_study_has_a_verdict(copied, damage):
    TOY.damage[damage](copied)
    found = catalogue.report(copied, plot=False)
    # A study that is too small to see its control is no fault; its verdicts are void all the same.
    assert bool(found.invalid_reasons) == (damage != BLIND)
    (reason,) = found.outcome.invalid_reasons
    for figure in found.figures:
        assert f"VOID: {damage}" in figure.title
    arms = {item["arm"]: item for item in read_json(copied / "summary.json")["arms"]}
    rows = {row["arm"]: row["verdict"] for row in csv.DictReader(found.table_csv().splitlines())}
    for item in found.outcome.arms:
        if item.arm.role != "repeat":
            name = item.arm.name
            assert {item.verdict, arms[name]["verdict"], rows[name]} == {f"void: {reason}"}
            assert all(arms[name][f"{effect}_verdict"].startswith("void") for effect in item.effects)
    (line,) = [x for x in (copied / "report.md").read_text().splitlines() if x.startswith("| dsv3 | dsv3 |")]
    assert line.endswith("| void |")


@pytest.mark.slow
def test_what_a_control_says_nothing_about_stands(tmp_path, monkeypatch):
    monkeypatch.setitem(fake_trainer.DAMAGE, "fp4_naive", 0.0)
    study = summarize(run_study(make(tmp_path, expectations=EXPECTATIONS), jobs=0).folder)
    assert "NOT detected" in study.invalid_reasons[0]
    assert study.findings[1].outcome == "as expected"
    assert study.arm("again").verdict == "bit-identical"


@pytest.mark.slow
def test_of_a_treatment_that_is_cut_off_that_verdict_alone_is_void(copied):
    cut("dsv3/c0-s0/metrics.csv", 12)(copied)
    study = summarize(copied)
    assert study.void == ()
    assert study.invalid_reasons[0].startswith("dsv3/c0-s0 has 12 of 20 rows")
    assert (study.arm("dsv3").word, study.arm("fp4_naive").verdict) == ("void", "worse")
    assert "cheapest" not in figures.cost(study).title
    assert "dsv3: void" in curves.curves(study).title
    assert "dsv3" not in figures.forest(study).title
    assert {item.outcome.partition(":")[0] for item in study.findings} == {"void"}
    catalogue.report(copied)
    assert "inf" not in (copied / "report.md").read_text().split("| arm |")[1].split("Measured with")[0]


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("run.json", '"validation_loss":', '"lost":', r"dsv3/c0-s0/run.json is damaged \('validation_loss'\)"),
        ("run.json", '"status": "done"', '"status": "do', r"dsv3/c0-s0/run.json is damaged .*; remove that folder"),
        ("metrics.csv", ",0.002,", ",O.002,", r"metrics\.csv is damaged"),
    ],
)
def test_a_run_whose_numbers_are_gone_is_named(copied, file, old, new, reason):
    path = copied / "dsv3/c0-s0" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(StudyError, match=reason):
        summarize(copied)


test_refused = refusals([
    ("SMALL.with_({'branch_steps': 'many'})", "branch_steps must be of type int, got 'many'"),
    ("SMALL.with_({'branch_steps': '0'})", "branch_steps must be an integer from 1 to 10.*got 0"),
    ("SMALL.with_({'learning_rate': 'nan'})", "learning_rate must be a finite number > 0, got nan"),
    ("SMALL.with_({'warmup_steps': '-1'})", "warmup_steps must be an integer from 0 to 10.*got -1"),
    ("SMALL.with_({'branch_step': '3'})", "unknown setting 'branch_step': did you mean 'branch_steps'"),
    ("ablation(arms=(Arm('a'), Arm('b')))", "exactly one arm must be the reference, got"),
    ("ablation(arms=(Arm('a', role='reference'), Arm('a')))", "every arm must have a different name"),
    ("ablation(arms=(Arm('a', role='reference'), Arm('b', 'dsv3', 'repeat')))", "arm 'b': recipe of a repeat must"),
    ("Arm('a/b')", r"arm name must have at most 100 letters, digits and _ . \+ -, as it names a file, got"),
    ("Arm('')", r"arm name must have at most 100 letters, digits and _ . \+ -, as it names a file, got"),
    ("Arm('a', change=['x'])", TypeError, "arm 'a': change must be a mapping of fields, got"),
    ("Arm('a', role='best')", "role must be one of reference, repeat, floor, treatment, control, got 'best'"),
    ("Arm('a', pairs=0)", "arm 'a': pairs must be an integer >= 1 or None, got 0"),
    ("lp.study.load('fp8_vs_fb16')", KeyError, "unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'"),
    ("lp.study.load('nowhere.py')", FileNotFoundError, "ablation file 'nowhere.py' does not exist"),
    ("lp.study.load(fake_trainer.__file__)", r"fake_trainer\.py must define `ablation = Ablation\(\.\.\.\)`, got"),
], lambda: globals())  # fmt: skip


def test_a_run_that_finishes_while_it_is_read_is_not_finished(tmp_path, monkeypatch):
    """Its first reading lacks results, which the second one has."""
    states = itertools.chain([{"status": "running"}], itertools.repeat({"status": "done"}))
    monkeypatch.setattr(RunFolder, "read", lambda self: next(states))
    assert collect(tmp_path, ["dsv3/c0-s0"], (), partial=True).missing == ["dsv3/c0-s0"]
