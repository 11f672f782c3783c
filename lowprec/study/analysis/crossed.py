"""Means over two crossed samples, checkpoints and layers for example, with intervals that count both.

Every layer is measured in every checkpoint, so that neither the layers of one checkpoint nor the checkpoints of one
layer are independent of each other. Both are drawn again (Owen, The pigeonhole bootstrap, Annals of Applied Statistics
2007): that is conservative, but a level with one member adds nothing to the interval.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .estimate import Resampled

RESAMPLES = 2000


@dataclass(frozen=True)
class Crossed:
    """A mean and its 90 % interval.

    Attributes
    ----------
    mean, low, high : float
        The mean and the interval's ends; nan without a finite value.
    largest : float
        The largest value.
    count : int
        How many values there are.
    resampled : Resampled
        The mean in resamples: the same checkpoints and layers for every set of values with the same keys.
    """

    mean: float
    low: float
    high: float
    largest: float
    count: int
    resampled: Resampled = field(compare=False, repr=False)


def crossed(values: Mapping[tuple[Hashable, Hashable], float], *, seed: int = 0) -> Crossed:
    """Return the mean over values that are known by two levels, and its 90 % interval.

    Parameters
    ----------
    values : mapping of (first, second) to float
        Pairs may be missing; nan is left out.
    seed : int
        Of the bootstrap; the same seed gives the same interval.

    Examples
    --------
    >>> found = crossed({(i, j): i + j for i in range(4) for j in range(20)})
    >>> found.mean, found.low < 10 < found.mean < 12 < found.high, found.count
    (11.0, True, 80)
    """
    seen = {key: value for key, value in values.items() if not math.isnan(value)}
    if not seen:
        return Crossed(math.nan, math.nan, math.nan, math.nan, 0, Resampled(math.nan, np.empty(0)))
    first, second = (list(dict.fromkeys(key[side] for key in seen)) for side in (0, 1))
    table, there = np.zeros((len(first), len(second))), np.zeros((len(first), len(second)))
    for (a, b), value in seen.items():
        place = first.index(a), second.index(b)
        table[place], there[place] = value, 1.0
    rng = np.random.default_rng(seed)
    rows, columns = (rng.multinomial(size, [1 / size] * size, RESAMPLES) for size in table.shape)
    sums, counts = (np.einsum("ri,ij,rj->r", rows, grid, columns) for grid in (table, there))
    means = np.divide(sums, counts, out=np.full(RESAMPLES, math.nan), where=counts > 0)
    everything = list(seen.values())
    found = Resampled(math.fsum(everything) / len(everything), means)
    return Crossed(found.value, *found.estimate.ci90, max(everything), len(everything), found)
