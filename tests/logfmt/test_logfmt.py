"""LogFMT against exact rational arithmetic and mpmath, which share nothing with the kernels."""

import zlib
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logfmt_tiles import TILES, B, F, codes_by_counting, decoded_grid, thresholds

from lowprec.kernels.logfmt import grid as kernels
from lowprec.kernels.logfmt import tables
from lowprec.logfmt import encode
from lowprec.oracle.logfmt import logfmt_grid, logfmt_tile

# --- codes and values, exactly ---------------------------------------------------------------------------------------

RULES = [
    *(("linear", bits, 32) for bits in (3, 4, 8, 10)), *(("log", bits, 32) for bits in (3, 5, 8)),
    *(("linear", 8, octaves) for octaves in (1, 6, 31)),
]  # fmt: skip


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize(("rule", "bits", "octaves"), RULES)
def test_codes_and_values_are_the_oracles(name, rule, bits, octaves):
    x = TILES[name](np.random.default_rng(bits)).astype(F)
    z = encode(x, bits, rounding=rule, clamp_octaves=octaves)
    codes, wanted = logfmt_tile(x.tolist(), bits, octaves, rounding=rule)
    assert z.codes.tolist() == [c | int(np.signbit(v)) << (bits - 1) for c, v in zip(codes, x, strict=True)]
    assert [abs(Fraction(float(v))) for v in z.decode()] == wanted
    assert np.array_equal(np.signbit(z.decode()), np.signbit(x))


@pytest.mark.slow
def test_the_grid_is_correctly_rounded_without_a_logarithm():
    for amin, amax, bits in (
        (0.0123, 3.14, 8),
        (1e-38, 1e-30, 6),
        (1.0, 1.0001, 8),
        (7e-5, 11.0, 10),
        (2.0, 9e9, 12),
        (0.3, 5.0, 16),
    ):
        wanted = logfmt_grid(float(F(amin)), float(F(amax)), bits)
        assert decoded_grid(amin, amax, bits).tolist() == [float(v) for v in wanted]


#: Ends of tiles: near-constant, subnormal, clamped, at both ends of the range.
PAIRS = [
    (0.0123, 3.14), (2.0**-32, 1.0), (1.0, 1.0 + 2**-23), (1.0, 1.0 + 2**-20), (0.75, 0.75 * (1 + 2**-12)), (1.0, 1.01),
    (1.0, 2.0), (0.1, 0.7), (2**-7, 1.0), (1e-3, 3.3), (2.0**-33, 1.0), (1e-12, 5.0), (1e-30, 5.0),
    (2.0**-149, 2.0**-148), (2.0**-149, 2.0**-126), (2.0**-149, 1.5 * 2.0**-118), (2.0**-149, 1.5 * 2.0**-117),
    (2.0**-140, 1.5 * 2.0**-117), (2.0**-149, 1.0), (1.1754944e-38, 3.0e-38), (1.2e-38, 3.0e-38),
    (1e30, 3.4028235e38), (3.4028233e38, 3.4028235e38),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("rule", "bits"),
    [("linear", bits) for bits in (3, 4, 5, 8, 10, 12, 13, 16)]
    + [(rule, bits) for rule in ("log", "logmean") for bits in (3, 4, 8, 10, 12)],
)
def test_codes_next_to_every_threshold(rule, bits):
    """Each threshold and its float32 neighbours."""
    for amin, amax in PAIRS if rule == "linear" or bits < 12 else PAIRS[:2]:
        grid = decoded_grid(amin, amax, bits)
        assert np.all(np.diff(grid) >= 0)
        steps = thresholds(grid, rule)
        middles = np.concatenate([steps, grid[1:2] / F(2)]).view(np.uint32)[:, None]
        near = np.concatenate([(middles + np.array([-1, 0, 1], np.int32).view(np.uint32)).view(F).ravel(), grid])
        x = np.concatenate([[amin, amax], near[(near >= F(amin)) & (near <= F(amax))], [0.0]]).astype(F)
        z = encode(x, bits, tile=x.size, rounding=rule)
        assert np.array_equal(z.codes, codes_by_counting(x, grid, steps)), (amin, amax)
        assert np.array_equal(encode(-x, bits, tile=x.size, rounding=rule).codes, z.codes | (1 << (bits - 1)))


