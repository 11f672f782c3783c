"""Gradients of attention: bits of the oracle in fractions, wrong rules, and the derivative in float64."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.forward import scale_of_scores
from lowprec.attn.kernel import AttentionKernel, GradientTile
from lowprec.attn.tiles import KeyTile
from lowprec.kernels.attn import dot_rows
from lowprec.oracle import ACCUMULATORS, fields
from lowprec.oracle.attention.backward import Backward
from lowprec.oracle.mufu import HOPPER as MUFU
from lowprec.oracle.values import FLOAT32, decode, encode, exact

KERNEL = lp.attentions["flash2"].with_(
    key_tiles=(KeyTile(64, 16, 16, 16),), gradient_tiles=(GradientTile(64, 8, 16, 16),)
)
RULE = Backward(ACCUMULATORS["ampere_bf16"], fields(KERNEL.operands), 8, 16, 16, 1)
HOPPER = lp.attentions["fa3_bf16"].with_(
    key_tiles=(KeyTile(64, 16, 16, 16),), gradient_tiles=(GradientTile(64, 8, 16, 16, 12),)
)


def operands(seed: int, m: int, n: int, d: int) -> list[Any]:
    """Return Q, K, V and the output's gradient in bfloat16."""
    rng = np.random.default_rng(seed)
    q, k, v, dout = (rng.standard_normal((rows, d)) for rows in (m, n, n, m))
    return [lp.round_to(x, "bfloat16") for x in (2 * q, k, v, dout)]


def hopper_rule(causal: bool) -> dict[str, Any]:
    """Return the fields of FlashAttention-3's rule: other tiles and another order with a causal mask."""
    core = ACCUMULATORS["hopper_bf16"]
    return {
        "core": core,
        "queries": 8 if causal else 12,
        "buffers": 1,
        "backwards": False,
        "last_key_first": causal,
        "bulk_adds": True,
        "functions": MUFU,
    }


def both(
    m: int, n: int, d: int, blocks: int, causal: bool, *, kernel: AttentionKernel = KERNEL, size: float = 1.0,
    window: tuple[int, int] | None = None, scale: float | None = None, special: tuple[Any, ...] = (), **wrong: Any,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """Return the bits of the gradients in float32 by the kernel and by the oracle.

    `size` multiplies dO, `special` is an operand's index, the index of a number, and its value.
    """
    data = operands(m + n, m, n, d)
    data[3] = lp.round_to(data[3] * size, "bfloat16")
    if special:
        data[special[0]][special[1]] = special[2]
    options: dict[str, Any] = {"causal": causal, "window": window, "scale": scale}
    got = lp.attention_grad(*data, kernel=kernel, blocks=blocks, out_format="float32", **options)
    masked = causal or window is not None
    hopper = hopper_rule(masked) | {"last_key_first": causal and window is None} if kernel is HOPPER else {}
    rule = dataclasses.replace(RULE, **{"buffers": blocks, **hopper, **wrong})
    codes = [lp.encode(x, "bfloat16").tolist() for x in data]
    out = [[exact(x) for x in row] for row in got.forward.out.tolist()]
    lse = [decode(int(x), FLOAT32) for x in got.forward.lse.view(np.uint32)]
    factor = d**-0.5 if scale is None else scale
    octaves = Fraction(float(scale_of_scores(KERNEL, factor, np.float32(1))))
    limits = (-1, 0 if causal else -1) if window is None else (window[0], 0 if causal else window[1])
    want = rule.head(*codes, out, lse, octaves, Fraction(float(np.float32(factor))), *limits)
    return [canonical(x.view(np.uint32)) for x in (got.dq, got.dk, got.dv)], [canonical(np.array(x)) for x in want]


def canonical(bits: Any) -> list[Any]:
    """Return bits as a list, all NaN as one."""
    found: list[Any] = np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, bits).tolist()
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("m", "n", "d", "buffers", "causal", "size"), [
    (9, 37, 8, 8, False, 1.0), (11, 37, 24, 2, True, 1.0), (20, 18, 8, 1, True, 1.0), (1, 1, 8, 3, False, 1.0),
    (9, 20, 8, 2, False, 2.0**-127), (9, 20, 8, 1, False, 2.0**-123),
])  # fmt: skip
def test_gradients_have_the_oracle_s_bits(m: int, n: int, d: int, buffers: int, causal: bool, size: float) -> None:
    """Ragged tiles, fewer buffers than tiles of keys, rows without keys, subnormal gradients."""
    got, want = both(m, n, d, buffers, causal, size=size)
    assert got == want
    if d == 8:
        got, want = both(m, n, d, buffers, causal, kernel=HOPPER, size=size)
        assert got == want


