"""Run an ablation: prepare BF16 checkpoints, branch all arms from them in pairs, keep everything that is finished.

The protocol is the one that resolves differences of 0.05 % with a few runs where training from scratch needs a
hundred: all arms start from the same BF16 checkpoint, see the same batches, and decay the learning rate to 0.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import executors, store
from .ablation import Ablation, Arm, Setting
from .progress import Display, Running, Silent, Snapshot
from .store import RunFailed, StudyError
from .tasks import Stopped, Task, run_task

STUDY_FILE = "study.json"
BACKEND = "lowprec.study.trainer"
#: Seconds between two looks at the runs in progress.
LOOK_EVERY = 0.5
#: Arms of one checkpoint have data seeds from here on, this far apart: far from those of the checkpoints themselves.
SEEDS_PER_CHECKPOINT = 1000


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order in which they start.

    Attributes
    ----------
    ablation, setting : Ablation, Setting
        What is asked, and at which size.
    folder : Path
        Where it is kept.
    checkpoints, arms : tuple of Task
        The runs.
    """

    ablation: Ablation
    setting: Setting
    folder: Path
    checkpoints: tuple[Task, ...]
    arms: tuple[Task, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All runs, checkpoints first."""
        return self.checkpoints + self.arms


def run_name(arm: Arm, checkpoint: int, seed: int) -> str:
    """Return the folder of a run below the study's."""
    return f"{arm.name}/c{checkpoint}-s{seed}"


def pairs_of(arm: Arm, setting: Setting) -> Iterator[tuple[int, int]]:
    """Yield (checkpoint, seed) of every pair of an arm."""
    for checkpoint in range(setting.checkpoints):
        for seed in range(setting.seeds if arm.pairs is None else min(arm.pairs, setting.seeds)):
            yield checkpoint, seed


def plan(
    ablation: Ablation, setting: Setting, folder: Path, *, data: str = "stdlib", backend: str | None = None
) -> Plan:
    """List the runs of a study; nothing is written.

    Raises
    ------
    UnknownNameError
        If a configuration or recipe is not in its catalogue.
    ValueError
        If the data cannot be used, or there are more seeds than places for them.
    """
    if setting.seeds > SEEDS_PER_CHECKPOINT:
        raise ValueError(f"seeds must be at most {SEEDS_PER_CHECKPOINT}, not {setting.seeds}")
    backend = backend or BACKEND
    trainer = importlib.import_module(backend)
    if data != "stdlib":
        data = str(Path(data).resolve())
    common = {
        "data": trainer.load_corpus(data).sha256,
        "code": store.code_hash(),
        "versions": store.versions(),
        "backend": backend,
    }
    folder = folder.resolve()
    checkpoints = []
    for number in range(setting.checkpoints):
        schedule = {
            "peak": setting.learning_rate,
            "warmup_steps": setting.warmup_steps,
            "total_steps": setting.checkpoint_steps,
            "kind": "constant",
        }
        what = {**trainer.describe(setting.config, "bf16"), "schedule": schedule, "seed": number}
        checkpoints.append(
            Task(
                f"checkpoints/c{number}", folder, backend, setting.config, "bf16", data, number,
                setting.checkpoint_steps, schedule, {**what, **common},
            )
        )  # fmt: skip
    arms = []
    for arm in ablation.arms:
        for number, seed in pairs_of(arm, setting):
            schedule = {
                "peak": setting.learning_rate,
                "warmup_steps": 0,
                "total_steps": setting.branch_steps,
                "kind": "linear_to_zero",
            }
            what = {
                **trainer.describe(setting.config, arm.recipe),
                "schedule": schedule,
                "seed": SEEDS_PER_CHECKPOINT * (number + 1) + seed,
                "perturb": arm.role == "floor",
                "checkpoint": checkpoints[number].fingerprint,
            }
            arms.append(
                Task(
                    run_name(arm, number, seed), folder, backend, setting.config, arm.recipe, data, what["seed"],
                    setting.branch_steps, schedule, {**what, **common}, checkpoints[number].name, what["perturb"],
                )
            )  # fmt: skip
    # Whole pairs early, and within a pair the arms that emulate (and take long) before the plain ones.
    arms.sort(key=lambda task: (task.name.rpartition("-s")[2].zfill(4), task.recipe_name == "bf16"))
    return Plan(ablation, setting, folder, tuple(checkpoints), tuple(arms))


def check_same(tasks: Sequence[Task]) -> None:
    """Refuse to mix with finished runs that were made of something else.

    Raises
    ------
    StudyError
        If a run in the folder has another fingerprint; the message says what differs.
    """
    found: dict[str, str] = {}
    for task in tasks:
        run = task.folder.read()
        if run is not None and run.get("status") in store.FINISHED:
            for line in store.differences(run.get("fingerprint"), task.fingerprint):
                found.setdefault(line, task.name)
    if found:
        lines = [line for line in found if not line.startswith("checkpoint.")] or list(found)
        shown = "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
        raise StudyError(
            f"{tasks[0].study} holds runs of something else ({shown}); "
            "--fresh moves them aside and starts over, --out keeps both"
        )


def run_study(
    planned: Plan,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    fresh: bool = False,
    display: Display | None = None,
) -> Plan:
    """Execute all runs of a plan that are not finished yet.

    Parameters
    ----------
    planned : Plan
        The runs.
    jobs : int, optional
        Worker processes, by default one per core; 0 runs everything in this process.
    executor : concurrent.futures.Executor, optional
        Runs the tasks instead; its workers must see the study's folder.
    fresh : bool
        Move an existing folder aside and start over.
    display : Display, optional
        Where progress is shown; nowhere by default.

    Returns
    -------
    Plan
        The plan, all of whose runs are now finished.

    Raises
    ------
    StudyError
        If the folder cannot be used or a run failed. Finished runs are kept, and the same call resumes.
    KeyboardInterrupt
        Passed on after the workers stopped.
    """
    show = Silent() if display is None else display
    if fresh and planned.folder.is_dir():
        with store.lock(planned.folder):  # not from under a study that is running
            store.set_aside(planned.folder)
    check_same(planned.tasks)
    store.check_writable(planned.folder)
    with store.lock(planned.folder):
        planned.tasks[0].stop_file.unlink(missing_ok=True)
        store.write_json(planned.folder / STUDY_FILE, describe(planned))
        todo = unfinished(planned)
        if todo:
            # Compiled once here, found on disk by the workers.
            show.stage("compiling kernels (once per version, about a minute)")
            warm(todo)
            context = contextlib.nullcontext(executor) if executor is not None else executors.workers(jobs)
            with context as pool:
                assert pool is not None
                _Runner(planned, todo, pool, executors.cores() if jobs is None else max(1, jobs), show).run()
    return planned


def unfinished(planned: Plan) -> list[Task]:
    """Return the runs that are still to be done: arms, and the checkpoints that these need."""
    arms = [task for task in planned.arms if not task.finished()]
    needed = {task.checkpoint for task in arms}
    return [task for task in planned.checkpoints if task.name in needed and not task.finished()] + arms


def describe(planned: Plan) -> dict[str, Any]:
    """Return what `study.json` keeps: enough to report without the ablation's file."""
    arms = tuple(replace(arm, recipe=arm.recipe_name) for arm in planned.ablation.arms)
    return {"ablation": store.plain(replace(planned.ablation, arms=arms)), "setting": store.plain(planned.setting)}


def read_study(folder: Path) -> tuple[Ablation, Setting]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study.
    """
    if not (folder / STUDY_FILE).is_file():
        raise StudyError(f"{str(folder)!r} holds no study ({STUDY_FILE} is missing)")
    content = store.read_json(folder / STUDY_FILE)
    try:
        fields = dict(content["ablation"])
        fields["arms"] = tuple(Arm(**arm) for arm in fields["arms"])
        fields["quick"], fields["full"] = Setting(**fields["quick"]), Setting(**fields["full"])
        return Ablation(**fields), Setting(**content["setting"])
    except (KeyError, TypeError) as error:
        raise StudyError(f"{folder / STUDY_FILE} was written by another version of lowprec ({error})") from None


def warm(tasks: Sequence[Task]) -> None:
    """Run one small step of every recipe in this process, so that all kernels are compiled and on disk."""
    recipes = {task.recipe_name: task for task in tasks}
    for task in recipes.values():
        _warm(task.backend, task.recipe_name, task)


@functools.cache
def _warmed() -> set[tuple[str, str]]:
    return set()


def _warm(backend: str, name: str, task: Task) -> None:
    if (backend, name) in _warmed():
        return
    trainer = importlib.import_module(backend)
    schedule = trainer.Schedule(**{**task.schedule, "warmup_steps": 0, "total_steps": 1})
    small = trainer.Trainer("nano", task.recipe, trainer.load_corpus(task.data), seed=0, schedule=schedule)
    small.step()
    _warmed().add((backend, name))


class _Runner:
    """Feeds an executor and watches the folders of the runs in progress."""

    def __init__(self, planned: Plan, todo: Sequence[Task], pool: Executor, jobs: int, show: Display) -> None:
        self.plan, self.pool, self.jobs, self.show = planned, pool, jobs, show
        self.todo = {task.name: task for task in todo}
        self.futures: dict[Future[dict[str, Any]], Task] = {}
        #: Of runs in progress: steps and time when first looked at.
        self.seen: dict[str, tuple[int, float]] = {}
        #: Seconds per step by recipe, of finished runs and, until there is one, of runs in progress.
        self.rates: dict[str, float] = {}
        self.guesses: dict[str, float] = {}

    def run(self) -> None:
        try:
            for task in list(self.todo.values()):
                if task.checkpoint:
                    task.folder.remove()  # leftovers of a killed study
                if task.checkpoint not in self.todo:
                    self._submit(task)
            while self.futures:
                done, _ = wait(self.futures, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    self._collect(future)
                self.show.update(self.snapshot())
        except BaseException:
            self.plan.tasks[0].stop_file.touch()
            for future in self.futures:
                future.cancel()
            wait(self.futures)
            raise
        finally:
            self.plan.tasks[0].stop_file.unlink(missing_ok=True)

    def _submit(self, task: Task) -> None:
        self.futures[self.pool.submit(run_task, task)] = task

    def _collect(self, future: Future[dict[str, Any]]) -> None:
        task = self.futures.pop(future)
        try:
            run = future.result()
        except (Stopped, CancelledError):
            raise StudyError(f"the study was stopped while {task.name} ran; the same command resumes it") from None
        except BrokenExecutor:
            raise RunFailed(
                f"a worker process died while {task.name} or its neighbours ran (out of memory?); finished runs are "
                "kept, the same command resumes, --jobs takes fewer workers"
            ) from None
        except StudyError:
            raise
        except Exception as error:
            where = task.folder.path / store.RUN_FILE
            raise RunFailed(
                f"run {task.name} failed: {type(error).__name__}: {error} (traceback in {where}); "
                "finished runs are kept"
            ) from error
        del self.todo[task.name]
        if run.get("timed_steps"):
            seconds = float(run["seconds"]) + float(run["evaluation_seconds"])
            self.rates[task.recipe_name] = seconds / int(run["timed_steps"])
        for waiting in self.todo.values():
            if waiting.checkpoint == task.name:
                self._submit(waiting)

    def snapshot(self) -> Snapshot:
        """Look at the folders of the runs in progress."""
        running = []
        for future, task in self.futures.items():
            if not future.done() and task.folder.path.exists():
                rows, loss = _tail(task)
                running.append(Running(task.name, rows, task.steps, loss))
                first, began = self.seen.setdefault(task.name, (rows, time.monotonic()))
                if rows > first and task.recipe_name not in self.rates:
                    self.guesses[task.recipe_name] = (time.monotonic() - began) / (rows - first)
        at = {run.name: run.done for run in running}
        tasks = self.plan.tasks
        steps = sum(task.steps for task in tasks)
        done = steps - sum(task.steps - at.get(name, 0) for name, task in self.todo.items())
        left = self._seconds_left(list(self.todo.values()), at)
        return Snapshot(len(tasks) - len(self.todo), len(tasks), done, steps, running, left)

    def _seconds_left(self, tasks: Sequence[Task], at: dict[str, int]) -> float | None:
        rates = {**self.guesses, **self.rates}
        if not rates:
            return None
        unknown = max(rates.values())
        total = sum(rates.get(task.recipe_name, unknown) * (task.steps - at.get(task.name, 0)) for task in tasks)
        return total / max(1, min(self.jobs, len(tasks)))


def _tail(task: Task) -> tuple[int, float | None]:
    """Return how many steps a run has done and its last loss."""
    try:
        lines = task.folder.metrics.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return 0, None
    if len(lines) < 2:
        return 0, None
    try:
        return len(lines) - 1, float(dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))["loss"])
    except (KeyError, ValueError):
        return len(lines) - 1, None
