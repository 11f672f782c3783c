"""Where the time and the memory of training go: phases of a step, peak memory, bytes kept for the backward pass."""

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
from lowprec.moe.model.memory import MemoryPolicy, memory_policies
from lowprec.moe.model.model import Model
from lowprec.moe.model.routing import MixtureOfExperts
from lowprec.moe.run.optim import AdamW
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import Recipe
from lowprec.recipe.operands import TensorOperand
from lowprec.scaling.quantize import Quantized

#: Phases of a step, in the order of tables. A method's time is its own, without that of others listed here.
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
#: Names of all phases; "rest" is what no other one covers, the loss and Python among it.
PHASES = (*GEMMS, *dict.fromkeys(name for *_, name in _PHASES), "rest")


class PhaseClock:
    """Adds up this thread's processor seconds by phase; a phase that begins within another one stops the other's time.

    Meant for one thread: what others compute is not seen.
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
        """Return a method whose time counts towards a phase."""

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
        """Return the seconds since the last lap by phase, and start over."""
        self._count()
        seconds, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return seconds


@contextmanager
def phases(*models: Model) -> Iterator[PhaseClock]:
    """Time the phases of everything that these models do within the block.

    Examples
    --------
    >>> model = Model("nano", "bf16")
    >>> with phases(model) as clock:
    ...     _ = model.loss(np.zeros((1, 9), np.uint8))
    >>> spent = clock.lap()
    >>> spent["attention"] > 0, spent["dgrad"], spent["optimizer"]
    (True, 0.0, 0.0)
    """
    clock = PhaseClock()
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
    """How fast one recipe trains, and in how much memory.

    Attributes
    ----------
    recipe : str
        Its name.
    seconds : float
        Of a step, wall time, median.
    tokens_per_second : float
        Bytes of a step over these seconds.
    peak_bytes : int
        What NumPy's arrays and Python's objects take at most in a step, model and optimizer included.
    page_faults : float
        Minor page faults of a step, once the first steps have been made.
    phases : dict of str to float
        Processor seconds by phase on one thread, medians.
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
    """Time training steps of several recipes, which take turns; then, on one thread, their phases.

    Parameters
    ----------
    config : MoEConfig
        The model.
    recipes : sequence of Recipe
        The precisions.
    corpus : Corpus
        What is read.
    steps, warmup : int
        Steps that are timed, and steps before them that are not.

    Returns
    -------
    list of TrainingSpeed
        One for each recipe.
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
    return Trainer(config, recipe, corpus, seed=0, schedule=Schedule(peak=1e-3, warmup_steps=5, total_steps=1000))


@dataclass(frozen=True)
class ActivationMemory:
    """What one policy keeps, and what it costs.

    Attributes
    ----------
    recipe, policy : str
        Names.
    bytes_per_token : float
        Activations that wait for the backward pass.
    seconds : float
        Processor time of a forward and backward pass on one thread, the lowest of the rounds.
    kinds : dict of str to float
        The bytes a token by kind.
    """

    recipe: str
    policy: str
    bytes_per_token: float
    seconds: float
    kinds: dict[str, float] = field(repr=False)


def activation_memory(
    config: MoEConfig,
    recipes: Sequence[Recipe],
    policies: Sequence[MemoryPolicy | str] | None = None,
    *,
    rounds: int = 3,
) -> list[ActivationMemory]:
    """Measure every policy with every recipe, on one step's worth of random bytes.

    Parameters
    ----------
    config : MoEConfig
        The model.
    recipes : sequence of Recipe
        The precisions.
    policies : sequence of MemoryPolicy or str, optional
        All of the catalogue by default.
    rounds : int
        How often a pass is timed; 0 for not at all, seconds being NaN.

    Returns
    -------
    list of ActivationMemory
        Recipe by recipe, policy by policy.
    """
    chosen = [memory_policies.get(policy) for policy in policies or memory_policies.names()]
    tokens = np.random.default_rng(0).integers(
        0, config.vocabulary, (config.batch, config.sequence + 1), dtype=np.uint8
    )
    size = config.batch * config.sequence
    models = [(recipe, policy, Model(config, recipe, memory=policy)) for recipe in recipes for policy in chosen]
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
