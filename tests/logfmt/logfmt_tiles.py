"""Tiles, grids and thresholds that tests of LogFMT compare with: exact in float64, or by mpmath."""

import ml_dtypes
import mpmath
import numpy as np

from lowprec.logfmt import LogFMT

F, B = np.float32, ml_dtypes.bfloat16
mpmath.mp.prec = 200

TILES = {
    "gauss": lambda r: r.standard_normal(128),
    "few octaves": lambda r: r.uniform(1, 2, 128),
    "forty octaves": lambda r: np.exp2(r.uniform(-40, 0, 128)) * r.choice([-1, 1], 128),
    "zeros": lambda r: r.standard_normal(128) * (r.random(128) > 0.3),
    "one outlier": lambda r: np.where(np.arange(128) == 77, 5000, r.standard_normal(128)),
    "bfloat16": lambda r: r.standard_normal(128).astype(B),
    "subnormal": lambda r: r.integers(1, 2**12, 128) * 2.0**-149,
    "huge": lambda r: np.exp2(r.uniform(90, 127.9, 128)),
    "short": lambda r: r.standard_normal(37),
}


def gauss(*shape, sigma=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * sigma).astype(F)


def tokens(*shape, sigma=0.1, seed=0):
    return gauss(*shape, sigma=sigma, seed=seed).astype(B)


def snr(got, x):
    """The signal-to-noise ratio in decibels."""
    x = np.asarray(x).astype(np.float64)
    return 10 * np.log10((x**2).sum() / ((np.asarray(got, np.float64) - x) ** 2).sum())


def decoded_grid(amin, amax, bits):
    """The decoder's table of a tile: the values of codes 0 .. K."""
    codes = np.arange(2 ** (bits - 1), dtype=np.uint8 if bits <= 8 else np.uint16)
    return LogFMT(codes, np.array([amin], F), np.array([amax], F), bits, codes.size).decode()


def nearest_float32(value):
    """Round an mpmath number to float32, whatever `float` and NumPy do about ties of double rounding."""
    near = F(float(value))
    around = [np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf))]
    return near if mpmath.isinf(value) else min(around, key=lambda v: abs(mpmath.mpf(float(v)) - value))


def thresholds(grid, rule):
    """The smallest float32 number with each code from 2 on; sums and products of two grid values are exact in float64.

    What is rounded stochastically begins with the grid value at or below.
    """
    if rule == "stochastic":
        return grid[2:]
    below, above = (x.astype(np.float64) for x in (grid[1:-1], grid[2:]))
    if rule == "logmean":
        pairs = [(mpmath.mpf(low), mpmath.mpf(high)) for low, high in zip(below.tolist(), above.tolist(), strict=True)]
        means = [low if low == high else (high - low) / mpmath.log(high / low) for low, high in pairs]
        near = np.array([float(mean) for mean in means]).astype(F)
        reached = np.array([mpmath.mpf(float(x)) >= mean for x, mean in zip(near, means, strict=True)], bool)
    elif rule == "log":
        near = np.sqrt(below * above).astype(F)
        reached = near.astype(np.float64) ** 2 >= below * above
    else:
        near = ((below + above) / 2).astype(F)
        reached = 2 * near.astype(np.float64) >= below + above
    with np.errstate(over="ignore"):  # of what is not chosen
        return np.where(reached, near, np.nextafter(near, F(np.inf)))


def codes_by_counting(x, grid, steps):
    """Codes of magnitudes: how many thresholds are at or below; by every rule the first is half of the smallest."""
    return np.where(2 * np.abs(x.astype(np.float64)) < grid[1], 0, 1 + np.searchsorted(steps, np.abs(x), side="right"))


def same(a, b):
    return (
        np.array_equal(a.codes, b.codes)
        and np.array_equal(a.amin, b.amin)
        and np.array_equal(a.amax, b.amax, equal_nan=True)
        and a.decode().tobytes() == b.decode().tobytes()
    )
