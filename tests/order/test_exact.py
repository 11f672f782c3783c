"""A fused multiply-add has one rounding."""

from fractions import Fraction

import numpy as np

from lowprec.oracle import FLOAT32, casts, decode
from lowprec.order.exact import fma

F = np.float32

#: Near ties: 2^-24 beside 1, products just below and just above it, tails that a sum in float64 would drop.
TIES = [(1, 2.0**-24, 1), (1, -(2.0**-24), 1), (1 + 2.0**-23, 2.0**-24, 1), (3e38, 2, -3e38), (1e-30, 1e-15, 0),
        (1e-30, 1e-15, 2.0**-149), (1, 0, -0.0), (2.0**-24, 1, 1), (2.0**-76, 2.0**-76, 2.0**-149),
        (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1), (2.0**-12 * (1 + 2.0**-23),) * 2 + (1,)]  # fmt: skip


def test_fma_against_rationals():
    rng = np.random.default_rng(0)
    abc = [np.ldexp(rng.integers(-(1 << 24), 1 << 24, 3000), rng.integers(-40, 5, 3000)).astype(F) for _ in range(3)]
    # c is a product's rounding, or far below it, so that a rounding to float64 would lose the difference.
    abc[2][::3] = -(abc[0][::3] * abc[1][::3])
    abc[2][1::3] = np.ldexp(F(1), -120)
    abc = np.concatenate([abc, np.transpose(F(TIES))], axis=1)
    for x, y, z, found in zip(*abc.tolist(), fma(*abc).tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert found == decode(casts.cast(exact, FLOAT32, "nearest_even", "ocp_nonsat"), FLOAT32), (x, y, z)
    with np.errstate(over="ignore", invalid="ignore"):
        found = fma(F([np.nan, np.inf, np.inf]), F([1, 1, 0]), F([1, 1, 1]))
    assert np.array_equal(found, [np.nan, np.inf, np.nan], equal_nan=True)
