"""Errors of all-reduces of gradients, by number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from .measurement import Measurement, Row, relative_error

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import Recipe


@dataclass(frozen=True)
class ReducedGradients(Measurement):
    """Error of a batch's gradient, split over a number of ranks and reduced as the recipe specifies.

    Every rank contributes the float32 mean over its sequences, divided by the number of ranks, in one bucket. The exact
    result is the float64 sum of these contributions. A recipe's `all_reduce` names algorithm and codec; the number of
    ranks is that of the condition.

    Parameters
    ----------
    ranks : tuple of int
        Numbers of ranks, all of them divisors of the largest, which must divide the number of sequences in a batch.
    """

    ranks: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    metrics: ClassVar[Mapping[str, str]] = {
        "gradient_error": "|g - g_exact| / |g_exact| of all parameters together",
        "worst_tensor": "the same for the parameter with the largest value",
        "one_minus_cos": "1 - cosine of both",
    }
    axis: ClassVar[str] = "ranks"
    panels: ClassVar[tuple[str, ...]] = ("gradient_error", "worst_tensor")

    def measure(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield one row per number of ranks."""
        from lowprec.codec import codecs
        from lowprec.collective.catalogue import collectives
        from lowprec.moe.run.parallel import flatten_gradients, unflatten_gradients
        from lowprec.recipe.reduction import GradientAllReduce

        way = recipe.all_reduce or GradientAllReduce(1, collectives["one_shot"], codecs["float32"])
        if len(tokens) % max(self.ranks):
            raise ValueError(f"ranks must divide the batch of {len(tokens)} sequences, got {max(self.ranks)}")
        several = model.with_recipe(recipe)
        parts = np.stack(
            [flatten_gradients(several.loss_and_grads(part)[1]) for part in np.split(tokens, max(self.ranks))]
        )
        for ranks in self.ranks:
            shards = parts.reshape(ranks, -1, *parts.shape[1:]).mean(axis=1, dtype=np.float32) / np.float32(ranks)
            got = way.algorithm.all_reduce(shards, way.codec).astype(np.float64)
            exact = shards.astype(np.float64).sum(axis=0)
            size, ours = (float(np.sum(np.square(x))) for x in (exact, got))
            wide = {name: weight.astype(np.float64) for name, weight in model.params.items()}
            theirs = unflatten_gradients(exact, wide)
            tensors = [
                relative_error([(gradient, theirs[name])]) for name, gradient in unflatten_gradients(got, wide).items()
            ]
            yield Row(
                str(ranks),
                {
                    "gradient_error": relative_error([(got, exact)]),
                    "worst_tensor": max((error for error in tensors if not math.isnan(error)), default=0.0),
                    "one_minus_cos": 1.0 - float(np.sum(got * exact)) / math.sqrt(ours * size),
                },
            )
