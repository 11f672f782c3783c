"""A cache of tokens whose parts have codecs of their own: each part is its codec's, bytes there and back, errors."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.codec import codecs
from lowprec.codec.split import SplitCodec
from lowprec.codec.wire import WireError

CACHE = codecs["dsv4_kv_cache"]


def latents(*shape: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return lp.round_to(x * np.float32(3), "bfloat16")


def test_deepseek_v4s_cache_is_its_quantizer_and_bf16() -> None:
    x = latents(7, 2, 1024)
    tokens = x.reshape(-1, 512)
    wanted = tokens.copy()
    wanted[:, :448] = lp.quantize_dequantize(tokens[:, :448], quantizer="dsv4_kv")
    ours = CACHE.round_trip(x)
    assert ours.shape == x.shape
    assert np.array_equal(ours.reshape(-1, 512).view(np.uint32), wanted.view(np.uint32))
    assert not np.array_equal(ours, x)
    assert CACHE.row_bytes(512) == 448 + 7 + 128


@pytest.mark.parametrize("shape", [(3, 512), (2, 2, 1024), (0, 512), (1, 512)])
def test_bytes_are_those_of_tokens_part_by_part(shape: tuple[int, ...]) -> None:
    x = latents(*shape)
    wire = CACHE.encode(x)
    data = wire.to_bytes()
    assert len(data) == wire.nbytes == x.size // 512 * 583
    back = CACHE.from_bytes(data, shape)
    assert back.to_bytes() == data
    assert np.array_equal(back.decode(), wire.decode())
    for i, token in enumerate(x.reshape(-1, 512)):
        head, tail = (codec.encode(part).to_bytes() for part, codec in
                      ((token[:448], codecs["dsv4_kv"]), (token[448:], codecs["bf16"])))  # fmt: skip
        assert data[583 * i : 583 * (i + 1)] == head + tail


def test_damage_and_other_sizes_are_refused() -> None:
    data = CACHE.encode(latents(2, 512)).to_bytes()
    with pytest.raises(WireError, match="1165 bytes"):
        CACHE.from_bytes(data[:-1], (2, 512))
    with pytest.raises(WireError, match="not finite"):
        CACHE.from_bytes(data[:7] + b"\x7f" + data[8:], (2, 512))
    with pytest.raises(ValueError, match="a multiple of 512 is needed"):
        CACHE.encode(latents(2, 448))
    with pytest.raises(ValueError, match="parts are needed"):
        SplitCodec("none", ())
    with pytest.raises(ValueError, match="scale of the whole tensor"):
        SplitCodec("bad", ((64, codecs["nvfp4"]),))
