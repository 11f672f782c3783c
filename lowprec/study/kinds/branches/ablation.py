"""An ablation is one question put to the trainer: its arms, its sizes and the expected answer, all of it data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from ...._arrays import whole
from ...design.arms import Arm, same_precision
from ...design.study import CheckpointSize, Study, count
from .. import kept

#: What is told apart, L[f](w) being the validation loss of final weights w in the forward precision f.
EFFECTS = {
    "forward": "L[arm](w_ref) / L[bf16](w_ref) - 1: rounding in the forward pass of weights that the reference trained",
    "training": "L[bf16](w_arm) / L[bf16](w_ref) - 1: what training in that precision did to the weights",
    "training_own": "L[arm](w_arm) / L[arm](w_ref) - 1: the same, seen in the arm's own precision",
    "total": "L[arm](w_arm) / L[bf16](w_ref) - 1: both together",
}
#: Checkpoints are a sample: a verdict that is published rests on so many at least.
LEAST_CHECKPOINTS = 4
#: Fields of a configuration in which a branch may differ from its checkpoint: they shape no parameter.
ROUTING = ("groups", "kept_groups", "route_scale")
#: What is measured of the arms of a branch, means over pairs.
BRANCH_METRICS = {
    **{f"{name}_percent": f"{words}, per cent" for name, words in EFFECTS.items()},
    "train_error_percent": "largest difference of the smoothed training losses, per cent",
    "diverged": "share of runs that diverged",
    "max_violation": "max(load) / mean(load) - 1 of the busiest expert, mean over the last quarter of the steps",
}


@dataclass(frozen=True, kw_only=True)
class Setting(CheckpointSize):
    """How large a study is.

    Parameters
    ----------
    config : str
        Model configuration of the catalogue.
    checkpoint_steps : int
        Steps of BF16 training before the branch; 0 for arms that train from scratch, each from the initial weights.
    branch_steps : int
        Steps of every arm, with the learning rate going linearly to 0.
    checkpoints : int
        Independent BF16 checkpoints, or initial weights (their seeds are 0, 1, ...).
    seeds : int
        Data seeds per checkpoint; checkpoints x seeds pairs per arm.
    learning_rate : float
        Peak rate; the checkpoint is trained at it and the branch starts from it.
    warmup_steps : int, optional
        Linear warm-up of the checkpoint, or of arms from scratch: by default 20 steps, or all if there are fewer.
    evaluation_bytes : int
        Held-out bytes that the final weights predict.
    without : str
        Names of arms that are left out at this size, with spaces between them.
    """

    config: str = field(kw_only=False)
    checkpoint_steps: int = count(0)
    branch_steps: int = count()
    checkpoints: int = count()
    seeds: int = count()
    evaluation_bytes: int = count(1, 65_536)
    without: str = ""

    @property
    def warmed_steps(self) -> str:
        """The field with the steps of the training that warms up."""
        return "branch_steps" if self.from_scratch else "checkpoint_steps"

    @property
    def from_scratch(self) -> bool:
        """Whether arms train from initial weights instead of branching from a checkpoint."""
        return self.checkpoint_steps == 0

    def __str__(self) -> str:
        if self.from_scratch:
            return f"{self.config}: {self.pairs} x {self.branch_steps} steps per arm from scratch"
        before = f"{self.config}: {self.checkpoints} x {self.checkpoint_steps} steps"
        return f"{before}, then {self.pairs} x {self.branch_steps} per arm"

    @property
    def pairs(self) -> int:
        """Pairs per arm: one for each checkpoint and data seed."""
        return self.checkpoints * self.seeds


@dataclass(frozen=True, kw_only=True)
class Ablation(Study):
    """One question with its arms, its two sizes and the expected finding.

    Parameters
    ----------
    margin : float
        Equivalence margin on the relative difference of the validation loss.
    expectations : tuple of Expectation
        Numbers that were expected, over metrics of `BRANCH_METRICS`.
    series : int
        Which data seeds its pairs have. Studies with the same number, sizes and arms would repeat each other's runs,
        and a noise floor measured once would be printed as often: every study of `ablations/` has its own.
    answer : {"training", "training_own", "forward", "total"}
        The effect of `EFFECTS` that answers the question, and that verdicts are on.
    baseline : str
        An arm that the others leave something out of, or add something to: what an ingredient does is the paired
        difference of two arms, so a table of these is added. None by default.
    """

    arms: tuple[Arm, ...]
    quick: Setting
    full: Setting
    margin: float = 0.0025
    series: int = 0
    answer: str = "training"
    baseline: str = ""
    kind: ClassVar[str] = "ablation"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "series", whole(f"ablation {self.name!r}", "series", self.series, 0))
        if self.answer not in EFFECTS:
            raise ValueError(f"ablation {self.name!r}: answer {self.answer!r}; allowed are {', '.join(EFFECTS)}")
        names = [arm.name for arm in self.arms]
        if self.baseline and self.baseline not in names:
            raise ValueError(f"ablation {self.name!r}: baseline {self.baseline!r} is none of its arms {names}")
        for arm in self.arms:
            if arm.role in ("repeat", "floor") and not same_precision(arm, self.reference):
                raise ValueError(f"arm {arm.name!r} is a {arm.role}: its recipe must be the reference's")
            scratch = self.quick.from_scratch and self.full.from_scratch
            if other := [name for name in arm.config if name not in ROUTING and not scratch]:
                raise ValueError(
                    f"arm {arm.name!r} changes the configuration ({', '.join(other)}): that goes with arms from "
                    f"scratch, checkpoint_steps=0; in a branch {', '.join(ROUTING)} may differ"
                )
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"ablation {self.name!r}: margin must lie between 0 and 1, not {self.margin!r}")

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is measured of the arms."""
        return BRANCH_METRICS

    @property
    def tier(self) -> str:
        """T3, or T4 if its arms train from scratch."""
        return "T4" if self.full.from_scratch else "T3"

    def at(self, setting: Setting) -> Ablation:
        """Return the question as it is put at a size: without the arms that are left out there.

        Raises
        ------
        ValueError
            If there is no such arm, or it is the reference.
        """
        left = setting.without.split()
        if odd := [name for name in left if name not in [arm.name for arm in self.arms if arm.role != "reference"]]:
            raise ValueError(f"ablation {self.name!r}: without {odd[0]!r}, which is none of its arms")
        if not left:
            return self
        return replace(
            self,
            arms=tuple(arm for arm in self.arms if arm.name not in left),
            expectations=tuple(item for item in self.expectations if not {item.arm, item.other} & {*left}),
            baseline="" if self.baseline in left else self.baseline,
        )


# --- its runs, and what study.json keeps of it -----------------------------------------------------------------------


def run_name(arm: Arm, checkpoint: int, seed: int) -> str:
    """Return the folder of a run below the study's."""
    return f"{arm.name}/c{checkpoint}-s{seed}"


def pairs_of(arm: Arm, setting: Setting) -> Iterator[tuple[int, int]]:
    """Yield (checkpoint, seed) of every pair of an arm."""
    for checkpoint in range(setting.checkpoints):
        for seed in range(setting.seeds if arm.pairs is None else min(arm.pairs, setting.seeds)):
            yield checkpoint, seed


def read_study(folder: Path) -> tuple[Ablation, Setting]:
    """Read `study.json` back.

    Raises
    ------
    StudyError
        If the folder holds no study, or a damaged one, or one that another version wrote.
    """
    return kept.read_kept(folder, Ablation, lambda size: Setting(**size))
