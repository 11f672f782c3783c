"""Compilation of the kernels that runs use, once before they start, and estimates of the time that runs take.

Numba compiles on one thread per process. If nothing is compiled yet, a second process compiles the kernels for the
recipes' multiplications and codecs, while this one compiles those for the rest of a step.

The estimate for a study uses one timed step and one forward pass of every recipe. Times are CPU times over all threads,
so that other processes do not affect them; on two free cores the wall time is half of the CPU time.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowprec.recipe import Recipe, recipes

from . import executors
from .plan import Plan
from .progress import Display
from .tasks import Task

_STORED = "bf16"  # the recipe with the parts common to all steps and without quantized multiplications


def compile_kernels(tasks: Sequence[Task], show: Display, *, in_process: bool = False) -> None:
    """Compile kernels by one small step of every recipe; workers then find them on disk.

    Parameters
    ----------
    tasks : sequence of Task
        Runs to prepare for.
    show : Display
        Display of the stage and of compiled kernels.
    in_process : bool
        Whether to compile in this process only.
    """
    from lowprec import _jit

    wanted = {task.recipe: task for task in tasks}
    with _jit.compiling(show.compiling):
        if not in_process and executors.cores() > 1 and wanted and _nothing_is_compiled():
            show.stage(f"before the runs, one step of {_STORED}; kernels of other recipes are compiled meanwhile")
            with _products_elsewhere(list(wanted)):
                _warm(_STORED, next(iter(wanted.values())))
        for number, (recipe, task) in enumerate(wanted.items(), 1):
            show.stage(f"before the runs, one step of each recipe: {task.recipe_name}, {number} of {len(wanted)}")
            _warm(recipe, task)


@functools.cache
def _warmed() -> set[tuple[str, str | Recipe]]:
    return set()


def _warm(recipe: str | Recipe, task: Task) -> None:
    key = task.context.backend.name, recipe
    if key in _warmed():
        return
    schedule = {"peak_lr": 1e-3, "warmup_steps": 0, "total_steps": 1, "curve": "constant"}
    backend = task.context.backend
    backend.new("nano", recipe, backend.load_corpus(task.context.data), seed=0, schedule=schedule).step()
    _warmed().add(key)


def _nothing_is_compiled() -> bool:
    """Return whether the cache on disk is enabled but lacks kernels of this version."""
    from lowprec import _jit

    if _jit.cache_folder is None:
        return False
    return not any(True for _ in _jit.cache_folder.rglob("*.nbi"))


@contextlib.contextmanager
def _products_elsewhere(given: Sequence[str | Recipe]) -> Iterator[None]:
    """Context manager: compile kernels of recipes in a second process; this process compiles any that fail there."""
    with executors.workers(1) as pool:
        done: Future[None] = pool.submit(multiply_once, given)
        yield
        done.exception()


def multiply_once(given: Sequence[str | Recipe]) -> None:
    """Run each recipe's codecs, and its multiplications for every kind of linear layer, once."""
    from lowprec.recipe.description import DIRECTIONS
    from lowprec.recipe.names import LINEARS

    x, w, dy = (np.ones(shape, np.float32) for shape in ((64, 256), (128, 256), (64, 128)))
    for recipe in given:
        bound = recipes.get(recipe).bind(seed=0)
        for layer in LINEARS:
            if bound.recipe.spec(layer).quantized:
                ops = bound.linear(layer)
                _, saved = ops.fprop(x, w)
                ops.dgrad(dy, saved)
                ops.wgrad(dy, saved)
        for direction in DIRECTIONS:
            if bound.changes(direction):
                bound.codec(direction).round_trip(x)


# --- how long runs take ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """CPU seconds of a training step, and of a forward pass of one batch."""

    step: float
    forward: float


@dataclass(frozen=True)
class Estimate:
    """Estimated time of a study.

    Attributes
    ----------
    runs, checkpoints : int
        Number of unfinished runs of arms, and of checkpoints.
    arm_minutes, checkpoint_minutes : float
        CPU minutes on one core.
    """

    runs: int
    checkpoints: int
    arm_minutes: float
    checkpoint_minutes: float


class Estimator:
    """Estimator of run times that times each recipe once and counts each shared checkpoint once."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str, str], Rate] = {}
        self._counted: set[str] = set()

    def estimate(self, planned: Plan) -> Estimate:
        """Return the estimate for the unfinished runs of a study, without checkpoints that were counted before."""
        arms = [task for task in planned.arms if not task.finished()]
        needed = {task.start_name for task in arms} - self._counted
        checkpoints = [task for task in planned.checkpoints if task.name in needed and not task.finished()]
        self._counted |= needed
        return Estimate(len(arms), len(checkpoints), *(self._minutes(tasks) for tasks in (arms, checkpoints)))

    def _minutes(self, tasks: Iterable[Task]) -> float:
        return sum(self._seconds(task) for task in tasks) / 60

    def _seconds(self, task: Task) -> float:
        found = [(self.rate(task, recipe), steps, batches) for recipe, steps, batches in task.work.passes(task)]
        return sum(steps * rate.step + batches * rate.forward for rate, steps, batches in found)

    def rate(self, task: Task, recipe: Any) -> Rate:
        """Return the rate of a recipe with a task's configuration."""
        described = task.context.backend.describe(task.config, recipe)
        key = task.context.backend.name, repr(described["config"]), repr(described["recipe"])
        if key not in self._rates:
            self._rates[key] = _timed(task, recipe, described["config"])
        return self._rates[key]


def _timed(task: Task, recipe: Any, shape: dict[str, Any]) -> Rate:
    schedule = {"peak_lr": 1e-3, "warmup_steps": 0, "total_steps": 3, "curve": "constant"}
    backend = task.context.backend
    corpus = backend.load_corpus(task.context.data)
    trainer = backend.new(task.config, recipe, corpus, seed=0, schedule=schedule, data_seed=0)
    trainer.step()  # kernels are loaded, or compiled
    one = shape["batch"] * shape["sequence"]
    trainer.window_losses(n_bytes=one)
    began = time.process_time()
    trainer.step()
    stepped = time.process_time()
    trainer.window_losses(n_bytes=one)
    return Rate(stepped - began, time.process_time() - stepped)
