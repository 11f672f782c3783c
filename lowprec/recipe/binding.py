"""A recipe bound to one run: what its layers hold, and the state of what is not a pure function of its input.

Nearly all of a recipe is stateless. What is not has its state here and nowhere else: scales that follow from the
amax of earlier steps, and the step that, with the run's seed, the layer and the tensor, decides random bits. So a
checkpoint that keeps `state_dict` resumes to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.cast import round_to
from lowprec.codecs import Codec, codecs

from .description import CACHES, DIRECTIONS, Recipe
from .linear import LinearOps, linear_ops

Array = NDArray[Any]


class BoundRecipe:
    """The precision of one run.

    Parameters
    ----------
    recipe : Recipe
        What to bind; see `Recipe.bind`.
    seed : int
        The run's seed.

    Attributes
    ----------
    recipe : Recipe
        The description.
    step : int
        Number of the step that runs, from 0.

    Examples
    --------
    >>> import lowprec as lp
    >>> bound = lp.recipes["dsv3"].bind(seed=0)
    >>> y, saved = bound.linear("layers.0.attn.wo").fprop(np.ones((2, 128), np.float32), np.ones((3, 128), np.float32))
    >>> y.tolist()
    [[128.0, 128.0, 128.0], [128.0, 128.0, 128.0]]
    """

    def __init__(self, recipe: Recipe, seed: int = 0) -> None:
        self.recipe = recipe
        self.seed = seed
        self.step = 0
        self._linears: dict[str, LinearOps] = {}

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.recipe.name

    def linear(self, layer: str) -> LinearOps:
        """Return the three GEMMs of a linear layer; the same object every time."""
        if layer not in self._linears:
            self._linears[layer] = linear_ops(self.recipe.spec(layer), self.recipe.activations)
        return self._linears[layer]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the arrays that hold activations."""
        return np.dtype(np.float64 if self.recipe.activations == "float64" else np.float32)

    @property
    def store(self) -> Callable[[Array], Array]:
        """Function that rounds an array in place to the activations' storage format."""
        return _keep if self.recipe.activations == "float64" else _round_bf16

    def codec(self, direction: str) -> Codec:
        """Return the codec of ``"dispatch"``, ``"combine"``, ``"dispatch_grad"`` or ``"combine_grad"``."""
        if direction not in DIRECTIONS:
            raise ValueError(f"direction {direction!r}: one of {', '.join(DIRECTIONS)}")
        return _LOSSLESS if self.recipe.activations == "float64" else codecs[getattr(self.recipe, direction)]

    def cache(self, role: str) -> Codec:
        """Return the codec of an activation kept for the backward pass.

        Parameters
        ----------
        role : {"attention_output", "swiglu_input"}
            The input of the linear layer after attention, or one of the two inputs of SwiGLU.
        """
        if role not in CACHES:
            raise ValueError(f"cache {role!r}: one of {', '.join(CACHES)}")
        return _LOSSLESS if self.recipe.activations == "float64" else codecs[getattr(self.recipe, f"cache_{role}")]

    def begin_step(self, step: int) -> None:
        """Start a training step, counted from 0: what earlier steps observed takes effect."""
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        """Return all state, as numbers, strings and arrays."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, of the same recipe or another one.

        State that this recipe has no use for is ignored; what it needs and does not find starts afresh.
        """
        self.step = int(state["step"])


def _keep(x: Array) -> Array:
    return x


def _round_bf16(x: Array) -> Array:
    return round_to(x, "bfloat16", out=x)


class _Lossless:
    """The codec that changes nothing, whatever the type."""

    name = "lossless"

    def encode(self, x: Array) -> Array:
        return x

    def decode(self, wire: Array) -> Array:
        return wire

    def round_trip(self, x: Array) -> Array:
        return x


_LOSSLESS: Any = _Lossless()
