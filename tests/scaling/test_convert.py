"""Conversions between block formats: exact where every value can be kept, and told where not."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.oracle import decode


def fp4_with_scales(exponents: NDArray[np.int64]) -> lp.Quantized:
    """Every E2M1 value in each of 32 columns, in blocks of 1x32 with these powers of two."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (exponents.shape[0], 2 * exponents.shape[1]))
    return lp.Quantized(codes, np.exp2(exponents).astype(np.float32), "e2m1fn", "1x32", "e8m0fnu")


def exact(q: lp.Quantized) -> list[list[Fraction | float]]:
    """Values in exact arithmetic."""
    rows, columns = (q.granularity.rows or q.shape[0]), (q.granularity.columns or q.shape[1])
    values = []
    for i, row in enumerate(q.codes.tolist()):
        scales = [Fraction(float(q.scale[i // rows, j // columns])) for j in range(len(row))]
        found = [decode(code, q.format) for code in row]
        values.append([Fraction(v) * s for v, s in zip(found, scales, strict=True)])
    return values


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("binades", "lossless"), [(0, True), (1, True), (13, True), (14, True), (15, False), (40, False)]
)
def test_mxfp4_becomes_block_fp8_while_scales_span_14_binades(binades: int, lossless: bool) -> None:
    exponents = np.full((128, 4), -3)
    exponents[77, 2] -= binades
    q = fp4_with_scales(exponents)
    found = q.convert("e4m3fn 128x128 ue8m0")
    assert found.is_lossless == lossless
    assert found.binades.tolist() == [[binades]]
    assert found.quantized.scale.tolist() == [[2.0**-9]]  # 6 * 2^-3 over 384
    if lossless:
        assert exact(found.quantized) == exact(q)
    else:
        rows, columns = np.nonzero(found.lost)
        assert set(rows) == {77}
        assert set(columns // 32) == {2}


def test_lost_values_are_those_that_differ() -> None:
    rng = np.random.default_rng(0)
    q = fp4_with_scales(rng.integers(-12, 12, (64, 6)))
    found = q.convert("e4m3fn 32x64 ue8m0")
    before, after = exact(q), exact(found.quantized)
    wanted = [[a != b for a, b in zip(*rows, strict=True)] for rows in zip(before, after, strict=True)]
    assert found.lost.tolist() == wanted
    blocks = [[any(found.lost[i : i + 32, j : j + 64].ravel()) for j in range(0, 192, 64)] for i in (0, 32)]
    assert found.blocks.tolist() == blocks
    assert 0 < found.lost.sum() < found.lost.size


def test_no_other_power_of_two_would_do() -> None:
    """Where something is lost, every other scale loses, too: tried with all."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        q = fp4_with_scales(rng.integers(-9, 9, (2, 1)))
        found = q.convert("e4m3fn 2x32 ue8m0")
        values = np.array(exact(q), dtype=np.float64)
        fits = [bool((lp.round_to(values * 2.0**-e, "e4m3fn") * 2.0**e == values).all()) for e in range(-40, 40)]
        assert any(fits) == found.is_lossless


@pytest.mark.parametrize("name", ["mxfp8_rceil", "mxfp6_e3m2_rceil", "dsv4_fp4", "deepgemm_ue8m0"])
def test_the_same_blocks_are_exact(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((40, 100)).astype(np.float32)
    x[3] = 0
    q = lp.quantize(x, name)
    found = q.convert("ue8m0")
    assert found.is_lossless
    assert np.array_equal(found.quantized.dequantize(), q.dequantize())


def test_float32_scales_keep_their_significand() -> None:
    x = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    q = lp.quantize(x, "e4m3fn 1x128")
    assert q.convert(f"bfloat16 {q.granularity} fp32").is_lossless
    assert not q.convert(f"e4m3fn {q.granularity} ue8m0").is_lossless
    assert not q.convert("e4m3fn 4x128 fp32").is_lossless


def test_nvfp4_with_its_tensors_scale() -> None:
    q = lp.quantize(np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32), "nvfp4_te")
    found = q.convert("float16 1x16 fp32")
    assert found.is_lossless
    assert np.allclose(found.quantized.dequantize(), q.dequantize(), rtol=2.0**-22)


def test_ragged_empty_and_nan() -> None:
    codes = np.arange(7 * 45, dtype=np.uint8).reshape(7, 45) % 16
    scale = np.ones((7, 2), np.float32)
    scale[2, 1] = np.nan
    found = lp.Quantized(codes, scale, "e2m1fn", "1x32", "e8m0fnu").convert("e4m3fn 4x40 ue8m0")
    assert np.isnan(found.quantized.scale).tolist() == [[True, True], [False, False]]
    assert found.lost[:4, :32].all()
    assert not found.lost[4:].any()
    assert not found.lost[2, 32:].any()
    empty = lp.Quantized(codes[:0], scale[:0], "e2m1fn", "1x32", "e8m0fnu")
    assert empty.convert(f"e4m3fn {empty.granularity} ue8m0").is_lossless
