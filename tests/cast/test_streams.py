"""Random words, lowprec's and other people's: known answers, the order in which they come, casts that take them."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lowprec as lp
from lowprec.cast.streams import PhiloxStream, philox4x32, streams, threefry2x32
from lowprec.kernels.cast.random_bits import fill_words, key_run, key_runs, random_keys, random_word

U = np.uint32
N = 1 << 20

#: Of Random123's kat_vectors: function, counter, key, output.
KNOWN = [
    (philox4x32, "00000000 00000000 00000000 00000000", "00000000 00000000", "6627E8D5 E169C58D BC57AC4C 9B00DBD8"),
    (philox4x32, "FFFFFFFF FFFFFFFF FFFFFFFF FFFFFFFF", "FFFFFFFF FFFFFFFF", "408F276D 41C83B0E A20BC7C6 6D5451FD"),
    (philox4x32, "243F6A88 85A308D3 13198A2E 03707344", "A4093822 299F31D0", "D16CFE09 94FDCCEB 5001E420 24126EA1"),
    (threefry2x32, "00000000 00000000", "00000000 00000000", "6B200159 99BA4EFE"),
    (threefry2x32, "FFFFFFFF FFFFFFFF", "FFFFFFFF FFFFFFFF", "1CB996FC BB002BE7"),
    (threefry2x32, "243F6A88 85A308D3", "13198A2E 03707344", "C4923A9C 483DF7A0"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("function", "counter", "key", "output"), KNOWN)
def test_known_answers(function, counter, key, output):
    assert function(words(counter), words(key)).tolist() == words(output)


def test_philox_counts_as_pytorch_does():
    """at::Philox4_32 with seed 1234, subsequence 5 and offset 0 (in blocks)."""
    known = words("F942741C B7A11B7A 8B27A0CC BD95ACC8 5C5CF6F4 3FC0CE58 32773955 72C26332")
    thread = PhiloxStream("thread", subsequence=5)
    assert thread.words(1234, 0, 8).tolist() == known
    assert thread.words(1234, 3, 4).tolist() == known[3:7]
    assert PhiloxStream("later", subsequence=5, first_block=1).words(1234, 0, 4).tolist() == known[4:]
    wide = PhiloxStream("wide", subsequence=7 << 32 | 5, first_block=(1 << 32) - 1)
    block = philox4x32([[0xFFFFFFFF, 0, 5, 7], [0, 1, 5, 7]], [3, 1])
    assert wide.words(1 << 32 | 3, 0, 8).tolist() == block.reshape(-1).tolist()


def test_triton_counts_by_offset() -> None:
    triton = streams["triton"]
    assert triton.words(42, 0, 2).tolist() == words("9CEAF053 FCDB2127")
    wanted = ["0.77408016", "0.02456270", "0.34826630", "0.54080141"]
    assert [f"{u:.8f}" for u in triton.uniform(42, 0, 4)] == wanted


@pytest.mark.parametrize("name", streams.names())
def test_parts_are_the_whole(name: str) -> None:
    stream = streams[name]
    whole = stream.words(77 << 32 | 5, 0, 101)
    assert (whole.dtype, whole.shape) == (np.uint32, (101,))
    for start, size in ((0, 1), (1, 1), (3, 7), (50, 51), (7, 0)):
        assert np.array_equal(stream.words(77 << 32 | 5, start, size), whole[start : start + size])
    assert np.unique(np.concatenate([whole, stream.words(5, 0, 101)])).size == 202


def test_jax_adds_both_words() -> None:
    block = threefry2x32([[0, 0], [0, 1], [0, 2]], [0, 42])
    assert streams["jax"].words(42, 0, 3).tolist() == (block[:, 0] ^ block[:, 1]).tolist()


@pytest.mark.parametrize("fmt", ["e4m3fn", "e8m0fnu", "bfloat16", "hif8", "e2m1fn"])
@pytest.mark.parametrize("name", streams.names())
def test_casts_take_a_streams_words(name: str, fmt: str) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal((40, 25))).astype(np.float32)
    random = streams[name].words(6, 3, x.size).reshape(x.shape)
    for source in (x, x.astype(np.float64)):
        codes = lp.encode(source, fmt, rounding="stochastic", seed=6, offset=3, random_words=name)
        assert np.array_equal(codes, lp.encode(source, fmt, rounding="stochastic", random_words=random))
        values = lp.round_to(source, fmt, rounding="stochastic", seed=6, offset=3, random_words=name)
        assert np.array_equal(values, lp.decode(codes, fmt))
    if name == "lowprec":
        assert np.array_equal(codes, lp.encode(x, fmt, rounding="stochastic", seed=6, offset=3))


# --- lowprec's own --------------------------------------------------------------------------------------------------


def keys(seed, index):
    return philox4x32([index >> 32, 0, 0, 0], [seed % 2**32, seed >> 32]).tolist()


def word(seed: int, index: int) -> int:
    """The definition in the module's docstring, in Python integers."""
    k, lo = keys(seed, index), index % 2**32
    x = lo ^ k[0]
    x = (x ^ (x >> 17)) * 0xED5AD4BB % 2**32
    x = (x + k[1]) % 2**32
    x = (x ^ (x >> 11)) * 0xAC4C1B51 % 2**32 ^ k[2]
    x = (x ^ (x >> 15)) * 0x31848BAB % 2**32
    x = (x + k[3]) % 2**32
    return x ^ (x >> 14) ^ lo


