"""LogFMT against exact rational arithmetic and mpmath, which share nothing with the kernels."""

import itertools
import zlib
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec.kernels.logfmt import grid as kernels
from lowprec.kernels.logfmt import tables
from lowprec.logfmt import LogFMT, encode
from lowprec.oracle.logfmt import logfmt_tile

F = np.float32
mpmath.mp.prec = 200

# --- the oracle ------------------------------------------------------------------------------------------------------


def oracle_tile(x: np.ndarray, bits: int, octaves: int = 32) -> tuple[list[int], list[Fraction]]:
    """Codes with signs, and the magnitudes that they stand for."""
    codes, values = logfmt_tile(x.tolist(), bits, octaves)
    return [c | int(np.signbit(v)) << (bits - 1) for c, v in zip(codes, x, strict=True)], values


def oracle_grid(amin: float, amax: float, bits: int) -> list[Fraction]:
    """What the codes 0 .. K decode to, by 200-bit logarithms: correctly rounded powers between exact ends."""
    top = 2 ** (bits - 1) - 1
    low, high = max(mpmath.mpf(amin), mpmath.mpf(amax) / 2**32), mpmath.mpf(amax)
    powers = [low * (high / low) ** (mpmath.mpf(k) / (top - 1)) for k in range(1, top - 1)]
    return [Fraction(float(v)) for v in (0, low, *map(nearest_float32, powers), high)]


def nearest_float32(value: mpmath.mpf) -> float:
    near = F(float(value))
    around = [np.nextafter(near, F(0)), near, np.nextafter(near, F(np.inf))]
    return float(min(around, key=lambda v: abs(mpmath.mpf(float(v)) - value)))


def kernel_grid(amin: float, amax: float, bits: int, octaves: int = 32) -> np.ndarray:
    """The decoder's table of a tile: the values of codes 0 .. K."""
    top = 2 ** (bits - 1) - 1
    codes = np.arange(top + 1, dtype=np.uint8 if bits <= 8 else np.uint16)
    return LogFMT(codes, np.array([amin], F), np.array([amax], F), bits, top + 1, octaves).decode()


TILES = {
    "gauss": lambda r: r.standard_normal(128),
    "few octaves": lambda r: r.uniform(1, 2, 128),
    "forty octaves": lambda r: np.exp2(r.uniform(-40, 0, 128)) * r.choice([-1, 1], 128),
    "zeros": lambda r: r.standard_normal(128) * (r.random(128) > 0.3),
    "one outlier": lambda r: np.where(np.arange(128) == 77, 5000, r.standard_normal(128)),
    "bfloat16": lambda r: r.standard_normal(128).astype(ml_dtypes.bfloat16),
    "subnormal": lambda r: r.integers(1, 2**12, 128) * 2.0**-149,
    "huge": lambda r: np.exp2(r.uniform(90, 127.9, 128)),
    "short": lambda r: r.standard_normal(37),
}

# --- codes and values, exactly ---------------------------------------------------------------------------------------


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("bits", [3, 4, 8, 10])
def test_codes_and_values_are_the_oracles(name, bits):
    x = TILES[name](np.random.default_rng(bits)).astype(F)
    z = encode(x, bits)
    codes, wanted = oracle_tile(x, bits)
    assert z.codes.tolist() == codes
    values = z.decode()
    assert [abs(Fraction(float(v))) for v in values] == wanted
    assert np.array_equal(np.signbit(values), np.signbit(x))


@pytest.mark.parametrize("octaves", [1, 6, 31])
def test_other_clamps(octaves):
    x = TILES["forty octaves"](np.random.default_rng(0)).astype(F)
    assert encode(x, 8, clamp_octaves=octaves).codes.tolist() == oracle_tile(x, 8, octaves)[0]
    smallest_kept = np.abs(encode(x, 8, clamp_octaves=octaves).decode()).max() * F(2.0**-octaves)
    assert np.sort(np.unique(np.abs(encode(x, 8, clamp_octaves=octaves).decode())))[1] >= smallest_kept


@pytest.mark.slow
def test_every_grid_value_is_correctly_rounded():
    rng = np.random.default_rng(1)
    checked = 0
    for bits, tiles in ((3, 40), (8, 24), (10, 8), (12, 2), (16, 1)):
        for _ in range(tiles):
            amax = F(np.exp2(rng.uniform(-100, 100)))
            amin = F(amax * F(np.exp2(-rng.uniform(0, 40))))
            grid = oracle_grid(float(amin), float(amax), bits)
            assert [Fraction(float(v)) for v in kernel_grid(amin, amax, bits)] == grid
            checked += len(grid)
    assert checked > 40_000


