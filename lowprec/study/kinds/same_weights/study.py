"""Studies of the same weights: every arm computes one batch forward and backward, and is compared with a reference.

Nothing is trained but the BF16 checkpoints, so nothing is noisy: the same bits come out every time, and a difference of
recipes is seen where branches of trainings would need hours. What it cannot show is where a training ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...design.study import FULL, QUICK, CheckpointSize, Study, check_names
from ...measurements.conditions import Healthy, Stress
from ...measurements.gradients import GradientComparison
from .. import kept

#: What is measured.
METRICS = GradientComparison.metrics


@dataclass(frozen=True, kw_only=True)
class SameWeights(Study):
    """One question put to the same weights in several precisions.

    Parameters
    ----------
    stresses : tuple of Stress
        The conditions; every arm is measured under each.
    headline : str
        The metric of the figure and of the order.
    """

    quick: CheckpointSize = QUICK
    full: CheckpointSize = FULL
    stresses: tuple[Stress, ...] = (Healthy(),)
    headline: str = "kl_percent"
    kind: ClassVar[str] = "same_weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.name, "condition", [stress.name for stress in self.stresses])
        if self.headline not in METRICS:
            raise ValueError(f"study {self.name!r}: headline {self.headline!r} is not one of {', '.join(METRICS)}")
        for arm in self.arms:
            if arm.tail is not None or arm.config:
                raise ValueError(f"arm {arm.name!r}: a tail or another configuration goes with branches, not one batch")

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is measured."""
        return METRICS

    def conditions(self, metric: str) -> Sequence[str]:
        """Return the conditions, of which the first is the default."""
        return ("", *(stress.name for stress in self.stresses))


def describe(study: SameWeights, setting: CheckpointSize) -> dict[str, Any]:
    """Return what `study.json` keeps; conditions by their names alone."""
    return kept.describe(study, setting, stresses=[stress.name for stress in study.stresses])


def read_study(folder: Path) -> tuple[SameWeights, CheckpointSize]:
    """Read `study.json` back; conditions come back as their names alone.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    stresses = {"stresses": lambda names: tuple(map(Healthy, names))}
    return kept.read_kept(folder, SameWeights, lambda size: CheckpointSize(**size), **stresses)
