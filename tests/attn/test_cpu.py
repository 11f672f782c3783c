"""PyTorch's attention on a CPU: bits of the oracle in fractions, wrong rules, recorded outputs of PyTorch."""

from __future__ import annotations

import dataclasses
import hashlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.tiles import KeyTile
from lowprec.oracle import fields
from lowprec.oracle.attention.cpu import CpuAttention, MathAttention
from lowprec.oracle.values import FLOAT32, decode
from lowprec.special.cpu import SleefExp, TorchExp, TorchFastExp

Array = np.ndarray[Any, Any]
KERNELS = {"torch_cpu_flash_f32": (False, 1), "torch_cpu_flash_bf16": (True, 2)}


def operands(seed: int, name: str, m: int, n: int, d: int, channels: int, spread: float = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = ((m, d), spread), ((n, d), 1), ((n, channels), 1)
    return [
        lp.round_to((rng.standard_normal(shape) * size).astype(np.float32), lp.attentions[name].operands)
        for shape, size in shapes
    ]


def both(
    name: str, data: list[Array], *, causal: bool = False, mask: Array | None = None, **wrong: Any
) -> tuple[Any, Any]:
    """Return the bits of output and log-sum-exp, by the kernel and by the oracle: tiles of 70 keys, blocks of 24."""
    kernel = lp.attentions[name].with_(key_tiles=(KeyTile(64, 70, 70, 70),), product_block=24)
    got = lp.attention(*data, kernel=kernel, causal=causal, mask=mask, out_format="float32")
    rule = CpuAttention(fields(kernel.operands), *KERNELS[name], tile=70, block=24)
    rule = dataclasses.replace(rule, **wrong)
    q, k, v = (lp.encode(x, kernel.operands).tolist() for x in data)
    scale = Fraction(float(np.float32(data[0].shape[1] ** -0.5)))
    want = []
    for i in range(len(q)):
        high, stop = (i + 1, min(i // 32 * 32 + 32, len(k))) if causal else (len(k), len(k))
        row, lse = rule.row(q[i], k, v, scale, high, stop, None if mask is None else mask[i].tolist())
        want.append([*row, lse])
    bits = np.concatenate([got.out, got.lse[:, None]], 1)
    return canonical(bits.view(np.uint32)), canonical(np.array(want, np.uint32))


def canonical(bits: Any) -> Any:
    """Return bits as a list, all NaN as one."""
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint32(0x7FC00000), bits).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_rows_have_the_oracle_s_bits(name: str) -> None:
    """Tiles of 70 and 47 keys; heads of 20, 30 and 50 channels: one chain, halves, blocks and a rest."""
    for seed, (d, spread) in enumerate(((20, 1), (31, 4), (50, 30))):
        got, want = both(name, operands(seed, name, 1, 117, d, 2, spread))
        assert got == want
    got, want = both(name, operands(3, name, 34, 34, 1, 1), causal=True)
    assert got == want


@pytest.mark.parametrize("name", KERNELS)
def test_infinities_and_nan_have_the_oracle_s_bits(name: str) -> None:
    """A query of NaN, a key and a query of Inf, a row whose scores are all -Inf; NaN in a value."""
    data = operands(0, name, 4, 90, 8, 3)
    data[0][0, 0], data[0][2, 1], data[1][5, 0], data[2][3, 0] = np.nan, np.inf, np.inf, np.nan
    data[1][:, 1] = -1
    got, want = both(name, data)
    assert got == want


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", KERNELS)
def test_masks_have_the_oracle_s_bits(name: str) -> None:
    """Queries that see nothing of the first tile, or nothing; NaN and Inf that a mask hides reach the scores."""
    data = operands(4, name, 3, 90, 4, 2)
    data[1][3, 0], data[1][80, 1], data[2][60, 0] = np.nan, np.inf, np.nan
    mask = np.random.default_rng(0).random((3, 90)) < 0.6
    mask[1, :70], mask[2] = False, False
    got, want = both(name, data, mask=mask)
    assert got == want
    data[1][[3, 80]] = 0
    finite, want = both(name, data, mask=mask)
    assert finite == want != got
    assert not any(finite[2][1:])


@pytest.mark.sampled(1, default=3)
@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "name"), [
    ({"accumulators": 1}, "torch_cpu_flash_bf16"), ({"accumulators": 2}, "torch_cpu_flash_f32"),
    ({"fast": True}, "torch_cpu_flash_f32"), ({"fast": False}, "torch_cpu_flash_bf16"),
    ({"block": 1000}, "torch_cpu_flash_f32"), ({"halves": False}, "torch_cpu_flash_f32"),
    ({"fused_sum": False}, "torch_cpu_flash_f32"), ({"width": 8}, "torch_cpu_flash_f32"),
    ({"tile": 117}, "torch_cpu_flash_f32"),
])  # fmt: skip
def test_wrong_rules_have_other_bits(wrong: dict[str, Any], name: str) -> None:
    data = operands(1, name, 30, 117, 4, 1, 2)
    got, want = both(name, data, **wrong)
    assert got != want


