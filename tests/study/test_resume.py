"""What is finished is never done again, and what is not is done with the same bits."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_trainer
import pytest
from toys import SMALL, make, place_of, results, snapshot

from lowprec.study import run_study
from lowprec.study.kinds.branches.summary import summarize
from lowprec.study.run import runner as runner_module
from lowprec.study.run import tasks as tasks_module
from lowprec.study.run.progress import Silent
from lowprec.study.run.store import RunFolder, StudyError


def test_finished_runs_are_never_done_again(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    before = snapshot(planned.folder)
    run_study(make(tmp_path), jobs=0)
    assert snapshot(planned.folder) == before


def test_a_larger_study_keeps_the_runs_of_the_smaller(tmp_path):
    small = run_study(make(tmp_path), jobs=0)
    before = {path: text for path, text in snapshot(small.folder).items() if path.name != "study.json"}
    large = run_study(make(tmp_path, setting=replace(SMALL, seeds=3)), jobs=0)
    after = snapshot(large.folder)
    assert before.items() <= after.items()
    assert summarize(large.folder).arm("dsv3").own.n == 6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kill_at", ["checkpoints/c1", "bf16/c0-s1", "dsv3/c1-s0"])
def test_an_unfinished_run_is_done_again_with_the_same_result(tmp_path, kill_at):
    planned = run_study(make(tmp_path), jobs=0)
    expected = results(planned.folder)
    folder = place_of(planned, kill_at)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"status": "running"}))
    if kill_at == "checkpoints/c1":  # needed again only where an arm has not started
        shutil.rmtree(planned.folder / "fp4_naive/c1-s1")
    text = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(text[: len(text) // 2])  # cut in the middle of a row
    before = snapshot(tmp_path)
    run_study(make(tmp_path), jobs=0)
    assert results(planned.folder) == expected
    untouched = {path: text for path, text in before.items() if folder not in path.parents}
    assert untouched.items() <= snapshot(tmp_path).items()


def test_a_checkpoint_is_prepared_again_only_if_an_arm_needs_it(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    expected = results(planned.folder)
    (place_of(planned, "checkpoints/c0") / "checkpoint.npz").unlink()
    shutil.rmtree(place_of(planned, "checkpoints/c1"))
    run_study(make(tmp_path), jobs=0)
    assert not place_of(planned, "checkpoints/c1").exists()
    shutil.rmtree(planned.folder / "dsv3")
    run_study(make(tmp_path), jobs=0)
    assert results(planned.folder) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", [None, "cut", "other"])
def test_preparing_a_checkpoint_continues_where_it_was_saved(tmp_path, monkeypatch, damage):
    planned = run_study(make(tmp_path), jobs=0)
    expected = results(planned.folder)
    folder = place_of(planned, "checkpoints/c0")
    (folder / "checkpoint.npz").unlink()
    shutil.rmtree(planned.folder / "dsv3/c0-s0")
    # As an interruption after 17 of 30 steps leaves it, saved after 12.
    trainer = fake_trainer.Trainer(
        "nano", "bf16", None, seed=0, schedule=fake_trainer.Schedule(**planned.checkpoints[0].schedule)
    )
    for _ in range(12):
        trainer.step()
    trainer.save(folder / "partial-12.npz")
    run = json.loads((folder / "run.json").read_text())
    fingerprint = run["fingerprint"] | ({"code": "0"} if damage == "other" else {})
    (folder / "run.json").write_text(json.dumps(run | {"status": "running", "fingerprint": fingerprint}))
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(lines[:18]) + lines[18][:5])
    if damage == "cut":
        saved = (folder / "partial-12.npz").read_text()
        (folder / "partial-12.npz").write_text(saved[:-20])
    steps = []
    original = fake_trainer.Trainer.step
    monkeypatch.setattr(fake_trainer.Trainer, "step", lambda self: steps.append(1) or original(self))
    monkeypatch.setattr(runner_module, "warm", lambda *_, **__: None)
    run_study(make(tmp_path), jobs=0)
    assert results(planned.folder) == expected
    assert len(steps) == (18 if damage is None else 30) + 20
    assert not list(folder.glob("partial-*"))


def test_checkpoints_in_preparation_are_saved_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks_module, "SAVE_EVERY", 0.0)
    saved = []
    original = fake_trainer.Trainer.save
    monkeypatch.setattr(
        fake_trainer.Trainer, "save", lambda self, path: saved.append(Path(path).name) or original(self, path)
    )
    planned = make(tmp_path, setting=replace(SMALL, checkpoints=1, checkpoint_steps=4, warmup_steps=1))
    run_study(planned, jobs=0)
    assert saved == ["partial-1.npz", "partial-2.npz", "partial-3.npz", "checkpoint.npz"]
    assert sorted(path.name for path in place_of(planned, "checkpoints/c0").iterdir()) == [
        "checkpoint.npz", "metrics.csv", "run.json",
    ]  # fmt: skip


def test_fresh_moves_the_old_study_aside(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    old = {path.relative_to(planned.folder): text for path, text in snapshot(planned.folder).items()}
    run_study(make(tmp_path, setting=replace(SMALL, branch_steps=21)), jobs=0, fresh=True)
    aside = tmp_path / "toy.1"
    assert {path.relative_to(aside): text for path, text in snapshot(aside).items()} == old
    assert RunFolder(planned.folder / "bf16/c0-s0").rows() == 21


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    planned = make(tmp_path)
    planned.folder.mkdir(parents=True)
    code = (
        "import sys, time; from pathlib import Path; from lowprec.study.run.store import lock\n"
        "with lock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(planned.folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "locked\n"
        for fresh in (False, True):
            with pytest.raises(StudyError, match=f"in use by another process .pid {other.pid}"):
                run_study(planned, jobs=0, fresh=fresh)
        assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    finally:
        other.kill()
        other.communicate()
    run_study(planned, jobs=0)  # a lock dies with its holder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [None, 0, 7, 19])
def test_a_finished_run_whose_curve_is_cut_is_done_again(tmp_path, rows):
    """The same command mends what a report would have to call void, says so, and leaves all others alone."""

    class Notes(Silent):
        def __init__(self):
            self.notes = []

        def note(self, text):
            self.notes.append(text)

    planned = run_study(make(tmp_path), jobs=0)
    before, expected = snapshot(planned.folder), results(planned.folder)
    folder = planned.folder / "fp4_naive/c1-s0"
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    if rows is None:
        (folder / "metrics.csv").unlink()
    else:
        (folder / "metrics.csv").write_text("".join(lines[: rows + 1]) + "8,1."[: rows % 5])
    assert summarize(planned.folder).broken
    said = Notes()
    run_study(make(tmp_path), jobs=0, display=said)
    assert said.notes == [
        f"fp4_naive/c1-s0 has {rows or 0} of {SMALL.branch_steps} rows in metrics.csv "
        "(the same command does that run again)"
    ]
    assert results(planned.folder) == expected
    after = snapshot(planned.folder)
    assert {path for path in after if after[path] != before[path]} <= {folder / "run.json"}  # which has times
    assert not summarize(planned.folder).broken
    run_study(make(tmp_path), jobs=0, display=said)
    assert len(said.notes) == 1
