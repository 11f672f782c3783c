"""Inline, threads, spawned processes: the same bits, and nothing is left behind."""

import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from toys import SEARCH, SMALL, make, results

import lowprec as lp
from lowprec.study import run_study
from lowprec.study.run import runner
from lowprec.study.run.executors import workers
from lowprec.study.run.progress import Lines, Silent, Snapshot


def test_any_executor_will_do(tmp_path):
    inline = run_study(make(tmp_path / "a"), jobs=0)
    with ThreadPoolExecutor(3) as pool:
        threads = run_study(make(tmp_path / "b"), executor=pool)
        assert pool.submit(int, 1).result() == 1  # someone else's executor is left open
    ours, theirs = results(inline.folder), results(threads.folder)
    assert ours == theirs


@pytest.mark.slow
def test_spawned_workers_give_the_same_and_have_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    inline = run_study(make(tmp_path / "a"), jobs=0)
    spawned = run_study(make(tmp_path / "b"), jobs=2)
    assert results(inline.folder) == results(spawned.folder)
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    with workers(1) as pool:
        assert pool.submit(os.getenv, "OPENBLAS_NUM_THREADS").result() == "1"
        assert pool.submit(os.getenv, "LOWPREC_NUM_THREADS").result() == "1"
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


class Snapshots(Silent):
    """Keeps what a display is told."""

    def __init__(self):
        self.seen = []

    def update(self, snapshot):
        self.seen.append(snapshot)


@pytest.mark.parametrize("jobs", [0, 1])
def test_progress_is_shown_while_a_run_is_in_progress(tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.01")
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    monkeypatch.setattr(runner, "LOOK_EVERY", 0.05)
    shown = Snapshots()
    planned = make(tmp_path, setting=replace(SMALL, checkpoints=1, seeds=1))
    run_study(planned, jobs=jobs, display=shown)
    begun = [run for snapshot in shown.seen for run in snapshot.running if 0 < run.done < run.steps]
    assert {run.name for run in begun} == {task.name for task in planned.tasks}
    assert any(run.loss is not None for run in begun)
    assert any(snapshot.seconds_left for snapshot in shown.seen)


@pytest.mark.parametrize(
    ("done", "words"), [(0, "0/2 runs, 0 % of steps, about 0:09 left; starting"), (2, "2/2 runs, 100 % of steps; done")]
)
def test_a_line_says_whether_runs_start_or_are_done(done, words):
    lines = Lines(Console(file=io.StringIO(), width=200))
    lines.update(Snapshot(done, 2, 10 * done, 20, [], 9.0))
    assert lines.console.file.getvalue().endswith(f"] {words}\n")


def test_runs_in_this_process_see_the_context_of_their_caller():
    with lp.using(kernel="portable"), workers(0) as pool:
        assert pool.submit(lp.get_fused_kernel).result() == "portable"


@pytest.mark.parametrize("jobs", [-1, True, 1.5])
def test_jobs_that_make_no_sense(tmp_path, jobs):
    with pytest.raises(ValueError, match=r"jobs=.*: a whole number >= 0 is needed"):
        run_study(make(tmp_path), jobs=jobs)


# A shell starts what it puts into the background with SIGINT ignored, and children inherit that.
SCRIPT = """
import signal
import sys
from pathlib import Path
import toys
from lowprec.study import run_study
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_study(toys.make(Path(sys.argv[1])), jobs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_study_leaves_no_processes_and_resumes(tmp_path, how):
    reference = run_study(make(tmp_path / "reference"), jobs=0)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {
        "FAKE_STEP_SECONDS": "0.03",
        "PYTHONPATH": SEARCH,
    }
    target = tmp_path / "stopped"
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(target)],
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
