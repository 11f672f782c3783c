"""Other people's random words: known answers, the order in which they come, and casts that take them."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.cast.streams import Philox, Triton, philox4x32, threefry2x32
from lowprec.kernels.cast.random_bits import random_word

#: Of Random123's kat_vectors: counter, key, output.
PHILOX = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627E8D5 E169C58D BC57AC4C 9B00DBD8"),
    ("FFFFFFFF FFFFFFFF FFFFFFFF FFFFFFFF", "FFFFFFFF FFFFFFFF", "408F276D 41C83B0E A20BC7C6 6D5451FD"),
    ("243F6A88 85A308D3 13198A2E 03707344", "A4093822 299F31D0", "D16CFE09 94FDCCEB 5001E420 24126EA1"),
]
THREEFRY = [
    ("00000000 00000000", "00000000 00000000", "6B200159 99BA4EFE"),
    ("FFFFFFFF FFFFFFFF", "FFFFFFFF FFFFFFFF", "1CB996FC BB002BE7"),
    ("243F6A88 85A308D3", "13198A2E 03707344", "C4923A9C 483DF7A0"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), PHILOX)
def test_philox_known_answers(counter: str, key: str, output: str) -> None:
    assert philox4x32(words(counter), words(key)).tolist() == words(output)


@pytest.mark.parametrize(("counter", "key", "output"), THREEFRY)
def test_threefry_known_answers(counter: str, key: str, output: str) -> None:
    assert threefry2x32(words(counter), words(key)).tolist() == words(output)


def test_philox_counts_as_pytorch_does() -> None:
    """at::Philox4_32 with seed 1234, subsequence 5 and offset 0 (in blocks)."""
    known = words("F942741C B7A11B7A 8B27A0CC BD95ACC8 5C5CF6F4 3FC0CE58 32773955 72C26332")
    thread = Philox("thread", subsequence=5)
    assert thread.words(1234, 0, 8).tolist() == known
    assert thread.words(1234, 3, 4).tolist() == known[3:7]
    assert Philox("later", subsequence=5, first_block=1).words(1234, 0, 4).tolist() == known[4:]
    wide = Philox("wide", subsequence=7 << 32 | 5, first_block=(1 << 32) - 1)
    block = philox4x32([[0xFFFFFFFF, 0, 5, 7], [0, 1, 5, 7]], [3, 1])
    assert wide.words(1 << 32 | 3, 0, 8).tolist() == block.reshape(-1).tolist()


def test_triton_counts_by_offset() -> None:
    triton = lp.streams["triton"]
    assert isinstance(triton, Triton)
    assert triton.words(42, 0, 2).tolist() == words("9CEAF053 FCDB2127")
    wanted = ["0.77408016", "0.02456270", "0.34826630", "0.54080141"]
    assert [f"{u:.8f}" for u in triton.uniform(42, 0, 4)] == wanted
    with pytest.raises(ValueError, match="Triton's have 32 bits"):
        triton.words(0, (1 << 32) - 1, 2)


@pytest.mark.parametrize("name", lp.streams.names())
def test_parts_are_the_whole(name: str) -> None:
    stream = lp.streams[name]
    whole = stream.words(77 << 32 | 5, 0, 101)
    assert (whole.dtype, whole.shape) == (np.uint32, (101,))
    for start, size in ((0, 1), (1, 1), (3, 7), (50, 51), (7, 0)):
        assert np.array_equal(stream.words(77 << 32 | 5, start, size), whole[start : start + size])
    assert np.unique(np.concatenate([whole, stream.words(5, 0, 101)])).size == 202


def test_lowprecs_own_is_the_default() -> None:
    own = lp.streams["lowprec"].words(9, (1 << 32) - 2, 4)
    at = range((1 << 32) - 2, (1 << 32) + 2)
    u32 = np.uint32
    assert own.tolist() == [random_word(u32(9), u32(0), u32(i & 0xFFFFFFFF), u32(i >> 32)) for i in at]


def test_jax_adds_both_words() -> None:
    block = threefry2x32([[0, 0], [0, 1], [0, 2]], [0, 42])
    assert lp.streams["jax"].words(42, 0, 3).tolist() == (block[:, 0] ^ block[:, 1]).tolist()


@pytest.mark.parametrize("fmt", ["e4m3fn", "e8m0fnu", "bfloat16", "hif8", "e2m1fn"])
@pytest.mark.parametrize("name", lp.streams.names())
def test_casts_take_a_streams_words(name: str, fmt: str) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal((40, 25))).astype(np.float32)
    random = lp.streams[name].words(6, 3, x.size).reshape(x.shape)
    for source in (x, x.astype(np.float64)):
        codes = lp.encode(source, fmt, rounding="stochastic", seed=6, offset=3, random=name)
        assert np.array_equal(codes, lp.encode(source, fmt, rounding="stochastic", random=random))
        values = lp.round_to(source, fmt, rounding="stochastic", seed=6, offset=3, random=name)
        assert np.array_equal(values, lp.decode(codes, fmt))
    if name == "lowprec":
        assert np.array_equal(codes, lp.encode(x, fmt, rounding="stochastic", seed=6, offset=3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"random": "philox"}, "unknown stream 'philox'.*philox4x32"),
        ({"random": "triton"}, "needs a seed"),
        ({"random": [1, 2, 3]}, r"random= has the shape \(3,\), the values \(2,\)"),
        ({"random": [1, 2], "seed": 1}, "words that are given need no seed"),
        ({"random": [1, 1 << 32]}, "4294967296"),
    ],
)
def test_words_that_do_not_fit_say_why(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lp.encode([1.0, 2.0], "e4m3fn", rounding="stochastic", **options)
