"""Bytes on the wire by hand: their layout, damage that is named, messages of varying length, tokens with parts."""

import ml_dtypes
import numpy as np
from refusals import refusals

import lowprec as lp
from lowprec import logfmt
from lowprec.codec import BlockCodec, CastCodec, DecodeError, codecs
from lowprec.codec.split import SplitCodec

F = np.float32
DEEPEP, CACHE = codecs["logfmt10_deepep"], codecs["dsv4_kv_cache"]


def values(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16).astype(F)


def test_the_layout_by_hand():
    x = np.array([[448, -1, 3.5], [0, 2.0**-9, 448]], F)
    sent = {
        "fp8_1x128": "0000803f" + "7eb846" + "0000803f" + "00017e",  # scale 1, three codes; twice
        "fp8_1x128_ue8m0": "7f7eb846" + "7f00017e",
        "bf16": "e04380bf6040" + "00000" + "03be043",
    }
    assert {name: codecs[name].encode(x).to_bytes().hex() for name in sent} == sent
    # Twelve bits, least significant first: e5m6 of 1, -2 and 0.5 is 3c0, c00, 380; the scale is 2^-14.
    narrow = codecs["e5m6_1x128_ue8m0"].encode(np.array([[1, -2, 0.5]], F))
    stream = sum(code << 12 * i for i, code in enumerate(narrow.payload.codes[0].tolist()))
    assert narrow.to_bytes() == bytes([127 + int(np.log2(narrow.payload.scale[0, 0]))]) + stream.to_bytes(5, "little")
    tile = values(1, 128)
    assert codecs["logfmt10"].encode(tile).to_bytes() == logfmt.encode(tile, 10).pack().tobytes()


def test_nibbles_and_the_scale_of_the_tensor():
    wire = codecs["nvfp4"].encode(values(2, 18))
    data = wire.to_bytes()
    assert len(data) == 4 + 2 * (2 + 9)
    assert np.frombuffer(data[:4], "<f4")[0] == wire.payload.tensor_scale
    nibbles = np.frombuffer(data[4 + 2 : 4 + 11], np.uint8)
    assert np.array_equal(nibbles & 15, wire.payload.codes[0, ::2])
    assert np.array_equal(nibbles >> 4, wire.payload.codes[0, 1::2])


# --- messages of varying length, tokens with parts -------------------------------------------------------------------


def test_deepep_messages():
    x = values(3, 2, 2048) / 8
    x[0, 1, 1024:] *= 16  # reaches 1: that chunk goes as bfloat16
    x[1, 0, :1024] = 0.5  # constant: so does that one
    wire = DEEPEP.encode(x)
    assert len(wire.to_bytes()) == wire.nbytes == 6 * DEEPEP.row_bytes(2048) + 2 * 768
    back = DEEPEP.from_bytes(wire.to_bytes(), x.shape)
    assert (back.nbytes, back.to_bytes()) == (wire.nbytes, wire.to_bytes())
    assert back.decode().tobytes() == wire.decode().tobytes() == DEEPEP.round_trip(x).tobytes()
    assert np.array_equal(back.decode()[0, 1, 1024:], x[0, 1, 1024:])
    assert np.array_equal(back.decode()[1, 0, :1024], x[1, 0, :1024])
    assert DEEPEP.row_bytes(7168) == 9184
    assert DEEPEP.encode(values(4, 7168) / 16).bits_per_value == DEEPEP.bits_per_value == 10.25


def test_deepep_is_given_bfloat16():
    x = np.random.default_rng(0).standard_normal((2, 512)).astype(F) / 8
    sent = [DEEPEP.round_trip(x.astype(kind)).tobytes() for kind in (F, np.float64, ml_dtypes.bfloat16)]
    assert sent[0] == sent[1] == sent[2]
    assert DEEPEP.encode(np.zeros((0, 512))).nbytes == 0


