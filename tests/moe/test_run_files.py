"""Runs that are killed, interrupted, out of space or divergent: what is left is whole, and goes on to the same bits."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from golden_runs import golden

import lowprec.moe.run.train
from lowprec import _files
from lowprec.moe.data.corpus import corpus_from_bytes
from lowprec.moe.model.memory import memory_policies
from lowprec.moe.run import checkpoint
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.files import read_run
from lowprec.moe.run.train import Schedule, Trainer, train
from lowprec.recipe import recipes

ROOT = Path(__file__).parents[2]
MICRO = golden.MICRO
#: State of every kind: random bits, amax histories of other layers, a running mean, a narrow moment.
MIXED = recipes["nvfp4"].with_(
    name="mixed",
    dgrad={"a": "te_delayed e5m2 history4", "b": "te_current", "accumulator": "hopper_fp8"},
    moment_m="e4m3fn 1x128",
)


def short_text():
    """The golden text with less to be tested on, which takes most of the time of short runs."""
    return corpus_from_bytes("short", golden.text().train[:60_000].tobytes(), held_out=1_000)


@pytest.fixture(scope="module")
def text():
    return short_text()


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run that nothing stopped and that keeps everything, and what it left."""
    folder = tmp_path_factory.mktemp("whole")
    return run(text, folder), bits(folder)


def run(text, out, **changes):
    return train(
        MICRO, MIXED, **{"steps": 6, "seed": 1, "data": text, "ema": 0.9, "out": out, "save_every": 2, **changes}
    )


# --- resuming --------------------------------------------------------------------------------------------------------


def bits(folder):
    header, arrays = checkpoint.read(folder / "checkpoint.npz")
    return header, {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.slow
def test_a_run_in_two_parts(text, tmp_path, whole):
    whole, left = whole
    steps = []

    def stop(record):
        steps.append(record.step)
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "parts", progress=stop)
    assert steps == [1, 2, 3]  # the step was finished, and saved between two saves
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["status"] == "interrupted"
    rest = run(text, tmp_path / "parts", resume=True, progress=lambda record: steps.append(record.step))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert bits(tmp_path / "parts") == left
    assert any(name.startswith("recipe/") for name in left[1])
    assert rest.validation_loss == whole.validation_loss
    curve = [r.metrics.drop(columns="seconds") for r in (whole, rest)]
    assert curve[0].equals(curve[1])
    finished = run(text, tmp_path / "parts", resume=True)  # nothing left to do
    assert finished.validation_loss == whole.validation_loss


def stopped_after(step, text, out, **changes):
    def stop(record):
        if record.step == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(text, out, progress=stop, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [("norms", "up_projections"), ("probabilities", "swiglu"), ("dsv3", "keep"), ("keep", "dsv3")]
)
def test_what_is_computed_again_changes_no_bit_of_a_run_or_of_its_rest(text, tmp_path, whole, first, then):
    stopped_after(3, text, tmp_path, memory=first)
    rest = run(text, tmp_path, memory=memory_policies[then], resume=True)
    assert rest.trainer.model.memory.name == then
    assert bits(tmp_path) == whole[1]
    loaded = Trainer.load(tmp_path / "checkpoint.npz", data=text, memory=first)
    assert loaded.model.memory.name == first
    assert Trainer.load(tmp_path / "checkpoint.npz", data=text).model.memory.name == "keep"


def test_an_unknown_memory_policy_is_named(text, tmp_path):
    with pytest.raises(ValueError, match=r"unknown memory policy 'everything': .*keep, norms, up_projections"):
        run(text, tmp_path / "out", memory="everything")
    assert not (tmp_path / "out").exists()


PROGRAM = """
import sys
sys.path[:0] = ["tests/moe", "tests"]
import test_run_files as t
from pathlib import Path
text = t.short_text()
t.run(text, Path(sys.argv[1]), steps=24, save_every=1, resume=True, progress=lambda r: print(r.step, flush=True))
"""


