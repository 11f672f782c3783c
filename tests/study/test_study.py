"""The study with a trainer that takes milliseconds: pairing, resuming, refusing to mix, stopping, workers."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fake_trainer
import numpy as np
import pytest
from lowprec.study.analysis.summary import summarize
from lowprec.study.run.plans import read_study

from lowprec.moe.data.corpus import SOURCES
from lowprec.study import Ablation, Arm, Setting, load, names, plan, run_study
from lowprec.study.run import runner as runner_module
from lowprec.study.run import tasks as tasks_module
from lowprec.study.run.runner import check_same
from lowprec.study.run.store import RunFailed, RunFolder, StudyError, code_hash, differences, read_json

SMALL = Setting(config="nano", checkpoint_steps=30, branch_steps=20, checkpoints=2, seeds=2)


def ablation(*more, **changes):
    arms = (
        Arm("bf16", role="reference"),
        Arm("again", role="repeat", pairs=1),
        Arm("perturb", role="floor"),
        Arm("dsv3", recipe="dsv3", expected="equivalent", source="a report"),
        Arm("fp4_naive", recipe="fp4_naive", role="control"),
    )
    fields = {"name": "toy", "question": "Does it?", "arms": arms + more, "quick": SMALL, "full": SMALL}
    return Ablation(**(fields | changes))


def make(tmp_path, *more, setting=SMALL, data="stdlib", **changes):
    return plan(ablation(*more, **changes), setting, tmp_path / "toy", data=data, backend="fake_trainer")


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def results(folder):
    """All that a run's numbers are, without the clock."""
    found = {}
    for path in sorted(folder.glob("*/*/run.json")):
        run = read_json(path)
        clocks = ("seconds", "evaluation_seconds", "timed_steps")
        rest = {key: value for key, value in run.items() if key not in clocks}
        metrics = path.with_name("metrics.csv")  # a killed run may not have come that far
        found[path.parent.relative_to(folder)] = (rest, metrics.read_bytes() if metrics.exists() else b"")
    return found


# --- what a study is -------------------------------------------------------------------------------------------------


def test_the_ablation_that_ships_is_complete():
    assert "fp8_vs_bf16" in names()
    item = load("fp8_vs_bf16")
    assert [arm.role for arm in item.arms] == ["reference", "repeat", "floor", "treatment", "treatment", "control"]
    assert item.margin == 0.0025
    assert item.question.endswith("?")
    assert item.expected
    assert item.source
    assert all(arm.expected for arm in item.arms if arm.role != "reference")


def test_every_pair_shares_checkpoint_and_batches_and_only_those(tmp_path):
    planned = make(tmp_path)
    by_name = {task.name: task for task in planned.tasks}
    assert len(by_name) == len(planned.tasks) == 2 + 4 + 2 + 4 + 4 + 4
    for arm in ("perturb", "dsv3", "fp4_naive"):
        for c in range(2):
            for s in range(2):
                ours, theirs = by_name[f"{arm}/c{c}-s{s}"], by_name[f"bf16/c{c}-s{s}"]
                assert (ours.seed, ours.checkpoint) == (theirs.seed, theirs.checkpoint)
    seeds = {task.seed for task in planned.arms}
    assert len(seeds) == 4
    assert not seeds & {task.seed for task in planned.checkpoints}


def test_seeds_and_checkpoints_only_add_runs(tmp_path):
    few = {task.name: task for task in make(tmp_path).tasks}
    many = {task.name: task for task in make(tmp_path, setting=replace(SMALL, seeds=3, checkpoints=3)).tasks}
    assert few.items() <= many.items()
    assert len(many) > len(few)


