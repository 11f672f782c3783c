"""What is finished is never done again, what is not is done with the same bits, and what goes wrong costs nothing."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_trainer
import pytest
from contract import branches, cut, edited
from toys import SMALL, ablation, make, place_of, results, snapshot, summarize

from lowprec.study import Arm, run_study
from lowprec.study.run import runner as runner_module
from lowprec.study.run import tasks as tasks_module
from lowprec.study.run.progress import Display
from lowprec.study.run.store import RunFailed, RunFolder, StudyError, read_json

TOY = branches()
run = pytest.fixture(lambda copied: lambda **options: run_study(TOY.plan(copied), jobs=0, **options))


def noted(monkeypatch, owner, name):
    """Return a list that will hold the arguments of every call of a method."""
    calls, original = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: calls.append(arguments[1:]) or original(*arguments))
    return calls


# --- going on --------------------------------------------------------------------------------------------------------


def test_a_larger_study_keeps_the_runs_of_the_smaller(copied):
    before = {path: text for path, text in snapshot(copied).items() if path.name != "study.json"}
    replace(TOY, setting=replace(SMALL, seeds=3)).run(copied)
    assert before.items() <= snapshot(copied).items()
    assert summarize(copied).arm("dsv3").primary.n == 6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kill_at", ["checkpoints/c1", "bf16/c0-s1", "dsv3/c1-s0"])
def test_an_unfinished_run_is_done_again_with_the_same_result(copied, run, kill_at):
    expected, folder = results(copied), place_of(TOY.plan(copied), kill_at)
    edited("run.json", {"status": "running"})(folder)
    if kill_at == "checkpoints/c1":  # needed again only where an arm has not started
        shutil.rmtree(copied / "fp4_naive/c1-s1")
    text = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(text[: len(text) // 2])  # cut in the middle of a row
    before = snapshot(copied.parent)
    run()
    assert results(copied) == expected
    untouched = {path: text for path, text in before.items() if folder not in path.parents}
    assert untouched.items() <= snapshot(copied.parent).items()


def test_a_checkpoint_is_prepared_again_only_if_an_arm_needs_it(copied, run):
    expected, (first, second) = results(copied), (task.folder.path for task in TOY.plan(copied).checkpoints)
    (first / "checkpoint.npz").unlink()
    shutil.rmtree(second)
    run()
    assert not second.exists()
    shutil.rmtree(copied / "dsv3")
    run()
    assert results(copied) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("state", [None, "cut", "other"])
def test_preparing_a_checkpoint_continues_where_it_was_saved(copied, run, monkeypatch, state):
    expected, checkpoint = results(copied), TOY.plan(copied).checkpoints[0]
    folder = checkpoint.folder.path
    (folder / "checkpoint.npz").unlink()
    shutil.rmtree(copied / "dsv3/c0-s0")
    # As an interruption after 17 of 30 steps leaves it, saved after 12.
    schedule = fake_trainer.Schedule(**checkpoint.work.schedule)
    trainer = fake_trainer.Trainer("nano", "bf16", None, seed=0, schedule=schedule)
    for _ in range(12):
        trainer.step()
    trainer.save(folder / "partial-12.npz")
    edited("run.json", {"status": "running", "fingerprint": {"code": "0"} if state == "other" else {}})(folder)
    cut("metrics.csv", 17, "18,1")(folder)
    if state == "cut":
        (folder / "partial-12.npz").write_text((folder / "partial-12.npz").read_text()[:-20])
    steps = noted(monkeypatch, fake_trainer.Trainer, "step")
    monkeypatch.setattr(runner_module, "compile_kernels", lambda *_, **__: None)
    run()
    assert results(copied) == expected
    assert len(steps) == (18 if state is None else 30) + 20
    assert not list(folder.glob("partial-*"))


def test_checkpoints_in_preparation_are_saved_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks_module, "SAVE_EVERY", -1.0)  # two looks at a coarse clock may see the same time
    saved = noted(monkeypatch, fake_trainer.Trainer, "save")
    planned = make(tmp_path, setting=replace(SMALL, checkpoints=1, checkpoint_steps=4, warmup_steps=1))
    run_study(planned, jobs=0)
    names = ["partial-1.npz", "partial-2.npz", "partial-3.npz", "checkpoint.npz"]
    assert [Path(path).name for (path,) in saved] == names
    left = sorted(path.name for path in place_of(planned, "checkpoints/c0").iterdir())
    assert left == ["checkpoint.npz", "metrics.csv", "run.json"]


def test_two_processes_do_not_work_in_one_folder(copied, run):
    code = (
        "import sys; from pathlib import Path; from lowprec.study.run.store import lock\n"
        "with lock(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(copied)], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        for restart in (False, True):
            with pytest.raises(StudyError, match=f"in use by another process .pid {other.pid}"):
                run(restart=restart)
        assert {path.name for path in copied.parent.iterdir()} == {"toy", "checkpoints"}
        other.kill()
    run()  # a lock dies with its holder


class Notes(Display):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, 0, 7, 19])
def test_a_finished_run_whose_curve_is_cut_is_done_again(copied, run, rows):
    """The same command mends what a report would have to call void, says so, and leaves all others alone."""
    before, expected, folder, display = snapshot(copied), results(copied), copied / "fp4_naive/c1-s0", Notes()
    if rows is None:
        (folder / "metrics.csv").unlink()
    else:
        cut("metrics.csv", rows, "8,1."[: rows % 5])(folder)
    assert summarize(copied).invalid_reasons
    for _ in range(2):
        run(display=display)
        assert display.notes == [
            f"fp4_naive/c1-s0 has {rows or 0} of {SMALL.branch_steps} rows in metrics.csv "
            "(the same command does that run again)"
        ]
    assert results(copied) == expected
    after = snapshot(copied)
    assert {path for path in after if after[path] != before[path]} <= {folder / "run.json"}  # which has times
    assert not summarize(copied).invalid_reasons


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_diverged_arm_is_a_result(tmp_path):
    planned = make(tmp_path, Arm("boom", recipe="explodes"))
    boom = summarize(run_study(planned, jobs=0).folder).arm("boom")
    assert (boom.primary.verdict, boom.primary.diverged, boom.train_error) == ("worse", 4, math.inf)
    record = read_json(planned.folder / "boom/c0-s0/run.json")
    assert (record["status"], record["validation_loss"], record["timed_steps"]) == ("diverged", "inf", 5)
    assert "loss is nan" in record["reason"]
    before = snapshot(planned.folder)
    run_study(planned, jobs=0)
    assert snapshot(planned.folder) == before  # and is not tried again


def test_a_crashing_run_stops_the_study_and_keeps_the_rest(tmp_path):
    planned = make(tmp_path, Arm("bug", recipe="crashes", pairs=1), setting=replace(SMALL, checkpoints=1))
    # In the calling process, arms run in order; those before the bug are kept.
    with pytest.raises(RunFailed, match="run bug/c0-s0 failed: RuntimeError: out of cheese"):
        run_study(planned, jobs=0)
    record = read_json(planned.folder / "bug/c0-s0/run.json")
    assert record["status"] == "failed"
    assert "out of cheese" in record["error"]
    assert not planned.tasks[0].stop_file.exists()
    assert planned.checkpoints[0].folder.finished()
    with pytest.raises(StudyError, match="runs are not finished"):
        summarize(planned.folder)


def test_an_irreproducible_trainer_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_IRREPRODUCIBLE", "1")
    study = summarize(run_study(make(tmp_path), jobs=0).folder)
    assert study.arm("again").identical is False
    assert study.arm("again").verdict == "NOT bit-identical"
    (reason,) = study.invalid_reasons
    assert "NOT bit-identical" in reason


@pytest.mark.sampled(1)
@pytest.mark.parametrize("field", ["weights", "validation_loss", "validation_loss_bf16"])
def test_every_bit_counts_in_a_repeat(copied, field):
    record = json.loads((copied / "again/c1-s0/run.json").read_text())
    other = "0" * 64 if field == "weights" else math.nextafter(record[field], 0)
    edited("again/c1-s0/run.json", {field: other})(copied)
    assert summarize(copied).arm("again").identical is False


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    planned = ablation().plan(SMALL, tmp_path / "file" / "toy", backend=fake_trainer.FAKE)
    with pytest.raises(StudyError, match=r"output folder '.*' cannot be written: Not a directory"):
        run_study(planned, jobs=0)


def test_data_that_changes_under_way_stops_the_study(tmp_path, monkeypatch):
    planned = make(tmp_path)
    monkeypatch.setattr(tasks_module, "_load", lambda *_: fake_trainer.SimpleNamespace(sha256="changed"))
    with pytest.raises(StudyError, match="data 'stdlib' changed while the study ran"):
        run_study(planned, jobs=0)


def test_no_space_left_keeps_what_is_finished(tmp_path, finished, monkeypatch):
    planned, append, finish = make(tmp_path), RunFolder.append, RunFolder.finish

    def full(self, row):
        if self.path == planned.folder / "dsv3/c1-s0":
            raise OSError(28, "No space left on device")
        append(self, row)

    def fails(self, status, **found):
        if status == "failed":
            raise OSError(28, "full")
        finish(self, status, **found)

    monkeypatch.setattr(RunFolder, "append", full)
    monkeypatch.setattr(RunFolder, "finish", fails)
    with pytest.raises(RunFailed, match=r"run dsv3/c1-s0 failed: OSError: \[Errno 28\] No space left on device"):
        run_study(planned, jobs=0)
    assert RunFolder(planned.folder / "bf16/c0-s0").finished()
    monkeypatch.undo()
    run_study(planned, jobs=0)
    assert results(planned.folder) == results(finished)


def test_rows_that_two_workers_wrote_are_refused(tmp_path, monkeypatch):
    append = RunFolder.append
    monkeypatch.setattr(RunFolder, "append", lambda self, row: (append(self, row), append(self, row)))
    with pytest.raises(
        StudyError, match="bf16/c0-s0 must have 20 rows of metrics, one per step, got 40; did two workers"
    ):
        run_study(make(tmp_path), jobs=0)


def test_a_worker_with_other_code_refuses(tmp_path, monkeypatch):
    planned = make(tmp_path)
    monkeypatch.setattr(tasks_module, "code_hash", lambda: "another")
    with pytest.raises(StudyError, match=r"code of the worker must be that of the study \(another\), got another"):
        run_study(planned, jobs=0)
