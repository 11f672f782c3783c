"""Checksums of products: no accumulator's rounding trips them, and what is larger does."""

import numpy as np
import pytest
from floats import normal
from refusals import refusals

import lowprec as lp
from lowprec.bounds.checksum import Bound, Side, compared
from lowprec.recipe.operands import as_quantized
from lowprec.tensorcore.accumulator import FLOAT64
from lowprec.tensorcore.kinds.nvidia import aligned_error

SHAPE = (18, 23)
BY_GEMM = [name for name in lp.accumulators if lp.accumulators[name].output_format != FLOAT64]


def families(rng, k):
    """Yield operands: those that cancel, add up, lose terms below a large one, or are subnormal."""

    def draw():
        return [normal(rng, rows, k) for rows in SHAPE]

    yield "normal", *draw()
    yield "positive", *map(np.abs, draw())
    x, y = map(np.abs, draw())
    x[:, 0], y[:, 0], x[:, 1:] = 60, 30, x[:, 1:] * 0.01
    yield "one large", x, y
    x, y = draw()
    x[:, 1::2], y[:, 1::2] = -x[:, 0::2], y[:, 0::2]
    yield "cancelling", x, y
    x, y = draw()
    yield "tiny", x * np.float32(2**-13), y * np.float32(2**-3)
    yield "wide", *(z * np.exp2(rng.integers(-20, 6, z.shape)).astype(np.float32) for z in draw())
    x, y = draw()
    yield "zeros", x * (rng.random(x.shape) < 0.1), y


def operands(accumulator, fmt, x, y):
    """Return both operands with the scales that suit an accumulator, and how it may be promoted."""
    if accumulator.scale_format == lp.formats["e4m3fn"]:
        return [lp.quantize(v, "nvfp4_te") for v in (x, y)], (None,)
    if accumulator.scale_format is not None:
        blocks = f"1x{accumulator.scale_block}"
        return [lp.quantize(v, f"{fmt} {blocks} ue8m0") for v in (x, y)], (None,)
    if fmt.bits == 8 and accumulator.dtype != np.float16:
        every = (None, 128) if accumulator.has_running_sum else (128,)
        return [lp.quantize(v, f"{fmt} 1x128") for v in (x, y)], every
    # Float16 sums overflow on operands that were scaled up to their format's largest number.
    return [as_quantized(lp.round_to(v, fmt), fmt) for v in (x, y)], (None, 128)


@pytest.mark.sampled(1, default=24)
@pytest.mark.parametrize("name", BY_GEMM)
def test_no_rounding_trips_it(name):
    """Each element by itself, where the bound is tightest, and sums of many."""
    accumulator = lp.accumulators[name]
    judged = worst = 0.0
    for fmt in accumulator.input_formats or (lp.formats["e4m3fn"],):
        for k in (38, 256) if fmt == accumulator.default_format else (38,):
            for family, x, y in families(np.random.default_rng(k), k):
                pair, intervals = operands(accumulator, fmt, x, y)
                for every in intervals:
                    for out, tile in (("float32", 1), ("float32", 16), ("bfloat16", 16)):
                        d = lp.gemm(*pair, accumulator=accumulator, promote_every=every, out_format=out)
                        found = lp.checksum(
                            d, *pair, accumulator=accumulator, promote_every=every, out_format=out, tile=tile
                        )
                        assert not found.failed, (fmt, k, family, every, out, tile, found.max_error_ratio)
                        judged += np.isfinite(found.column_bound).mean()
                        worst = max(worst, found.max_error_ratio if out == "float32" else 0.0)
    assert judged > 1
    assert 0.03 < worst <= 1  # a bound that nothing comes near would see nothing


def test_float64_sums_by_the_same_bound():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 300)), rng.standard_normal((7, 300))
    d = lp.mma(x, y, accumulator="fp64")
    bound = Bound.of(lp.accumulators["fp64"], 300, None, 300, lp.formats["float32"])
    sides = [Side(v, np.abs(v), np.ones_like(v), np.sqrt((v**2).sum(axis=1))) for v in (x, y)]
    # Its own error is of the checksum's: only the weights of the chain are asked.
    off, _ = compared(d, *sides, bound, 1)
    allowed = np.abs(x) @ np.abs(y).T * 300 * 2.0**-53
    assert np.all(np.abs(off) <= 2 * allowed)
    error = lp.accumulators["fp64"].step_error()
    assert error.relative == 2.0**-53


