"""What a training run leaves in its folder: the curve, the checkpoint and a summary, at any moment whole.

The curve is written before the checkpoint, so that whenever a run is killed, there are at least as many rows as the
checkpoint has steps; rows beyond it are dropped on resuming and made again, with the same bits.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowprec.moe.run import checkpoint
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.saving import code_version
from lowprec.moe.run.trainer import StepRecord, Trainer

CHECKPOINT, METRICS, SUMMARY = "checkpoint.npz", "metrics.csv", "run.json"


class RunFiles:
    """The folder of one run.

    Parameters
    ----------
    out : path
        The folder; made, and proven to be writable, before the work and not after it.

    Raises
    ------
    ValueError
        If it cannot be written.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.folder = Path(out)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.write_atomically(self.folder / ".writable", b"")
            (self.folder / ".writable").unlink()
            for left in self.folder.glob(".*.part"):  # by a process that was killed
                left.unlink()
        except OSError as error:
            raise ValueError(f"output folder {os.fspath(out)!r} cannot be written: {error.strerror}") from None

    def save(
        self, trainer: Trainer, records: Sequence[dict[str, Any]], status: str = "running", **results: Any
    ) -> None:
        """Write curve, checkpoint and summary, each in one stroke.

        Raises
        ------
        ValueError
            If the disk is full, for example; then what was saved before is as it was.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, list(StepRecord.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        config = trainer.config
        summary = {
            "config": config.name,
            "recipe": trainer.recipe.name,
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
        }
        try:
            checkpoint.write_atomically(self.folder / METRICS, text.getvalue().encode())
            trainer.save(self.folder / CHECKPOINT)
            checkpoint.write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=2).encode() + b"\n")
        except OSError as error:
            raise ValueError(f"output folder {os.fspath(self.folder)!r} cannot be written: {error.strerror}") from None

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
        trainer = Trainer.load(path, data=planned.corpus, memory=planned.model.memory)
        for what in ("config", "recipe", "schedule", "seed", "data_seed"):
            if getattr(trainer, what) != getattr(planned, what):
                there, here = (_short(getattr(t, what)) for t in (trainer, planned))
                raise CheckpointError(f"checkpoint {os.fspath(path)!r}: its {what} is {there}, here it is {here}")
        there, here = (None if t.ema is None else t.ema.decay for t in (trainer, planned))
        if there != here:
            raise CheckpointError(
                f"checkpoint {os.fspath(path)!r}: its running mean has decay {there}, here it is {here}"
            )
        curve = os.fspath(self.folder / METRICS)
        try:
            with open(curve, newline="") as file:
                rows = [_row(row) for row in csv.DictReader(file)][: trainer.steps]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{curve!r} is damaged: {error}") from None
        if [row["step"] for row in rows] != list(range(1, trainer.steps + 1)):
            raise CheckpointError(f"{curve!r} is damaged: it lacks some of the {trainer.steps} steps")
        return trainer, rows


def _row(row: dict[str, str]) -> dict[str, Any]:
    whole = ("step", "tokens")
    return {name: int(row[name]) if name in whole else float(row[name]) for name in StepRecord.__dataclass_fields__}


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
