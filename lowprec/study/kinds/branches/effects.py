"""The 2x2 of two sets of weights and two forward precisions: what rounding does, and what training in it does.

Both runs of a pair are evaluated in the arm's forward precision and in BF16. An arm's loss in its own precision against
the reference's in BF16 is mostly there before the first update: it measures weights that BF16 trained, read through
rounding. What the arm's training did to its weights is seen where both are read alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...analysis.paired import Paired, paired, relative_differences
from ...analysis.variance import MeanSquares, PooledRatio, mean_squares
from ...run.branch import BF16
from .ablation import EFFECTS
from .runs import PairRun

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Differences:
    """One effect, pair by pair.

    Attributes
    ----------
    values : float64 array [pairs]
        Relative differences; inf where one of the two losses is not finite.
    text : float64 array [pairs, windows]
        Each held-out window's part in each difference; empty where that is not known.
    checkpoints : tuple of int
        Which checkpoint each pair started from.
    """

    values: Floats
    text: Floats
    checkpoints: tuple[int, ...]

    @property
    def levels(self) -> MeanSquares | None:
        """Their mean squares, None if one of them is not finite."""
        return mean_squares(self.values, self.checkpoints) if np.isfinite(self.values).all() else None

    def judged(self, margin: float, ratio: PooledRatio) -> Paired:
        """Return what follows from them."""
        return paired(self.values, margin, self.checkpoints, ratio=ratio, text=self.text)

    def less(self, other: Differences) -> Differences:
        """Return this effect less that of another arm with the same pairs, on those that both have."""
        return self.plus(other, -1.0)

    def plus(self, other: Differences, weight: float = 1.0) -> Differences:
        """Return this effect plus a multiple of another arm's with the same pairs, on those that both have."""
        theirs = {key: place for place, key in enumerate(_keys(other.checkpoints))}
        both = [(place, theirs[key]) for place, key in enumerate(_keys(self.checkpoints)) if key in theirs]
        ours, others = [place for place, _ in both], [place for _, place in both]
        finite = np.isfinite(self.values[ours]) & np.isfinite(other.values[others])
        values = np.full(len(both), math.inf)
        values[finite] = (self.values[ours] + weight * other.values[others])[finite]
        text = np.empty((0, 0))
        if self.text.size and other.text.size:
            text = self.text[ours] + weight * other.text[others]
        return Differences(values, text, tuple(self.checkpoints[place] for place in ours))


def _keys(checkpoints: Sequence[int]) -> list[tuple[int, int]]:
    """Return (checkpoint, number within it) of every pair: pairs stand in the order of their seeds."""
    return [(one, list(checkpoints[:place]).count(one)) for place, one in enumerate(checkpoints)]


def effects_of(pairs: Sequence[tuple[PairRun, PairRun]]) -> dict[str, Differences]:
    """Return the effects of `EFFECTS` of (arm, reference) pairs."""
    # L[f](w): which run's weights, and in which forward precision.
    corners = {
        "forward": ((1, True), (1, False)),
        "training": ((0, False), (1, False)),
        "training_own": ((0, True), (1, True)),
        "total": ((0, True), (1, False)),
    }
    assert corners.keys() == EFFECTS.keys()
    return {name: _differences(pairs, *sides) for name, sides in corners.items()}


def _differences(
    pairs: Sequence[tuple[PairRun, PairRun]], above: tuple[int, bool], below: tuple[int, bool]
) -> Differences:
    def keys(side: tuple[int, bool]) -> list[tuple[PairRun, str]]:
        which, own = side
        return [(pair[which], pair[0].forward if own else BF16) for pair in pairs]

    ours = np.array([run.losses[key] for run, key in keys(above)])
    theirs = np.array([run.losses[key] for run, key in keys(below)])
    fine = np.isfinite(theirs)
    values = np.full(ours.shape, math.inf)
    values[fine] = relative_differences(ours[fine], theirs[fine])
    rows = []
    for (run, key), (other, other_key), r in zip(keys(above), keys(below), values, strict=True):
        a, b = run.windows.get(key), other.windows.get(other_key)
        if a is None or b is None or not math.isfinite(r):
            return Differences(values, np.empty((0, 0)), tuple(run.checkpoint for run, _ in pairs))
        # Of a ratio of means A / B: a window's part is (a - A / B b) / B.
        rows.append((a - (1.0 + r) * b) / b.mean())
    return Differences(values, np.array(rows), tuple(run.checkpoint for run, _ in pairs))
