"""The figure and the report: the numbers behind them, the words, and that the files are whole."""

import csv
import json
import math
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import fake_trainer
import numpy as np
import pytest
from contract import branches, command
from rich.console import Console
from toys import SMALL, summarize

from lowprec.study import Arm
from lowprec.study.branches import curves, figures, report
from lowprec.study.branches.arms import sensitivity
from lowprec.study.branches.pairs import ema
from lowprec.study.branches.sentences import sentence
from lowprec.study.report import sheet
from lowprec.study.report.parts import interval, percent, short_count
from lowprec.study.run import progress
from lowprec.study.run.progress import Bars, Lines, Running, Snapshot, clock, display, status
from lowprec.study.run.store import StudyError

TOY = branches(Arm("boom", recipe="explodes", pairs=1))
study = pytest.fixture(lambda finished: summarize(finished), scope="module")


def bands_of(study, panel):
    """Return rows of a panel as columns, by arm."""
    rows = [row for row in curves.curve_rows(study) if row["panel"] == panel]
    names = dict.fromkeys(row["arm"] for row in rows)
    return {
        name: SimpleNamespace(**{key: np.array([row[key] for row in rows if row["arm"] == name]) for key in rows[0]})
        for name in names
    }


def test_curves_are_the_runs_smoothed_and_paired(study):
    reference = np.array([ema(run.curve) for run in study.reference])
    arm = np.array([ema(run.curve) for run in study.arm("dsv3").runs])
    loss, relative = bands_of(study, "loss"), bands_of(study, "relative")
    assert np.array_equal(loss["bf16"].mean, reference.mean(axis=0))
    assert np.array_equal(loss["dsv3"].low, arm.min(axis=0))
    r = (arm - reference) / reference
    assert np.array_equal(relative["dsv3"].mean, r.mean(axis=0))
    assert np.array_equal(relative["dsv3"].high, r.max(axis=0))
    assert np.array_equal(relative["dsv3"].bytes, 2048.0 * np.arange(1, 21))
    assert "again" not in loss
    assert "bf16" not in relative


def test_the_floor_is_a_symmetric_band_of_the_root_mean_square_of_a_mean(study):
    band = bands_of(study, "relative")["perturb"]
    reference, arm = (
        np.array([ema(run.curve) for run in runs]) for runs in (study.reference, study.arm("perturb").runs)
    )
    lines = (arm - reference) / reference
    assert np.allclose(band.high, np.sqrt(np.mean(lines * lines, axis=0) / len(lines)), rtol=1e-12, atol=0.0)
    assert np.array_equal(band.low, -band.high)


def test_a_diverged_arm_ends_where_its_first_pair_does(study):
    bands = bands_of(study, "loss")
    assert (bands["boom"].mean.size, *bands["boom"].diverged, *bands["dsv3"].diverged) == (5, *[1] * 5, *[0] * 20)


@pytest.mark.slow
def test_figure_files_are_the_same_every_time(study, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
    first, second = (curves.curves(study).write(tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["toy.csv", "toy.png", "toy.svg"]
    assert int.from_bytes(first[1].read_bytes()[16:20]) > 1200  # pixels across
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert "matplotlib.pyplot" not in sys.modules  # nothing interactive


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"seeds": 1, "checkpoints": 1}, {"branch_steps": 1}, {"seeds": 3}])
def test_figures_of_odd_sizes(tmp_path, changes):
    small = summarize(replace(TOY, setting=replace(SMALL, **changes)).run(tmp_path / "toy"))
    assert all(path.stat().st_size > 300 for path in curves.curves(small).write(tmp_path))


def test_the_rows_of_pairs_give_the_intervals(study):
    rows = figures.forest(study).rows
    for item in study.arms:
        for name, found in item.effects.items():
            mine = [row for row in rows if (row["arm"], row["effect"]) == (item.arm.name, name)]
            if item.arm.role == "repeat":
                assert not mine
                continue
            assert [row["r"] for row in mine] == item.by_effect[name].values.tolist()
            (error,) = {row["text_error"] for row in mine} if not found.diverged else (math.nan,)
            assert math.isnan(error) if found.diverged else error == found.text_error
            together = math.hypot(found.pairs_error, error)
            assert found.diverged or found.error == pytest.approx(together, rel=1e-12)


@pytest.mark.slow
def test_far_apart_arms_get_a_symmetric_logarithm(study, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **options: saved.append(self) or save(self, *given, **options)
    )
    monkeypatch.setitem(fake_trainer.DAMAGE, "fp4_naive", 0.5)
    far = summarize(TOY.run(tmp_path / "toy"))
    assert far.arm("fp4_naive").verdict == "worse"
    for item, panels in ((study, 0), (far, 2)):  # of the curves and of the pairs
        curves.curves(item).write(tmp_path)
        assert [axes.get_yscale() for axes in saved[-1].axes].count("symlog") == panels


