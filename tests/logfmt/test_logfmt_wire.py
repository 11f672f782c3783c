"""LogFMT's options that decide what is sent, and the bytes: axes, ends, fallback, headers, damaged messages."""

import dataclasses
import struct
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec import _threads, logfmt
from lowprec.logfmt import LogFMT, encode, from_bytes, unpack

F = np.float32
B = ml_dtypes.bfloat16


def gauss(*shape, sigma=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * sigma).astype(F)


def same(a, b):
    return (
        np.array_equal(a.codes, b.codes)
        and np.array_equal(a.amin, b.amin)
        and np.array_equal(a.amax, b.amax, equal_nan=True)
        and a.decode().tobytes() == b.decode().tobytes()
    )


# --- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3])
@pytest.mark.parametrize("rounding", ["linear", "stochastic"])
def test_tiles_along_any_axis(axis, rounding):
    x = gauss(5, 130, 7)
    z = encode(x, 6, 32, axis=axis, rounding=rounding, fallback="bf16" if axis == 0 else None)
    moved = encode(np.moveaxis(x, axis, -1), 6, 32, rounding=rounding, fallback="bf16" if axis == 0 else None)
    assert z.shape == z.decode().shape == x.shape
    assert np.array_equal(np.moveaxis(z.codes, axis, -1), moved.codes)
    assert np.array_equal(np.moveaxis(z.amax, axis, -1), moved.amax)
    assert np.array_equal(np.moveaxis(z.decode(), axis, -1), moved.decode())
    assert z.pack().tobytes() == moved.pack().tobytes()
    assert z.nbytes == moved.nbytes
    assert same(from_bytes(z.to_bytes()), z)
    out = np.empty(x.shape, F)
    assert z.decode(out=out) is out
    assert out.tobytes() == z.decode().tobytes()


def test_axes_that_are_not_there():
    for axis in (2, -3, 7):
        with pytest.raises(ValueError, match=f"axis={axis}: a whole number from -2 to 1"):
            encode(gauss(3, 4), axis=axis)
    with pytest.raises(ValueError, match=r"axis=1\.0: a whole number"):
        encode(gauss(3, 4), axis=1.0)


