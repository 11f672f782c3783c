"""Small cases of the rules that a second reading of the sources and disassembled wheels corrected.

The expected bits are those of another implementation in fractions, which was written without knowledge of this one,
with correctly rounded functions and one division.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.schedules import FlashAttention2, FlashAttention3, FlashAttention4, FlashInfer
from lowprec.attn.sums import NatsLogSumExp, OctavesLogSumExp, QuadSum
from lowprec.attn.tiles import Block, Call, KeyTile, Visit
from lowprec.special.exp2 import PolynomialExp2, RoundedExp2
from lowprec.special.mufu import MufuExp2, MufuQuotient
from lowprec.special.reciprocal import RoundedReciprocal

Array = np.ndarray[Any, Any]
FLASH2 = lp.attentions["flash2"].lse
FROM_FACTOR = FLASH2.with_(from_scale=False)


@dataclass(frozen=True, eq=False, repr=False)
class Guarded(FlashAttention2):
    """All tiles check for rows without a maximum."""

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        return [Visit(x.start) for x in super().visits(call, keys, first, stop)]


@dataclass(frozen=True, eq=False, repr=False)
class AsGiven(FlashAttention3):
    """Masks are taken as they are given."""

    def normalized(self, call: Call) -> Call:
        return call._replace(causal=False, right=0 if call.causal else call.right)


@dataclass(frozen=True, eq=False, repr=False)
class Together(FlashAttention2):
    """All rows of a head are one block."""

    def blocks(self, call: Call, tile: KeyTile, member: int) -> list[Block]:
        return super().blocks(call, tile._replace(queries=512), member)


@dataclass(frozen=True, eq=False, repr=False)
class OneDivision(RoundedReciprocal):
    """A quotient that is rounded once."""

    def divide(self, factor: Any, x: Array) -> Array:
        return factor / x


def rounded(name: str) -> AttentionKernel:
    """Return a kernel with correctly rounded functions where it has Hopper's."""
    kernel = lp.attentions[name]
    if not isinstance(kernel.exp2, MufuExp2):
        return kernel
    divides = isinstance(kernel.reciprocal, MufuQuotient)
    return kernel.with_(exp2=RoundedExp2(), reciprocal=OneDivision() if divides else RoundedReciprocal())


def period(number: int) -> dict[str, Any]:
    exp2 = lp.attentions["fa4_fp8"].exp2
    assert isinstance(exp2, PolynomialExp2)
    return {"schedule": FlashAttention4(), "exp2": exp2.with_(period=number)}


# Kernel; M, N, D, Dv, query heads of one key head; seed, or None for one product of 1; arguments; the wrong rule.
CASES: dict[str, tuple[str, tuple[int, ...], int | None, dict[str, Any], dict[str, Any]]] = {
    "sum fused": ("fa3_fp8", (1, 300, 64, 64, 1), 34, {}, {"row_sum": QuadSum(fused=False)}),
    "lse fused": ("flash2", (1, 2, 128, 128, 1), 1, {}, {"lse": FLASH2.with_(fused=False)}),
    "lse fused in octaves": ("fa4_bf16", (1, 2, 64, 64, 1), 0, {}, {"lse": OctavesLogSumExp(False)}),
    "lse from the scale": ("flash2", (1, 1, 64, 64, 1), None, {"scale": 0.023}, {"lse": FROM_FACTOR}),
    "period 16": ("fa4_fp8", (1, 48, 64, 64, 1), 1, {}, period(10)),
    "period 8": ("fa4_fp8", (1, 48, 128, 128, 1), 1, {"causal": True}, period(16)),
    "period 10 of two CTAs": ("fa4_bf16", (257, 48, 128, 128, 1), 1, {}, period(16)),
    "period 10 of packed heads": ("fa4_bf16", (1, 48, 128, 128, 2), 1, {}, period(16)),
    "offset after the logarithm": ("fa4_fp8", (1, 3, 64, 64, 1), 0, {}, {"lse": NatsLogSumExp()}),
    "shift fused": ("fa4_fp8", (1, 3, 64, 64, 1), 2, {}, {"fused_shift": False}),
    "log2(e) in float32": ("fa4_bf16", (1, 3, 64, 64, 1), 1, {"scale": 0.9}, {"rounded_log2_e": False}),
    "window's first tile": (
        "vllm_fa3_fp8", (1, 9, 64, 64, 1), 1, {"window": (5, 0)}, {"schedule": FlashAttention3()},
    ),
    "small tiles": ("vllm_fa3_fp8", (1, 97, 128, 128, 1), 0, {}, {"schedule": FlashAttention3(True)}),
    "one query is not causal": ("fa3_bf16", (1, 129, 128, 128, 1), 0, {"causal": True}, {"schedule": AsGiven()}),
    "blocks of rows": ("flash2", (129, 129, 64, 64, 1), 1, {"causal": True}, {"schedule": Together()}),
    "tiles without a check": ("flash2", (1, 65, 128, 128, 1), 2, {}, {"schedule": Guarded()}),
    "maximum without subnormals": ("fa3_bf16", (1, 1, 64, 64, 1), None, {"scale": 1.0}, {"flush_subnormals": False}),
    "scales before log2(e)": (
        "flashinfer_fp8", (1, 300, 128, 128, 1), 0, {"descale": (0.21, 3.3, 1.5)}, {"descale_first": False},
    ),
    "one division": (
        "flashinfer_fp8", (1, 300, 128, 128, 1), 3, {"descale": (0.3, 0.7, 1.5)}, {"reciprocal": RoundedReciprocal()},
    ),
    "tiles of pages": (
        "flashinfer_fp8", (1, 300, 128, 128, 1), 2, {"page_size": 16},
        {"schedule": FlashInfer((KeyTile(128, 192, 192, 192),))},
    ),
    "head size of V": (
        "fa3_bf16", (1, 120, 192, 128, 1), 0, {}, {"key_tiles": (KeyTile(192, 112, 112, 96),)},
    ),
}  # fmt: skip


