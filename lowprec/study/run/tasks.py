"""Tasks: one run of a study, from an empty folder to a finished one, executed by a worker process.

The work of a task is to *prepare* a BF16 checkpoint, which can be resumed after an interruption, to *branch* an arm
from it (`branch`), or to measure it (`lowprec.study.measurements`). A `Task` is self-contained, so that any executor on
any computer that sees the folder can run it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lowprec._fpenv import with_default_fpenv

from ..design.modules import Required, used_by
from .fingerprint import code_hash, differences, host
from .store import AGAIN as AGAIN
from .store import RunFolder, StudyError

if TYPE_CHECKING:
    from lowprec.moe.model.config import MoEConfig
    from lowprec.recipe import Recipe

    from .backend import Backend, Trainer

CHECKPOINT_FILE = "checkpoint.npz"
#: Seconds between two saves while a checkpoint is prepared.
SAVE_EVERY = 20.0
#: Fields of a step's record with times, which are not part of the result.
CLOCKS = ("seconds", "time", "elapsed", "tokens_per_second")


class Stopped(RuntimeError):
    """Exception that ends a run because the study was asked to stop; the run is restarted or resumed later."""


@dataclass(frozen=True)
class RunContext:
    """Backend and data that all runs of a study share.

    Attributes
    ----------
    backend : Backend
        Backend that creates trainers.
    data : str
        Name of a corpus, or absolute path.
    fingerprint : dict
        Entries of the fingerprints: data, code, versions, backend.
    """

    backend: Backend
    data: str
    fingerprint: dict[str, Any]


class Work(ABC):
    """Base class of the work that a run does."""

    is_arm: ClassVar[bool] = True
    """Whether the work belongs to an arm; False for the preparation of a checkpoint."""

    @abstractmethod
    def execute(self, task: Task) -> dict[str, Any]:
        """Do the work and return the finished `run.json`."""

    def missing_output(self, task: Task, record: Mapping[str, Any]) -> str:
        """Describe missing outputs of a finished run, which must then run again; empty if it is complete."""
        return task.folder.missing_rows(record)

    def passes(self, task: Task) -> Iterator[tuple[str | Recipe, float, float]]:
        """Yield recipes, each with its number of training steps and of evaluated batches."""
        yield task.recipe, float(task.steps), 0.0


@dataclass(frozen=True)
class Task:
    """One run of a study.

    Parameters
    ----------
    name : str
        Folder below the study's: "checkpoints/c0" or "dsv3/c0-s1".
    study : Path
        Folder of the study.
    context : RunContext
        Backend and data.
    config : str or MoEConfig
        Configuration of the model.
    recipe : str or Recipe
        Recipe of the training.
    seed : int
        Seed of the initial weights for a checkpoint, of the data for an arm.
    steps : int
        Number of optimizer steps, or of batches.
    work : Work
        Work to do.
    fingerprint : dict
        Everything that affects the numbers, in JSON types.
    start : Task, optional
        Run that writes the checkpoint from which an arm starts.
    """

    name: str
    study: Path
    context: RunContext
    config: str | MoEConfig
    recipe: str | Recipe
    seed: int
    steps: int
    work: Work
    fingerprint: dict[str, Any] = field(hash=False)
    start: Task | None = None

    @property
    def is_arm(self) -> bool:
        """Whether the run belongs to an arm; False for the preparation of a checkpoint."""
        return self.work.is_arm

    @property
    def start_name(self) -> str:
        """Name of the run with the arm's checkpoint; empty without one."""
        return "" if self.start is None else self.start.name

    @property
    def start_file(self) -> Path:
        """Path of the checkpoint that an arm starts from."""
        assert self.start is not None
        return self.start.folder.path / CHECKPOINT_FILE

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return RunFolder(self.study / self.name)

    @property
    def recipe_name(self) -> str:
        """Name of the recipe, which may be given as an object."""
        return self.recipe if isinstance(self.recipe, str) else self.recipe.name

    @property
    def stop_file(self) -> Path:
        """File that makes workers stop at their next step if it exists."""
        return self.study / ".stop"

    def finished(self) -> bool:
        """Return whether the run has ended and no output is missing."""
        return self.folder.finished() and not self.missing_output()

    def missing_output(self) -> str:
        """Describe missing outputs of a finished run, which must then run again; empty if it is complete."""
        return self.work.missing_output(self, self.folder.read() or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the files of ablations that the task uses before the task itself."""
        return _rebuild, (Required(used_by(self)), type(self), self.__dict__)

    def describe(self) -> dict[str, Any]:
        """Return the initial content of `run.json`."""
        return {
            "name": self.name,
            "kind": "arm" if self.is_arm else "checkpoint",
            "seed": self.seed,
            "steps": self.steps,
            "fingerprint": self.fingerprint,
        }


def _rebuild(_: Any, kind: type[Task], fields: Mapping[str, Any]) -> Task:
    task = object.__new__(kind)
    task.__dict__.update(fields)
    return task


@with_default_fpenv
def run_task(task: Task) -> dict[str, Any]:
    """Execute a task and return its finished `run.json`.

    Raises
    ------
    Stopped
        If the study was stopped in the meantime.
    StudyError
        If the worker's code or data differ from those of the plan, or the training of a checkpoint diverges.
    """
    try:
        if (code := code_hash()) != task.fingerprint["code"]:
            raise StudyError(
                f"{task.name}: code of the worker must be that of the study ({code}), got another; update the worker"
            )
        return task.work.execute(task)
    except (Stopped, StudyError):
        raise
    except Exception:
        # If the disk itself failed, the error cannot be recorded in the folder; it is only raised.
        with contextlib.suppress(OSError, StudyError):
            task.folder.finish("failed", error=traceback.format_exc())
        raise


@dataclass(frozen=True)
class Prepare(Work):
    """Work that trains a BF16 checkpoint.

    Parameters
    ----------
    schedule : dict
        Fields of the learning-rate schedule.
    """

    schedule: dict[str, Any]
    is_arm: ClassVar[bool] = False

    def execute(self, task: Task) -> dict[str, Any]:
        """Train, and return the finished `run.json`."""
        backend, folder, corpus = task.context.backend, task.folder, corpus_of(task)
        trainer: Trainer | None = None
        start = 0
        saved = _partial(task)
        if saved is not None:
            try:
                trainer, start = backend.load(saved, corpus), int(saved.stem.rpartition("-")[2])
            except (ValueError, OSError):  # a damaged file: restart
                saved.unlink()
        if trainer is None:
            folder.remove()
            trainer = backend.new(task.config, task.recipe, corpus, seed=task.seed, schedule=self.schedule)
        folder.start(run_record(task), keep_rows=start)
        began = last = time.monotonic()
        for step in range(start, task.steps):
            raise_if_stopped(task)
            folder.append(metrics_row(trainer.step()))
            if time.monotonic() - last > SAVE_EVERY and step + 1 < task.steps:
                fresh = folder.path / f"partial-{step + 1}.npz"
                trainer.save(fresh)
                if saved is not None:
                    saved.unlink(missing_ok=True)
                saved, last = fresh, time.monotonic()
        seconds = time.monotonic() - began
        loss = trainer.evaluate()
        if not math.isfinite(loss):
            raise StudyError(
                f"{task.name}: training of the checkpoint diverged (validation loss {loss!r}); lower learning_rate"
            )
        trainer.save(folder.path / CHECKPOINT_FILE)
        evaluated = time.monotonic() - began - seconds
        folder.finish(
            "done", validation_loss=loss, seconds=seconds, evaluation_seconds=evaluated, timed_steps=task.steps - start
        )
        for leftover in folder.path.glob("partial-*.npz"):
            leftover.unlink()
        return folder.read() or {}

    def missing_output(self, task: Task, record: Mapping[str, Any]) -> str:
        """Describe a missing checkpoint; empty if there is one."""
        return "" if (task.folder.path / CHECKPOINT_FILE).exists() else f"lacks {CHECKPOINT_FILE}"


def _partial(task: Task) -> Path | None:
    """Return the latest save of an unfinished run with the same fingerprint."""
    run = task.folder.read()
    if run is None or differences(run.get("fingerprint"), task.fingerprint):
        return None
    saves = [path for path in task.folder.path.glob("partial-*.npz") if path.stem.rpartition("-")[2].isdigit()]
    saves = [path for path in saves if int(path.stem.rpartition("-")[2]) <= task.folder.rows()]
    return max(saves, key=lambda path: int(path.stem.rpartition("-")[2]), default=None)


@functools.lru_cache(maxsize=2)
def _load(backend: Backend, data: str) -> Any:
    return backend.load_corpus(data)


def corpus_of(task: Task) -> Any:
    """Load the data of a task and check that it is unchanged since the plan."""
    corpus = _load(task.context.backend, task.context.data)
    data, planned = task.context.data, task.fingerprint["data"]
    if corpus.sha256 != planned:
        raise StudyError(f"data {data!r} changed while the study ran: sha256 {planned} then, {corpus.sha256} now")
    return corpus


def run_record(task: Task) -> dict[str, Any]:
    """Return the description of a task and its host for `run.json`."""
    return {**task.describe(), "host": host(), "data": task.context.data}


def raise_if_stopped(task: Task) -> None:
    """Raise `Stopped` if the study was asked to stop."""
    if task.stop_file.exists():
        raise Stopped(f"{task.name} was stopped")


def metrics_row(record: Any) -> dict[str, Any]:
    """Return the numbers of a step's record, without times."""
    values = {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name not in CLOCKS and isinstance(value, (int, float))}