@pytest.mark.sampled(1, default=2)
@pytest.mark.slow
@pytest.mark.parametrize("wrong", [
    {"backwards": False}, {"rounded_p": True}, {"buffers": 4}, {"keys": 8},
])  # fmt: skip
def test_wrong_rules_have_other_bits(wrong: dict[str, Any]) -> None:
    got, want = both(18, 50, 8, 2, False)
    assert got == want
    assert got != both(18, 50, 8, 2, False, **wrong)[1]


@pytest.mark.sampled(1, default=2)
@pytest.mark.ci
@pytest.mark.parametrize(("causal", "wrong"), [
    (False, {"backwards": True}), (False, {"last_key_first": True}), (False, {"queries": 8}),
    (True, {"last_key_first": False}), (True, {"rounded_p": True}), (False, {"buffers": 2}),
])  # fmt: skip
def test_wrong_rules_of_flash_attention_3_have_other_bits(causal: bool, wrong: dict[str, Any]) -> None:
    got, want = both(18, 50, 8, 2, causal, kernel=HOPPER)
    assert got == want
    assert got != both(18, 50, 8, 2, causal, kernel=HOPPER, **wrong)[1]


def test_gradients_of_a_group_are_added_in_the_order_of_heads() -> None:
    """FlashAttention-3 adds them in float32; another order has other bits."""
    q, dout = (np.stack(x) for x in zip(*(operands(i, 9, 20, 8)[::3] for i in range(3)), strict=True))
    _, k, v, _ = operands(3, 9, 20, 8)
    got = lp.attention_grad(q, k[None], v[None], dout, kernel=HOPPER, out_format="float32")
    one = [lp.attention_grad(q[h], k, v, dout[h], kernel=HOPPER, out_format="float32") for h in range(3)]
    assert got.dk.shape == (1, 20, 8)
    assert np.array_equal(got.dk[0], one[0].dk + one[1].dk + one[2].dk)
    assert np.array_equal(got.dv[0], one[0].dv + one[1].dv + one[2].dv)
    assert not np.array_equal(got.dk[0], one[2].dk + one[1].dk + one[0].dk)


def test_row_sums_of_products_have_the_oracle_s_bits() -> None:
    """Rows of 40 channels, 16 at once by two threads; by one thread, other bits."""
    a, b = (lp.round_to(np.random.default_rng(i).standard_normal((20, 40)), "bfloat16") for i in (0, 1))
    a[0], b[0], a[1], b[1] = 2.0**-130, 2.0**20, 2.0**-70, 2.0**-70  # subnormal operands, vanishing products
    a[2, :2], b[2] = (-(2.0**27), 2.0**28), [2.0**100] * 2 + [0.0] * 38  # a product above float32, but not the sum
    got = np.empty(20, np.float32)
    dot_rows(a, b, 16, True, got)
    codes, numbers = lp.encode(a, "bfloat16").tolist(), [[exact(x) for x in row] for row in b.tolist()]
    want, *wrong = (
        canonical(np.array([encode(rule.dot(*pair), FLOAT32) for pair in zip(codes, numbers, strict=True)]))
        for rule in (RULE, dataclasses.replace(RULE, columns=8), dataclasses.replace(RULE, keeps_operands=True))
    )
    assert canonical(got.view(np.uint32)) == want
    assert want not in wrong


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [KERNEL, HOPPER])
@pytest.mark.parametrize(("m", "n", "causal", "window"), [
    (9, 37, False, (7, 5)), (11, 37, True, (20, 0)), (17, 14, False, (0, 9)),
])  # fmt: skip
def test_gradients_with_a_window_have_the_oracle_s_bits(
    kernel: AttentionKernel, m: int, n: int, causal: bool, window: tuple[int, int]
) -> None:
    got, want = both(m, n, 8, 2, causal, kernel=kernel, window=window)
    assert got == want
    if m == 9 and kernel is HOPPER:
        assert got != both(m, n, 8, 2, causal, kernel=kernel, window=(7, 4))[1]


@pytest.mark.parametrize("kernel", [KERNEL, HOPPER])
def test_subnormal_operands_count_as_zero(kernel: AttentionKernel) -> None:
    """A subnormal dK times a scale above 1, subnormal dO and O: with ``--use_fast_math`` they are zeros."""
    options: dict[str, Any] = {"kernel": kernel, "size": 2.0**-125, "scale": 4.0}
    got, want = both(5, 17, 8, 1, False, **options)
    assert got == want
    wrong = both(5, 17, 8, 1, False, **options, keeps_operands=True)[1]
    assert [a == b for a, b in zip(got, wrong, strict=True)] == [False, False, True]