def operands(case: str) -> list[Array]:
    """Return Q, K and V of a case."""
    name, (m, n, d, channels, heads), seed, _, _ = CASES[case]
    if seed is None:
        q = np.zeros((1, 1, 1, d), np.float32)
        q[..., 0] = 1
        small = np.float32(2.0**-64 if case.startswith("maximum") else 1)
        return [q * small, q * small, q]
    rng = np.random.default_rng(seed)
    shapes = (1, heads, m, d), (1, 1, n, d), (1, 1, n, channels)
    fmt = lp.attentions[name].operands
    q, k, v = (lp.round_to(rng.standard_normal(shape).astype(np.float32), fmt) for shape in shapes)
    if case == "blocks of rows":
        v[..., -1, 0] = np.nan
    if case == "tiles without a check":
        q, k = np.zeros_like(q), np.zeros_like(k)
        q[..., 0], k[..., 0] = np.inf, -1
    return [q, k, v]


def digest(out: Any, lse: Any) -> tuple[str, str]:
    """Return a hash of an output and the bits of its log-sum-exp; all NaN are one."""
    out, lse = (np.where(np.isnan(x), np.float32(np.nan), x).astype(np.float32).view(np.uint32) for x in (out, lse))
    return hashlib.sha256(np.ascontiguousarray(out).tobytes()).hexdigest()[:12], f"{int(lse):08x}"


EXPECTED = {
    "sum fused": ("deacdc28fdd4", "40c197db"),
    "lse fused": ("0862059bd5af", "3f320a31"),
    "lse fused in octaves": ("8a5ef6766038", "beaac346"),
    "lse from the scale": ("d9020c457d90", "3cbc6a7f"),
    "period 16": ("e6e3fc92c9a3", "40876e0e"),
    "period 8": ("7c3f9ba29585", "408a44aa"),
    "period 10 of two CTAs": ("21d2b617f0ac", "408cb40a"),
    "period 10 of packed heads": ("5441c506de90", "408a1523"),
    "offset after the logarithm": ("98ef8aa01dd3", "3ec79cb0"),
    "shift fused": ("479fd59aca72", "3fac983a"),
    "log2(e) in float32": ("6ad421761d4a", "40d80cf1"),
    "window's first tile": ("26cf97d62b87", "3fdc5bc1"),
    "small tiles": ("6112cc139a0f", "409e3469"),
    "one query is not causal": ("07a0fce57d4f", "40a6052e"),
    "blocks of rows": ("50187a25a7ed", "bf9da3e2"),
    "tiles without a check": ("8f3eb6682143", "7f800000"),
    "maximum without subnormals": ("d9020c457d90", "00000000"),
    "scales before log2(e)": ("b9160b892771", "410864d2"),
    "one division": ("ca9ec710965f", "41045230"),
    "tiles of pages": ("421d8a56c601", "410c8fcb"),
    "head size of V": ("ec425591eb7c", "40a6d762"),
}


@pytest.mark.parametrize("case", CASES)
def test_row_0_has_the_bits_of_the_sources_and_the_old_rule_others(case: str) -> None:
    name, _, _, arguments, wrong = CASES[case]
    found = []
    for kernel in (rounded(name), rounded(name).with_(**wrong)):
        got = lp.attention(*operands(case), kernel=kernel, out_format="float32", **arguments)
        found.append(digest(got.out[0, 0, 0], got.lse[0, 0, 0]))
    assert found[0] == EXPECTED[case]
    assert found[1] != EXPECTED[case]