@pytest.mark.parametrize("tile", [1, 2, 7, 128, 129, 5000])
def test_any_tile_length(tile):
    x = gauss(3, 300)
    z = encode(x, 8, tile)
    assert z.amax.shape == (3, -(-300 // tile))
    for first in range(0, 300, tile):
        alone = encode(x[:, first : first + tile], 8, 10**6)
        assert np.array_equal(z.codes[:, first : first + tile], alone.codes)
    assert same(unpack(z.pack(), 300, 8, tile, meta_bits=64), z)
    if tile == 1:
        assert z.decode().tobytes() == x.tobytes()


# --- ends ------------------------------------------------------------------------------------------------------------


def test_ends_as_float32_even_if_bfloat16_would_do():
    x = gauss(4, 256).astype(B)
    narrow, wide = encode(x), encode(x, meta="fp32")
    assert (narrow.bits_per_value, wide.bits_per_value) == (8.25, 8.5)
    assert narrow.codes.tobytes() == wide.codes.tobytes()
    assert same(from_bytes(wide.to_bytes()), wide)
    assert from_bytes(wide.to_bytes()).meta_bits == 64


def test_ends_moved_outwards_to_bfloat16():
    x = gauss(8, 1024)
    z = encode(x, meta="bf16")
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
    assert same(unpack(z.pack(), 1024, meta_bits=32), z)
    # bfloat16 numbers stay what they are.
    y = x.astype(B)
    assert same(encode(y, meta="bf16"), encode(y))


def test_ends_at_the_edges_of_bfloat16():
    tiny = np.full(4, 2.0**-149, F)
    z = encode(tiny, meta="bf16")
    assert z.amin[0] == z.amax[0] == F(2.0**-133)
    assert z.decode().tolist() == [0, 0, 0, 0]  # below half of the smallest that can be sent
    assert encode(np.zeros(4, F), meta="bf16").decode().tolist() == [0, 0, 0, 0]
    assert np.isnan(encode(np.array([1, np.nan], F), meta="bf16", nonfinite="poison").decode()).all()
    x = gauss(3, 128)
    x[1, 5] = 3.4e38
    with pytest.raises(ValueError, match=r"e\+38 in row 1, tile 0: no bfloat16 number is as large"):
        encode(x, meta="bf16")


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
    assert z.cast.tolist() == [[False, True, True], [True, False, True], [True, True, False], [True, True, True]]
    fallen = np.repeat(~z.cast, 1024, axis=1)[:, :2500]
    y = z.decode()
    assert np.array_equal(y[fallen], x[fallen].astype(B).astype(F))
    assert np.array_equal(y[~fallen], encode(x, 8).decode()[~fallen])
    wire = z.pack()
    assert wire.ndim == 1
    chunk = np.array([1024, 1024, 452])
    assert z.nbytes == wire.size == 4 * 20 * 8 + (np.where(z.cast, 1, 2) * chunk).sum()
    assert same(unpack(wire, 2500, 8, meta_bits=64, fallback="bf16"), z)
    assert same(from_bytes(z.to_bytes()), z)
    assert encode(x, 8).cast.all()


@pytest.mark.parametrize("bits", [3, 10, 13, 16])
def test_fallback_in_any_number_of_bits(bits):
    z = encode(mixed().astype(B), bits, fallback="bf16")
    assert z.meta_bits == 32
    assert same(unpack(z.pack(), 2500, bits, meta_bits=32, fallback="bf16"), z)


def test_what_is_not_finite_falls_back():
    x = mixed()
    x[3, 100], x[3, 200] = np.nan, -np.inf
    with pytest.raises(ValueError, match="nan in row 3, tile 0"):
        encode(x, fallback="bf16")
    y = encode(x, fallback="bf16", nonfinite="poison").decode()
    assert np.isnan(y[3, 100])
    assert y[3, 200] == -np.inf
    assert np.isfinite(y).sum() == y.size - 2


# --- bytes with a header ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(3, 16), st.integers(1, 9), st.integers(1, 32),
    st.sampled_from([None, "fp32"]), st.sampled_from([None, "bf16"]), st.data(),
)  # fmt: skip
def test_bytes_come_back(shape, bits, tile, octaves, meta, fallback, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = gauss(*shape, sigma=0.2)
    z = encode(x, bits, tile, axis=axis, clamp_octaves=octaves, meta=meta, fallback=fallback)
    back = from_bytes(z.to_bytes())
    assert same(back, z)
    assert (back.shape, back.bits, back.tile, back.octaves) == (z.shape, bits, tile, octaves)
    assert back.nbytes == z.nbytes == z.pack().size
    assert back.to_bytes() == z.to_bytes()


def test_every_cut_and_every_changed_byte_is_noticed():
    data = encode(mixed()[:2, :150], 5, 16, fallback="bf16").to_bytes()
    for size in range(0, len(data), 3):
        with pytest.raises(ValueError, match="logfmt: "):
            from_bytes(data[:size])
    for i in range(0, len(data), 2):
        changed = bytearray(data)
        changed[i] ^= 0x10
        with pytest.raises(ValueError, match="logfmt: "):
            from_bytes(bytes(changed))
    with pytest.raises(ValueError, match="begin with b'PK"):
        from_bytes(b"PK\3\4" + data)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_with_a_right_checksum_is_an_error_or_some_array(data):
    bits, fallback = data.draw(st.sampled_from([3, 8, 11])), data.draw(st.sampled_from([None, "bf16"]))
    z = encode(mixed()[:, :40], bits, 16, fallback=fallback)
    raw = bytearray(z.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw[4:8] = struct.pack("<I", zlib.crc32(bytes(raw[8:])))
    try:
        back = from_bytes(bytes(raw))
    except ValueError as error:
        assert str(error).startswith("logfmt: ")  # noqa: PT017
        return
    assert back.decode().shape == back.shape


def test_impossible_ends():
    z = encode(gauss(2, 256))
    impossible = [(2, 1), (-1, 1), (0, 1), (1, 0), (1, np.inf), (np.nan, 1), (1, np.nan), (-0.0, -0.0)]
    for amin, amax in impossible:
        z.amin[1, 1], z.amax[1, 1] = amin, amax
        with pytest.raises(ValueError, match=r"row 1, tile 1: ends .* and .*; 0 < amin <= amax, 0 and 0, or 0 and NaN"):
            unpack(z.pack(), 256, meta_bits=64)


def test_padding_is_zero():
    wire = encode(gauss(1, 9), 5).pack()
    wire[0, -1] |= 0x80  # 45 bits are 6 bytes less 3 bits
    with pytest.raises(ValueError, match="padding bits after 9 codes of 5 bits are not zero"):
        unpack(wire, 9, 5, meta_bits=64)


def test_wires_of_the_wrong_length():
    z = encode(mixed(), fallback="bf16")
    wire = z.pack()
    for size in (1, 159, 160, 2000, wire.size - 1):
        with pytest.raises(ValueError, match="it is cut short"):
            unpack(wire[:size], 2500, meta_bits=64, fallback="bf16")
    with pytest.raises(ValueError, match="rows of 0 values take none"):
        unpack(wire, 0, meta_bits=64, fallback="bf16")
    with pytest.raises(ValueError, match="columns=-1: a whole number >= 0"):
        unpack(wire, -1, meta_bits=64)
    with pytest.raises(ValueError, match="uint8 bytes in rows are needed"):
        unpack(wire.astype(np.int64), 2500, meta_bits=64)


def test_codes_wider_than_their_bits_are_not_looked_up():
    z = encode(gauss(4, 128), 5)
    z.codes[3, 3] = 200
    with pytest.raises(ValueError, match=r"code 200 is outside 0\.\.31 \(5 bits\)"):
        z.decode()


def test_bytes_are_the_same_whatever_the_threads():
    x = gauss(600, 2500, sigma=0.22)
    before, seen = _threads.get_num_threads(), set()
    try:
        for threads in (1, 2, 5):
            _threads.set_num_threads(threads)
            for options in ({}, {"rounding": "stochastic", "seed": 3}, {"fallback": "bf16", "meta": "bf16"}):
                seen.add(zlib.crc32(encode(x, 7, **options).to_bytes()))
    finally:
        _threads.set_num_threads(before)
    assert len(seen) == 3


# --- bad options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rounding": "up"}, ValueError, "rounding='up': 'linear', 'log', 'logmean', 'stochastic' is needed"),
        ({"meta": "fp16"}, ValueError, "meta='fp16': None, 'bf16', 'fp32' is needed"),
        ({"fallback": True}, ValueError, "fallback=True: None or 'bf16' is needed"),
        ({"clamp_octaves": 0}, ValueError, "clamp_octaves=0: a whole number from 1 to 32"),
        ({"seed": -1}, ValueError, "seed=-1: a whole number from 0"),
        ({"offset": 0.5}, ValueError, r"offset=0\.5: a whole number"),
        ({"bits": True}, ValueError, "bits=True"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        encode(np.ones(4, F), **options)


def test_an_array_is_not_changed_and_may_be_anything():
    x = gauss(6, 300)
    x.flags.writeable = False
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    assert not strided.flags.c_contiguous
    assert same(encode(strided), encode(x))
    assert same(encode(x.astype(B)), encode(x.astype(B).astype(F)))
    assert same(encode(x[::-1]), encode(x[::-1].copy()))
    assert isinstance(encode([[1, 2], [3, 4]], axis=0), LogFMT)
    assert logfmt.encode(np.zeros((2, 0), F)).to_bytes()


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
def test_a_small_message_takes_little_memory_whatever_it_claims(mode, shape, payload):
    import tracemalloc

    for axis in (0, len(shape) - 1):
        for fallback in (0, 1):
            fields = (*GOOD[mode][:5], fallback, axis % 256, GOOD[mode][7])
            tracemalloc.start()
            try:
                z = from_bytes(message(*fields, shape=shape, payload=payload))
                assert z.to_bytes() == message(*fields, shape=shape, payload=payload)
                assert z.decode().shape == shape
                assert z.nbytes == len(payload)
            except ValueError as error:
                assert str(error).startswith("logfmt: ")  # noqa: PT017
            finally:
                most = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert most < 1 << 22


@pytest.mark.parametrize("mode", GOOD)
def test_every_field_of_a_header_is_checked(mode):
    """Each byte in turn takes every value: what is read is what `to_bytes` writes again, all else is a ValueError."""
    good = GOOD[mode]
    for shape, payload in (((0,), b""), ((3, 0), b"")):
        taken = 0
        for place in range(len(good)):
            for value in (*range(256), 1 << 31, (1 << 32) - 1) if place == 7 else range(256):
                data = message(*good[:place], value, *good[place + 1 :], shape=shape, payload=payload)
                try:
                    z = from_bytes(data)
                except ValueError as error:
                    assert str(error).startswith("logfmt: ")  # noqa: PT017
                else:
                    assert z.to_bytes() == data
                    assert z.decode().shape == shape
                    taken += 1
        assert taken > len(good) or mode == "deepep"


def test_what_cannot_be_read_back_is_not_written():
    z = encode(gauss(2, 8), 8, 4)
    for change in ({"bits": 20}, {"tile": 1 << 32}, {"octaves": 0}):
        with pytest.raises(ValueError, match=r"logfmt: |pack: "):
            dataclasses.replace(z, **change).to_bytes()


@pytest.mark.parametrize("shape", [(0, 9), (9, 0), (3, 0, 5), (0,)])
@pytest.mark.parametrize("fallback", [None, "bf16"])
def test_arrays_without_values_come_back(shape, fallback):
    for axis in range(len(shape)):
        z = encode(np.empty(shape, F), 8, 4, axis=axis, fallback=fallback, meta="fp32")
        assert from_bytes(z.to_bytes()) == dataclasses.replace(z, axis=z.axis)


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, np.nextafter(F(3.3961776e38), F(np.inf))])
def test_a_fallback_refuses_what_overflows_in_bfloat16(value):
    x = gauss(3, 300)
    x[1, 200] = value
    with pytest.raises(ValueError, match=r"in row 1, tile 1: no bfloat16 number is as large; use fallback=None"):
        encode(x, 8, fallback="bf16", meta="fp32", nonfinite="poison")
    assert encode(x, 8, meta="fp32").decode()[1, 200] == F(value)
    x[1, 200] = 3.3895314e38  # bfloat16's largest
    assert encode(x, 8, fallback="bf16", meta="fp32").decode()[1, 200] == x[1, 200]
    x[1, 200:202] = np.inf, np.nan
    back = encode(x, 8, fallback="bf16", meta="fp32", nonfinite="poison").decode()[1, 200:202]
    assert np.isposinf(back[0])
    assert np.isnan(back[1])
