"""Stochastic rounding without bias: how often it rounds up against how often it should, in standard deviations."""

import numpy as np
import pytest

import lowprec as lp

N = 1 << 20
FRACTIONS = [2.0**-12, 0.1, 0.5, 0.9]


def z_score(ups: int, p: float) -> float:
    return (ups - N * p) / np.sqrt(N * p * (1 - p))


def ups(value: float, name: str, mode: str, seed: int) -> int:
    low = float(lp.round_to(value, name, rounding="toward_zero"))
    high = lp.formats[name].nextafter(low, np.inf)
    y = lp.round_to(np.full(N, value, np.float32), name, rounding=mode, seed=seed)
    assert set(np.unique(y).tolist()) <= {low, high}
    return int(np.count_nonzero(y == np.float32(high)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ["stochastic", "stochastic_b", "stochastic_c"])
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "bfloat16", "e2m1fn"])
def test_no_bias(name: str, mode: str) -> None:
    """At 1 + f ulp and at f smallest subnormals; 48 z-scores, none beyond 4."""
    f = lp.formats[name]
    for i, p in enumerate(FRACTIONS):
        for k, (at, unit) in enumerate(((1.0, f.eps), (0.0, f.smallest_subnormal))):
            seed = 1000 * f.bits + 100 * f.mantissa_bits + 10 * k + i
            value = np.float32(at + p * unit)
            if name == "bfloat16" and at == 0.0:
                continue  # float32's own quanta are too coarse there to say 0.1
            exact = (float(value) - at) / unit
            assert abs(z_score(ups(float(value), name, mode, seed), exact)) < 4
