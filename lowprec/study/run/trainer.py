"""What a study needs of a trainer; another module with the same seven names can take this one's place."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from lowprec.moe.data.corpus import load_corpus
from lowprec.moe.model.config import MoEConfig, configs
from lowprec.moe.run.train import Diverged, Schedule, Trainer
from lowprec.recipe import Recipe, recipes

from ..._files import plain

__all__ = ["Diverged", "Schedule", "Trainer", "configuration", "describe", "load_corpus", "weights_hash"]


def configuration(config: str, changes: Mapping[str, Any]) -> str | MoEConfig:
    """Return the configuration of an arm: the name of one in the catalogue, or one that differs from it.

    Raises
    ------
    TypeError, ValueError
        If there is no such field, or it cannot have such a value.
    """
    return dataclasses.replace(configs[config], **changes) if changes else config


def describe(config: str | MoEConfig, recipe: str | Recipe) -> dict[str, Any]:
    """Return configuration and recipe in full, as JSON's types, for `run.json`.

    Raises
    ------
    UnknownNameError
        If a name is not in its catalogue.
    """
    shape = configs.get(config)
    counts = shape.parameter_counts()
    return {
        "config": plain(shape),
        "recipe": plain(recipes.get(recipe).as_dict()),
        "parameters": {"total": counts.total, "active": counts.active},
    }


def weights_hash(trainer: Trainer) -> str:
    """Return a hash of all weights: equal exactly if every bit is."""
    digest = hashlib.sha256()
    for name, array in trainer.model.params.items():
        digest.update(name.encode() + b"\0" + array.tobytes())
    return digest.hexdigest()
