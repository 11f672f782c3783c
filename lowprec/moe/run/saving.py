"""Writing a trainer to a checkpoint and reading it: every bit of state of the next step."""

from __future__ import annotations

import dataclasses
import os
import tomllib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from lowprec.definitions.code import code_hash
from lowprec.moe.data.corpus import Corpus
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.config import MoEConfig
from lowprec.moe.model.memory import RecomputePolicy
from lowprec.moe.model.model import Model
from lowprec.moe.run import checkpoint
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.ema import ParameterEMA
from lowprec.moe.run.optim import AdamW
from lowprec.moe.run.schedule import Schedule
from lowprec.recipe import Recipe
from lowprec.recipe.description import State


class TrainerState(Protocol):
    """The attributes of a trainer that a checkpoint stores: all state that determines its next step."""

    config: MoEConfig
    corpus: Corpus
    model: Model
    optimizer: AdamW
    ema: ParameterEMA | None
    schedule: Schedule
    schedule_start: int
    seed: int
    data_seed: int
    steps: int

    @property
    def recipe(self) -> Recipe:
        """Recipe of the trainer."""


T = TypeVar("T", bound=TrainerState)

#: Arrays that are copied unchanged; moments are converted if the trainer stores them in another format.
_PLAIN = ("weights/", "biases/", "ema/")


def save(trainer: TrainerState, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint; see `Trainer.save`."""
    bound = trainer.model.recipe.state_dict()
    header = {
        "config": dataclasses.asdict(trainer.config),
        "recipe": trainer.recipe.as_dict(),
        "recipe_state": {"step": bound["step"], "observing": bound["observing"]},
        "ema": None if trainer.ema is None else trainer.ema.decay,
        "steps": trainer.steps,
        "optimizer_steps": trainer.optimizer.steps,
        "seed": int(trainer.seed),
        "data_seed": int(trainer.data_seed),
        "schedule": dataclasses.asdict(trainer.schedule),
        "schedule_start": trainer.schedule_start,
        "corpus": {
            "name": trainer.corpus.name,
            "origin": trainer.corpus.origin,
            "sha256": trainer.corpus.sha256,
        },
        "code": code_version(),
        "code_hash": code_hash(),
    }
    arrays = state_arrays(trainer) | {f"recipe/{name}": array for name, array in bound["delayed"].items()}
    checkpoint.write(path, header, arrays)


def load(
    make: Callable[..., T],
    path: str | os.PathLike[str],
    *,
    recipe: Recipe | str | None,
    schedule: Schedule | None,
    data_seed: int | None,
    data: Corpus | None,
    recompute: RecomputePolicy | str,
    config: MoEConfig | None,
    check: bool = True,
) -> T:
    """Restore the state of a checkpoint in a trainer that `make` creates; see `Trainer.load`.

    Without `check`, the checkpoint's recipe uses its recorded definitions, whatever the catalogues contain now.
    """
    header, arrays = checkpoint.read(path)
    place = f"checkpoint {os.fspath(path)!r}"
    try:
        corpus = load_corpus(header["corpus"]["name"]) if data is None else data
        if corpus.sha256 != header["corpus"]["sha256"]:
            raise CheckpointError(
                f"{place} was trained on {header['corpus']['name']!r} ({header['corpus']['origin']}), sha256"
                f" {header['corpus']['sha256'][:16]}; this is {corpus.name!r} with sha256 {corpus.sha256[:16]}"
            )
        try:
            config = MoEConfig(**header["config"]) if config is None else config
        except TypeError as error:
            raise CheckpointError(
                f"{place} was written by lowprec {header['code']}, whose configurations differ: {error}"
            ) from None
        kept = _recipe(header, place, check=check and recipe is None)
        trainer = make(
            config,
            kept if recipe is None else recipe,
            corpus,
            seed=header["seed"],
            schedule=Schedule(**header["schedule"]) if schedule is None else schedule,
            data_seed=header["data_seed"] if data_seed is None else data_seed,
            ema=header["ema"],
            recompute=recompute,
        )
        trainer.steps = header["steps"]
        trainer.schedule_start = header["schedule_start"] if schedule is None else header["steps"]
        trainer.optimizer.steps = header["optimizer_steps"]
        recipe_state = header["recipe_state"]
    except KeyError as error:
        raise CheckpointError(f"{place} lacks {error}: it is not that of a trainer") from None
    if recipe is None:
        delayed = {name.removeprefix("recipe/"): a for name, a in arrays.items() if name.startswith("recipe/")}
        trainer.model.recipe.load_state_dict({**recipe_state, "delayed": delayed})
    arrays = {name: array for name, array in arrays.items() if not name.startswith("recipe/")}
    _load_arrays(trainer, arrays, (kept.moment_m, kept.moment_v), place)
    if (written := header.get("code_hash", "not recorded")) != code_hash():
        warnings.warn(
            f"{place} was written by other code (hash {written}, here {code_hash()}): from here on, a resumed run "
            "may have other bits than one that never stopped",
            stacklevel=3,
        )
    return trainer


def _recipe(header: Mapping[str, Any], place: str, check: bool) -> Recipe:
    """Return the recipe in a header; a header of version 2 has it as TOML, with names but no definitions."""
    old = header.get("recipe_toml")
    try:
        data = header["recipe"] if old is None else tomllib.loads(old)
        return Recipe.from_dict(data, place, check=check)
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def state_arrays(trainer: TrainerState) -> dict[str, Any]:
    """Return the arrays of a trainer's state, by kind and name, without the recipe's state."""
    kinds: dict[str, Mapping[str, Any]] = {
        "weights": trainer.model.params,
        "m": trainer.optimizer.m,
        "v": trainer.optimizer.v,
        "biases": trainer.model.biases,
        "ema": {} if trainer.ema is None else trainer.ema.params,
    }
    return {f"{kind}/{name}": array for kind, named in kinds.items() for name, array in named.items()}


def _load_arrays(trainer: TrainerState, arrays: dict[str, Any], moments: tuple[State, State], place: str) -> None:
    """Copy a checkpoint's arrays into a trainer."""
    own = state_arrays(trainer)
    if odd := sorted(own.keys() ^ arrays.keys()):
        raise CheckpointError(f"{place} does not fit this model: {len(odd)} arrays differ, the first is {odd[0]!r}")
    for name, array in own.items():
        if arrays[name].shape != array.shape:
            raise CheckpointError(
                f"{place} does not fit this model: {name!r} is {arrays[name].shape} there, {array.shape} here"
            )
        if name.startswith(_PLAIN):
            array[...] = arrays[name]
    trainer.optimizer.round_weights()  # those of a branch may be narrower
    trainer.optimizer.set_moments(
        moments,
        {name: arrays[f"m/{name}"] for name in trainer.optimizer.m},
        {name: arrays[f"v/{name}"] for name in trainer.optimizer.v},
    )


def code_version() -> str:
    """Return the version of this package, for the record."""
    import lowprec

    return getattr(lowprec, "__version__", "unknown")
