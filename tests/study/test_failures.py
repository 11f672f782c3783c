"""What goes wrong in a study is found, said, and costs no finished run."""

import json
import math
from dataclasses import replace

import fake_trainer
import pytest
from toys import SMALL, ablation, make, results, snapshot

from lowprec.study import Arm, plan, run_study
from lowprec.study.kinds.branches.sentences import sentence
from lowprec.study.kinds.branches.summary import summarize
from lowprec.study.run import tasks as tasks_module
from lowprec.study.run.store import RunFailed, RunFolder, StudyError, read_json


def test_a_diverged_arm_is_a_result(tmp_path):
    planned = run_study(make(tmp_path, Arm("boom", recipe="explodes")), jobs=0)
    study = summarize(planned.folder)
    boom = study.arm("boom")
    assert boom.own.verdict == "worse"
    assert boom.own.diverged == 4
    assert boom.train_error == math.inf
    run = read_json(planned.folder / "boom/c0-s0/run.json")
    assert (run["status"], run["validation_loss"], run["timed_steps"]) == ("diverged", "inf", 5)
    assert "loss is nan" in run["reason"]
    before = snapshot(planned.folder)
    run_study(make(tmp_path, Arm("boom", recipe="explodes")), jobs=0)
    assert snapshot(planned.folder) == before  # and is not tried again


def test_a_crashing_run_stops_the_study_and_keeps_the_rest(tmp_path):
    planned = make(tmp_path, Arm("bug", recipe="crashes", pairs=1), setting=replace(SMALL, checkpoints=1))
    # In the calling process, arms run in order; those before the bug are kept.
    with pytest.raises(RunFailed, match="run bug/c0-s0 failed: RuntimeError: out of cheese"):
        run_study(planned, jobs=0)
    run = read_json(planned.folder / "bug/c0-s0/run.json")
    assert run["status"] == "failed"
    assert "out of cheese" in run["error"]
    assert not planned.tasks[0].stop_file.exists()
    done = [task.name for task in planned.tasks if task.folder.finished()]
    assert planned.checkpoints[0].name in done
    with pytest.raises(StudyError, match="runs are not finished"):
        summarize(planned.folder)


def test_an_irreproducible_trainer_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_IRREPRODUCIBLE", "1")
    planned = run_study(make(tmp_path), jobs=0)
    study = summarize(planned.folder)
    assert study.arm("again").identical is False
    assert study.arm("again").verdict == "NOT bit-identical"
    assert len(study.broken) == 1
    assert "NOT bit-identical" in study.broken[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("field", ["weights", "validation_loss", "validation_loss_bf16"])
def test_every_bit_counts_in_a_repeat(tmp_path, field):
    planned = run_study(make(tmp_path), jobs=0)
    path = planned.folder / "again/c1-s0/run.json"
    run = json.loads(path.read_text())
    run[field] = "0" * 64 if field == "weights" else math.nextafter(run[field], 0)
    path.write_text(json.dumps(run))
    assert summarize(planned.folder).arm("again").identical is False


def test_an_undetected_control_is_reported_as_such(tmp_path, monkeypatch):
    monkeypatch.setitem(fake_trainer.DAMAGE, "fp4_naive", 0.0)
    study = summarize(run_study(make(tmp_path), jobs=0).folder)
    assert "NOT detected" in sentence(study, study.arm("fp4_naive"))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    planned = plan(ablation(), SMALL, tmp_path / "file" / "toy", backend=fake_trainer.FAKE)
    with pytest.raises(StudyError, match=r"output folder '.*' cannot be written: Not a directory"):
        run_study(planned, jobs=0)


def test_a_damaged_run_file_is_named(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    (planned.folder / "dsv3/c0-s0/run.json").write_text('{"status": "do')
    with pytest.raises(StudyError, match=r"dsv3/c0-s0/run.json is damaged .*; remove that folder and run again"):
        run_study(make(tmp_path), jobs=0)


def test_data_that_changes_under_way_stops_the_study(tmp_path, monkeypatch):
    planned = make(tmp_path)
    monkeypatch.setattr(
        fake_trainer.FakeBackend, "load_corpus", lambda self, source: fake_trainer.SimpleNamespace(sha256="changed")
    )
    tasks_module._load.cache_clear()
    try:
        with pytest.raises(StudyError, match="data 'stdlib' changed while the study ran"):
            run_study(planned, jobs=0)
    finally:
        tasks_module._load.cache_clear()


def test_no_space_left_keeps_what_is_finished(tmp_path, monkeypatch):
    inline = run_study(make(tmp_path / "inline"), jobs=0)
    planned = make(tmp_path / "full")
    append = RunFolder.append

    def full(self, row):
        if self.path == planned.folder / "dsv3/c1-s0":
            raise OSError(28, "No space left on device")
        append(self, row)

    monkeypatch.setattr(RunFolder, "append", full)
    monkeypatch.setattr(RunFolder, "finish", lambda self, status, **results: (_ for _ in ()).throw(OSError(28, "full"))
                        if status == "failed" else finish(self, status, **results))  # fmt: skip
    with pytest.raises(RunFailed, match=r"run dsv3/c1-s0 failed: OSError: \[Errno 28\] No space left on device"):
        run_study(planned, jobs=0)
    done = [task.name for task in planned.tasks if task.folder.finished()]
    assert "bf16/c0-s0" in done
    monkeypatch.undo()
    run_study(planned, jobs=0)
    assert results(planned.folder) == results(inline.folder)


finish = RunFolder.finish


def test_rows_that_two_workers_wrote_are_refused(tmp_path, monkeypatch):
    planned = make(tmp_path)
    append = RunFolder.append
    monkeypatch.setattr(RunFolder, "append", lambda self, row: (append(self, row), append(self, row)))
    with pytest.raises(StudyError, match=r"rows of metrics after .* steps; did two workers write them"):
        run_study(planned, jobs=0)