def test_missing_matplotlib_is_said_before_anything_else(study, tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"pip install 'lowprec\[plot\]'"):
        curves.curves(study).write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_title_states_the_finding(study):
    finding = "dsv3: equivalent to bf16 within ±0.25 %; fp4_naive and boom (diverged): worse than bf16"
    assert curves.title(study) == finding


# --- words -----------------------------------------------------------------------------------------------------------


def test_sentences_say_what_was_measured(study):
    sentences = {item.arm.name: sentence(study, item) for item in study.arms}
    dsv3 = study.arm("dsv3")
    for words in (
        f"dsv3: training effect {percent(dsv3.primary.mean)} % "
        f"(90 % interval {interval(dsv3.primary.ci90)} %, 4 pairs): equiv",
        f"the floor of the mean, {percent(study.floor / 2, sign=False)} %",
        f"; forward effect {percent(dsv3.effects['forward'].mean)} %",
        f", total {percent(dsv3.effects['total'].mean)} %, largest ",
        f"worth {100 * dsv3.data_equivalent:+.1f} % of the data.",
    ):
        assert words in sentences["dsv3"]
    assert "2 runs again, every step's metrics, all weights and the validation loss bit-identical" in sentences["again"]
    assert ": detected, above the floor of the mean, " in sentences["fp4_naive"]
    assert sentences["boom"] == "boom: 2 of 2 pairs diverged: worse than bf16 (a divergence counts as worse)."
    assert "one weight times (1 + 2^-7)" in sentences["perturb"]
    for words in (
        "0.84M active of 1.43M parameters (94 % of",
        "41k bytes of text after a BF16 checkpoint of 61k, 4 pairs",
    ):
        assert words in study.size


def test_an_arm_is_equivalent_only_beside_a_control_of_four_times_its_bound(study):
    dsv3, control = study.arm("dsv3"), study.arm("fp4_naive")
    bound = dsv3.primary.ci90[1]
    for effect, verdict in ((4.001 * bound, "equivalent"), (3.999 * bound, "small, but the control is hardly larger")):
        mean = replace(control.primary, mean=effect)
        weaker = replace(control, effects={**control.effects, "training": mean})
        found = replace(dsv3, sensitivity=sensitivity([dsv3, control, weaker]))
        assert found.verdict == found.verdict_on("training") == verdict
        assert replace(found, arm=replace(found.arm, role="floor")).verdict == "equivalent"
        shown = replace(study, arms=(found, weaker))
        quarter = "a quarter of its effect is" in sentence(shown, found)
        assert quarter == (verdict != "equivalent") == ("dsv3: small, but the control" in curves.title(shown))
    assert sensitivity([dsv3]) == {}
    assert replace(dsv3, sensitivity={}).verdict == "equivalent"


def test_a_difference_that_holm_does_not_keep_is_said_so(study):
    item, words = study.arm("fp4_naive"), "does not survive Holm's correction over the arms (p = 0.2)"
    assert [words in sentence(study, found) for found in (item, replace(item, p_holm=0.2))] == [False, True]


def test_markdown_has_the_table_the_sentences_and_the_expectation(study):
    text = report.results(study).markdown()
    assert text.startswith("# toy\n\nDoes it?\n\n![")
    lines = text.splitlines()
    head = lines.index("| " + " | ".join(report.COLUMNS) + " |")
    body = lines[head + 2 : head + 2 + len(study.arms)]
    assert [line.split(" | ")[0] for line in body] == [f"| {item.arm.name}" for item in study.arms]
    assert {line.count("|") for line in lines[head : head + 2 + len(study.arms)]} == {len(report.COLUMNS) + 1}
    for item in study.arms:
        assert f"- {sentence(study, item)}" in lines
    assert any(line.startswith("| dsv3 | equivalent | a report | equivalent (+") for line in lines)


def test_summary_json_and_table_csv_hold_every_bit(study, tmp_path):
    found = report.results(study, tmp_path).write(plot=False)
    content = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert (content["trustworthy"], content["floor"]) == (True, study.floor)
    arms = {arm["arm"]: arm for arm in content["arms"]}
    assert arms["dsv3"]["verdict"] == "equivalent"
    assert arms["boom"]["runs"][0]["training_percent"] == "inf"
    assert len(arms["dsv3"]["runs"]) == 4
    rows = {row["arm"]: row for row in csv.DictReader(found.table_csv().splitlines())}
    for name, effect in study.arm("dsv3").effects.items():
        assert float(rows["dsv3"][f"{name}_percent"]) == 100 * effect.mean
        assert arms["dsv3"][f"{name}_percent"] == 100 * effect.mean
        assert float(rows["dsv3"][f"{name}_ci95_high_percent"]) == 100 * effect.ci95[1]
    assert math.isnan(float(rows["boom"]["training_percent"]))