def test_deepseek_v4s_cache_is_its_quantizer_and_bf16_token_by_token():
    x = lp.round_to(values(7, 2, 1024) * F(3), "bfloat16")
    tokens = x.reshape(-1, 512)
    wanted = tokens.copy()
    wanted[:, :448] = lp.quantize_dequantize(tokens[:, :448], "dsv4_kv")
    ours, data = CACHE.round_trip(x), CACHE.encode(x).to_bytes()
    assert np.array_equal(ours.reshape(-1, 512).view(np.uint32), wanted.view(np.uint32))
    assert not np.array_equal(ours, x)
    assert CACHE.row_bytes(512) == 448 + 7 + 128
    parts = (codecs["dsv4_kv"], slice(448)), (codecs["bf16"], slice(448, 512))
    assert data == b"".join(codec.encode(token[part]).to_bytes() for token in tokens for codec, part in parts)


def flashmla(tokens, tile, width):
    """Return codes, scales and the rest of tokens, as FlashMLA's tests/quant.py computes them."""
    tiles = tokens[:, :width].reshape(len(tokens), -1, tile)
    with np.errstate(divide="ignore"):
        scale = np.exp2(np.ceil(np.log2(np.maximum(np.abs(tiles).max(-1) / F(448), F(1e-4)))))
    codes = (tiles / scale[..., None]).astype(ml_dtypes.float8_e4m3fn).reshape(len(tokens), width)
    return codes.view(np.uint8), scale, tokens[:, width:].astype(ml_dtypes.bfloat16).view(np.uint8)


