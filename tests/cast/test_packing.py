"""Packed codes: the stream's layout bit by bit, round trips, and what does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from lowprec.cast.packing import pack_e5m6, unpack_e5m6


def by_hand(codes: list[int], bits: int) -> bytes:
    """The definition: one big little-endian number, element i at bit i * bits."""
    number = sum(code << (i * bits) for i, code in enumerate(codes))
    return number.to_bytes(-(-len(codes) * bits // 8), "little")


@pytest.mark.slow
@given(st.integers(1, 16), st.integers(0, 67), st.integers(0, 2**32 - 1))
def test_the_stream_is_one_little_endian_number(bits: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, count)
    packed = lp.pack(codes, bits)
    assert packed.tobytes() == by_hand(codes.tolist(), bits)
    back = lp.unpack(packed, bits, count)
    assert back.dtype == (np.uint8 if bits <= 8 else np.uint16)
    assert back.tolist() == codes.tolist()


@pytest.mark.parametrize("bits", [3, 4, 6, 8, 12, 16])
def test_long_streams_come_back(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (1 << 18) + 5)
    packed = lp.pack(codes, bits)
    assert packed[: 128 * bits].tobytes() == by_hand(codes[:1024].tolist(), bits)
    assert np.array_equal(lp.unpack(packed, bits, codes.size), codes)


def test_nibbles_low_first_and_shapes() -> None:
    assert lp.pack(np.array([[1, 2], [3, 4]]), 4).tolist() == [0x21, 0x43]
    assert lp.pack(np.array([0x3F, 0x01, 0x02, 0x03]), 6).tolist() == [0x7F, 0x20, 0x0C]
    strided = np.arange(16, dtype=np.uint8)[::2]
    assert lp.unpack(lp.pack(strided, 5), 5, 8).tolist() == strided.tolist()
    assert lp.pack([], 4).shape == (0,)
    assert lp.unpack([], 4, 0).shape == (0,)
    into, codes = np.empty(2, np.uint8), np.empty(4, np.uint8)
    assert lp.pack([1, 2, 3, 4], 4, out=into) is into
    assert lp.unpack(into, 4, 4, out=codes) is codes
    assert codes.tolist() == [1, 2, 3, 4]


def test_e5m6_as_tilekernels_store_it() -> None:
    """The published words, all codes, any leading axes, and the errors."""
    assert pack_e5m6(lp.encode(np.arange(1.0, 9.0), "e5m6")).tolist() == [
        0x3C040042,
        0x04404504,
        0x60470480,
    ]
    codes = np.random.default_rng(0).permutation(4096).astype(np.uint16).reshape(4, 8, 128)
    words = pack_e5m6(codes)
    assert words.shape == (4, 8, 48)
    assert words.dtype == np.uint32
    assert np.array_equal(unpack_e5m6(words), codes)
    stream = "".join(f"{code:012b}" for code in codes[0, 0].tolist())  # the first code in the highest bits
    assert "".join(f"{word:032b}" for word in words[0, 0].tolist()) == stream
    assert pack_e5m6(np.zeros((3, 0), np.uint16)).shape == (3, 0)
