"""Attention as users call it: shapes, masks, grouped heads and special values."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_attention_oracle import GPU

import lowprec as lp
from lowprec.attn.attention import softmax_attention
from lowprec.attn.schedules import FlashInfer

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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GPU)
def test_masks_select_the_keys_that_they_should(name: str) -> None:
    """Against softmax in float64: a wrong key would change the output by far more than FP8's error."""
    m, n = 70, 300
    q, k, v = normal(0, m, 64), normal(1, n, 64), normal(2, n, 64)
    place, key = np.arange(m)[:, None] + n - m, np.arange(n)
    right = 0 if isinstance(lp.attentions[name].schedule, FlashInfer) else 20  # it sees no further
    for options, visible in (
        ({}, np.ones((m, n), bool)),
        ({"causal": True}, key <= place),
        ({"window": (100, right)}, (key >= place - 100) & (key <= place + right)),
        ({"window": (40, -1), "causal": True}, (key >= place - 40) & (key <= place)),
    ):
        got = lp.attention(q, k, v, kernel=name, out_format="float32", **options)
        out, lse = masked(q, k, v, visible)
        assert np.abs(softmax_attention(q, k, v, **options) - out).max() < 1e-12
        assert np.abs(got.out - out).max() < (0.04 if "fp8" in name else 0.004)
        assert np.abs(got.lse * lp.attentions[name].lse.unit - lse).max() < 2e-4


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
        (
            {"q": np.zeros((4, 300)), "k": np.zeros((40, 300))},
            "head sizes must be at most D = 256, Dv = 256 for fa3_fp8, got D = 300",
        ),
        (
            {"q": np.zeros((3, 4, 32)), "k": np.zeros((2, 40, 32)), "v": np.zeros((2, 40, 32))},
            r"multiple .* got 3 and 2",
        ),
        ({"descale": (1, 1)}, r"descale must be three scales"),
        ({"kernel": "flash2", "descale": (1, 1, 2.0)}, r"descale must be None or 1 for flash2, got \(1, 1, 2.0\)"),
        ({"descale": (1, 1, [1, 2])}, r"descale must be numbers or of shape \(1, 1\)"),
        ({"kernel": "fa3_fp9"}, r"did you mean 'fa3_fp8'"),
        ({"window": (-2, 0)}, r"window"),
        ({"window": (1,)}, r"window must be two integers, left and right, got \(1,\)"),
        ({"scale": "x"}, r"scale"),
        ({"progress": 3}, r"progress must be callable or None, got 3"),
        (
            {"kernel": "sdpa_math", "mask": np.ones((4, 40), bool), "causal": True},
            r"mask must be None with causal=True",
        ),
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


@pytest.mark.slow
def test_memory_is_that_of_a_tile_and_progress_is_reported() -> None:
    """Scores of 768 rows and 8,192 keys have 24 MiB; rows are reported after each 512, per head and split."""
    q, k, v = normal(0, 2, 768, 16), normal(1, 1, 8192, 16), normal(2, 1, 8192, 16)
    calls: list[tuple[int, int]] = []
    lp.attention(q[:, :4], k, v, splits=3, progress=lambda *rows: calls.append(rows))
    assert calls == [(4 * i, 24) for i in range(1, 7)]
    for queries, keys, rows in ((0, 4, 0), (4, 0, 8)):
        calls.clear()
        lp.attention(q[:, :queries], k[:, :keys], v[:, :keys], progress=lambda *rows: calls.append(rows))
        assert calls == [(rows, rows)]
    lp.attention(q, k[:, :512], v[:, :512])  # loads its kernels, which takes memory too
    calls.clear()
    tracemalloc.start()
    lp.attention(q, k, v, progress=lambda *rows: calls.append(rows))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert calls == [(512, 1536), (768, 1536), (1280, 1536), (1536, 1536)]
    assert peak < 4 << 20
