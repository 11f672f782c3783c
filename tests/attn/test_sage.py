"""SageAttention: bits of the oracle in fractions, which has the source's threads; wrong rules must differ."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.attention import softmax_attention
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.masks import masked_attention
from lowprec.attn.operands import quantize_operands
from lowprec.attn.scales import ThreadScales, WarpScales
from lowprec.attn.tiles import KeyTile
from lowprec.oracle import ACCUMULATORS
from lowprec.oracle.attention import sage

NAMES = ("sage2", "sage2pp")
BEYOND = 3e7
SMALL = {"key_tiles": (KeyTile(128, 16, 16, 16, 16),), "scales": ThreadScales(448.0, 16, 8, 16)}


def v_max(name: str) -> float:
    """Return the largest magnitude of a channel of V."""
    scales = lp.attentions[name].scales
    assert isinstance(scales, ThreadScales)
    return scales.v_max


def operands(seed: int, m: int, n: int, d: int, largest: float = 448.0) -> list[Any]:
    """Return integers of Q and K, values in E4M3, and the scales of threads and channels, of blocks of 16."""
    rng = np.random.default_rng(seed)
    q, k = (rng.integers(-127, 128, (rows, d)).astype(np.float32) for rows in (m, n))
    k[n // 2 :] = np.minimum(k[n // 2 :] + 40, 127)  # maxima grow
    v = lp.round_to(rng.standard_normal((n, d)) * largest / 4, "e4m3fn").clip(-largest, largest)
    sizes = (-(-m // 16) * 16, -(-n // 16) * 4, d)
    q_scale, k_scale, v_scale = (np.float32(rng.uniform(0.5, 2, size) * 0.02) for size in sizes)
    return [q, k, v, (q_scale[None, None], k_scale[None, None], v_scale[None, None])]


def both(
    name: str, data: list[Any], *, causal: bool = False, scale: float | None = None, first: int = 0, **wrong: Any
) -> list[Any]:
    """Return the bits of outputs and log-sum-exps of rows from `first` on, by the kernel and by the oracle."""
    kernel = lp.attentions[name].with_(**SMALL)
    q, k, v, descale = data
    if scale == BEYOND:  # all maxima stay at -5e6
        q, k = np.abs(q).clip(1), -np.abs(k).clip(1)
    options = {"kernel": kernel, "causal": causal, "scale": scale, "out_format": "float32"}
    got = lp.attention(q[None, None], k[None, None], v[None, None], descale=descale, **options)
    rule = dataclasses.replace(sage.SageAttention(ACCUMULATORS[kernel.values.name], 16, 8, 16), **wrong)
    scales = [[Fraction(float(x)) for x in part[0, 0]] for part in descale]
    codes, numbers = lp.encode(v, "e4m3fn").tolist(), [x.astype(int).tolist() for x in (q, k)]
    factor = Fraction(q.shape[1] ** -0.5 if scale is None else scale)
    queries = list(enumerate(numbers[0]))[first:]
    rows = [rule.row(i, x, numbers[1], codes, *scales, factor, causal) for i, x in queries]
    bits = [x[0, 0, first:].view(np.uint32) for x in (got.out, got.lse)]
    wanted = [np.array(x, np.uint32) for x in zip(*rows, strict=True)]
    is_nan = 0x7F800000
    return [[np.where(x & 0x7FFFFFFF > is_nan, is_nan, x).tolist() for x in pair] for pair in (bits, wanted)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "causal"), [(19, 19, True), (5, 75, False), (1, 3, False)])
def test_every_row_has_the_oracle_s_bits(name: str, m: int, n: int, causal: bool) -> None:
    """One to five tiles, ragged ends, blocks with a mask in their last two tiles."""
    got, want = both(name, operands(m + n, m, n, 8, v_max(name)), causal=causal)
    assert got == want


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-7, 0.0, -0.3, BEYOND, -BEYOND])
def test_scales_at_which_hidden_keys_and_the_first_sum_count(scale: float) -> None:
    """A hidden key's -5e6 times 1e-7 is a probability; maxima below -5e6 leave 1 in each thread's sum."""
    got, want = both("sage2", operands(5, 4, 37, 8), scale=scale)
    assert got == want


@pytest.mark.parametrize("name", NAMES)
def test_the_published_tiles_have_the_oracle_s_bits(name: str) -> None:
    """Random operands, quantized by the library's rule: two rows with blocks of 128 queries and 64 keys."""
    rng, kernel = np.random.default_rng(7), lp.attentions[name]
    q, k, v = (rng.standard_normal((1, 1, rows, 32)) * 2 for rows in (140, 200, 200))
    a, b, c, descale = quantize_operands(q, k + 5, v, kernel)
    got = lp.attention(a, b, c, kernel=kernel, descale=descale, out_format="float32")
    rule = sage.SageAttention(ACCUMULATORS[kernel.values.name])
    scales = [[Fraction(float(x)) for x in part[0, 0]] for part in descale]
    values, integers = lp.encode(c[0, 0], "e4m3fn").tolist(), b[0, 0].astype(int).tolist()
    for i in (3, 137):
        row, total = rule.row(i, a[0, 0, i].astype(int).tolist(), integers, values, *scales, Fraction(32**-0.5))
        assert got.out[0, 0, i].view(np.uint32).tolist() == row
        assert int(got.lse[0, 0, i].view(np.uint32)) == total


