"""`lowprec report` compares plain training runs."""

import json
from pathlib import Path

import pytest
from command_line import refused, rows, run
from golden_runs import golden, short_text
from refusals import refusals

import lowprec as lp


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Return a folder with two runs that differ in their recipe, and one with another seed."""
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe, seed in (("a", "bf16", 0), ("b", "dsv3", 0), ("c", "bf16", 1)):
        lp.train(golden.MICRO, recipe, steps=2, seed=seed, data=short_text(), out=folder / name)
    return folder


@pytest.mark.slow
def test_two_runs_are_compared(runs):
    found = rows("report", runs / "a", runs / "b")
    kept = [json.loads((runs / name / "run.json").read_text())["validation_loss"] for name in "ab"]
    assert [row["recipe"] for row in found] == ["bf16", "dsv3"]
    assert found[1]["against_the_first"] == f"{100 * (kept[1] / kept[0] - 1):+.3f} %"
    page = (runs / "compared_runs" / "report.html").read_text()
    assert "<svg" in page
    assert "noise floor" in page


@pytest.mark.slow
def test_a_folder_of_runs_is_compared_again(runs):
    for _ in range(2):  # what the first time wrote is no run
        run("report", runs)
    assert "differ in more than their recipes: seed" in (runs / "compared_runs" / "report.md").read_text()


def test_one_run_has_nothing_to_be_compared_with(runs):
    run("report", runs / "a", "--no-plot")
    assert "nothing to compare" in (runs / "compared_runs" / "report.md").read_text()


def test_a_damaged_run_is_named(runs, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "metrics.csv").write_text("step,loss\n1,what\n")
    (tmp_path / "bad" / "run.json").write_text("{}")
    refused("report", tmp_path, "--no-plot", match="damaged run")


def test_losses_of_folders_are_those_of_the_runs(runs):
    axes = lp.plot.losses(runs / "a", runs / "b", smoothing=0.0)
    kept = [line.get_ydata()[-1] for line in axes.get_lines()]
    expected = [float((runs / name / "metrics.csv").read_text().splitlines()[-1].split(",")[1]) for name in "ab"]
    assert kept == expected


test_what_is_no_run_is_refused = refusals(
    [
        ("lp.plot.losses()", "losses: runs must be one run or folder at least, got none"),
        ("lp.plot.losses('nowhere')", "'nowhere' holds no training run; one has metrics.csv and run.json"),
        ("lp.plot.losses(3)", "losses: runs must be runs or folders of runs, got 3"),
    ]
)
