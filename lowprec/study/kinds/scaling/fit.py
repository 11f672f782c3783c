"""A line through what cells say, with the interval that their checkpoints give it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...analysis.estimates import Resampled

Floats = NDArray[np.float64]
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Fit:
    """A linear fit.

    Attributes
    ----------
    coefficients : float64 array [columns]
        By least squares.
    resampled : float64 array [resamples, columns]
        The same of other samples of checkpoints; empty where there is a single one anywhere.
    """

    coefficients: Floats
    resampled: Floats

    def at(self, row: Sequence[float]) -> tuple[float, float, float]:
        """Return the value at a row of the design, or of a coefficient by a unit row, and its 90 % interval."""
        found = self.read(row).estimate
        return found.value, *found.ci90

    def read(self, row: Sequence[float]) -> Resampled:
        """Return the same in every resample; those of two fits of the same clusters are of the same clusters."""
        place = np.array(row, dtype=np.float64)
        return Resampled(float(self.coefficients @ place), self.resampled @ place)


def fit(
    design: Floats, values: Floats, strata: Sequence[Hashable], clusters: Sequence[Hashable], *, seed: int = 0
) -> Fit:
    """Fit values by least squares; the interval counts clusters as the sample, drawn within strata.

    A checkpoint of 600 steps is one of 300 that went on, so both are of one cluster, and the checkpoints of one size
    and text are a stratum. One cluster less than there are is drawn of each stratum, with weights to match (Rao and
    Wu, Journal of the American Statistical Association 1988): as many as there are would spread too little.

    Parameters
    ----------
    design : float64 array [n, columns]
        Of full rank.
    values : float64 array [n]
        What is fitted.
    strata, clusters : sequence of length n
        What each value belongs to.
    seed : int
        Of the resampling; the same seed gives the same interval.

    Examples
    --------
    >>> design = np.column_stack([np.ones(8), np.repeat([0.0, 1.0], 4)])
    >>> found = fit(design, np.arange(8.0), np.repeat([0, 1], 4), range(8))
    >>> found.coefficients.round(9).tolist(), np.round(found.at([0, 1]), 1).tolist()
    ([1.5, 4.0], [4.0, 2.7, 5.3])
    """
    coefficients: Floats = np.linalg.lstsq(design, values, rcond=None)[0].astype(np.float64)
    members: dict[Hashable, list[Hashable]] = {}
    for stratum, cluster in zip(strata, clusters, strict=True):
        members.setdefault(stratum, [])
        if cluster not in members[stratum]:
            members[stratum].append(cluster)
    if min(map(len, members.values())) < 2:
        return Fit(coefficients, np.empty((0, design.shape[1])))
    rng = np.random.default_rng(seed)
    weights: dict[tuple[Hashable, Hashable], Floats] = {}
    for stratum, found in members.items():
        size = len(found)
        drawn: Floats = rng.multinomial(size - 1, [1 / size] * size, RESAMPLES) * np.float64(size / (size - 1))
        weights |= {(stratum, cluster): drawn[:, place] for place, cluster in enumerate(found)}
    table = np.stack([weights[key] for key in zip(strata, clusters, strict=True)], axis=1)
    squares = np.einsum("rn,ni,nj->rij", table, design, design)
    products = np.einsum("rn,ni,n->ri", table, design, values)
    resampled: Floats = np.linalg.solve(squares, products[..., None])[..., 0].astype(np.float64)
    return Fit(coefficients, resampled)