def start(folder):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, "its seed is 1, here it is 2"),
        ({"steps": 8}, "its schedule is"),
        ({"ema": None}, "its running mean has decay 0.9"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(text, tmp_path, changes, message):
    run(text, tmp_path, steps=2)
    with pytest.raises(CheckpointError, match=message):
        run(text, tmp_path, **{"steps": 2, "resume": True, **changes})


@pytest.mark.slow
def test_damage_is_noticed_on_resuming(text, tmp_path):
    run(text, tmp_path, steps=2)
    curve, path = tmp_path / "metrics.csv", tmp_path / "checkpoint.npz"
    good = curve.read_text()
    for bad in (good[: good.index("\n2,")], "", good.replace("loss", "lost", 1)):
        curve.write_text(bad)
        with pytest.raises(CheckpointError, match=r"metrics.csv' is damaged"):
            run(text, tmp_path, steps=2, resume=True)
    curve.write_text(good)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged, cut off"):
        run(text, tmp_path, steps=2, resume=True)
    with pytest.raises(ValueError, match="the folder to go on from is missing"):
        train(MICRO, steps=2, data=text, resume=True)


@pytest.mark.slow
def test_a_curve_of_an_earlier_version_is_read(text, tmp_path):
    run(text, tmp_path, steps=2)
    curve = tmp_path / "metrics.csv"
    rows = [line.split(",") for line in curve.read_text().splitlines()]
    place = rows[0].index("nonfinite_operands")
    assert [row[place] for row in rows] == ["nonfinite_operands", "0", "0"]
    curve.write_text("".join(",".join(row[:place] + row[place + 1 :]) + "\n" for row in rows))
    assert "nonfinite_operands" not in read_run(tmp_path).metrics
    for _ in range(2):  # of what it says, and of what was written since
        rest = run(text, tmp_path, steps=2, resume=True)
        assert rest.metrics["nonfinite_operands"].isna().tolist() == [True, True]


def test_a_checkpoint_that_is_no_trainers(text, tmp_path):
    checkpoint.write(tmp_path / "c.npz", {"step": 1}, {"w": np.zeros(2)})
    with pytest.raises(CheckpointError, match="lacks 'corpus': it is no trainer's"):
        Trainer.load(tmp_path / "c.npz", data=text)


# --- nothing is overwritten -----------------------------------------------------------------------------------------


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_run_that_is_there_is_not_overwritten(text, tmp_path):
    out = tmp_path / "r1"
    run(text, out, steps=2)
    before = content(out)
    with pytest.raises(ValueError, match=r"r1' holds a run \(micro mixed, seed 1, 2 steps, done\): resume goes on"):
        train(MICRO, "bf16", 2, data=text, out=out)
    assert content(out) == before
    train(MICRO, "bf16", 2, data=text, out=out, fresh=True)
    assert content(tmp_path / "r1.1") == before
    train(MICRO, "bf16", 2, 1, data=text, out=out, fresh=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r1", "r1.1", "r1.2"]
    with pytest.raises(ValueError, match="resume and fresh exclude each other"):
        train(MICRO, "bf16", 2, data=text, out=out, fresh=True, resume=True)


@pytest.mark.parametrize("left", ["checkpoint.npz", "metrics.csv", "run.json"])
def test_the_remains_of_a_run_are_not_overwritten(text, tmp_path, left):
    (tmp_path / left).write_bytes(b"{damaged")
    with pytest.raises(ValueError, match=f"holds a run \\({left}\\)"):
        run(text, tmp_path, steps=2)
    assert content(tmp_path) == {left: b"{damaged"}


@pytest.mark.slow
def test_two_runs_do_not_share_a_folder(text, tmp_path):
    """Neither of another process, nor of this one; the lock of a process that was killed is none."""
    process = start(tmp_path / "run")
    assert process.stdout.readline()  # it trains by now
    for options in ({"resume": True}, {"fresh": True}, {}):
        with pytest.raises(ValueError, match=rf"is in use by another process \(pid {process.pid}\)|holds a run"):
            run(text, tmp_path / "run", steps=24, **options)
    process.kill()
    process.communicate()
    with pytest.raises(ValueError, match=rf"is in use by another process \(pid {os.getpid()}\)"):
        run(text, tmp_path / "run", steps=24, resume=True,
            progress=lambda record: run(text, tmp_path / "run", steps=24, resume=True))  # fmt: skip
    run(text, tmp_path / "run", steps=24, resume=True)
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint.npz", "metrics.csv", "run.json"]


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_divergent_run_keeps_its_curve(text, tmp_path, monkeypatch):
    made = []

    class Spoiled(Trainer):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    def spoil(record):
        if record.step == 3:
            made[0].model.params["head"][0, 0] = np.nan

    monkeypatch.setattr(lowprec.moe.run.train, "Trainer", Spoiled)
    with np.errstate(all="ignore"):
        done = run(text, tmp_path, progress=spoil)
    assert (done.status, len(done.metrics), done.trainer.steps) == ("diverged", 3, 3)
    assert done.validation_loss == np.inf
    assert done.reason.startswith("step 4: the ")
    assert repr(done).endswith("3 steps, diverged>")
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (summary["status"], summary["validation_loss"]) == ("diverged", None)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4


@pytest.mark.slow
def test_divergence_leaves_the_histories_as_they_were(text):
    trainer = Trainer(MICRO, "te_delayed", text, seed=0, schedule=Schedule(1e-3, 0, 9))
    trainer.step()
    before = trainer.model.recipe.state_dict()
    trainer.model.params["layers.1.ffn.shared.w2"][0, 0] = np.nan
    with np.errstate(all="ignore"), pytest.raises(ArithmeticError):
        trainer.step()
    after = trainer.model.recipe.state_dict()
    assert after["step"] == before["step"]
    assert {k: a.tobytes() for k, a in after["delayed"].items()} == {
        k: a.tobytes() for k, a in before["delayed"].items()
    }


@pytest.mark.slow
def test_no_space_left(text, tmp_path, monkeypatch):
    run(text, tmp_path, steps=4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = os.fsync

    def full(descriptor):
        if threading.current_thread() is threading.main_thread() and os.fstat(descriptor).st_size > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(_files.os, "fsync", full)
    with pytest.raises(ValueError, match=r"checkpoint '.*' cannot be written: No space left on device"):
        run(text, tmp_path, steps=4, resume=True)
    assert (tmp_path / "checkpoint.npz").read_bytes() == before["checkpoint.npz"]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.npz", "metrics.csv", "run.json"]


def test_a_folder_that_cannot_be_written(text, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(_files.tempfile, "TemporaryFile", refused)
    with pytest.raises(ValueError, match="cannot be written: Read-only file system"):
        run(text, tmp_path / "out")


# --- the running mean, and what follows a schedule -------------------------------------------------------------------


def test_the_mean_weights_change_no_training(text):
    schedule = Schedule(4e-3, 0, 9)
    with_mean = Trainer(MICRO, "bf16", text, seed=0, schedule=schedule, ema=0.5)
    without = Trainer(MICRO, "bf16", text, seed=0, schedule=schedule)
    expected = with_mean.model.params["head"].copy()
    for _ in range(2):
        assert with_mean.step() == without.step()
        expected += (without.model.params["head"] - expected) * np.float32(0.5)
    assert np.array_equal(with_mean.ema.params["head"], expected)
    assert with_mean.evaluate(n_bytes=256) == without.evaluate(n_bytes=256)
    assert with_mean.evaluate(n_bytes=256, mean_weights=True) != without.evaluate(n_bytes=256)
    with pytest.raises(ValueError, match="keeps no running mean"):
        without.evaluate(mean_weights=True)
    with pytest.raises(ValueError, match=r"decay of the mean weights 1\.0"):
        Trainer(MICRO, "bf16", text, seed=0, schedule=schedule, ema=1.0)


def test_the_last_stages_move_no_biases_and_weigh_the_further_byte_less(text):
    config = dataclasses.replace(MICRO, name="further", mtp_depth=1)
    trainer = Trainer(config, "bf16", text, seed=0, schedule=Schedule(1e-3, 0, 10, "deepseek"))
    weights, moved = [], []
    for _ in range(10):
        before = {gate: bias.copy() for gate, bias in trainer.model.biases.items()}
        record = trainer.step()
        assert record.mtp_loss > 0
        weights.append(round(trainer.model.mtp_weight, 6))
        moved.append(any((bias != before[gate]).any() for gate, bias in trainer.model.biases.items()))
    assert weights == [0.3] * 7 + [0.1] * 3
    assert moved == [True] * 10  # 9 of 10 steps is 90 %
    assert [Schedule(1.0, 0, 100, "deepseek").bias_share(i) for i in (96, 97)] == [1.0, 0.0]
    starts = [(Schedule.of_run(1.0, steps, "deepseek").warmup_steps, steps) for steps in (1, 100, 300)]
    assert starts == [(1, 1), (1, 100), (4, 300)]
    with pytest.raises(ValueError, match="schedule kind 'cosine': known are constant, linear_to_zero, deepseek"):
        Schedule.of_run(1.0, 100, "cosine")
