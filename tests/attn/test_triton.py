"""Triton's fused attention against the oracle in fractions, which has the tutorial's loops; wrong rules must differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.tiles import KeyTile
from lowprec.oracle import ACCUMULATORS, fields
from lowprec.oracle.attention.triton import FusedAttention
from lowprec.oracle.float32 import bits_of
from lowprec.oracle.mufu import HOPPER, log2f
from lowprec.oracle.values import FLOAT32, decode
from lowprec.special.mufu import CudaFunction, MufuQuotient

ROWS, KEYS, D = 32, 16, 8
TILE = [KeyTile(D, KEYS, KEYS, KEYS, ROWS)]
HALF = lp.attentions["triton_fused"].with_(key_tiles=TILE)
BF16 = HALF.with_(**{name: lp.attentions["fa3_bf16"].scores for name in ("scores", "values")},
                  **{name: lp.formats["bfloat16"] for name in ("operands", "p_format")})  # fmt: skip


def operands(seed: int, n: int, spread: float) -> list[Any]:
    """Return as many queries as keys, with a maximum that grows over the tiles, and values, one of them NaN."""
    q, k, v = np.random.default_rng(seed).standard_normal((3, n, D))
    k[n // 2 :] *= 2
    v[:, 0] += 1
    v[n // 3, 1] = np.nan
    return [lp.round_to(x, "float16") for x in (q * spread, k, v)]


def of_large_sums() -> list[Any]:
    """Return BF16 operands: rows with sums from 0 to 2^128, because maxima near 2^31 are multiples of 256."""
    q, k, v = np.zeros((64, D), np.float32), np.zeros((KEYS, D), np.float32), np.ones((KEYS, D), np.float32)
    q[:, 0], k[3:6, 0] = np.arange(128, 192) * 2.0**8, 2.0**16
    q[::2] *= 4
    v[:, 1:5] = 2.0**-126, 2.0**-127, -(2.0**-130), 2.0**100
    return [q, k, v]


def both(
    data: list[Any], rows: Any, *, kernel: Any = HALF, causal: bool = False, scale: float = 0.3, **wrong: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the bits of outputs and log-sum-exps of some rows by the kernel and by the oracle; NaN is one number."""
    rule = FusedAttention(ACCUMULATORS[kernel.scores.name], fields(kernel.operands), ROWS, KEYS)
    rule = dataclasses.replace(rule, **wrong)
    got = lp.attention(*data, kernel=kernel, causal=causal, scale=scale, out_format="float32")
    q, k, v = (lp.encode(x, kernel.operands).tolist() for x in data)
    found = [rule.row(i, q[i], k, v, scale, causal) for i in rows]
    bits = np.concatenate([got.out, got.lse[:, None]], 1).view(np.uint32)[rows]
    wanted = np.array([[*out, lse] for out, lse in found], np.uint32)
    return tuple(np.where(x & 0x7FFFFFFF > 0x7F800000, 0x7FC00000, x).tolist() for x in (bits, wanted))  # type: ignore[return-value]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "causal", "scale", "spread"), [
    (64, True, 0.3, 3.0), (48, False, 0.3, 3.0), (48, True, -0.3, 1.0), (32, False, 0.0, 1.0), (48, True, 1e7, 1.0),
    (48, False, 1.3, 2.0**15),
])  # fmt: skip
def test_rows_have_the_oracle_s_bits(n: int, causal: bool, scale: float, spread: float) -> None:
    """Two blocks; with a scale of 1e7, hidden keys have the largest scores of some rows."""
    got, want = both(operands(n, n, spread), range(3, n, 11), causal=causal, scale=scale)
    assert got == want


def test_sums_near_the_ends_of_float32_have_the_oracle_s_bits() -> None:
    """``div.full.f32`` scales large divisors; zero sums and infinite ones give NaN, as nothing replaces them."""
    got, want = both(of_large_sums(), range(64), kernel=BF16, scale=0.72)
    assert got == want


WRONG = (
    "backwards", "by_row", "contracts_mask", "rounds_scores", "rounds_l", "near_first", "by_thread", "sums_rounded_p",
    "exact_log2_e", "block_m", "functions", "hides_by_infinity", "multiplies", "flushes_quotient",
)  # fmt: skip


@pytest.mark.sampled(2, default=6)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_have_other_bits(wrong: str) -> None:
    """Each wrong rule shows in one of thirteen rows; the last ones in scores and sums of extreme size."""
    data, options, rows = operands(80, 80, 3.0), {"causal": True, "scale": 0.28}, range(17, 80, 5)
    if wrong == "hides_by_infinity":
        data, options = operands(48, 48, 1.0), {"causal": True, "scale": 1e7}
        rows = range(2, 48, 9)
    if wrong in ("multiplies", "flushes_quotient"):
        data, options, rows = of_large_sums(), {"kernel": BF16, "scale": 0.72}, range(64)
    change = {"block_m": KEYS, "functions": HOPPER}.get(wrong, True)
    found = (both(data, [i], **options, **{wrong: change}) for i in rows)
    assert any(got != want for got, want in found)


def test_calls_that_the_kernel_does_not_have() -> None:
    x, y = np.zeros((2, 64), np.float32), np.zeros((128, 64), np.float32)
    for n, options, message in (
        (65, {}, "k must have a multiple of 64 keys for Triton's fused attention, got 65"),
        (
            128,
            {"causal": True},
            "causal must be False for 2 queries and 128 keys in Triton's fused attention, got True",
        ),
        (128, {"window": (4, 0)}, r"window must be None for Triton's fused attention, got \(4, 0\)"),
        (128, {"splits": 2}, "splits must be 1 for"),
    ):
        with pytest.raises(ValueError, match=message):
            lp.attention(x, y[:1].repeat(n, 0), y[:1].repeat(n, 0), kernel="triton_fused", **options)
    with pytest.raises(ValueError, match="lse must be a Base2LogSumExp with scaled maxima, got"):
        HALF.with_(lse=lp.attentions["flashmla_fp8"].lse)


def test_functions_of_cuda_and_quotients_of_subnormal_numbers() -> None:
    """Most numbers are from sqrt(1/2) to sqrt(2), whose log2 is the polynomial's, and near these ends.

    ``div.full.f32`` multiplies subnormal operands by 2^24, and keeps subnormal quotients.
    """
    rng = np.random.default_rng(1)
    words = [rng.integers(*ends, 50) for ends in ((1, 2**23), (0x7F000000, 0x7F800000), (0x3F000000, 0x40000000))]
    numbers = np.concatenate(words + [end + np.arange(-40, 41) for end in (0x3F3504F3, 0x3FB504F3)]).astype(np.uint32)
    found = CudaFunction("log2")(numbers.view(np.float32)).view(np.uint32)
    assert found.tolist() == [bits_of(log2f(decode(int(word), FLOAT32))) for word in numbers]
    found = CudaFunction("log2")(np.array([2.0**-140, 1, 8, np.inf, 0, -0.0, -1, np.nan], np.float32))
    assert found[:6].tolist() == [-140, 0, 3, np.inf, -np.inf, -np.inf]
    assert np.isnan(found[6:]).all()
    x = np.array([2.0**-140, 1.0, 2.0**127], np.float32)
    assert MufuQuotient(flush=False).divide(np.float32(2.0**-130), x).tolist() == [2.0**10, 2.0**-130, 0]
    assert MufuQuotient().divide(np.float32(2.0**-130), x[1:]).tolist() == [0, 0]
