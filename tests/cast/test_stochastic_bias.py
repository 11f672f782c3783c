"""Stochastic rounding without bias: how often it rounds up against how often it should, in standard deviations."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.format.rounding import Rounding

N = 1 << 20
FRACTIONS = [2.0**-12, 0.1, 0.5, 0.9]


def z_score(ups: int, p: float) -> float:
    return (ups - N * p) / np.sqrt(N * p * (1 - p))


def ups(value: float, name: str, mode: str | Rounding, seed: int) -> int:
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


def test_few_bits_have_the_bias_that_is_theirs() -> None:
    """With 8 bits nobody sees 2^-12, and 0.1 = 25.6 / 256 is 25 / 256 to variant A, 26 / 256 to B: by definition."""
    value = 1 + 2.0**-3 * 2.0**-12
    assert ups(value, "e4m3fn", Rounding.stochastic(8, "A"), 0) == 0
    assert ups(value, "e4m3fn", Rounding.stochastic(8, "B"), 0) == 0
    assert abs(z_score(ups(1 + 2.0**-3 * 0.1, "e4m3fn", Rounding.stochastic(8, "A"), 1), 25 / 256)) < 4
    assert abs(z_score(ups(1 + 2.0**-3 * 0.1, "e4m3fn", Rounding.stochastic(8, "B"), 1), 26 / 256)) < 4


def test_errors_average_out() -> None:
    """The mean error of many different values, in standard deviations of the mean."""
    x = np.random.default_rng(4).standard_normal(N).astype(np.float32)
    for mode in ("stochastic", "stochastic_c"):
        error = lp.round_to(x, "e4m3fn", rounding=mode, seed=9).astype(np.float64) - x
        assert abs(error.mean() / (error.std() / np.sqrt(N))) < 4
    cut = lp.round_to(np.abs(x), "e4m3fn", rounding="toward_zero").astype(np.float64) - np.abs(x)
    assert cut.mean() / (cut.std() / np.sqrt(N)) < -100
