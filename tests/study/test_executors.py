"""Inline, threads, spawned processes: the same bits, nothing is left behind, and kernels are compiled once, before."""

import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_trainer
from contract import branches, command
from refusals import refusals
from rich.console import Console
from toys import SEARCH, SMALL, make, results, summarize

import lowprec as lp
from lowprec.study import Setting, run_study
from lowprec.study.run import executors, runner, warm
from lowprec.study.run.executors import cluster
from lowprec.study.run.progress import Display, Lines, Snapshot
from lowprec.study.run.store import StudyError
from lowprec.tensorcore.engines.selection import kernel_in_use

TOY = branches()


def test_any_executor_will_do(tmp_path, finished):
    with ThreadPoolExecutor(3) as pool:
        run_study(make(tmp_path), executor=pool)
        assert pool.submit(int, 1).result() == 1  # someone else's executor is left open
    assert results(tmp_path / "toy") == results(finished)


@pytest.mark.slow
def test_spawned_workers_give_the_same_and_have_one_thread(tmp_path, finished, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    run_study(make(tmp_path), jobs=2)
    assert results(tmp_path / "toy") == results(finished)
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    with executors.workers(1) as pool:
        assert pool.submit(os.getenv, "OPENBLAS_NUM_THREADS").result() == "1"
        assert pool.submit(os.getenv, "LOWPREC_NUM_THREADS").result() == "1"
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


@pytest.mark.ci
def test_two_threads_here_and_single_thread_workers_of_the_real_trainer_give_the_same_bits(
    tmp_path, keep_threads, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    lp.set_num_threads(2)
    size = Setting(config="nano", checkpoint_steps=2, branch_steps=2, checkpoints=1, seeds=1, warmup_steps=1)
    toy = branches(setting=size, backend=small_trainer.SMALL)
    here, workers = toy.run(tmp_path / "here" / "toy"), toy.run(tmp_path / "workers" / "toy", jobs=2)
    assert results(here) == results(workers)
    study = summarize(workers)
    assert study.arm("again").verdict == "bit-identical"
    assert (study.parameters, study.active_parameters, study.tokens_per_step) == (1433216, 843392, 2048)
    # One weight by 2^-7, and another precision, change the outcome; all arms start from the same loss or near it.
    assert study.arm("perturb").primary.mean != 0.0
    assert study.arm("dsv3").primary.mean not in (0.0, study.arm("perturb").primary.mean)
    first = {item.arm.name: item.runs[0].curve[0] for item in study.arms}
    assert first["again"] == study.reference[0].curve[0]
    assert abs(first["perturb"] / first["again"] - 1) < 1e-3
    assert abs(first["dsv3"] / first["again"] - 1) < 1e-2


def test_missing_dask_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"pip install 'lowprec\[cluster\]'"), cluster("local"):
        pass


def test_jobs_and_scheduler_exclude_each_other():
    result = command("ablate", "fp8_vs_bf16", "--jobs", 2, "--scheduler", "local")
    assert (result.exit_code, result.stderr) == (2, "error: --jobs and --scheduler are mutually exclusive\n")


# --- progress --------------------------------------------------------------------------------------------------------


class Seen(Display):
    """Keeps what a display is told, and lets every run go on once it was seen in progress."""

    def __init__(self, gate):
        self.shots, self.gate, self.begun = [], gate, {}

    def update(self, snapshot):
        self.shots.append(snapshot)
        self.begun.update({run.name: run for run in snapshot.running if 0 < run.done < run.steps})
        self.gate.write_text("\n" * len(self.begun))


@pytest.mark.parametrize("jobs", [0, 1])
def test_progress_is_shown_while_a_run_is_in_progress(tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("FAKE_GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    monkeypatch.setattr(runner, "POLL_INTERVAL", 0.01)
    shown, planned = Seen(tmp_path / "gate"), make(tmp_path, setting=replace(SMALL, checkpoints=1, seeds=1))
    shown.update(Snapshot(0, 1, 0, 1, [], None))
    run_study(planned, jobs=jobs, display=shown)
    assert shown.begun.keys() == {task.name for task in planned.tasks}
    assert any(run.loss is not None for run in shown.begun.values())
    assert any(snapshot.seconds_left for snapshot in shown.shots)
    last, done = shown.shots[-1], [shot.runs_done for shot in shown.shots]
    assert last.runs_done == last.runs == len(planned.tasks)
    assert last.steps_done == last.steps == sum(task.steps for task in planned.tasks)
    assert done[1:] == sorted(done[1:])


@pytest.mark.parametrize(
    ("done", "words"), [(0, "0/2 runs, 0 % of steps, about 0:09 left; starting"), (2, "2/2 runs, 100 % of steps; done")]
)
def test_a_line_says_whether_runs_start_or_are_done(done, words):
    lines = Lines(Console(file=io.StringIO(), width=200))
    lines.update(Snapshot(done, 2, 10 * done, 20, [], 9.0))
    assert lines.console.file.getvalue().endswith(f"] {words}\n")


def test_runs_in_this_process_see_the_context_of_their_caller():
    with lp.use_kernel("portable"), executors.workers(0) as pool:
        assert pool.submit(kernel_in_use).result() == "portable"


# --- what is stopped -------------------------------------------------------------------------------------------------

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


def wait_for(condition, seconds=600):
    """Return once something holds; the limit is for what hangs, not for a machine that is slow."""
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    assert condition()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_study_leaves_no_processes_and_resumes(tmp_path, finished, how):
    script, gate, target = tmp_path / "script.py", tmp_path / "gate", tmp_path / "stopped"
    script.write_text(SCRIPT)
    gate.write_text("\n")  # of each worker the first run comes to its end and the second does not
    with subprocess.Popen(
        [sys.executable, str(script), str(target)], start_new_session=True, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"FAKE_GATE": str(gate), "FAKE_STEP_SECONDS": "0.03", "PYTHONPATH": SEARCH},
    ) as process:  # fmt: skip
        try:
            wait_for(lambda: list(target.glob("toy/*/c*-s*/run.json")) or process.poll() is not None)
            if how == signal.SIGINT:
                os.killpg(process.pid, how)  # as Ctrl-C does: to the whole group
                wait_for(lambda: (target / "toy/.stop").exists() or process.poll() is not None, 120)
                gate.unlink()  # for runs to notice
            else:
                os.kill(process.pid, how)
            process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode != 0
    wait_for(lambda: not group_alive(process.pid))
    before, reference = results(target / "toy"), results(finished)
    done = {name: value for name, value in before.items() if value[0]["status"] == "done"}
    assert 0 < len(done) < len(reference)
    run_study(make(target), jobs=0)
    after = results(target / "toy")
    assert done.items() <= after.items()
    assert after == reference


def group_alive(group):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


# --- what is compiled before runs start, and where -------------------------------------------------------------------


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_products_are_compiled_elsewhere_only_where_nothing_is(cold, alone, monkeypatch):
    elsewhere, steps, warmed = [], [], set()

    @contextmanager
    def workers(jobs):
        assert jobs == 1
        with executors.InlineExecutor() as pool:
            yield pool

    def new(config, recipe, *_, **__):
        return SimpleNamespace(step=lambda: steps.append(recipe))

    monkeypatch.setattr(warm, "_nothing_is_compiled", lambda: cold)
    monkeypatch.setattr(warm, "multiply_once", lambda given: elsewhere.append([*given]))
    monkeypatch.setattr(warm, "_warmed", lambda: warmed)
    monkeypatch.setattr(executors, "workers", workers)
    monkeypatch.setattr(executors, "cores", lambda: 2)
    backend = SimpleNamespace(name="counts steps", load_corpus=str, new=new)
    context = SimpleNamespace(backend=backend, data="")
    tasks = [SimpleNamespace(recipe_name=r, recipe=r, context=context) for r in ("dsv3", "mxfp8")]
    warm.compile_kernels(tasks, Display(), in_process=alone)
    beside = cold and not alone
    assert elsewhere == ([["dsv3", "mxfp8"]] if beside else [])
    assert steps == [*(["bf16"] if beside else []), "dsv3", "mxfp8"]


def test_products_of_a_recipe_go_through_every_quantizer(monkeypatch):
    from lowprec.recipe import operands

    seen, real = set(), operands.quantize

    def quantize(*operands, **options):
        result = real(*operands, **options)
        seen.add(str(result.granularity))
        return result

    monkeypatch.setattr(operands, "quantize", quantize)
    warm.multiply_once(["dsv3", "bf16"])
    assert seen >= {"1x128", "128x128", "128x1"}


test_refused = refusals(
    [(f"executors.workers({jobs}).__enter__()", "jobs must be an integer >= 0, got .*") for jobs in (-1, True, 1.5)],
    lambda: globals(),
)
