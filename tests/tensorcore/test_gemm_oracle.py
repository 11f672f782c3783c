"""`gemm` with scales and promotion, bit for bit against the oracle; and its defaults."""

import itertools
import re
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from answers import once
from fast_kernels import agree, bits
from floats import normal
from gemms import assert_same, operands
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import ADA_FP8, FLOAT32, HOPPER_FP8
from lowprec.tensorcore.library import GemmLibrary, gemm_libraries
from lowprec.testing import assert_bits_equal

RULES = {"hopper_fp8": HOPPER_FP8, "ada_fp8": ADA_FP8, "exact": "exact", "float32": "float32"}
PAIRS = list(product(("e4m3fn", "e5m2"), repeat=2))
BLOCKS = ("1x128", "128x128")  # of activations and weights


def scale_bits(q: lp.Quantized, row: int, k: int) -> int:
    rows, columns = q.granularity.block(q.codes.shape)
    return int(bits(q.scale)[row // rows, k // columns])


def both_scales(qa: lp.Quantized, qb: lp.Quantized, i: int, j: int, starts: Any) -> list[tuple[int, int]]:
    return [(scale_bits(qa, i, k), scale_bits(qb, j, k)) for k in starts]


def outputs(qa: lp.Quantized, qb: lp.Quantized) -> Any:
    """Yield the place, the row of codes of A and that of B of every output."""
    for (i, row_a), (j, row_b) in product(enumerate(qa.codes.tolist()), enumerate(qb.codes.tolist())):
        yield (i, j), row_a, row_b


def wanted(qa: lp.Quantized, qb: lp.Quantized, rule: Any, interval: int) -> NDArray[np.float32]:
    out = np.zeros((len(qa.codes), len(qb.codes)), np.uint32)
    starts = range(0, qa.codes.shape[1], interval)
    for at, row_a, row_b in outputs(qa, qb):
        scales = both_scales(qa, qb, *at, starts)
        out[at] = oracle.promoted_dot(row_a, row_b, scales, interval, rule, qa.format, qb.format)
    return out.view(np.float32)


def gemm(qa: lp.Quantized, qb: lp.Quantized, **options: Any) -> NDArray[np.float32]:
    """``lp.gemm`` on every kernel of this CPU."""
    return agree(lambda: lp.gemm(qa, qb, **options))


def assert_right(ours: NDArray[np.float32], qa: lp.Quantized, qb: lp.Quantized, rule: Any, interval: int) -> None:
    """Compare with the oracle's promoted sums, NaN as NaN."""
    given = [(repr(q.format), str(q.granularity), q.codes, q.scale) for q in (qa, qb)]
    once(lambda: assert_bits_equal(ours, wanted(qa, qb, rule, interval), nan="any"), rule, interval, given, ours)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", RULES)
@pytest.mark.parametrize("interval", [32, 64, 128])
def test_promotion_intervals(machine: str, interval: int) -> None:
    """Activations in 1x128, weights in 128x128, ragged K included."""
    for m, n, k in [(5, 6, 256), (4, 3, 300), (3, 2, 100)]:
        qa, qb = operands(m, n, k, BLOCKS)
        assert_right(gemm(qa, qb, accumulator=machine, promote_every=interval), qa, qb, RULES[machine], interval)


def other_promotions(partials: list, scales: list[tuple[int, int]]) -> dict[str, int]:
    """Ways to promote that are close to the right one, and wrong."""
    minus_zero, one = 1 << 31, oracle.encode(1, FLOAT32)
    two_roundings = scale_by_scale = from_the_end = 0
    for partial, (sa, sb) in zip(partials, scales, strict=True):
        scale = oracle.fma32(sa, sb, minus_zero)
        two_roundings = oracle.fma32(oracle.fma32(scale, partial, minus_zero), one, two_roundings)
        scale_by_scale = oracle.fma32(sa, oracle.fma32(sb, partial, minus_zero), scale_by_scale)
    for partial, (sa, sb) in zip(partials[::-1], scales[::-1], strict=True):
        from_the_end = oracle.fma32(oracle.fma32(sa, sb, minus_zero), partial, from_the_end)
    return {"no fma": two_roundings, "one scale after the other": scale_by_scale, "last first": from_the_end}


def test_the_inputs_know_wrong_promotions() -> None:
    qa, qb = operands(6, 6, 384, BLOCKS)
    ours = bits(gemm(qa, qb))
    differing = dict.fromkeys(["no fma", "one scale after the other", "last first"], 0)
    for at, row_a, row_b in outputs(qa, qb):
        pieces = [(row_a[k : k + 128], row_b[k : k + 128]) for k in (0, 128, 256)]
        partials = [oracle.fused_dot(*piece, 0, HOPPER_FP8, qa.format, qb.format) for piece in pieces]
        for rule, other in other_promotions(partials, both_scales(qa, qb, *at, (0, 128, 256))).items():
            differing[rule] += other != int(ours[at])
    assert min(differing.values()) >= 5, differing


@pytest.mark.sampled(1)
@pytest.mark.parametrize("machine", ["hopper_fp8", "ada_fp8", "exact"])
@pytest.mark.parametrize("interval", [32, 128, 256, 512, None])
def test_one_scale_along_k(machine: str, interval: int | None) -> None:
    """Scales per row or per tensor leave the interval free; None is one chain over all of K."""
    for granularity, k in product((("row", "row"), ("tensor", "128x4096"), ("row", "tensor")), (512, 600)):
        qa, qb = operands(4, 5, k, granularity)
        ours = gemm(qa, qb, accumulator=machine, promote_every=interval)
        assert_right(ours, qa, qb, RULES[machine], interval or k)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize(
    "granularity", [("1x128", "1x128"), ("1x128", "128x128"), ("128x128", "1x128"), ("1x64", "1x128")]
)
@pytest.mark.parametrize("scale", ["fp32", "ue8m0"])
def test_formats_and_granularities(pair: tuple[str, str], granularity: tuple[str, str], scale: str) -> None:
    interval = 64 if "1x64" in granularity else 128
    qa, qb = operands(4, 4, 320, granularity, pair, scale)
    assert_right(gemm(qa, qb, promote_every=interval), qa, qb, HOPPER_FP8, interval)


def test_block_boundaries_along_m_and_n() -> None:
    """Rows and columns on both sides of a 128 boundary, where the weights' scale changes; a sample of outputs."""
    rng = np.random.default_rng(4)
    a, b = normal(rng, 131, 260), normal(rng, 263, 260)
    b[128:] *= 37.0
    qa, qb = lp.quantize(a, "e4m3fn 1x128"), lp.quantize(b, "e4m3fn 128x128")
    ours = bits(gemm(qa, qb))
    rows = [*rng.integers(0, 131, 150), 0, 130, 127, 128]
    columns = [*rng.integers(0, 263, 150), 127, 128, 255, 262]
    for i, j in zip(rows, columns, strict=True):
        rows_of_codes, scales = (qa.codes[i].tolist(), qb.codes[j].tolist()), both_scales(qa, qb, i, j, (0, 128, 256))
        right = oracle.promoted_dot(*rows_of_codes, scales, 128, HOPPER_FP8, qa.format, qb.format)
        assert int(ours[i, j]) == right, (i, j)


def test_scales_and_sums_at_the_ends_of_float32() -> None:
    """Scales so small and large that their product, the partial times it, or the sum under- or overflows."""
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((6, 256)), rng.standard_normal((6, 256))
    a *= 2.0 ** np.array([-120, -75, -60, 0, 60, 118])[:, None]
    b *= 2.0 ** np.array([118, -75, -62, 0, 62, -118])[:, None]
    qa, qb = (lp.quantize(x.astype(np.float32), "e4m3fn 1x128") for x in (a, b))
    right = wanted(qa, qb, HOPPER_FP8, 128)
    assert_bits_equal(gemm(qa, qb), right, nan="any")
    magnitudes = np.abs(right)
    assert np.any(np.isinf(magnitudes))
    assert np.any((magnitudes > 0) & (magnitudes < 2.0**-126))


def test_nan_blocks_reach_their_rows_only() -> None:
    rng = np.random.default_rng(7)
    a, b = normal(rng, 5, 256), normal(rng, 4, 256)
    a[2, 130] = np.inf
    qa, qb = lp.quantize(a, "e4m3fn 1x128"), lp.quantize(b, "e4m3fn 1x128")
    ours = gemm(qa, qb)
    assert np.array_equal(np.isnan(ours), np.arange(5)[:, None] == 2 * np.ones((1, 4)))
    assert_bits_equal(ours, wanted(qa, qb, HOPPER_FP8, 128), nan="any")


def test_no_rows_no_columns_no_products() -> None:
    qa, qb = operands(3, 4, 256, BLOCKS)
    none, *short = (lp.quantize(np.zeros(x, np.float32), "e4m3fn 1x128") for x in ((0, 256), (3, 0), (4, 0)))
    assert gemm(none, qb).shape == (0, 4)
    assert gemm(qa, none).shape == (3, 0)
    assert_bits_equal(gemm(*short), np.zeros((3, 4), np.float32))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("machine", ["hopper_fp8", "ada_fp8"])
@pytest.mark.parametrize("scale", ["ue8m0", "fp32"])
@pytest.mark.parametrize("binades", [0, 10, 24, 26, 45])
def test_without_promotion_the_running_sum_is_moved_to_new_scales(binades: int, scale: str, machine: str) -> None:
    """One chain whose sum is multiplied by ``fl32(s_before / s_now)``, and cut to 13 bits, where the scales change.

    The scales of an operand change by up to `binades` binades either way from block to block.
    """
    qa, qb = operands(5, 4, 512, BLOCKS, scale=scale)
    rng = np.random.default_rng(binades)
    jumps = [2.0 ** rng.integers(-binades, binades + 1, q.scale.shape).astype(np.float32) for q in (qa, qb)]
    qa, qb = (replace(q, scale=q.scale * jump) for q, jump in zip((qa, qb), jumps, strict=True))
    ours = bits(gemm(qa, qb, accumulator=machine, promote_every=None))
    for at, row_a, row_b in outputs(qa, qb):
        acc, before = 0, None
        for k, pair in zip(range(0, 512, 128), both_scales(qa, qb, *at, range(0, 512, 128)), strict=True):
            now = oracle.decode(oracle.fma32(*pair, 1 << 31), FLOAT32)
            if before is not None:
                ratio = oracle.encode(before / now, FLOAT32)
                acc = cut(oracle.decode(acc, FLOAT32) * oracle.decode(ratio, FLOAT32))
            piece = row_a[k : k + 128], row_b[k : k + 128]
            acc, before = oracle.fused_dot(*piece, acc, RULES[machine], qa.format, qb.format), now
        assert int(ours[at]) == oracle.fma32(oracle.encode(now, FLOAT32), acc, 0), at


def cut(value) -> int:
    """An exact value truncated to 13 fraction bits, as float32 bits (away from float32's ends)."""
    if value == 0:
        return 0
    quantum = oracle.floor_log2(abs(value)) - 13
    return oracle.encode(int(value / 2**quantum) * Fraction(2) ** quantum, FLOAT32)


@pytest.mark.slow
def test_float32_without_promotion_multiplies_dequantized_values() -> None:
    for granularity in (BLOCKS, "row"):
        qa, qb = operands(5, 4, 300, granularity)
        ours = bits(gemm(qa, qb, accumulator="float32", promote_every=None))
        a, b = (bits(q.dequantize()).tolist() for q in (qa, qb))
        for i, j in np.ndindex(5, 4):
            assert int(ours[i, j]) == oracle.sequential_f32(a[i], b[j], 0, FLOAT32, FLOAT32), (i, j)


# --- defaults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", list(gemm_libraries))
def test_without_beta_c_is_not_read(library: str) -> None:
    """NaN and Inf times 0 do not count, nor does the sign of C's zeros; its shape is looked at all the same."""
    qa, qb = operands(4, 5, 300)
    c = np.resize(np.array([np.nan, np.inf, -np.inf, -1.0, -0.0], np.float32), (4, 5))
    for alpha, beta in ((1.0, 0.0), (0.3, -0.0)):
        plain = lp.gemm(qa, qb, library=library, alpha=alpha)
        assert_same(lp.gemm(qa, qb, c, library=library, alpha=alpha, beta=beta), plain)
    with pytest.raises(ValueError, match=r"gemm: c must have shape \(4, 5\), got \(3, 5\)"):
        lp.gemm(qa, qb, c[:3], library=library, beta=0.0)


@pytest.mark.parametrize("library", list(gemm_libraries))
def test_exact_zeros_of_the_epilogue(library: str) -> None:
    """``fma(f, T, +0)`` is +0 for T = +0, whatever f's sign."""
    qa, qb = operands(2, 3, 128)
    nothing = replace(qa, codes=np.zeros_like(qa.codes))
    assert not bits(lp.gemm(nothing, qb, library=library, alpha=-1.0)).any()


#: What `gemm` cannot do whatever the interval: scales that change within an instruction, or where they come at the end.
WHATEVER = (
    "must begin at a block of|blocks (of . )?along K must be multiples|must be constant along K|K must be a multiple|"
    "must be values of"
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("machine", [name for name in lp.accumulators if lp.accumulators[name].dtype != np.float64])
def test_the_default_interval_fits_the_scales(machine: str) -> None:
    """The library's, or the largest whole number of instructions below it that divides the k of a scale."""
    unit = lp.accumulators[machine]
    step = unit.step()
    mine = [GemmLibrary(f"every {n}", promote_every=n) for n in (None, 96, 640)]
    done = 0
    orders = (*map(gemm_libraries.get, gemm_libraries), *mine)
    for span, library in itertools.product((32, 48, 64, 96, 128, 192, 320, None), orders):
        fmt = unit.default_format
        codes = np.ones((2, 384), fmt.code_dtype)
        scale = np.float32(2) ** -np.arange(2 * -(-384 // (span or 384)), dtype=np.float32).reshape(2, -1)
        q = lp.Quantized(codes, scale, fmt, "row" if span is None else f"1x{span}")
        try:
            got = lp.gemm(q, q, accumulator=unit, library=library)
        except ValueError as problem:
            if not re.search(WHATEVER, str(problem)):
                raise
            continue
        done += 1
        every = unit.promote_every or library.promote_every
        if unit.scale_format is None and every is not None and not (span and span % every) and every % step == 0:
            assert_same(got, lp.gemm(q, q, accumulator=unit, library=library, promote_every=every))
    assert done >= len(gemm_libraries)


@pytest.mark.parametrize(("granularity", "machine", "every"), [
    ("1x64", "exact", 64), ("1x64", "hopper_fp8", 64), ("1x192", "exact", 96), ("1x192", "hopper_fp8", 96),
    ("1x192", "amx_fp8", 64), ("row", lp.accumulators["hopper_fp8"].with_(group_size=12), 120),
], ids=str)  # fmt: skip
def test_an_interval_is_cut_to_the_scales(granularity, machine, every) -> None:
    qa, qb = operands(4, 5, 384, granularity)
    d = lp.gemm(qa, qb, accumulator=machine)
    assert_same(d, lp.gemm(qa, qb, accumulator=machine, promote_every=every))
    assert not lp.checksum(d, qa, qb, accumulator=machine).failed
