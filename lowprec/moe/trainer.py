"""Training: one step at a time, resumable at every one of them, the same bits for the same seeds.

A trainer's state is its weights, the optimizer's moments, the routing biases and two numbers, the step and the data
seed: the windows of a step follow from those two (`lowprec.moe.data`), so no generator has a hidden position. Saving
and loading is therefore exact, and a branch is a load with another recipe, schedule or data seed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowprec.moe import checkpoint
from lowprec.moe.checkpoint import CheckpointError
from lowprec.moe.config import MoEConfig, configs
from lowprec.moe.data import Corpus, batches, held_out_windows, load_corpus
from lowprec.moe.model import Model
from lowprec.moe.optim import AdamW
from lowprec.moe.routing import update_bias
from lowprec.moe.schedule import Schedule
from lowprec.recipe import Recipe, recipes

#: Bytes that `Trainer.evaluate` predicts: the same windows for every arm.
EVALUATION_BYTES = 65_536


class Diverged(ArithmeticError):
    """A loss or gradient that is NaN or infinite; the trainer stays as it was before that step."""


@dataclass(frozen=True)
class StepRecord:
    """What one optimizer step did.

    Attributes
    ----------
    step : int
        Steps done, this one included.
    loss : float
        Cross-entropy of the step's bytes before the update, nats per byte.
    grad_norm : float
        Norm of the gradient before clipping.
    learning_rate : float
        The rate of the update.
    tokens : int
        Bytes predicted since the first step.
    max_violation : float
        How much the busiest expert exceeds the mean, max(load) / mean(load) - 1, over all layers.
    balance_loss : float
        The sequence-wise balance loss, which is in the gradient and not in `loss`.
    seconds : float
        Wall time; not compared.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    max_violation: float
    balance_loss: float
    seconds: float = field(compare=False)


