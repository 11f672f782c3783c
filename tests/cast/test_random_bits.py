"""The counter-based words: fixed by published vectors and pure-integer arithmetic, even, and free of order."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowprec.kernels.cast.random_bits import fill_words, key_run, key_runs, random_keys, random_word

U = np.uint32
N = 1 << 20

ONES, PI = 2**32 - 1, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
# Known answers of Philox4x32-10 that Random123 publishes (kat_vectors): key, counter, words.
PHILOX = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES), (ONES, ONES, ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI[4:], PI[:4], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def philox(key: tuple[int, ...], *counter: int) -> tuple[int, ...]:
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(q >> 32) ^ c[1] ^ k[0], q % 2**32, (p >> 32) ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


def word(seed: int, index: int) -> int:
    """The definition in the module's docstring, in Python integers."""
    k, lo = philox((seed % 2**32, seed >> 32), index >> 32, 0, 0, 0), index % 2**32
    x = lo ^ k[0]
    x = (x ^ (x >> 17)) * 0xED5AD4BB % 2**32
    x = (x + k[1]) % 2**32
    x = (x ^ (x >> 11)) * 0xAC4C1B51 % 2**32 ^ k[2]
    x = (x ^ (x >> 15)) * 0x31848BAB % 2**32
    x = (x + k[3]) % 2**32
    return x ^ (x >> 14) ^ lo


def words(seed: int, start: int, n: int) -> np.ndarray:
    out = np.empty(n, U)
    fill_words(out, U(seed % 2**32), U(seed >> 32), start)
    return out


@pytest.mark.parametrize(("key", "counter", "wanted"), PHILOX)
def test_philox_known_answers(key: tuple[int, int], counter: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    assert philox(key, *counter) == wanted
    keys = tuple(int(x) for x in random_keys(U(key[0]), U(key[1]), U(counter[0])))  # the other three are zero there
    assert keys == philox(key, counter[0], 0, 0, 0)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62))
def test_words_are_their_definition(seed: int, index: int) -> None:
    halves = U(seed % 2**32), U(seed >> 32), U(index % 2**32), U(index >> 32)
    assert int(random_word(*halves)) == word(seed, index) == int(words(seed, index, 1)[0])


def test_any_chunking_gives_the_same_words() -> None:
    start = 2**32 - 1000  # across the place where the keys change
    whole = words(3, start, 2000)
    parts = np.concatenate([words(3, start + a, 137) for a in range(0, 2000, 137)])[:2000]
    assert np.array_equal(whole, parts)
    assert [int(x) for x in whole[998:1002]] == [word(3, start + i) for i in range(998, 1002)]


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
    w = words(seed, 0, N)
    ones = np.array([np.count_nonzero(w >> U(b) & U(1)) for b in range(32)])
    assert np.all(np.abs(ones - N / 2) < 4.5 * np.sqrt(N) / 2)
    for byte in range(4):
        counts = np.bincount(w.view(np.uint8)[byte::4], minlength=256)
        chi2 = ((counts - N / 256) ** 2 / (N / 256)).sum()
        assert abs(chi2 - 255) < 4.5 * np.sqrt(2 * 255)
    u = w / 2.0**32 - 0.5
    others = [u[:-lag] * u[lag:] for lag in (1, 2, 3, 4, 16, 128, 4096)]
    others.append(u * (words(seed + 1, 0, N) / 2.0**32 - 0.5))
    others.append(u * (words(seed, 2**32, N) / 2.0**32 - 0.5))
    for products in others:
        assert abs(products.mean() * 12 * np.sqrt(products.size)) < 4.5
    same = N - np.unique(w).size  # as many words repeat as among independent ones: 128 +- 11
    assert 80 < same < 180


def test_one_bit_of_the_index_changes_half_the_word() -> None:
    w = words(9, 0, 1 << 16)
    index = np.arange(1 << 16)
    for k in range(16):
        flips = w ^ w[index ^ (1 << k)]
        share = np.array([np.mean(flips >> U(b) & U(1)) for b in range(32)])
        assert np.all(np.abs(share - 0.5) < 5 * 0.5 / np.sqrt(1 << 15))
