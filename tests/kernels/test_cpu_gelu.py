"""GELU as PyTorch's CPU kernels compute it: near the exact values, limits, recorded bits.

`tests/frameworks/test_torch_emulate.py` compares the bits with PyTorch.
"""

import hashlib

import numpy as np
import pytest

from lowprec.kernels.cpu_gelu import FUNCTIONS
from lowprec.special.cpu import CpuGelu
from lowprec.special.portable import RoundedFunction
from lowprec.testing import assert_bits_equal

#: Largest errors in units of the last place of x / 2.
ULPS = {"aten": 6, "glibc": 2, "onednn": 8, "onednn_ftz": 8, "sleef_tanh": 2, "glibc_tanh": 4}
X = np.arange(-12000, 12000, dtype=np.float32) / 1024


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_near_the_exact_values(name):
    exact = RoundedFunction("gelu_tanh" if "tanh" in name else "gelu")
    x = X[X != 0]
    error = np.abs(CpuGelu(name)(x).astype(np.float64) - exact(x).astype(np.float64))
    assert ULPS[name] / 2 < (error / np.spacing(np.abs(x) / 2)).max() <= ULPS[name]


def test_special_values():
    """oneDNN's polynomial multiplies infinity by 0; the other functions do so for -inf only."""
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 100.0, -100.0], np.float32)
    for name in FUNCTIONS:
        of_inf = np.nan if name.startswith("onednn") else np.inf
        expected = np.array([of_inf, np.nan, np.nan, 0.0, -0.0, 100.0, -0.0], np.float32)
        assert_bits_equal(CpuGelu(name)(x), expected, nan="any")
    assert_bits_equal(CpuGelu("onednn_ftz")(np.float32([2.0**-126, -(2.0**-126)])), np.float32([0.0, -0.0]))


RECORDED = {
    "aten": "f424d8e6c3f6",
    "glibc": "9e68176e7ca1",
    "onednn": "2cf4a64ea749",
    "onednn_ftz": "2cf4a64ea749",
    "sleef_tanh": "bdd8431316c7",
    "glibc_tanh": "27aeda8a25e5",
}


def test_recorded_bits():
    found = {name: hashlib.sha256(CpuGelu(name)(X).tobytes()).hexdigest()[:12] for name in FUNCTIONS}
    assert found == RECORDED


def test_an_unknown_function_is_an_error():
    with pytest.raises(ValueError, match="CpuGelu: function must be one of 'aten'"):
        CpuGelu("atan")
