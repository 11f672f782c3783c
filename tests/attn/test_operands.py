"""Operands of attention kernels from float32 tensors."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.masks import masked_attention
from lowprec.attn.operands import quantize_operands, round_trip_cache


def test_fp8_heads_fill_the_format_and_a_group_shares_its_key_heads_scale():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, heads, 5, 16)).astype(np.float32) for heads in (4, 2, 2))
    q[0, 1] *= 100  # the group of key head 0
    v[1, 1] = 0
    made = quantize_operands(q, k, v, lp.attentions["fa3_fp8"])
    for name, x, heads in (("q", q, 2), ("k", k, 1), ("v", v, 1)):
        values, scale = getattr(made, name), made.descale["qkv".index(name)]
        amax = np.abs(x).reshape(2, 2, -1).max(-1)
        assert np.array_equal(scale, np.where(amax == 0, np.float32(1), amax / np.float32(448))), name
        assert (np.abs(values).reshape(2, 2, -1).max(-1) == np.where(amax == 0, 0, 448)).all(), name
        spread = np.repeat(scale, heads, axis=1)[:, :, None, None]
        assert np.array_equal(values, lp.round_to(x / spread, "e4m3fn")), name


def test_16_bit_operands_are_rounded_without_a_scale():
    x = np.float32([[[[1.0, 1.00390625, 3e38]]]])
    made = quantize_operands(x, x, x, lp.attentions["flash2"])
    assert np.array_equal(made.v, lp.round_to(x, "bfloat16"))
    assert all((scale == 1).all() for scale in made.descale)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_head_with_nan_or_inf_is_nan_in_the_output_and_no_other(value):
    q, k, v = np.random.default_rng(1).standard_normal((3, 1, 2, 4, 8)).astype(np.float32)
    v[0, 1, 2, 3] = value
    *operands, descale = quantize_operands(q, k, v, lp.attentions["fa3_fp8"])
    out = lp.attention(*operands, kernel="fa3_fp8", descale=descale).out
    assert np.isfinite(out[0, 0]).all()
    assert np.isnan(out[0, 1, :, 3]).all()


@pytest.mark.parametrize("codec", ["nvfp4", "logfmt8", "int8_1x128", "fp8_1x128", "bf16"])
def test_a_cache_changes_keys_and_values_and_not_queries(codec):
    q, k, v = np.random.default_rng(2).standard_normal((3, 2, 2, 70, 128)).astype(np.float32)
    kernel = lp.attentions["fa3_bf16"]
    made, plain = quantize_operands(q, k, v, kernel, cache=codec), quantize_operands(q, k, v, kernel)
    assert np.array_equal(made.q, plain.q)
    for ours, x in ((made.k, k), (made.v, v)):
        assert np.array_equal(ours, lp.round_to(lp.codecs[codec].round_trip(x), "bfloat16"))
    out = lp.attention(*made[:3], kernel=kernel).out
    assert np.array_equal(out, lp.attention(*plain[:3], kernel=kernel).out) == (codec == "bf16")


@pytest.mark.parametrize(("codec", "width"), [("flashmla_v32", 576), ("flashmla_model1", 512)])
def test_latents_from_flashmlas_caches_are_keys_and_values(codec, width):
    rng = np.random.default_rng(3)
    q, latents = rng.standard_normal((1, 4, 2, width)), lp.round_to(rng.standard_normal((1, 1, 70, width)), "bfloat16")
    decoded = round_trip_cache(latents, codec)
    assert np.array_equal(decoded, lp.round_to(decoded, "bfloat16"))
    assert np.array_equal(decoded[..., -64:], latents[..., -64:])
    assert np.array_equal(decoded[..., :64, :], round_trip_cache(latents[..., :64, :], codec))  # a page by itself
    kernel = lp.attentions["fa3_bf16"].with_(key_tiles=((576, 64, 64, 64),))
    *operands, _ = quantize_operands(q, decoded, decoded[..., :512], kernel)
    exact, found = (
        lp.attention(operands[0], x, x[..., :512], kernel=kernel, out_format="float32").out for x in (latents, decoded)
    )
    assert 0.01 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.06


def test_no_tokens():
    assert round_trip_cache(np.zeros((1, 1, 0, 512)), "flashmla_model1").shape == (1, 1, 0, 512)


def test_log_sum_exps_of_masked_attention_are_in_nats():
    q, k, v = np.random.default_rng(4).standard_normal((3, 1, 2, 30, 64)).astype(np.float32)
    lses = [
        masked_attention("test", (q, k, v), lp.attentions[name], causal=True)[1]
        for name in ("fa3_fp8", "flashinfer_fp8")
    ]
    assert 0 < np.abs(lses[0] - lses[1]).max() < 1e-5


@pytest.mark.parametrize("window", [None, (2, 0)])
def test_queries_of_padding_on_the_right_may_be_fewer_than_keys(window):
    """Five queries of eight keys, then two of padding that see all keys, and three keys that no query sees."""
    rng = np.random.default_rng(0)
    q, k, v = (lp.round_to(rng.standard_normal((1, 2, n, 16)), "bfloat16") for n in (7, 11, 11))
    mask = np.tri(7, 11, 3, dtype=bool)
    if window:
        mask &= ~np.tri(7, 11, 0, dtype=bool)
    mask[5:], mask[:, 8:] = True, False
    kernel, k8, v8 = lp.attentions["flash2"], k[:, :, :8], v[:, :, :8]
    out, _ = masked_attention("test", (q, k, v), kernel, mask=mask[None, None])
    assert np.array_equal(
        out[:, :, :5], lp.attention(q[:, :, :5], k8, v8, kernel=kernel, causal=True, window=window).out
    )
    assert np.array_equal(out[:, :, 5:], lp.attention(q[:, :, 5:], k8, v8, kernel=kernel).out)


def test_the_row_of_a_mask_that_is_named_differs_from_the_nearest_rule():
    x, mask = np.zeros((1, 1, 6, 8), np.float32), np.ones((1, 1, 6, 6), bool)
    mask[..., 3, 4] = False
    with pytest.raises(ValueError, match="got row 3 of sequence 0 with 5 of 6 keys visible"):
        masked_attention("test", (x, x, x), lp.attentions["flash2"], mask=mask)