def math_operands(seed: int, m: int, n: int, d: int, channels: int, spread: float = 1) -> list[Array]:
    return operands(seed, "sdpa_math", m, n, d, channels, spread)


def both_of_math(
    data: list[Array], *, window: tuple[int, int] = (-1, -1), mask: Array | None = None, sign: int = 1, **wrong: Any
) -> tuple[Any, Any]:
    """Return the bits of the output of `sdpa_math`, and of its oracle, with chains of 24 products."""
    kernel = lp.attentions["sdpa_math"].with_(product_block=24)
    (m, d), n = data[0].shape, len(data[1])
    got = lp.attention(*data, kernel=kernel, window=window, mask=mask, scale=sign * d**-0.5).out
    rule = MathAttention(**{"block": 24, **wrong})
    q, k, v = ([[decode(c, FLOAT32) for c in row] for row in lp.encode(x, "float32").tolist()] for x in data)
    root = Fraction(float(np.float32(d**-0.25)))
    place, key = np.arange(m)[:, None] + n - m, np.arange(n)
    seen = np.ones((m, n), bool) if mask is None else mask.copy()
    seen &= (window[0] < 0) | (key >= place - window[0])
    seen &= (window[1] < 0) | (key <= place + window[1])
    want = [rule.row(q[i], k, v, root, seen[i].tolist(), sign) for i in range(m)]
    return canonical(got.view(np.uint32)), canonical(np.array(want, np.uint32))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "d", "window", "sign"), [
    (5, 8, (-1, -1), 1), (35, 20, (4, 1), 1), (70, 31, (-1, 0), -1), (33, 50, (0, -1), 1),
])  # fmt: skip
def test_attention_by_single_operations_has_the_oracle_s_bits(
    n: int, d: int, window: tuple[int, int], sign: int
) -> None:
    got, want = both_of_math(math_operands(n, 3, n, d, 2, 3), window=window, sign=sign)
    assert got == want


def test_hidden_scores_stay_nan_and_rows_without_keys_are_zero() -> None:
    """A mask is added: a NaN that a query does not see makes its row NaN; values of Inf meet probabilities of 0."""
    data = math_operands(0, 6, 20, 8, 3)
    data[0][2, 0], data[1][19, 1], data[2][3, 0], data[2][18, 1] = np.nan, np.inf, np.nan, np.inf
    got, want = both_of_math(data, window=(-1, 0))
    assert got == want
    mask = np.arange(120).reshape(6, 20) % 7 < 4
    got, want = both_of_math(data, mask=mask)
    assert got == want
    data[1][:, 1], data[0][:, 1] = -np.inf, 1  # every score is -inf
    got, want = both_of_math(data)
    assert got == want
    assert not lp.attention(*data, kernel="sdpa_math").out[0, 2]


@pytest.mark.slow
@pytest.mark.sampled(1, default=2)
@pytest.mark.parametrize(
    "wrong",
    [{"block": 1000}, {"halves": False}, {"scales_scores": True}, {"sums_rest_alone": True}, {"divides_output": True}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_single_operations_have_other_bits(wrong: dict[str, Any]) -> None:
    got, want = both_of_math(math_operands(1, 4, 45, 40, 2, 2), **wrong)
    assert got != want


def test_a_mask_that_replaces_scores_has_other_bits() -> None:
    data = math_operands(2, 4, 20, 8, 2)
    data[1][19, 0] = np.nan
    got, want = both_of_math(data, window=(-1, 0), replaces_hidden=True)
    assert got != want


# Recorded with PyTorch 2.13.0+cpu (MKL 2024.2) on an AMD CPU with AVX-512, one thread; digests of the little-endian
# float32 outputs and log-sum-exps of `recorded`.
RECORDED: dict[tuple[str, int, int, int, bool], str] = {
    ("torch_cpu_flash_f32", 40, 333, 16, False): "89c2c9d71be57063",
    ("torch_cpu_flash_f32", 200, 200, 64, False): "d7d2c55bb53f332d",
    ("torch_cpu_flash_f32", 8, 1100, 32, False): "ae039c26c48339f1",
    ("torch_cpu_flash_f32", 8, 40, 16, True): "27e1c940c13eaca4",
    ("torch_cpu_flash_bf16", 40, 333, 16, False): "2b66dc7bd10236de",
    ("torch_cpu_flash_bf16", 200, 200, 64, False): "74ab86823cbac798",
    ("torch_cpu_flash_bf16", 8, 1100, 32, False): "6d7be0d3236f24ca",
    ("torch_cpu_flash_bf16", 8, 40, 16, True): "e333d60320da6064",
}


def recorded(name: str, m: int, n: int, d: int, special: bool) -> list[Array]:
    """Return the operands of a recorded case; `special`: an infinite key, whose rows PyTorch makes 0 in BF16."""
    data = operands(m + n + d, name, m, n, d, d, 2)
    if special:
        data[1][3, 0] = np.inf
    return data


def digest(out: Array, lse: Array) -> str:
    bits = (np.where(np.isnan(x), np.float32(np.nan), x).astype("<f4") for x in (out, lse))
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in bits)).hexdigest()[:16]