def test_a_study_from_start_to_verdict(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    study = summarize(planned.folder)
    verdicts = {item.arm.name: item.verdict for item in study.arms}
    assert verdicts == {"again": "bit-identical", "perturb": "equivalent", "dsv3": "equivalent", "fp4_naive": "worse"}
    assert study.broken == []
    assert study.floor == pytest.approx(np.sqrt(np.mean(study.arm("perturb").differences ** 2)), rel=1e-12)
    assert study.tokens_per_step == 2048
    # The differences are those of the runs' own files, pair by pair.
    for run, r in zip(study.arm("dsv3").runs, study.arm("dsv3").differences, strict=True):
        ours = read_json(planned.folder / f"dsv3/c{run.checkpoint}-s{run.seed}/run.json")["validation_loss"]
        theirs = read_json(planned.folder / f"bf16/c{run.checkpoint}-s{run.seed}/run.json")["validation_loss"]
        assert r == (ours - theirs) / theirs
    for task in planned.tasks:
        run = task.folder.read()
        assert run["status"] == "done"
        assert run["fingerprint"] == task.fingerprint
        assert {"cpu", "features", "cores", "openblas"} <= run["machine"].keys()
        assert task.folder.rows() == task.steps


def test_metrics_hold_every_bit_and_no_clock(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    columns = RunFolder(planned.folder / "bf16/c0-s0").columns()
    assert list(columns) == ["step", "loss", "learning_rate", "tokens", "max_violation"]
    checkpoint = planned.folder / "checkpoints/c0/checkpoint.npz"
    trainer = fake_trainer.Trainer.load(
        checkpoint, recipe="bf16", schedule=fake_trainer.Schedule(2e-3, 0, 20), data_seed=1000
    )
    assert columns["loss"] == [trainer.step().loss for _ in range(20)]


# --- resuming --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kill_at", ["checkpoints/c1", "bf16/c0-s1", "dsv3/c1-s0"])
def test_an_unfinished_run_is_done_again_with_the_same_result(tmp_path, kill_at):
    planned = run_study(make(tmp_path), jobs=0)
    expected = results(planned.folder)
    folder = planned.folder / kill_at
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"status": "running"}))
    if kill_at == "checkpoints/c1":  # needed again only where an arm has not started
        shutil.rmtree(planned.folder / "fp4_naive/c1-s1")
    text = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(text[: len(text) // 2])  # cut in the middle of a row
    before = snapshot(planned.folder)
    run_study(make(tmp_path), jobs=0)
    assert results(planned.folder) == expected
    untouched = {path: text for path, text in before.items() if folder not in path.parents}
    assert untouched.items() <= snapshot(planned.folder).items()


def test_a_checkpoint_is_prepared_again_only_if_an_arm_needs_it(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    expected = results(planned.folder)
    (planned.folder / "checkpoints/c0/checkpoint.npz").unlink()
    shutil.rmtree(planned.folder / "checkpoints/c1")
    run_study(make(tmp_path), jobs=0)
    assert not (planned.folder / "checkpoints/c1").exists()
    shutil.rmtree(planned.folder / "dsv3")
    run_study(make(tmp_path), jobs=0)
    assert results(planned.folder) == expected


@pytest.mark.parametrize("damage", [None, "cut", "other"])
def test_preparing_a_checkpoint_continues_where_it_was_saved(tmp_path, monkeypatch, damage):
    planned = run_study(make(tmp_path), jobs=0)
    expected = results(planned.folder)
    folder = planned.folder / "checkpoints/c0"
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
    monkeypatch.setattr(runner_module, "warm", lambda tasks: None)
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
    assert sorted(path.name for path in (planned.folder / "checkpoints/c0").iterdir()) == [
        "checkpoint.npz", "metrics.csv", "run.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("branch_steps", {"setting": replace(SMALL, branch_steps=21)}),
        ("learning_rate", {"setting": replace(SMALL, learning_rate=1e-3)}),
        ("data", {"data": "other"}),
    ],
)
def test_runs_of_something_else_are_not_mixed(tmp_path, what, changes):
    planned = run_study(make(tmp_path), jobs=0)
    before = snapshot(planned.folder)
    words = {
        "branch_steps": "schedule.total_steps: 20 then, 21 now",
        "learning_rate": "schedule.peak: 0.002 then, 0.001",
    }
    with pytest.raises(StudyError, match=words.get(what, "data: ")) as caught:
        run_study(make(tmp_path, **changes), jobs=0)
    assert "--fresh" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(planned.folder) == before


@pytest.mark.parametrize("key", ["code", "versions", "recipe"])
def test_runs_of_other_code_versions_or_recipes_are_not_mixed(tmp_path, key):
    planned = run_study(make(tmp_path), jobs=0)
    run_file = planned.folder / "dsv3/c0-s0/run.json"
    run = json.loads(run_file.read_text())
    run["fingerprint"][key] = "something else"
    run_file.write_text(json.dumps(run))
    with pytest.raises(StudyError, match=f"{key}: 'something else' then, .* now"):
        check_same(make(tmp_path).tasks)


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


def test_differences_name_the_place():
    assert differences({"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": [1, 3]}, "d": 1}) == [
        "a.b[1]: 2 then, 3 now", "c: 1 then, None now", "d: None then, 1 now",
    ]  # fmt: skip
    assert differences([1], [1, 2]) == [": [1] then, [1, 2] now"]


# --- what goes wrong -------------------------------------------------------------------------------------------------


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
    assert "checkpoints/c0" in done
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
    assert "NOT detected" in study.sentence(study.arm("fp4_naive"))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    planned = plan(ablation(), SMALL, tmp_path / "file" / "toy", backend="fake_trainer")
    with pytest.raises(StudyError, match=r"output folder '.*' cannot be written: Not a directory"):
        run_study(planned, jobs=0)


def test_a_damaged_run_file_is_named(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    (planned.folder / "dsv3/c0-s0/run.json").write_text('{"status": "do')
    with pytest.raises(StudyError, match=r"dsv3/c0-s0/run.json is damaged .*; remove that folder and run again"):
        run_study(make(tmp_path), jobs=0)


@pytest.mark.parametrize("name", SOURCES)
def test_corpora_are_planned_by_name_and_texts_by_path(tmp_path, name):
    assert {task.data for task in make(tmp_path, data=name).tasks} == {name}
    assert {task.data for task in make(tmp_path, data="book.txt").tasks} == {str(Path("book.txt").resolve())}


def test_data_that_changes_under_way_stops_the_study(tmp_path, monkeypatch):
    planned = make(tmp_path)
    monkeypatch.setattr(fake_trainer, "load_corpus", lambda source: fake_trainer.SimpleNamespace(sha256="changed"))
    tasks_module._load.cache_clear()
    try:
        with pytest.raises(StudyError, match="data 'stdlib' changed while the study ran"):
            run_study(planned, jobs=0)
    finally:
        tasks_module._load.cache_clear()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"branch_steps": "many"}, "branch_steps: cannot read 'many' as int"),
        ({"branch_steps": "0"}, "branch_steps must be a whole number of at least 1, not 0"),
        ({"learning_rate": "nan"}, "learning_rate must be positive and finite, not nan"),
        ({"warmup_steps": "-1"}, "warmup_steps must be a whole number of at least 0, not -1"),
        ({"branch_step": "3"}, "unknown setting 'branch_step': did you mean 'branch_steps'"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        SMALL.with_(changes)


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ((Arm("a"), Arm("b")), "exactly one arm is the reference, got"),
        ((Arm("a", role="reference"), Arm("a")), "two arms are called 'a'"),
        ((Arm("a", role="reference"), Arm("b", recipe="dsv3", role="repeat")), "its recipe must be the reference's"),
    ],
)
def test_ablations_that_make_no_sense(arms, message):
    with pytest.raises(ValueError, match=message):
        ablation(arms=arms)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a/b"}, "arm name 'a/b': letters, digits and"),
        ({"name": ""}, "arm name '': letters, digits and"),
        ({"name": "a", "role": "best"}, "arm 'a': unknown role 'best'; allowed are reference, repeat"),
        ({"name": "a", "pairs": 0}, "arm 'a': pairs must be at least 1, not 0"),
    ],
)
def test_arms_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        Arm(**fields)