def test_the_screen_shows_table_and_sentences(study, finished):
    shown = command("report", finished, "--no-plot").stdout
    for item in study.arms:
        assert sentence(study, item)[:60] in shown
        assert item.verdict in shown


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999"), (61_440, "61k"), (843_392, "0.84M"), (1_433_216, "1.43M"), (28_650_000, "28.6M")]
)
def test_counts_in_short(number, text):
    assert short_count(number) == text


# --- progress --------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal():
    with open(os.devnull, "w") as nowhere:
        yield Console(force_terminal=True, file=nowhere)


def test_plain_lines_come_seldom_and_say_what_is_compiled_only_if_something_is(capsys, monkeypatch):
    lines = Lines(Console(width=200), every=3600)
    lines.stage("the first step")
    for kernels in (1, 2, 0):
        lines.compiling(kernels)
    monkeypatch.setattr(progress, "COMPILING_EVERY", 0.0)
    for kernels in (3, 0):
        lines.compiling(kernels)
    running = [Running("dsv3/c0-s1", 12, 40, 1.7123), Running("a", 0, 40, None), Running("b", 5, 5, 2.5)]
    for _ in range(2):
        lines.update(Snapshot(3, 22, 150, 1000, running, 130.0))
    lines.note("a remark")
    assert [line[8:] for line in capsys.readouterr().out.splitlines()] == [  # without the time
        "the first step",
        "compiling kernels, once per version of lowprec",
        "compiling kernels, once per version of lowprec: 3 so far",
        "3/22 runs, 15 % of steps, about 2:10 left; dsv3/c0-s1 12/40 loss 1.712; a 0/40; b 5/5 loss 2.500 evaluating",
        "a remark",
    ]


def test_bars_say_what_is_compiled_while_it_is(terminal):
    with display(terminal) as shown:
        shown.stage("the first step")
        whole = shown.progress.tasks[0]
        shown.compiling(1)
        shown.compiling(2)
        assert whole.description == "compiling kernels, once per version of lowprec: 2"
        shown.compiling(0)
        assert whole.description == "the first step"
        shown.update(Snapshot(0, 1, 1, 5, [Running("nano bf16", 1, 5, 2.5)], None))
        shown.compiling(3)
        shown.compiling(0)
        assert whole.description == "0/1 runs"


def test_what_takes_a_moment_is_said_on_a_terminal_alone(terminal, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(Bars, "stage", lambda self, text: shown.append(text))
    for console in (terminal, Console(force_terminal=False)):
        with status(console, "reading the text"):
            pass
    assert shown == ["reading the text"]
    assert capsys.readouterr().out == ""


def test_the_display_suits_the_console(terminal):
    with display(Console(force_terminal=False)) as shown:
        assert isinstance(shown, Lines)
    with display(terminal) as shown:
        assert isinstance(shown, Bars)
        shown.stage("compiling")
        shown.update(Snapshot(0, 3, 5, 90, [Running("a", 5, 30, 2.0)], None))
        assert len(shown.progress.tasks) == 2
        shown.update(Snapshot(1, 3, 30, 90, [Running("b", 30, 30, None)], 10.0))
        assert [task.description for task in shown.progress.tasks] == ["1/3 runs", "  b"]
        assert shown.progress.tasks[1].fields["note"] == "evaluating"


def test_clock():
    assert [clock(s) for s in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 8])
def test_names_in_the_legend_do_not_overlap(tmp_path, count):
    """Many arms have one line each, with the mean next to the name."""
    from matplotlib.figure import Figure

    more = [Arm(f"arm{i}", recipe="dsv3") for i in range(count - 1)] + [Arm("boom", recipe="explodes", pairs=1)]
    many = summarize(branches(*more, setting=replace(SMALL, seeds=1)).run(tmp_path / "toy"))
    figure = Figure(figsize=(9.2, 6.4), dpi=160)
    curves._draw_key(axes := figure.add_axes((0.76, 0.5, 0.22, 0.43)), many)
    figure.draw_without_rendering()
    found = axes.get_legend().get_texts()
    several = ["bf16: reference", "boom: diverged", "noise floor of a mean: ±1 rms"]
    assert {text.get_text() for text in found} >= {*(several if count > 1 else ["boom\ndiverged in 2 of 2"])}
    boxes = [text.get_window_extent() for text in found]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert max(box.x1 for box in boxes) < figure.bbox.x1
    assert min(box.y0 for box in boxes) > axes.get_window_extent().y0 - 10
