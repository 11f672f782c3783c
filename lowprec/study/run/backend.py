"""Interface between studies and a trainer: `Backend`, implemented by lowprec's trainer."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..._files import to_jsonable
from ...definitions import short_hash

if TYPE_CHECKING:
    from lowprec.moe.data.corpus import Corpus
    from lowprec.moe.model.config import MoEConfig
    from lowprec.moe.run.step import StepRecord
    from lowprec.moe.run.trainer import Trainer as MoETrainer
    from lowprec.recipe import Recipe


#: Number of seeds over which the loss of a stochastic forward pass is averaged.
STOCHASTIC_SEEDS = 4
#: Number of batches that are run forward and backward before an evaluation with delayed scaling.
CALIBRATION = 16


@dataclass(frozen=True)
class Forward:
    """Precision of a forward pass.

    Parameters
    ----------
    key : str
        Hash of everything that affects its bits: recipes with equal keys give equal evaluations.
    recipe : str or Recipe
        A recipe with this forward pass.
    seeds : int
        Number of evaluations to average, more than one for stochastic rounding.
    calibration : int
        Number of batches that are run forward and backward before weights trained in another precision are evaluated,
        to initialise delayed scaling.
    """

    key: str
    recipe: str | Recipe
    seeds: int = 1
    calibration: int = 0


def forward_of(recipe: Recipe, given: str | Recipe) -> Forward:
    """Return the forward pass of a recipe; `given` is the recipe as passed to backends."""
    remembers = CALIBRATION if recipe.uses_delayed_scaling else 0
    key = short_hash(recipe if remembers else recipe.forward_fields)  # amax histories depend on all of it
    return Forward(key, given, STOCHASTIC_SEEDS if recipe.uses_stochastic_rounding else 1, remembers)


class Trainer(Protocol):
    """Interface of a model in training."""

    def step(self) -> StepRecord:
        """Do one optimizer step and return its record, a dataclass of numbers."""

    def evaluate(self) -> float:
        """Return the validation loss in the trainer's precision."""

    def window_losses(
        self, recipe: Any = None, *, n_bytes: int, seed: int | None = None, calibration: int = 0
    ) -> Iterable[float]:
        """Return the loss of every held-out window, in the trainer's precision or in that of a recipe."""

    def perturb(self) -> Any:
        """Multiply one weight by (1 + 2^-7)."""

    def calibrate(self, batches: int) -> None:
        """Run the last batches forward and backward without an update, to initialise delayed scaling."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which `Backend.load` resumes with the same bits."""


@dataclass(frozen=True)
class Backend:
    """Factory of trainers for the runs of a study; the modules of lowprec's trainer are imported when it creates one.

    A backend of another trainer is a subclass, or an object with the same members. A task carries its backend to worker
    processes, so it can be pickled, and equal backends create equal trainers.
    """

    @property
    def name(self) -> str:
        """Name, recorded in the fingerprint of every run."""
        return "lowprec.moe"

    @property
    def diverged(self) -> type[Exception]:
        """Exception that `Trainer.step` raises if the run diverges."""
        from lowprec.moe.run.step import Diverged

        return Diverged

    @property
    def trainer(self) -> type[MoETrainer]:
        """Class of the trainers; only this backend uses it."""
        from lowprec.moe.run.trainer import Trainer as MoETrainer

        return MoETrainer

    def load_corpus(self, source: str) -> Corpus:
        """Return the corpus with the given name or path; fingerprints record its `sha256`."""
        from lowprec.moe.data.sources import load_corpus

        return load_corpus(source)

    def configuration(self, config: str, changes: Mapping[str, Any]) -> str | MoEConfig:
        """Return the configuration of an arm: an entry of the catalogue with some fields changed, or its name.

        Raises
        ------
        TypeError, ValueError
            If a field does not exist, or its value is invalid.
        """
        from lowprec.moe.model.config import configs

        return dataclasses.replace(configs[config], **changes) if changes else config

    def describe(self, config: str | MoEConfig, recipe: str | Recipe) -> dict[str, Any]:
        """Return `config`, `recipe` and `parameters` (`total`, `active`) in full, in JSON types.

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
            "config": to_jsonable(shape),
            "recipe": to_jsonable(recipes.get(recipe).as_dict()),
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
        """Return a trainer with initial weights; `schedule` holds fields of `lowprec.moe.run.schedule.Schedule`."""
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
        """Return a saved trainer to resume, or a branch of it if arguments differ from the saved ones.

        A `config` is given for a branch with another configuration of the same parameters. Studies of fixed weights
        also use the `config` and `model` of the result.
        """
        from lowprec.moe.run.schedule import Schedule

        rates = None if schedule is None else Schedule(**schedule)
        return self.trainer.load(path, recipe=recipe, schedule=rates, data_seed=data_seed, data=corpus, config=config)

    def weights_hash(self, trainer: Any) -> str:
        """Return a hash of all weights; two hashes are equal if and only if all bits of the weights are."""
        digest = hashlib.sha256()
        for name, array in trainer.model.params.items():
            digest.update(name.encode() + b"\0" + array.tobytes())
        return digest.hexdigest()


#: Default backend of studies.
BACKEND = Backend()
