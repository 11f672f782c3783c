"""Codecs are what they say: the definitions they stand for, the bits they send, the same bits at the other side."""

import ml_dtypes
import numpy as np
import pytest

from lowprec import logfmt
from lowprec.cast import casts as cast
from lowprec.codec import BlockCodec, CastCodec, Codec, LogFMTCodec, codecs
from lowprec.format.catalogue import formats
from lowprec.registry import UnknownNameError
from lowprec.scaling.quantize import quantize

F = np.float32


def fits(name, columns):
    return columns % getattr(codecs[name], "columns_multiple", 1) == 0


@pytest.fixture(scope="module")
def tokens():
    """bfloat16 numbers, as activations are; one exact zero, a row of zeros, a tile far smaller than the rest."""
    x = np.random.default_rng(0).standard_normal((9, 384)).astype(ml_dtypes.bfloat16).astype(F)
    x[3] = 0
    x[4, 7] = -0.0
    x[5, 128:256] *= F(2.0**-60)
    return x


@pytest.mark.parametrize("name", [name for name in codecs if fits(name, 384)])
def test_what_is_sent_decides_what_arrives(name, tokens):
    codec = codecs[name]
    before = tokens.copy()
    wire = codec.encode(tokens)
    arrived = codec.decode(wire)
    assert arrived.tobytes() == codec.round_trip(tokens).tobytes()
    assert arrived.dtype == F
    assert arrived.shape == tokens.shape
    assert not np.shares_memory(codec.round_trip(tokens), tokens)
    assert tokens.tobytes() == before.tobytes()
    some = arrived != 0 if name.startswith("int") else slice(None)  # integers have one zero
    assert np.array_equal(np.signbit(arrived)[some], np.signbit(tokens)[some])


@pytest.mark.parametrize("name", [name for name in codecs if fits(name, 384)])
def test_bits_per_value_are_those_of_whole_tiles(name, tokens):
    codec = codecs[name]
    wire = codec.encode(tokens)
    once = getattr(codec, "prefix_bytes", 0)
    assert codec.bits_per_value == 8 * (wire.nbytes - once) / tokens.size
    assert wire.bits_per_value == 8 * wire.nbytes / tokens.size
    assert wire.nbytes == once + 9 * codec.row_bytes(384) == len(codec.to_bytes(wire))


def test_the_catalogue_costs_what_the_papers_say():
    expected = {"bf16": 16, "fp8_1x128": 8.25, "fp8_1x128_ue8m0": 8.0625, "logfmt8": 8.25, "logfmt10": 10.25}
    assert {name: codecs[name].bits_per_value for name in expected} == expected


def test_definitions(tokens):
    assert codecs["bf16"].round_trip(tokens).tobytes() == tokens.tobytes()
    wide = np.random.default_rng(1).standard_normal((4, 100)).astype(F)
    assert codecs["bf16"].round_trip(wide).tobytes() == wide.astype(ml_dtypes.bfloat16).astype(F).tobytes()
    for bits in (8, 10):
        assert codecs[f"logfmt{bits}"].round_trip(tokens).tobytes() == logfmt.encode(tokens, bits).decode().tobytes()


@pytest.mark.parametrize("name", [name for name in codecs if isinstance(codecs[name], BlockCodec)])
def test_block_codecs_are_quantizers(tokens, name):
    codec = codecs[name]
    how = {"scale": codec.scale} if codec.quantizer is None else {"quantizer": codec.quantizer}
    want = quantize(tokens, codec.format, f"1x{codec.tile}", **how).dequantize()
    assert codec.round_trip(tokens).tobytes() == want.tobytes()
    if not codec.tensor_scale:  # row and tile by themselves: nothing leaks from one to another
        assert codec.round_trip(tokens[2:3, 128:256]).tobytes() == want[2:3, 128:256].tobytes()


def test_fewer_bits_lose_more(tokens):
    def noise(name):
        return float(((codecs[name].round_trip(tokens) - tokens).astype(np.float64) ** 2).sum())

    order = ["e5m2_1x128", "fp8_1x128", "logfmt8", "e5m6_1x128_ue8m0", "logfmt10", "bf16"]
    assert sorted(order, key=noise, reverse=True) == order


@pytest.mark.parametrize("name", [name for name in codecs if fits(name, 384)])
@pytest.mark.parametrize("shape", [(0, 128), (1, 1), (3, 130), (2, 3, 64)])
def test_any_shape(name, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(F)
    arrived = codecs[name].round_trip(x)
    assert arrived.shape == shape
    assert np.isfinite(arrived).all()
    some = arrived != 0 if name.startswith("int") else slice(None)
    assert np.array_equal(np.signbit(arrived)[some], np.signbit(x)[some])
    coarse = 0.5 if codecs[name].bits_per_value < 6 else 0.1
    assert np.abs(arrived - x).max(initial=0) <= coarse * np.abs(x).max(initial=0)


@pytest.mark.parametrize("name", [name for name in codecs if fits(name, 384)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_as_such(name, bad):
    x = np.ones((3, 128), F)
    x[1, 5] = bad
    arrived = codecs[name].round_trip(x)
    assert not np.isfinite(arrived[1, 5])
    assert np.array_equal(arrived[[0, 2]], codecs[name].round_trip(np.ones((3, 128), F))[[0, 2]])


FILLERS = {"NaN": -np.nan, "Inf": -np.inf, "huge": 3.3e38, "zeros": 0.0, "tiny": -1e-45}


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("name", codecs)
def test_what_arrives_of_a_row_does_not_depend_on_the_others(name, filler):
    codec = codecs[name]
    x = np.random.default_rng(7).standard_normal((6, 1024)).astype(ml_dtypes.bfloat16).astype(F)
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


def test_a_cast_to_a_format_that_has_no_bytes_is_refused_at_once():
    for name in ("tf32", "fp22"):
        with pytest.raises(ValueError, match=f"CastCodec: format must have .* at most 16 bits, or of 32, got '{name}'"):
            CastCodec("mine", name)
    for name in formats:
        if formats[name].bits <= 16 or formats[name].bits == 32:
            wire = CastCodec("mine", name).encode(np.ones((2, 5), F))
            assert CastCodec("mine", name).from_bytes(wire.to_bytes(), (2, 5)).content.codes.tobytes() == (
                wire.content.codes.tobytes()
            )


def test_ones_own_codec_needs_no_registration(tokens):
    class Half:
        name = "half"
        bits_per_value = 16.0

        def row_bytes(self, columns):
            return 2 * columns

        def to_bytes(self, wire):
            return wire.tobytes()

        def from_bytes(self, data, shape):
            return np.frombuffer(data, np.float16).reshape(shape)

        def encode(self, x):
            return x.astype(np.float16)

        def decode(self, wire):
            return wire.astype(F)

        def round_trip(self, x):
            return self.decode(self.encode(x))

    half = Half()
    assert isinstance(half, Codec)
    assert codecs.get(half) is half
    own = BlockCodec("mine", "e3m4", tile=32, scale="ue8m0")
    assert own.encode(tokens).bits_per_value == own.bits_per_value == 8.25
    assert LogFMTCodec("six", 6, tile=64).encode(tokens).bits_per_value == 6.5
    assert CastCodec("five", "e2m1fn").encode(tokens).nbytes == tokens.size / 2
    codes = CastCodec("five", "e2m1fn").encode(tokens).content.codes
    assert np.array_equal(codes, cast.encode(tokens, "e2m1fn"))


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="unknown codec 'logfmt99': did you mean 'logfmt9'"):
        codecs["logfmt99"]
