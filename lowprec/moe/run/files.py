"""Files of a training run in its folder: metrics, checkpoint and summary, each complete at any moment.

Metrics are written before the checkpoint, so that a killed run has at least as many rows as the checkpoint has steps;
resuming drops later rows and recomputes them, with the same bits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowprec._files import (
    locked,
    make_folder,
    move_to_backup,
    read_csv,
    read_json,
    remove_temporary_files,
    to_csv,
    write_json,
    write_text,
)
from lowprec.definitions import short_hash
from lowprec.definitions.code import code_hash
from lowprec.moe.run import saving
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.saving import code_version
from lowprec.moe.run.step import StepRecord
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import Recipe
from lowprec.recipe.data import differences

if TYPE_CHECKING:
    import pandas

CHECKPOINT, METRICS, SUMMARY = "checkpoint.npz", "metrics.csv", "run.json"
_WHOLE = ("step", "tokens", "nonfinite_operands")
#: Columns that curves of earlier versions lack.
_ABSENT = {"nonfinite_operands": "nan"}


@contextlib.contextmanager
def run_files(out: str | os.PathLike[str], *, resume: bool = False, restart: bool = False) -> Iterator[RunFiles]:
    """Context manager: create and lock a run folder, check that it is writable, and refuse to overwrite a run.

    Parameters
    ----------
    out : path
        Folder of the run.
    resume : bool
        Resume an existing run.
    restart : bool
        Rename an existing run to ``<out>.1`` or the next free number.

    Raises
    ------
    ValueError
        If the folder cannot be written, is in use by another run, or has a run and neither `resume` nor `restart` is
        set.
    """
    folder = make_folder(out)
    if restart and describe_existing_run(folder) is not None:
        with locked(folder):  # never while another run uses the folder
            move_to_backup(folder)
        make_folder(folder)
    with locked(folder):
        refuse_to_overwrite(folder, resume=resume)
        remove_temporary_files(folder)
        yield RunFiles(folder)


def describe_existing_run(folder: str | os.PathLike[str]) -> str | None:
    """Return a description of the run that a folder holds, or None if there is no run."""
    path = Path(folder)
    left = [name for name in (SUMMARY, CHECKPOINT, METRICS) if (path / name).exists()]
    if not left:
        return None
    try:
        run = read_json(path / SUMMARY)
        return f"{run['config']} {run['recipe']}, seed {run['seed']}, {run['steps']} steps, {run['status']}"
    except (OSError, ValueError, KeyError):
        return " and ".join(left)


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A saved run, as read from its folder.

    Attributes
    ----------
    name : str
        Name of the folder.
    summary : dict
        Content of `run.json`: configuration, recipe, seed, steps, status, and the validation loss of a finished run.
    metrics : pandas.DataFrame
        Metrics, one row per step.
    """

    name: str
    summary: dict[str, Any]
    metrics: pandas.DataFrame


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a training run: its metrics and its summary."""
    return (folder / METRICS).is_file() and (folder / SUMMARY).is_file()


def read_run(folder: Path) -> SavedRun:
    """Read a saved run: summary and metrics.

    Raises
    ------
    ValueError
        If the folder has no run, or a damaged one.
    """
    import pandas

    if not is_run(folder):
        raise ValueError(f"{os.fspath(folder)!r} holds no training run; one has {METRICS} and {SUMMARY}")
    try:
        summary = read_json(folder / SUMMARY)
        head, rows = read_csv(folder / METRICS)
        metrics = pandas.DataFrame([_row(dict(zip(head, row, strict=True))) for row in rows], columns=head)
        if missing := [key for key in ("config", "recipe", "seed", "steps", "status") if key not in summary]:
            raise ValueError(f"{SUMMARY} lacks {missing[0]!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{os.fspath(folder)!r} holds a damaged run: {error}") from None
    return SavedRun(folder.resolve().name, summary, metrics)


def refuse_to_overwrite(folder: str | os.PathLike[str], *, resume: bool = False, restart: bool = False) -> None:
    """Raise a ValueError if a folder holds a run, and neither `resume` nor `restart` is set."""
    if resume and restart:
        raise ValueError("resume and restart are mutually exclusive: one continues the run, one renames it")
    there = describe_existing_run(folder)
    if there is not None and not (resume or restart):
        raise ValueError(
            f"output folder {os.fspath(folder)!r} holds a run ({there}); resume continues it, restart renames it"
        )


class RunFiles:
    """The files of one run, in an existing folder; see `run_files`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, trainer: Trainer, records: Sequence[dict[str, Any]], status: str = "running", **results: Any
    ) -> None:
        """Write metrics, checkpoint and summary, each atomically.

        Raises
        ------
        ValueError
            If a file cannot be written, for example because the disk is full. That file is then unchanged.
        """
        head = list(StepRecord.__dataclass_fields__)
        config = trainer.config
        summary = {
            "config": config.name,
            "recipe": trainer.recipe.name,
            "recipe_hash": short_hash(trainer.recipe),
            "status": status,
            "steps": trainer.steps,
            "seed": int(trainer.seed),
            "learning_rate": trainer.schedule.peak_lr,
            "corpus": {
                "name": trainer.corpus.name,
                "origin": trainer.corpus.origin,
                "sha256": trainer.corpus.sha256,
                "passes": trainer.steps * config.batch * config.sequence / trainer.corpus.train.size,
            },
            **results,
            "code": code_version(),
            "code_hash": code_hash(),
        }
        try:
            write_text(self.folder / METRICS, to_csv(head, [[record[name] for name in head] for record in records]))
            trainer.save(self.folder / CHECKPOINT)
            write_json(self.folder / SUMMARY, summary)
        except OSError as error:
            raise ValueError(f"{error.filename!r} cannot be written: {error.strerror}") from None

    def resume(self, planned: Trainer) -> tuple[Trainer, list[dict[str, Any]]]:
        """Return the trainer and metrics of the checkpoint, or `planned` and no metrics if nothing was saved.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged, or of a run with other arguments; the message names them.
        """
        path = self.folder / CHECKPOINT
        if not path.exists():
            return planned, []
        place = f"checkpoint {os.fspath(path)!r}"
        trainer = saving.load(
            Trainer, path, recipe=None, schedule=None, data_seed=None, data=planned.corpus,
            recompute=planned.model.recompute, config=None, check=False,
        )  # fmt: skip
        for what in ("config", "recipe", "schedule", "seed", "data_seed"):
            if getattr(trainer, what) != getattr(planned, what):
                there, here = (_short(getattr(t, what)) for t in (trainer, planned))
                if what == "recipe":
                    here = f"{here}: {_changes(trainer.recipe, planned.recipe)}; restart renames the run"
                raise CheckpointError(f"{place}: {what} must be {there}, as in the checkpoint, got {here}")
        there, here = (None if t.ema is None else t.ema.decay for t in (trainer, planned))
        if there != here:
            raise CheckpointError(f"{place}: ema must be {there}, as in the checkpoint, got {here}")
        curve = os.fspath(self.folder / METRICS)
        try:
            head, table = read_csv(curve)
            rows = [_row(dict(zip(head, row, strict=True))) for row in table][: trainer.steps]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{curve!r} is damaged: {error}") from None
        if [row["step"] for row in rows] != list(range(1, trainer.steps + 1)):
            raise CheckpointError(f"{curve!r} is damaged: it lacks some of the {trainer.steps} steps")
        return trainer, rows


def _row(row: dict[str, str]) -> dict[str, Any]:
    row = _ABSENT | row
    return {
        name: int(row[name]) if name in _WHOLE and row[name] != "nan" else float(row[name])
        for name in StepRecord.__dataclass_fields__
    }


def _changes(then: Recipe, now: Recipe) -> str:
    """Return the fields in which two recipes differ."""
    lines = differences(then, now)
    return "; ".join(lines[:6]) + (f"; and {len(lines) - 6} more" if len(lines) > 6 else "")


def _short(value: Any) -> Any:
    return getattr(value, "name", value)


@dataclass
class InterruptFlag:
    """Flag that is true once Ctrl-C was pressed."""

    asked: bool = False


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[InterruptFlag]:
    """Context manager: defer Ctrl-C to the end of the current step, as half of an update would corrupt the weights.

    A second Ctrl-C interrupts immediately. Outside the main thread this has no effect.
    """
    stop = InterruptFlag()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
