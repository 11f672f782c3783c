"""Scaling: the line and its interval, the plan of many cells in one, and their report; with a fake trainer."""

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
from contract import Toy, TrainingContract, cut, edited, same_results
from fake_trainer import DAMAGE, FakeBackend, Trainer
from refusals import refusals
from toys import summarize

from lowprec.study import Arm, Cell, Expectation, Scaling, ScalingSetting, catalogue, load
from lowprec.study.branches.scaling_results import fit
from lowprec.study.run.store import read_json


class SizedTrainer(Trainer):
    """Where the model is ten times as large, precision does twice the damage."""

    def _level(self, damage=None):
        return super()._level(None if damage is None else damage * (2 if self.config == "pilot" else 1))


@dataclass(frozen=True)
class Sized(FakeBackend):
    """Fake models of different sizes."""

    trainer = SizedTrainer

    def describe(self, config, recipe):
        sizes = {"nano": 800_000, "pilot": 8_000_000}
        return {**super().describe(config, recipe), "parameters": {"total": 10**7, "active": sizes[config]}}


ARMS = (
    Arm("bf16", role="reference"), Arm("again", role="repeat", pairs=1), Arm("perturb", role="floor"),
    Arm("dsv3", recipe="dsv3"), Arm("fp4_naive", recipe="fp4_naive", role="control"),
)  # fmt: skip
CELLS = (
    Cell("nano", 20, branch_steps=12), Cell("nano", 80, branch_steps=12), Cell("pilot", 20, branch_steps=12),
    Cell("nano", 20, "bible", branch_steps=12),
)  # fmt: skip
SIZE = ScalingSetting(CELLS, checkpoints=3, seeds=2)
STUDY = Scaling(
    name="toy", question="Which way?", arms=ARMS, quick=SIZE, full=SIZE, seed_block=3,
    expectations=(
        Expectation("as set", "forward_percent", "fp4_naive", expected=(1.2, 1.3)),
        Expectation("as set", "forward_percent", "fp4_naive", over="dsv3", expected=(5.0, 500.0)),
        Expectation("no slope", "forward_slope", "fp4_naive", condition="bytes", expected=(-0.05, 0.05)),
    ),
)  # fmt: skip


# --- the line --------------------------------------------------------------------------------------------------------


def samples(rng, checkpoints=4, between=1.0, within=0.5):
    """Three lengths of each checkpoint, two sizes, two texts; the true slope along lengths is 2."""
    rows, values, strata, clusters = [], [], [], []
    for size in (0.0, 1.0):
        for text in (0.0, 1.0):
            for number in range(checkpoints):
                offset = between * rng.standard_normal()
                for length in (-0.3, 0.0, 0.3):
                    rows.append([1.0, size - 0.5, length, text])
                    values.append(3.0 + 2.0 * length + offset + within * rng.standard_normal())
                    strata.append((size, text))
                    clusters.append(number)
    return np.array(rows), np.array(values), strata, clusters


def test_a_line_is_recovered():
    found = fit(*samples(np.random.default_rng(0), between=0.0, within=0.0))
    assert found.coefficients.tolist() == pytest.approx([3.0, 0.0, 2.0, 0.0], abs=1e-12)
    assert found.at([1, 0, 0.1, 0]) == pytest.approx((3.2, 3.2, 3.2))


@pytest.mark.slow
@pytest.mark.parametrize(("row", "truth"), [([0, 1, 0, 0], 0.0), ([0, 0, 1, 0], 2.0), ([1, 0, 0, 0.5], 3.0)])
def test_intervals_cover(row, truth):
    """Clusters matter: values of one checkpoint are alike, which hides slopes along sizes and not along lengths."""
    covered = 0
    for seed in range(300):
        _, low, high = fit(*samples(np.random.default_rng(seed)), seed=seed).at(row)
        covered += low <= truth <= high
    assert 0.80 <= covered / 300 <= 0.96


