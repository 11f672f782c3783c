"""Execution of a plan: keep finished runs, do the others, and never mix runs with different fingerprints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import backup_path, move_to_backup, write_json
from . import executors, store
from .fingerprint import differences
from .plan import Plan
from .progress import STEPS_TO_SETTLE, Display, Running, Snapshot
from .store import STUDY_FILE, RunFailed, StudyError
from .tasks import Stopped, Task, run_task
from .warm import compile_kernels

if TYPE_CHECKING:
    from lowprec.recipe import Recipe

#: Seconds for runs to notice that the study stops: one step of a large model, or the loss of a scheduler.
STOP_WITHIN = 60.0
#: Seconds between two checks of the runs in progress.
POLL_INTERVAL = 0.5


def check_same(tasks: Sequence[Task]) -> None:
    """Refuse to continue a study if fingerprints of its finished runs differ from those planned.

    Raises
    ------
    StudyError
        If a run in the folder has another fingerprint; the message lists the differences.
    """
    found: dict[str, str] = {}
    for task in tasks:
        run = task.folder.read()
        if run is not None and run.get("status") in store.FINISHED:
            for line in differences(run.get("fingerprint"), task.fingerprint):
                found.setdefault(line, task.name)
    if found:
        folder = tasks[-1].study
        lines = [line for line in found if not line.startswith("checkpoint.")] or list(found)
        shown = "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
        reason = f"holds runs of something else ({shown})"
        if any(line.startswith("code: ") for line in lines):
            reason = (
                "holds runs of other code: since they ran, lowprec's sources that make a run's numbers have changed, "
                f"or their paths ({shown}), so these runs cannot be resumed"
            )
        raise StudyError(
            f"{folder} {reason}; --restart keeps them as {backup_path(folder).name} and starts over, "
            "another --out keeps both"
        )


def rename_existing_runs(folder: Path) -> Path | None:
    """Rename a study's folder of runs and return its new path; None if it does not exist.

    Raises
    ------
    StudyError
        If a study is running in the folder.
    """
    if not folder.is_dir():
        return None
    with store.lock(folder):  # never while a study is running
        return move_to_backup(folder)


def run_study(
    planned: Plan,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    restart: bool = False,
    display: Display | None = None,
    ended: Callable[[], None] | None = None,
) -> Plan:
    """Execute all unfinished runs of a plan.

    Parameters
    ----------
    planned : Plan
        Runs of the study.
    jobs : int, optional
        Number of worker processes, by default one per core; 0 runs everything in this process.
    executor : concurrent.futures.Executor, optional
        Executor for the tasks, in place of worker processes; its workers must see the study's folder.
    restart : bool
        Whether to rename an existing folder and start over.
    display : Display, optional
        Display of the progress; none by default.
    ended : callable, optional
        Function called after every run of an arm, to report interim results.

    Returns
    -------
    Plan
        The plan; all its runs are finished.

    Raises
    ------
    StudyError
        If the folder cannot be used or a run failed. Finished runs are kept, and the same call resumes.
    KeyboardInterrupt
        If the user interrupts; raised after the workers have stopped.
    """
    show = Display() if display is None else display
    if restart:
        rename_existing_runs(planned.folder)
    check_same(planned.tasks)
    store.check_writable(planned.folder)
    with contextlib.ExitStack() as locks:
        shared = {task.study for task in unfinished(planned)} - {planned.folder}
        for folder in (planned.folder, *sorted(shared)):
            folder.mkdir(parents=True, exist_ok=True)  # the folder of shared checkpoints may be new
            locks.enter_context(store.lock(folder))
        for stop_file in stop_files(planned):
            stop_file.unlink(missing_ok=True)
        write_json(planned.folder / STUDY_FILE, planned.description)
        todo = unfinished(planned)
        for task in todo:
            if task.folder.finished() and task.is_arm:
                show.note(f"{task.name} {task.missing_output()}")
        if todo:
            compile_kernels(todo, show, in_process=jobs == 0)
            workers = executors.cores() if jobs is None else max(1, jobs)
            context = contextlib.nullcontext(executor) if executor is not None else executors.workers(jobs)
            with context as pool:
                assert pool is not None
                _Runner(planned, todo, pool, workers, show, ended).run()
    return planned


def stop_files(planned: Plan) -> set[Path]:
    """Return the files that stop the runs if they exist."""
    return {task.stop_file for task in planned.tasks if task.study.is_dir()}


def unfinished(planned: Plan) -> list[Task]:
    """Return the unfinished runs of arms, and the unfinished checkpoints that they need."""
    arms = [task for task in planned.arms if not task.finished()]
    needed = {task.start_name for task in arms}
    return [task for task in planned.checkpoints if task.name in needed and not task.finished()] + arms


class _Runner:
    """Loop that submits tasks to an executor and watches the folders of the runs in progress."""

    def __init__(
        self, planned: Plan, todo: Sequence[Task], pool: Executor, jobs: int, show: Display,
        ended: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.pool, self.jobs, self.show, self.ended = planned, pool, jobs, show, ended
        self.todo = {task.name: task for task in todo}
        self.futures: dict[Future[dict[str, Any]], Task] = {}
        #: Number of steps and time at the first check of each run that had made a step.
        self.seen: dict[str, tuple[int, float]] = {}
        #: Seconds per step by recipe, from finished runs or, before the first, from runs in progress.
        self.rates: dict[str | Recipe, float] = {}
        self.guesses: dict[str | Recipe, float] = {}

    def run(self) -> None:
        try:
            for task in list(self.todo.values()):
                if task.is_arm:
                    task.folder.remove()  # leftovers of a killed study
                if task.start_name not in self.todo:
                    self._submit(task)
            while self.futures:
                done, _ = wait(self.futures, timeout=POLL_INTERVAL, return_when=FIRST_COMPLETED)
                for future in done:
                    self._collect(future)
                self.show.update(self.snapshot())
        except BaseException:
            for stop_file in stop_files(self.plan):
                stop_file.touch()
            for future in self.futures:
                future.cancel()
            wait(self.futures, timeout=STOP_WITHIN)
            raise
        finally:
            for stop_file in stop_files(self.plan):
                stop_file.unlink(missing_ok=True)

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
            if type(error).__name__ == "KilledWorker":
                raise RunFailed(
                    f"the cluster's workers died while {task.name} ran, more than once (out of memory?); finished runs "
                    "are kept, the same command resumes"
                ) from None
            where = task.folder.path / store.RUN_FILE
            raise RunFailed(
                f"run {task.name} failed: {type(error).__name__}: {error} (traceback in {where}); "
                "finished runs are kept"
            ) from error
        del self.todo[task.name]
        if run.get("timed_steps"):
            seconds = float(run["seconds"]) + float(run["evaluation_seconds"])
            self.rates[task.recipe] = seconds / int(run["timed_steps"])
        for waiting in self.todo.values():
            if waiting.start_name == task.name:
                self._submit(waiting)
        if task.is_arm and self.ended is not None:
            self.ended()

    def snapshot(self) -> Snapshot:
        """Return the progress, read from the folders of the runs in progress."""
        running = []
        for future, task in self.futures.items():
            if not future.done() and task.folder.path.exists():
                rows, loss = _tail(task)
                running.append(Running(task.name, rows, task.steps, loss))
                if not rows:  # the first step loads kernels
                    continue
                first, began = self.seen.setdefault(task.name, (rows, time.monotonic()))
                if rows >= first + STEPS_TO_SETTLE and task.recipe not in self.rates:
                    self.guesses[task.recipe] = (time.monotonic() - began) / (rows - first)
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
        total = sum(rates.get(task.recipe, unknown) * (task.steps - at.get(task.name, 0)) for task in tasks)
        return total / max(1, min(self.jobs, len(tasks)))


def _tail(task: Task) -> tuple[int, float | None]:
    """Return the number of finished steps of a run and its last loss."""
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
