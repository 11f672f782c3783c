"""Variant `deepep` against a slow model of DeepEP's source, its wire by big integers, and its hazards."""

import mpmath
import numpy as np
import pytest
from logfmt_tiles import B, F, nearest_float32, snr, tokens

import lowprec as lp
from lowprec import logfmt
from lowprec.kernels.logfmt import deepep as kernels
from lowprec.logfmt import ApproxTables, deepep, encode
from lowprec.oracle import decode as oracle_decode
from lowprec.oracle import encode as oracle_encode
from lowprec.oracle import fma32 as oracle_fma
from lowprec.oracle.values import FLOAT32


def bfloat16(patterns):
    return np.asarray(patterns, np.uint16).view(B)


# --- a model, one operation at a time --------------------------------------------------------------------------------


def log2(x):
    return F(-np.inf) if x == 0 else nearest_float32(mpmath.log(mpmath.mpf(float(x)), 2))


def exp2(y):
    return nearest_float32(mpmath.mpf(2) ** mpmath.mpf(float(y)))


def fma(a, b, c):
    bits = oracle_fma(*(oracle_encode(float(v), FLOAT32) for v in (a, b, c)))
    return F(float(oracle_decode(bits, FLOAT32)))


def model_tile(x):
    """Codes without signs (nine bits and more) and decoded magnitudes of one tile that is fit."""
    a = np.abs(x.astype(F))
    high, low = log2(a.max()), log2(a.min())
    low = max(low, F(high - F(32)))
    step = F(F(high - low) / F(510))
    inverse = F(F(1) / step)
    half = F(F(F(1) + exp2(step)) * F(0.5))
    rounding = fma(-log2(half), inverse, F(2))
    offset = fma(-low, inverse, rounding)
    codes = [0 if v == 0 else max(0, int(np.floor(fma(log2(v), inverse, offset)))) for v in a]
    return codes, [F(0) if k == 0 else exp2(fma(F(k - 1), step, low)) for k in codes]


TILES = {
    "gauss": lambda r: r.standard_normal(128) * 0.1,
    "zeros": lambda r: r.standard_normal(128) * 0.1 * (r.random(128) > 0.1),
    "forty octaves": lambda r: np.exp2(r.uniform(-41, -1, 128)) * r.choice([-1, 1], 128),
    "near each other": lambda r: r.uniform(0.5, 0.53, 128),
    "tiny": lambda r: r.integers(1, 900, 128) * 2.0**-133,
}


@pytest.mark.parametrize("name", TILES)
def test_codes_and_values_are_the_models(name):
    tile = TILES[name](np.random.default_rng(1)).astype(B)
    z = encode(np.concatenate([tile, *(tokens(128, seed=s) for s in range(3))]), variant="deepep")
    assert (z.encoded_chunks.tolist(), z.overflows) == ([True], 0)
    codes, values = model_tile(tile)
    assert (z.codes[:128] & 511).tolist() == codes
    assert np.abs(z.decode()[:128]).tolist() == [float(v) for v in values]
    assert np.array_equal(z.codes[:128] >> 9, np.signbit(tile).astype(np.uint16))
    assert np.array_equal(np.signbit(z.decode()[:128]), np.signbit(tile))


def test_nearly_always_the_papers_codes():
    x = tokens(64, 7168)
    z, paper = encode(x, variant="deepep"), encode(x, 10)
    apart = (z.codes & 511).astype(int) - (paper.codes & 511)
    assert np.abs(apart).max() == 1
    assert 0 < (apart != 0).mean() < 3e-4
    assert snr(z.decode(), x) == pytest.approx(snr(paper.decode(), x), abs=1e-3)
    assert snr(z.decode(), x) == pytest.approx(49.2, abs=0.2)
    # The ends come back to bfloat16 exactly, not to float32.
    ends = np.abs(x.astype(F)) == np.repeat(z.amax, 128, axis=1)
    assert np.array_equal(z.decode()[ends].astype(B), x[ends])
    assert 0 < np.abs(z.decode()[ends] / x[ends].astype(F) - 1).max() < 4e-6


# --- the wire --------------------------------------------------------------------------------------------------------


def wire_by_integers(z, chunk):
    """A token's bytes: ends, then 160 bits for sixteen channels, or 16 bfloat16 numbers each."""
    wire = b""
    for codes, cast, amax, amin in zip(z.codes, z.encoded_chunks, z.amax, z.amin, strict=True):
        wire += np.stack([amax, amin], axis=1).astype(B).tobytes()
        for part, flag in zip(codes.reshape(-1, chunk), cast, strict=True):
            if not flag:
                wire += part.astype("<u2").tobytes()
                continue
            for group in part.reshape(-1, 16).tolist():
                word = sum((code & 511) << 9 * j | (code >> 9) << (144 + j) for j, code in enumerate(group))
                wire += word.to_bytes(20, "little")
    return wire


