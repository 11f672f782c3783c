"""What every codec keeps: bits that decide what arrives, bytes there and back, damage refused, rows by themselves."""

import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals

from lowprec import logfmt
from lowprec.cast import casts as cast
from lowprec.codec import BlockCodec, CastCodec, Codec, DecodeError, LogFMTCodec, codecs
from lowprec.format.catalogue import formats
from lowprec.registry import UnknownNameError
from lowprec.scaling.quantize import quantize
from lowprec.scaling.quantizer import Quantizer

F = np.float32
NAMES = codecs.names()
WHOLE = (9, 384)  # whole tiles of all codecs but those of tokens
SHAPES = [(2, 130), (1, 1), (3,), (0, 5), (2, 0), (2, 2, 33), (0, 128), (3, 130), (2, 3, 64), WHOLE]


def is_of_tokens(name):
    """Whether a codec takes rows of whole tokens only: DeepEP's messages and caches with parts."""
    return hasattr(codecs[name], "columns_multiple")


def fitting(name, shape):
    """Return the shape with as many columns as the codec takes, at least."""
    step = getattr(codecs[name], "columns_multiple", 1)
    return *shape[:-1], -(-shape[-1] // step) * step


def values(shape, seed=0):
    """Return bfloat16 numbers below 1 with zeros of both signs; where rows are nine, one of zeros and one tiny tile."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16).astype(F) / 8
    x.reshape(-1)[::7] = 0
    x.reshape(-1)[3::14] = -0.0
    if x.shape[0] == 9:
        x[3] = 0
        x[5, 128:256] *= F(2.0**-60)
    return x


@pytest.mark.sampled(50)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(name, shape):
    codec, shape = codecs[name], fitting(name, shape)
    x = values(shape)
    before = x.copy()
    wire = codec.encode(x)
    data = wire.to_bytes()
    once, rows = getattr(codec, "prefix_bytes", 0), int(np.prod(shape[:-1]))
    assert len(data) == wire.nbytes == len(codec.to_bytes(wire))
    assert wire.bits_per_value == 8 * wire.nbytes / max(1, x.size)
    assert shape != WHOLE or codec.bits_per_value == 8 * (wire.nbytes - once) / x.size
    back, arrived = codec.from_bytes(data, shape), codec.round_trip(x)
    assert (back.shape, back.nbytes, arrived.dtype, arrived.shape) == (shape, len(data), F, shape)
    assert back.decode().tobytes() == wire.decode().tobytes() == codec.decode(wire).tobytes() == arrived.tobytes()
    assert back.to_bytes() == data
    for other in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert codec.from_bytes(other, shape).to_bytes() == data
    assert not np.shares_memory(arrived, x)
    assert x.tobytes() == before.tobytes()
    if name != "logfmt10_deepep":  # whose messages vary in length; it has one zero, as integers have
        assert wire.nbytes == once + rows * codec.row_bytes(shape[-1])
        some = arrived != 0 if name.startswith("int") else slice(None)
        assert np.array_equal(np.signbit(arrived)[some], np.signbit(x)[some])
    coarse = 0.5 if codec.bits_per_value < 6 else 0.125
    assert np.abs(arrived - x).max(initial=0) <= coarse * np.abs(x).max(initial=0)


@pytest.mark.sampled(27)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "logfmt10_deepep"])
def test_every_other_length_is_refused(name):
    codec, shape = codecs[name], fitting(name, (2, 21))
    data = codec.encode(values(shape)).to_bytes()
    lengths = set(range(len(data) + 40)) - {len(data)}
    if len(data) > 10000:  # of pages
        lengths = {0, 1, 575, 576, len(data) // 2, len(data) - 1, len(data) + 1}
    if name.startswith("logfmt"):
        lengths -= {len(data) + 2 * 4}  # ends as float32 numbers
    for length in lengths:
        with pytest.raises(
            DecodeError, match=rf"{name}: data must have \d+ bytes for shape \(2, {shape[1]}\), got {length}$"
        ):
            codec.from_bytes((data + bytes(64))[:length], shape)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_bytes_are_refused_or_mean_themselves(name, data):
    codec = codecs[name]
    shape = fitting(name, data.draw(st.sampled_from([(1, 3), (2, 17), (1, 130), (2, 1024)][is_of_tokens(name) :])))
    length = getattr(codec, "prefix_bytes", 0) + shape[0] * codec.row_bytes(shape[1])
    if data.draw(st.booleans()):
        noise = data.draw(st.binary(min_size=length, max_size=length))
    else:  # near to what is written: a few flipped bits
        noise = bytearray(codec.encode(values(shape)).to_bytes())
        for place in data.draw(st.lists(st.integers(0, 8 * length - 1), max_size=4)):
            noise[place // 8] ^= 1 << place % 8
    try:
        wire = codec.from_bytes(bytes(noise), shape)
    except DecodeError:
        return
    assert wire.to_bytes() == bytes(noise)
    with np.errstate(invalid="ignore", over="ignore"):
        assert wire.decode().shape == shape


@pytest.mark.parametrize("name", [name for name in NAMES if not is_of_tokens(name)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_as_such(name, bad):
    x = np.ones((3, 128), F)
    x[1, 5] = bad
    arrived = codecs[name].round_trip(x)
    assert not np.isfinite(arrived[1, 5])
    assert np.array_equal(arrived[[0, 2]], codecs[name].round_trip(np.ones((3, 128), F))[[0, 2]])


FILLERS = {"NaN": -np.nan, "Inf": -np.inf, "huge": 3.3e38, "zeros": 0.0, "tiny": -1e-45}


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("name", NAMES)
def test_what_arrives_of_a_row_does_not_depend_on_the_others(name, filler):
    codec = codecs[name]
    x = np.random.default_rng(7).standard_normal(fitting(name, (6, 1024))).astype(ml_dtypes.bfloat16).astype(F)
    x[2, 100:110] = 0, -0.0, np.nan, -np.nan, np.inf, 1e-40, -3e38, 0, 0, 0
    if getattr(codec, "tensor_scale", False):  # the tensor's amax is what rows share: it stays
        if filler == "huge":
            pytest.skip("another amax of the tensor is another scale")
        x[2, 100:110], x[4, 0] = 0, 100
    kept = [2, 4]
    other = np.full(x.shape, FILLERS[filler], F)
    other[kept] = x[kept]
    first = codec.round_trip(x)[kept]
    assert first.tobytes() == codec.round_trip(other)[kept].tobytes()
    assert first.tobytes() == codec.decode(codec.encode(other))[kept].tobytes()
    assert first.tobytes() == codec.round_trip(x[kept]).tobytes()
    assert set(first.view(np.uint32)[np.isnan(first)].tolist()) <= {0x7FC00000, 0xFFC00000}


@pytest.mark.parametrize("name", NAMES)
def test_any_layout_and_type(name):
    x = values(fitting(name, (6, 40)))
    frozen = x.copy()
    frozen.flags.writeable = False
    for same in (np.asfortranarray(x), frozen, *map(x.astype, (float, ml_dtypes.bfloat16)), x[:, ::-1].copy()[:, ::-1]):
        assert codecs[name].round_trip(same).tobytes() == codecs[name].round_trip(x).tobytes()


HUGE = [(2**64, 0), (0, 2**64), (2**32, 2**32, 4096), (2**60, 0), (2**40, 0), (0, 2**40), (0, 2**31 * 512),
        (2**20, 2**30), (2**63, 2), (1, 2**40), (-1, 2), (2.0, 2), (), "12", 5, None, (1,) * 65, (0,) * 65]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_shapes_that_no_bytes_fill(name):
    """Nothing of the claimed size is made: what has no values is read as such, all else is a DecodeError."""
    codec = codecs[name]
    for shape, data in itertools.product(HUGE, (b"", bytes(7), bytes(512))):
        tracemalloc.start()
        try:
            wire = codec.from_bytes(data, shape)
            assert wire.decode().shape == shape
            assert codec.to_bytes(wire) == data
            assert wire.bits_per_value >= 0
        except DecodeError as error:
            assert str(error).startswith("codec ")  # noqa: PT017
            assert "reshape" not in str(error)  # noqa: PT017
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 1 << 22


test_what_is_no_array_of_rows = refusals(
    [
        (f"codecs[{name!r}].{call}", error, message)
        for name in NAMES
        for call, error, message in [
            ("encode(np.float32(1))", ValueError, "a single number"),
            (
                f"from_bytes(np.zeros(4), {fitting(name, (1, 512))})",
                TypeError,
                "data must be bytes, got ndarray of float64",
            ),
            *((f"from_bytes(b'', {shape!r})", ValueError, "shape") for shape in ((), (-1, 2), (1.5,), "ab", 3)),
        ]
    ],
    lambda: {"codecs": codecs},
)

# --- what they are ---------------------------------------------------------------------------------------------------


def test_the_catalogue_costs_what_the_papers_say():
    expected = {"bf16": 16, "fp8_1x128": 8.25, "fp8_1x128_ue8m0": 8.0625, "logfmt8": 8.25, "logfmt10": 10.25}
    assert {name: codecs[name].bits_per_value for name in expected} == expected


def test_definitions():
    x, wide = values(WHOLE), np.random.default_rng(1).standard_normal((4, 100)).astype(F)
    assert codecs["bf16"].round_trip(x).tobytes() == x.tobytes()
    assert codecs["bf16"].round_trip(wide).tobytes() == wide.astype(ml_dtypes.bfloat16).astype(F).tobytes()
    for bits in (8, 10):
        assert codecs[f"logfmt{bits}"].round_trip(x).tobytes() == logfmt.encode(x, bits).decode().tobytes()


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(codecs[name], BlockCodec)])
def test_block_codecs_are_quantizers(name):
    codec, x = codecs[name], values(WHOLE)
    own = Quantizer(scale_format=codec.scale_format) if codec.quantizer is None else codec.quantizer
    want = quantize(x, own.with_(format=codec.format, granularity=f"1x{codec.tile}")).dequantize()
    assert codec.round_trip(x).tobytes() == want.tobytes()
    if not codec.tensor_scale:  # row and tile by themselves: nothing leaks from one to another
        assert codec.round_trip(x[2:3, 128:256]).tobytes() == want[2:3, 128:256].tobytes()


def test_fewer_bits_lose_more():
    def noise(name):
        return float(((codecs[name].round_trip(values(WHOLE)) - values(WHOLE)).astype(np.float64) ** 2).sum())

    order = ["e5m2_1x128", "fp8_1x128", "logfmt8", "e5m6_1x128_ue8m0", "logfmt10", "bf16"]
    assert sorted(order, key=noise, reverse=True) == order


def test_one_rounding_from_float64():
    """1 + 2^-8 + 2^-40 is nearer to 1 + 2^-7; rounded to float32 first it would be a tie, and go to 1."""
    x = np.array([[1 + 2.0**-8 + 2.0**-40]])
    assert codecs["bf16"].round_trip(x)[0, 0] == codecs["bf16"].encode(x).decode()[0, 0] == 1 + 2.0**-7


@pytest.mark.parametrize("name", ["fp16", "bf16", "float32"])
def test_what_casts_make_of_numbers_beyond_their_limit(name):
    """The limit is the largest finite number; what rounds beyond it becomes Inf."""
    limit = codecs[name].max_magnitudes(codecs[name].encode(np.zeros(1, F))).item()
    found = codecs[name].round_trip(np.float64([limit, 1e300, -1e300, 0.0]))
    assert found.tolist() == [limit, np.inf, -np.inf, 0]
    assert codecs["fp16"].round_trip(F([65519.9, 65520])).tolist() == [65504, np.inf]


@pytest.mark.parametrize("name", [name for name in formats if formats[name].bits <= 16 or formats[name].bits == 32])
def test_every_format_that_has_bytes_is_a_cast(name):
    codec = CastCodec("mine", name)
    wire = codec.encode(np.ones((2, 5), F))
    assert np.array_equal(codec.from_bytes(wire.to_bytes(), (2, 5)).payload.codes, wire.payload.codes)


def test_ones_own_codec_needs_no_registration():
    class Half:
        name = "half"
        bits_per_value = 16.0

        def encode(self, x):
            return x.astype(np.float16)

        row_bytes = to_bytes = from_bytes = decode = round_trip = encode

    half, x = Half(), values(WHOLE)
    assert isinstance(half, Codec)
    assert codecs.get(half) is half
    own = BlockCodec("mine", "e3m4", tile=32, scale_format="e8m0fnu")
    assert own.encode(x).bits_per_value == own.bits_per_value == 8.25
    assert LogFMTCodec("six", 6, tile=64).encode(x).bits_per_value == 6.5
    five = CastCodec("five", "e2m1fn").encode(x)
    assert five.nbytes == x.size / 2
    assert np.array_equal(five.payload.codes, cast.encode(x, "e2m1fn"))


test_no_such_codec = refusals(
    [
        ("codecs['logfmt99']", UnknownNameError, "unknown codec 'logfmt99': did you mean 'logfmt9'"),
        *((f"CastCodec('mine', {name!r})", f"CastCodec: format must have at most 16 bits, or 32, got '{name}'")
          for name in ("tf32", "fp22")),
    ],
    lambda: {"codecs": codecs, "CastCodec": CastCodec},
)  # fmt: skip
