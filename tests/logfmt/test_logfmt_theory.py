"""LogFMT's error theory: signal-to-noise ratio, bias of the roundings, what zeros, clamps and tile lengths do."""

import numpy as np
import pytest

from lowprec.logfmt import encode

F = np.float32
N = 1 << 20


def draws(name, n=N):
    rng = np.random.default_rng(0)
    return {
        "gauss": lambda: rng.standard_normal(n),
        "laplace": lambda: rng.laplace(size=n),
        "uniform": lambda: rng.uniform(-1, 1, n),
        "t3": lambda: rng.standard_t(3, n),
    }[name]().astype(F)


def octaves_and_energy(x):
    """Each tile's range in octaves, and its energy."""
    tiles = np.abs(x.astype(np.float64)).reshape(-1, 128)
    return np.log2(tiles.max(axis=1) / tiles.min(axis=1)), (tiles**2).sum(axis=1)


def snr(x, bits, **options):
    wide = x.astype(np.float64)
    return 10 * np.log10((wide**2).sum() / ((encode(x, bits, **options).decode() - wide) ** 2).sum())


NOISE = {4: 1500, 5: 600, 6: 250}  # of a million draws
# Published measurements are of other draws; E|q| / E|x| - 1 in units of 1e-6.
MAGNITUDE = {
    ("gauss", 4): (-84751, 56316, 4666), ("gauss", 5): (-15354, 9765, 1166), ("gauss", 6): (-3328, 2143, 309),
    ("laplace", 5): (-19097, 12229, 1604), ("uniform", 4): (-28, 95908, 64218), ("uniform", 5): (-122, 19089, 12700),
}  # fmt: skip


@pytest.mark.parametrize(("name", "bits"), MAGNITUDE)
def test_bias_of_magnitudes(name, bits):
    x = draws(name)
    mean = np.abs(x.astype(np.float64)).mean()
    for rounding, expected in zip(("linear", "log", "logmean"), MAGNITUDE[name, bits], strict=True):
        bias = 1e6 * (np.abs(encode(x, bits, rounding=rounding).decode().astype(np.float64)).mean() / mean - 1)
        assert bias == pytest.approx(expected, rel=0.03, abs=NOISE[bits])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gauss", "laplace", "t3"])
@pytest.mark.parametrize("bits", [5, 6, 7, 8])
def test_bias_against_the_theory(name, bits):
    """For a smooth density: -s^2/12, +s^2/24 and 0, s^2 weighted by magnitude; both ends of a tile are exact."""
    x = draws(name)
    tiles = np.abs(x.astype(np.float64)).reshape(-1, 128)
    s = np.log(tiles.max(axis=1) / tiles.min(axis=1)) / (2 ** (bits - 1) - 2)
    inner = tiles.sum(axis=1) - tiles.max(axis=1)
    theory = (s**2 * inner).sum() / tiles.sum()
    # The mean of what rounding adds, with the spread of its sum as a scale.
    for rounding, factor in (("linear", -1 / 12), ("log", 1 / 24), ("logmean", 0)):
        error = np.abs(encode(x, bits, rounding=rounding).decode().astype(np.float64)).reshape(-1, 128) - tiles
        noise = error.sum(axis=1).std() * np.sqrt(len(tiles)) / tiles.sum()
        bias = error.sum() / tiles.sum()
        assert abs(bias - factor * theory) < 4 * noise + 0.03 * theory * (0.5 if rounding == "logmean" else 1)
    # The three differ by far more than that where the step is coarse.
    assert theory / 12 > 6 * noise or bits > 6


def test_rounding_is_unbiased_where_the_density_is_flat():
    """A flat density on every step: linear rounding has no bias, logarithmic about +s^2/8 of what is rounded."""
    x = draws("uniform")
    mean = np.abs(x.astype(np.float64)).mean()
    linear, log = (
        np.abs(encode(x, 4, rounding=rounding).decode()).astype(np.float64).mean() / mean - 1
        for rounding in ("linear", "log")
    )
    assert abs(linear) < 5e-4
    assert log > 0.09


