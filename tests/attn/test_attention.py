"""Attention as users call it: shapes, masks, grouped heads, special values, and what sources say of outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_attention_oracle import GPU

import lowprec as lp
from lowprec.attn.attention import softmax_attention
from lowprec.attn.tiles import KeyTile

Array = np.ndarray[Any, Any]


def normal(seed: int, *shape: int, fmt: str = "e4m3fn") -> Array:
    """Return normal numbers on a format's grid."""
    return lp.round_to(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), fmt)


def masked(q: Array, k: Array, v: Array, visible: Array) -> tuple[Array, Array]:
    """Return attention and its log-sum-exp in float64, with a matrix of visible keys."""
    scores = np.where(visible, q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(q.shape[1]), -np.inf)
    top = scores.max(1, keepdims=True)
    p = np.exp(scores - top)
    return p @ v / p.sum(1, keepdims=True), top[:, 0] + np.log(p.sum(1))


@pytest.mark.parametrize("name", GPU)
def test_masks_select_the_keys_that_they_should(name: str) -> None:
    """Against softmax in float64: a wrong key would change the output by far more than FP8's error."""
    m, n = 70, 300
    q, k, v = normal(0, m, 64), normal(1, n, 64), normal(2, n, 64)
    place, key = np.arange(m)[:, None] + n - m, np.arange(n)
    for options, visible in (
        ({}, np.ones((m, n), bool)),
        ({"causal": True}, key <= place),
        ({"window": (100, 20)}, (key >= place - 100) & (key <= place + 20)),
        ({"window": (40, -1), "causal": True}, (key >= place - 40) & (key <= place)),
    ):
        got = lp.attention(q, k, v, kernel=name, out_format="float32", **options)
        out, lse = masked(q, k, v, visible)
        assert np.abs(softmax_attention(q, k, v, **options) - out).max() < 1e-12
        assert np.abs(got.out - out).max() < (0.04 if "fp8" in name else 0.004)
        assert np.abs(got.lse - lse).max() < 2e-4


def test_rows_without_keys_are_zero_and_have_the_kernel_s_lse() -> None:
    q, k, v = normal(0, 5, 32), normal(1, 3, 32), normal(2, 3, 32)
    for name, lse in (("fa3_fp8", -np.inf), ("flash2", np.inf)):
        got = lp.attention(q, k, v, kernel=name, causal=True)
        assert (got.out[:2] == 0).all()
        assert (got.lse[:2] == lse).all()
        assert np.isfinite(got.lse[2:]).all()
    empty = lp.attention(q, k[:0], v[:0])
    assert empty.out.shape == (5, 32)
    assert (empty.out == 0).all()
    assert (empty.lse == -np.inf).all()
    assert lp.attention(q[:0], k, v).out.shape == (0, 32)


