"""Final weights, evaluated: in the precision in which they were trained, in BF16, and in those of other arms.

What is kept is the loss of every held-out window, since the text that is read is a sample too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import read_csv, to_csv, write_text
from .backend import STOCHASTIC_SEEDS, Forward, Trainer
from .store import StudyError

WINDOWS_FILE = "windows.csv"
BF16 = "bf16"


@dataclass(frozen=True)
class Evaluation:
    """What the final weights of a run are evaluated in.

    Parameters
    ----------
    n_bytes : int
        Held-out bytes to predict.
    own : Forward
        The precision in which the run ended.
    plain : Forward
        BF16.
    others : tuple of Forward
        Those of other arms.
    """

    n_bytes: int
    own: Forward
    plain: Forward
    others: tuple[Forward, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return what a run's fingerprint says of it; others come and go with the arms and are no part of it."""
        return {"bytes": self.n_bytes, "forward": self.own.key, "seeds": self.own.seeds}

    def lacks(self, record: Mapping[str, Any]) -> bool:
        """Tell whether a finished run misses one of the evaluations."""
        return not {item.key for item in self.others} <= set(record.get("forwards", {}))

    def nothing(self) -> dict[str, Any]:
        """Return the results of a run that diverged."""
        losses = {item.key: math.inf for item in (self.own, self.plain, *self.others)}
        return {"validation_loss": math.inf, "validation_loss_bf16": math.inf, "forwards": losses}

    def results(self, trainer: Trainer, seed: int, folder: Path) -> dict[str, Any]:
        """Evaluate, write the losses of all windows, and return what `run.json` keeps.

        Parameters
        ----------
        trainer : Trainer
            With the final weights.
        seed : int
            The run's: both runs of a pair have the same random bits.
        folder : Path
            Of the run.
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
        """Return the loss of every window, the mean over seeds."""
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


def read_windows(folder: Path) -> dict[str, list[float]]:
    """Return the losses of all windows by the key of the forward pass, empty if none were kept.

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
