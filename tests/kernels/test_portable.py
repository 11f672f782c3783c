"""Functions in float32 with the same bits everywhere, against Decimal, and their bits against recorded ones."""

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import pytest

from lowprec.special.portable import RoundedFunction
from lowprec.testing import assert_bits_equal

_DIGITS = 120


def _pi():
    """Return pi by the arithmetic-geometric mean."""
    a, b, t, p = Decimal(1), Decimal("0.5").sqrt(), Decimal("0.25"), Decimal(1)
    for _ in range(8):
        a, b, t, p = (a + b) / 2, (a * b).sqrt(), t - p * ((a - b) / 2) ** 2, 2 * p
    return (a + b) ** 2 / (4 * t)


def _series(x, step):
    """Return the sum of 1, step(1) and so on, each term a multiple of the last one."""
    term, total, n = Decimal(1), Decimal(0), 0
    while abs(term) > Decimal(10) ** -(_DIGITS - 10) * max(abs(total), Decimal("1e-60")):
        total, n = total + term, n + 1
        term *= step(n)
    return total


def _sin(x):
    x %= 2 * _pi()
    return x * _series(x, lambda n: -x * x / (2 * n * (2 * n + 1)))


def _cdf(x):
    """Return the normal distribution function by the series of erf in powers of x, in enough digits for the tail."""
    odd = _series(x, lambda n: x * x / (2 * n + 1))
    return Decimal("0.5") + x * odd * (-x * x / 2).exp() / (2 * _pi()).sqrt()


def _sigmoid(x):
    return 1 / (1 + (-x).exp())


EXACT = {
    "exp": Decimal.exp, "log": Decimal.ln, "rsqrt": lambda x: 1 / x.sqrt(), "sin": _sin,
    "cos": lambda x: _sin(x + _pi() / 2), "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1), "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x), "gelu": lambda x: x * _cdf(x),
    "gelu_tanh": lambda x: x * _sigmoid((8 / _pi()).sqrt() * (x + Decimal("0.044715") * x**3)),
}  # fmt: skip


def inputs(name, count=200):
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(count) * 3, rng.uniform(-12, 12, count // 2), 2.0 ** rng.uniform(-20, 3, count // 2)]
    if name in ("sin", "cos"):
        x += [2.0 ** rng.uniform(3, 128, count // 4), [3.1415927, 16367173 * 2.0**72]]  # near multiples of pi / 2
    x = np.concatenate(x).astype(np.float32)
    return np.abs(x) if name in ("log", "rsqrt") else x


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_results_are_correctly_rounded(name):
    """No float32 number is nearer to the exact value than the result."""
    x = inputs(name)
    with localcontext(prec=_DIGITS):
        exact = [EXACT[name](Decimal(value)) for value in x.tolist()]
        found = RoundedFunction(name)(x)
        for value, y, e in zip(x.tolist(), found.tolist(), exact, strict=True):
            low, high = (Decimal(float(np.nextafter(np.float32(y), np.float32(to)))) for to in (-np.inf, np.inf))
            assert abs(Decimal(y) - e) <= min(abs(low - e), abs(high - e)), (value, y, e)


def test_special_values():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    expected = {
        "exp": [np.inf, 0, np.nan, 1, 1], "log": [np.inf, np.nan, np.nan, -np.inf, -np.inf],
        "rsqrt": [0, np.nan, np.nan, np.inf, -np.inf], "sin": [np.nan, np.nan, np.nan, 0.0, -0.0],
        "cos": [np.nan, np.nan, np.nan, 1, 1], "tanh": [1, -1, np.nan, 0.0, -0.0],
        "sigmoid": [1, 0, np.nan, 0.5, 0.5], "silu": [np.inf, -0.0, np.nan, 0.0, -0.0],
        "gelu": [np.inf, -0.0, np.nan, 0.0, -0.0], "gelu_tanh": [np.inf, -0.0, np.nan, 0.0, -0.0],
    }  # fmt: skip
    assert set(expected) == set(EXACT)
    for name, values in expected.items():
        assert_bits_equal(RoundedFunction(name)(x), np.array(values, np.float32), nan="any")


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_activations_of_large_numbers_are_zeros_or_the_numbers(name):
    x = np.array([3e38, 1e30, 100.0], np.float32)
    assert_bits_equal(RoundedFunction(name)(x), x)
    assert (RoundedFunction(name)(-x[:2]) == 0).all()


def test_vector_and_scalar_code_give_the_same_bits():
    for name in EXACT:
        x = inputs(name, 40)
        one_by_one = [RoundedFunction(name)(x[i : i + 1]) for i in range(len(x))]
        assert_bits_equal(RoundedFunction(name)(x), np.concatenate(one_by_one))


RECORDED = {
    "exp": "1dc87e9cdf85",
    "log": "7f98579dc334",
    "rsqrt": "40d0ec664275",
    "sin": "ff8f2bf0ed20",
    "cos": "353319f8c7f4",
    "tanh": "17213491c624",
    "sigmoid": "1d18fcfe90a6",
    "silu": "3d22a078562e",
    "gelu": "d90cfe8f96c1",
    "gelu_tanh": "a4123ed32fab",
}


def test_recorded_bits():
    x = np.arange(-12000, 12000, dtype=np.float32) / 128
    found = {name: np.nan_to_num(RoundedFunction(name)(x), nan=7.0) for name in EXACT}
    assert {name: hashlib.sha256(y.tobytes()).hexdigest()[:12] for name, y in found.items()} == RECORDED