def reference_codes(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Codes of magnitudes by counting the thresholds at or below; sums of two grid values are exact in float64."""
    wide = grid.astype(np.float64)
    return np.searchsorted(wide[:-1] + wide[1:], 2 * np.abs(x.astype(np.float64)), side="right")


PAIRS = [
    (1.0, 1.0 + 2**-23), (1.0, 1.0 + 2**-20), (0.75, 0.75 * (1 + 2**-12)), (1.0, 2.0), (0.1, 0.7), (2**-7, 1.0),
    (1e-3, 3.3), (2.0**-32, 1.0), (2.0**-33, 1.0), (1e-12, 5.0), (2.0**-149, 2.0**-148), (2.0**-149, 2.0**-126),
    (2.0**-149, 1.5 * 2.0**-118), (2.0**-149, 1.5 * 2.0**-117), (2.0**-149, 1.0), (1.1754944e-38, 3.0e-38),
    (1e30, 3.4028235e38), (3.4028233e38, 3.4028235e38),
]  # fmt: skip


@pytest.mark.parametrize("bits", [3, 5, 8, 10, 13, 16])
def test_codes_next_to_every_threshold(bits):
    """Both ends of the range, near-constant, subnormal and clamped tiles; each threshold and its float32 neighbours."""
    for amin, amax in PAIRS:
        amin, amax = F(amin), F(amax)
        grid = kernel_grid(amin, amax, bits)
        assert np.all(np.diff(grid) >= 0)
        middle = ((grid[:-1].astype(np.float64) + grid[1:]) / 2).astype(F)
        bits_near = middle.view(np.uint32)[:, None] + np.array([-1, 0, 1], np.int32).view(np.uint32)
        near = np.concatenate([bits_near.view(F).ravel(), grid])
        x = np.concatenate([[amin, amax], near[(near >= amin) & (near <= amax)], [0.0]]).astype(F)
        z = encode(x, bits, tile=x.size)
        assert np.array_equal(z.codes, reference_codes(x, grid)), (amin, amax)
        assert np.array_equal(encode(-x, bits, tile=x.size).codes, z.codes | (1 << (bits - 1)))


@pytest.mark.parametrize("bits", [4, 8, 10])
@pytest.mark.parametrize("ends", [(2.0**-7, 1.0), (0.0123, 3.14), (2.0**-40, 7.0), (1e-38, 1e-30), (2.0**-133, 1e-36)])
def test_every_bfloat16_magnitude_between_two_ends(bits, ends):
    low, high = (F(ml_dtypes.bfloat16(end)) for end in ends)
    every = np.arange(1, 0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(F)
    x = every[(every >= low) & (every <= high)]
    z = encode(x, bits, tile=x.size)
    assert (z.amin[0], z.amax[0], z.meta_bits) == (low, high, 32)
    assert np.array_equal(z.codes, reference_codes(x, kernel_grid(low, high, bits)))


def test_random_tiles_in_bulk():
    x = np.random.default_rng(3).standard_t(3, (64, 1024)).astype(F)
    for bits in (8, 10):
        z = encode(x, bits)
        for row in range(0, 64, 7):
            for tile in range(8):
                part = x[row, 128 * tile : 128 * tile + 128]
                expected = reference_codes(part, kernel_grid(z.amin[row, tile], z.amax[row, tile], bits))
                assert np.array_equal(z.codes[row, 128 * tile : 128 * tile + 128] & (2 ** (bits - 1) - 1), expected)


# --- published and hand-made vectors ---------------------------------------------------------------------------------

# Magnitude codes of 4 bits on the grid 1, 2, 4 .. 64.
HAND = {
    0.0: 0, 1.4999999: 1, 1.45: 1, 1.5: 2, 2.9999998: 2, 3.0: 3, 23.999998: 5, 24.0: 6, 48.0: 7,
    1.0: 1, 2.0: 2, 4.0: 3, 8.0: 4, 16.0: 5, 32.0: 6, 64.0: 7,
}  # fmt: skip


def test_powers_of_two_by_hand():
    x = np.ones(128, F)
    x[: len(HAND)] = list(HAND)
    assert encode(x, bits=4).codes[: len(HAND)].tolist() == list(HAND.values())
    assert encode(-x, bits=4).codes[: len(HAND)].tolist() == [code | 8 for code in HAND.values()]
    assert kernel_grid(1, 64, 4).tolist() == [0, 1, 2, 4, 8, 16, 32, 64]


MUTANTS = {
    "logarithmic rounding": lambda a, b, x: x * x >= a * b,
    "ties to the smaller": lambda a, b, x: 2 * x > a + b,
    "truncation": lambda a, b, x: x >= b,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_roundings_do_not_pass_the_hand_vectors(name):
    grid = [Fraction(v) for v in (1, 2, 4, 8, 16, 32, 64)]
    rule = MUTANTS[name]

    def code(x):
        x = abs(Fraction(x))
        return 0 if 2 * x < grid[0] else 1 + sum(rule(a, b, x) for a, b in itertools.pairwise(grid))

    assert any(code(v) != HAND[v] for v in HAND)


def test_a_wrong_minimum_or_clamp_does_not_pass():
    # Zeros counted as the smallest magnitude would stretch the grid to 32 octaves; no clamp would to 40.
    x = np.array([0, 1, 1.5, 2], F)
    assert encode(x, 8).decode() == pytest.approx(x, rel=2.0 ** (0.5 / 126) - 1)
    x = np.array([2.0**-40, 2.0**-33, 2.0**-32, 1.0], F)
    assert encode(x, 8).codes.tolist() == [0, 1, 1, 127]
    assert encode(x, 8).amin[0] == F(2.0**-40)  # the raw one is sent


@pytest.mark.parametrize(
    ("bits", "codes_crc", "values_crc"), [(8, 0xBFEC1FF6, 0x0C8F8287), (10, 0x90EE8272, 0x02778599)]
)
def test_a_ramp_bit_for_bit(bits, codes_crc, values_crc):
    x = np.array([(i + 1) / 128 * (-1) ** (i + 1) for i in range(128)], F)
    z = encode(x, bits)
    assert (z.amin[0], z.amax[0]) == (2**-7, 1)
    assert zlib.crc32(z.codes.astype("<u2").tobytes()) == codes_crc
    assert zlib.crc32(z.decode().astype("<f4").tobytes()) == values_crc
    if bits == 8:
        grid = kernel_grid(2**-7, 1, 8).view(np.uint32)[[1, 2, 3, 64, 126, 127]]
        assert [f"{v:08x}" for v in grid] == ["3c000000", "3c050672", "3c0a3f66", "3db504f3", "3f76544d", "3f800000"]
        assert z.codes[:8].tobytes().hex() == "81139e25ab30b437"
        assert z.codes[120:].tobytes().hex() == "fe7efe7efe7fff7f"


# --- algebra ---------------------------------------------------------------------------------------------------------

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
ordinary = st.floats(2.0**-10, 2.0**10, width=32)
several = settings(deadline=None, max_examples=60)


@several
@given(st.lists(floats, min_size=1, max_size=300), st.integers(3, 12), st.sampled_from([1, 7, 128]))
def test_any_input_is_odd_monotone_and_exact_at_its_ends(values, bits, tile):
    x = np.array(values, F)
    z = encode(x, bits, tile)
    y = z.decode()
    assert np.array_equal(np.signbit(y), np.signbit(x))
    assert encode(-x, bits, tile).decode().tobytes() == (-y).tobytes()
    for first in range(0, x.size, tile):
        a, b = np.abs(x[first : first + tile]), np.abs(y[first : first + tile])
        order = np.argsort(a, kind="stable")
        assert np.all(np.diff(b[order]) >= 0)
        assert b.max() == a.max()
        assert np.all(b[a == 0] == 0)
        if (a > 0).any() and a[a > 0].min() >= a.max() * 2.0**-32:
            assert b[a > 0].min() == a[a > 0].min()


@several
@given(st.lists(ordinary, min_size=1, max_size=200), st.sampled_from([4, 8, 10]))
def test_encoding_the_decoded_changes_nothing(values, bits):
    x = np.array(values, F)
    z = encode(x, bits)
    again = encode(z.decode(), bits)
    assert np.array_equal(again.codes, z.codes)
    assert again.decode().tobytes() == z.decode().tobytes()


@several
@given(st.lists(ordinary, min_size=1, max_size=200), st.integers(-80, 80))
def test_a_power_of_two_scales_through(values, exponent):
    x = np.array(values, F)
    scaled = encode(x * F(2.0**exponent))
    assert np.array_equal(scaled.codes, encode(x).codes)
    assert np.array_equal(scaled.decode(), encode(x).decode() * F(2.0**exponent))


# --- the constants and the two functions -----------------------------------------------------------------------------


def test_every_constant_is_the_nearest_double():
    ln2 = mpmath.log(2)
    exact = {
        "LOG2": [mpmath.log(1 + mpmath.mpf(j) / 128, 2) for j in range(128)],
        "EXP2": [mpmath.mpf(2) ** (mpmath.mpf(i) / 64) for i in range(64)],
        "LOG2_SERIES": [(-1) ** (k + 1) / (k * ln2) for k in range(1, 9)],
        "EXP2_SERIES": [ln2**k / mpmath.factorial(k) for k in range(1, 7)],
    }
    for name, values in exact.items():
        assert [float(v).hex() for v in values] == [v.hex() for v in getattr(tables, name).tolist()]


def test_the_logarithm_and_the_exponential():
    rng = np.random.default_rng(0)
    for x in [*np.exp2(rng.uniform(0, 33, 2000)), *(1 + np.exp2(rng.uniform(-24, 0, 500)))]:
        assert abs(kernels.log2_exact_ops(x) - mpmath.log(mpmath.mpf(x), 2)) <= 2.0**-48
    for y in rng.uniform(0, 32, 2000):
        exact = mpmath.mpf(2) ** mpmath.mpf(y)
        assert abs(kernels.exp2_exact_ops(y) - exact) <= exact * 2.0**-51.5
    for i in range(33):
        assert kernels.log2_exact_ops(2.0**i) == i
        assert kernels.exp2_exact_ops(float(i)) == 2.0**i
