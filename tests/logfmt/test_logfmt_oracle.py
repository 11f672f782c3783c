"""LogFMT's roundings in the logarithm and stochastic against exact rationals, and the bound of the first guess."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec._jit import kernel
from lowprec.kernels.cast.random_bits import fill_words
from lowprec.kernels.logfmt import encode as logfmt_encode
from lowprec.kernels.logfmt import grid as kernels
from lowprec.kernels.logfmt import stochastic as logfmt_stochastic
from lowprec.logfmt import encode
from lowprec.logfmt.paper import LogFMT
from lowprec.oracle.logfmt import logfmt_grid, logfmt_tile

F = np.float32
mpmath.mp.prec = 160

TILES = {
    "gauss": lambda r: r.standard_normal(128),
    "uniform": lambda r: r.uniform(1, 2, 64),
    "forty octaves": lambda r: np.exp2(r.uniform(-40, 0, 64)) * r.choice([-1, 1], 64),
    "zeros": lambda r: r.standard_normal(64) * (r.random(64) > 0.3),
    "subnormal": lambda r: r.integers(1, 2**12, 64) * 2.0**-149,
    "huge": lambda r: np.exp2(r.uniform(90, 127.9, 64)),
}


def values_of(amin, amax, bits):
    """What the decoder makes of codes 0 .. K."""
    top = 2 ** (bits - 1) - 1
    codes = np.arange(top + 1, dtype=np.uint8 if bits <= 8 else np.uint16)
    return LogFMT(codes, np.array([amin], F), np.array([amax], F), bits, top + 1).decode()


# --- against exact rationals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("bits", [3, 5, 8])
def test_codes_and_values_in_the_logarithm_are_the_rational_oracles(name, bits):
    x = TILES[name](np.random.default_rng(bits)).astype(F)
    z = encode(x, bits, rounding="log")
    codes, values = logfmt_tile(x.tolist(), bits, rounding="log")
    assert (z.codes & (2 ** (bits - 1) - 1)).tolist() == codes
    assert [abs(v) for v in z.decode().tolist()] == [float(v) for v in values]


def test_the_grid_is_correctly_rounded_without_a_logarithm():
    for amin, amax, bits in ((0.0123, 3.14, 8), (1e-38, 1e-30, 6), (1.0, 1.0001, 8), (7e-5, 11.0, 10)):
        amin, amax = F(amin), F(amax)
        assert values_of(amin, amax, bits).tolist() == [float(v) for v in logfmt_grid(float(amin), float(amax), bits)]


# --- every rule next to every threshold ------------------------------------------------------------------------------

ENDS = [
    (2**-7, 1.0), (1.0, 1.0 + 2**-20), (1.0, 1.01), (0.0123, 3.14), (2.0**-32, 1.0), (1e-30, 5.0),
    (2.0**-149, 2.0**-126),
    (2.0**-140, 1.5 * 2.0**-117), (1e30, 3.4028235e38), (1.2e-38, 3.0e-38),
]  # fmt: skip


def log_mean_thresholds(grid):
    """The smallest float32 number at or above the logarithmic mean of each two neighbours, by mpmath."""
    found = []
    for below, above in zip(grid[1:-1].tolist(), grid[2:].tolist(), strict=True):
        low, high = mpmath.mpf(below), mpmath.mpf(above)
        mean = low if low == high else (high - low) / mpmath.log(high / low)
        near = F(float(mean))
        found.append(near if mpmath.mpf(float(near)) >= mean else np.nextafter(near, F(np.inf)))
    return np.array(found, F)


def codes_by_rule(x, grid, rule):
    wide, a = grid.astype(np.float64), np.abs(x.astype(np.float64))
    zero = 2 * a < wide[1]
    if rule == "log":
        above = np.searchsorted(wide[1:-1] * wide[2:], a * a, side="right")
    else:
        above = np.searchsorted(log_mean_thresholds(grid), np.abs(x), side="right")
    return np.where(zero, 0, 1 + above)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", ["log", "logmean"])
@pytest.mark.parametrize("bits", [3, 4, 8, 10, 12])
def test_codes_next_to_every_threshold(bits, rule):
    checked = 0
    for amin, amax in ENDS if bits < 12 else ENDS[3:5]:
        amin, amax = F(amin), F(amax)
        grid = values_of(amin, amax, bits)
        wide = grid.astype(np.float64)
        middles = {
            "log": np.sqrt(wide[:-1] * wide[1:]),
            "logmean": log_mean_thresholds(grid),
        }[rule].astype(F)
        near = middles.view(np.uint32)[:, None] + np.array([-1, 0, 1], np.int32).view(np.uint32)
        near = np.concatenate([near.view(F).ravel(), grid, grid[1:2] / F(2)])
        x = np.concatenate([[amin, amax], near[(near >= amin) & (near <= amax)], [0.0]]).astype(F)
        for first in range(0, x.size, 100_000):
            part = np.concatenate([[amin, amax], x[first : first + 100_000]]).astype(F)
            z = encode(part, bits, tile=part.size, rounding=rule)
            assert np.array_equal(z.codes, codes_by_rule(part, grid, rule)), (amin, amax)
            checked += part.size
    assert checked > 4 * 2 ** (bits - 1)


@pytest.mark.parametrize("rule", ["log", "logmean"])
@pytest.mark.parametrize("ends", [(2.0**-7, 1.0), (0.0123, 3.14), (2.0**-40, 7.0), (2.0**-133, 1e-36)])
def test_every_bfloat16_magnitude_between_two_ends(rule, ends):
    low, high = ((np.array(end, F).view(np.uint32) & np.uint32(0xFFFF0000)).view(F) for end in ends)
    every = (np.arange(1, 0x7F80, dtype=np.uint32) << np.uint32(16)).view(F)
    x = every[(every >= low) & (every <= high)]
    for bits in (4, 8, 10):
        z = encode(x, bits, tile=x.size, rounding=rule)
        assert np.array_equal(z.codes, codes_by_rule(x, values_of(low, high, bits), rule))


def test_the_roundings_differ_where_they_should():
    """Thresholds of 1 and 2: 1.5, 1.41421.., 1.44269..; a rule in another's place would not pass."""
    x = np.array([1, 2, 4, 8, 16, 32, 64, 1.42, 1.45, 1.5], F)
    assert encode(x, 4).codes[7:].tolist() == [1, 1, 2]
    assert encode(x, 4, rounding="logmean").codes[7:].tolist() == [1, 2, 2]
    assert encode(x, 4, rounding="log").codes[7:].tolist() == [2, 2, 2]


