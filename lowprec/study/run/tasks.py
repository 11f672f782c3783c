"""One run of a study, from an empty folder to a finished one; this is what worker processes execute.

Two sorts: *preparing* a BF16 checkpoint, which can itself be continued after an interruption, and *branching* an arm
from it. Everything a run needs is in its `Task`, so that any executor on any computer that sees the folder can run it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowprec._ieee import standard

from ..analysis.smoothing import exponent
from ..design.modules import Required, used_by
from .fingerprint import code_hash, differences, host
from .store import RunFolder, StudyError

if TYPE_CHECKING:
    from lowprec.moe.model.config import MoEConfig
    from lowprec.recipe import Recipe

    from .backend import Backend, Trainer
    from .evaluation import Evaluation

CHECKPOINT_FILE = "checkpoint.npz"
#: Seconds between two saves of a checkpoint in preparation.
SAVE_EVERY = 20.0
#: Fields of a step that tell the time, not the result.
CLOCKS = ("seconds", "time", "elapsed", "tokens_per_second")


class Stopped(RuntimeError):
    """The study was asked to stop; this run will be done again, or continued."""


@dataclass(frozen=True)
class Task:
    """One run.

    Parameters
    ----------
    name : str
        Its folder below the study's, "checkpoints/c0" or "dsv3/c0-s1".
    study : Path
        The study's folder.
    backend : Backend
        Makes the trainer.
    config : str or MoEConfig
        The model.
    recipe, data : str
        What to train with; `data` is a corpus by name or a path.
    seed : int
        Of the initial weights for a checkpoint, of the data for an arm.
    steps : int
        Optimizer steps.
    schedule : dict
        Fields of the learning-rate schedule.
    fingerprint : dict
        Everything that the numbers depend on, in JSON's types.
    checkpoint : str
        Name of the run whose checkpoint an arm starts from; empty when preparing one.
    perturb : bool
        Whether one weight is changed by a factor of (1 + 2^-7) before the first step.
    checkpoints : Path, optional
        Folder of the checkpoint's run, if it is not the study's own.
    weights_seed : int, optional
        Seed of the initial weights of an arm that trains from scratch.
    tail : (int, str or Recipe), optional
        Step, counted from 0, from which on an arm has another recipe.
    calibration : int
        Batches that pass through an arm's model before its first step.
    evaluation : Evaluation, optional
        What an arm's final weights are evaluated in.
    """

    name: str
    study: Path
    backend: Backend
    config: str | MoEConfig
    recipe: str | Recipe
    data: str
    seed: int
    steps: int
    schedule: dict[str, Any]
    fingerprint: dict[str, Any] = field(hash=False)
    checkpoint: str = ""
    perturb: bool = False
    checkpoints: Path | None = None
    weights_seed: int | None = field(default=None, kw_only=True)
    tail: tuple[int, str | Recipe] | None = field(default=None, kw_only=True)
    calibration: int = field(default=0, kw_only=True)
    evaluation: Evaluation | None = field(default=None, kw_only=True)

    @property
    def is_arm(self) -> bool:
        """Whether the run is an arm, not the preparation of a checkpoint."""
        return bool(self.checkpoint) or self.weights_seed is not None

    @property
    def checkpoint_file(self) -> Path:
        """The checkpoint that an arm starts from."""
        return (self.checkpoints or self.study) / self.checkpoint / CHECKPOINT_FILE

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
        if not self.folder.finished():
            return False
        return not self.lacks() if self.is_arm else (self.folder.path / CHECKPOINT_FILE).exists()

    def lacks(self) -> str:
        """Return what a finished arm's files lack, in words: it has to be done again; empty if nothing."""
        record = self.folder.read() or {}
        if lacks := self.folder.lacks(record):
            return lacks
        if self.evaluation is not None and self.evaluation.lacks(record):
            return "was not evaluated in the precision of every arm"  # one has come to the study since
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process makes the task of: the files of ablations that it needs come first."""
        return _made, (Required(used_by(self)), type(self), self.__dict__)

    def execute(self) -> dict[str, Any]:
        """Do the run and return its finished `run.json`."""
        return _branch(self) if self.is_arm else _prepare(self)

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
        return task.execute()
    except (Stopped, StudyError):
        raise
    except Exception:
        # What failed may be the disk itself: then there is no place to note it, and the error alone has to do.
        with contextlib.suppress(OSError, StudyError):
            task.folder.finish("failed", error=traceback.format_exc())
        raise


def _prepare(task: Task) -> dict[str, Any]:
    backend, folder, corpus = task.backend, task.folder, corpus_of(task)
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
        trainer = backend.new(task.config, task.recipe, corpus, seed=task.seed, schedule=task.schedule)
    folder.start(described(task), keep_rows=start)
    began = last = time.monotonic()
    for step in range(start, task.steps):
        stop(task)
        folder.append(_row(trainer.step()))
        if time.monotonic() - last > SAVE_EVERY and step + 1 < task.steps:
            fresh = folder.path / f"partial-{step + 1}.npz"
            trainer.save(fresh)
            if saved is not None:
                saved.unlink(missing_ok=True)
            saved, last = fresh, time.monotonic()
    seconds = time.monotonic() - began
    loss = trainer.evaluate()
    if not math.isfinite(loss):
        raise StudyError(f"{task.name}: the checkpoint did not train (validation loss {loss!r}); lower learning_rate")
    trainer.save(folder.path / CHECKPOINT_FILE)
    evaluated = time.monotonic() - began - seconds
    folder.finish(
        "done", validation_loss=loss, seconds=seconds, evaluation_seconds=evaluated, timed_steps=task.steps - start
    )
    for leftover in folder.path.glob("partial-*.npz"):
        leftover.unlink()
    return folder.read() or {}


def _partial(task: Task) -> Path | None:
    """Return the newest save of an unfinished run that had the same fingerprint."""
    run = task.folder.read()
    if run is None or differences(run.get("fingerprint"), task.fingerprint):
        return None
    saves = [path for path in task.folder.path.glob("partial-*.npz") if path.stem.rpartition("-")[2].isdigit()]
    saves = [path for path in saves if int(path.stem.rpartition("-")[2]) <= task.folder.rows()]
    return max(saves, key=lambda path: int(path.stem.rpartition("-")[2]), default=None)


def _branch(task: Task) -> dict[str, Any]:
    backend, folder, corpus = task.backend, task.folder, corpus_of(task)
    folder.remove()
    trainer = _first_step(task, corpus)
    folder.start(described(task))
    began = time.monotonic()
    assert task.evaluation is not None
    done, stepping, results = 0, math.nan, task.evaluation.nothing()
    try:
        while done < task.steps:
            stop(task)
            if task.tail is not None and done == task.tail[0]:
                trainer = _with_recipe(trainer, task.tail[1], task, corpus)
            folder.append(_row(trainer.step()))
            done += 1
        stepping = time.monotonic() - began
        results = task.evaluation.results(trainer, task.seed, folder.path)
    except backend.diverged as error:
        stepping = time.monotonic() - began
        folder.finish("running", reason=str(error))
    if folder.rows() != done:
        raise StudyError(
            f"{task.name}: {folder.rows()} rows of metrics after {done} steps; did two workers write them?"
        )
    status = "done" if math.isfinite(results["validation_loss"]) else "diverged"
    folder.finish(
        status,
        **results,
        forward=task.evaluation.own.key,
        plain_forward=task.evaluation.plain.key,
        data_exponent=_data_exponent(task),
        weights=backend.weights_hash(trainer),
        seconds=stepping,
        evaluation_seconds=time.monotonic() - began - stepping,
        timed_steps=done,
    )
    return folder.read() or {}


def _data_exponent(task: Task) -> float:
    """Return d ln(loss) / d ln(bytes) over the later half of the checkpoint's training; nan from scratch."""
    if not task.checkpoint:
        return math.nan
    columns = RunFolder(task.checkpoint_file.parent).columns()
    return exponent(columns["tokens"], columns["loss"])


