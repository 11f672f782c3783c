"""LogFMT's error theory: signal-to-noise ratio, bias of the roundings, what zeros, clamps and tile lengths do."""

import numpy as np
import pytest
from logfmt_tiles import F, snr

from lowprec.logfmt import encode

N = 1 << 20


def draws(name, n=N):
    rng = np.random.default_rng(0)
    return {
        "gauss": lambda: rng.standard_normal(n),
        "laplace": lambda: rng.laplace(size=n),
        "uniform": lambda: rng.uniform(-1, 1, n),
        "t3": lambda: rng.standard_t(3, n),
    }[name]().astype(F)


def magnitudes(x):
    """Each tile's magnitudes, and its range in octaves."""
    tiles = np.abs(x.astype(np.float64)).reshape(-1, 128)
    return tiles, np.log2(tiles.max(axis=1) / tiles.min(axis=1))


def decibels(x, bits, **options):
    return snr(encode(x, bits, **options).decode(), x)


NOISE = {4: 1500, 5: 600, 6: 250}  # of a million draws
# Published measurements are of other draws; E|q| / E|x| - 1 in units of 1e-6.
MAGNITUDE = {
    ("gauss", 4): (-84751, 56316, 4666), ("gauss", 5): (-15354, 9765, 1166), ("gauss", 6): (-3328, 2143, 309),
    ("laplace", 5): (-19097, 12229, 1604), ("uniform", 4): (-28, 95908, 64218), ("uniform", 5): (-122, 19089, 12700),
}  # fmt: skip


@pytest.mark.parametrize(("name", "bits"), MAGNITUDE)
def test_bias_of_magnitudes(name, bits):
    """Linear rounding has none where the density is flat on every step; of what is rounded logarithmic has s^2/8."""
    x = draws(name)
    mean, noise = np.abs(x.astype(np.float64)).mean(), NOISE[bits] / (3 if name == "uniform" else 1)
    for rounding, expected in zip(("linear", "log", "logmean"), MAGNITUDE[name, bits], strict=True):
        bias = 1e6 * (np.abs(encode(x, bits, rounding=rounding).decode().astype(np.float64)).mean() / mean - 1)
        assert bias == pytest.approx(expected, rel=0.03, abs=noise)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gauss", "laplace", "t3"])
@pytest.mark.parametrize("bits", [5, 6, 7, 8])
def test_bias_against_the_theory(name, bits):
    """For a smooth density: -s^2/12, +s^2/24 and 0, s^2 weighted by magnitude; both ends of a tile are exact."""
    x = draws(name)
    tiles, octaves = magnitudes(x)
    s = np.log(2) * octaves / (2 ** (bits - 1) - 2)
    theory = (s**2 * (tiles.sum(axis=1) - tiles.max(axis=1))).sum() / tiles.sum()
    # The mean of what rounding adds, with the spread of its sum as a scale.
    for rounding, factor in (("linear", -1 / 12), ("log", 1 / 24), ("logmean", 0)):
        error = magnitudes(encode(x, bits, rounding=rounding).decode())[0] - tiles
        noise = error.sum(axis=1).std() * np.sqrt(len(tiles)) / tiles.sum()
        bias = error.sum() / tiles.sum()
        assert abs(bias - factor * theory) < 4 * noise + 0.03 * theory * (0.5 if rounding == "logmean" else 1)
    # The three differ by far more than that where the step is coarse.
    assert theory / 12 > 6 * noise or bits > 6


@pytest.mark.parametrize(("name", "more"), [("gauss", 0.5), ("laplace", 0.7), ("t3", 2.0)])
def test_signal_to_noise_by_the_formula(name, more):
    """13.98 + 20 log10((2^(n-1) - 2) / R) dB with R in octaves, a little more because the ends are exact."""
    x = draws(name)
    tiles, octaves = magnitudes(x)
    r = np.sqrt(np.average(octaves**2, weights=(tiles**2).sum(axis=1)))
    for bits in (7, 8, 10, 12):
        assert 0 < decibels(x, bits) - (13.98 + 20 * np.log10((2 ** (bits - 1) - 2) / r)) < more
    assert decibels(x, 11) - decibels(x, 10) == pytest.approx(6.02, abs=0.06)


#: Decibels by distribution, bits and options: published of other draws, rounding in the logarithm, clamps, tiles.
RATIOS = [
    *(("gauss", bits, {}, db) for bits, db in {4: 10.64, 6: 24.60, 8: 37.08, 9: 43.17, 10: 49.24, 12: 61.28}.items()),
    *(("laplace", bits, {}, db) for bits, db in {4: 10.07, 6: 23.76, 8: 36.19, 10: 48.33}.items()),
    *(("gauss", bits, {"rounding": "linear"}, db) for bits, db in {4: 10.56, 5: 17.96, 6: 24.53, 8: 37.00}.items()),
    *(("gauss", bits, {"rounding": "log"}, db) for bits, db in {4: 9.44, 5: 17.76, 6: 24.49, 8: 36.99}.items()),
    *(("gauss", 8, {"clamp_octaves": clamp}, db) for clamp, db in {5: 39.8, 6: 40.4, 7: 39.4, 32: 37.1}.items()),
    ("gauss", 10, {"clamp_octaves": 7}, 51.1),
    *(("gauss", 8, {"tile": n}, db) for n, db in {16: 42.2, 32: 40.0, 64: 38.4, 128: 37.0, 512: 35.0}.items()),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "bits", "options", "expected"), RATIOS)
def test_ratios(name, bits, options, expected):
    tolerance = 0.15 if "rounding" in options else 0.2
    assert decibels(draws(name), bits, **options) == pytest.approx(expected, abs=tolerance)
    tile = options.get("tile", 128)
    assert encode(np.ones(1024, F), bits, tile, meta="bf16").bits_per_value == bits + 32 / tile


def test_relative_error_is_half_a_step():
    """At most tanh(s / 2) for linear rounding and e^(s/2) - 1 for logarithmic, and that is reached."""
    x = np.concatenate([[2.0**-9, 1], np.exp2(np.random.default_rng(0).uniform(-9, 0, 200_000))]).astype(F)
    for bits in (5, 8, 10):
        s = 9 * np.log(2) / (2 ** (bits - 1) - 2)
        for rounding, bound in (("linear", np.tanh(s / 2)), ("log", np.expm1(s / 2))):
            worst = np.abs(encode(x, bits, x.size, rounding=rounding).decode().astype(np.float64) / x - 1).max()
            assert 0.99 * bound < worst < bound * (1 + 1e-4)


@pytest.mark.parametrize(("bits", "expected", "percent"), [(8, 25.9, 8.8), (10, 38.0, 2.2)])
def test_the_worst_range_of_a_tile(bits, expected, percent):
    """32 octaves: 25.9 dB and 8.8 % in 8 bits, 38.0 dB and 2.2 % in 10."""
    inner = np.exp2(np.random.default_rng(1).uniform(-1, 0, 100_000))
    y = np.concatenate([[2.0**-32, 1], inner]).astype(F)
    error = encode(y, bits, y.size).decode()[2:].astype(np.float64) / y[2:] - 1
    assert np.abs(error).max() == pytest.approx(percent / 100, rel=0.02)
    assert -20 * np.log10(np.sqrt((error**2).mean())) == pytest.approx(expected, abs=0.3)
    assert np.tanh(16 * np.log(2) / (2 ** (bits - 1) - 2)) >= np.abs(error).max() * (1 - 1e-4)
