"""Runs that branch off a checkpoint or train from scratch, and the evaluation of their final weights.

Final weights are evaluated in the precision of their training, in BF16, and in the precisions of other arms. The loss
of every held-out window is stored, because the held-out text is also a sample.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..._files import read_csv, to_csv, write_text
from .backend import STOCHASTIC_SEEDS, Forward, Trainer
from .store import RunFolder, StudyError
from .tasks import CHECKPOINT_FILE, Task, Work, corpus_of, metrics_row, raise_if_stopped, run_record

if TYPE_CHECKING:
    from lowprec.recipe import Recipe

WINDOWS_FILE = "windows.csv"
BF16 = "bf16"


@dataclass(frozen=True)
class Evaluation:
    """Precisions in which the final weights of a run are evaluated.

    Parameters
    ----------
    n_bytes : int
        Number of held-out bytes to predict.
    own : Forward
        Precision at the end of the run.
    plain : Forward
        Forward pass in BF16.
    others : tuple of Forward
        Precisions of other arms.
    """

    n_bytes: int
    own: Forward
    plain: Forward
    others: tuple[Forward, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the entry of the evaluation in a run's fingerprint, without `others`, which may be added later."""
        return {"bytes": self.n_bytes, "forward": self.own.key, "seeds": self.own.seeds}

    def missing_output(self, record: Mapping[str, Any]) -> bool:
        """Return whether a finished run lacks an evaluation."""
        return not {item.key for item in self.others} <= set(record.get("forwards", {}))

    def diverged_results(self) -> dict[str, Any]:
        """Return the results of a run that diverged."""
        losses = {item.key: math.inf for item in (self.own, self.plain, *self.others)}
        return {"validation_loss": math.inf, "validation_loss_bf16": math.inf, "forwards": losses}

    def results(self, trainer: Trainer, seed: int, folder: Path) -> dict[str, Any]:
        """Evaluate, write the losses of all windows, and return the entries for `run.json`.

        Parameters
        ----------
        trainer : Trainer
            Trainer with the final weights.
        seed : int
            Seed of the run; both runs of a pair have the same random bits.
        folder : Path
            Folder of the run.
        """
        windows = {self.own.key: self._windows(trainer, self.own, seed, own=True)}
        for item in (self.plain, *self.others):
            if item.key not in windows:
                windows[item.key] = self._windows(trainer, item, seed)
        rows = zip(*windows.values(), strict=True)
        write_text(folder / WINDOWS_FILE, to_csv(tuple(windows), rows))
        losses = {key: math.fsum(values) / len(values) for key, values in windows.items()}
        return {
            "validation_loss": losses[self.own.key],
            "validation_loss_bf16": losses[self.plain.key],
            "forwards": losses,
        }

    def _windows(self, trainer: Trainer, forward: Forward, seed: int, own: bool = False) -> list[float]:
        """Return the loss of every window, averaged over seeds."""
        several = forward.seeds > 1
        found = [
            trainer.window_losses(
                None if own else forward.recipe,
                n_bytes=self.n_bytes,
                seed=seed * STOCHASTIC_SEEDS + number if several else None,
                calibration=0 if own else forward.calibration,
            )
            for number in range(forward.seeds)
        ]
        return [math.fsum(values) / len(values) for values in zip(*(map(float, one) for one in found), strict=True)]


