"""Tiles that blocks of queries load, and checks for rows without a maximum, against the loops of the sources."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from test_attention_oracle import AnySize, oracle_of

import lowprec as lp
from lowprec.attn.backward import Backward
from lowprec.attn.forward import scale_of_scores
from lowprec.attn.kernel import AttentionKernel, GradientTile
from lowprec.attn.schedules import FlashAttention3, FlashAttention4, FlashInfer
from lowprec.attn.splits import split_blocks
from lowprec.attn.tiles import Call, KeyTile
from lowprec.oracle.attention.tiles import Tiles
from lowprec.special.exp2 import PolynomialExp2, RoundedExp2

ROWS, KEYS = 8, 16
LIBRARIES = {"flash2": "flash2", "fa3_bf16": "fa3", "vllm_fa3_fp8": "vllm", "fa4_bf16": "fa4",
             "flashinfer_fp8": "flashinfer"}  # fmt: skip
# Queries, keys, head size, query heads per key head; mask.
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 33, 8, 1), {"causal": True}), ((9, 40, 8, 2), {"left": 9, "right": 2}), ((16, 48, 32, 1), {"causal": True}),
    ((10, 64, 8, 1), {"left": 5, "causal": True}), ((10, 35, 8, 1), {"left": -1, "right": 3}),
    ((5, 30, 8, 1), {"left": 30}), ((18, 20, 8, 1), {"causal": True}), ((16, 32, 40, 1), {"causal": True}),
    ((3, 20, 8, 1), {}), ((13, 7, 8, 3), {"causal": True}), ((16, 40, 8, 2), {"left": 20, "right": 2}),
]  # fmt: skip


WINDOWS = [(False, 4, 2), (False, 0, -1), (False, -1, 3), (False, -1, 0), (False, 50, 0), (False, 7, 60)]


def small(name: str) -> AttentionKernel:
    """Return a kernel with small tiles, whose 2**x is one function."""
    kernel = lp.attentions[name].with_(key_tiles=(KeyTile(64, KEYS, KEYS, KEYS, ROWS),))
    schedule = FlashAttention4() if name == "fa4_bf16" else kernel.schedule
    if isinstance(schedule, FlashAttention3):
        schedule = schedule.with_(small_tiles=())
    if isinstance(schedule, FlashInfer):
        schedule = AnySize(())
    exp2 = RoundedExp2() if isinstance(kernel.exp2, PolynomialExp2) else kernel.exp2
    return kernel.with_(exp2=exp2, schedule=schedule)


def operands(seed: int, kernel: AttentionKernel, m: int, n: int, d: int, group: int) -> list[Any]:
    """Return Q, K and V; NaN in the first and the last value, and in a key, or one row whose scores are -inf."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((group, m, d), (n, d), (n, 3)))
    q, k, v = (lp.round_to(x, kernel.operands) for x in (q, k, v))
    v[-1, 0] = v[0, 1] = np.nan
    if kernel.operands.name == "bfloat16":
        k[:, 0] = -1
        q[0, -1, 0] = np.inf
    else:
        k[rng.integers(n), 0] = np.nan
    return [q, k, v]


def both(name: str, case: int, **wrong: Any) -> tuple[Any, Any]:
    """Return the bits of outputs and log-sum-exps of all query heads, by the kernel and by the oracle."""
    kernel, ((m, n, d, group), mask) = small(name), CASES[case]
    mask = mask | {"right": -1} if isinstance(kernel.schedule, FlashInfer) else mask
    q, k, v = operands(case, kernel, m, n, d, group)
    window = (mask.get("left", -1), mask.get("right", -1))
    causal = mask.get("causal", False)
    got = lp.attention(q, k[None], v[None], kernel=kernel, causal=causal, window=window, out_format="float32")
    rule = dataclasses.replace(oracle_of(kernel, KEYS), guards_shift=LIBRARIES[name] == "flash2")
    tiles = dataclasses.replace(Tiles(LIBRARIES[name], ROWS, KEYS, m, n, d, group, **mask), **wrong)  # type: ignore[arg-type]
    scale = Fraction(float(scale_of_scores(kernel, d**-0.5, np.float32(1))))
    nats = Fraction(float(np.float32(d**-0.5))) if getattr(kernel.lse, "from_scale", False) else None
    codes = [lp.encode(x, kernel.operands).tolist() for x in (q, k, v)]
    want = [
        rule.row(codes[0][h][i], codes[1], codes[2], scale, Fraction(1), *tiles.seen(i), lse_scale=nats,
                 visits=tiles.row(i, h))
        for h in range(group) for i in range(m)
    ]  # fmt: skip
    bits = np.concatenate([got.out.reshape(-1, 3), got.lse.reshape(-1, 1)], 1)
    return canonical(bits.view(np.uint32)), canonical(np.array([[*row, lse] for row, lse in want], np.uint32))


