"""LogFMT's options that decide what is sent, and the bytes: axes, ends, fallback, headers, damaged messages."""

import dataclasses
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logfmt_tiles import B, F, gauss, same

from lowprec.logfmt import encode, from_bytes, unpack

# --- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3])
@pytest.mark.parametrize("rounding", ["linear", "stochastic"])
def test_tiles_along_any_axis(axis, rounding):
    x = gauss(5, 130, 7)
    options = {"rounding": rounding, "fallback": "bf16" if axis == 0 else None}
    z, moved = encode(x, 6, 32, axis=axis, **options), encode(np.moveaxis(x, axis, -1), 6, 32, **options)
    assert z.shape == z.decode().shape == x.shape
    for ours, theirs in ((z.codes, moved.codes), (z.amax, moved.amax), (z.decode(), moved.decode())):
        assert np.array_equal(np.moveaxis(ours, axis, -1), theirs)
    assert z.pack().tobytes() == moved.pack().tobytes()
    assert z.nbytes == moved.nbytes
    assert same(from_bytes(z.to_bytes()), z)
    out = np.empty(x.shape, F)
    assert z.decode(out=out) is out
    assert out.tobytes() == z.decode().tobytes()


# --- ends ------------------------------------------------------------------------------------------------------------


def test_ends_as_float32_even_if_bfloat16_would_do():
    x = gauss(4, 256).astype(B)
    narrow, wide = encode(x), encode(x, range_format="fp32")
    assert (narrow.bits_per_value, wide.bits_per_value) == (8.25, 8.5)
    assert narrow.codes.tobytes() == wide.codes.tobytes()
    assert same(from_bytes(wide.to_bytes()), wide)
    assert from_bytes(wide.to_bytes()).range_bits == 64


def test_ends_moved_outwards_to_bfloat16():
    x = gauss(8, 1024)
    z = encode(x, range_format="bf16")
    assert z.bits_per_value == 8.25
    tiles = np.abs(x).reshape(8, 8, 128)
    least, most = tiles.min(axis=2), tiles.max(axis=2)
    for end in (z.amin, z.amax):
        assert not (end.view(np.uint32) & 0xFFFF).any()
    assert np.all((z.amin <= least) & (z.amin > least * (1 - 2**-7)))
    assert np.all((z.amax >= most) & (z.amax < most * (1 + 2**-7)))
    # A tile with these ends in it has the same grid.
    own = np.concatenate([x[0, :128], z.amin[0, :1], z.amax[0, :1]]).astype(F)
    assert np.array_equal(encode(own, 8, 130).codes[:128], z.codes[0, :128])
    assert same(unpack(z.pack(), 1024, range_bits=32), z)
    assert same(encode(x.astype(B), range_format="bf16"), encode(x.astype(B)))  # bfloat16 numbers stay what they are


def test_ends_at_the_edges_of_bfloat16():
    z = encode(np.full(4, 2.0**-149, F), range_format="bf16")
    assert z.amin[0] == z.amax[0] == F(2.0**-133)
    assert z.decode().tolist() == [0, 0, 0, 0]  # below half of the smallest that can be sent
    assert encode(np.zeros(4, F), range_format="bf16").decode().tolist() == [0, 0, 0, 0]
    assert np.isnan(encode(np.array([1, np.nan], F), range_format="bf16", nonfinite="poison").decode()).all()


# --- fallback --------------------------------------------------------------------------------------------------------


def mixed():
    x = gauss(4, 2500, sigma=0.1)
    x[0, 3] = 1.0  # not below 1
    x[1, 1024:1200] = 0.25  # a tile of equal magnitudes
    x[2, 2400:] = 0  # zeros alone, in the short last chunk
    return x


def test_chunks_fall_back_as_deepeps_do():
    x = mixed()
    z = encode(x, 8, fallback="bf16")
    assert z.codes.dtype == np.uint16
    assert z.encoded_chunks.tolist() == [
        [False, True, True],
        [True, False, True],
        [True, True, False],
        [True, True, True],
    ]
    fallen = np.repeat(~z.encoded_chunks, 1024, axis=1)[:, :2500]
    assert np.array_equal(z.decode(), np.where(fallen, x.astype(B).astype(F), encode(x, 8).decode()))
    wire = z.pack()
    assert wire.ndim == 1
    assert z.nbytes == wire.size == 4 * 20 * 8 + (np.where(z.encoded_chunks, 1, 2) * np.array([1024, 1024, 452])).sum()
    assert same(from_bytes(z.to_bytes()), z)
    assert encode(x, 8).encoded_chunks.all()


@pytest.mark.parametrize(("kind", "bits"), [(F, 8), (B, 3), (B, 10), (B, 13), (B, 16)])
def test_fallback_in_any_number_of_bits(kind, bits):
    z = encode(mixed().astype(kind), bits, fallback="bf16")
    assert z.range_bits == (64 if kind is F else 32)
    assert same(unpack(z.pack(), 2500, bits, range_bits=z.range_bits, fallback="bf16"), z)


def test_what_is_not_finite_falls_back():
    x = mixed()
    x[3, 100], x[3, 200] = np.nan, -np.inf
    y = encode(x, fallback="bf16", nonfinite="poison").decode()
    assert np.isnan(y[3, 100])
    assert y[3, 200] == -np.inf
    assert np.isfinite(y).sum() == y.size - 2


