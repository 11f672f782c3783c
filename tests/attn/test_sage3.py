"""SageAttention 3: bits of the oracle in fractions, which has the source's threads; wrong rules must differ."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.attn.attention import softmax_attention
from lowprec.attn.masks import masked_attention
from lowprec.attn.operands import AttentionOperands, quantize_operands
from lowprec.attn.scales import BlockScales
from lowprec.oracle import ACCUMULATORS, float32
from lowprec.oracle.attention import sage, sage3

KERNEL = lp.attentions["sage3_fp4"]
CORE = ACCUMULATORS["rtx_blackwell_nvfp4"]
MENDED = KERNEL.with_(schedule=KERNEL.schedule.with_(hides_columns=False, omits_second=False))


def operands(seed: int, m: int, n: int, d: int = 64, size: float = 2.0, rule: BlockScales = KERNEL.scales) -> Any:
    """Return quantized operands; some blocks have only negative scores, and one row is larger than its format's."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((1, 1, rows, d)).astype(np.float32) for rows in (m, n, n))
    q = (q + 0.2) * size
    k[..., n // 2 :, :] -= 3
    v[..., n // 3, :] *= 3000
    return quantize_operands(q, k + 2, v, KERNEL.with_(scales=rule))


def codes(x: AttentionOperands) -> tuple[list[Any], list[Any]]:
    """Return the codes of q, k and v, transposed, and those of their scales."""
    values = [lp.encode(y[0, 0], "e2m1fn") for y in x[:3]]
    scales = [lp.encode(y[0, 0], "e4m3fn", policy="ocp_sat").tolist() for y in x.descale[:3]]
    return [values[0].tolist(), values[1].tolist(), values[2].T.tolist()], scales


def both(
    x: AttentionOperands, rows: list[int], *, causal: bool = False, scale: float | None = None, **wrong: Any
) -> tuple[list[Any], list[Any]]:
    """Return the bits of outputs and log-sum-exps of some rows, by the kernel and by the oracle."""
    got = lp.attention(*x[:3], kernel=KERNEL, descale=x.descale, causal=causal, scale=scale, out_format="float32")
    rule = dataclasses.replace(sage3.SageAttention3(CORE), **wrong)
    (q, k, v), (sfq, sfk, sfv) = codes(x)
    factor = Fraction(x.q.shape[3] ** -0.5 if scale is None else scale)
    group = 128 if x.descale[3].shape[2] > 1 else len(q)
    want = []
    for i in rows:
        delta_s = [Fraction(float(y)) for y in x.descale[3][0, 0, i // group]]
        row, lse = rule.row(i, q[i], k, v, sfq[i], sfk, sfv, delta_s, factor, causal)
        want.append([*row, lse])
    bits = np.concatenate([got.out[0, 0], got.lse[0, 0, :, None]], 1).view(np.uint32)
    return bits[rows].tolist(), want


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "causal", "size"), [
    (3, 40, False, 2.0), (130, 300, False, 0.5), (300, 300, True, 2.0), (2, 1, False, 1.0),
])  # fmt: skip
def test_every_row_has_the_oracle_s_bits(m: int, n: int, causal: bool, size: float) -> None:
    """One to three tiles, ragged ends with padded keys, and a block that omits its second tile."""
    got, want = both(operands(m + n, m, n, size=size), sorted({0, m - 1}), causal=causal)
    assert got == want


@pytest.mark.slow
def test_other_sizes_and_scales_have_the_oracle_s_bits() -> None:
    """Two instructions per score, one mean of all queries, and a negative scale."""
    got, want = both(operands(3, 140, 150, 128, rule=BlockScales(None)), [139], scale=-0.2)
    assert got == want


WRONG: dict[str, tuple[dict[str, Any], bool]] = {
    "maxima from -inf": ({"absmax_start": -np.inf}, False),
    "mask of keys": ({"masks_keys": True}, False),
    "mask of keys, causal": ({"masks_keys": True}, True),
    "second tile added": ({"adds_second": True}, True),
    "P over the rounded scale": ({"rounds_scale": True}, False),
    "sum of rounded P": ({"sums_rounded_p": True}, False),
    "keys of columns": ({"by_column": True}, False),
    "distance 2 first": ({"far_first": True}, False),
    "products rounded": ({"splits_fma": True}, False),
    "O in the tensor core": ({"one_buffer": True}, False),
    "tiles from the first": ({"first_tile_first": True}, False),
}


@pytest.mark.sampled(0, default=4)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_have_other_bits(wrong: str) -> None:
    change, causal = WRONG[wrong]
    rows = list(range(140, 152)) if wrong == "distance 2 first" else [140, 290]
    got, want = both(operands(5, 300, 300), rows, causal=causal, **change)
    assert got != want


@pytest.mark.slow
def test_quantizers_have_the_oracle_s_bits() -> None:
    """Ties of amax / 6, blocks of zeros, of subnormals and of NaN, and magnitudes beyond those of the scales."""
    rng = np.random.default_rng(2)
    x = lp.round_to(rng.standard_normal((1, 1, 90, 64)) * 2.0 ** rng.integers(-12, 14, (90, 1)), "bfloat16")
    x[0, 0, 0, :16], x[0, 0, 1, :16], x[0, 0, 2, :16], x[0, 0, 3, 3], x[0, 0, 4, 5] = 0, 1e-40, np.nan, np.nan, np.inf
    made = quantize_operands(np.zeros_like(x), np.zeros_like(x), x, KERNEL)
    (_, _, v), (_, _, sfv) = codes(made)
    columns = np.pad(x[0, 0].T, ((0, 0), (0, -90 % 16)))
    for c in range(64):
        for start in range(0, 90, 16):
            block = [Fraction(float(y)) if np.isfinite(y) else float(y) for y in columns[c, start : start + 16]]
            found, scale = sage3.fp4_block(block)
            assert found[: 90 - start] == v[c][start : start + 16]
            assert scale == sfv[c][start // 16]


def test_a_causal_mask_hides_columns_and_omits_a_tile_as_in_the_library() -> None:
    """Row 4 sees keys 0, 1, 8, 9 and 16; the library's intended rules lower the error of the second block."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 256, 64)).astype(np.float32) for _ in range(3))
    tags = np.zeros((1, 1, 64, 64), np.float32)
    tags[..., np.arange(64), np.arange(64)] = 6
    x = quantize_operands(np.zeros_like(tags), tags, tags, KERNEL)
    seen = lp.attention(*x[:3], kernel=KERNEL, descale=x.descale, causal=True).out[0, 0, 4]
    assert np.flatnonzero(seen).tolist() == [0, 1, 8, 9, 16]
    want = softmax_attention(q, k, v, causal=True)[..., 128:, :]
    errors = []
    for kernel in (KERNEL, MENDED):
        out, _ = masked_attention("test", (q, k, v), kernel, causal=True, out_format="float32")
        errors.append(float(np.sqrt(((out[..., 128:, :] - want) ** 2).mean() / (want**2).mean())))
    assert errors[0] > 0.9
    assert errors[1] < 0.2


def test_operands_may_be_empty() -> None:
    for b, h, m, n in ((1, 1, 0, 5), (1, 1, 3, 0), (0, 1, 3, 5), (1, 0, 3, 5)):
        shapes = ((b, h, m, 64), (b, h, n, 64), (b, h, n, 64))
        for kernel in (KERNEL, KERNEL.with_(scales=BlockScales(None))):
            *x, descale = quantize_operands(*(np.ones(shape, np.float32) for shape in shapes), kernel)
            assert [part.shape for part in x] == list(shapes)
            assert tuple(part.shape for part in descale) == kernel.scales.shapes(shapes[0], shapes[2])


def test_probabilities_that_saturate_or_vanish_are_counted() -> None:
    """The largest P of a block is 6 by design; blocks with a scale of 0 lose all of theirs."""
    x = operands(1, 4, 128, size=1.0)
    few = lp.attention(*x[:3], kernel=KERNEL, descale=x.descale, scale=0.01)
    assert few.saturated.sum() == few.underflowed.sum() == 0
    many = lp.attention(*x[:3], kernel=KERNEL, descale=x.descale, scale=20.0)
    assert (many.underflowed > 100).any()


@pytest.mark.slow
def test_means_and_addends_have_the_oracle_s_bits() -> None:
    """Q and K shifted by their means, and their products, in fractions: 130 queries have two means."""
    rng = np.random.default_rng(3)
    q, k = (lp.round_to(rng.standard_normal((1, 1, rows, 64)) + 1, "bfloat16") for rows in (130, 20))
    made = quantize_operands(q, k, k, KERNEL)
    columns = [[sage.decode(int(c), sage.BFLOAT16) for c in lp.encode(x[0, 0].T, "bfloat16").ravel()] for x in (q, k)]
    q_rows, k_rows = ([column[i::n] for i in range(n)] for column, n in zip(columns, (130, 20), strict=True))
    means = [sage.mean(lp.encode(k[0, 0, :, d], "bfloat16").tolist()) for d in range(64)]
    shifted = [[sage.shifted(x, mean, True) for x, mean in zip(row, means, strict=True)] for row in k_rows]
    found, scale = sage3.fp4_block(shifted[7][16:32])
    assert (found, scale) == (codes(made)[0][1][7][16:32], codes(made)[1][1][7][1])
    for group, rows in enumerate((q_rows[:128], q_rows[128:])):
        sums = [float32.rounded(sum(Fraction(row[d]) for row in rows)) / 128 for d in range(64)]
        block = [float32.plus(x, -y) for x, y in zip(rows[-1][:16], sums[:16], strict=True)]
        rounded = [sage.shifted(x, Fraction(0), True) for x in block]
        assert sage3.fp4_block(rounded)[0] == codes(made)[0][0][128 * group + len(rows) - 1][:16]
        total: Any = Fraction(0)
        for mean, x in zip(sums, shifted[3], strict=True):
            total = float32.multiply_add(sage.shifted(mean, Fraction(0), True), x, total)
        assert made.descale[3][0, 0, group, 3] == float(sage.shifted(total, Fraction(0), True))


def test_log_sum_exps_are_those_of_keys_with_their_mean() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 128, 64)).astype(np.float32) for _ in range(3))
    _, lse = masked_attention("test", (q, k + 1, v), KERNEL)
    scores = q @ (k + 1).swapaxes(2, 3) / 8
    assert np.abs(lse - np.log(np.exp(scores).sum(-1))).max() < 0.1


@pytest.mark.parametrize(("field", "only", "value"), [
    ("softcap", None, lp.attentions["fa3_fp8"].softcap), ("p_scale", 1.0, 2.0),
    ("sink", None, lp.attentions["fa4_bf16"].sink),
])  # fmt: skip
def test_fields_that_scales_of_blocks_do_not_have(field: str, only: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be {only} with scales of blocks, got"):
        KERNEL.with_(**{field: value})


def test_bad_operands_are_refused() -> None:
    x = operands(0, 2, 3)
    with pytest.raises(ValueError, match="schedule must be SageAttention3 with scales of blocks only, got"):
        KERNEL.with_(scales=lp.attentions["fa3_fp8"].scales)
    with pytest.raises(ValueError, match="fused_promotion must be True with scales of blocks, got False"):
        KERNEL.with_(promote_every=None, fused_promotion=False)
    with pytest.raises(ValueError, match="key_tiles must have as many keys as queries with scales of blocks, got"):
        KERNEL.with_(key_tiles=((64, 64, 64, 64),))
    with pytest.raises(ValueError, match="product_block must be None with scales of blocks, got 64"):
        KERNEL.with_(product_block=64)
    with pytest.raises(ValueError, match="descale must be four arrays, the scales of q, k and v and the addends of"):
        lp.attention(*x[:3], kernel=KERNEL, descale=x.descale[:3])
    with pytest.raises(ValueError, match=r"descale of k must hold numbers >= 0 of e4m3fn, got 0\.3"):
        lp.attention(*x[:3], kernel=KERNEL, descale=(1, 0.3, 1, 0))
    with pytest.raises(ValueError, match=r"descale of v must hold numbers >= 0 of e4m3fn, got -1\.0"):
        lp.attention(*x[:3], kernel=KERNEL, descale=(1, 1, -1, 0))
    with pytest.raises(ValueError, match=r"descale must be four arrays.*, got 2"):
        lp.attention(*x[:3], kernel=KERNEL, descale=2)
    with pytest.raises(ValueError, match=r"descale must be numbers or of shape \(1, 1, 2, 4\), .*, got"):
        lp.attention(*x[:3], kernel=KERNEL, descale=(np.ones(3), 1, 1, 0))
    with pytest.raises(
        ValueError, match="heads of q must be as many as those of k for SageAttention 3, got groups of 2"
    ):
        lp.attention(x.q.repeat(2, 1), x.k, x.v, kernel=KERNEL)
    with pytest.raises(ValueError, match=r"undecided must be False for .* scales blocks of P"):
        lp.attention(*x[:3], kernel=KERNEL, undecided=True)
    with pytest.raises(ValueError, match="BlockScales: queries must be"):
        BlockScales(0)
