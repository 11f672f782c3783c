"""Bytes on the wire: as many as promised, the same values back, and nothing else is read."""

import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec import logfmt
from lowprec.codec import BlockCodec, CastCodec, WireError, codecs

F = np.float32
NAMES = [name for name in codecs if not hasattr(codecs[name], "columns_multiple")]
SHAPES = [(2, 130), (1, 1), (3,), (0, 5), (2, 0), (2, 2, 33)]


def values(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16).astype(F)


@pytest.mark.sampled(109)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(name, shape):
    codec = codecs[name]
    x = values(shape)
    x.reshape(-1)[::7] = 0
    wire = codec.encode(x)
    data = wire.to_bytes()
    rows = int(np.prod(shape[:-1]))
    assert len(data) == wire.nbytes == getattr(codec, "prefix_bytes", 0) + rows * codec.row_bytes(shape[-1])
    back = codec.from_bytes(data, shape)
    assert (back.shape, back.nbytes) == (shape, len(data))
    assert back.decode().tobytes() == wire.decode().tobytes() == codec.round_trip(x).tobytes()
    assert back.to_bytes() == data
    for other in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert codec.from_bytes(other, shape).to_bytes() == data


@pytest.mark.sampled(27)
@pytest.mark.parametrize("name", NAMES)
def test_every_other_length_is_refused(name):
    codec, shape = codecs[name], (2, 21)
    data = codec.encode(values(shape)).to_bytes()
    lengths = set(range(len(data) + 40)) - {len(data)}
    if name.startswith("logfmt"):
        lengths -= {len(data) + 2 * 4}  # ends as float32 numbers
    for length in lengths:
        with pytest.raises(WireError, match=rf"{name}: {length} bytes; values of shape \(2, 21\) take"):
            codec.from_bytes((data + bytes(64))[:length], shape)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_bytes_are_refused_or_mean_themselves(name, data):
    codec = codecs[name]
    shape = data.draw(st.sampled_from([(1, 3), (2, 17), (1, 130)]))
    length = getattr(codec, "prefix_bytes", 0) + shape[0] * codec.row_bytes(shape[1])
    noise = data.draw(st.binary(min_size=length, max_size=length))
    if data.draw(st.booleans()):  # near to what is written: a few flipped bits
        noise = bytearray(codec.encode(values(shape)).to_bytes())
        for place in data.draw(st.lists(st.integers(0, 8 * length - 1), max_size=3)):
            noise[place // 8] ^= 1 << place % 8
    try:
        wire = codec.from_bytes(bytes(noise), shape)
    except WireError:
        return
    assert wire.to_bytes() == bytes(noise)
    assert wire.decode().shape == shape


def test_the_layout_by_hand():
    x = np.array([[448, -1, 3.5], [0, 2.0**-9, 448]], F)
    data = codecs["fp8_1x128"].encode(x).to_bytes()
    assert data.hex() == "0000803f" + "7eb846" + "0000803f" + "00017e"  # scale 1, three codes; twice
    assert codecs["fp8_1x128_ue8m0"].encode(x).to_bytes().hex() == "7f7eb846" + "7f00017e"
    assert codecs["bf16"].encode(x).to_bytes().hex() == "e04380bf6040" + "00000" + "03be043"
    # Twelve bits, least significant first: e5m6 of 1, -2 and 0.5 is 3c0, c00, 380; the scale is 2^-14.
    narrow = codecs["e5m6_1x128_ue8m0"].encode(np.array([[1, -2, 0.5]], F))
    codes = narrow.content.codes[0].tolist()
    stream = sum(code << 12 * i for i, code in enumerate(codes))
    assert narrow.to_bytes() == bytes([127 + int(np.log2(narrow.content.scale[0, 0]))]) + stream.to_bytes(5, "little")
    tile = values((1, 128))
    assert codecs["logfmt10"].encode(tile).to_bytes() == logfmt.encode(tile, 10).pack().tobytes()


def test_nibbles_and_the_scale_of_the_tensor():
    x = values((2, 18))
    codec = codecs["nvfp4"]
    wire = codec.encode(x)
    data = wire.to_bytes()
    assert len(data) == 4 + 2 * (2 + 9)
    assert np.frombuffer(data[:4], "<f4")[0] == wire.content.tensor_scale
    nibbles = np.frombuffer(data[4 + 2 : 4 + 11], np.uint8)
    assert np.array_equal(nibbles & 15, wire.content.codes[0, ::2])
    assert np.array_equal(nibbles >> 4, wire.content.codes[0, 1::2])


@pytest.mark.parametrize("scale", [-1.0, -0.0, np.inf, -np.inf])
def test_impossible_scales(scale):
    data = bytearray(codecs["fp8_1x128"].encode(values((2, 8))).to_bytes())
    data[12:16] = np.array(scale, "<f4").tobytes()
    with pytest.raises(WireError, match="row 1, tile 0: scale"):
        codecs["fp8_1x128"].from_bytes(bytes(data), (2, 8))
    data = bytearray(codecs["nvfp4"].encode(values((2, 16))).to_bytes())
    data[:4] = np.array(scale, "<f4").tobytes()
    with pytest.raises(WireError, match="the tensor's scale"):
        codecs["nvfp4"].from_bytes(bytes(data), (2, 16))
    data = bytearray(codecs["nvfp4"].encode(values((2, 16))).to_bytes())
    data[4] |= 0x80
    with pytest.raises(WireError, match="row 0, tile 0: scale"):
        codecs["nvfp4"].from_bytes(bytes(data), (2, 16))


def test_codes_that_are_no_numbers():
    data = bytearray(codecs["fp8_1x128"].encode(values((1, 8))).to_bytes())
    data[4 + 5] = 0x7F
    with pytest.raises(WireError, match="row 0, value 5: code 0x7f is not finite"):
        codecs["fp8_1x128"].from_bytes(bytes(data), (1, 8))
    poisoned = values((2, 8))
    poisoned[1, 3] = np.nan
    for name in ("fp8_1x128", "fp8_1x128_ue8m0", "logfmt8", "e5m6_1x128_ue8m0"):
        back = codecs[name].from_bytes(codecs[name].encode(poisoned).to_bytes(), (2, 8)).decode()
        assert np.isnan(back[1]).all()
        assert np.isfinite(back[0]).all()


@pytest.mark.parametrize("ends", [(2.0, 1.0), (-1.0, 1.0), (0.0, 1.0), (1.0, np.inf), (np.nan, 1.0)])
def test_impossible_ends(ends):
    data = bytearray(codecs["logfmt8"].encode(values((1, 8))).to_bytes())
    data[:4] = np.array(ends, ml_dtypes.bfloat16).tobytes()
    with pytest.raises(WireError, match="tile 0: ends"):
        codecs["logfmt8"].from_bytes(bytes(data), (1, 8))


def test_padding_is_zero():
    for codec in (CastCodec("c", "e2m1fn"), BlockCodec("b", "e2m3fn", 32, "ue8m0"), codecs["logfmt5"]):
        data = bytearray(codec.encode(values((1, 3))).to_bytes())
        data[-1] |= 0x80
        with pytest.raises(WireError, match="bits"):
            codec.from_bytes(bytes(data), (1, 3))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_array_of_rows(name):
    codec = codecs[name]
    with pytest.raises(ValueError, match="a single number"):
        codec.encode(np.float32(1))
    with pytest.raises(TypeError, match="real numbers"):
        codec.encode(np.array([[1j]]))
    with pytest.raises(TypeError, match="real numbers"):
        codec.round_trip(np.array([["a"]]))
    for shape in ((), (-1, 2), (1.5,), "ab", 3):
        with pytest.raises(ValueError, match="shape"):
            codec.from_bytes(b"", shape)
    with pytest.raises(TypeError, match="bytes are needed"):
        codec.from_bytes(np.zeros(4), (1, 1))


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_1x128", "logfmt8"])
def test_any_layout_and_type(name):
    codec = codecs[name]
    x = values((6, 40))
    want = codec.round_trip(x).tobytes()
    frozen = x.copy()
    frozen.flags.writeable = False
    for given_ in (
        np.asfortranarray(x),
        frozen,
        x.astype(np.float64),
        x.astype(ml_dtypes.bfloat16),
        x[:, ::-1][:, ::-1],
    ):
        assert codec.round_trip(given_).tobytes() == want


def test_one_rounding_from_float64():
    """1 + 2^-8 + 2^-40 is nearer to 1 + 2^-7; rounded to float32 first it would be a tie, and go to 1."""
    x = np.array([[1 + 2.0**-8 + 2.0**-40]])
    assert codecs["bf16"].round_trip(x)[0, 0] == 1 + 2.0**-7
    assert codecs["bf16"].encode(x).decode()[0, 0] == 1 + 2.0**-7


def test_threads_do_not_matter():
    from lowprec import get_num_threads, set_num_threads

    x = values((64, 4096))
    threads = get_num_threads()
    try:
        sent = []
        for count in (1, 2, 3):
            set_num_threads(count)
            sent.append([codecs[name].encode(x).to_bytes() for name in ("nvfp4", "logfmt10", "e5m6_1x128_ue8m0")])
    finally:
        set_num_threads(threads)
    assert sent[0] == sent[1] == sent[2]


# --- messages of varying length --------------------------------------------------------------------------------------

DEEPEP = codecs["logfmt10_deepep"]


def test_deepep_messages():
    x = values((3, 2, 2048)) / 8
    x[0, 1, 1024:] *= 16  # reaches 1: that chunk goes as bfloat16
    x[1, 0, :1024] = 0.5  # constant: so does that one
    wire = DEEPEP.encode(x)
    data = wire.to_bytes()
    assert len(data) == wire.nbytes == 6 * DEEPEP.row_bytes(2048) + 2 * 768
    back = DEEPEP.from_bytes(data, x.shape)
    assert back.nbytes == len(data)
    assert back.to_bytes() == data
    assert back.decode().tobytes() == wire.decode().tobytes() == DEEPEP.round_trip(x).tobytes()
    assert np.array_equal(back.decode()[0, 1, 1024:], x[0, 1, 1024:])
    assert np.array_equal(back.decode()[1, 0, :1024], x[1, 0, :1024])
    assert DEEPEP.row_bytes(7168) == 9184
    assert DEEPEP.encode(values((4, 7168)) / 16).bits_per_value == DEEPEP.bits_per_value == 10.25


def test_deepep_is_given_bfloat16():
    x = np.random.default_rng(0).standard_normal((2, 512)).astype(F) / 8
    rounded = x.astype(ml_dtypes.bfloat16)
    assert DEEPEP.round_trip(x).tobytes() == DEEPEP.round_trip(rounded).tobytes()
    assert DEEPEP.round_trip(x.astype(np.float64)).tobytes() == DEEPEP.round_trip(rounded).tobytes()
    assert DEEPEP.encode(np.zeros((0, 512))).nbytes == 0


def test_deepep_refuses():
    data = DEEPEP.encode(values((2, 1024)) / 8).to_bytes()
    for length in (0, 1, 31, len(data) // 2, len(data) - 1, len(data) + 5):
        with pytest.raises(WireError, match="logfmt10_deepep"):
            DEEPEP.from_bytes((data + bytes(8))[:length], (2, 1024))
    with pytest.raises(WireError, match=r"bytes of 2 rows; shape \(3, 1024\) has 3"):
        DEEPEP.from_bytes(data, (3, 1024))
    for columns in (1, 576, 1000):
        with pytest.raises(ValueError, match=rf"shape \(.*{columns}.*\): rows of {columns} values; a multiple of 512"):
            DEEPEP.encode(values((2, columns)))
        with pytest.raises(ValueError, match="a multiple of 512"):
            DEEPEP.from_bytes(b"", (2, columns))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_deepep_reads_any_bytes_safely(data):
    noise = bytearray(DEEPEP.encode(values((2, 1024)) / 8).to_bytes())
    for place in data.draw(st.lists(st.integers(0, 8 * len(noise) - 1), min_size=1, max_size=4)):
        noise[place // 8] ^= 1 << place % 8
    try:
        wire = DEEPEP.from_bytes(bytes(noise), (2, 1024))
    except WireError:
        return
    assert wire.to_bytes() == bytes(noise)
    with np.errstate(invalid="ignore", over="ignore"):
        assert wire.decode().shape == (2, 1024)


# --- shapes ----------------------------------------------------------------------------------------------------------

HUGE = [(2**64, 0), (0, 2**64), (2**32, 2**32, 4096), (2**60, 0), (2**40, 0), (0, 2**40), (0, 2**31 * 512),
        (2**20, 2**30), (2**63, 2), (1, 2**40), (-1, 2), (2.0, 2), (), "12", 5, None, (1,) * 65, (0,) * 65]  # fmt: skip


@pytest.mark.parametrize("name", codecs.names())
def test_shapes_that_no_bytes_fill(name):
    """Nothing of the claimed size is made: what has no values is read as such, all else is a WireError."""
    codec = codecs[name]
    for shape, data in itertools.product(HUGE, (b"", bytes(7), bytes(512))):
        tracemalloc.start()
        try:
            wire = codec.from_bytes(data, shape)
            assert wire.decode().shape == shape
            assert codec.to_bytes(wire) == data
            assert wire.bits_per_value >= 0
        except WireError as error:
            assert str(error).startswith("codec ")  # noqa: PT017
            assert "reshape" not in str(error)  # noqa: PT017
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 1 << 22


def test_what_casts_make_of_numbers_beyond_their_limit():
    """The limit is the largest finite number; what rounds beyond it becomes Inf, or NaN, or stays at it."""
    for name in ("fp16", "bf16", "float32"):
        codec = codecs[name]
        limit = codec.limits(codec.encode(np.zeros(1, F))).item()
        x = np.float64([limit, 1e300, -1e300, 0.0])
        found = codec.round_trip(x)
        assert found[0] == limit
        assert (found[1:3] == [np.inf, -np.inf]).all()
    assert codecs["fp16"].round_trip(F([65519.9, 65520])).tolist() == [65504, np.inf]