def cache_values(tokens, width):
    """Return bfloat16 latents: of many sizes, zeros of both signs, largest values at and beside 448 * 2^k."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((tokens, width)) * np.exp2(rng.integers(-30, 30, (tokens, 1)))
    half = tokens // 2
    x[:half, 5] = rng.choice([1.7421875, 1.75, 1.7578125], half) * 2.0 ** rng.integers(-20, 40, half)
    x[::7], x[1::7] = 0, -0.0
    return lp.round_to(x, "bfloat16")


def test_flashmla_v32_is_codes_then_float32_powers_of_two_then_bf16():
    x = cache_values(96, 576)
    codes, scale, rest = flashmla(x, 128, 512)
    wanted = np.concatenate([codes, scale.astype("<f4").view(np.uint8), rest], axis=1)
    wire = codecs["flashmla_v32"].encode(x)
    assert (wanted.shape, wire.to_bytes()) == ((96, 656), wanted.tobytes())
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(F).reshape(96, 4, 128) * scale[..., None]
    assert np.array_equal(wire.decode()[:, :512], values.reshape(96, 512))


def test_flashmla_model1_has_the_scales_of_a_page_after_its_values():
    x = cache_values(128, 512)
    codes, scale, rest = flashmla(x, 64, 448)
    pages = np.zeros((2, 37440), np.uint8)  # 65 * 576
    for page, part in zip(pages, (slice(64), slice(64, 128)), strict=True):
        page[: 64 * 576] = np.concatenate([codes[part], rest[part]], axis=1).reshape(-1)
        e8m0 = scale[part].astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
        page[64 * 576 :][: 64 * 8].reshape(64, 8)[:, :7] = e8m0
    wire = codecs["flashmla_model1"].encode(x.reshape(2, -1))
    assert wire.to_bytes() == pages.tobytes()
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(F).reshape(128, 7, 64) * scale[..., None]
    assert np.array_equal(wire.decode().reshape(128, 512)[:, :448], values.reshape(128, 448))


# --- damage ----------------------------------------------------------------------------------------------------------


def read(codec, shape, at, change):
    """Read the bytes that random values are sent as, with other ones from a place on."""
    codec = codecs.get(codec)
    data = bytearray(codec.encode(values(*shape) / 8).to_bytes())
    data[at : at + len(change)] = change
    return codec.from_bytes(bytes(data), shape)


def names():
    message = DEEPEP.encode(values(2, 1024) / 8).to_bytes()
    own = CastCodec("c", "e2m1fn"), BlockCodec("b", "e2m3fn", 32, "e8m0fnu")
    return {
        "read": read, "codecs": codecs, "DEEPEP": DEEPEP, "CACHE": CACHE, "SplitCodec": SplitCodec, "own": own,
        "message": message, "longer": message + bytes(8), "bf16": ml_dtypes.bfloat16,
    }  # fmt: skip


SCALES = ("-1.0", "-0.0", "np.inf", "-np.inf")
ENDS = ("(2.0, 1.0)", "(-1.0, 1.0)", "(0.0, 1.0)", "(1.0, np.inf)", "(np.nan, 1.0)")
test_damage_is_named = refusals(
    [
        *((f"read('fp8_1x128', (2, 8), 12, np.float32({scale}).tobytes())", DecodeError, "row 1, tile 0: scale")
          for scale in SCALES),
        *((f"read('nvfp4', (2, 16), 0, np.float32({scale}).tobytes())", DecodeError, "tensor scale must be finite and")
          for scale in SCALES),
        ("read('nvfp4', (2, 16), 4, b'\\xb8')", DecodeError, "row 0, tile 0: scale"),
        ("read('fp8_1x128', (1, 8), 9, b'\\x7f')", DecodeError, "row 0, value 5: code 0x7f is not finite"),
        ("read('dsv4_kv_cache', (2, 512), 7, b'\\x7f')", DecodeError, "not finite"),
        *((f"read('logfmt8', (1, 8), 0, np.array({ends}, bf16).tobytes())", DecodeError,
          r"logfmt: row 0, tile 0: \(amin, amax\) must be 0 < amin <= amax, \(0, 0\) or \(0, NaN\), got")
          for ends in ENDS),
        *((f"read({codec}, (1, 3), {at}, b'\\x80')", DecodeError, "bits after (3 codes|its last code)")
          for codec, at in (("own[0]", 1), ("own[1]", 3), ("'logfmt5'", 5))),
        *((f"DEEPEP.from_bytes(longer[:{length}], (2, 1024))", DecodeError, "logfmt10_deepep")
          for length in ("0", "1", "31", "len(message) // 2", "len(message) - 1", "len(message) + 5")),
        ("DEEPEP.from_bytes(message, (3, 1024))", DecodeError, r"codec logfmt10_deepep: data must have 3 rows for"),
        *((f"DEEPEP.encode(np.ones((2, {n})))", r"shape must have a multiple of 512 values along its last axis,")
          for n in (1, 576, 1000)),
        *((f"DEEPEP.from_bytes(b'', (2, {n}))", "a multiple of 512") for n in (1, 576, 1000)),
        ("CACHE.encode(np.ones((2, 448)))", "codec dsv4_kv_cache: columns must be a multiple of 512, got 448"),
        ("read('flashmla_v32', (2, 576), 512, np.float32(1.5).tobytes())", DecodeError, "a number of e8m0fnu"),
        *((f"read('flashmla_model1', (1, 32768), {at}, b'\\x01')", DecodeError, "bytes after scales must be 0")
          for at in (64 * 576 + 7, 37439)),
        ("codecs['flashmla_model1'].encode(np.ones((2, 512)))", "columns must be a multiple of 32768, got 512"),
        ("codecs['flashmla_model1'].with_(token=codecs['bf16'])", TypeError, "token must be a SplitCodec"),
        ("codecs['flashmla_model1'].with_(scale_bytes=584)", "scale_bytes must be"),
        ("codecs['mxfp8'].with_(scale_format='ue5m3')", "scale_format and tensor_scale must be those of its quantizer"),
        ("SplitCodec('none', ())", r"codec none: parts must be one or more pairs of width and codec, got \(\)"),
        ("SplitCodec('bad', ((64, codecs['nvfp4']),))", "parts must be codecs without tensor scale, of a width"),
    ],
    names,
)  # fmt: skip