def canonical(bits: Any) -> Any:
    """Return bits as a list, all NaN as one."""
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint32(0x7FC00000), bits).tolist()


@pytest.mark.sampled(3, default=20)
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_blocks_of_rows_have_the_oracle_s_bits(name: str, case: int) -> None:
    got, want = both(name, case)
    assert got == want


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("wrong", "name", "case"), [
    ("guards_all", "flash2", 8), ("guards_all", "fa3_bf16", 8), ("one_block", "flash2", 6),
    ("one_block", "fa4_bf16", 6),
    ("as_given", "fa3_bf16", 5), ("as_given", "flash2", 5), ("aligned", "vllm_fa3_fp8", 3),
    ("even_by_length", "flash2", 7), ("packs_by_rows", "vllm_fa3_fp8", 10),
])  # fmt: skip
def test_wrong_blocks_have_other_bits(wrong: str, name: str, case: int) -> None:
    got, want = both(name, case, **{wrong: True})
    assert got != want


@pytest.mark.parametrize(("name", "has_other_tiles"), [("flash2", True), ("fa3_bf16", False)])
def test_tiles_of_gradients_are_those_of_the_sources_loops(name: str, has_other_tiles: bool) -> None:
    """Which tiles of queries a tile of keys computes, and in which order tiles of keys add to dQ."""
    kernel, other_tiles, other_orders = lp.attentions[name], 0, 0
    for m, n in ((1, 40), (9, 40), (40, 9), (23, 23), (33, 7)):
        for causal, left, right in [(False, -1, -1), (True, -1, -1), (True, 3, -1), *WINDOWS]:
            wanted = Tiles(LIBRARIES[name], ROWS, KEYS, m, n, 8, 1, causal, left, right)  # type: ignore[arg-type]
            call = kernel.schedule.differentiated(Call(m, n, 8, 8, 1, causal, left, 0 if causal else right))
            run = Backward(kernel, GradientTile(64, ROWS, KEYS, 8), call, 1.0, 1)
            tiles = range(-(-n // KEYS))
            found = {tile: [start // ROWS for start in run.query_starts(tile)] for tile in run.key_tiles(len(tiles))}
            assert found == {tile: wanted.query_tiles(tile) for tile in tiles}
            given = dataclasses.replace(wanted, as_given=True)
            other_tiles += any(found[tile] != given.query_tiles(tile) for tile in tiles)
            for block in range(-(-m // ROWS)):
                order = [tile for tile in found if block in found[tile]]
                assert order == wanted.key_tiles(block)
                other_orders += order != given.key_tiles(block)
    # A mask that is not normalized has another order, and in FlashAttention-2 other tiles.
    assert (other_tiles > 0) == has_other_tiles
    assert other_orders > 0


def test_checks_of_splits_are_those_of_the_oracle_s_loops() -> None:
    """FlashAttention-2 checks the first tiles of every split: one tile of queries, and one more if sizes are ragged."""
    schedule = lp.attentions["flash2_splitkv"].schedule
    for n, d in ((96, 32), (96, 40), (90, 32)):
        call = schedule.normalized(Call(ROWS * 2, n, d, d, causal=True))
        blocks = schedule.blocks(call, KeyTile(64, KEYS, KEYS, KEYS, ROWS), 0)
        for split in range(2):
            tiles = Tiles("flash2", ROWS, KEYS, ROWS * 2, n, d, causal=True, splits=2, split=split)
            for block in split_blocks(blocks, KEYS, split, 2, -(-n // KEYS)):
                assert [(x.start, x.is_guarded) for x in block.visits] == tiles.row(block.first)
