"""What a reading is: an object that measures one thing of a model's weights, on a batch, at named places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import Recipe

#: The place that stands for all others, where a reading has one.
ALL = "all"
#: A place (a position, a bit), and the metrics there.
Row = tuple[str, dict[str, float]]


@dataclass(frozen=True)
class Reading(ABC):
    """Measures one thing of a model.

    A reading imports what computes within `read`, so that listing studies does not wait for it.
    """

    metrics: ClassVar[Mapping[str, str]]
    """What is measured, in words, by name."""
    places: ClassVar[str] = ""
    """What the places are, for an axis; empty where there is one."""
    panels: ClassVar[tuple[str, ...]]
    """The metrics that are drawn and have tables."""
    lines: ClassVar[bool] = True
    """Whether places are points of a line; else each stands for itself."""

    own_controls: ClassVar[bool] = False
    """Whether what must be seen, and what cannot matter, are among the places, so that no arms have these roles."""

    @abstractmethod
    def read(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield places and what is measured there; the weights are left as they are.

        Parameters
        ----------
        model : Model
            The weights.
        recipe, reference : Recipe
            The arm's precision, and the one that it is compared with.
        tokens : uint8 array [B, S + 1]
            Held-out text.
        seed : int
            Of everything random: the same seed draws the same, whatever the recipe.
        """

    def describe(self) -> dict[str, Any]:
        """Return its kind and numbers, in JSON's types."""
        return {"kind": type(self).__name__, **self.__dict__}


def predicted(model: Model, recipe: Recipe, tokens: NDArray[np.uint8], seed: int) -> tuple[Any, Any]:
    """Return the logits [B, S, V] of the next byte and of the byte after it in a precision, as in an evaluation."""
    bound = recipe.bind(seed, layers=model.config.layers)
    with bound.evaluating():
        return model.with_bound(bound).predictions(tokens)