def test_one_checkpoint_gives_a_line_without_an_interval():
    found = fit(*samples(np.random.default_rng(0), checkpoints=1)).at([0, 0, 1, 0])
    assert [*np.isfinite(found)] == [True, False, False]


# --- a study ---------------------------------------------------------------------------------------------------------

REPEAT, BLIND = "nano-20-stdlib: again is NOT bit-identical to bf16", "fp4_naive (positive control) is NOT detected"
TOY = Toy(
    STUDY, SIZE, Sized(), ("as expected",) * 3, unfinished="has no finished cell",
    lost=tuple(f"{cell.name}/{run}" for cell in CELLS for run in ("dsv3/c1-s0", "bf16/c0-s0")),
    damage={
        REPEAT: edited("*/again/c0-s0/run.json", {"weights": "other"}),
        BLIND: same_results("*/", "fp4_naive", "bf16"),
        "nano-20-stdlib: nano-20-stdlib/bf16/c0-s0 has 3 of 12 rows": cut("nano-20-stdlib/bf16/c0-s0/metrics.csv", 3),
    },
)  # fmt: skip


@pytest.mark.slow
class TestContract(TrainingContract):
    pass


def test_the_plan_holds_every_cell_once(tmp_path):
    planned = TOY.plan(tmp_path / "toy")
    assert len(planned.checkpoints) == 4 * 3
    assert len(planned.arms) == 4 * 3 * (4 * 2 + 1)
    assert {task.study for task in planned.checkpoints} == {tmp_path / "checkpoints"}
    assert all(task.start_file.is_relative_to(tmp_path / "checkpoints") for task in planned.arms)
    seeds = [task.name.rpartition("-s")[2] for task in planned.arms]
    assert seeds == sorted(seeds)  # the first pairs of all cells come before the second
    assert {task.context.data for task in planned.arms} == {"stdlib", "bible"}


