"""What a cache's precision costs at each place in the context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from .reading import ALL, Reading, Row, predicted

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import Recipe


@dataclass(frozen=True)
class ByPosition(Reading):
    """Loss and KL of the predictions by position in the context, in octaves: 0, 1, 2-3, 4-7 ...

    Examples
    --------
    >>> [octave(position) for position in (0, 1, 2, 3, 4, 500)]
    ['0', '1', '2-3', '2-3', '4-7', '256-511']
    """

    metrics: ClassVar[Mapping[str, str]] = {
        "kl_percent": "KL(reference || arm) of the predictions, % of the reference's loss there",
        "loss_percent": "loss over the reference's, %",
    }
    places: ClassVar[str] = "position in the context"
    panels: ClassVar[tuple[str, ...]] = ("kl_percent", "loss_percent")

    def read(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield a row for each octave of positions, and one of all."""
        from ...analysis.comparison import kl_of_tokens, losses_of_tokens

        ours, theirs = (predicted(model, precision, tokens, seed)[0] for precision in (recipe, reference))
        shape = ours.shape[:2]
        kl = kl_of_tokens(*(logits.reshape(-1, logits.shape[2]) for logits in (theirs, ours))).reshape(shape)
        loss, base = (losses_of_tokens(logits, tokens[:, 1:]) for logits in (ours, theirs))
        for name, columns in {**octaves(shape[1]), ALL: slice(None)}.items():
            total = float(np.sum(base[:, columns]))
            yield (
                name,
                {
                    "kl_percent": 100 * float(np.sum(kl[:, columns])) / total,
                    "loss_percent": 100 * (float(np.sum(loss[:, columns])) / total - 1),
                },
            )


def octave(position: int) -> str:
    """Return the name of the octave that a position is in."""
    low = 1 << position.bit_length() >> 1
    high = 2 * low - 1
    return f"{low}-{high}" if high > low else str(low)


def octaves(length: int) -> dict[str, slice]:
    """Return the octaves of positions 0 to length - 1 by name."""
    found: dict[str, slice] = {}
    start = 0
    while start < length:
        stop = min(max(2 * start, 1), length)
        found[octave(start)] = slice(start, stop)
        start = stop
    return found