def test_heads_batches_and_descales_are_those_of_single_heads() -> None:
    q, k, v = normal(0, 2, 4, 9, 32), normal(1, 2, 2, 300, 32), normal(2, 2, 2, 300, 16)
    descale = (np.array([[1.0, 0.5], [2.0, 0.25]]), 0.75, np.array([[1.0, 3.0], [0.5, 1.0]]))
    got = lp.attention(q, k, v, causal=True, descale=descale)
    assert got.out.shape == (2, 4, 9, 16)
    assert got.lse.shape == (2, 4, 9)
    for b in range(2):
        for h in range(4):
            one = lp.attention(
                q[b, h], k[b, h // 2], v[b, h // 2], causal=True,
                descale=(descale[0][b, h // 2], 0.75, descale[2][b, h // 2]),
            )  # fmt: skip
            assert one.out.tobytes() == got.out[b, h].tobytes()
            assert one.lse.tobytes() == got.lse[b, h].tobytes()


def test_a_nan_reaches_the_rows_that_see_it() -> None:
    q, k, v = normal(0, 4, 32), normal(1, 4, 32), normal(2, 4, 32)
    k[2, 5] = np.nan
    got = lp.attention(q, k, v, causal=True, kernel="fa3_fp8")
    assert np.isfinite(got.out[:2]).all()
    assert np.isnan(got.out[2:]).all()


def test_dtypes_and_packages() -> None:
    q, k, v = normal(0, 4, 32), normal(1, 40, 32), normal(2, 40, 32)
    typed = [x.astype(ml_dtypes.float8_e4m3fn) for x in (q, k, v)]
    assert lp.attention(*typed) == lp.attention(q, k, v)
    for x in typed:
        x.setflags(write=False)
    assert lp.attention(*typed, like="numpy") == lp.attention(q, k, v)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.full((4, 32), 1.1875)}, r"q must hold numbers of e4m3fn, got 1.1875; round first"),
        ({"k": np.zeros((40, 16))}, r"q, k, v must be \(B, H, M, D\)"),
        ({"v": np.zeros((39, 32))}, r"q, k, v must be \(B, H, M, D\)"),
        ({"q": np.zeros(32)}, r"q must have 2 to 4 axes"),
        ({"q": np.zeros((4, 300)), "k": np.zeros((40, 300))}, r"head_dim must be at most 256 for fa3_fp8, got 300"),
        (
            {"q": np.zeros((3, 4, 32)), "k": np.zeros((2, 40, 32)), "v": np.zeros((2, 40, 32))},
            r"multiple .* got 3 and 2",
        ),
        ({"descale": (1, 1)}, r"descale must be three scales"),
        ({"descale": (1, 1, [1, 2])}, r"descale must be numbers or of shape \(1, 1\)"),
        ({"kernel": "fa3_fp9"}, r"did you mean 'fa3_fp8'"),
        ({"window": (-2, 0)}, r"window"),
        ({"window": (1,)}, r"window must be two integers, left and right, got \(1,\)"),
        ({"scale": "x"}, r"scale"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"q": normal(0, 4, 32), "k": normal(1, 40, 32), "v": normal(2, 40, 32), **change}
    with pytest.raises((ValueError, TypeError), match=message):
        lp.attention(**arguments)


def test_a_kernel_of_ones_own_is_checked() -> None:
    kernel = lp.attentions["fa3_fp8"]
    for change, message in (
        ({"p_format": lp.formats["bfloat16"]}, "hopper_fp8"),
        ({"key_tiles": ()}, "key_tiles"),
        ({"key_tiles": ((64, 0, 1, 1),)}, "key_tiles"),
        ({"promote_every": 0}, "promote_every"),
        ({"normalizes_p": True}, "key_tiles must have all keys in one tile with normalizes_p"),
        ({"row_sum": "quad"}, "row_sum must be an object of RowSum, got 'quad'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            kernel.with_(**change)


# --- what public reports say -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sums_that_stay_in_the_tensor_core_lose_most_of_a_long_context() -> None:
    """vllm-project/vllm#23813: never promoted << every 64 tiles < every 4 <= every tile, for values with a mean."""
    n, rows = 16384, 8
    q, k = normal(0, rows, 128), normal(1, n, 128)
    v = lp.round_to(normal(2, n, 128) + np.float32(1), "e4m3fn")
    exact = softmax_attention(q, k, v)
    kernel = lp.attentions["fa3_fp8"].with_(key_tiles=(KeyTile(128, 128, 128, 128),))
    gain = {}
    for every in (None, 64, 4, 1):
        out = lp.attention(q, k, v, kernel=kernel.with_(promote_every=every), out_format="float32").out
        gain[every] = float((out * exact).sum() / (exact * exact).sum()) - 1
    assert gain[None] < -0.15
    assert -0.15 < gain[64] < -0.05
    assert -0.01 < gain[4] < gain[1] < 0


@pytest.mark.slow
def test_a_lagging_maximum_saturates_p_at_offset_8() -> None:
    """flash-attention#2694, measured on a B300: errors by deviation of the logits, at offsets 8 and 4."""
    published = {8: (0.027, 0.031, 0.136, 0.305, 0.361), 4: (0.027, 0.028, 0.027, 0.024, 0.022)}
    q, k, v = normal(0, 64, 128), normal(1, 8192, 128), normal(2, 8192, 128)
    for offset, errors in published.items():
        kernel = lp.attentions["fa4_fp8"].with_(p_offset=offset, rescale_threshold=4.0)
        for deviation, error in zip((0.25, 0.5, 1.0, 1.5, 2.0), errors, strict=True):
            scale = deviation / np.sqrt(128)
            exact = softmax_attention(q, k, v, scale=scale)
            got = lp.attention(q, k, v, kernel=kernel, scale=scale, out_format="float32")
            assert np.linalg.norm(got.out - exact) / np.linalg.norm(exact) == pytest.approx(error, rel=0.3)
            assert (got.saturated.sum() > 0) == (offset == 8)


def test_another_tile_gives_other_bits() -> None:
    """vllm-project/vllm#51902: FA3's tiles of 192 and 128 keys; equal outputs for zero queries and for constant V."""
    kernel = lp.attentions["fa3_bf16"]
    tiles = [kernel.with_(key_tiles=(KeyTile(64, keys, keys, keys),)) for keys in (192, 128)]
    q, k, v = (normal(i, rows, 64, fmt="bfloat16") for i, rows in enumerate((14, 2000, 2000)))

    def outputs(*data: Array) -> tuple[Any, ...]:
        return tuple(lp.attention(*data, kernel=each) for each in tiles)

    one, two = outputs(q, k, v)
    assert 0.05 < (one.out != two.out).mean() < 0.5
    assert (one.lse == two.lse).mean() > 0.5
    for data in ((0 * q, k, v), (q, k, 0 * v + 1)):
        one, two = outputs(*data)
        assert one.out.tobytes() == two.out.tobytes()


def test_one_key_beyond_a_tile_loses_the_rest() -> None:
    """flash-attention#2577 on a B300, six heads of one query: cosines 0.9987 within a tile and 0.86 beyond it."""
    q, k, v = normal(0, 6, 1, 128), normal(1, 1, 129, 128), normal(2, 1, 129, 128)

    def cosine(keys: int, threshold: float) -> float:
        kernel = lp.attentions["fa4_fp8"].with_(rescale_threshold=threshold)
        got, want = (
            lp.attention(q, k[:, :keys], v[:, :keys], kernel=each, out_format="float32").out.ravel()
            for each in (kernel, lp.attentions["fa4_bf16"])
        )
        return float(got @ want / np.linalg.norm(got) / np.linalg.norm(want))

    assert min(cosine(keys, 4.0) for keys in (127, 128)) > 0.998
    assert cosine(129, 4.0) < 0.97
    assert cosine(129, 0.0) > 0.998
