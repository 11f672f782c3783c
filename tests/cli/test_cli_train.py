"""`lowprec train` and `lowprec recipes`: recipe files, running means, what a stopped run goes on to, and mistakes."""

import csv
import functools
import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import csv_rows, refused, rows, run

from lowprec.cli.train import _progress
from lowprec.moe.run import checkpoint
from lowprec.moe.run.train import Trainer
from lowprec.moe.run.train import train as train_by_program
from lowprec.recipe import Recipe, recipes

SMALL = 'base = "nano"\nlayers = 2\nexperts = 4\nbatch = 2\nsequence = 64\n'
MINE = """base = "dsv3"
name = "mine"
promote_every = "never"

[layers."layers.*.ffn.gate"]
out_format = "float32"
"""


@pytest.fixture(scope="module", autouse=True)
def short_evaluation():
    """Test on few bytes: most of the time of so short a run."""
    few = functools.partialmethod(Trainer.evaluate, n_bytes=2048)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "evaluate", few)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Arguments of small runs, and the folder of the files that they name."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "small.toml").write_text(SMALL)
    (folder / "mine.toml").write_text(MINE)
    words = np.random.default_rng(0).choice(["one ", "two ", "three ", "four\n"], 50_000)
    (folder / "text.txt").write_text("".join(words))
    return folder


def train(files, *more):
    given = {
        "--config": files / "small.toml",
        "--recipe": files / "mine.toml",
        "--data": files / "text.txt",
        "--steps": 4,
    }
    return ["train", *(part for pair in given.items() for part in pair), *more]


@pytest.fixture(scope="module")
def whole(files):
    """The folder of a run that nothing stopped, and what it printed."""
    return files / "whole", rows(*train(files, "--ema", 0.5, "--out", files / "whole"))[0]


def bits(folder):
    header, arrays = checkpoint.read(folder / "checkpoint.npz")
    return header, {name: array.tobytes() for name, array in arrays.items()}


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_recipe_of_a_file_is_trained_in(files, whole):
    folder, row = whole
    assert (row["config"], row["recipe"], row["steps"]) == ("small", "mine", 4)
    assert 5.0 < row["first_loss"] < 6.0
    assert row["last_loss"] < row["first_loss"]
    curve = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [float(curve[i]["loss"]) for i in (0, -1)] == [row["first_loss"], row["last_loss"]]
    # The program that does without the command line comes to the same.
    library = train_by_program(files / "small.toml", str(files / "mine.toml"), 4, data=files / "text.txt", ema=0.5)
    assert library.validation_loss == row["validation_loss"]
    assert library.trainer.recipe == Recipe.from_toml(MINE)


@pytest.mark.slow
def test_the_mean_weights_are_tested_beside_the_last_ones(files, whole):
    folder, row = whole
    assert 0 < abs(row["validation_loss_of_mean_weights"] - row["validation_loss"]) < 1
    assert bits(folder)[0]["ema"] == 0.5
    (plain,) = rows(*train(files))
    assert plain.pop("recipe") == "mine"
    assert "mean weights" not in plain
    assert plain == {name: row[name] for name in plain}


def test_a_run_that_is_not_evaluated_says_so(files, whole, tmp_path):
    _, row = whole
    (found,) = rows(*train(files, "--ema", 0.5, "--no-evaluate", "--out", tmp_path))
    assert found == {**{name: row[name] for name in found}, "validation_loss": None}
    assert "validation_loss_of_mean_weights" not in found
    assert "not evaluated" in run(*train(files, "--no-evaluate")).stdout.splitlines()[0]
    assert rows("report", tmp_path, "--no-plot")[0]["validation_loss"] == "not evaluated"


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bits(files, whole, tmp_path, monkeypatch):
    folder, row = whole
    again = train(files, "--ema", 0.5, "--out", tmp_path)
    step = Trainer.step

    def interrupted(trainer):
        if trainer.steps == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        stopped = run(*again, code=130)
    assert stopped.stdout == ""
    assert stopped.stderr.strip().splitlines()[-1] == (
        f"error: stopped; {tmp_path} has the run so far; --resume continues it"
    )
    assert bits(tmp_path)[0]["steps"] == 2
    # Nothing of the folder is touched by what is refused.
    before = (tmp_path / "checkpoint.npz").read_bytes()
    for option, value, match in (
        ("--seed", 1, "seed must be 0, as in the checkpoint, got 1"),
        ("--recipe", "bf16", "recipe must be mine, as in the checkpoint, got bf16"),
        ("--ema", 0.25, "ema must be 0.5, as in the checkpoint, got 0.25"),
    ):  # fmt: skip
        refused(*again, "--resume", option, value, match=match, progress=1)
    assert (tmp_path / "checkpoint.npz").read_bytes() == before
    assert rows(*again, "--resume", "--recompute", "dsv3") == [row]
    assert bits(tmp_path) == bits(folder)


