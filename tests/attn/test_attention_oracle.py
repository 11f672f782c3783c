"""Attention kernels against the oracle in fractions, bit by bit, on hostile rows; wrong rules must differ."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.forward import scale_of_scores
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.schedules import FlashAttention4, FlashInfer
from lowprec.attn.sums import Base2LogSumExp, OctavesLogSumExp, PackedPairSum
from lowprec.attn.tiles import Call, KeyTile
from lowprec.oracle import ACCUMULATORS, fields
from lowprec.oracle.attention.forward import Attention
from lowprec.oracle.float32 import ROUNDED, SpecialFunctions
from lowprec.oracle.mufu import HOPPER
from lowprec.special.exp2 import PolynomialExp2
from lowprec.special.mufu import MufuExp2, MufuQuotient

ALL = [lp.attentions[name] for name in lp.attentions]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AnySize(FlashInfer):
    """FlashInfer's tiles for any head size."""

    has_fixed_sizes = False


GPU = [k.name for k in ALL if not (k.product_block or k.schedule.has_scaled_maxima or "sage" in k.name)]


def functions_of(kernel: AttentionKernel) -> SpecialFunctions:
    """Return the oracle's 2**x, log2 and 1/x of a kernel."""
    return HOPPER if isinstance(kernel.exp2, MufuExp2) else ROUNDED