def test_a_corpus_of_ones_own_takes_the_place_of_the_default(tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("x")
    setting = replace(SIZE, cells=CELLS[:2])
    planned = STUDY.plan(setting, tmp_path / "toy", data=str(text), backend=Sized())
    assert {task.context.data for task in planned.arms} == {str(text)}
    assert {task.name.split("/")[0] for task in planned.arms} == {"nano-20-book", "nano-80-book"}


def test_a_part_of_the_cells_can_be_run(tmp_path):
    part = SIZE.with_({"cells": "nano-80-*, pilot-20-stdlib", "seeds": "1"})
    assert (part.cells, part.seeds) == ((CELLS[1], CELLS[2]), 1)
    assert SIZE.with_({"seeds": "5"}).seeds == 5
    planned = STUDY.plan(part, tmp_path / "part", backend=Sized())
    assert {task.name.split("/")[0] for task in planned.arms} == {"nano-80-stdlib", "pilot-20-stdlib"}


@pytest.mark.slow
def test_effects_and_slopes_are_those_that_were_set(finished):
    summary = summarize(finished)
    assert not summary.missing
    assert summary.axes == ["parameters", "bytes", "corpus"]
    assert summary.corpora == ["stdlib", "bible"]
    for arm in ("dsv3", "fp4_naive"):
        half = 50 * DAMAGE[arm]  # half of the damage is in the forward pass, half in the weights
        for effect in ("forward", "training"):
            found = summary.fit(arm, effect)
            # One cell of four has twice the damage. Reading and chaos are noise of some hundredths of a per cent.
            for row, truth in ((summary.row(), 1.25), (summary.row(parameters=8e6), 2.0), (summary.row(8e5), 1.0)):
                assert found.at(row)[0] == pytest.approx(truth * half, abs=0.05 + 0.04 * half)
            for axis, truth in (("parameters", 1.0), ("bytes", 0.0), ("corpus", 0.0)):
                middle, low, high = found.at(summary.slope(axis))
                assert low <= middle <= high
                assert middle == pytest.approx(truth * half, abs=0.08 + 0.04 * half)
    centre, ratio, slope = (item.found for item in summary.findings)
    assert (centre.value, *centre.ci90) == summary.fit("fp4_naive", "forward").at(summary.row())
    assert (slope.value, *slope.ci90) == summary.fit("fp4_naive", "forward").at(summary.slope("bytes"))
    above, below = (summary.fit(arm, "forward").read(summary.row()).draws for arm in ("fp4_naive", "dsv3"))
    assert ratio.ci90 == pytest.approx(tuple(np.quantile(above / below, (0.05, 0.95))))
    assert ratio.ci90[0] < ratio.value < ratio.ci90[1]
    for cell in summary.cells:
        values = summary.by_checkpoint(cell, "fp4_naive", "forward")
        mean = 100 * summary.cells[cell].arm("fp4_naive").effects["forward"].mean
        assert np.mean(list(values.values())) == pytest.approx(mean)


def test_a_difference_has_its_interval_and_a_ratio_to_nothing_has_none(finished):
    apart = Expectation("w", "training_percent", "fp4_naive", minus="dsv3")
    ratio = Expectation("w", "training_percent", "dsv3", over="perturb")
    summary = replace(summarize(finished), study=replace(STUDY, expectations=(apart, ratio)))
    difference, nothing = summary.findings
    values = [summary.fit(arm, "training").at(summary.row())[0] for arm in ("fp4_naive", "dsv3")]
    assert difference.value == values[0] - values[1]
    assert difference.found.ci90[0] < difference.value < difference.found.ci90[1]
    assert nothing.found.as_difference is not None
    assert np.isnan(nothing.found.ci90).all()


@pytest.mark.slow
def test_the_report_and_its_files(finished, reported):
    assert {path.name for path in reported.files} >= {"toy.csv", "toy.png", "toy.svg", "table.csv"}
    text = (finished / "report.md").read_text()
    assert "per 10 times the parameters" in text
    assert "bible less stdlib" in text
    assert len(reported.table_csv().splitlines()) == 1 + 4 * 3 * 2 * 3
    assert catalogue.report(finished / "nano-20-stdlib", plot=False).study.question == "Which way?"


@pytest.mark.slow
def test_cells_that_are_not_finished_are_left_out_and_named(copied):
    shutil.rmtree(copied / "nano-20-bible" / "dsv3" / "c1-s0")
    summary = summarize(copied)
    assert summary.missing == ("nano-20-bible",)
    assert summary.axes == ["parameters", "bytes"]
    catalogue.report(copied)
    assert "Not finished, and left out: nano-20-bible." in (copied / "report.md").read_text()


@pytest.mark.slow
def test_cells_that_are_void_alone_are_named(copied):
    TOY.damage[BLIND](copied)
    reason = "alone would be void: nano-20-stdlib (fp4_naive (positive control) is NOT detected"
    catalogue.report(copied, plot=False)
    assert reason in "\n".join(read_json(copied / "summary.json")["told"])


def test_the_published_study_says_what_it_costs():
    study = load("scaling")
    assert {cell.config for cell in study.full.cells} == {"nano", "pilot", "tiny"}
    assert {cell.corpus for cell in study.full.cells} == {"stdlib", "bible"}
    assert (study.full.checkpoints, study.full.seeds) == (4, 2)
    assert study.full.core_minutes() > 10 * study.quick.core_minutes() > 0
    assert f"about {study.full.core_minutes():.0f} core-minutes" in str(study.full)


test_refused = refusals([
    ("ScalingSetting((CELLS[0], CELLS[0]))", "cells must have different names, got nano-20-stdlib, nano-20-stdlib"),
    ("replace(SIZE, cells=('nano',))", r"cells must be a tuple of Cell, got \('nano',\)"),
    ("SIZE.with_({'cells': 'nano-*,tiny'})", r"cells='nano-\*,tiny': unknown cell 'tiny': expected one of"),
    ("replace(STUDY, expectations=(Expectation('w', 'forward_slope', 'dsv3', condition='z'),))",
     "unknown condition 'z'"),
    ("replace(STUDY, arms=ARMS[1:])", "exactly one arm must be the reference"),
], lambda: globals())  # fmt: skip
