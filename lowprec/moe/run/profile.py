"""Time and memory of training: phases of a step, peak memory, bytes saved for the backward pass."""

from __future__ import annotations

import functools
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowprec._threads import get_num_threads, set_num_threads
from lowprec.moe.data.corpus import Corpus
from lowprec.moe.model.attention import LatentAttention
from lowprec.moe.model.block import Block
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.layers import Embedding, FeedForward, RMSNorm
from lowprec.moe.model.memory import RecomputePolicy, recompute_policies
from lowprec.moe.model.model import Model
from lowprec.moe.model.routing import MixtureOfExperts
from lowprec.moe.run.optim import AdamW
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import Recipe
from lowprec.recipe.operands import TensorOperand
from lowprec.scaling.quantize import Quantized

#: Phases of a step, in the order of tables. The time of a method excludes that of other methods listed here.
_PHASES: tuple[tuple[type, tuple[str, ...], str], ...] = (
    (TensorOperand, ("quantize",), "quantize"),
    (Quantized, ("dequantize",), "quantize"),
    (LatentAttention, ("forward", "backward"), "attention"),
    (FeedForward, ("forward", "backward"), "SwiGLU"),
    (MixtureOfExperts, ("forward", "backward"), "routing"),
    (RMSNorm, ("forward", "backward"), "norms"),
    (Block, ("forward", "backward"), "residual stream"),
    (Embedding, ("forward", "backward"), "embedding"),
    (AdamW, ("update",), "optimizer"),
)
GEMMS = ("fprop", "dgrad", "wgrad")
#: Names of all phases; "rest" is the remainder, including the loss and Python.
PHASES = (*GEMMS, *dict.fromkeys(name for *_, name in _PHASES), "rest")


class PhaseTimer:
    """Clock that adds up this thread's processor time by phase; a nested phase pauses the outer one.

    It measures one thread: work of other threads is not counted.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._stack = ["rest"]
        self._since = time.thread_time()

    def _count(self) -> None:
        now = time.thread_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def timed(self, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls a method and adds the time of the call to a phase."""

        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._count()
            self._stack.append(phase)
            try:
                return method(*args, **kwargs)
            finally:
                self._count()
                self._stack.pop()

        return wrapper

    def lap(self) -> dict[str, float]:
        """Return the seconds by phase since the last lap, and start over."""
        self._count()
        seconds, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return seconds


@contextmanager
def phases(*models: Model) -> Iterator[PhaseTimer]:
    """Context manager: time the phases of all passes of the given models.

    Examples
    --------
    >>> model = Model("nano", "bf16")
    >>> with phases(model) as clock:
    ...     _ = model.loss(np.zeros((1, 9), np.uint8))
    >>> spent = clock.lap()
    >>> spent["attention"] > 0, spent["dgrad"], spent["optimizer"]
    (True, 0.0, 0.0)
    """
    clock = PhaseTimer()
    kinds = {type(model.recipe.linear("head")) for model in models}
    places = [(owner, name, phase) for owner, names, phase in _PHASES for name in names]
    places += [(kind, name, name) for kind in kinds for name in GEMMS]
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in places]
    try:
        for owner, name, phase in places:
            setattr(owner, name, clock.timed(phase, owner.__dict__[name]))
        clock.lap()
        yield clock
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


@dataclass(frozen=True)
class TrainingSpeed:
    """Speed and memory of training with one recipe.

    Attributes
    ----------
    recipe : str
        Name of the recipe.
    seconds : float
        Median wall time of a step, in seconds.
    tokens_per_second : float
        Number of bytes in a step divided by that time.
    peak_bytes : int
        Peak memory of NumPy's arrays and Python's objects in a step, model and optimizer included.
    page_faults : float
        Number of minor page faults per step, after the first steps.
    phases : dict of str to float
        Median processor seconds by phase on one thread.
    """

    recipe: str
    seconds: float
    tokens_per_second: float
    peak_bytes: int
    page_faults: float
    phases: dict[str, float] = field(repr=False)