def filled(seed: int, start: int, n: int) -> np.ndarray:
    out = np.empty(n, U)
    fill_words(out, U(seed % 2**32), U(seed >> 32), start)
    return out


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62))
@example((1 << 64) - 1, (1 << 64) - 1)
@example(9, (1 << 32) - 1)
@example(9, 1 << 32)
def test_words_are_their_definition(seed: int, index: int) -> None:
    halves = U(seed % 2**32), U(seed >> 32), U(index % 2**32), U(index >> 32)
    assert [int(key) for key in random_keys(halves[0], halves[1], halves[3])] == keys(seed, index)
    assert int(random_word(*halves)) == word(seed, index)
    if index < 2**63:
        assert word(seed, index) == filled(seed, index, 1) == streams["lowprec"].words(seed, index, 1)


def test_any_chunking_gives_the_same_words() -> None:
    start = 2**32 - 1000  # across the place where the keys change
    whole = filled(3, start, 2000)
    parts = np.concatenate([filled(3, start + a, 137) for a in range(0, 2000, 137)])[:2000]
    assert np.array_equal(whole, parts)


@given(st.integers(0, 2**62), st.integers(0, 2**35))
@example(2**32 - 1, 1)
@example(2**32, 0)
@example(2**32 - 1, 2**32 + 2)
def test_parts_that_share_keys_are_all_indices(start: int, size: int) -> None:
    parts = [key_run(start, size, part) for part in range(key_runs(start, size))]
    assert [a for a, *_ in parts] == [0, *(b for _, b, *_ in parts[:-1])][: len(parts)]
    assert sum(b - a for a, b, *_ in parts) == size
    for a, b, hi, lo in parts:
        assert a < b
        assert (hi, lo) == divmod(start + a, 2**32)
        assert (start + b - 1) >> 32 == hi


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 5])
def test_words_look_random(seed: int) -> None:
    """Every bit even, bytes and neighbours independent, seeds unrelated: all within 4.5 standard deviations."""
    w = filled(seed, 0, N)
    ones = np.array([np.count_nonzero(w >> U(b) & U(1)) for b in range(32)])
    assert np.all(np.abs(ones - N / 2) < 4.5 * np.sqrt(N) / 2)
    for byte in range(4):
        counts = np.bincount(w.view(np.uint8)[byte::4], minlength=256)
        chi2 = ((counts - N / 256) ** 2 / (N / 256)).sum()
        assert abs(chi2 - 255) < 4.5 * np.sqrt(2 * 255)
    u = w / 2.0**32 - 0.5
    others = [u * (filled(*at, N) / 2.0**32 - 0.5) for at in ((seed + 1, 0), (seed, 2**32))]
    for products in [*(u[:-lag] * u[lag:] for lag in (1, 2, 3, 4, 16, 128, 4096)), *others]:
        assert abs(products.mean() * 12 * np.sqrt(products.size)) < 4.5
    same = N - np.unique(w).size  # as many words repeat as among independent ones: 128 +- 11
    assert 80 < same < 180


def test_one_bit_of_the_index_changes_half_the_word() -> None:
    w = filled(9, 0, 1 << 16)
    index = np.arange(1 << 16)
    for k in range(16):
        flips = w ^ w[index ^ (1 << k)]
        share = np.array([np.mean(flips >> U(b) & U(1)) for b in range(32)])
        assert np.all(np.abs(share - 0.5) < 5 * 0.5 / np.sqrt(1 << 15))
