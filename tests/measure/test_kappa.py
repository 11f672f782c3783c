"""Kappa: the draft's annex, and what makes it NaN."""

import math

import numpy as np
import pytest

import lowprec as lp
from lowprec.measure.kappa import kappa


@pytest.mark.parametrize(("precision", "steps"), [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8)])
def test_subnormals_flushed_to_the_nearer_end(precision: int, steps: int) -> None:
    """The annex: subnormals become 0 or the least normal number, whichever is nearer, ties 0: 2^(P - 2) steps."""
    f = lp.formats[f"binary8p{precision}se"]
    values = f.values()

    def flushed(codes: np.ndarray) -> np.ndarray:
        x = values[codes]
        size = np.abs(x)
        near = np.where(size <= f.smallest_normal / 2, 0, np.copysign(f.smallest_normal, x))
        return lp.encode(np.where(size < f.smallest_normal, near, x), f, policy="p3109_satnone")

    assert kappa(flushed, lambda codes: codes, f, f) == steps


def test_two_operands_and_zeros() -> None:
    f = lp.formats["e2m1fn"]

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return lp.encode(lp.decode(a, f) * lp.decode(b, f), f)

    assert kappa(product, product, (f, f), f) == 0
    assert kappa(lambda a, b: np.where(product(a, b) == 8, 0, product(a, b)), product, (f, f), f) == 1
    assert kappa(lambda a, b: product(a, b) ^ 8, product, (f, f), f) == 15


def test_specials_must_agree() -> None:
    f = lp.formats["e4m3fn"]
    assert math.isnan(kappa(lambda c: np.where(c == 0x7F, 0x7E, c), lambda c: c, f, f))
    assert math.isnan(kappa(lambda c: np.where(c == 0x7E, 0x7F, c), lambda c: c, f, f))
    assert kappa(lambda c: np.where(c == 0x7F, 0xFF, c), lambda c: c, f, f) == 0
    assert math.isnan(kappa(lambda c: np.where(c == 0x7C, 0xFC, c), lambda c: c, "e5m2", "e5m2"))