@pytest.mark.slow
def test_every_phase_is_called_what_it_is(files, tmp_path):
    def stages(*more):
        lines = run(*train(files, *more)).stderr.splitlines()
        return [line.partition("] ")[2] for line in lines if line.startswith("[") and " of steps" not in line]

    compiled = {"compiling kernels, once per version of lowprec"}
    first = stages("--out", tmp_path / "run")
    assert [text for text in first if text not in compiled] == [
        "the first step", "evaluating on the held-out text", "saving",
    ]  # fmt: skip
    again = stages("--out", tmp_path / "run", "--resume")
    assert again == ["reading the checkpoint", "evaluating on the held-out text", "saving"]
    stages = []
    train_by_program(files / "small.toml", "bf16", 1, data=str(files / "text.txt"), on_stage=stages.append)
    assert stages == ["reading the text", "the first step", "evaluating on the held-out text"]


@pytest.mark.parametrize("compiling", [[], [21.0], [21.0, 1.4], [2.0, 21.0, 3.0]])
def test_time_left_is_told_once_steps_take_their_usual_time(compiling):
    """The first command compiles kernels: a step of 21 s would make 300 steps of 0.1 s look like two hours."""
    shots = []
    tell = _progress(SimpleNamespace(update=shots.append), "tiny bf16", 300)
    usual = [0.09, 0.1, 0.12, 0.1, 0.11] * 60
    for step, seconds in enumerate([*compiling, *usual][:300], 1):
        tell(SimpleNamespace(step=step, seconds=seconds, loss=2.0))
    assert shots[len(compiling) + 3].seconds_left is not None
    told = [shot.seconds_left / (300 - shot.steps_done) for shot in shots[:-1] if shot.seconds_left is not None]
    assert 0.089 < min(told) <= max(told) < 0.121


def test_time_left_is_told_even_if_no_step_takes_as_long_as_another():
    shots = []
    tell = _progress(SimpleNamespace(update=shots.append), "tiny bf16", 20)
    for step in range(1, 21):
        tell(SimpleNamespace(step=step, seconds=2.0**step, loss=2.0))
    assert [shot.seconds_left is None for shot in shots] == [step <= 10 for step in range(1, 21)]


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_recipes_are_listed():
    listed = rows("recipes")
    assert [row["recipe"] for row in listed] == recipes.names()
    assert {row["recipe"]: row["description"] for row in listed}["dsv3"] == recipes["dsv3"].description
    shown = run("recipes").stdout
    assert all(name in shown for name in ("dsv3", "nvfp4"))


def test_a_recipe_is_shown_as_a_precision_map(files):
    found = csv_rows("recipes", files / "mine.toml")
    gate = {row["name"]: row["precision"] for row in found if row["part"] == "ffn.gate"}
    assert gate["Fprop"] == "bfloat16 x bfloat16 on float32, y in float32"
    assert any("hopper_fp8, never promoted" in row["precision"] for row in found)
    assert "mine" in re.sub(r"\s+", " ", run("recipes", files / "mine.toml").stdout)


def test_a_printed_recipe_is_one_to_train_with(files, tmp_path):
    (tmp_path / "again.toml").write_text(run("recipes", files / "mine.toml", "--toml").stdout)
    assert Recipe.from_toml((tmp_path / "again.toml").read_text()) == Recipe.from_toml(MINE)
    assert rows("recipes", tmp_path / "again.toml") == rows("recipes", files / "mine.toml")