@pytest.mark.parametrize("rule", ["linear", "log", "logmean"])
@pytest.mark.parametrize("ends", [(2.0**-7, 1.0), (0.0123, 3.14), (2.0**-40, 7.0), (1e-38, 1e-30), (2.0**-133, 1e-36)])
def test_every_bfloat16_magnitude_between_two_ends(rule, ends):
    low, high = (F(B(end)) for end in ends)
    every = np.arange(1, 0x7F80, dtype=np.uint16).view(B).astype(F)
    x = every[(every >= low) & (every <= high)]
    for bits in (4, 8, 10):
        z = encode(x, bits, tile=x.size, rounding=rule)
        assert (z.amin[0], z.amax[0], z.range_bits) == (low, high, 32)
        grid = decoded_grid(low, high, bits)
        assert np.array_equal(z.codes, codes_by_counting(x, grid, thresholds(grid, rule)))


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
    assert decoded_grid(1, 64, 4).tolist() == [0, 1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(("rule", "codes"), [("linear", [1, 1, 2]), ("logmean", [1, 2, 2]), ("log", [2, 2, 2])])
def test_the_roundings_differ_where_they_should(rule, codes):
    """Thresholds of 1 and 2: 1.5, 1.41421.., 1.44269..; a rule in another's place would not pass."""
    x = np.array([1, 2, 4, 8, 16, 32, 64, 1.42, 1.45, 1.5], F)
    assert encode(x, 4, rounding=rule).codes[7:].tolist() == codes


def test_the_raw_minimum_is_sent_and_the_clamped_one_is_coded():
    z = encode(np.array([2.0**-40, 2.0**-33, 2.0**-32, 1.0], F), 8)
    assert (z.codes.tolist(), z.amin[0]) == ([0, 1, 1, 127], F(2.0**-40))


@pytest.mark.parametrize(
    ("bits", "codes_crc", "values_crc"), [(8, 0xBFEC1FF6, 0x0C8F8287), (10, 0x90EE8272, 0x02778599)]
)
def test_a_ramp_bit_for_bit(bits, codes_crc, values_crc):
    z = encode(np.array([(i + 1) / 128 * (-1) ** (i + 1) for i in range(128)], F), bits)
    assert (z.amin[0], z.amax[0]) == (2**-7, 1)
    assert zlib.crc32(z.codes.astype("<u2").tobytes()) == codes_crc
    assert zlib.crc32(z.decode().astype("<f4").tobytes()) == values_crc
    if bits == 8:
        grid = decoded_grid(2**-7, 1, 8).view(np.uint32)[[1, 2, 3, 64, 126, 127]]
        assert [f"{v:08x}" for v in grid] == ["3c000000", "3c050672", "3c0a3f66", "3db504f3", "3f76544d", "3f800000"]
        assert (z.codes[:8].tobytes().hex(), z.codes[120:].tobytes().hex()) == ("81139e25ab30b437", "fe7efe7efe7fff7f")


# --- algebra ---------------------------------------------------------------------------------------------------------

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
ordinary = st.floats(2.0**-10, 2.0**10, width=32)
several = settings(deadline=None, max_examples=60)


@several
@given(st.lists(floats, min_size=1, max_size=300), st.integers(3, 12), st.sampled_from([1, 7, 128]))
def test_any_input_is_odd_monotone_and_exact_at_its_ends(values, bits, tile):
    x = np.array(values, F)
    y = encode(x, bits, tile).decode()
    assert np.array_equal(np.signbit(y), np.signbit(x))
    assert encode(-x, bits, tile).decode().tobytes() == (-y).tobytes()
    for first in range(0, x.size, tile):
        a, b = np.abs(x[first : first + tile]), np.abs(y[first : first + tile])
        assert np.all(np.diff(b[np.argsort(a, kind="stable")]) >= 0)
        assert b.max() == a.max()
        assert np.all(b[a == 0] == 0)
        if (a > 0).any() and a[a > 0].min() >= a.max() * 2.0**-32:
            assert b[a > 0].min() == a[a > 0].min()


@several
@given(st.lists(ordinary, min_size=1, max_size=200), st.sampled_from([4, 8, 10]), st.integers(-80, 80))
def test_what_is_decoded_is_encoded_to_itself_and_powers_of_two_scale_through(values, bits, exponent):
    x = np.array(values, F)
    z = encode(x, bits)
    again, scaled = encode(z.decode(), bits), encode(x * F(2.0**exponent), bits)
    assert np.array_equal(again.codes, z.codes)
    assert again.decode().tobytes() == z.decode().tobytes()
    assert np.array_equal(scaled.codes, z.codes)
    assert np.array_equal(scaled.decode(), z.decode() * F(2.0**exponent))


def test_relative_error_is_half_a_step():
    """At most tanh(s / 2) for linear rounding and e^(s/2) - 1 for logarithmic, and that is reached."""
    x = np.concatenate([[2.0**-9, 1], np.exp2(np.random.default_rng(0).uniform(-9, 0, 200_000))]).astype(F)
    for bits in (5, 8, 10):
        s = 9 * np.log(2) / (2 ** (bits - 1) - 2)
        for rounding, bound in (("linear", np.tanh(s / 2)), ("log", np.expm1(s / 2))):
            worst = np.abs(encode(x, bits, x.size, rounding=rounding).decode().astype(np.float64) / x - 1).max()
            assert 0.99 * bound < worst < bound * (1 + 1e-4)


# --- the constants and the two functions -----------------------------------------------------------------------------

EXACT = {
    "LOG2": lambda: [mpmath.log(1 + mpmath.mpf(j) / 128, 2) for j in range(128)],
    "EXP2": lambda: [mpmath.mpf(2) ** (mpmath.mpf(i) / 64) for i in range(64)],
    "LOG2_SERIES": lambda: [(-1) ** (k + 1) / (k * mpmath.log(2)) for k in range(1, 9)],
    "EXP2_SERIES": lambda: [mpmath.log(2) ** k / mpmath.factorial(k) for k in range(1, 7)],
}


@pytest.mark.parametrize("name", EXACT)
def test_every_constant_is_the_nearest_double(name):
    assert [float(v).hex() for v in EXACT[name]()] == [v.hex() for v in getattr(tables, name).tolist()]


def test_the_logarithm_and_the_exponential():
    rng = np.random.default_rng(0)
    for x in [*np.exp2(rng.uniform(0, 33, 2000)), *(1 + np.exp2(rng.uniform(-24, 0, 500)))]:
        assert abs(kernels.log2_exact_ops(x) - mpmath.log(mpmath.mpf(x), 2)) <= 2.0**-48
    for y in rng.uniform(0, 32, 2000):
        exact = mpmath.mpf(2) ** mpmath.mpf(y)
        assert abs(kernels.exp2_exact_ops(y) - exact) <= exact * 2.0**-51.5
    for i in range(33):
        assert (kernels.log2_exact_ops(2.0**i), kernels.exp2_exact_ops(float(i))) == (i, 2.0**i)