# --- the certified first guess ---------------------------------------------------------------------------------------


@kernel
def _bulges(start, out):
    for i in range(out.size):
        out[i] = logfmt_encode.bulge(np.uint32(start + i))


def test_the_polynomial_keeps_its_bound_at_every_significand():
    worst = 0.0
    for start in range(0x3F800000, 0x40000000, 1 << 20):
        out = np.empty(1 << 20, F)
        _bulges(start, out)
        m = np.arange(start, start + (1 << 20), dtype=np.uint32).view(F).astype(np.float64)
        worst = max(worst, float(np.abs(out - (np.log2(m) - (m - 1))).max()))
    # float64's own log2 is a million times as accurate as what it judges.
    assert 0.9 * logfmt_encode.BULGE_ERROR < worst < logfmt_encode.BULGE_ERROR


@kernel
def _places(x, bits, rule, octaves, place, margin, codes):
    """What the first guess says of one tile: t, its margin, and the code it would give."""
    group = logfmt_encode.GROUP
    low, high, steps = np.ones(group), np.ones(group), np.ones(group)
    scales, slopes = np.empty(group, np.float32), np.empty(group, np.float32)
    lifts, margins = np.empty(group, np.float32), np.empty(group, np.float32)
    firsts, sizes = np.empty(1, np.int64), np.empty(1, np.int64)
    amin, amax = np.empty(1, np.float32), np.empty(1, np.float32)
    logfmt_encode.find_group(x, x.size, x.size, octaves, False, 0, 1, amin, amax, firsts, sizes, low, high)
    kernels.find_steps(low, high, bits, steps)
    logfmt_encode.prepare(low, steps, bits, rule, scales, slopes, lifts, margins)
    base = np.uint32(np.float32(low[0]).view(np.uint32))
    logfmt_encode._guess(x, 0, x.size, base, scales[0], slopes[0], lifts[0], bits, codes, place)
    margin[0] = margins[0]


