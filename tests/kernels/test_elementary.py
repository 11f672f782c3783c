"""exp64 and log64 against the standard library's correctly rounded decimals, and their bits against recorded ones."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from lowprec._jit import kernel
from lowprec.kernels.elementary import exp64, log64
from lowprec.testing import assert_bits_equal


@kernel
def _exp_all(x, out):
    for i in range(x.size):
        out[i] = exp64(x[i])


@kernel
def _log_all(x, out):
    for i in range(x.size):
        out[i] = log64(x[i])


def vector(loop, values):
    x = np.asarray(values, dtype=np.float64)
    out = np.empty_like(x)
    loop(x, out)
    return out


def ulps(results, inputs, exact):
    """Largest distance to the exact value, in units of the last place of the result."""
    worst = 0.0
    with localcontext(prec=40):
        for x, y in zip(inputs.tolist(), results.tolist(), strict=True):
            worst = max(worst, abs(float((Decimal(y) - exact(Decimal(x))) / Decimal(math.ulp(y)))))
    return worst


def exp_inputs():
    rng = np.random.default_rng(0)
    ties = (np.arange(-1074, 1024) + 0.5) * math.log(2)  # where the reduction changes its integer
    near_ties = np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])
    return np.concatenate([rng.uniform(-745, 709.7, 1000), rng.uniform(-1, 1, 1000), rng.choice(near_ties, 1500)])


def log_inputs():
    rng = np.random.default_rng(1)
    near_one = 1.0 + np.arange(-200, 200) * 2.0**-52
    split = math.sqrt(0.5) * (1 + np.arange(-20, 20) * 2.0**-52)
    return np.concatenate([
        np.exp(rng.uniform(-744, 709, 1000)), rng.uniform(0.5, 2, 1000), near_one[near_one != 1], split, 4 * split,
    ])  # fmt: skip


BOTH = pytest.mark.parametrize(
    ("loop", "exact", "inputs"), [(_exp_all, Decimal.exp, exp_inputs), (_log_all, Decimal.ln, log_inputs)]
)


@BOTH
def test_within_one_ulp(loop, exact, inputs):
    x = inputs()
    assert ulps(vector(loop, x), x, exact) < 1


@pytest.mark.sampled(1)
@BOTH
def test_the_check_notices_an_error_of_one_and_a_half_ulp(loop, exact, inputs):
    x = inputs()
    with localcontext(prec=40):
        right = np.array([float(exact(Decimal(value))) for value in x.tolist()])
    assert ulps(np.nextafter(np.nextafter(right, np.inf), np.inf), x, exact) >= 1.5
    assert np.mean(vector(loop, x) == right) > 0.85  # and nearly all of ours are correctly rounded


@BOTH
def test_vector_and_scalar_code_give_the_same_bits(loop, exact, inputs):
    x = inputs()
    one_by_one = np.array([vector(loop, [value])[0] for value in x[:300]])
    assert vector(loop, x)[:300].tobytes() == one_by_one.tobytes()


def test_special_values():
    x = [0.0, -0.0, np.inf, -np.inf, np.nan]
    x += [709.782712893384, 709.7827128933841, -745.1332191019411, -745.1332191019412]
    want = [1.0, 1.0, np.inf, 0.0, np.nan, float.fromhex("0x1.fffffffffff2ap+1023"), np.inf, 5e-324, 0.0]
    assert_bits_equal(vector(_exp_all, x), want, nan="any")
    x = [1.0, 0.0, -0.0, np.inf, np.nan, -1.0, -np.inf, -5e-324]
    want = [0.0, -np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, np.nan]
    assert_bits_equal(vector(_log_all, x), want, nan="any")


def test_float32_results_are_those_of_the_rounded_double():
    x = np.random.default_rng(2).standard_normal(2000).astype(np.float32) * 4
    with localcontext(prec=40):
        want = np.array([float(Decimal(value).exp()) for value in x.tolist()]).astype(np.float32)
    assert vector(_exp_all, x).astype(np.float32).tobytes() == want.tobytes()


# A few that are not correctly rounded are among them, so that a change of the arithmetic shows.
RECORDED = [
    (_exp_all, 1.0, "0x1.5bf0a8b14576ap+1"), (_exp_all, -1.0, "0x1.78b56362cef38p-2"),
    (_exp_all, 0.3466, "0x1.6a0c5906bc779p+0"), (_exp_all, -87.33654, "0x1.00004fb384ca0p-126"),
    (_exp_all, 88.72284, "0x1.00000ee7564e4p+128"), (_exp_all, -0.6931471805599453, "0x1.0000000000000p-1"),
    (_exp_all, 1e-3, "0x1.0041919b7ee34p+0"), (_log_all, 2.0, "0x1.62e42fefa39efp-1"),
    (_log_all, 10.0, "0x1.26bb1bbb55516p+1"), (_log_all, 0.1, "-0x1.26bb1bbb55515p+1"),
    (_log_all, 256.0, "0x1.62e42fefa39efp+2"), (_log_all, 1.0000001, "0x1.ad7f2847b6492p-24"),
    (_log_all, 0.70710678, "-0x1.62e4300c77ae8p-2"), (_log_all, 3e-310, "-0x1.6459f44103e87p+9"),
]  # fmt: skip


def test_recorded_bits():
    assert [vector(loop, [x])[0].hex() for loop, x, _ in RECORDED] == [y for _, _, y in RECORDED]
