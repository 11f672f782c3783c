"""An ablation is one question put to the trainer: its arms, its sizes and the expected answer, all of it data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...._arrays import positive, whole
from ...._files import safe_name
from ...design.arms import Arm, same_precision
from ...design.expectations import Expectation
from ...design.settings import WarmedUp, check_whole, fit_warmup
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


@dataclass(frozen=True)
class Setting(WarmedUp):
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

    config: str
    checkpoint_steps: int
    branch_steps: int
    checkpoints: int
    seeds: int
    learning_rate: float = 2e-3
    warmup_steps: int | None = None
    evaluation_bytes: int = 65_536
    without: str = ""

    def __post_init__(self) -> None:
        check_whole(self, checkpoint_steps=0, branch_steps=1, checkpoints=1, seeds=1, evaluation_bytes=1)
        fit_warmup(self, "branch_steps" if self.from_scratch else "checkpoint_steps")
        positive("", "learning_rate", self.learning_rate)

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


@dataclass(frozen=True)
class Ablation:
    """One question with its arms, its two sizes and the expected finding.

    Parameters
    ----------
    name : str
        Its name on the command line.
    question : str
        The question in one sentence.
    arms : tuple of Arm
        The arms, the reference among them.
    quick, full : Setting
        A size for minutes and a size for a result.
    expected : str
        The expected finding, written down before the first run.
    source : str
        Where it comes from.
    margin : float
        Equivalence margin on the relative difference of the validation loss.
    notes : str
        What the sizes cost and what they cannot show.
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

    name: str
    question: str
    arms: tuple[Arm, ...]
    quick: Setting
    full: Setting
    expected: str = ""
    source: str = ""
    margin: float = 0.0025
    notes: str = ""
    expectations: tuple[Expectation, ...] = ()
    series: int = 0
    answer: str = "training"
    baseline: str = ""

    def __post_init__(self) -> None:
        safe_name("ablation", self.name)
        object.__setattr__(self, "series", whole(f"ablation {self.name!r}", "series", self.series, 0))
        if self.answer not in EFFECTS:
            raise ValueError(f"ablation {self.name!r}: answer {self.answer!r}; allowed are {', '.join(EFFECTS)}")
        names = [arm.name for arm in self.arms]
        if self.baseline and self.baseline not in names:
            raise ValueError(f"ablation {self.name!r}: baseline {self.baseline!r} is none of its arms {names}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"ablation {self.name!r}: two arms are called {twice[0]!r}")
        references = [arm.name for arm in self.arms if arm.role == "reference"]
        if len(references) != 1:
            raise ValueError(f"ablation {self.name!r}: exactly one arm is the reference, got {references}")
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
        for item in self.expectations:
            for kind, name, allowed in (
                ("metric", item.metric, list(BRANCH_METRICS)),
                ("arm", item.arm, names),
                ("arm", item.other, ["", *names]),
            ):
                if name not in allowed:
                    raise ValueError(
                        f"ablation {self.name!r}: expectation {item.words!r} names the unknown {kind} {name!r}; "
                        f"allowed are {', '.join(filter(None, allowed))}"
                    )

    @property
    def tier(self) -> str:
        """T3, or T4 if its arms train from scratch."""
        return "T4" if self.full.from_scratch else "T3"

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.role == "reference")

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

    def arms_of(self, *roles: str) -> tuple[Arm, ...]:
        """Return the arms with one of these roles, in order."""
        return tuple(arm for arm in self.arms if arm.role in roles)


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