def test_a_kernel_that_keeps_subnormals_keeps_them_in_its_gradients() -> None:
    """As a build without ``--use_fast_math``: dQ and dK have subnormal numbers."""
    kernel, options = KERNEL.with_(flush_subnormals=False), {"size": 2.0**-125, "scale": 0.25}
    got, want = both(5, 17, 8, 1, False, kernel=kernel, flush=False, **options)
    assert got == want
    assert [a == b for a, b in zip(got, both(5, 17, 8, 1, False, **options)[1], strict=True)] == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [KERNEL, HOPPER])
@pytest.mark.parametrize("special", [
    (1, (13, 2), np.inf), (2, (13, 2), np.inf), (3, (4, 2), np.inf), (0, (4, 2), np.nan),
])  # fmt: skip
def test_special_values_meet_padding_and_hidden_keys(kernel: AttentionKernel, special: tuple[Any, ...]) -> None:
    """Tensor cores also multiply padding and P = 0 with infinities: NaN goes beyond the mask."""
    got, want = both(9, 18, 8, 2, True, kernel=kernel, special=special)
    assert got == want
    if special[0] in (1, 2):
        assert got != both(9, 18, 8, 2, True, kernel=kernel, special=special, skips_padding=True)[1]


@pytest.mark.parametrize(("m", "n", "window", "right"), [(40, 150, (60, 10), 10), (12, 4, (1, -1), 4)])
def test_gradients_are_those_of_softmax_attention(m: int, n: int, window: tuple[int, int], right: int) -> None:
    """Against the derivative in float64; windows, and two heads of queries for one of keys.

    FlashAttention-2 takes N for an open side, and FlashAttention-3 takes M - 1, so that more queries than keys differ.
    """
    rng = np.random.default_rng(0)
    shapes = (2, m, 32), (1, n, 32), (1, n, 16), (2, m, 16)
    q, k, v, dout = (lp.round_to(rng.standard_normal(shape), "bfloat16") for shape in shapes)
    got = lp.attention_grad(q, k, v, dout, window=window)
    if m < n:
        hopper = lp.attention_grad(q, k, v, dout, window=window, kernel="fa3_bf16", out_format="float32")
        group = lp.attention_grad(q, k, v, dout, window=window, out_format="float32")
        assert np.linalg.norm(hopper.dk[0] - group.dk.sum(0)) < 0.01 * np.linalg.norm(hopper.dk)
        assert 0 < np.linalg.norm(hopper.dq - group.dq) < 0.01 * np.linalg.norm(hopper.dq)
    place, key = np.arange(m)[:, None] + n - m, np.arange(n)
    hidden = (key < place - window[0]) | (key > place + right)
    for h in range(2):
        a, b, c, e = (x.astype(np.float64) for x in (q[h], k[0], v[0], dout[h]))
        s = np.where(hidden, -np.inf, a @ b.T / np.sqrt(32))
        p = np.where(hidden, 0, np.exp(s - np.maximum(s.max(1, keepdims=True), -1e30)))
        p /= np.maximum(p.sum(1, keepdims=True), 1e-30)
        dp = e @ c.T
        ds = p * (dp - (dp * p).sum(1, keepdims=True)) / np.sqrt(32)
        for found, derivative in ((got.dq, ds @ b), (got.dk, ds.T @ a), (got.dv, p.T @ e)):
            assert np.linalg.norm(found[h] - derivative) < 0.01 * np.linalg.norm(derivative)


def test_a_nan_reaches_the_gradients_of_the_tiles_that_meet_it() -> None:
    q, k, v, dout = operands(0, 20, 40, 8)
    dout[17, 3] = np.nan
    got = lp.attention_grad(q, k, v, dout, kernel=KERNEL)
    assert np.isnan(got.dq[17]).all()
    assert np.isfinite(got.dq[:17]).all()
    assert np.isnan(got.dv[:, 3]).all()
    empty = lp.attention_grad(q[:0], k, v, dout[:0], kernel=KERNEL)
    assert not empty.dk.any()
    assert empty.dq.shape == (0, 8)
    q, dout = (np.stack([x, x]) for x in (q, dout))
    none = lp.attention_grad(q, k[None, :0], v[None, :0], dout, kernel=HOPPER)
    assert none.dk.shape == (1, 0, 8)
    assert not none.dq.any()


@pytest.mark.parametrize(("change", "message"), [
    ({"kernel": "fa3_fp8"}, "kernel must have a backward pass, got fa3_fp8"),
    ({"dout": np.zeros((3, 8))}, r"dout must have the output's shape \(4, 8\), got \(3, 8\)"),
    ({"dout": np.full((4, 8), 0.1)}, "attention_grad: dout must hold numbers of bfloat16"),
    ({"blocks": 0}, "blocks"),
])  # fmt: skip
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    x = np.zeros((4, 8))
    with pytest.raises(ValueError, match=message):
        lp.attention_grad(**{"q": x, "k": x, "v": x, "dout": x, **change})
