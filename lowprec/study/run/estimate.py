"""What studies will take: one step and one forward pass of every recipe are timed, and counted.

Times are the processor's, of all threads, so what else runs does not count; two free cores take half of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .plan import Plan
from .tasks import Task


@dataclass(frozen=True)
class Rate:
    """Seconds of one core: a training step, and a forward pass of one batch."""

    step: float
    forward: float


@dataclass(frozen=True)
class Estimate:
    """What a study will take.

    Attributes
    ----------
    runs, checkpoints : int
        Runs of arms that are still to be done, and checkpoints.
    arm_minutes, checkpoint_minutes : float
        Minutes of one core.
    """

    runs: int
    checkpoints: int
    arm_minutes: float
    checkpoint_minutes: float


class Estimator:
    """Times what it has not timed yet, and remembers which shared checkpoints were counted already."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str, str], Rate] = {}
        self._counted: set[str] = set()

    def estimate(self, planned: Plan) -> Estimate:
        """Return what is still to be done of a study; a checkpoint that an earlier one has is not counted again."""
        arms = [task for task in planned.arms if not task.finished()]
        needed = {task.checkpoint for task in arms} - self._counted
        checkpoints = [task for task in planned.checkpoints if task.name in needed and not task.finished()]
        self._counted |= needed
        return Estimate(len(arms), len(checkpoints), *(self._minutes(tasks) for tasks in (arms, checkpoints)))

    def _minutes(self, tasks: Iterable[Task]) -> float:
        return sum(self._seconds(task) for task in tasks) / 60

    def _seconds(self, task: Task) -> float:
        rate = self.rate(task, task.recipe)
        first = task.steps if task.tail is None else task.tail[0]
        seconds = (first + task.calibration) * rate.step
        if task.tail is not None:
            seconds += (task.steps - first) * self.rate(task, task.tail[1]).step
        if (evaluation := task.evaluation) is None:
            return seconds
        shape = task.fingerprint["config"]
        batches = evaluation.n_bytes / (shape["batch"] * shape["sequence"])
        for item in {item.key: item for item in (evaluation.own, evaluation.plain, *evaluation.others)}.values():
            rate = self.rate(task, item.recipe)
            seconds += item.seeds * batches * rate.forward
            if item.key != evaluation.own.key:
                seconds += item.seeds * item.calibration * rate.step
        return seconds

    def rate(self, task: Task, recipe: Any) -> Rate:
        """Return the rate of a recipe with a task's configuration."""
        described = task.backend.describe(task.config, recipe)
        key = task.backend.name, repr(described["config"]), repr(described["recipe"])
        if key not in self._rates:
            self._rates[key] = _timed(task, recipe, described["config"])
        return self._rates[key]


def _timed(task: Task, recipe: Any, shape: dict[str, Any]) -> Rate:
    schedule = {**task.schedule, "warmup_steps": 0, "total_steps": 3}
    trainer = task.backend.new(
        task.config, recipe, task.backend.load_corpus(task.data), seed=0, schedule=schedule, data_seed=0
    )
    trainer.step()  # kernels are loaded, or compiled
    one = shape["batch"] * shape["sequence"]
    trainer.window_losses(n_bytes=one)
    began = time.process_time()
    trainer.step()
    stepped = time.process_time()
    trainer.window_losses(n_bytes=one)
    return Rate(stepped - began, time.process_time() - stepped)