@pytest.mark.parametrize("name", ["gauss", "laplace", "t3"])
def test_signal_to_noise_by_the_formula(name):
    """13.98 + 20 log10((2^(n-1) - 2) / R) dB with R in octaves, a little more because the ends are exact."""
    x = draws(name)
    octaves, energy = octaves_and_energy(x)
    r = np.sqrt((octaves**2 * energy).sum() / energy.sum())
    for bits in (7, 8, 10, 12):
        formula = 13.98 + 20 * np.log10((2 ** (bits - 1) - 2) / r)
        assert 0 < snr(x, bits) - formula < {"gauss": 0.5, "laplace": 0.7, "t3": 2.0}[name]
    assert snr(x, 11) - snr(x, 10) == pytest.approx(6.02, abs=0.06)


def test_mean_range_of_a_tile():
    for name, expected in (("gauss", 8.95), ("laplace", 10.2), ("t3", 10.3)):
        assert octaves_and_energy(draws(name))[0].mean() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gauss", {4: 10.64, 6: 24.60, 8: 37.08, 9: 43.17, 10: 49.24, 12: 61.28}),
        ("laplace", {4: 10.07, 6: 23.76, 8: 36.19, 10: 48.33}),
    ],
)
def test_published_ratios(name, expected):
    for bits, decibels in expected.items():
        assert snr(draws(name), bits) == pytest.approx(decibels, abs=0.2)


def test_rounding_in_the_logarithm_costs_decibels_at_few_bits():
    x = draws("gauss")
    for bits, linear, log in ((4, 10.56, 9.44), (5, 17.96, 17.76), (6, 24.53, 24.49), (8, 37.00, 36.99)):
        assert snr(x, bits) == pytest.approx(linear, abs=0.15)
        assert snr(x, bits, rounding="log") == pytest.approx(log, abs=0.15)


def test_relative_error_is_half_a_step():
    """At most tanh(s / 2) for linear rounding and e^(s/2) - 1 for logarithmic, and that is reached."""
    x = np.concatenate([[2.0**-9, 1], np.exp2(np.random.default_rng(0).uniform(-9, 0, 200_000))]).astype(F)
    for bits in (5, 8, 10):
        s = 9 * np.log(2) / (2 ** (bits - 1) - 2)
        for rounding, bound in (("linear", np.tanh(s / 2)), ("log", np.expm1(s / 2))):
            worst = np.abs(encode(x, bits, x.size, rounding=rounding).decode().astype(np.float64) / x - 1).max()
            assert 0.99 * bound < worst < bound * (1 + 1e-4)


def test_a_narrower_clamp_is_finer():
    x = draws("gauss", 1 << 18)
    for octaves, expected in ((5, 39.8), (6, 40.4), (7, 39.4), (32, 37.1)):
        assert snr(x, 8, clamp_octaves=octaves) == pytest.approx(expected, abs=0.2)
    assert snr(x, 10, clamp_octaves=7) == pytest.approx(51.1, abs=0.2)


def test_shorter_tiles_are_finer():
    x = draws("gauss", 1 << 18)
    for tile, expected, meta in ((16, 42.2, 2), (32, 40.0, 1), (64, 38.4, 0.5), (128, 37.0, 0.25), (512, 35.0, 0.0625)):
        assert snr(x, 8, tile=tile) == pytest.approx(expected, abs=0.2)
        assert encode(x, 8, tile, meta="bf16").bits_per_value == 8 + meta


def test_the_worst_range_of_a_tile():
    """32 octaves: 25.9 dB and 8.8 % in 8 bits, 38.0 dB and 2.2 % in 10."""
    x = np.exp2(np.random.default_rng(0).uniform(-32, 0, (2000, 128))).astype(F)
    x[:, 0], x[:, 1] = 1, 2.0**-32
    for bits, decibels, percent in ((8, 25.9, 8.8), (10, 38.0, 2.2)):
        s = 32 * np.log(2) / (2 ** (bits - 1) - 2)
        inner = np.exp2(np.random.default_rng(1).uniform(-1, 0, 100_000))
        y = np.concatenate([[2.0**-32, 1], inner]).astype(F)
        error = encode(y, bits, y.size).decode()[2:].astype(np.float64) / y[2:] - 1
        assert np.abs(error).max() == pytest.approx(percent / 100, rel=0.02)
        assert -20 * np.log10(np.sqrt((error**2).mean())) == pytest.approx(decibels, abs=0.3)
        assert np.tanh(s / 2) >= np.abs(error).max() * (1 - 1e-4)