RULES = {"linear": logfmt_encode.LINEAR, "log": logfmt_encode.LOG, "logmean": logfmt_encode.LOGMEAN}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", [*RULES, "stochastic"])
@pytest.mark.parametrize("bits", [3, 4, 6, 8, 10, 12, 14])
def test_the_margin_holds_at_every_threshold(bits, rule):
    """The largest number below a threshold and the smallest above it, where t should be just a whole number."""
    rng = np.random.default_rng(bits)
    used, wrong, seen = 0.0, 0, 0
    for octaves in (0.3, 1.0, 3.0, 9.0, 20.0, 31.9):
        for _ in range(3 if bits < 14 else 1):
            amax = F(np.exp2(rng.uniform(-60, 100)))
            amin = F(amax * np.exp2(-octaves * rng.uniform(0.9, 1)))
            grid = values_of(amin, amax, bits)
            wide = grid[1:].astype(np.float64)
            if rule == "logmean":
                above = log_mean_thresholds(grid)
            elif rule == "stochastic":  # begins with the grid value at or below
                above = grid[2:]
            else:
                means = (wide[:-1] + wide[1:]) / 2 if rule == "linear" else np.sqrt(wide[:-1] * wide[1:])
                above = means.astype(F)
                exceeds = (
                    2 * above.astype(np.float64) >= wide[:-1] + wide[1:]
                    if rule == "linear"
                    else above.astype(np.float64) ** 2 >= wide[:-1] * wide[1:]
                )
                above = np.where(exceeds, above, np.nextafter(above, F(np.inf)))
                below = np.nextafter(above, F(0))
                assert np.all(2 * below.astype(np.float64) < wide[:-1] + wide[1:]) or rule == "log"
            below = np.nextafter(above, F(0))
            x = np.concatenate([[amin, amax], above, below]).astype(F)
            place, margin, codes = np.empty(x.size, F), np.empty(1, F), np.empty(x.size, np.uint16)
            _places(x, bits, RULES.get(rule, logfmt_encode.STOCHASTIC), 32, place, margin, codes)
            if margin[0] >= logfmt_encode.MARGIN_LIMIT:
                continue
            t = codes.astype(np.float64) + place + 0.5
            k = np.arange(2, 2 ** (bits - 1))  # the code from each threshold on
            used = max(used, float(np.abs(t[2:] - np.concatenate([k, k])).max() / margin[0]))
            exact = np.concatenate([k, k - 1])
            wrong += int((codes[2:] != exact).sum())
            seen += k.size
            coded = encode(x, bits, tile=x.size, rounding=rule).codes[2:]
            assert np.array_equal(coded, exact) if rule in RULES else np.all((coded == exact) | (coded == exact + 1))
    assert seen >= 2 ** (bits - 1) - 2
    assert used <= 1.0
    assert wrong > 0, "a guess that were always right would not test the decision by comparison"
    assert used > 0.1, "a bound ten times too wide would be a guess itself"


