"""Split keys, pages, softcaps and sinks: bits of the oracle in fractions, wrong rules, bad arguments."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from test_attention_oracle import GPU, functions_of, operands, oracle_of
from test_pairs import overflowing

import lowprec as lp
from lowprec.attn.forward import scale_of_scores
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.schedules import FlashAttention3
from lowprec.attn.sinks import OffsetSink
from lowprec.attn.splits import split_blocks
from lowprec.attn.tiles import Call, KeyTile
from lowprec.oracle.attention import forward as oracle
from lowprec.special.exp2 import PolynomialExp2, RoundedExp2
from lowprec.special.reciprocal import RoundedReciprocal

SPLIT = [name for name in GPU if lp.attentions[name].combine is not None]
QUERIES, TILE = 8, 16


def small(name: str) -> AttentionKernel:
    """Return a kernel with small tiles, whose 2**x is one function."""
    kernel = lp.attentions[name]
    exp2 = RoundedExp2() if isinstance(kernel.exp2, PolynomialExp2) else kernel.exp2
    return kernel.with_(key_tiles=(KeyTile(64, TILE, TILE, TILE, QUERIES),), exp2=exp2)


def combine_of(kernel: AttentionKernel) -> oracle.Combine:
    """Return the oracle's description of a kernel's combination, for head size 8."""
    c = kernel.combine
    assert c is not None
    return oracle.Combine(
        c.lanes[0][1], c.by_total, c.scaled, c.skips_zeros, c.empty_lse, kernel.flush_subnormals, functions_of(kernel)
    )


def tiles_of_row(i: int, m: int, n: int, group: int, member: int, causal: bool, splits: int) -> list[range]:
    """Return the tiles of each split: ceil(count / splits) tiles of those that a row of the tile of queries sees."""
    start = (i * group + member) // QUERIES * QUERIES
    tiles = -(-n // TILE)
    if causal:  # rows beyond the last query count, too
        tiles = max(0, min(tiles, max(-(-((start + r) // group + 1 + n - m) // TILE) for r in range(QUERIES))))
    each = -(-tiles // splits)
    return [range(min(s * each, tiles), min((s + 1) * each, tiles)) for s in range(splits)]


def both(
    kernel: AttentionKernel, data: list[Any], splits: int, *, causal: bool, sink: float | None = None, **wrong: Any
) -> tuple[Any, Any]:
    """Return the bits of outputs and log-sum-exps of two query heads of a group, by the kernel and by the oracle."""
    q, k, v = data
    m, n = len(q) // 2, len(k)
    q = q.reshape(2, m, -1)
    sinks, v_descale = None if sink is None else [sink, sink + 1], 1.5 if kernel.takes_descale else 1.0
    got = lp.attention(q, k[None], v[None], kernel=kernel, causal=causal, splits=splits, sinks=sinks,
                       out_format="float32", descale=(1, 1, v_descale))  # fmt: skip
    rule, combine = oracle_of(kernel, TILE), dataclasses.replace(combine_of(kernel), **wrong)
    rule = dataclasses.replace(
        rule, sink="offset" if isinstance(kernel.sink, OffsetSink) else "shifted", empty_lse=-math.inf
    )
    scale = Fraction(float(scale_of_scores(kernel, q.shape[-1] ** -0.5, np.float32(1))))
    nats = Fraction(float(np.float32(q.shape[-1] ** -0.5))) if getattr(kernel.lse, "from_scale", False) else None
    codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v)]
    want, lse, v_scale = [], [], Fraction(v_descale)
    for head in range(2):
        for i in range(m):
            high = min(n, max(0, i + n - m + 1)) if causal else n
            parts = []
            for number, tiles in enumerate(tiles_of_row(i, m, n, 2, head, causal, splits)):
                bounds = (tiles.start * TILE, min(high, tiles.stop * TILE))
                logit = None if sink is None or number else Fraction(sink + head)
                part = rule.row(
                    codes[0][head][i], codes[1], codes[2], scale, v_scale, *bounds, sink=logit, lse_scale=nats
                )
                parts.append(part)
            row, total = combine.row(parts)
            want.append(row)
            lse.append(total)
    bits = [x.view(np.uint32).reshape(2 * m, -1).tolist() for x in (got.out, got.lse[..., None])]
    return bits, [want, [[x] for x in lse]]


@pytest.mark.slow
@pytest.mark.sampled(1, default=3)
@pytest.mark.parametrize("name", SPLIT)
def test_split_keys_have_the_oracle_s_bits(name: str) -> None:
    """Two query heads share the keys and the tiles of queries; empty splits, rows without keys."""
    kernel = small(name)
    for seed, (m, n, splits, causal) in enumerate(
        [(4, 75, 2, False), (5, 75, 3, True), (6, 4, 2, True), (3, 90, 9, False)]
    ):
        data = operands(np.random.default_rng(seed), kernel, 2 * m, n, 8, 2.0)
        got, want = both(kernel, data, splits, causal=causal)
        assert got == want
        if kernel.sink is not None:
            got, want = both(kernel, data, splits, causal=causal, sink=0.75)
            assert got == want


def test_a_split_with_an_infinite_sum_is_not_empty() -> None:
    """FlashAttention-2 gives the log-sum-exp inf to no keys in one split, -inf to a split without keys."""
    (q,), (k,), (v,) = ([x.reshape(-1, x.shape[-1])] for x in overflowing(64))
    (out, lse), (_, expected) = both(small("flash2_splitkv"), [q, k, v], 2, causal=False)
    assert lse == expected == [[0x7F800000]] * 2
    assert np.isnan(np.array(out, np.uint32).view(np.float32)).all()


@pytest.mark.sampled(1, default=2)
@pytest.mark.slow
@pytest.mark.parametrize("wrong", [
    {"lanes": 4}, {"by_total": True}, {"scaled": True}, {"skips_zeros": False}, {"empty_lse": 1.0},
])  # fmt: skip
def test_wrong_combinations_have_other_bits(wrong: dict[str, Any]) -> None:
    """Nine splits; a NaN in the keys of one of them; for the last, rows without a key."""
    name = "flash2_splitkv" if "empty_lse" in wrong else "fa3_bf16"
    kernel = small(name)
    data = operands(np.random.default_rng(1), kernel, 16, 3 if "empty_lse" in wrong else 140, 8, 0.25)
    if "skips_zeros" in wrong:
        data[1][5, 0] = np.nan
    got, want = both(kernel, data, 9, causal="empty_lse" in wrong)
    assert got == want
    assert got != both(kernel, data, 9, causal="empty_lse" in wrong, **wrong)[1]


def test_tiles_of_windows() -> None:
    """Tiles of 4 keys, blocks of 2 queries: queries 2 and 3 of 4 see the keys 4 to 9 of 10 with a window of (4, 0)."""
    blocks = FlashAttention3().blocks(Call(4, 10, 8, 8, left=4, right=0), KeyTile(8, 4, 4, 4, 2), 0)
    assert [[x.start for x in block.visits] for block in blocks] == [[4, 0], [8, 4]]
    halves = [split_blocks(blocks, 4, split, 2, None) for split in range(2)]
    assert [[[x.start for x in block.visits] for block in half] for half in halves] == [[[0], [4]], [[4], [8]]]
    shares = [split_blocks(blocks, 4, split, 2, 3) for split in range(2)]
    assert [[[x.start for x in block.visits] for block in share] for share in shares] == [[[4, 0], [4]], [[], [8]]]


@pytest.mark.parametrize("name", ["flash2", "fa3_bf16", "fa3_fp8"])
def test_softcaps_have_the_oracle_s_bits(name: str) -> None:
    kernel = lp.attentions[name].with_(key_tiles=(KeyTile(64, 16, 16, 16),))
    q, k, v = operands(np.random.default_rng(0), kernel, 3, 40, 8, 8.0)
    for cap in (1.0, 30.0):
        descale = 0.75 if kernel.takes_descale else 1.0
        factor = np.float32(np.float32(8**-0.5) / np.float32(cap)) * np.float32(descale)
        got = lp.attention(q, k, v, kernel=kernel, softcap=cap, descale=(descale, 1, 1), out_format="float32")
        codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v)]
        scale = Fraction(float(np.float32(np.float32(cap) * math.log2(math.e))))
        for i in range(3):
            out, lse = oracle_of(kernel, 16).row(
                codes[0][i], codes[1], codes[2], scale, cap=Fraction(float(factor)),
                lse_scale=Fraction(cap) if getattr(kernel.lse, "from_scale", False) else None,
            )  # fmt: skip
            assert got.out[i].view(np.uint32).tolist() == out
            assert got.lse[i].view(np.uint32) == lse


@pytest.mark.parametrize("name", ["flash2", "fa3_bf16"])
def test_subnormal_scores_below_a_softcap_are_zero(name: str) -> None:
    kernel = lp.attentions[name].with_(key_tiles=(KeyTile(64, 16, 16, 16),))
    q, k, v = operands(np.random.default_rng(0), kernel, 1, 20, 8, 1.0)
    q, k = (lp.round_to(x * 2.0**-65, "bfloat16") for x in (q, k))
    got = lp.attention(q, k, v, kernel=kernel, softcap=1.0, scale=2.0**126, out_format="float32")
    codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v)]
    scale, cap = Fraction(float(np.float32(math.log2(math.e)))), Fraction(2) ** 126
    want, wrong = (
        dataclasses.replace(oracle_of(kernel, 16), keeps_operands=keeps).row(
            codes[0][0], codes[1], codes[2], scale, cap=cap
        )
        for keeps in (False, True)
    )
    assert got.out[0].view(np.uint32).tolist() == want[0] != wrong[0]


@pytest.mark.parametrize("name", ["vllm_fa3_fp8", "fa4_bf16", "fa4_fp8"])
def test_sinks_have_the_oracle_s_bits(name: str) -> None:
    """Also of a row without keys, whose softmax is that of the sink."""
    kernel = small(name)
    data = operands(np.random.default_rng(1), kernel, 6, 2, 8, 2.0)
    rule = oracle_of(kernel, TILE)
    rule = dataclasses.replace(rule, sink="offset" if isinstance(kernel.sink, OffsetSink) else "shifted")
    codes = [lp.encode(x, kernel.operands).tolist() for x in data]
    scale = Fraction(float(scale_of_scores(kernel, 8**-0.5, np.float32(1))))
    for sink in (-1.5, 20.0):
        got = lp.attention(*data, kernel=kernel, causal=True, sinks=[sink], out_format="float32")
        for i in range(6):
            high = max(0, i - 3)
            out, lse = rule.row(codes[0][i], codes[1], codes[2], scale, high=high, sink=Fraction(sink))
            assert got.out[i].view(np.uint32).tolist() == out
            assert got.lse[i].view(np.uint32) == lse
        assert got.lse[0] == pytest.approx(sink, rel=1e-6)


@pytest.mark.parametrize("name", ["vllm_fa3_fp8", "fa4_bf16"])
def test_a_subnormal_reciprocal_is_zero(name: str) -> None:
    """A sink of 2^126.5: ``rcp.approx.ftz`` and ``div.full.ftz`` return zero, before the scale of V multiplies it."""
    kernel = small(name)
    _, k, v = operands(np.random.default_rng(1), kernel, 1, 2, 8, 1.0)
    q, scale = np.zeros((1, 8), np.float32), 448.0 if kernel.takes_descale else 1.0
    v, sink = (
        v if kernel.takes_descale else lp.round_to(v * 2.0**100, "bfloat16"),
        (126.5 - kernel.p_offset) / math.log2(math.e),
    )
    options: dict[str, Any] = {"sinks": [sink], "descale": (1, 1, scale), "out_format": "float32"}
    got = lp.attention(q, k, v, kernel=kernel, **options)
    codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v)]
    rule = dataclasses.replace(
        oracle_of(kernel, TILE), sink="offset" if isinstance(kernel.sink, OffsetSink) else "shifted"
    )
    factor = Fraction(float(scale_of_scores(kernel, 8**-0.5, np.float32(1))))
    logit = Fraction(float(np.float32(sink)))
    out, _ = rule.row(codes[0][0], codes[1], codes[2], factor, Fraction(scale), sink=logit)
    assert got.out[0].view(np.uint32).tolist() == out
    assert not got.out.any()
    assert lp.attention(q, k, v, kernel=kernel.with_(reciprocal=RoundedReciprocal(flush=False)), **options).out.any()


def test_sinks_may_be_undecided() -> None:
    kernel = lp.attentions["fa4_bf16"]
    data = operands(np.random.default_rng(1), kernel, 6, 40, 8, 2.0)
    got = lp.attention(*data, kernel=kernel, sinks=[1.0], undecided=True)
    assert got.undecided is not None
    assert got.undecided.mean() < 0.1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flash2", {"splits": 2}, "splits must be 1 for flash2, got 2"),
        ("fa3_fp8", {"splits": 0}, "splits"),
        ("fa3_fp8", {"sinks": [1.0]}, "sinks must be None for fa3_fp8"),
        ("fa4_fp8", {"sinks": [1.0, 2.0]}, r"sinks must be of shape \(1,\), got \(2,\)"),
        ("fa4_fp8", {"softcap": 3.0}, "softcap must be None for fa4_fp8"),
        ("fa3_fp8", {"softcap": -1.0}, "softcap"),
        ("flash2", {"softcap": 3.0, "undecided": True}, "undecided must be False"),
        ("flash2_splitkv", {"splits": 3, "undecided": True}, "undecided must be False"),
        ("fa3_fp8", {"page_size": 0}, "page_size"),
        ("fa4_bf16", {"page_size": 64, "d": 24}, "head_dim must be a multiple of 16 for such pages, got 24"),
        ("flash2", {"page_size": 256}, "page_size must be None for flash2, got 256"),
        ("flash2_splitkv", {"page_size": 16}, "page_size must be a multiple of 256 for flash2_splitkv, got 16"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    x = np.zeros((4, options.pop("d", 32)), np.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        lp.attention(x, x, x, kernel=name, **options)


def test_one_split_is_not_combined_and_tiles_with_softcap_are_their_own() -> None:
    kernel = lp.attentions["fa3_fp8"]
    x = np.zeros((4, 32), np.float32)
    assert lp.attention(x, x, x, splits=1) == lp.attention(x, x, x)
    for capped, keys in ((False, 224), (True, 192)):
        call = Call(9, 99, 128, 128, left=5, right=5, softcap=capped)
        assert kernel.tile_of(call).keys_of(call) == keys


@pytest.mark.parametrize(("name", "d", "page", "queries", "group", "mask", "keys"), [
    ("fa3_bf16", 128, 0, 1, 1, -1, 176), ("fa3_bf16", 128, 16, 129, 1, -1, 128), ("fa3_bf16", 96, 16, 1, 1, -1, 128),
    ("fa3_bf16", 128, 176, 129, 1, -1, 176), ("fa3_bf16", 128, 352, 1, 8, -1, 128),
    ("fa3_bf16", 128, 352, 17, 8, -1, 176),
    ("fa3_fp8", 128, 16, 1, 1, -1, 160), ("fa3_fp8", 128, 448, 129, 1, -1, 224), ("fa3_fp8", 192, 16, 99, 1, 5, 128),
    ("vllm_fa3_fp8", 128, 16, 99, 1, -1, 192), ("flash2_splitkv", 128, 256, 1, 1, -1, 64),
])  # fmt: skip
def test_tiles_with_pages(name: str, d: int, page: int, queries: int, group: int, mask: int, keys: int) -> None:
    """hopper/flash_api.cpp: get_pagedkv_tma, tile_size.h; FlashAttention-2's split kernel with one split."""
    kernel = lp.attentions[name]
    call = Call(queries, 1000, d, d, group, left=mask, right=mask, page_size=page)
    call = kernel.schedule.paged(call, kernel.key_tiles)
    assert kernel.tile_of(call).keys_of(call) == keys


