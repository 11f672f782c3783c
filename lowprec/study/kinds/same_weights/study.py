"""Studies of the same weights: every arm computes one batch forward and backward, and is compared with a reference.

Nothing is trained but the BF16 checkpoints, so nothing is noisy: the same bits come out every time, and a difference of
recipes is seen where branches of trainings would need hours. What it cannot show is where a training ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...._arrays import positive
from ...._files import safe_name
from ...design.arms import Arm
from ...design.expectations import Expectation
from ...design.settings import WarmedUp, check_whole, fit_warmup
from ...measurements.conditions import Healthy, Stress
from ...measurements.gradients import GradientComparison
from .. import kept

#: What is measured.
METRICS = GradientComparison.metrics


@dataclass(frozen=True)
class WeightsSetting(WarmedUp):
    """How large a study of the same weights is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the measurement.
    checkpoints : int
        Independent checkpoints.
    seeds : int
        Batches of held-out text per checkpoint.
    learning_rate : float
        Constant rate of the checkpoints' training.
    warmup_steps : int, optional
        Its linear warm-up: by default 20 steps, or all if there are fewer.
    """

    config: str = "nano"
    checkpoint_steps: int = 300
    checkpoints: int = 1
    seeds: int = 2
    learning_rate: float = 2e-3
    warmup_steps: int | None = None

    def __post_init__(self) -> None:
        check_whole(self, checkpoint_steps=1, checkpoints=1, seeds=1)
        fit_warmup(self, "checkpoint_steps")
        positive("", "learning_rate", self.learning_rate)

    def __str__(self) -> str:
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then {self.checkpoints * self.seeds} batches per arm"


@dataclass(frozen=True)
class SameWeights:
    """One question put to the same weights in several precisions.

    Parameters
    ----------
    name, question : str
        As in `Ablation`.
    arms : tuple of Arm
        The precisions; exactly one is the reference, which nothing but its own rounding separates from the truth.
    expectations : tuple of Expectation
        What was written down before the first run.
    published, source : str
        The published result, and where.
    quick, full : WeightsSetting
        Two sizes.
    stresses : tuple of Stress
        The conditions; every arm is measured under each.
    headline : str
        The metric of the figure and of the order.
    notes : str
        What this size cannot show.
    """

    name: str
    question: str
    arms: tuple[Arm, ...]
    expectations: tuple[Expectation, ...] = ()
    published: str = ""
    source: str = ""
    quick: WeightsSetting = WeightsSetting()
    full: WeightsSetting = WeightsSetting("pilot", checkpoint_steps=400, checkpoints=4, seeds=4)
    stresses: tuple[Stress, ...] = (Healthy(),)
    headline: str = "kl_percent"
    notes: str = ""
    tier: ClassVar[str] = "T2"

    def __post_init__(self) -> None:
        safe_name("study", self.name)
        for what, names in (("arm", [arm.name for arm in self.arms]), ("stress", [s.name for s in self.stresses])):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice or not names:
                raise ValueError(f"study {self.name!r}: every {what} needs a name of its own, got {names}")
        references = [arm.name for arm in self.arms if arm.role == "reference"]
        if len(references) != 1:
            raise ValueError(f"study {self.name!r}: exactly one arm is the reference, got {references}")
        if self.headline not in METRICS:
            raise ValueError(f"study {self.name!r}: headline {self.headline!r} is not one of {', '.join(METRICS)}")
        for arm in self.arms:
            if arm.tail is not None or arm.config:
                raise ValueError(f"arm {arm.name!r}: a tail or another configuration goes with branches, not one batch")
        arms, stresses = {arm.name for arm in self.arms}, {stress.name for stress in self.stresses}
        for item in self.expectations:
            for kind, name, known in (
                ("metric", item.metric, METRICS.keys()), ("arm", item.arm, arms), ("arm", item.other or item.arm, arms),
                ("stress", item.stress or self.stresses[0].name, stresses),
            ):  # fmt: skip
                if name not in known:
                    raise ValueError(
                        f"study {self.name!r}: expectation {item.words!r} names the unknown {kind} {name!r}"
                    )

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")


def describe(study: SameWeights, setting: WeightsSetting) -> dict[str, Any]:
    """Return what `study.json` keeps; conditions by their names alone."""
    return kept.describe(study, setting, stresses=[stress.name for stress in study.stresses])


def read_study(folder: Path) -> tuple[SameWeights, WeightsSetting]:
    """Read `study.json` back; conditions come back as their names alone.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    stresses = {"stresses": lambda names: tuple(map(Healthy, names))}
    return kept.read_kept(folder, SameWeights, lambda size: WeightsSetting(**size), **stresses)