# --- decoding on other machines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "kind"), [(n, k) for n in (3, 4, 6, 7, 8, 9, 10, 11) for k in (np.uint8, np.uint16)[n > 8 :]]
)
def test_registers_or_tables_give_the_same_values(bits, kind):
    """Every code in tiles of several kinds and lengths; only AVX-512 has the registers."""
    rng = np.random.default_rng(bits)
    for tile in (5, 64, 128, 300):
        columns = 4 * tile + 3
        codes = rng.integers(0, 1 << bits, (9, columns)).astype(kind)
        amax = np.exp2(rng.uniform(-60, 60, (9, 5))).astype(F)
        amin = (amax * np.exp2(-rng.uniform(0, 40, (9, 5)))).astype(F)
        amax[2, 1:4] = [np.nan, 0, 5]
        amin[2, 1:4] = [0, 0, 5]
        results = []
        for decode in (kernels.decode_tiles, kernels.decode_tiles_portable):
            out = np.empty(codes.size, F)
            decode(codes.reshape(-1), amin.reshape(-1), amax.reshape(-1), columns, bits, tile, 32, out, 0, 45)
            results.append(out.tobytes())
        assert results[0] == results[1]


# --- stochastic, in linear space -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [3, 4, 8, 11])
def test_stochastic_codes_are_those_of_the_stated_rule(bits):
    from fractions import Fraction

    x = np.concatenate([TILES[name](np.random.default_rng(bits)) for name in TILES]).astype(F)
    seed, offset = 0x123456789ABC, 2**32 - 100
    z = encode(x, bits, tile=64, rounding="stochastic", seed=seed, offset=offset)
    words = np.empty(x.size, np.uint32)
    fill_words(words, seed & 0xFFFFFFFF, seed >> 32, offset)
    top = 2 ** (bits - 1) - 1
    moved = 0
    for tile in range(-(-x.size // 64)):
        grid = values_of(z.amin[tile], z.amax[tile], bits)
        for i in range(64 * tile, min(64 * tile + 64, x.size)):
            a = float(abs(x[i]))
            k = int(np.searchsorted(grid, a, side="right")) - 1 if z.amax[tile] else 0
            if k < top and grid[k + 1] > 0:
                share = Fraction(a) - Fraction(float(grid[k])), Fraction(float(grid[k + 1])) - Fraction(float(grid[k]))
                k += int(words[i]) * share[1] < share[0] * 2**32
                moved += 1
            assert z.codes[i] & top == k
            assert z.codes[i] >> (bits - 1) == np.signbit(x[i])
    assert moved > 100


@pytest.mark.slow
def test_stochastic_rounding_is_unbiased_and_repeats():
    x = np.concatenate([np.random.default_rng(0).standard_normal(127), [1e-12]]).astype(F)  # the last under the clamp
    draws = np.stack([encode(x, 4, rounding="stochastic", seed=seed).decode() for seed in range(4000)]).astype(
        np.float64
    )
    mean, spread = draws.mean(axis=0), draws.std(axis=0)
    assert np.all(np.abs(mean - x) <= 5 * spread / np.sqrt(len(draws)) + 1e-7 * np.abs(x))
    assert np.ptp(draws[:, 3]) > 0
    # Values of the grid stay where they are.
    on_grid = encode(x, 4).decode()
    assert encode(on_grid, 4, rounding="stochastic").decode().tobytes() == on_grid.tobytes()


def test_stochastic_words_belong_to_elements():
    x = np.random.default_rng(0).standard_normal((40, 256)).astype(F)
    whole = encode(x, 5, rounding="stochastic", seed=9).codes
    parts = [encode(x[r], 5, rounding="stochastic", seed=9, offset=256 * r).codes for r in range(40)]
    assert np.array_equal(whole, np.stack(parts))
    assert not np.array_equal(whole, encode(x, 5, rounding="stochastic", seed=10).codes)
    by_columns = encode(np.ascontiguousarray(x.T), 5, rounding="stochastic", seed=9, axis=0).codes
    assert np.array_equal(by_columns, whole.T)


@settings(deadline=None, max_examples=200)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2**32 - 1))
def test_one_decision(share, word):
    below, above = 1.0, 1.5
    a = below + share / 2
    assert logfmt_stochastic.goes_up(a, below, above, np.uint32(word)) == (word < (a - below) * 2**33)