@pytest.mark.parametrize("name", ["hopper_fp8", "ada_fp8", "hopper_f16", "blackwell_fp8"])
def test_a_step_can_err_by_a_good_part_of_its_bound(name):
    """A large term and as many others as there are, each just below what is kept: all of it is lost."""
    accumulator = lp.accumulators[name]
    fmt = "e5m2" if accumulator.accepts(lp.formats["e5m2"]) else accumulator.default_format
    group = accumulator.group_size
    bound = aligned_error(accumulator, group + 1)
    lost, left = 2.0 ** -(accumulator.fraction_bits + 1), 2.0 ** -(accumulator.fraction_bits // 2 + 1)
    codes = [lp.encode(np.full((1, group), value), fmt) for value in (left, lost / left)]
    assert [lp.decode(side, fmt)[0, 0] for side in codes] == [left, lost / left]
    c = np.ones((1, 1), accumulator.dtype)
    d = lp.mma(*codes, c, accumulator=accumulator, a_format=fmt, b_format=fmt)
    error = 1.0 + group * lost - float(d[0, 0])
    assert 0.3 * bound.relative * (1 + group * lost) < error <= bound.relative * (1 + group * lost) + bound.absolute


def pair(rng, m=200, n=150, k=384):
    rng = np.random.default_rng(rng)
    return [lp.quantize(normal(rng, rows, k), f"e4m3fn {g}") for rows, g in ((m, "1x128"), (n, "128x128"))]


@pytest.mark.parametrize("value", [1e4, np.nan, np.inf, -np.inf])
def test_a_wrong_element_is_found_where_it_is(value):
    a, b = pair(1)
    d = lp.gemm(a, b)
    assert lp.checksum(d, a, b).suspects() == []
    for i, j in ((0, 0), (130, 7), (199, 149)):
        wrong = d.copy()
        wrong[i, j] += value
        found = lp.checksum(wrong, a, b)
        assert found.failed
        assert not np.isfinite(value) or (found.suspects() == [(i, j)] and found.max_error_ratio > 1)


def test_operands_that_are_not_finite_are_not_judged():
    rng = np.random.default_rng(3)
    x = normal(rng, 20, 128)
    x[2, 5] = np.nan
    a, b = lp.quantize(x, "e4m3fn 1x128"), pair(rng, 20, 30, 128)[1]
    found = lp.checksum(lp.gemm(a, b), a, b)
    assert not found.failed
    assert not np.isfinite(found.row_bound[2]).any()
    assert np.isfinite(found.row_bound[3]).all()


def test_a_flipped_code_is_seen_where_it_changes_much():
    """The operands of the checksum are those before the flip."""
    rng = np.random.default_rng(4)
    a, b = pair(rng, 64, 64, 128)
    struck = lp.Quantized(a.codes.copy(), a.scale, a.format, a.granularity)
    i, k = np.unravel_index(np.argmin(np.abs(a.dequantize())), a.shape)
    struck.codes[i, k] ^= 1 << 6
    assert lp.checksum(lp.gemm(struck, b, accumulator="exact"), a, b, accumulator="exact").failed


@pytest.mark.slow
def test_shorter_sums_see_more():
    a, b = pair(5)
    d = lp.gemm(a, b)
    d[5, 5] += np.float32(20)
    ratios = [lp.checksum(d, a, b, tile=tile).max_error_ratio for tile in (1, 8, 64, 200)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1


test_refused = refusals([
    ("lp.checksum(np.zeros((5, 5)), a, b)", "checksum"),
    ("lp.checksum(np.zeros((5, 6)), a, b, tile=0)", "tile"),
    ("lp.checksum(np.zeros((5, 6)), a.codes, b)", TypeError, "Quantized"),
], lambda: dict(zip("ab", pair(6, 5, 6, 128), strict=True)))  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 128), (3, 0, 128), (0, 0, 128), (2, 3, 0)])
def test_a_product_without_elements_has_nothing_off(m, n, k):
    a, b = (lp.quantize(np.ones((rows, k), np.float32), "e4m3fn 1x128") for rows in (m, n))
    found = lp.checksum(lp.gemm(a, b), a, b, tile=2)
    assert not found.failed
    assert found.suspects() == []
    assert found.column_error.shape == found.column_bound.shape == (-(-m // 2), n)
    assert found.row_error.shape == found.row_bound.shape == (m, -(-n // 2))
