"""What a study needs of a trainer: a `Backend`, lowprec's own by default."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..._files import plain
from ...definitions import short_hash

if TYPE_CHECKING:
    from lowprec.moe.data.corpus import Corpus
    from lowprec.moe.model.config import MoEConfig
    from lowprec.moe.run.step import StepRecord
    from lowprec.moe.run.trainer import Trainer as MoETrainer
    from lowprec.recipe import Recipe


#: Random bits that a stochastic forward pass is evaluated with.
STOCHASTIC_SEEDS = 4
#: Batches that pass before weights are evaluated in a precision whose scales follow from earlier values.
CALIBRATION = 16


@dataclass(frozen=True)
class Forward:
    """The precision of a forward pass.

    Parameters
    ----------
    key : str
        Of what it depends on: two recipes with the same key evaluate to the same bits.
    recipe : str or Recipe
        One recipe that has it.
    seeds : int
        How many evaluations are averaged: more than one where it rounds stochastically.
    calibration : int
        Batches that pass before weights of another precision are evaluated.
    """

    key: str
    recipe: str | Recipe
    seeds: int = 1
    calibration: int = 0


def forward_of(recipe: Recipe, given: str | Recipe) -> Forward:
    """Return the forward pass of a recipe; `given` is what backends are called with."""
    remembers = CALIBRATION if recipe.remembers else 0
    key = short_hash(recipe if remembers else recipe.forward)  # the backward pass decides what is remembered, too
    return Forward(key, given, STOCHASTIC_SEEDS if recipe.stochastic else 1, remembers)


class Trainer(Protocol):
    """A model in training."""

    def step(self) -> StepRecord:
        """Take one optimizer step and return what is recorded of it, a dataclass of numbers."""

    def evaluate(self) -> float:
        """Return the validation loss in the trainer's own precision."""

    def window_losses(
        self, recipe: Any = None, *, n_bytes: int, seed: int | None = None, calibration: int = 0
    ) -> Iterable[float]:
        """Return the loss of every held-out window, in the trainer's own precision or in a recipe."""

    def perturb(self) -> Any:
        """Multiply one weight by (1 + 2^-7)."""

    def calibrate(self, batches: int) -> None:
        """Send batches through the model before the first step, for scales that earlier steps decide."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that `Backend.load` needs to go on with the same bits."""


class Backend(Protocol):
    """Makes trainers for the runs of a study.

    A task carries its backend to worker processes: it can be pickled, and equal ones make equal trainers. Schedules
    come as the fields of `lowprec.moe.run.schedule.Schedule`.
    """

    def __hash__(self) -> int:
        """Return the same for equal ones."""

    @property
    def name(self) -> str:
        """Stands in the fingerprint of every run."""

    @property
    def diverged(self) -> type[Exception]:
        """What `Trainer.step` raises where the loss is no longer finite."""

    def load_corpus(self, source: str) -> Any:
        """Return the data of a name or a path; its `sha256` stands in the fingerprint."""

    def configuration(self, config: str, changes: Mapping[str, Any]) -> Any:
        """Return the configuration of an arm: one of the catalogue's by name, with what differs from it."""

    def describe(self, config: Any, recipe: str | Recipe) -> dict[str, Any]:
        """Return `config`, `recipe` and `parameters` (`total`, `active`) in full, as JSON's types."""

    def forward(self, recipe: str | Recipe) -> Forward:
        """Return the precision of a recipe's forward pass."""

    def new(
        self,
        config: Any,
        recipe: str | Recipe,
        corpus: Any,
        *,
        seed: int,
        schedule: Mapping[str, Any],
        data_seed: int | None = None,
    ) -> Trainer:
        """Return a trainer with initial weights."""

    def load(
        self,
        path: str | os.PathLike[str],
        corpus: Any,
        *,
        recipe: str | Recipe | None = None,
        schedule: Mapping[str, Any] | None = None,
        data_seed: int | None = None,
        config: Any = None,
    ) -> Any:
        """Return a saved trainer, which goes on, or a branch of it where something is to change.

        A `config` is given for a branch that differs in it, and has the same parameters.

        A study of the same weights asks for its `config` and `model`, too.
        """

    def weights_hash(self, trainer: Any) -> str:
        """Return a hash of all weights: equal exactly if every bit is."""


@dataclass(frozen=True)
class MoEBackend:
    """lowprec's own trainer; its modules are imported when one is made."""

    @property
    def name(self) -> str:
        """Stands in the fingerprint of every run."""
        return "lowprec.moe"

    @property
    def diverged(self) -> type[Exception]:
        """What a step raises where the loss is no longer finite."""
        from lowprec.moe.run.step import Diverged

        return Diverged

    @property
    def trainer(self) -> type[MoETrainer]:
        """The class of its trainers."""
        from lowprec.moe.run.trainer import Trainer as MoETrainer

        return MoETrainer

    def load_corpus(self, source: str) -> Corpus:
        """Return the data of a name or a path."""
        from lowprec.moe.data.sources import load_corpus

        return load_corpus(source)

    def configuration(self, config: str, changes: Mapping[str, Any]) -> str | MoEConfig:
        """Return the configuration of an arm.

        Raises
        ------
        TypeError, ValueError
            If there is no such field, or it cannot have such a value.
        """
        from lowprec.moe.model.config import configs

        return dataclasses.replace(configs[config], **changes) if changes else config

    def describe(self, config: str | MoEConfig, recipe: str | Recipe) -> dict[str, Any]:
        """Return configuration and recipe in full, as JSON's types, for `run.json`.

        Raises
        ------
        UnknownNameError
            If a name is not in its catalogue.
        """
        from lowprec.moe.model.config import configs
        from lowprec.recipe import recipes

        shape = configs.get(config)
        counts = shape.parameter_counts()
        return {
            "config": plain(shape),
            "recipe": plain(recipes.get(recipe).as_dict()),
            "parameters": {"total": counts.total, "active": counts.active},
        }

    def forward(self, recipe: str | Recipe) -> Forward:
        """Return the precision of a recipe's forward pass."""
        from lowprec.recipe import recipes

        return forward_of(recipes.get(recipe), recipe)

    def new(
        self,
        config: str | MoEConfig,
        recipe: str | Recipe,
        corpus: Corpus,
        *,
        seed: int,
        schedule: Mapping[str, Any],
        data_seed: int | None = None,
    ) -> MoETrainer:
        """Return a trainer with initial weights."""
        from lowprec.moe.run.schedule import Schedule

        return self.trainer(config, recipe, corpus, seed=seed, schedule=Schedule(**schedule), data_seed=data_seed)

    def load(
        self,
        path: str | os.PathLike[str],
        corpus: Corpus,
        *,
        recipe: str | Recipe | None = None,
        schedule: Mapping[str, Any] | None = None,
        data_seed: int | None = None,
        config: MoEConfig | None = None,
    ) -> MoETrainer:
        """Return a saved trainer, or a branch of it."""
        from lowprec.moe.run.schedule import Schedule

        rates = None if schedule is None else Schedule(**schedule)
        return self.trainer.load(path, recipe=recipe, schedule=rates, data_seed=data_seed, data=corpus, config=config)

    def weights_hash(self, trainer: MoETrainer) -> str:
        """Return a hash of all weights: equal exactly if every bit is."""
        digest = hashlib.sha256()
        for name, array in trainer.model.params.items():
            digest.update(name.encode() + b"\0" + array.tobytes())
        return digest.hexdigest()


#: The backend of a study that names none.
BACKEND: Backend = MoEBackend()
