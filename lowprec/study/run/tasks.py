"""One run of a study, from an empty folder to a finished one; this is what worker processes execute.

A task has its work: *preparing* a BF16 checkpoint, which can itself be continued after an interruption, *branching* an
arm from it (`branch`), or measuring it (`lowprec.study.measurements`). Everything a run needs is in its `Task`, so that
any executor on any computer that sees the folder can run it.
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

from lowprec._ieee import standard

from ..design.modules import Required, used_by
from .fingerprint import code_hash, differences, host
from .store import AGAIN as AGAIN
from .store import RunFolder, StudyError

if TYPE_CHECKING:
    from lowprec.moe.model.config import MoEConfig
    from lowprec.recipe import Recipe

    from .backend import Backend, Trainer

CHECKPOINT_FILE = "checkpoint.npz"
#: Seconds between two saves of a checkpoint in preparation.
SAVE_EVERY = 20.0
#: Fields of a step that tell the time, not the result.
CLOCKS = ("seconds", "time", "elapsed", "tokens_per_second")


class Stopped(RuntimeError):
    """The study was asked to stop; this run will be done again, or continued."""


@dataclass(frozen=True)
class RunContext:
    """What all runs of a study have in common.

    Attributes
    ----------
    backend : Backend
        Makes the trainers.
    data : str
        A corpus by name, or a whole path.
    fingerprint : dict
        What their numbers depend on: data, code, versions, backend.
    """

    backend: Backend
    data: str
    fingerprint: dict[str, Any]


class Work(ABC):
    """What a run does."""

    is_arm: ClassVar[bool] = True
    """Whether it is of an arm, not the preparation of a checkpoint."""

    @abstractmethod
    def execute(self, task: Task) -> dict[str, Any]:
        """Do it and return the finished `run.json`."""

    def missing_output(self, task: Task, record: Mapping[str, Any]) -> str:
        """Return what a finished run's files lack, in words: it has to be done again; empty if nothing."""
        return task.folder.lacks(record)

    def passes(self, task: Task) -> Iterator[tuple[str | Recipe, float, float]]:
        """Yield recipes with how many training steps and evaluated batches the work takes in each."""
        yield task.recipe, float(task.steps), 0.0


@dataclass(frozen=True)
class Task:
    """One run.

    Parameters
    ----------
    name : str
        Its folder below the study's, "checkpoints/c0" or "dsv3/c0-s1".
    study : Path
        The study's folder.
    context : RunContext
        Backend and data.
    config : str or MoEConfig
        The model.
    recipe : str or Recipe
        What to train with.
    seed : int
        Of the initial weights for a checkpoint, of the data for an arm.
    steps : int
        Optimizer steps, or batches.
    work : Work
        What is done.
    fingerprint : dict
        Everything that the numbers depend on, in JSON's types.
    start : Task, optional
        The run whose checkpoint an arm starts from.
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
        """Whether the run is an arm, not the preparation of a checkpoint."""
        return self.work.is_arm

    @property
    def start_name(self) -> str:
        """Name of the run whose checkpoint an arm starts from; empty without one."""
        return "" if self.start is None else self.start.name

    @property
    def start_file(self) -> Path:
        """The checkpoint that an arm starts from."""
        assert self.start is not None
        return self.start.folder.path / CHECKPOINT_FILE

    @property
    def folder(self) -> RunFolder:
        """Where the run is kept."""
        return RunFolder(self.study / self.name)

    @property
    def recipe_name(self) -> str:
        """Name of the recipe, whichever way it was given."""
        return self.recipe if isinstance(self.recipe, str) else self.recipe.name

    @property
    def stop_file(self) -> Path:
        """While this file exists, workers stop at their next step."""
        return self.study / ".stop"

    def finished(self) -> bool:
        """Whether the run came to its end and what others need of it is there."""
        return self.folder.finished() and not self.missing_output()

    def missing_output(self) -> str:
        """Return what a finished run's files lack, in words: it has to be done again; empty if nothing."""
        return self.work.missing_output(self, self.folder.read() or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process makes the task of: the files of ablations that it needs come first."""
        return _made, (Required(used_by(self)), type(self), self.__dict__)

    def describe(self) -> dict[str, Any]:
        """Return what `run.json` says before any result."""
        return {
            "name": self.name,
            "kind": "arm" if self.is_arm else "checkpoint",
            "seed": self.seed,
            "steps": self.steps,
            "fingerprint": self.fingerprint,
        }


def _made(_: Any, kind: type[Task], fields: Mapping[str, Any]) -> Task:
    task = object.__new__(kind)
    task.__dict__.update(fields)
    return task


@standard
def run_task(task: Task) -> dict[str, Any]:
    """Execute a task and return its finished `run.json`.

    Raises
    ------
    Stopped
        If the study was stopped meanwhile.
    StudyError
        If the data changed since the study was planned.
    """
    try:
        if (code := code_hash()) != task.fingerprint["code"]:
            raise StudyError(f"{task.name}: this worker has other code than the study ({code}); update it")
        return task.work.execute(task)
    except (Stopped, StudyError):
        raise
    except Exception:
        # What failed may be the disk itself: then there is no place to note it, and the error alone has to do.
        with contextlib.suppress(OSError, StudyError):
            task.folder.finish("failed", error=traceback.format_exc())
        raise


@dataclass(frozen=True)
class Prepare(Work):
    """Trains a BF16 checkpoint.

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
            except (ValueError, OSError):  # a damaged file: begin again
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
                f"{task.name}: the checkpoint did not train (validation loss {loss!r}); lower learning_rate"
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
        """Return what is missing: the checkpoint."""
        return "" if (task.folder.path / CHECKPOINT_FILE).exists() else f"lacks {CHECKPOINT_FILE}"


def _partial(task: Task) -> Path | None:
    """Return the newest save of an unfinished run that had the same fingerprint."""
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
    """Return the data of a task, and make sure that it is what was planned."""
    corpus = _load(task.context.backend, task.context.data)
    data, planned = task.context.data, task.fingerprint["data"]
    if corpus.sha256 != planned:
        raise StudyError(f"data {data!r} changed while the study ran: sha256 {planned} then, {corpus.sha256} now")
    return corpus


def run_record(task: Task) -> dict[str, Any]:
    """Return what `run.json` says of a task and of the computer it runs on."""
    return {**task.describe(), "host": host(), "data": task.context.data}


def raise_if_stopped(task: Task) -> None:
    """Raise `Stopped` if the study was asked to stop."""
    if task.stop_file.exists():
        raise Stopped(f"{task.name}: stopped")


def metrics_row(record: Any) -> dict[str, Any]:
    """Return the numbers of a step, without clocks."""
    values = {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name not in CLOCKS and isinstance(value, (int, float))}