@dataclass(frozen=True)
class Branch(Work):
    """Work that trains an arm from a checkpoint or from scratch, and evaluates its final weights.

    Parameters
    ----------
    schedule : dict
        Fields of the learning-rate schedule.
    evaluation : Evaluation
        Evaluation of the final weights.
    perturb : bool
        Whether one weight is changed by a factor of (1 + 2^-7) before the first step.
    weights_seed : int, optional
        Seed of the initial weights of an arm that trains from scratch.
    tail : (int, str or Recipe), optional
        First step of the tail, counted from 0, and its recipe.
    calibration : int
        Number of batches that are run forward and backward before the first step, to initialise delayed scaling.
    """

    schedule: dict[str, Any]
    evaluation: Evaluation
    perturb: bool = False
    weights_seed: int | None = None
    tail: tuple[int, str | Recipe] | None = None
    calibration: int = 0

    def execute(self, task: Task) -> dict[str, Any]:
        """Train, evaluate, and return the finished `run.json`."""
        backend, folder, corpus = task.context.backend, task.folder, corpus_of(task)
        folder.remove()
        trainer = self._trainer(task, corpus)
        folder.start(run_record(task))
        began = time.monotonic()
        done, stepping, results = 0, math.nan, self.evaluation.diverged_results()
        try:
            while done < task.steps:
                raise_if_stopped(task)
                if self.tail is not None and done == self.tail[0]:
                    trainer = _with_recipe(trainer, self.tail[1], task, corpus)
                folder.append(metrics_row(trainer.step()))
                done += 1
            stepping = time.monotonic() - began
            results = self.evaluation.results(trainer, task.seed, folder.path)
        except backend.diverged as error:
            stepping = time.monotonic() - began
            folder.finish("running", reason=str(error))
        if folder.rows() != done:
            raise StudyError(
                f"{task.name} must have {done} rows of metrics, one per step, got {folder.rows()}; did two workers "
                "write them?"
            )
        status = "done" if math.isfinite(results["validation_loss"]) else "diverged"
        folder.finish(
            status,
            **results,
            forward=self.evaluation.own.key,
            plain_forward=self.evaluation.plain.key,
            data_exponent=_data_exponent(task),
            weights=backend.weights_hash(trainer),
            seconds=stepping,
            evaluation_seconds=time.monotonic() - began - stepping,
            timed_steps=done,
        )
        return folder.read() or {}

    def missing_output(self, task: Task, record: Mapping[str, Any]) -> str:
        """Describe the missing outputs: rows of metrics, or evaluations in the precision of an arm added later."""
        if missing := super().missing_output(task, record):
            return missing
        return "was not evaluated in the precision of every arm" if self.evaluation.missing_output(record) else ""

    def passes(self, task: Task) -> Iterator[tuple[str | Recipe, float, float]]:
        """Yield recipes, each with its number of training steps and of evaluated batches."""
        first = task.steps if self.tail is None else self.tail[0]
        yield task.recipe, float(first + self.calibration), 0.0
        if self.tail is not None:
            yield self.tail[1], float(task.steps - first), 0.0
        shape, own = task.fingerprint["config"], self.evaluation.own
        batches = self.evaluation.n_bytes / (shape["batch"] * shape["sequence"])
        for item in {item.key: item for item in (own, self.evaluation.plain, *self.evaluation.others)}.values():
            calibrated = 0 if item.key == own.key else item.seeds * item.calibration
            yield item.recipe, float(calibrated), item.seeds * batches

    def _trainer(self, task: Task, corpus: Any) -> Trainer:
        """Return the trainer of an arm as it is before the first step."""
        trainer: Trainer
        backend = task.context.backend
        if self.weights_seed is None:
            routed = {} if isinstance(task.config, str) else {"config": task.config}
            trainer = backend.load(
                task.start_file, corpus, recipe=task.recipe, schedule=self.schedule, data_seed=task.seed, **routed
            )
        else:
            trainer = backend.new(
                task.config, task.recipe, corpus, seed=self.weights_seed, schedule=self.schedule, data_seed=task.seed
            )
        if self.perturb:
            trainer.perturb()
        if self.calibration:
            trainer.calibrate(self.calibration)
        return trainer


def _data_exponent(task: Task) -> float:
    """Return d ln(loss) / d ln(bytes) over the later half of the checkpoint's training; nan from scratch."""
    if task.start is None:
        return math.nan
    columns = RunFolder(task.start_file.parent).columns()
    return exponent(columns["tokens"], columns["loss"])


def exponent(seen: ArrayLike, losses: ArrayLike) -> float:
    """Return d ln(loss) / d ln(bytes seen), by least squares over the later half of a training curve.

    Parameters
    ----------
    seen, losses : array_like of float, shape (steps,)
        Number of bytes seen, and training loss, at every step.

    Returns
    -------
    float
        The exponent; nan for fewer than four steps.

    Examples
    --------
    >>> seen = np.arange(1, 101)
    >>> round(exponent(seen, 3.0 * seen**-0.25), 6)
    -0.25
    """
    x, y = np.log(np.asarray(seen, dtype=np.float64)), np.log(np.asarray(losses, dtype=np.float64))
    x, y = x[x.size // 2 :], y[y.size // 2 :]
    if x.size < 2 or x[0] == x[-1]:
        return math.nan
    x = x - x.mean()
    return float(np.sum(x * y) / np.sum(x * x))


def _with_recipe(trainer: Trainer, recipe: str | Recipe, task: Task, corpus: Any) -> Trainer:
    """Return a trainer that continues with another recipe, with the same bits as a run that is saved and resumed."""
    with tempfile.TemporaryDirectory(dir=task.folder.path) as folder:
        saved = Path(folder) / CHECKPOINT_FILE
        trainer.save(saved)
        found: Trainer = task.context.backend.load(saved, corpus, recipe=recipe)
        return found


def read_windows(folder: Path) -> dict[str, list[float]]:
    """Return the losses of all windows by the key of the forward pass; empty if none were stored.

    Raises
    ------
    StudyError
        If the file is damaged.
    """
    path = folder / WINDOWS_FILE
    if not path.is_file():
        return {}
    try:
        head, rows = read_csv(path)
        return {name: [float(row[place]) for row in rows] for place, name in enumerate(head)}
    except ValueError as error:
        raise StudyError(f"{path} is damaged ({error}); remove that folder and run again") from None
