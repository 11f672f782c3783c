"""Probability of errors as large as those of a result, by the model of independent roundings."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import round_to
from ..format.catalogue import Format, formats
from .checksum import Values

#: Smallest probability that is accepted, and margin of the model.
LEAST_P, MARGIN = 1e-6, 1.25
_HUGE, _MOST = 1e9, 16.0  # limits of an error and of its square in sums


class Model(NamedTuple):
    """Model of the errors of correct results, before the results are rounded to their format.

    Attributes
    ----------
    scale : float64 array [M, N]
        Standard deviation of each output.
    tails : float
        Width of the tails relative to a normal distribution, by which the largest error is divided.
    drift : float
        Mean of the errors relative to `scale`; positive away from zero.
    """

    scale: Values
    tails: float
    drift: float

    def probability(self, d: Values, exact: Values, judged: NDArray[np.bool_], target: Format) -> tuple[float, Values]:
        """Return the probability of errors as large as those of a result, and the errors relative to expected ones.

        A result in a narrow format reveals an error z only if z exceeds the distance t to the nearest number that
        rounds to another result. For a normal z with density phi, E[z^2; z > t] <= t phi(t) + exp(-t^2 / 2) / 2 on
        either side. Bernstein's inequality bounds the probability that sums of squares, each limited to a constant,
        exceed their mean.
        """
        scale = self.scale.reshape(d.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            off, below, above = _before_rounding(d, exact, target)
            z, *ends = (np.nan_to_num(np.abs(x) / scale, nan=0.0, posinf=_HUGE) for x in (off, below, above))
        z[~judged] = 0.0
        mean, square = np.zeros(d.shape), np.zeros(d.shape)
        for t in ends:
            decay, density = np.exp(-np.square(np.minimum(t, 30)) / 2), np.minimum(t, 30)
            mean += density * decay / math.sqrt(2 * math.pi) + decay / 2
            square += (density**3 + 3 * density) * decay / math.sqrt(2 * math.pi) + 1.5 * decay
        excess = np.minimum(np.square(z), _MOST) - mean
        found = [2 * d.size * tail(float(z.max(initial=0.0)) / self.tails)]
        for axis, count in ((None, 1), (0, d.shape[-1]), (1, d.shape[0])):
            over = np.maximum(excess.sum(axis=axis), 0.0)
            powers = np.square(over) / 2 / (square.sum(axis=axis) + _MOST * over / 3 + 1e-300)
            found.append(count * float(np.exp(-np.max(powers, initial=0.0))))
        signed = float((np.sign(off) * np.sign(exact) * np.minimum(z, 4.0))[judged].sum())
        drift = max(abs(signed) - self.drift * float(mean[judged].sum()), 0.0)
        found.append(2 * math.exp(-(drift**2) / 2 / (float(mean[judged].sum()) + 4 * drift / 3 + 1e-300)))
        return min(1.0, *found), z


def tail(x: float) -> float:
    """Return the probability that a standard normal number exceeds x."""
    return math.erfc(x / math.sqrt(2)) / 2


def quantile(p: float) -> float:
    """Return z >= 1 such that a standard normal number exceeds z in magnitude with probability p."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * tail(middle) > p else (low, middle)
    return max(high, 1.0)


def _before_rounding(d: Values, exact: Values, target: Format) -> tuple[Values, Values, Values]:
    """Return three distances from the exact number, which bound the error of a result before it was rounded.

    The first is the distance to the nearest number that rounds to the result. The others are the distances to the
    nearest numbers, below and above, that do not round as the exact number does.
    """
    if target.same_codes(formats["float32"]):
        return d - exact, np.zeros(d.shape), np.zeros(d.shape)
    right = round_to(exact, target).astype(np.float64)
    found = []
    for x in (d, right):
        mantissa, power = np.frexp(np.nan_to_num(np.abs(x), posinf=0.0))
        ulp = np.ldexp(1.0, np.maximum(power - 1, target.emin) - target.mantissa_bits)
        # Below a power of two, numbers are twice as dense.
        inner = np.where((mantissa == 0.5) & (power - 1 > target.emin), ulp / 4, ulp / 2)
        found.append((np.where(x > 0, inner, ulp / 2), np.where(x < 0, inner, ulp / 2)))
    low, high = found[0]
    off = d - exact
    shown: Values = np.where(off > 0, np.maximum(off - low, 0.0), np.minimum(off + high, 0.0))
    low, high = found[1]
    return shown, np.maximum(exact - right + low, 0.0), np.maximum(right - exact + high, 0.0)