@pytest.mark.parametrize(("channels", "chunk"), [(512, 512), (1536, 512), (2048, 1024), (2560, 512), (7168, 1024)])
def test_messages(channels, chunk):
    x = tokens(3, channels, sigma=0.2)
    x[1, 5] = 1.0  # its chunk is not fit
    x[2, -1] = np.inf
    z = encode(x, variant="deepep")
    assert z.encoded_chunks.shape == (3, channels // chunk)
    assert z.encoded_chunks[0].all()
    assert not z.encoded_chunks[1, 0]
    assert not z.encoded_chunks[2, -1]
    wire = z.pack()
    assert wire.tobytes() == wire_by_integers(z, chunk)
    assert wire.size == z.nbytes
    back = deepep.unpack(wire, channels)
    assert np.array_equal(back.encoded_chunks, z.encoded_chunks)
    fallen = np.repeat(~z.encoded_chunks, chunk, axis=1)
    assert np.array_equal(z.decode()[fallen], x.astype(F)[fallen])
    again = logfmt.from_bytes(z.to_bytes())
    assert isinstance(again, logfmt.DeepEPMessage)
    for other in (back, again):
        assert np.array_equal(other.codes, z.codes)
        assert other.decode().tobytes() == z.decode().tobytes()


def test_sizes_of_a_token():
    assert encode(tokens(1, 7168), variant="deepep").nbytes == 9184
    assert encode(tokens(1, 7168, sigma=5.0), variant="deepep").nbytes == 14560
    for sigma, share, size in ((0.1, 1.0, 0.641), (0.25, 0.94, 0.662), (0.3, 0.41, 0.861), (0.5, 0.0, 1.016)):
        z = encode(tokens(256, 7168, sigma=sigma), variant="deepep")
        assert z.encoded_chunks.mean() == pytest.approx(share, abs=0.02)
        assert z.nbytes / (256 * 14336) == pytest.approx(size, abs=0.01)
    assert encode(tokens(4, 1024), variant="deepep").bits_per_value == 10.25


@pytest.mark.parametrize("shape", [(0, 1024), (2, 0, 1024), (3, 0), (1, 2, 512)])
def test_shapes(shape):
    x = tokens(*shape)
    z = encode(x, variant="deepep")
    assert z.shape == z.decode().shape == shape
    assert logfmt.from_bytes(z.to_bytes()).decode().tobytes() == z.decode().tobytes()
    assert z.bits_per_value == (8 * z.nbytes / x.size if x.size else 0)


# --- hazards ---------------------------------------------------------------------------------------------------------


def test_zeros_count_for_the_minimum():
    rng = np.random.default_rng(0)
    x = tokens(64, 7168)
    x[rng.random(x.shape) < 0.1] = 0
    assert snr(encode(x, variant="deepep").decode(), x) == pytest.approx(38.35, abs=0.2)
    assert snr(encode(x, 10).decode(), x) == pytest.approx(49.35, abs=0.2)
    assert (encode(x, variant="deepep").amin == 0).all()


def test_nan_becomes_zero_and_infinity_stays():
    x = tokens(2, 1024)
    x[0, 3], x[0, 4] = np.nan, -B(np.nan)
    x[1, 7], x[1, 8] = -np.inf, np.nan
    y = encode(x, variant="deepep").decode()
    assert y[0, 3] == y[0, 4] == 0
    assert (np.signbit(y[0, 3]), np.signbit(y[0, 4])) == (np.signbit(x[0, 3]), np.signbit(x[0, 4]))
    assert y[1, 7] == -np.inf
    assert np.isnan(y[1, 8])  # its chunk fell back
    assert not encode(np.full_like(x, np.nan), variant="deepep").encoded_chunks.any()


@pytest.mark.parametrize("tile", [0.0, 0.25, -0.25])
def test_equal_magnitudes_are_not_cast(tile):
    x = tokens(2, 1024)
    x[1, 256:384] = tile
    assert encode(x, variant="deepep").encoded_chunks.tolist() == [[True], [False]]


@pytest.mark.parametrize("top", [0x017C, 0x02E2, 0x0F7D, 0x0F80])
def test_the_tenth_bit_falls_on_the_neighbour(top):
    for position in (0, 5, 15, 16, 127):
        x = np.full(1024, top - 1, np.uint16)
        x[::128], x[0] = top, top - 1
        x[position] = top
        z = encode(bfloat16(x), variant="deepep")
        others = int(z.codes[1 if position != 1 else 2]) & 511
        assert z.overflows == 8
        assert z.codes[position] & 511 == 0
        if position % 16 < 15:
            assert z.codes[position + 1] == others | 1
        else:
            assert z.codes[position - 15] >> 9 == 1  # a sign out of nowhere
        assert deepep.unpack(z.pack(), 1024).decode().tobytes() == z.decode().tobytes()
    assert float(bfloat16([top])[0]) < 1.3e-29


def test_no_other_neighbours_overflow():
    lower = np.arange(1, 0x3F7F, dtype=np.uint16)
    pairs = np.tile(np.stack([lower, lower + np.uint16(1)], axis=1), 256)
    z = encode(bfloat16(pairs), variant="deepep")
    assert z.encoded_chunks.all()
    assert z.overflows == 4 * 256
    assert lower[(z.codes & 511 == 0).any(axis=1)].tolist() == [0x017B, 0x02E1, 0x0F7C, 0x0F7F]


def test_deepeps_own_measure_of_a_combine():
    """calc_diff of DeepEP's tests, which adds 1 to both sides first: eight experts send the same token back."""
    x = tokens(256, 7168)
    weights = np.abs(np.random.default_rng(1).standard_normal((256, 8))).astype(F)
    wanted = (x.astype(F) * weights.sum(axis=1)[:, None]).astype(B)

    def difference(arrived):
        sums = np.zeros(x.shape, F)
        for row in range(256):
            for k in range(8):
                kernels.add_weighted(arrived[row], weights[row, k], sums[row])
        a, b = sums.astype(B).astype(np.float64) + 1, wanted.astype(np.float64) + 1
        return 1 - 2 * (a * b).sum() / (a * a + b * b).sum()

    assert difference(encode(x, variant="deepep").decode()) == pytest.approx(2.7e-6, rel=0.05)
    assert difference(encode(x, 8).decode()) == pytest.approx(3.2e-5, rel=0.05)
    assert difference(lp.quantize(x.astype(F), "e4m3fn 1x128").dequantize()) == pytest.approx(1.0e-4, rel=0.05)


# --- units -----------------------------------------------------------------------------------------------------------


def test_tables_of_the_ideal_units_change_nothing():
    """A float32 number between -1 and -1024 has no more fraction than the table has entries."""
    x = tokens(8, 1024)
    log2_table = np.empty(1 << 15, F)
    kernels.fill_log2(log2_table)
    m = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(0x3F800000)).view(F).astype(np.float64)
    units = ApproxTables(log2_table, np.log2(m).astype(F), np.exp2(m - 1).astype(F))
    ideal, z = encode(x, variant="deepep"), encode(x, variant="deepep", approx_tables=units)
    assert np.array_equal(z.codes, ideal.codes)
    assert z.decode().tobytes() == ideal.decode().tobytes()
    back = logfmt.from_bytes(z.to_bytes(), units)
    assert back.decode().tobytes() == z.decode().tobytes()


