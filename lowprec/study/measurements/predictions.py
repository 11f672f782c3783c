"""Predictions: the cost of a precision by position in the context, and the acceptance rate of drafted bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .measurement import ALL_CONDITIONS, Measurement, Row, predicted

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import Recipe

#: Fractions of the bytes, in descending order of the model's confidence.
QUARTERS = ("surest quarter", "2nd quarter", "3rd quarter", "least sure quarter")


@dataclass(frozen=True)
class Acceptance(Measurement):
    """Acceptance rate of drafts by multi-token prediction, for the byte after the next.

    At position i the prediction module, given byte i + 1, drafts byte i + 2; the main model predicts that byte at
    position i + 1. A greedy draft is accepted if both have the same most probable byte. A sampled draft is accepted
    with probability sum(min(p, q)), the rule of speculative decoding (arXiv 2211.17192). The context is held-out text.

    Parameters
    ----------
    layers : int
        Number of layers of the model to estimate the speed-up for; a draft costs one layer.
    """

    layers: int = 61
    metrics: ClassVar[Mapping[str, str]] = {
        "greedy": "share of greedy drafts accepted, %",
        "sampled": "share of sampled drafts accepted, %",
        "speed": "tokens per step with greedy drafts, over the time of a step with one more layer",
        "right_main": "share of bytes that the model itself has right, %",
        "right_draft": "share of bytes that the draft has right, %",
    }
    axis: ClassVar[str] = "bytes by the model's certainty"
    panels: ClassVar[tuple[str, ...]] = ("greedy", "sampled", "speed")

    def measure(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield one row for all bytes, and one for each quarter of them, sorted by the main model's top probability."""
        logits, further = predicted(model, recipe, tokens, seed)
        if further is None:
            raise ValueError(f"mtp_depth must be 1, to predict a further byte, got 0 in {model.config.name}")
        p, q = (probabilities(x.reshape(-1, x.shape[2])) for x in (logits[:, 1:], further[:, :-1]))
        truth = tokens[:, 2:].reshape(-1)
        sure = np.argsort(-p.max(axis=1), kind="stable")
        greedy, sampled = p.argmax(axis=1) == q.argmax(axis=1), np.minimum(p, q).sum(axis=1)
        for condition, these in ((ALL_CONDITIONS, sure), *zip(QUARTERS, np.array_split(sure, 4), strict=True)):
            share = float(np.mean(greedy[these]))
            yield Row(
                condition,
                {
                    "greedy": 100 * share,
                    "sampled": 100 * float(np.mean(sampled[these])),
                    "speed": speed(share, self.layers),
                    "right_main": 100 * float(np.mean(p[these].argmax(axis=1) == truth[these])),
                    "right_draft": 100 * float(np.mean(q[these].argmax(axis=1) == truth[these])),
                },
            )


def speed(accepted: float, layers: int) -> float:
    """Return the speed-up of decoding if each step emits 1 + `accepted` tokens and computes `layers` + 1 layers.

    Decoding is bound by reading weights and caches, so verifying two tokens takes the time of one step.

    Examples
    --------
    >>> [round(speed(accepted, 61), 2) for accepted in (0.8, 0.85, 0.9)]
    [1.77, 1.82, 1.87]
    """
    return (1 + accepted) * layers / (layers + 1)


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of each row of logits [T, V], computed from the gradient of the cross-entropy.

    Examples
    --------
    >>> probabilities(np.log(np.array([[1.0, 3.0]]))).round(12)
    array([[0.25, 0.75]])
    """
    from lowprec.kernels.model.nn import cross_entropy

    rows, wide = len(logits), np.ascontiguousarray(logits, np.float64)
    found = np.empty_like(wide)
    cross_entropy(wide, np.zeros(rows, np.int64), np.empty(rows), found, 0, rows)
    found *= rows
    found[:, 0] += 1.0
    return found


@dataclass(frozen=True)
class ByPosition(Measurement):
    """Loss and KL of the predictions by position in the context, grouped in octaves: 0, 1, 2-3, 4-7 ...

    Examples
    --------
    >>> [octave(position) for position in (0, 1, 2, 3, 4, 500)]
    ['0', '1', '2-3', '2-3', '4-7', '256-511']
    """

    metrics: ClassVar[Mapping[str, str]] = {
        "kl_percent": "KL(reference || arm) of the predictions, % of the reference's loss there",
        "loss_percent": "loss over the reference's, %",
    }
    axis: ClassVar[str] = "position in the context"
    panels: ClassVar[tuple[str, ...]] = ("kl_percent", "loss_percent")

    def measure(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield one row per octave of positions, and one for all positions."""
        from .gradients import kl_of_tokens, losses_of_tokens

        ours, theirs = (predicted(model, precision, tokens, seed)[0] for precision in (recipe, reference))
        shape = ours.shape[:2]
        kl = kl_of_tokens(*(logits.reshape(-1, logits.shape[2]) for logits in (theirs, ours))).reshape(shape)
        loss, base = (losses_of_tokens(logits, tokens[:, 1:]) for logits in (ours, theirs))
        for name, columns in {**octaves(shape[1]), ALL_CONDITIONS: slice(None)}.items():
            total = float(np.sum(base[:, columns]))
            yield Row(
                name,
                {
                    "kl_percent": 100 * float(np.sum(kl[:, columns])) / total,
                    "loss_percent": 100 * (float(np.sum(loss[:, columns])) / total - 1),
                },
            )


def octave(position: int) -> str:
    """Return the name of the octave of a position."""
    low = 1 << position.bit_length() >> 1
    high = 2 * low - 1
    return f"{low}-{high}" if high > low else str(low)


def octaves(length: int) -> dict[str, slice]:
    """Return the octaves of positions 0 to length - 1, as slices by name."""
    found: dict[str, slice] = {}
    start = 0
    while start < length:
        stop = min(max(2 * start, 1), length)
        found[octave(start)] = slice(start, stop)
        start = stop
    return found
