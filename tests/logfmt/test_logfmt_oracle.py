"""LogFMT's certified first guess, its decoders for other machines, and stochastic rounding by its rule."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logfmt_tiles import TILES, F, decoded_grid, thresholds

from lowprec._jit import kernel
from lowprec.kernels.cast.random_bits import fill_words
from lowprec.kernels.logfmt import encode as logfmt_encode
from lowprec.kernels.logfmt import grid as kernels
from lowprec.kernels.logfmt import stochastic as logfmt_stochastic
from lowprec.logfmt import encode

# --- the certified first guess ---------------------------------------------------------------------------------------


@kernel
def _bulges(start, out):
    for i in range(out.size):
        out[i] = logfmt_encode.bulge(np.uint32(start + i))


def test_the_polynomial_keeps_its_bound_at_every_significand():
    worst, out = 0.0, np.empty(1 << 20, F)
    for start in range(0x3F800000, 0x40000000, 1 << 20):
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["linear", "log", "logmean", "stochastic"])
@pytest.mark.parametrize("bits", [3, 4, 6, 8, 10, 12, 14])
def test_the_margin_holds_at_every_threshold(bits, rule):
    """The largest number below a threshold and the smallest above it, where t should be just a whole number."""
    rng = np.random.default_rng(bits)
    used, wrong, seen = 0.0, 0, 0
    for octaves in np.repeat((0.3, 1.0, 3.0, 9.0, 20.0, 31.9), 3 if bits < 14 else 1):
        amax = F(np.exp2(rng.uniform(-60, 100)))
        amin = F(amax * np.exp2(-octaves * rng.uniform(0.9, 1)))
        above = thresholds(decoded_grid(amin, amax, bits), rule)
        x = np.concatenate([[amin, amax], above, np.nextafter(above, F(0))]).astype(F)
        place, margin, codes = np.empty(x.size, F), np.empty(1, F), np.empty(x.size, np.uint16)
        _places(x, bits, getattr(logfmt_encode, rule.upper()), 32, place, margin, codes)
        if margin[0] >= logfmt_encode.MARGIN_LIMIT:
            continue
        t = codes.astype(np.float64) + place + 0.5
        k = np.arange(2, 2 ** (bits - 1))  # the code from each threshold on
        used = max(used, float(np.abs(t[2:] - np.concatenate([k, k])).max() / margin[0]))
        exact = np.concatenate([k, k - 1])
        wrong += int((codes[2:] != exact).sum())
        seen += k.size
        above_exact = encode(x, bits, tile=x.size, rounding=rule).codes[2:] - exact
        assert set(above_exact) <= ({0, 1} if rule == "stochastic" else {0})
    assert seen >= 2 ** (bits - 1) - 2
    assert used <= 1.0
    assert wrong > 0, "a guess that were always right would not test the decision by comparison"
    assert used > 0.1, "a bound ten times too wide would be a guess itself"


# --- decoding on other machines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [5, 64, 128, 300])
@pytest.mark.parametrize(
    ("bits", "kind"), [(n, k) for n in (3, 4, 6, 7, 8, 9, 10, 11) for k in (np.uint8, np.uint16)[n > 8 :]]
)
def test_registers_or_tables_give_the_same_values(bits, kind, tile):
    """Every code in tiles of several kinds and lengths; only AVX-512 has the registers."""
    rng, columns = np.random.default_rng(bits), 4 * tile + 3
    codes = rng.integers(0, 1 << bits, 9 * columns).astype(kind)
    amax = np.exp2(rng.uniform(-60, 60, (9, 5))).astype(F)
    amin = (amax * np.exp2(-rng.uniform(0, 40, (9, 5)))).astype(F)
    amax[2, 1:4], amin[2, 1:4] = [np.nan, 0, 5], [0, 0, 5]
    results = []
    for decode in (kernels.decode_tiles, kernels.decode_tiles_portable):
        out = np.empty(codes.size, F)
        decode(codes, amin.reshape(-1), amax.reshape(-1), columns, bits, tile, 32, out, 0, 45)
        results.append(out.tobytes())
    assert results[0] == results[1]


# --- stochastic, in linear space -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [3, 4, 8, 11])
def test_stochastic_codes_are_those_of_the_stated_rule(bits):
    x = np.concatenate([make(np.random.default_rng(bits)).astype(F) for make in TILES.values()])
    seed, offset = 0x123456789ABC, 2**32 - 100
    z = encode(x, bits, tile=64, rounding="stochastic", seed=seed, offset=offset)
    words = np.empty(x.size, np.uint32)
    fill_words(words, seed & 0xFFFFFFFF, seed >> 32, offset)
    grids = [decoded_grid(amin, amax, bits) for amin, amax in zip(z.amin, z.amax, strict=True)]
    wanted, moved = [], 0
    for i, value in enumerate(x):
        grid = grids[i // 64]
        k = int(np.searchsorted(grid, abs(value), side="right")) - 1 if grid[-1] else 0
        if k < grid.size - 1 and grid[k + 1] > 0:
            a, below, above = (Fraction(float(v)) for v in (abs(value), grid[k], grid[k + 1]))
            k += int(words[i]) * (above - below) < (a - below) * 2**32
            moved += 1
        wanted.append(k | int(np.signbit(value)) << (bits - 1))
    assert z.codes.tolist() == wanted
    assert moved > 100


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