def _first_step(task: Task, corpus: Any) -> Trainer:
    """Return the trainer of an arm, before its first step."""
    trainer: Trainer
    if task.weights_seed is None:
        routed = {} if isinstance(task.config, str) else {"config": task.config}
        trainer = task.backend.load(
            task.checkpoint_file, corpus, recipe=task.recipe, schedule=task.schedule, data_seed=task.seed, **routed
        )
    else:
        trainer = task.backend.new(
            task.config, task.recipe, corpus, seed=task.weights_seed, schedule=task.schedule, data_seed=task.seed
        )
    if task.perturb:
        trainer.perturb()
    if task.calibration:
        trainer.calibrate(task.calibration)
    return trainer


def _with_recipe(trainer: Trainer, recipe: str | Recipe, task: Task, corpus: Any) -> Trainer:
    """Return a trainer that goes on in another precision, with the bits of a run that was saved and resumed so."""
    with tempfile.TemporaryDirectory(dir=task.folder.path) as folder:
        saved = Path(folder) / CHECKPOINT_FILE
        trainer.save(saved)
        found: Trainer = task.backend.load(saved, corpus, recipe=recipe)
        return found


@functools.lru_cache(maxsize=2)
def _load(backend: Backend, data: str) -> Any:
    return backend.load_corpus(data)


def corpus_of(task: Task) -> Any:
    """Return the data of a task, and make sure that it is what was planned."""
    corpus = _load(task.backend, task.data)
    planned = task.fingerprint["data"]
    if corpus.sha256 != planned:
        raise StudyError(f"data {task.data!r} changed while the study ran: sha256 {planned} then, {corpus.sha256} now")
    return corpus


def described(task: Task) -> dict[str, Any]:
    """Return what `run.json` says of a task and of the computer it runs on."""
    return {**task.describe(), "host": host(), "data": task.data}


def stop(task: Task) -> None:
    """Raise `Stopped` if the study was asked to stop."""
    if task.stop_file.exists():
        raise Stopped(f"{task.name}: stopped")


def _row(record: Any) -> dict[str, Any]:
    values = {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name not in CLOCKS and isinstance(value, (int, float))}
