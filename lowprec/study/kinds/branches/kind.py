"""Branches, as a kind of study: how one is planned and reported.

The protocol is the one that resolves differences of 0.05 % with a few runs where training from scratch needs a
hundred: all arms start from the same BF16 checkpoint, see the same batches, and decay the learning rate to 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ...design.arms import Arm
from ...run.backend import Backend
from ...run.plan import Common, Plan, checkpoint_task
from ...run.tasks import Task
from ..kind import Report, TrainingKind
from .ablation import Ablation, Setting, describe, pairs_of, run_name

#: Arms of one checkpoint have data seeds from here on, this far apart: far from those of the checkpoints themselves.
SEEDS_PER_CHECKPOINT = 1000


class BranchKind(TrainingKind[Ablation, Setting]):
    """Arms that branch off from BF16 checkpoints, or train from scratch, in pairs with the reference."""

    name: ClassVar[str] = "ablation"
    study: ClassVar[type] = Ablation

    def plan(
        self, study: Ablation, setting: Setting, folder: Path, *, data: str = "stdlib", backend: Backend | None = None
    ) -> Plan:
        """List the runs of a study; nothing is written.

        Raises
        ------
        UnknownNameError
            If a configuration or recipe is not in its catalogue.
        ValueError
            If the data cannot be used, or there are more seeds than places for them.
        """
        if setting.seeds > SEEDS_PER_CHECKPOINT:
            raise ValueError(f"seeds must be at most {SEEDS_PER_CHECKPOINT}, not {setting.seeds}")
        if not setting.from_scratch and setting.warmup_steps > setting.checkpoint_steps:
            raise ValueError(
                f"warmup_steps={setting.warmup_steps} are more than checkpoint_steps={setting.checkpoint_steps}"
            )
        common, folder = Common.of(data, backend), folder.resolve()
        checkpoints = [
            checkpoint_task(setting, number, common, folder)
            for number in range(0 if setting.from_scratch else setting.checkpoints)
        ]
        arms = [
            _arm_task(arm, number, seed, setting, common, checkpoints[number] if checkpoints else None, folder)
            for arm in study.arms
            for number, seed in pairs_of(arm, setting)
        ]
        # Whole pairs early, and within a pair the arms that emulate (and take long) before the plain ones.
        arms.sort(key=lambda task: (task.name.rpartition("-s")[2].zfill(4), task.recipe_name == "bf16"))
        description = {"kind": self.name, **describe(study, setting)}
        return Plan(study, setting, folder, description, tuple(checkpoints), tuple(arms))

    def report(self, folder: Path, plot: bool) -> Report:
        """Write everything about a finished study into its folder."""
        from .report import report

        return report(folder, plot)


def _arm_task(
    arm: Arm, number: int, seed: int, setting: Setting, common: Common, checkpoint: Task | None, folder: Path
) -> Task:
    """Return one run of an arm, from a checkpoint or, without one, from initial weights `number`."""
    backend = common.backend
    schedule = {
        "peak": setting.learning_rate,
        "warmup_steps": setting.warmup_steps if checkpoint is None else 0,
        "total_steps": setting.branch_steps,
        "kind": "linear_to_zero",
    }
    config = backend.configuration(setting.config, arm.config) if arm.config else setting.config
    what: dict[str, Any] = {
        **backend.describe(config, arm.precision),
        "schedule": schedule,
        "seed": SEEDS_PER_CHECKPOINT * (number + 1) + seed,
        "perturb": arm.role == "floor",
        **({"weights": number} if checkpoint is None else {"checkpoint": checkpoint.fingerprint}),
    }
    calibration = min(arm.calibration, setting.checkpoint_steps)
    if calibration:
        what["calibration"] = calibration
    tail = None
    if arm.tail is not None:
        tail = (arm.tail.begins(setting.branch_steps), arm.tail.precision)
        what["tail"] = {"from_step": tail[0], **backend.describe(config, tail[1])["recipe"]}
    return Task(
        run_name(arm, number, seed), folder, backend, config, arm.precision, common.data, what["seed"],
        setting.branch_steps, schedule, {**what, **common.fingerprint}, "" if checkpoint is None else checkpoint.name,
        what["perturb"], weights_seed=number if checkpoint is None else None, tail=tail, calibration=calibration,
    )  # fmt: skip