@pytest.mark.parametrize("value", [3.4e38, -3.4e38])
def test_a_fallback_holds_all_that_bfloat16_holds(value):
    """What is larger is refused; without a fallback it is sent."""
    x = gauss(3, 300)
    x[1, 200] = value
    assert encode(x, 8, range_format="fp32").decode()[1, 200] == F(value)
    x[1, 200:203] = 3.3895314e38, np.copysign(np.inf, value), np.nan  # bfloat16's largest
    back = encode(x, 8, fallback="bf16", range_format="fp32", nonfinite="poison").decode()
    assert np.array_equal(back[1, 200:203], x[1, 200:203], equal_nan=True)


# --- bytes with a header ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(3, 16), st.integers(1, 9), st.integers(1, 32),
    st.sampled_from([None, "fp32"]), st.sampled_from([None, "bf16"]), st.data(),
)  # fmt: skip
def test_bytes_come_back(shape, bits, tile, octaves, meta, fallback, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = gauss(*shape, sigma=0.2)
    z = encode(x, bits, tile, axis=axis, clamp_octaves=octaves, range_format=meta, fallback=fallback)
    back = from_bytes(z.to_bytes())
    assert same(back, z)
    assert (back.shape, back.bits, back.tile, back.octaves) == (z.shape, bits, tile, octaves)
    assert back.nbytes == z.nbytes == z.pack().size
    assert back.to_bytes() == z.to_bytes()


def read_or_refused(data):
    """Return what is read of a message, or None; what is read is written as the same bytes."""
    try:
        z = from_bytes(data)
    except ValueError as error:
        assert str(error).startswith("logfmt: ")  # noqa: PT017
        return None
    assert z.decode().shape == z.shape
    assert z.to_bytes() == data
    return z


def test_every_cut_and_every_changed_byte_is_noticed():
    data = encode(mixed()[:2, :150], 5, 16, fallback="bf16").to_bytes()
    damaged = [data[:size] for size in range(0, len(data), 3)]
    damaged += [data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :] for i in range(0, len(data), 2)]
    assert not any(map(read_or_refused, damaged))
    with pytest.raises(ValueError, match="begin with b'PK"):
        from_bytes(b"PK\3\4" + data)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_with_a_right_checksum_is_an_error_or_some_array(data):
    bits, fallback = data.draw(st.sampled_from([3, 8, 11])), data.draw(st.sampled_from([None, "bf16"]))
    raw = bytearray(encode(mixed()[:, :40], bits, 16, fallback=fallback).to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw[4:8] = struct.pack("<I", zlib.crc32(bytes(raw[8:])))
    read_or_refused(bytes(raw))


# --- what a message may claim ----------------------------------------------------------------------------------------


def message(*fields, shape=(0,), payload=b""):
    """Return a message with a right checksum; fields from the version to the tile."""
    fields = (*fields[:7], len(shape), *fields[7:])
    body = struct.pack("<BBBBBBBBI", *fields) + struct.pack(f"<{len(shape)}Q", *shape) + payload
    return b"LFMT" + struct.pack("<I", zlib.crc32(body)) + body


GOOD = {"paper": (1, 0, 8, 32, 64, 1, 0, 8), "deepep": (1, 1, 10, 32, 32, 1, 0, 128)}
SIZES = [(0,), (0, 1 << 40), (1 << 40, 0), (0, 1 << 55), (1 << 55, 0), (1 << 40, 0, 512), (2**63, 0), (2**64 - 1,) * 3,
         (1 << 40,), (1, 1 << 33), (2**32, 2**32), (0,) * 65, (1 << 47, 2)]  # fmt: skip


@pytest.mark.parametrize("mode", GOOD)
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("payload", [b"", bytes(24)])
@pytest.mark.parametrize("fallback", [0, 1])
def test_a_small_message_takes_little_memory_whatever_it_claims(mode, shape, payload, fallback):
    for axis in (0, len(shape) - 1):
        fields = (*GOOD[mode][:5], fallback, axis % 256, GOOD[mode][7])
        tracemalloc.start()
        try:
            z = read_or_refused(message(*fields, shape=shape, payload=payload))
            assert z is None or (z.shape, z.nbytes) == (shape, len(payload))
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 1 << 22


@pytest.mark.parametrize("mode", GOOD)
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_every_field_of_a_header_is_checked(mode, shape):
    """Each byte in turn takes every value: what is read is what `to_bytes` writes again, all else is a ValueError."""
    good, taken = GOOD[mode], 0
    for place in range(len(good)):
        for value in (*range(256), 1 << 31, (1 << 32) - 1) if place == 7 else range(256):
            taken += read_or_refused(message(*good[:place], value, *good[place + 1 :], shape=shape)) is not None
    assert taken > len(good) or mode == "deepep"


@pytest.mark.parametrize("change", [{"bits": 20}, {"tile": 1 << 32}, {"octaves": 0}], ids=str)
def test_what_cannot_be_read_back_is_not_written(change):
    with pytest.raises(ValueError, match=r"logfmt: |pack: "):
        dataclasses.replace(encode(gauss(2, 8), 8, 4), **change).to_bytes()
