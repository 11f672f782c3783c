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
from lowprec.oracle.attention_cpu import CpuAttention

Array = np.ndarray[Any, Any]
KERNELS = {"torch_cpu_flash_f32": (False, 1), "torch_cpu_flash_bf16": (True, 2)}


def operands(seed: int, name: str, m: int, n: int, d: int, channels: int, spread: float = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = ((m, d), spread), ((n, d), 1), ((n, channels), 1)
    return [
        lp.round_to((rng.standard_normal(shape) * size).astype(np.float32), lp.attentions[name].operands)
        for shape, size in shapes
    ]


def both(name: str, data: list[Array], *, causal: bool = False, **wrong: Any) -> tuple[Any, Any]:
    """Return the bits of output and log-sum-exp, by the kernel and by the oracle: tiles of 70 keys, blocks of 24."""
    kernel = lp.attentions[name].with_(key_tiles=(KeyTile(64, 70, 70, 70),), product_block=24)
    got = lp.attention(*data, kernel=kernel, causal=causal, out_format="float32")
    rule = CpuAttention(fields(kernel.operands), *KERNELS[name], tile=70, block=24)
    rule = dataclasses.replace(rule, **wrong)
    q, k, v = (lp.encode(x, kernel.operands).tolist() for x in data)
    scale = Fraction(float(np.float32(data[0].shape[1] ** -0.5)))
    want = []
    for i in range(len(q)):
        high, stop = (i + 1, min(i // 32 * 32 + 32, len(k))) if causal else (len(k), len(k))
        row, lse = rule.row(q[i], k, v, scale, high, stop)
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


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_outputs_of_pytorch_are_reproduced(case: tuple[str, int, int, int, bool]) -> None:
    got = lp.attention(*recorded(*case), kernel=case[0], causal=case[1] == case[2])
    assert digest(got.out, got.lse) == RECORDED[case]


def test_small_products_are_undecided_and_other_masks_refused() -> None:
    x = operands(0, "torch_cpu_flash_f32", 40, 40, 16, 16)
    open_rows = lp.attention(x[0][:33], *x[1:], kernel="torch_cpu_flash_f32", undecided=True).undecided
    assert open_rows is not None
    assert (open_rows.any(1) == (np.arange(33) == 32)).all()  # the second block has one row
    for options, message in (
        ({"window": (3, 0)}, r"window must be None for PyTorch's kernels, got \(3, 0\)"),
        ({"causal": True}, "causal must be False for 33 queries and 40 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            lp.attention(x[0][:33], *x[1:], kernel="torch_cpu_flash_f32", **options)


@pytest.mark.parametrize(("field", "value"), [
    ("p_offset", 8), ("rescale_threshold", 1.0), ("lse_in_octaves", True),
    ("combine", lp.attentions["fa3_bf16"].combine), ("sink", lp.attentions["fa4_bf16"].sink),
    ("gradient_tiles", lp.attentions["flash2"].gradient_tiles),
])  # fmt: skip
def test_rules_in_powers_of_two_are_refused_with_base_e(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .* with an exp2 of base e"):
        lp.attentions["torch_cpu_flash_f32"].with_(**{field: value})
