"""What a training run leaves in its folder: the curve, the checkpoint and a summary, at any moment whole.

The curve is written before the checkpoint, so that whenever a run is killed, there are at least as many rows as the
checkpoint has steps; rows beyond it are dropped on resuming and made again, with the same bits.
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
    read_csv,
    read_json,
    remove_parts,
    set_aside,
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
#: What curves of earlier versions lack.
_ABSENT = {"nonfinite_operands": "nan"}


@contextlib.contextmanager
def run_files(out: str | os.PathLike[str], *, resume: bool = False, fresh: bool = False) -> Iterator[RunFiles]:
    """Have the folder of a run for oneself: made, proven to be writable, and of nothing that would be lost.

    Parameters
    ----------
    out : path
        The folder.
    resume : bool
        A run that is there goes on.
    fresh : bool
        A run that is there is moved aside, to ``<out>.1`` or the next number that is free.

    Raises
    ------
    ValueError
        If it cannot be written, another run is working in it, or one is there and neither `resume` nor `fresh` says
        what becomes of it.
    """
    folder = make_folder(out)
    if fresh and what_is_there(folder) is not None:
        with locked(folder):  # not from under a run that is working
            set_aside(folder)
        make_folder(folder)
    with locked(folder):
        refuse_to_overwrite(folder, resume=resume)
        remove_parts(folder)
        yield RunFiles(folder)


def what_is_there(folder: str | os.PathLike[str]) -> str | None:
    """Return a run that a folder holds, in words, None if it holds none."""
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
class KeptRun:
    """What the folder of a run says of it.

    Attributes
    ----------
    name : str
        The folder's.
    summary : dict
        `run.json`: configuration, recipe, seed, steps, status, and the validation loss of a run that has ended.
    metrics : pandas.DataFrame
        One row a step.
    """

    name: str
    summary: dict[str, Any]
    metrics: pandas.DataFrame


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a training run by itself: its curve and its summary, of all that runs leave."""
    return (folder / METRICS).is_file() and (folder / SUMMARY).is_file()


def read_run(folder: Path) -> KeptRun:
    """Read what a run left in its folder.

    Raises
    ------
    ValueError
        If it holds no run, or a damaged one.
    """
    import pandas

    if not is_run(folder):
        raise ValueError(f"{os.fspath(folder)!r} holds no training run ({METRICS} and {SUMMARY} are needed)")
    try:
        summary = read_json(folder / SUMMARY)
        head, rows = read_csv(folder / METRICS)
        metrics = pandas.DataFrame([_row(dict(zip(head, row, strict=True))) for row in rows], columns=head)
        if missing := [key for key in ("config", "recipe", "seed", "steps", "status") if key not in summary]:
            raise ValueError(f"{SUMMARY} lacks {missing[0]!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{os.fspath(folder)!r} holds a damaged run: {error}") from None
    return KeptRun(folder.resolve().name, summary, metrics)


def refuse_to_overwrite(folder: str | os.PathLike[str], *, resume: bool = False, fresh: bool = False) -> None:
    """Raise a ValueError if a folder holds a run of which nobody says what becomes of it."""
    if resume and fresh:
        raise ValueError("resume and fresh exclude each other: one goes on with what is there, one moves it aside")
    there = what_is_there(folder)
    if there is not None and not (resume or fresh):
        raise ValueError(
            f"output folder {os.fspath(folder)!r} holds a run ({there}): resume goes on with it, fresh moves it aside"
        )


class RunFiles:
    """The files of one run, in a folder that is there; see `run_files`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, trainer: Trainer, records: Sequence[dict[str, Any]], status: str = "running", **results: Any
    ) -> None:
        """Write curve, checkpoint and summary, each in one stroke.

        Raises
        ------
        ValueError
            If the disk is full, for example; then what was saved before is as it was.
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
            "learning_rate": trainer.schedule.peak,
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
        """Return the trainer of the checkpoint and its curve, or the planned one and none if nothing was saved.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged, or of a run with other choices; the message says which.
        """
        path = self.folder / CHECKPOINT
        if not path.exists():
            return planned, []
        place = f"checkpoint {os.fspath(path)!r}"
        trainer = saving.load(
            Trainer, path, recipe=None, schedule=None, data_seed=None, data=planned.corpus,
            memory=planned.model.memory, config=None, check=False,
        )  # fmt: skip
        for what in ("config", "recipe", "schedule", "seed", "data_seed"):
            if getattr(trainer, what) != getattr(planned, what):
                there, here = (_short(getattr(t, what)) for t in (trainer, planned))
                if what == "recipe":
                    here = f"{here}: {_changes(trainer.recipe, planned.recipe)}; fresh moves the run aside"
                raise CheckpointError(f"{place}: its {what} is {there}, here it is {here}")
        there, here = (None if t.ema is None else t.ema.decay for t in (trainer, planned))
        if there != here:
            raise CheckpointError(f"{place}: its running mean has decay {there}, here it is {here}")
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
class Stop:
    """Whether somebody pressed Ctrl-C."""

    asked: bool = False


@contextlib.contextmanager
def interruptible() -> Iterator[Stop]:
    """Put Ctrl-C off until the step is done: weights changed by half a step are good for nothing.

    A second one is obeyed at once. Outside the main thread signals are somebody else's.
    """
    stop = Stop()
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