# Of ``scaled_dot_product_attention`` with SDPBackend.MATH, which returns no log-sum-exp; the last one in BF16.
RECORDED_MATH: dict[tuple[int, int, int, str], str] = {
    (40, 333, 16, "float32"): "ad6591a9a39d9189", (200, 200, 64, "float32"): "71ad077a8181f2ef",
    (8, 1100, 250, "float32"): "cee003fb26269b9e", (40, 200, 64, "bfloat16"): "5cd907850a9a0766",
}  # fmt: skip


@pytest.mark.parametrize("case", RECORDED_MATH, ids=str)
def test_single_operations_of_pytorch_are_reproduced(case: tuple[int, int, int, str]) -> None:
    m, n, d, fmt = case
    data = [lp.round_to(x, fmt) for x in math_operands(m + n + d, m, n, d, d, 2)]
    out = lp.attention(*data, kernel="sdpa_math", causal=m == n, out_format=fmt).out
    assert digest(out, out[:0]) == RECORDED_MATH[case]


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_outputs_of_pytorch_are_reproduced(case: tuple[str, int, int, int, bool]) -> None:
    got = lp.attention(*recorded(*case), kernel=case[0], causal=case[1] == case[2])
    assert digest(got.out, got.lse) == RECORDED[case]


# Outputs with a mask of 40 queries and 600 keys, of which some see nothing of the first tile, or nothing.
RECORDED_MASKS = {
    "torch_cpu_flash_f32": "8dcca97883d1c302", "torch_cpu_flash_bf16": "5b93ec18cebab005",
    "sdpa_math": "9e12f01acb9b8105",
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED_MASKS)
def test_outputs_of_pytorch_with_a_mask_are_reproduced(name: str) -> None:
    mask = operands(0, name, 40, 600, 600, 600)[0] < 0
    mask[:5, :512] = mask[3:5] = False
    out = lp.attention(*operands(656, name, 40, 600, 16, 16, 2), kernel=name, mask=mask).out
    assert digest(out, out[:0]) == RECORDED_MASKS[name]


def test_small_products_are_undecided_and_other_masks_refused() -> None:
    x = operands(0, "torch_cpu_flash_f32", 40, 40, 16, 16)
    open_rows = lp.attention(x[0][:33], *x[1:], kernel="torch_cpu_flash_f32", undecided=True).undecided
    assert open_rows is not None
    assert (open_rows.any(1) == (np.arange(33) == 32)).all()  # the second block has one row
    few = (lp.attention(x[:, :d], x[:, :d], x, kernel="sdpa_math", undecided=True) for x in [x[0][:16]] for d in (1, 2))
    assert [bool(found.undecided.all()) for found in few if found.undecided is not None] == [True, False]
    for options, message in (
        ({"window": (3, 0)}, r"window must be None for PyTorch's kernels, got \(3, 0\)"),
        ({"mask": np.ones((33, 4), bool)}, r"mask must broadcast to \(1, 1, 33, 40\), got \(33, 4\)"),
        ({"mask": np.ones((33, 40))}, "mask must be bool, got float64"),
        ({"mask": np.ones((33, 40), bool), "kernel": "fa3_bf16"}, "mask must be None for fa3_bf16"),
        ({"causal": True}, "causal must be False for 33 queries and 40 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            lp.attention(*(np.round(y) for y in (x[0][:33], *x[1:])), **({"kernel": "torch_cpu_flash_f32"} | options))


@pytest.mark.parametrize(("field", "value"), [
    ("p_offset", 8), ("rescale_threshold", 1.0), ("lse", lp.attentions["fa4_bf16"].lse),
    ("combine", lp.attentions["fa3_bf16"].combine), ("sink", lp.attentions["fa4_bf16"].sink),
    ("gradient_tiles", lp.attentions["flash2"].gradient_tiles),
])  # fmt: skip
def test_rules_in_powers_of_two_are_refused_with_base_e(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .* with an exp2 of base e, got"):
        lp.attentions["torch_cpu_flash_f32"].with_(**{field: value})


@pytest.mark.parametrize("step", [997, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_relative_errors_of_exponentials_are_the_largest_ones(step: int) -> None:
    """Every `step`-th float32 number from -88 to -0, against float64; results below 2^-125 may be zero."""
    found = dict.fromkeys((TorchExp, TorchFastExp, SleefExp), 0.0)
    for first in range(0x80000000, 0xC2B00000, 1 << 24):
        x = np.arange(first, min(first + (1 << 24), 0xC2B00000), step, dtype=np.uint32).view(np.float32)
        want = np.exp(x.astype(np.float64))
        for function in found:
            error = np.abs(function(1)(x[None])[0].astype(np.float64) - want)
            assert (error[want < 2.0**-125] < 2.0**-125).all()
            found[function] = max(found[function], float((error / want)[want >= 2.0**-125].max(initial=0)))
    for function, largest in found.items():
        assert largest <= function.relative_error
        assert largest > (0.9999 if step == 1 else 0.9) * function.relative_error
