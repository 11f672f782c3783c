"""Ablations: questions answered by training, as data (arms, sizes and expected answers), and the plans of their runs.

The protocol resolves differences of 0.05 % with a few runs, where training from scratch would require a hundred: all
arms start from the same BF16 checkpoint, see the same batches, and decay the learning rate to 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..._checks import check_int
from ..design.arms import Arm, same_precision
from ..design.study import PlannedStudy, Size
from ..run.backend import Backend, Forward
from ..run.branch import BF16, Branch, Evaluation
from ..run.plan import Plan, checkpoint_task, create_context
from ..run.tasks import RunContext, Task
from .sizes import EFFECTS, Setting, pairs_of, run_name

if TYPE_CHECKING:
    from ..report.results import Results

#: Number of data seeds in one block of pairs; the checkpoints' seeds are smaller.
SEEDS_PER_BLOCK = 1_000_000
#: First data seed of the arms of checkpoint 0, and step to the next checkpoint; far above the checkpoints' own seeds.
SEEDS_PER_CHECKPOINT = 1000

#: Fields of a configuration that a branch may change, because they do not affect the shapes of parameters.
ROUTING = ("expert_groups", "topk_groups", "route_scale")
#: Metrics of the arms of a branch study, means over pairs.
BRANCH_METRICS = {
    **{f"{name}_percent": f"{words}, per cent" for name, words in EFFECTS.items()},
    "train_error_percent": "largest difference of the smoothed training losses, per cent",
    "diverged": "share of runs that diverged",
    "max_violation": "max(load) / mean(load) - 1 of the busiest expert, mean over the last quarter of the steps",
}


@dataclass(frozen=True, kw_only=True)
class Ablation(PlannedStudy):
    """A question with its arms, two sizes and the expected finding, answered by training branches.

    Parameters
    ----------
    margin : float
        Equivalence margin on the relative difference of the validation loss.
    expectations : tuple of Expectation
        Expected ranges of `BRANCH_METRICS`.
    seed_block : int
        Block of data seeds. Studies with the same block, sizes and arms would have the same runs and report one noise
        floor several times, so every study of `ablations/` uses a different block.
    primary_effect : {"training", "training_own", "forward", "total"}
        The effect, from `EFFECTS`, that answers the question and determines verdicts.
    contrast_with : str
        Name of an arm to which others add one ingredient, or from which they remove one. The report then includes a
        table of paired differences from this arm. None by default.
    second_reference : str
        Name of the floor arm, to use it as a second reference: other arms are then compared with the mean of the two.
        This reduces noise if a change of one weight leads to an unrelated run, as in training from scratch: there, half
        of the variance of a pair is that of the reference.
    interim : bool
        Whether effects of complete pairs are shown while others run. False for a study that is to be read only once,
        at its registered size.
    """

    arms: tuple[Arm, ...]
    quick: Setting
    full: Setting
    margin: float = 0.0025
    seed_block: int = 0
    primary_effect: str = "training"
    contrast_with: str = ""
    second_reference: str = ""
    interim: bool = True
    kind: ClassVar[str] = "ablation"
    size_type: ClassVar[type[Size]] = Setting

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seed_block", check_int(f"ablation {self.name!r}", "seed_block", self.seed_block, 0))
        if self.primary_effect not in EFFECTS:
            raise ValueError(
                f"ablation {self.name!r}: primary_effect must be one of {', '.join(EFFECTS)}, got "
                f"{self.primary_effect!r}"
            )
        names = [arm.name for arm in self.arms]
        if self.contrast_with and self.contrast_with not in names:
            raise ValueError(
                f"ablation {self.name!r}: contrast_with must be one of its arms {names}, got {self.contrast_with!r}"
            )
        floors = [arm.name for arm in self.arms_of("floor")]
        if self.second_reference and self.second_reference not in floors:
            raise ValueError(
                f"ablation {self.name!r}: second_reference must be one of its floor arms {floors}, got "
                f"{self.second_reference!r}"
            )
        for arm in self.arms:
            if arm.role in ("repeat", "floor") and not same_precision(arm, self.reference):
                raise ValueError(
                    f"arm {arm.name!r}: recipe of a {arm.role} must be the reference's, got {arm.recipe_name}"
                )
            scratch = self.quick.from_scratch and self.full.from_scratch
            if other := [name for name in arm.config if name not in ROUTING and not scratch]:
                raise ValueError(
                    f"arm {arm.name!r}: config of a branch must change {', '.join(ROUTING)} only, got "
                    f"{', '.join(other)}; "
                    "arms from scratch (checkpoint_steps=0) may change more"
                )
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"ablation {self.name!r}: margin must be in (0, 1), got {self.margin!r}")

    def is_reference(self, arm: Arm) -> bool:
        """Return whether other arms are compared with this arm."""
        return arm.role == "reference" or arm.name == self.second_reference

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metrics that expectations may refer to."""
        return BRANCH_METRICS

    @property
    def tier(self) -> str:
        """Use of the trainer: "T3", or "T4" if arms train from scratch."""
        return "T4" if self.full.from_scratch else "T3"

    def at(self, setting: Setting) -> Ablation:
        """Return the study at a size, without the arms that the size leaves out.

        Raises
        ------
        ValueError
            If such an arm does not exist, or it is the reference.
        """
        left = setting.without.split()
        if odd := [name for name in left if name not in [arm.name for arm in self.arms if arm.role != "reference"]]:
            raise ValueError(f"ablation {self.name!r}: without must be names of its arms, got {odd[0]!r}")
        if not left:
            return self
        return replace(
            self,
            arms=tuple(arm for arm in self.arms if arm.name not in left),
            expectations=tuple(item for item in self.expectations if not {item.arm, item.other} & {*left}),
            contrast_with="" if self.contrast_with in left else self.contrast_with,
            second_reference="" if self.second_reference in left else self.second_reference,
        )

    def plan(self, size: Setting, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """Return the plan of the runs at a size, except those of arms that the size leaves out; nothing is written.

        Raises
        ------
        ValueError
            If there are more than `SEEDS_PER_CHECKPOINT` seeds, or as in `PlannedStudy.plan`.
        """
        if size.seeds > SEEDS_PER_CHECKPOINT:
            raise ValueError(f"seeds must be at most {SEEDS_PER_CHECKPOINT}, got {size.seeds}")
        study, context, folder = self.at(size), create_context(data, backend), folder.resolve()
        checkpoints = {
            number: checkpoint_task(size, number, context, folder.parent)
            for number in (() if size.from_scratch else size.checkpoint_numbers)
        }
        evaluations = study._evaluations(size, context.backend)
        arms = [
            study._task(arm, number, seed, size, context, checkpoints.get(number), folder, evaluations[arm.name])
            for arm in study.arms
            for number, seed in pairs_of(arm, size)
        ]
        # Pair by pair, so that all arms have equally many at any time; within a pair, runs with most evaluations first.
        arms.sort(key=_place)
        return Plan(study, size, folder, study.to_json(size), tuple(checkpoints.values()), tuple(arms))

    def _evaluations(self, size: Setting, backend: Backend) -> dict[str, Evaluation]:
        """Return the evaluation of each arm's final weights; references are evaluated in the precisions of all arms.

        Arms with equal forward passes share one object.
        """
        plain, by_key, own = backend.forward(BF16), dict[str, Forward](), dict[str, Forward]()
        for arm in (self.reference, *self.arms):
            forward = backend.forward(arm.precision if arm.tail is None else arm.tail.precision)
            own[arm.name] = by_key.setdefault(forward.key, forward)
        found = {}
        for arm in self.arms:
            mine = own[arm.name]
            others = (
                item for key, item in by_key.items() if self.is_reference(arm) and key not in (mine.key, plain.key)
            )
            found[arm.name] = Evaluation(size.evaluation_bytes, mine, plain, tuple(others))
        return found

    def _task(
        self, arm: Arm, number: int, seed: int, setting: Setting, context: RunContext, checkpoint: Task | None,
        folder: Path, evaluation: Evaluation,
    ) -> Task:  # fmt: skip
        """Return one run of an arm, from a checkpoint or, if it is None, from the initial weights of seed `number`."""
        backend = context.backend
        schedule = {
            "peak_lr": setting.learning_rate,
            "warmup_steps": setting.warmup_steps if checkpoint is None else 0,
            "total_steps": setting.branch_steps,
            "curve": "linear_to_zero",
        }
        config = backend.configuration(setting.config, arm.config) if arm.config else setting.config
        what: dict[str, Any] = {
            **backend.describe(config, arm.precision),
            "schedule": schedule,
            "seed": self.seed_block * SEEDS_PER_BLOCK + SEEDS_PER_CHECKPOINT * (number + 1) + seed,
            "perturb": arm.role == "floor",
            **({"weights": number} if checkpoint is None else {"checkpoint": checkpoint.fingerprint}),
            "evaluation": evaluation.describe(),
        }
        calibration = min(arm.calibration, setting.checkpoint_steps)
        if calibration:
            what["calibration"] = calibration
        tail = None
        if arm.tail is not None:
            tail = (arm.tail.start_step(setting.branch_steps), arm.tail.precision)
            what["tail"] = {"from_step": tail[0], "recipe": backend.describe(config, tail[1])["recipe"]}
        work = Branch(schedule, evaluation, what["perturb"], number if checkpoint is None else None, tail, calibration)
        return Task(
            run_name(arm, number, seed), folder, context, config, arm.precision, what["seed"], setting.branch_steps,
            work, {**what, **context.fingerprint}, checkpoint,
        )  # fmt: skip

    def results(self, size: Setting, folder: Path) -> Results:
        """Return the results of the finished runs."""
        from .report import results
        from .results import summarize

        return results(summarize(self, size, folder), folder)

    def interim_results(self, size: Setting, folder: Path, plot: bool) -> str:
        """Return the effects of the complete pairs as a sentence, and plot their curves."""
        from .curves import curves, interim_sentence
        from .results import summarize_interim

        if not self.interim:
            return ""
        study = summarize_interim(self, size, folder)
        if study is None:
            return ""
        if plot:
            curves(study).write(folder)
        return interim_sentence(study)


def _place(task: Task) -> tuple[int, int, bool, bool]:
    assert isinstance(task.work, Branch)
    checkpoint, _, seed = task.name.rpartition("/c")[2].partition("-s")
    return int(seed), int(checkpoint), not task.work.evaluation.others, task.recipe == BF16