def training_speed(
    config: MoEConfig, recipes: Sequence[Recipe], corpus: Corpus, *, steps: int = 5, warmup: int = 3
) -> list[TrainingSpeed]:
    """Time training steps of several recipes in turn, and then the phases of their steps on one thread.

    Parameters
    ----------
    config : MoEConfig
        Shape of the model.
    recipes : sequence of Recipe
        Recipes to compare.
    corpus : Corpus
        Training text.
    steps, warmup : int
        Number of timed steps, and of untimed steps before them.

    Returns
    -------
    list of TrainingSpeed
        One result for each recipe.
    """
    trainers, peaks = [], []
    for recipe in recipes:
        tracemalloc.start()
        trainers.append(_trainer(config, recipe, corpus))
        trainers[-1].step()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    seconds: list[list[float]] = [[] for _ in recipes]
    laps: list[list[dict[str, float]]] = [[] for _ in recipes]
    faults = [0] * len(recipes)
    for i in range(warmup + steps):
        for j, trainer in enumerate(trainers):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            begin = time.perf_counter()
            trainer.step()
            if i >= warmup:
                seconds[j].append(time.perf_counter() - begin)
                faults[j] += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    threads = get_num_threads()
    set_num_threads(1)
    try:
        with phases(*(trainer.model for trainer in trainers)) as clock:
            for _ in range(steps):
                for j, trainer in enumerate(trainers):
                    clock.lap()
                    trainer.step()
                    laps[j].append(clock.lap())
    finally:
        set_num_threads(threads)
    size = config.batch * config.sequence
    return [
        TrainingSpeed(
            recipe.name,
            statistics.median(seconds[j]),
            size / statistics.median(seconds[j]),
            peaks[j],
            faults[j] / steps,
            {name: statistics.median(lap[name] for lap in laps[j]) for name in PHASES},
        )
        for j, recipe in enumerate(recipes)
    ]


def _trainer(config: MoEConfig, recipe: Recipe, corpus: Corpus) -> Trainer:
    return Trainer(config, recipe, corpus, seed=0, schedule=Schedule(peak_lr=1e-3, warmup_steps=5, total_steps=1000))


@dataclass(frozen=True)
class ActivationMemory:
    """Memory and time of one recompute policy.

    Attributes
    ----------
    recipe, policy : str
        Names of recipe and policy.
    bytes_per_token : float
        Number of bytes of activations saved for the backward pass, per token.
    seconds : float
        Processor time of a forward and backward pass on one thread, the minimum of the rounds.
    kinds : dict of str to float
        Number of bytes per token by kind.
    """

    recipe: str
    policy: str
    bytes_per_token: float
    seconds: float
    kinds: dict[str, float] = field(repr=False)


def activation_memory(
    config: MoEConfig,
    recipes: Sequence[Recipe],
    policies: Sequence[RecomputePolicy | str] | None = None,
    *,
    rounds: int = 3,
) -> list[ActivationMemory]:
    """Measure all policies with all recipes, on random bytes for one step.

    Parameters
    ----------
    config : MoEConfig
        Shape of the model.
    recipes : sequence of Recipe
        Recipes to measure.
    policies : sequence of RecomputePolicy or str, optional
        Policies to measure, by default all of the catalogue.
    rounds : int
        Number of timed passes; with 0, `seconds` is NaN.

    Returns
    -------
    list of ActivationMemory
        Results, recipe by recipe and policy by policy.
    """
    chosen = [recompute_policies.get(policy) for policy in policies or recompute_policies.names()]
    tokens = np.random.default_rng(0).integers(
        0, config.vocabulary, (config.batch, config.sequence + 1), dtype=np.uint8
    )
    size = config.batch * config.sequence
    models = [(recipe, policy, Model(config, recipe, recompute=policy)) for recipe in recipes for policy in chosen]
    kept = [model.activation_bytes(tokens) for *_, model in models]
    seconds: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for times, (*_, model) in zip(seconds, models, strict=True):
            begin = time.process_time()
            model.loss_and_grads(tokens)
            times.append(time.process_time() - begin)
    return [
        ActivationMemory(
            recipe.name,
            policy.name,
            sum(found.values()) / size,
            min(times, default=float("nan")),
            {kind: n / size for kind, n in found.items()},
        )
        for found, times, (recipe, policy, _) in zip(kept, seconds, models, strict=True)
    ]
