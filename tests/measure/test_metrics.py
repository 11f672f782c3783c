"""Metrics against numbers worked out by hand, and in every corner where a wrong one would mislead; kappa."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

import lowprec as lp
from lowprec.measure import metrics
from lowprec.measure import spread as value_spread
from lowprec.measure.comparison import compare
from lowprec.measure.kappa import kappa

INF, NAN = math.inf, math.nan


def test_sqnr_is_the_definition():
    r = np.array([3.0, 4.0])
    assert metrics.sqnr(np.add(r, [0.05, 0.0]), r) == pytest.approx(10 * math.log10(25 / 0.0025), abs=1e-9)
    assert metrics.sqnr(r, r) == INF
    assert metrics.sqnr([1.0], [0.0]) == -INF
    assert metrics.sqnr([], []) == INF
    assert compare([], []).bit_match_fraction == 0


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_sqnr_neither_overflows_nor_vanishes(size):
    assert metrics.sqnr([1.01 * size, size], [size, size]) == pytest.approx(43.0103, abs=1e-4)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_value_that_is_not_finite_is_an_infinite_error(bad):
    r, a = np.array([1.0, 2.0, 3.0]), np.array([1.0, bad, 3.0])
    row = compare(a, r)
    assert (row.sqnr, row.relative_max, row.absolute_max, row.norm_error) == (-INF, INF, INF, INF)
    assert row.bit_match_fraction == 2 / 3
    # Both the other way round, and where it belongs there.
    assert metrics.sqnr(r, a) == -INF
    row = compare(a, a)
    assert (row.sqnr, row.relative_max, row.bit_match_fraction, row.ulp_max) == (INF, 0, 1, 0)
    assert metrics.sqnr([-INF], [INF]) == -INF


def test_relative_error():
    errors = metrics.relative_error([1.5, 0.0, 0.0, 1e-9, INF, INF, 2.0], [1.0, 0.0, 4.0, 0.0, 1.0, INF, INF])
    assert np.array_equal(errors, [0.5, 0.0, 1.0, NAN, INF, 0.0, INF], equal_nan=True)
    row = compare([1.1, 2.0, 5.0], [1.0, 2.0, 0.0])
    assert row.relative_max == pytest.approx(0.1)
    assert row.relative_rms == pytest.approx(0.1 / math.sqrt(2))
    assert row.absolute_max == 5.0


def place(x):
    """The number of float32 values between 0 and x, by arithmetic."""
    value, sign = abs(Fraction(float(x))), -1 if x < 0 else 1
    if value < Fraction(2) ** -126:
        return sign * int(value / Fraction(2) ** -149)
    exponent = math.frexp(float(x))[1] - 1
    return sign * ((exponent + 127) * 2**23 + int((value / Fraction(2) ** exponent - 1) * 2**23))


def test_last_places_are_counted_across_zero_and_binades():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(500) * np.exp2(rng.integers(-149, 120, 500))).astype(np.float32)
    places = np.array([place(a) for a in x])
    assert metrics.ulp_difference(x, np.roll(x, 1)).tolist() == np.abs(places - np.roll(places, 1)).tolist()
    assert metrics.ulp_difference([0.0, NAN, NAN], [-0.0, NAN, 1.0]).tolist() == [0, 0, INF]


def test_bits():
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert metrics.bit_match_fraction(other_nan, [NAN]) == 1
    assert metrics.bit_match_fraction([0.0, 1.0], [-0.0, 1.0]) == 0.5
    assert compare([0.0], [-0.0]).sqnr == INF  # equal in value all the same


def test_underflow_saturation_and_bias():
    r = np.array([0.0, 1e-9, -1e-9, 500.0, -600.0, 448.0])
    a = np.array([0.0, 0.0, -0.0, 448.0, -448.0, 448.0])
    assert metrics.underflow(a, r) == 2 / 5
    assert metrics.saturation(a, r, 448.0) == 2 / 6
    assert metrics.magnitude_bias(a, r) == pytest.approx(1344 / 1548.000000002 - 1)
    assert metrics.magnitude_bias([-2.0], [2.0]) == 0
    assert metrics.magnitude_bias([1.0], [0.0]) == INF
    assert metrics.underflow([0.0], [0.0]) == 0


def test_calc_diff_is_deepgemms():
    rng = np.random.default_rng(0)
    r = rng.standard_normal(1000)
    a = r + 1e-3 * rng.standard_normal(1000)
    assert metrics.calc_diff(a, r) == pytest.approx(1 - 2 * (a * r).sum() / (a * a + r * r).sum(), rel=1e-12)
    assert (metrics.calc_diff(np.zeros(3), np.zeros(3)), metrics.calc_diff(-r, r)) == (0, 2)


def test_kurtosis():
    assert value_spread.kurtosis([0.0, 0.0, 0.0, 1.0]) == pytest.approx(7 / 3)
    assert value_spread.kurtosis(np.random.default_rng(0).standard_normal(10**6)) == pytest.approx(3, abs=0.02)
    assert np.isnan([value_spread.kurtosis(nothing) for nothing in ([2.0, 2.0], [1.0], [])]).all()


def test_compare_is_one_row_and_reads_well():
    r = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    y = lp.codecs["logfmt8"].round_trip(r)
    row = lp.compare(y, r)
    assert list(row.as_dict()) == [field.name for field in dataclasses.fields(row)]
    assert repr(row).startswith("<Comparison: 3")
    assert "dB, relative error rms 0.0" in repr(row)
    assert row.sqnr == lp.sqnr(y, r)


# --- kappa ------------------------------------------------------------------------------------------------------------


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
