"""FlashMLA's decoding: bits of the oracle in fractions, which has the source's loops; wrong rules must differ."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.forward import scale_of_scores
from lowprec.attn.paired import FlashMla
from lowprec.attn.tiles import KeyTile
from lowprec.oracle import ACCUMULATORS, fields
from lowprec.oracle.attention.pairs import PairedAttention, SparseAttention, combined
from lowprec.oracle.mufu import HOPPER
from lowprec.special.exp2 import RoundedExp2

TILE, ROWS = 16, 4
KERNEL = lp.attentions["flashmla_dense"].with_(
    key_tiles=[KeyTile(d, TILE, TILE, TILE, ROWS, value_dim=8) for d in (16, 48, 64)],
    schedule=FlashMla(rotation=32, half=4),
)
RULE = PairedAttention(ACCUMULATORS["hopper_bf16"], fields(KERNEL.operands), TILE, 32, 4, functions=HOPPER)


def operands(seed: int, m: int, n: int, d: int, spread: float) -> list[Any]:
    """Return queries of two heads, keys and values, whose maximum grows over the tiles."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, m, d), (1, n, d), (1, n, 8)))
    q = q * spread
    k[0, n // 2 :] *= 2
    v[..., 0] += 1
    return [lp.round_to(x, "bfloat16") for x in (q, k, v)]


def both(data: list[Any], *, causal: bool = False, splits: int = 1, scale: float | None = None, **wrong: Any) -> Any:
    """Return the bits of outputs and log-sum-exps by the kernel and by the oracle."""
    (_, m, d), n = data[0].shape, data[1].shape[1]
    got = lp.attention(*data, kernel=KERNEL, causal=causal, splits=splits, scale=scale, out_format="float32")
    rule = dataclasses.replace(RULE, **wrong)
    factor = Fraction(float(scale_of_scores(KERNEL, d**-0.5 if scale is None else scale, np.float32(1))))
    codes = [lp.encode(x, "bfloat16").tolist() for x in data]
    all_tiles = -(-n // TILE)
    each = -(-all_tiles // splits)
    out, lse = [], []
    for head in range(2):
        for i in range(m):
            border, last = (n - (m - i - 1) if causal and m > 1 else n), (2 * i + head) // ROWS * ROWS + ROWS - 1
            hidden = m - last // 2 - 1 if causal and last < 2 * m else 0  # rows of the block after the last query: none
            stop = -(-(n - hidden) // TILE)
            parts = [
                rule.row(
                    codes[0][head][i], codes[1][0], codes[2][0], factor, range(s * each, min((s + 1) * each, stop)),
                    border, splits > 1,
                ) for s in range(splits)
            ]  # fmt: skip
            row, total = parts[0] if splits == 1 else combined(parts, functions=HOPPER)
            out.append(row)
            lse.append(total)
    bits = got.out.view(np.uint32).reshape(2 * m, -1).tolist(), got.lse.view(np.uint32).ravel().tolist()
    return bits, (out, lse)


@pytest.mark.parametrize(("m", "n", "d", "causal", "splits"), [
    (3, 43, 64, True, 1), (1, 64, 16, False, 1), (1, 37, 64, False, 3), (5, 3, 16, True, 2), (1, 1, 16, True, 1),
])  # fmt: skip
def test_pairs_of_tiles_have_the_oracle_s_bits(m: int, n: int, d: int, causal: bool, splits: int) -> None:
    """Even and odd numbers of tiles, ragged ends, groups of two heads in blocks of four rows, rows without keys."""
    got, want = both(operands(m + n, m, n, d, 2.0), causal=causal, splits=splits)
    assert got == want


def test_nan_infinity_and_scales_near_the_masks_have_the_oracle_s_bits() -> None:
    """NaN marks its rows; at a scale of 1e-4, a hidden key's -1e33 exceeds the first maximum of -1e30."""
    data = operands(3, 2, 40, 64, 2.0)
    data[1][0, 17, 0], data[1][0, 35, 1], data[0][0, 0, 0] = np.inf, np.nan, 0
    got, want = both(data)
    assert [[x & 0x7FFFFFFF > 0x7F800000 for x in row] for row in got[0]] == [
        [x & 0x7FFFFFFF > 0x7F800000 for x in row] for row in want[0]
    ]
    assert got[1] == want[1]
    got, want = both(operands(3, 3, 2, 16, 2.0), causal=True, scale=1e-4)
    assert got == want


def overflowing(keys: int) -> list[Any]:
    """Return one query of two heads, and keys whose second half has P = inf: a score exceeds its rounded maximum."""
    q, k, v = np.zeros((2, 1, 16)), np.zeros((1, keys, 16)), np.ones((1, keys, 8))
    q[..., :2] = 2.0**20, 2.0**18
    k[0, : keys // 2, 0] = 1
    k[0, keys // 2 :, :2] = 2.0**20, 2.0**19
    return [q, k, v]


def test_a_split_with_an_infinite_sum_is_not_empty() -> None:
    """combine.cu: exp2f(inf - inf) is NaN, which the comparison of the sum with 0 leaves alone."""
    got, want = both(overflowing(32), splits=2)
    for bits, expected in zip(got, want, strict=True):
        numbers = [np.array(x, np.uint32).view(np.float32) for x in (bits, expected)]
        assert np.isnan(numbers[0]).all()
        assert np.isnan(numbers[1]).all()


WRONG = {
    "tile": 32, "rotation": 0, "half": 5, "rounds_before_scaling": True, "own_tile_last": True, "two_factors": True,
    "by_key": True, "far_first": True, "one_sum": True, "scaled_growth": True,
}  # fmt: skip


@pytest.mark.sampled(1, default=3)
@pytest.mark.ci
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_have_other_bits(wrong: str) -> None:
    """Two pairs of tiles and a single one; each wrong rule shows in one of sixteen rows."""
    data = operands(1, 8, 75, 48, 1.0)
    got, _ = both(data)
    tile = {"tile": 8} if wrong == "tile" else {wrong: WRONG[wrong]}
    rule = dataclasses.replace(RULE, **tile)
    q, k, v = (lp.encode(x, "bfloat16").tolist() for x in data)
    scale = Fraction(float(scale_of_scores(KERNEL, 48**-0.5, np.float32(1))))
    rows = [
        rule.row(q[h][i], k[0], v[0], scale, range(-(-75 // rule.tile)), 75, False) for h in (0, 1) for i in range(8)
    ]
    assert got != ([row for row, _ in rows], [total for _, total in rows])


def test_what_the_library_refuses() -> None:
    q, k, v = operands(0, 2, 20, 16, 1.0)
    with pytest.raises(ValueError, match=r"window must be None for FlashMLA, got \(4, 0\)"):
        lp.attention(q, k, v, kernel=KERNEL, window=(4, 0))
    with pytest.raises(ValueError, match="page_size must be 64 for FlashMLA, got 128"):
        lp.attention(q, k, v, kernel=KERNEL, page_size=128)
    with pytest.raises(ValueError, match=r"undecided must be False for .* computes tiles in pairs"):
        lp.attention(q, k, v, kernel=KERNEL.with_(exp2=RoundedExp2()), undecided=True)
    for d, dv in ((64, 64), (576, 513)):
        x, y = np.zeros((1, d), np.float32), np.zeros((1, dv), np.float32)
        with pytest.raises(ValueError, match=f"sizes must be D = 576, Dv = 512 for .*, got D = {d}, Dv = {dv}"):
            lp.attention(x, x, y, kernel="flashmla_dense")


@pytest.mark.parametrize(("field", "only", "value"), [
    ("promote_every", None, 1), ("last_tile_first", False, True), ("fused_shift", True, False),
    ("empty_scale", 1.0, 0.0), ("propagates_nan", False, True),
])  # fmt: skip
def test_fields_that_pairs_of_tiles_do_not_have(field: str, only: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be {only} with tiles in pairs, got {value}"):
        KERNEL.with_(**{field: value})


def test_log_sum_exps_of_other_kernels_are_refused() -> None:
    for name, other, kind, cause in (
        ("flashmla_dense", "flash2", "TermwiseLogSumExp", "tiles in pairs"),
        ("sage2", "flash2", "OctavesLogSumExp", "scales of threads"),
        ("sdpa_math", "fa4_bf16", "NatsLogSumExp", "an exp2 of base e"),
    ):
        with pytest.raises(ValueError, match=f"lse must be a {kind} with {cause}, got"):
            lp.attentions[name].with_(lse=lp.attentions[other].lse)
    with pytest.raises(ValueError, match=r"lse must not be a TermwiseLogSumExp with FlashAttention2.*, got"):
        lp.attentions["flash2"].with_(lse=KERNEL.lse)
    with pytest.raises(TypeError, match="lse must be an object of LogSumExp, got 'nats'"):
        KERNEL.with_(lse="nats")


SPARSE = lp.attentions["flashmla_fp8"].with_(key_tiles=[KeyTile(16, TILE, TILE, TILE, 64, value_dim=8)])


def both_sparse(
    data: list[Any], *, splits: int = 1, sink: float | None = None, scale: float | None = None, **wrong: Any
) -> Any:
    """Return the bits of outputs and log-sum-exps of both heads, by the kernel and by the oracle."""
    (_, m, d), n = data[0].shape, data[1].shape[1]
    seen = np.arange(m * n).reshape(m, n) % 7 != 3
    seen[0], seen[1] = False, True
    got = lp.attention(
        *data, kernel=SPARSE, splits=splits, scale=scale, mask=seen, sinks=None if sink is None else [sink] * 2,
        out_format="float32",
    )  # fmt: skip
    rule = SparseAttention(ACCUMULATORS["hopper_bf16"], fields(SPARSE.operands), TILE, functions=HOPPER)
    rule = dataclasses.replace(rule, **wrong)
    factor = Fraction(float(scale_of_scores(SPARSE, d**-0.5 if scale is None else scale, np.float32(1))))
    codes, logit = [lp.encode(x, "bfloat16").tolist() for x in data], None if sink is None else Fraction(sink)
    tiles = -(-n // TILE)
    each, rows = -(-tiles // splits), []
    for head in range(2):
        for i in range(m):
            parts = [
                rule.row(
                    codes[0][head][i], codes[1][0], codes[2][0], factor,
                    range(s * each, min((s + 1) * each, tiles)), seen[i], splits > 1, logit,
                ) for s in range(splits)
            ]  # fmt: skip
            rows.append(parts[0] if splits == 1 else combined(parts, functions=HOPPER))
    bits = np.concatenate([got.out.reshape(2 * m, -1), got.lse.reshape(-1, 1)], 1).view(np.uint32)
    wanted = np.array([[*row, lse] for row, lse in rows], np.uint32)
    return [np.where(x & 0x7FFFFFFF > 0x7F800000, 0x7FFFFFFF, x).tolist() for x in (bits, wanted)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "options"), [
    (61, {}), (61, {"splits": 3}), (61, {"sink": 1.5}), (64, {"scale": -0.3}), (61, {"scale": 0.0}),
])  # fmt: skip
def test_sparse_rows_have_the_oracle_s_bits(n: int, options: dict[str, Any]) -> None:
    """Ragged ends, invalid indices, also of a NaN, and a row without any valid one."""
    data = operands(8, 4, n, 16, 3.0)
    data[2][0, 3, 1] = np.nan
    got, want = both_sparse(data, **options)
    assert got == want


@pytest.mark.sampled(0, default=2)
@pytest.mark.parametrize("wrong", ["by_pair", "from_old", "far_first", "sink_in_lse", "scaled_growth"])
def test_wrong_rules_of_sparse_rows_have_other_bits(wrong: str) -> None:
    got, want = both_sparse(operands(9, 6, 90, 16, 1.0), sink=0.5, **{wrong: True})
    assert got != want


def test_sparse_calls_that_the_library_does_not_have() -> None:
    x, y = np.zeros((2, 16), np.float32), np.zeros((2, 8), np.float32)
    for options, message in (
        ({"causal": True}, "causal must be False for FlashMLA's sparse decoding, got True"),
        ({"window": (3, -1)}, r"window must be None for FlashMLA's sparse decoding, got \(3, -1\)"),
        ({"sinks": [0.0], "splits": 2}, "splits must be 1 with sinks for .*, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            lp.attention(x, x, y, kernel=SPARSE, **options)


@pytest.mark.parametrize(("field", "only", "value"), [
    ("last_tile_first", False, True), ("rescale_threshold", 0.0, 8.0), ("p_offset", 0, 8), ("adds_mask", False, True),
])  # fmt: skip
def test_fields_that_scaled_maxima_do_not_have(field: str, only: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be {only} with scaled maxima, got {value}"):
        SPARSE.with_(**{field: value})


def test_splits_take_log_sum_exps_as_they_are_returned() -> None:
    for kernel, change in ((SPARSE, {"combine": lp.attentions["fa3_bf16"].combine}),
                           (lp.attentions["fa3_bf16"], {"lse": lp.attentions["flashinfer_fp8"].lse})):  # fmt: skip
        with pytest.raises(ValueError, match="combine must be None or take log-sum-exps as of"):
            kernel.with_(**change)