def test_another_logarithm_changes_few_codes():
    x = tokens(64, 7168)
    rng = np.random.default_rng(0)
    table = np.empty(1 << 15, F)
    kernels.fill_log2(table)
    table[1:0x7F80] += rng.choice([-1, 0, 1], 0x7F7F).astype(F) * np.spacing(np.abs(table[1:0x7F80]))
    z = encode(x, variant="deepep", approx_tables=ApproxTables(table))
    changed = (z.codes != encode(x, variant="deepep").codes).mean()
    assert 0 < changed < 1e-4


def test_sums_in_slot_order_have_one_rounding_each():
    rng = np.random.default_rng(0)
    y, weights = rng.standard_normal((8, 64)).astype(F), rng.random(8).astype(F)
    sums = np.zeros(64, F)
    for k in range(8):
        kernels.add_weighted(y[k], weights[k], sums)
    for i in range(0, 64, 7):
        acc = F(0)
        for k in range(8):
            acc = fma(y[k, i], weights[k], acc)
        assert sums[i] == acc


# --- damage --------------------------------------------------------------------------------------------------------


def test_any_bytes_decode_to_something():
    """Ends and codes of a corrupted message are whatever they are; nothing is read or written beside it."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        data = rng.integers(0, 256, 4 * 4 + 512 * 10 // 8, np.uint8)
        data[:16].view(np.uint16)[:] &= 0x3F00  # fit, as far as the largest goes
        data[:16].view(np.uint16)[::2] |= 0x0100
        try:
            z = deepep.unpack(data, 512)
        except ValueError as error:
            assert "cut short" in str(error)  # noqa: PT017
            continue
        assert z.decode().shape == (1, 512)
