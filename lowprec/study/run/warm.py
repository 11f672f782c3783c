"""Kernels are compiled before runs start: once, on two cores, and only those that the runs need.

Numba compiles on one thread of a process. So where nothing is compiled yet, a process of its own compiles what the
multiplications and codecs of the recipes need, while this one compiles the rest of a step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from lowprec.recipe import Recipe, recipes

from . import executors
from .progress import Display
from .tasks import Task

_STORED = "bf16"  # the recipe whose step holds what every step does and no quantized multiplication


def warm(tasks: Sequence[Task], show: Display, *, alone: bool = False) -> None:
    """Run one small step of every recipe in this process: kernels are compiled once here, found on disk by workers.

    Parameters
    ----------
    tasks : sequence of Task
        Runs that are about to start.
    show : Display
        Where the step is told, and what is compiled.
    alone : bool
        Start no other process.
    """
    from lowprec import _jit

    wanted = {task.recipe: task for task in tasks}
    with _jit.compiling(show.compiling):
        if not alone and executors.cores() > 1 and wanted and _nothing_is_compiled():
            show.stage(f"before the runs, one step of {_STORED}; what other recipes need is compiled beside it")
            with _products_elsewhere(list(wanted)):
                _warm(_STORED, next(iter(wanted.values())))
        for number, (recipe, task) in enumerate(wanted.items(), 1):
            show.stage(f"before the runs, one step of each recipe: {task.recipe_name}, {number} of {len(wanted)}")
            _warm(recipe, task)


@functools.cache
def _warmed() -> set[tuple[str, str | Recipe]]:
    return set()


def _warm(recipe: str | Recipe, task: Task) -> None:
    key = task.backend.name, recipe
    if key in _warmed():
        return
    schedule = {"peak": 1e-3, **task.schedule, "warmup_steps": 0, "total_steps": 1}
    corpus = task.backend.load_corpus(task.data)
    task.backend.new("nano", recipe, corpus, seed=0, schedule=schedule).step()
    _warmed().add(key)


def _nothing_is_compiled() -> bool:
    """Tell whether this version's kernels are to be kept on disk and none of them is there."""
    from lowprec import _jit

    if _jit.cache_folder is None:
        return False
    return not any(True for _ in _jit.cache_folder.rglob("*.nbi"))


@contextlib.contextmanager
def _products_elsewhere(given: Sequence[str | Recipe]) -> Iterator[None]:
    """Let another process compile kernels of recipes meanwhile; what fails there is compiled, or raised, here."""
    with executors.workers(1) as pool:
        done: Future[None] = pool.submit(multiply_once, given)
        yield
        done.exception()


def multiply_once(given: Sequence[str | Recipe]) -> None:
    """Run the multiplications of one linear layer of every kind, and the codecs of the wires, once for each recipe."""
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