class Trainer:
    """A model in training.

    Parameters
    ----------
    config : MoEConfig or str
        Shape of the model.
    recipe : Recipe or str
        Its precision.
    data : Corpus
        What it learns from and is tested on.
    seed : int
        Initial weights and, unless `data_seed` is given, the order of the data.
    schedule : Schedule
        Learning rate; its step 0 is the first step of this trainer, or of this branch.
    data_seed : int, optional
        Order of the data.

    Attributes
    ----------
    model, optimizer : Model, AdamW
        The weights, the biases and the bound recipe, and the moments.
    steps : int
        Steps done.

    Examples
    --------
    >>> from lowprec.moe.data import load_corpus
    >>> schedule = Schedule(peak=4e-3, warmup_steps=10, total_steps=100)
    >>> trainer = Trainer("nano", "bf16", load_corpus("stdlib"), seed=0, schedule=schedule)
    >>> record = trainer.step()
    >>> record.step, record.tokens, 5.4 < record.loss < 5.8
    (1, 2048, True)
    """

    def __init__(
        self,
        config: MoEConfig | str,
        recipe: Recipe | str,
        data: Corpus,
        *,
        seed: int,
        schedule: Schedule,
        data_seed: int | None = None,
    ) -> None:
        self.config = configs.get(config)
        self.recipe = recipes.get(recipe)
        self.corpus = data
        self.seed = seed
        self.data_seed = seed if data_seed is None else data_seed
        self.schedule = schedule
        self.steps = 0
        self._schedule_start = 0
        self._batches = batches(data, self.data_seed, self.config.batch, self.config.sequence)
        self.model = Model(self.config, self.recipe, seed)
        if self.recipe.moment_m == "float64":  # then the master weights are float64 as well
            self.model.params.update({name: w.astype(np.float64) for name, w in self.model.params.items()})
        self.optimizer = AdamW(
            self.model.params,
            moment_m=self.recipe.moment_m,
            moment_v=self.recipe.moment_v,
            master=self.recipe.master,
        )

    def step(self) -> StepRecord:
        """Make one optimizer step.

        Returns
        -------
        StepRecord
            What it did.

        Raises
        ------
        Diverged
            If the loss or the gradient is NaN or infinite; then nothing was changed.
        """
        begin = time.perf_counter()
        self.model.recipe.begin_step(self.steps)
        loss, gradients = self.model.loss_and_grads(self._batches[self.steps])
        loss = float(loss)
        if not math.isfinite(loss):
            raise Diverged(f"step {self.steps + 1}: the loss is {loss}")
        rate = self.schedule.rate(self.steps - self._schedule_start)
        try:
            norm = self.optimizer.update(gradients, rate)
        except FloatingPointError as error:
            raise Diverged(f"step {self.steps + 1}: {error}, the loss {loss}") from None
        for gate, bias in self.model.biases.items():
            update_bias(bias, self.model.loads[gate], self.config.bias_rate)
        self.steps += 1
        return StepRecord(
            step=self.steps,
            loss=loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=self.steps * self.config.batch * self.config.sequence,
            max_violation=float(self.model.max_violation),
            balance_loss=float(self.model.balance_loss),
            seconds=time.perf_counter() - begin,
        )

    def evaluate(self, recipe: Recipe | str | None = None, *, n_bytes: int = EVALUATION_BYTES) -> float:
        """Return the mean loss on the fixed held-out windows.

        Parameters
        ----------
        recipe : Recipe or str, optional
            Precision of the forward pass; the trainer's own by default. "bf16" for the quality of the weights alone.
        n_bytes : int
            Bytes to predict, rounded down to whole windows: the same windows for every trainer on this corpus.

        Returns
        -------
        float
            Nats per byte.
        """
        model = self.model if recipe is None else self.model.with_recipe(recipes.get(recipe))
        windows = held_out_windows(self.corpus, self.config.sequence, n_bytes)
        total = 0.0
        for first in range(0, len(windows), self.config.batch):
            part = windows[first : first + self.config.batch]
            total += float(model.loss(part)) * len(part)
        return total / len(windows)

    def perturb(self) -> str:
        """Multiply one weight by 1 + 2^-7, to see how far rounding-sized accidents carry a run apart.

        That changes the weight's bfloat16 value by one or two steps. It is the middle element of the first layer's
        query projection, or the next one that is not zero.

        Returns
        -------
        str
            Which weight, for the record.
        """
        name = "layers.0.attn.wq_a"
        weights = self.model.params[name].reshape(-1)
        place = weights.size // 2 + int(np.flatnonzero(weights[weights.size // 2 :])[0])
        weights[place] *= weights.dtype.type(1 + 2**-7)
        return f"{name}[{place}]"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that the next step depends on to a checkpoint.

        Parameters
        ----------
        path : str or path
            The file; replaced in one stroke.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        """
        header = {
            "config": dataclasses.asdict(self.config),
            "recipe": self.recipe.name,
            "moments": [self.recipe.moment_m, self.recipe.moment_v],
            "steps": self.steps,
            "optimizer_steps": self.optimizer.steps,
            "seed": int(self.seed),
            "data_seed": int(self.data_seed),
            "schedule": dataclasses.asdict(self.schedule),
            "schedule_start": self._schedule_start,
            "corpus": {"name": self.corpus.name, "origin": self.corpus.origin, "sha256": self.corpus.sha256},
            "code": code_version(),
        }
        checkpoint.write(path, header, {f"{kind}/{name}": a for kind, name, a in self._state()})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        recipe: Recipe | str | None = None,
        schedule: Schedule | None = None,
        data_seed: int | None = None,
        data: Corpus | None = None,
    ) -> Trainer:
        """Continue from a checkpoint, exactly, or branch off from it.

        Parameters
        ----------
        path : str or path
            What `save` wrote.
        recipe : Recipe or str, optional
            Train on in another precision.
        schedule : Schedule, optional
            Another learning rate; its step 0 is the next step.
        data_seed : int, optional
            Other windows from here on.
        data : Corpus, optional
            The corpus, if it is loaded already; it must be the one that the checkpoint was trained on.

        Returns
        -------
        Trainer
            Its next step has the bits that the saved trainer's next step would have had, branches aside.

        Raises
        ------
        CheckpointError
            If the file is damaged or of another version, or the corpus is not the same text.
        """
        header, arrays = checkpoint.read(path)
        place = f"checkpoint {os.fspath(path)!r}"
        corpus = load_corpus(header["corpus"]["name"]) if data is None else data
        if corpus.sha256 != header["corpus"]["sha256"]:
            raise CheckpointError(
                f"{place} was trained on {header['corpus']['name']!r} ({header['corpus']['origin']}), sha256"
                f" {header['corpus']['sha256'][:16]}; this is {corpus.name!r} with sha256 {corpus.sha256[:16]}"
            )
        try:
            config = MoEConfig(**header["config"])
        except TypeError as error:
            raise CheckpointError(
                f"{place} comes from lowprec {header['code']}, which had other sizes: {error}"
            ) from None
        trainer = cls(
            config,
            header["recipe"] if recipe is None else recipe,
            corpus,
            seed=header["seed"],
            schedule=Schedule(**header["schedule"]) if schedule is None else schedule,
            data_seed=header["data_seed"] if data_seed is None else data_seed,
        )
        trainer.steps = header["steps"]
        trainer._schedule_start = header["schedule_start"] if schedule is None else header["steps"]
        trainer.optimizer.steps = header["optimizer_steps"]
        trainer._take(arrays, header["moments"], place)
        return trainer

    def _state(self) -> list[tuple[str, str, Any]]:
        """Return the arrays that make up the state, as (kind, name, array)."""
        kinds: dict[str, Mapping[str, Any]] = {
            "weights": self.model.params,
            "m": self.optimizer.m,
            "v": self.optimizer.v,
            "biases": self.model.biases,
        }
        return [(kind, name, array) for kind, named in kinds.items() for name, array in named.items()]

    def _take(self, arrays: dict[str, Any], moments: list[str], place: str) -> None:
        """Copy a checkpoint's arrays into this trainer's."""
        own = {f"{kind}/{name}": array for kind, name, array in self._state()}
        if odd := sorted(own.keys() ^ arrays.keys()):
            raise CheckpointError(f"{place} does not fit this model: {len(odd)} arrays differ, the first is {odd[0]!r}")
        for name, array in own.items():
            if arrays[name].shape != array.shape:
                raise CheckpointError(
                    f"{place} does not fit this model: {name!r} is {arrays[name].shape} there, {array.shape} here"
                )
            if name.startswith(("weights/", "biases/")):
                array[...] = arrays[name]
        self.optimizer.set_moments(
            (moments[0], moments[1]),
            {name: arrays[f"m/{name}"] for name in self.optimizer.m},
            {name: arrays[f"v/{name}"] for name in self.optimizer.v},
        )


def code_version() -> str:
    """Return the version of this package, for the record."""
    import lowprec

    return getattr(lowprec, "__version__", "unknown")
