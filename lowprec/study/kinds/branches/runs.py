"""One run of branches as it ended: read from its folder, or what it lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...run.branch import BF16, read_windows
from ...run.store import RUN_FILE, RunFolder, StudyError


@dataclass(frozen=True, eq=False)
class PairRun:
    """One arm of one pair, as it ended.

    Attributes
    ----------
    checkpoint, seed : int
        Which pair.
    forward : str
        Key of the forward precision in which it ended.
    losses : mapping of str to float
        Validation loss of its weights by the key of a forward precision; "bf16" for BF16.
    curve : float64 array [steps]
        Training losses.
    seconds_per_step : float
        Of training.
    outcome : tuple
        All that a repeat must reproduce.
    max_violation : float
        Mean over the last quarter of the steps.
    data_exponent : float
        d ln(loss) / d ln(bytes) where it branched off; nan from scratch.
    lacks : str
        What is not on disk.
    windows : mapping of str to float64 array
        The losses of all held-out windows, by the same keys.
    """

    checkpoint: int
    seed: int
    forward: str
    losses: Mapping[str, float]
    curve: NDArray[np.float64]
    seconds_per_step: float
    outcome: tuple[bytes, str, float, float]
    max_violation: float = math.nan
    data_exponent: float = math.nan
    lacks: str = ""
    windows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Validation loss in the precision in which it ended."""
        return self.losses[self.forward]

    @property
    def loss_bf16(self) -> float:
        """Validation loss in BF16."""
        return self.losses[BF16]


def pair_run(checkpoint: int, seed: int, run: RunFolder, record: dict[str, Any]) -> PairRun:
    """Return a finished run as its folder has it; metrics that are incomplete are none.

    Raises
    ------
    StudyError
        If its files are damaged, or of a version that evaluated the arms' weights alone.
    """
    if "forwards" not in record:
        raise StudyError(
            f"{run.path / RUN_FILE} is of an earlier version, which did not evaluate the reference's weights in every "
            "arm's precision: forward and training effect cannot be told apart; run the study again with --fresh"
        )
    lacks = run.lacks(record)
    columns = {} if lacks else run.columns()
    try:
        steps = int(record.get("timed_steps") or 0)
        own, plain = float(record["validation_loss"]), float(record["validation_loss_bf16"])
        losses = {key: float(value) for key, value in record["forwards"].items()}
        windows = {key: np.array(values) for key, values in read_windows(run.path).items()}
        forward, bf16 = str(record["forward"]), str(record["plain_forward"])
        losses |= {forward: own, BF16: plain}
        windows |= {BF16: windows[bf16]} if bf16 in windows else {}
        seconds = float(record["seconds"]) / steps if steps else math.nan
        exponent = float(record["data_exponent"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StudyError(f"{run.path / RUN_FILE} is damaged ({error}); remove that folder and run again") from None
    return PairRun(
        checkpoint, seed, forward, losses, np.array(columns.get("loss", []), dtype=np.float64), seconds,
        (run.metrics.read_bytes() if run.metrics.is_file() else b"", str(record.get("weights")), own, plain),
        _late_mean(columns.get("max_violation", [])), exponent, f"{record.get('name')} {lacks}" if lacks else "",
        windows,
    )  # fmt: skip


def _late_mean(values: Sequence[float]) -> float:
    """Return the mean of the last quarter, nan if there is nothing."""
    return float(np.mean(values[-max(1, len(values) // 4) :])) if values else math.nan