def test_loading_ablations(tmp_path):
    with pytest.raises(KeyError, match="unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'"):
        load("fp8_vs_fb16")
    with pytest.raises(FileNotFoundError, match=r"no such ablation file: 'nowhere\.py'"):
        load("nowhere.py")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match="defines no `ablation = Ablation"):
        load(str(tmp_path / "empty.py"))


def test_study_json_is_the_ablation(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    assert read_study(planned.folder) == (planned.ablation, planned.setting)
    with pytest.raises(StudyError, match="holds no study"):
        read_study(tmp_path)


# --- executors -------------------------------------------------------------------------------------------------------


def test_any_executor_will_do(tmp_path):
    inline = run_study(make(tmp_path / "a"), jobs=0)
    with ThreadPoolExecutor(3) as pool:
        threads = run_study(make(tmp_path / "b"), executor=pool)
        assert pool.submit(int, 1).result() == 1  # someone else's executor is left open
    ours, theirs = results(inline.folder), results(threads.folder)
    assert ours == theirs


def test_spawned_workers_give_the_same_and_have_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    inline = run_study(make(tmp_path / "a"), jobs=0)
    spawned = run_study(make(tmp_path / "b"), jobs=2)
    assert results(inline.folder) == results(spawned.folder)
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    from lowprec.study.run.executors import workers

    with workers(1) as pool:
        assert pool.submit(os.getenv, "OPENBLAS_NUM_THREADS").result() == "1"
        assert pool.submit(os.getenv, "LOWPREC_NUM_THREADS").result() == "1"
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


@pytest.mark.parametrize("jobs", [-1, True, 1.5])
def test_jobs_that_make_no_sense(tmp_path, jobs):
    with pytest.raises(ValueError, match="jobs must be a whole number of at least 0"):
        run_study(make(tmp_path), jobs=jobs)


SCRIPT = """
import sys
from pathlib import Path
import test_study
from lowprec.study.run import store
from lowprec.study import run_study
if __name__ == "__main__":
    store.code_hash = lambda: sys.argv[2]  # the tests' own, should somebody edit a source meanwhile
    run_study(test_study.make(Path(sys.argv[1])), jobs=2)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_study_leaves_no_processes_and_resumes(tmp_path, how):
    reference = run_study(make(tmp_path / "reference"), jobs=0)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {
        "FAKE_STEP_SECONDS": "0.02",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path]),
    }
    target = tmp_path / "stopped"
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(target), code_hash()],
        env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not list(target.glob("toy/*/c*-s*/run.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        if how == signal.SIGINT:
            os.killpg(process.pid, how)  # as Ctrl-C does: to the whole group
        else:
            os.kill(process.pid, how)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode != 0
    deadline = time.monotonic() + 20
    while _group_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _group_alive(process.pid)
    before = results(target / "toy")
    done = {name: value for name, value in before.items() if value[0]["status"] == "done"}
    assert done
    assert len(done) < len(reference.tasks)
    run_study(make(target), jobs=0)
    after = results(target / "toy")
    assert done.items() <= after.items()
    assert after == results(reference.folder)


def _group_alive(group):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


# --- mixing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "key"),
    [("dsv3/c1-s1", "code"), ("bf16/c0-s1", "versions"), ("perturb/c0-s0", "data"), ("dsv3/c1-s0", "recipe")]
)  # fmt: skip
def test_a_report_over_mixed_runs_is_refused(tmp_path, run, key):
    planned = run_study(make(tmp_path), jobs=0)
    summarize(planned.folder)
    path = planned.folder / run / "run.json"
    record = json.loads(path.read_text())
    record["fingerprint"][key] = "another"
    path.write_text(json.dumps(record))
    with pytest.raises(
        StudyError, match=f"mixes runs that cannot be compared: {run} differs from .* in {key}: .*another"
    ):
        summarize(planned.folder)


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


def test_an_arm_can_differ_from_a_recipe_by_data(tmp_path):
    arm = Arm("hybrid", recipe="dsv3", change={"dy": "e5m2 1x128"})
    assert arm.recipe_name == arm.precision.name == "dsv3(dy=e5m2 1x128)"
    assert str(arm.precision.spec("layers.0.attn.wo").dy) == "e5m2 1x128"
    assert Arm("plain", recipe="dsv3").precision == "dsv3"
