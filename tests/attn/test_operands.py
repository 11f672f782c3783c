"""Operands of attention kernels from float32 tensors."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.operands import quantize_operands


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