def oracle_of(kernel: AttentionKernel, tile: int) -> Attention:
    """Return the oracle's description of a kernel, with its own order of sums."""
    order = "packed" if isinstance(kernel.row_sum, PackedPairSum) else "quad"
    if order == "quad" and kernel.row_sum.fused:
        order = "quad_fused"
    emulated: frozenset[int] = frozenset()
    polynomial: tuple[Fraction, ...] = ()
    if isinstance(kernel.exp2, PolynomialExp2):
        polynomial = tuple(Fraction(float(np.float32(c))) for c in kernel.exp2.coefficients)
        period, inside = kernel.exp2.period, kernel.exp2.emulated
        fragments = -(-tile // 32)
        emulated = frozenset(
            j for j in range(tile)
            if inside >= period
            or (0 < j // 32 < fragments - 1 and (j % 32 - j % 2) % period >= period - inside)
        )  # fmt: skip
    return Attention(
        ACCUMULATORS[kernel.scores.name], ACCUMULATORS[kernel.values.name], fields(kernel.operands),
        fields(kernel.p_format), tile, order, polynomial, emulated, kernel.p_offset, kernel.rescale_threshold,
        kernel.promote_every, kernel.last_tile_first, kernel.fused_scores, kernel.fused_shift, kernel.flush_subnormals,
        Fraction(kernel.empty_scale), kernel.lse.empty, isinstance(kernel.lse, OctavesLogSumExp), kernel.lse.fused,
        plain_lse=isinstance(kernel.lse, Base2LogSumExp), divides=isinstance(kernel.reciprocal, MufuQuotient),
        p_scale=Fraction(kernel.p_scale), functions=functions_of(kernel),
    )  # fmt: skip


def any_size(name: str) -> AttentionKernel:
    """Return a kernel for any head size."""
    kernel = lp.attentions[name]
    return kernel.with_(schedule=AnySize(())) if isinstance(kernel.schedule, FlashInfer) else kernel


def operands(rng: np.random.Generator, kernel: AttentionKernel, m: int, n: int, d: int, spread: float) -> list[Any]:
    """Return Q, K and V with a few rows of zeros and extreme numbers, on the kernel's grid."""
    q, k, v = (rng.standard_normal((rows, d)).astype(np.float32) * size for rows, size in ((m, spread), (n, 1), (n, 1)))
    k[n // 2] = 0
    k[n // 3] *= 6  # a score that grows by more than a threshold
    v[:, 0] += 1
    return [lp.round_to(x, kernel.operands) for x in (q, k, v)]


def both(
    kernel: AttentionKernel, q: Any, k: Any, v: Any, *, causal: bool = False, v_descale: float = 1.0,
    scale: float | None = None, **wrong: Any,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """Return the bits of output and log-sum-exp by the kernel and by the oracle; only FP8 kernels take descales."""
    m, n, d = len(q), len(k), q.shape[1]
    call = kernel.schedule.normalized(Call(m, n, d, v.shape[1], causal=causal))
    tile = kernel.tile_of(call).keys_of(call)
    rule = dataclasses.replace(oracle_of(kernel, tile), **wrong)
    given = d**-0.5 if scale is None else scale
    qk_descale, v_descale = (0.75, v_descale) if kernel.takes_descale else (1.0, 1.0)
    factor = scale_of_scores(kernel, given, np.float32(qk_descale))
    nats = (
        Fraction(float(np.float32(given) * np.float32(qk_descale)))
        if getattr(kernel.lse, "from_scale", False)
        else None
    )
    descale = (qk_descale, 1.0, v_descale)
    got = lp.attention(q, k, v, kernel=kernel, causal=causal, scale=scale, descale=descale, out_format="float32")
    codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v)]
    want, lse = [], []
    for i in range(m):
        high = min(n, max(0, i + n - m + 1)) if causal else n
        row, total = rule.row(
            codes[0][i], codes[1], codes[2], Fraction(float(factor)), Fraction(v_descale), 0, high, lse_scale=nats
        )
        want.append(row)
        lse.append(total)
    return [got.out.view(np.uint32).tolist(), got.lse.view(np.uint32).tolist()], [want, lse]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("name", GPU)
def test_every_kernel_has_the_oracle_s_bits(name: str, spread: float) -> None:
    """Small tiles, so that a row has several: ragged end, causal mask, descales, growing maxima."""
    kernel = any_size(name).with_(key_tiles=(KeyTile(64, 16, 16, 16),))
    if isinstance(kernel.exp2, PolynomialExp2):
        kernel = kernel.with_(exp2=kernel.exp2.with_(fragment=4, first_fragment=1, period=4, emulated=2))
        kernel = kernel.with_(schedule=FlashAttention4())
    rng = np.random.default_rng(int(spread))
    data = operands(rng, kernel, 3, 43, 8, spread)
    for causal in (False, True):
        if isinstance(kernel.exp2, PolynomialExp2):
            chosen = frozenset(j for j in range(16) if 4 <= j < 12 and j % 4 >= 2)
            got, want = both(kernel, *data, causal=causal, v_descale=1.5, emulated=chosen)
        else:
            got, want = both(kernel, *data, causal=causal, v_descale=1.5)
        assert got == want


@pytest.mark.parametrize("name", ["flash2", "fa3_bf16", "fa4_bf16"])
def test_subnormal_scores_and_values(name: str) -> None:
    """Subnormal scores and outputs are zero with ``--use_fast_math``: a scale of 2^125 makes scores visible."""
    kernel = lp.attentions[name].with_(key_tiles=(KeyTile(64, 16, 16, 16),))
    q, k, v = operands(np.random.default_rng(3), kernel, 3, 20, 8, 1.0)
    sizes = (2.0**-64, 2.0**-63, 2.0**-127)
    q, k, v = (lp.round_to(x * np.float32(size), "bfloat16") for x, size in zip((q, k, v), sizes, strict=True))
    got, want = both(kernel, q, k, v, scale=2.0**125)
    assert got == want
    wrong = both(kernel, q, k, v, scale=2.0**125, keeps_operands=True)[1]
    assert (got != wrong) == kernel.flush_subnormals


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", GPU)
def test_the_published_tiles_have_the_oracle_s_bits(name: str) -> None:
    """The tile of head size 32 as published, with one key more than a tile."""
    kernel = any_size(name)
    rng = np.random.default_rng(1)
    n = kernel.tile_of(Call(1, 400, 32, 3)).keys + 1
    q, k, v = operands(rng, kernel, 1, n, 32, 4.0)
    got, want = both(kernel, q, k, v[:, :3])
    assert got == want


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "tiles from the first": ("fa3_fp8", {"backwards": False}),
    "offset 7": ("fa3_fp8", {"offset": 7}),
    "no offset": ("fa3_fp8", {"offset": 0}),
    "scores rounded twice": ("fa3_bf16", {"fused_scores": False}),
    "shift rounded twice": ("fa3_fp8", {"fused_shift": False}),
    "threshold": ("fa4_bf16", {"threshold": 0.0}),
    "sum of rounded P": ("fa3_fp8", {"sums_rounded_p": True}),
    "no descale of V": ("fa3_fp8", {"drops_v_descale": True}),
    "order of the sum": ("fa3_bf16", {"sum_order": "packed"}),
    "fused rescaling": ("flash2", {"sum_order": "quad"}),
    "MUFU everywhere": ("fa4_bf16", {"emulated": frozenset()}),
    "tile": ("fa3_fp8", {"tile": 32}),
    "never promoted": ("vllm_fa3_fp8", {"promote_every": None}),
    "promoted every tile": ("fa3_fp8", {"promote_every": 1}),
    "P flushed": ("fa3_fp8", {"flushes_p": True}),
    "empty rows": ("flash2", {"empty_lse": -math.inf}),
    "log-sum-exp rounded twice": ("fa3_bf16", {"fused_lse": False}),
    "log-sum-exp in octaves rounded twice": ("fa4_bf16", {"fused_lse": False}),
    "P not scaled": ("flashinfer_fp8", {"p_scale": Fraction(1)}),
    "correctly rounded functions": ("fa3_fp8", {"functions": ROUNDED}),
    "log-sum-exp to base e": ("flashinfer_fp8", {"plain_lse": False}),
    "FlashAttention-4's shift rounded twice": ("fa4_fp8", {"fused_shift": False}),
}


@pytest.mark.sampled(1, default=8)
@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_have_other_bits(wrong: str) -> None:
    """Each wrong rule differs from the kernel; the first row of the causal case sees no key."""
    name, change = WRONG[wrong]
    kernel = any_size(name).with_(key_tiles=(KeyTile(64, *[128 if "fa4" in name else 16] * 3),))
    keys, spread = (40, 6.0) if "fa3" in name else (150, 2.0)
    rows = 32 if wrong == "fused rescaling" else 8  # one row in eight shows it
    q, k, v = operands(np.random.default_rng(5), kernel, rows, keys, 8, spread)
    if wrong == "empty rows":
        k, v = k[:7], v[:7]
    got, want = both(kernel, q, k, v, causal=wrong == "empty rows", v_descale=1.5, **change)
    assert got != want


def test_subnormal_scales_of_scores_are_zero_in_flashinfer() -> None:
    """The products of scales run on the GPU, with ``-use_fast_math``."""
    kernel = lp.attentions["flashinfer_fp8"]
    assert scale_of_scores(kernel, 2e-38, np.float32(0.5)) == 0
    assert scale_of_scores(kernel.with_(flush_subnormals=False), 2e-38, np.float32(0.5)) != 0


def test_rows_of_a_block_without_tiles_have_an_empty_log_sum_exp() -> None:
    """FlashInfer's store_zero writes -inf whatever the scale is."""
    q, k = np.ones((300, 64), np.float32), np.ones((20, 64), np.float32)
    found = lp.attention(q, k, k, kernel="flashinfer_fp8", causal=True, scale=-0.1)
    assert (found.lse[:192] == -np.inf).all()  # the first block; only the last 20 rows see a key
    assert not found.out[:192].any()
