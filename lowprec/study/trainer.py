"""What a study needs of a trainer; another module with the same six names can take this one's place."""

from __future__ import annotations

import hashlib
from typing import Any

from lowprec.moe.config import configs
from lowprec.moe.data import load_corpus
from lowprec.moe.train import Diverged, Schedule, Trainer
from lowprec.recipe import Recipe, recipes

from .store import plain

__all__ = ["Diverged", "Schedule", "Trainer", "describe", "load_corpus", "weights_hash"]


def describe(config: str, recipe: str | Recipe) -> dict[str, Any]:
    """Return configuration and recipe in full, as JSON's types, for `run.json`.

    Raises
    ------
    UnknownNameError
        If a name is not in its catalogue.
    """
    shape = configs[config]
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