def test_pages_and_splits_decide_blocks_and_pairs_of_ctas() -> None:
    """FlashAttention-3 then packs the heads of a group; FlashAttention-4 has no pairs, and other emulated columns."""
    hopper, fork, blackwell = (lp.attentions[name] for name in ("fa3_fp8", "vllm_fa3_fp8", "fa4_bf16"))
    for change in ({}, {"page_size": 16}, {"splits": 2}):
        call = Call(256, 512, 128, 128, 2)._replace(**change)
        assert hopper.schedule.packs(hopper.schedule.paged(call, hopper.key_tiles), 128) == bool(change)
        assert fork.schedule.packs(fork.schedule.paged(call, fork.key_tiles), 128)
    data = [operands(np.random.default_rng(0), blackwell, rows, 256, 128, 1.0)[0] for rows in (257, 128, 128)]
    lse = {size: lp.attention(*data, kernel=blackwell, page_size=size).lse for size in (None, 128, 64)}
    assert (lse[None] == lse[128]).all()
    assert (lse[None] != lse[64]).any()


def test_a_page_of_another_tile_has_the_oracle_s_bits() -> None:
    """A page of 16 keys: Hopper's tile of BF16 has 128 keys at D = 64, and 192 without pages."""
    kernel = lp.attentions["fa3_bf16"]
    q, k, v = operands(np.random.default_rng(0), kernel, 1, 200, 64, 2.0)
    paged, plain = (lp.attention(q, k, v[:, :3], kernel=kernel, page_size=n, out_format="float32") for n in (16, None))
    codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v[:, :3])]
    scale = Fraction(float(scale_of_scores(kernel, 64**-0.5, np.float32(1))))
    found = {tile: oracle_of(kernel, tile).row(codes[0][0], codes[1], codes[2], scale) for tile in (128, 192)}
    for tile, got in ((128, paged), (192, plain)):
        assert (got.out[0].view(np.uint32).tolist(), int(got.lse[0].view(np.uint32))) == found[tile]
    assert found[128] != found[192]
