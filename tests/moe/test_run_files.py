"""Runs that are killed, interrupted, out of space or divergent: what is left is whole, and goes on to the same bits."""

import dataclasses
import errno
import json
import os
import signal
import tempfile

import numpy as np
import pytest
from golden_runs import MIXED, golden, short_text
from small_models import in_bytes

from lowprec.moe.model.memory import recompute_policies
from lowprec.moe.run import checkpoint
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.files import read_run
from lowprec.moe.run.train import Schedule, Trainer, train

MICRO, STEADY = golden.MICRO, Schedule(4e-3, 0, 9)


@pytest.fixture(scope="module")
def text():
    return short_text()


def run(text, out, **changes):
    options = {"steps": 6, "seed": 1, "data": text, "ema": 0.9, "out": out, "save_every": 2, **changes}
    return train(MICRO, MIXED, **options)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run that nothing stopped and that keeps everything, and what it left."""
    folder = tmp_path_factory.mktemp("whole")
    return run(text, folder), bits(folder)


@pytest.fixture
def short(text, tmp_path):
    """A finished run of two steps, and what goes on with it, with other options."""
    run(text, tmp_path, steps=2)
    return lambda **changes: run(text, tmp_path, **{"steps": 2, "resume": True, **changes})


# --- resuming --------------------------------------------------------------------------------------------------------


def bits(folder):
    header, arrays = checkpoint.read(folder / "checkpoint.npz")
    return header, in_bytes(arrays)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def summary(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.slow
def test_a_run_in_two_parts(text, tmp_path, whole):
    (whole, left), steps = whole, []

    def stop(record):
        steps.append(record.step)
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, on_step=stop)
    assert steps == [1, 2, 3]  # the step was finished, and saved between two saves
    assert summary(tmp_path)["status"] == "interrupted"
    rest = run(text, tmp_path, resume=True, on_step=lambda record: steps.append(record.step))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert bits(tmp_path) == left
    assert any(name.startswith("recipe/") for name in left[1])
    assert rest.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    finished = run(text, tmp_path, resume=True)  # nothing left to do
    assert finished.validation_loss == rest.validation_loss == whole.validation_loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [("norms", "up_projections"), ("probabilities", "swiglu"), ("dsv3", "none"), ("none", "dsv3")]
)
def test_what_is_computed_again_changes_no_bit_of_a_run_or_of_its_rest(text, tmp_path, whole, first, then):
    def stop(record):
        if record.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path, on_step=stop, recompute=first)
    rest = run(text, tmp_path, recompute=recompute_policies[then], resume=True)
    assert rest.trainer.model.recompute.name == then
    assert bits(tmp_path) == whole[1]
    for options, expected in (({"recompute": first}, first), ({}, "none")):
        loaded = Trainer.load(tmp_path / "checkpoint.npz", data=text, **options)
        assert loaded.model.recompute.name == expected


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused(short):
    for changes, message in (
        ({"seed": 2}, "seed must be 1, as in the checkpoint, got 2"), ({"steps": 8}, "schedule must be"),
        ({"ema": None}, "ema must be 0.9, as in the checkpoint, got None"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            short(**changes)


@pytest.mark.slow
def test_damage_is_noticed_on_resuming(short, text, tmp_path):
    curve, path = tmp_path / "metrics.csv", tmp_path / "checkpoint.npz"
    good = curve.read_text()
    for bad in (good[: good.index("\n2,")], "", good.replace("loss", "lost", 1)):
        curve.write_text(bad)
        with pytest.raises(CheckpointError, match=r"metrics.csv' is damaged"):
            short()
    curve.write_text(good)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged, cut off"):
        short()
    with pytest.raises(ValueError, match="train: out must be the folder of the run to resume, got None"):
        train(MICRO, steps=2, data=text, resume=True)


@pytest.mark.slow
def test_a_curve_of_an_earlier_version_is_read(short, tmp_path):
    curve = tmp_path / "metrics.csv"
    rows = [line.split(",") for line in curve.read_text().splitlines()]
    place = rows[0].index("nonfinite_operands")
    assert [row[place] for row in rows] == ["nonfinite_operands", "0", "0"]
    curve.write_text("".join(",".join(row[:place] + row[place + 1 :]) + "\n" for row in rows))
    assert "nonfinite_operands" not in read_run(tmp_path).metrics
    for _ in range(2):  # of what it says, and of what was written since
        assert short().metrics["nonfinite_operands"].isna().tolist() == [True, True]


# --- nothing is overwritten -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_there_is_not_overwritten(text, tmp_path):
    out, again = tmp_path / "r1", {"data": text, "out": tmp_path / "r1"}
    run(text, out, steps=2)
    before = files(out)
    with pytest.raises(
        ValueError, match=r"r1' holds a run \(micro mixed, seed 1, 2 steps, done\); resume continues it"
    ):
        train(MICRO, "bf16", 2, **again)
    assert files(out) == before
    train(MICRO, "bf16", 2, restart=True, **again)
    assert files(tmp_path / "r1.1") == before
    train(MICRO, "bf16", 2, 1, restart=True, **again)
    assert sorted(os.listdir(tmp_path)) == ["r1", "r1.1", "r1.2"]
    with pytest.raises(ValueError, match="resume and restart are mutually exclusive"):
        train(MICRO, "bf16", 2, restart=True, resume=True, **again)


@pytest.mark.parametrize("left", ["checkpoint.npz", "metrics.csv", "run.json"])
def test_the_remains_of_a_run_are_not_overwritten(text, tmp_path, left):
    (tmp_path / left).write_bytes(b"{damaged")
    with pytest.raises(ValueError, match=f"holds a run \\({left}\\)"):
        run(text, tmp_path, steps=2)
    assert files(tmp_path) == {left: b"{damaged"}


@pytest.mark.slow
def test_two_runs_of_a_process_do_not_share_a_folder(text, tmp_path):
    def again(*_):
        run(text, tmp_path, steps=2, resume=True, on_step=again)

    with pytest.raises(ValueError, match=rf"is in use by another process \(pid {os.getpid()}\)"):
        run(text, tmp_path, steps=2, on_step=again)


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_divergent_run_keeps_its_curve(text, tmp_path, monkeypatch):
    step = Trainer.step

    def spoiled(trainer):
        if trainer.steps == 3:
            trainer.model.params["head"][0, 0] = np.nan
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", spoiled)
    with np.errstate(all="ignore"):
        done = run(text, tmp_path)
    assert (done.status, len(done.metrics), done.trainer.steps, done.validation_loss) == ("diverged", 3, 3, np.inf)
    assert done.divergence_reason.startswith("step 4: the ")
    assert repr(done).endswith("3 steps, diverged>")
    assert (summary(tmp_path)["status"], summary(tmp_path)["validation_loss"]) == ("diverged", None)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4


def test_a_folder_that_cannot_be_written(text, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(ValueError, match="cannot be written: Read-only file system"):
        run(text, tmp_path / "out")


# --- the running mean, and what follows a schedule -------------------------------------------------------------------


def test_the_mean_weights_change_no_training(text):
    with_mean, without = (Trainer(MICRO, "bf16", text, seed=0, schedule=STEADY, ema=ema) for ema in (0.5, None))
    expected = with_mean.model.params["head"].copy()
    for _ in range(2):
        assert with_mean.step() == without.step()
        expected += (without.model.params["head"] - expected) * np.float32(0.5)
    assert np.array_equal(with_mean.ema.params["head"], expected)
    plain = without.evaluate(n_bytes=256)
    assert with_mean.evaluate(n_bytes=256) == plain != with_mean.evaluate(n_bytes=256, mean_weights=True)
    with pytest.raises(
        ValueError, match=r"mean_weights must be False for a trainer without ema, got True; Trainer\(...,"
    ):
        without.evaluate(mean_weights=True)
    with pytest.raises(ValueError, match=r"ema must be a decay in \[0, 1\), got 1.0"):
        Trainer(MICRO, "bf16", text, seed=0, schedule=STEADY, ema=1.0)


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
    assert [Schedule(1.0, 0, 100, "deepseek").bias_update_factor(i) for i in (96, 97)] == [1.0, 0.0]
    starts = [(Schedule.of_run(1.0, steps, "deepseek").warmup_steps, steps) for steps in (1, 100, 300)]
    assert starts == [(1, 1), (1, 100), (4, 300)]
