"""Plan of the runs of a branch study.

The protocol resolves differences of 0.05 % with a few runs, where training from scratch would require a hundred: all
arms start from the same BF16 checkpoint, see the same batches, and decay the learning rate to 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..design.arms import Arm
from ..run.backend import Backend, Forward
from ..run.branch import BF16, Branch, Evaluation
from ..run.plan import Plan, checkpoint_task, create_context
from ..run.tasks import RunContext, Task
from .sizes import Setting, pairs_of, run_name

#: Number of data seeds in one block of pairs; the checkpoints' seeds are smaller.
SEEDS_PER_BLOCK = 1_000_000
#: First data seed of the arms of checkpoint 0, and step to the next checkpoint; far above the checkpoints' own seeds.
SEEDS_PER_CHECKPOINT = 1000


def plan(study: Any, setting: Setting, folder: Path, data: str, backend: Backend | None) -> Plan:
    """Return the plan of the runs of an `Ablation` at a size, without writing anything.

    Raises
    ------
    ValueError
        If there are more than `SEEDS_PER_CHECKPOINT` seeds, or as in `PlannedStudy.plan`.
    """
    if setting.seeds > SEEDS_PER_CHECKPOINT:
        raise ValueError(f"seeds must be at most {SEEDS_PER_CHECKPOINT}, got {setting.seeds}")
    context, folder = create_context(data, backend), folder.resolve()
    checkpoints = {
        number: checkpoint_task(setting, number, context, folder.parent)
        for number in (() if setting.from_scratch else setting.checkpoint_numbers)
    }
    plain, forwards = context.backend.forward(BF16), _forwards(study, context.backend)
    arms = [
        _arm_task(
            arm, number, seed, study, setting, context, checkpoints.get(number), folder,
            _evaluation(arm, study, setting, forwards, plain),
        )
        for arm in study.arms
        for number, seed in pairs_of(arm, setting)
    ]  # fmt: skip
    # Pair by pair, so that all arms have equally many at any time; within a pair, runs with most evaluations first.
    arms.sort(key=_place)
    return Plan(study, setting, folder, study.to_json(setting), tuple(checkpoints.values()), tuple(arms))


def _place(task: Task) -> tuple[int, int, bool, bool]:
    assert isinstance(task.work, Branch)
    checkpoint, _, seed = task.name.rpartition("/c")[2].partition("-s")
    return int(seed), int(checkpoint), not task.work.evaluation.others, task.recipe == BF16


def _forwards(study: Any, backend: Backend) -> dict[str, Forward]:
    """Return the final forward precision of every arm, by name; arms with equal forward passes share one object."""
    found: dict[str, Forward] = {}
    by_key: dict[str, Forward] = {}
    for arm in (study.reference, *study.arms):
        forward = backend.forward(arm.precision if arm.tail is None else arm.tail.precision)
        found[arm.name] = by_key.setdefault(forward.key, forward)
    return found


def _evaluation(arm: Arm, study: Any, setting: Setting, forwards: dict[str, Forward], plain: Forward) -> Evaluation:
    """Return the precisions for an arm's final weights; a reference's weights are evaluated in those of all arms."""
    own = forwards[arm.name]
    others = {item.key: item for item in forwards.values() if item.key not in (own.key, plain.key)}
    return Evaluation(setting.evaluation_bytes, own, plain, tuple(others.values()) * study.is_reference(arm))


def _arm_task(
    arm: Arm, number: int, seed: int, study: Any, setting: Setting, context: RunContext, checkpoint: Task | None,
    folder: Path, evaluation: Evaluation,
) -> Task:  # fmt: skip
    """Return one run of an arm, from a checkpoint or, if `checkpoint` is None, from initial weights `number`."""
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
        "seed": study.seed_block * SEEDS_PER_BLOCK + SEEDS_PER_CHECKPOINT * (number + 1) + seed,
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
        run_name(arm, number, seed), folder, context, config, arm.precision, what["seed"], setting.branch_steps, work,
        {**what, **context.fingerprint}, checkpoint,
    )  # fmt: skip