def test_a_scale_of_a_warp_is_that_of_its_threads() -> None:
    q, k, v, _ = operands(4, 19, 40, 8)
    rng, kernel = np.random.default_rng(4), lp.attentions["sage2"].with_(**SMALL)
    of_q, of_k, of_v = (np.float32(rng.uniform(0.01, 0.04, (1, 1, size))) for size in (4, 3, 8))
    found = [
        lp.attention(q, k, v, kernel=kernel.with_(scales=scales), descale=descale, out_format="float32")
        for scales, descale in (
            (WarpScales(448.0, 16, 8, 16), (of_q, of_k, of_v)),
            (kernel.scales, (of_q.repeat(8, 2), of_k.repeat(4, 2), of_v)),
        )
    ]
    assert found[0].out.tobytes() == found[1].out.tobytes()
    assert found[0].lse.tobytes() == found[1].lse.tobytes()


WRONG: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "offset 8": ("sage2", {"offset": 8.0}, None),
    "no rounded tile": ("sage2", {"exact_tiles": 0}, None),
    "one rounded tile": ("sage2", {"exact_tiles": 1}, 0.2),
    "all tiles rounded": ("sage2", {"exact_tiles": 9}, None),
    "hidden keys at -1e9": ("sage2", {"masked": Fraction(-(10**9))}, 1e-7),
    "sums from 2": ("sage2", {"first_d": Fraction(2)}, BEYOND),
    "keys one by one": ("sage2", {"by_key": True}, None),
    "distance 2 first": ("sage2", {"far_first": True}, None),
    "rescaled before the addition": ("sage2", {"splits_fma": True}, None),
    "O in the tensor core": ("sage2", {"one_buffer": True}, None),
    "sums in float32": ("sage2pp", {"core": ACCUMULATORS["ada_fp8"]}, None),
    "sums in float16": ("sage2", {"core": ACCUMULATORS["ada_fp8_f16"]}, None),
    "V's scale first": ("sage2", {"scales_once": True}, None),
    "another thread's scale": ("sage2", {"next_thread": True}, None),
    "sum of rounded P": ("sage2", {"sums_rounded_p": True}, None),
    "log-sum-exp with the offset": ("sage2", {"lse_of_scores": True}, None),
    "tiles of 32 keys": ("sage2", {"cta_k": 32}, None),
    "warps of 16 queries": ("sage2", {"warp_q": 16}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_have_other_bits(wrong: str) -> None:
    name, change, scale = WRONG[wrong]
    data = operands(1, 12, 75, 8, v_max(name))
    got, want = both(name, data, scale=scale, first=8, **change)
    assert got != want


def groups_of(of: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> list[tuple[Any, list[list[Fraction]]]]:
    """Return the numbers of each group's rows, and the rows as fractions."""
    members = [np.flatnonzero(of == group) for group in set(of)]
    return [(rows, [[Fraction(float(y)) for y in x[i]] for i in rows]) for rows in members]


@pytest.mark.slow
@pytest.mark.parametrize("scales", [ThreadScales(), ThreadScales(2.25), WarpScales(2.25)])
def test_quantizers_have_the_oracle_s_bits(scales: ThreadScales) -> None:
    """Integers, codes and scales of a head with a mean, ragged groups, rows of zeros and halves."""
    rng = np.random.default_rng(3)
    q, k, v = (lp.round_to(rng.standard_normal((1, 1, rows, 8)) * 3, "bfloat16") for rows in (70, 75, 75))
    k, is_by_thread = lp.round_to(k + 10, "bfloat16"), type(scales) is ThreadScales
    q[0, 0, 0::8], q[0, 0, 1] = 0, 0.5 * np.arange(8)
    made = quantize_operands(q, k, v, lp.attentions["sage2"].with_(scales=scales))
    row, key = np.arange(70), np.arange(75)
    own = sage.per_thread_int8 if is_by_thread else sage.per_warp_int8
    centers = [sage.mean(lp.encode(k[0, 0, :, c], "bfloat16").tolist()) for c in range(8)]
    exact = [[Fraction(float(x)) for x in key] for key in k[0, 0]]
    moved = [[sage.shifted(x, c, is_by_thread) for x, c in zip(key, centers, strict=True)] for key in exact]
    by_row = row // 32 * 8 + row % 8 if is_by_thread else row // 32
    by_key = key // 64 * 4 + key % 8 // 2 if is_by_thread else key // 64
    for name, x, of in (("q", q[0, 0], by_row), ("k", np.array(moved, np.float32), by_key)):
        codes, scale = getattr(made, name)[0, 0], made.descale["qk".index(name)][0, 0]
        for rows, numbers in groups_of(of, x):
            integers, expected = own(numbers)
            assert codes[rows].astype(int).tolist() == integers
            assert Fraction(float(scale[of[rows[0]]])) == expected
    for c in range(8):
        codes, expected = sage.per_channel_fp8([Fraction(float(x)) for x in v[0, 0, :, c]], scales.v_max)
        assert lp.encode(made.v[0, 0, :, c], "e4m3fn").tolist() == codes
        assert Fraction(float(made.descale[2][0, 0, c])) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_log_sum_exps_are_near_those_of_float64(name: str, causal: bool) -> None:
    """Groups of two heads; the library adds the scores of K's mean to the log-sum-exp."""
    rng = np.random.default_rng(0)
    q, k, v = (lp.round_to(rng.standard_normal((1, heads, 150, 48)), "bfloat16") for heads in (4, 2, 2))
    out, lse = masked_attention("test", (q, k + 4, v), lp.attentions[name], causal=causal, out_format="float32")
    exact = softmax_attention(q, k + 4, v, causal=causal)
    assert np.linalg.norm(out - exact) < 0.04 * np.linalg.norm(exact)
    scores = q.astype(np.float64) @ np.repeat(k + 4, 2, 1).swapaxes(2, 3) / 48**0.5
    scores = np.where(np.tri(150, dtype=bool) | (not causal), scores, -np.inf)
    top = scores.max(-1)
    assert np.abs(lse - top - np.log(np.exp(scores - top[..., None]).sum(-1))).max() < 0.04


def test_a_channel_of_zeros_and_special_values() -> None:
    """The scale of zeros is 0 and its inverse infinite; NaN in V reaches all rows; NaN in Q and K is the integer 0."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, 20, 8)).astype(np.float32) for _ in "qkv")
    v[..., 2], q[0, 0, 3, 1], v[0, 0, 19, 4] = 0, np.nan, np.nan
    out, _ = masked_attention("test", (q, k, v), lp.attentions["sage2"], causal=True)
    empty = np.isnan(out[0, 0])
    assert empty[:, 2].all()
    assert empty[:, 4].all()  # 0 * NaN: all keys are in one tile
    assert not empty[:, [0, 1, 3, 5, 6, 7]].any()
    for scales in (ThreadScales(), WarpScales()):
        kernel, zero = lp.attentions["sage2"].with_(scales=scales), q.copy()
        zero[0, 0, 3, 1] = 0
        with_nan, without = (quantize_operands(x, k, v, kernel) for x in (q, zero))
        assert with_nan.q.tobytes() == without.q.tobytes()
        assert with_nan.descale[0].tobytes() == without.descale[0].tobytes()
        k[0, 0, 2, 5] = np.nan  # the mean of a channel, and so all its keys
        found = quantize_operands(q, k, v, kernel).k[0, 0]
        assert not found[:, 5].any()
        assert np.abs(np.delete(found, 5, 1)).max() == 127


def test_a_subnormal_scale_of_a_channel_is_zero() -> None:
    """MeanScaleKernel is compiled with ``--use_fast_math``."""
    v = np.full((1, 1, 20, 8), 2.0**-119, np.float32)
    v[..., 1] = 2.0**-117
    scale = quantize_operands(v, v, v, lp.attentions["sage2"]).descale[2][0, 0]
    assert scale[0] == 0 == sage.per_channel_fp8([Fraction(1, 1 << 119)], 448)[1]
    assert scale[1] == float(sage.per_channel_fp8([Fraction(1, 1 << 117)], 448)[1]) > 0


def test_undecided_outputs_bound_other_functions() -> None:
    """No output that is decided changes with an exp2 or a reciprocal at either end of its bounds."""
    from test_undecided import SomeExp2, SomeReciprocal

    for name in NAMES:
        kernel = lp.attentions[name].with_(**SMALL)
        for case in range(2):
            q, k, v, descale = operands(case, 24, 75, 16, v_max(name))
            options: dict[str, Any] = {"descale": descale, "out_format": (None, "fp22")[case]}
            data = [x[None, None] for x in (q, k, v)]
            got = lp.attention(*data, kernel=kernel, undecided=True, **options)
            assert got.out.tobytes() == lp.attention(*data, kernel=kernel, **options).out.tobytes()
            assert got.undecided is not None
            known = ~got.undecided
            assert known.mean() > (0.8, 0.1)[case]
            for seed in range(4):
                inverse = SomeReciprocal(kernel.reciprocal, seed)
                changed = kernel.with_(exp2=SomeExp2(kernel.exp2, seed, 0), reciprocal=inverse)
                other = lp.attention(*data, kernel=changed, **options)
                assert other.out[known].tobytes() == got.out[known].tobytes()


def test_what_the_library_refuses() -> None:
    kernel, x, y = lp.attentions["sage2"], np.ones((4, 16), np.float32), np.ones((4, 17), np.float32)
    wide = np.ones((4, 129), np.float32)
    for arrays, options, message in (
        ((x, x, y), {}, "head sizes must be equal for SageAttention, got D = 16, Dv = 17"),
        ((wide, wide, wide), {}, "head sizes must be at most D = 128, Dv = 128 for sage2, got D = 129"),
        ((x, x[:0], x[:0]), {}, "k must have at least 1 key for SageAttention, got 0"),
        ((x[:2], x, x), {"causal": True}, "causal must be False for 2 queries and 4 keys in SageAttention, got True"),
        ((x, x, x), {"window": (2, 0)}, r"window must be None for SageAttention, got \(2, 0\)"),
        ((x, x, x), {"softcap": 3.0}, "softcap must be None for sage2"),
        ((x, x, x), {"splits": 2}, "splits must be 1 for sage2"),
        ((x, x, x), {"page_size": 64}, "page_size must be None for sage2"),
        ((x + 0.5, x, x), {}, "q must hold numbers of int8, got 1.5"),
        ((x, x, x + 0.03125), {}, "v must hold numbers of e4m3fn, got 1.03125"),
        (
            (x, x, x), {"descale": (np.ones(32), 1, 1)[:2]}, "descale must be three scales",
        ),
        (
            (x, x, x), {"descale": (np.ones(5), 1, 1)},
            r"descale must be numbers or of shape \(1, 1, 32\), \(1, 1, 4\) and \(1, 1, 16\), got \[\(5,\)",
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            lp.attention(*arrays, kernel=kernel, **options)


@pytest.mark.parametrize(("field", "only", "value"), [
    ("last_tile_first", False, True), ("rescale_threshold", 0.0, 4.0),
    ("softcap", None, lp.attentions["fa3_fp8"].softcap),
])  # fmt: skip
def test_fields_that_scales_of_threads_do_not_have(field: str, only: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be {only} with scales of threads, got {value}"):
        lp.attentions["sage2"].with_(**{field: value})


def test_sizes_that_scales_of_threads_do_not_have() -> None:
    kernel: AttentionKernel = lp.attentions["sage2"]
    with pytest.raises(ValueError, match="promote_every must be 1 with fused_promotion, got None"):
        kernel.with_(promote_every=None)
    with pytest.raises(ValueError, match="key_tiles must have 64 keys, as its scales, got"):
        kernel.with_(key_tiles=((128, 32, 32, 32),))
    with pytest.raises(ValueError, match="queries and rows must be multiples of 8, keys of 16, got 128, 32 and 8"):
        ThreadScales(keys=8)
    with pytest.raises(ValueError, match="WarpScales: queries must be a multiple of rows, got 128 and 48"):
        WarpScales(rows=48)
    none, some = np.zeros((1, 1, 0, 8), np.float32), np.ones((1, 1, 2, 8), np.float32)
    with pytest.raises(ValueError, match="k must have at least 1 key for SageAttention, got 0"):
        masked_attention("test", (some, none, none), kernel)
