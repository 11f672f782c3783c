"""Statistical power of a design: detectable difference, power of the equivalence test, and number of pairs required."""

from __future__ import annotations

import math

#: Conventional power.
POWER = 0.80
#: Maximum number of pairs considered.
MOST_PAIRS = 10_000
# Midpoints of equally probable slices of the distribution of the estimated spread.
_SLICES = 512


def equivalence_power(sd: float, n: int, margin: float, df: float | None = None, difference: float = 0.0) -> float:
    """Return the probability that two one-sided tests at 5 % show equivalence.

    Parameters
    ----------
    sd : float
        Standard deviation of a paired difference, in the units of the margin.
    n : int
        Number of pairs.
    margin : float
        Equivalence margin.
    df : float, optional
        Degrees of freedom of the estimated spread, n - 1 by default.
    difference : float
        The true difference.

    Returns
    -------
    float
        The probability; 0 without degrees of freedom.

    Examples
    --------
    >>> round(equivalence_power(0.0006, 6, 0.0025), 3), round(equivalence_power(0.004, 6, 0.0025), 3)
    (1.0, 0.07)
    """
    import numpy as np
    from scipy import stats

    df = n - 1 if df is None else df
    if not df > 0 or math.isnan(sd):
        return 0.0
    if sd == 0.0:
        return float(abs(difference) < margin)
    # Given the estimated spread s, the interval is inside the margin exactly if |mean| < margin - t s / sqrt(n).
    probabilities = (np.arange(_SLICES) + 0.5) / _SLICES
    estimated = sd * np.sqrt(stats.chi2.ppf(probabilities, df) / df)
    reach = margin - stats.t.ppf(0.95, df) * estimated / math.sqrt(n)
    error = sd / math.sqrt(n)
    chance = stats.norm.cdf((reach - difference) / error) - stats.norm.cdf((-reach - difference) / error)
    return float(np.mean(np.maximum(chance, 0.0)))


def detectable_difference(sd: float, n: int, df: float | None = None, power: float = POWER) -> float:
    """Return the true difference whose 95 % interval excludes 0 with the given probability.

    Parameters
    ----------
    sd : float
        Standard deviation of a paired difference.
    n : int
        Number of pairs.
    df : float, optional
        Degrees of freedom of the estimated spread, n - 1 by default.
    power : float
        The probability.

    Returns
    -------
    float
        The difference in the units of `sd`; inf without degrees of freedom.

    Examples
    --------
    >>> round(detectable_difference(0.06, 6), 3)
    0.086
    """
    from scipy import optimize, stats

    df = n - 1 if df is None else df
    if not df > 0 or math.isnan(sd):
        return math.inf
    critical = float(stats.t.ppf(0.975, df))

    def lacking(shift: float) -> float:
        return float(stats.nct.sf(critical, df, shift)) - power

    return float(optimize.brentq(lacking, 0.0, critical + 40.0)) * sd / math.sqrt(n)


def pairs_needed(sd: float, margin: float, power: float = POWER) -> int:
    """Return the smallest number of pairs that show equivalence with the given probability if there is no difference.

    It is at most `MOST_PAIRS`.

    Examples
    --------
    >>> pairs_needed(0.0006, 0.0025), pairs_needed(0.002, 0.0025), pairs_needed(0.012, 0.0025)
    (3, 8, 199)
    """
    low, high = 1, 2
    while equivalence_power(sd, high, margin) < power:
        if high >= MOST_PAIRS:
            return MOST_PAIRS
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if equivalence_power(sd, middle, margin) >= power else (middle, high)
    return high
