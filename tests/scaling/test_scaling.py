"""Block quantization: scales and codes bit for bit against the oracle, elements that are tables, input of any shape."""

import bisect
import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from answers import once
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import FLOAT32, casts, decode, tables
from lowprec.scaling import job

F32 = NDArray[np.float32]
FORMATS = ["e4m3fn", "e5m2", "e2m1fn", "e3m2fn", "e5m6"]
GRANULARITIES = ["1x128", "128x1", "128x128", "1x32", "1x16", "16x16", "7x5", "row", "column", "tensor"]
SCALES = ["fp32", "ue8m0"]


def blocks(q: lp.Quantized) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    """Yield where the scale of each block is, and where its codes are."""
    rows, columns = q.granularity.block(q.shape)
    for top, left in itertools.product(range(0, q.shape[0], rows), range(0, q.shape[1], columns)):
        yield (top // rows, left // columns), (slice(top, top + rows), slice(left, left + columns))


def check(x: F32, fmt: str, granularity: str, scale: str, floor: float = 0.0) -> None:
    """Compare every block with the oracle."""
    q = lp.quantize(x, lp.Quantizer().with_(format=fmt, granularity=granularity, scale_format=scale, amax_floor=floor))

    def ask() -> None:
        assert (q.codes.shape, q.scale.dtype, q.scale.size) == (x.shape, np.float32, len([*blocks(q)]))
        for at, part in blocks(q):
            codes, s = oracle.quantize_tile(x[part], q.format, scale, floor)
            where = f"{fmt} {granularity} {scale}: block {at}"
            if np.isnan(s):
                assert np.isnan(q.scale[at]), where
                assert q.format.nan_code is None or np.isnan(lp.decode(q.codes[part], fmt)).all(), where
            else:
                assert q.scale[at].tobytes() == s.tobytes(), f"{where}: scale {q.scale[at]!r}, wanted {s!r}"
                assert np.array_equal(q.codes[part], codes), where

    once(ask, x, fmt, granularity, scale, floor, q.codes, q.scale)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_ragged_matrices_are_the_oracles(granularity: str, scale: str) -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((37, 73)) * np.exp2(rng.integers(-30, 30, (37, 1)))).astype(np.float32)
    x[3, :40] = 0
    for fmt in FORMATS:
        check(x, fmt, granularity, scale)


@pytest.mark.parametrize("floor", [1e-4, 1e-10, 2.0**-20])
def test_amax_floor(floor: float) -> None:
    x = (
        np.random.default_rng(0).standard_normal((40, 20))
        * (10.0 ** np.linspace(-12, 0, 40, dtype=np.float32))[:, None]
    )
    x[3] = 0
    for scale in SCALES:
        check(x.astype(np.float32), "e4m3fn", "1x128", scale, floor)
    tiny = np.full((1, 128), 1e-6, np.float32)  # what is given beside a quantizer's floor of 1e-4 wins
    given = lp.quantize(tiny, lp.quantizers["dsv3_inference"].with_(format="e4m3fn", amax_floor=floor / 1e6))
    assert given.scale == lp.quantize(tiny, "e4m3fn 1x128").scale


def numbers(rows: int, columns: int) -> F32:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-8, 8, (rows, 1))
    x[1] = np.round(x[1] * 4) / 4
    x[2, :64] = 0
    return lp.round_to(x.astype(np.float32), "bfloat16")


ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "up", "to_odd")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("granularity", ["1x128", "128x1", "1x16", "1x24", "16x16", "1x7", "row", "tensor"])
@pytest.mark.parametrize("fmt", ["e4m3fn", "hif8"])
def test_codes_are_casts_of_quotients(fmt: str, granularity: str) -> None:
    """Rounded as the cast rounds; a random word belongs to an index, also where a row passes 2^32."""
    x = numbers(64, 500)
    chance = [{"seed": 9, "rounding": f"stochastic{c}", "offset": i} for c in ("", "_c") for i in (3, (1 << 32) - 200)]
    for how in [*({"rounding": rounding} for rounding in ROUNDINGS), *chance]:
        for scale, division in itertools.product(SCALES, ("divide", "reciprocal")):
            q = lp.quantize(
                x,
                lp.Quantizer().with_(
                    format=fmt, granularity=granularity, scale_format=scale, scale_application=division
                ),
                **how,
            )
            rows, columns = q.granularity.block(x.shape)
            each = np.repeat(np.repeat(q.scale, rows, 0), columns, 1)[:64, :500]
            quotients = x / each if division == "divide" else x * (np.float32(1) / each)
            assert np.array_equal(q.codes, lp.encode(quotients, fmt, **how)), (how, scale, division)
    plain = lp.quantize(x, f"{fmt} {granularity}")
    assert plain == lp.quantize(x, f"{fmt} {granularity}", rounding="nearest_even")  # also HiF8, whose own is another
    amax = [float(np.abs(x[part]).max()) for _, part in blocks(plain)]
    top = np.float32(lp.formats[fmt].max)
    assert plain.scale.ravel().tolist() == [np.float32(a) / top if a else 1 for a in amax]


@pytest.mark.slow
def test_nf4_with_absmax_is_bitsandbytes_rule() -> None:
    """absmax of 64, x * fl(1 / absmax), the nearest value: every operation in fractions, 8,192 elements."""

    def r32(value: Fraction) -> Fraction:
        return Fraction(decode(casts.cast(value, FLOAT32, "nearest_even", "ocp_sat"), FLOAT32))

    x, table = numbers(32, 256), lp.formats["nf4"].values()
    nf4 = tables.table(table.tolist())
    q = lp.quantize(x, lp.Quantizer().with_(format="nf4", granularity="1x64", scale_application="reciprocal"))
    middles = [np.float32((a + b) / 2) for a, b in itertools.pairwise(sorted(table.tolist()))]
    for at, part in blocks(q):
        block = [Fraction(float(v)) for v in x[part].ravel()]
        amax = max(map(abs, block)) or Fraction(1)
        assert q.scale[at] == amax
        scaled = [r32(v * r32(1 / amax)) for v in block]
        codes = q.codes[part].ravel().tolist()
        assert codes == [tables.cast(v, nf4, "nearest_even") for v in scaled]
        # Their thresholds are float32 midpoints, of which none was met.
        assert codes == [bisect.bisect_left(middles, np.float32(float(v))) for v in scaled]
    assert q.bits_per_value == 4.5
    values = table[q.codes] * np.repeat(q.scale, 64, axis=1)
    assert np.array_equal(q.dequantize(), values)
    assert np.array_equal(
        lp.quantize_dequantize(
            x, lp.Quantizer().with_(format="nf4", granularity="1x64", scale_application="reciprocal")
        ),
        values,
    )


@pytest.mark.parametrize("name", ["nf4", "hif8"])
def test_tables_and_what_is_not_finite(name: str) -> None:
    x = np.ones((3, 64), np.float32)
    x[0, 1], x[1, 2] = np.nan, -np.inf
    values = lp.quantize(x, f"{name} 1x64").dequantize()
    assert np.isnan(values[:2]).all()
    assert (values[2] == 1).all()
    assert lp.quantize(np.zeros((0, 64)), f"{name} 1x64").shape == (0, 64)
    given = lp.quantize(x[2:], f"{name} 1x64", inverse_scale=0.5)
    assert (given.scale.item(), given.codes[0, 0]) == (2.0, lp.encode(0.5, name))


# --- any input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 128), (5, 0), (0, 0), (128,), (0,), (), (2, 3, 200), (3, 0, 128)])
@pytest.mark.parametrize("granularity", ["1x128", "128x128", "tensor"])
def test_any_shape_and_as_many_scales_as_blocks(shape: tuple[int, ...], granularity: str) -> None:
    x = np.ones(shape, np.float32)
    q = lp.quantize(x, f"e4m3fn {granularity}")
    again = lp.Quantized(q.codes, q.scale, "e4m3fn", granularity)
    assert (q.codes.shape, np.asarray(q).shape, again.dequantize().shape) == (shape,) * 3
    assert (q.dequantize() == x).all()
    assert again.dequantize().tobytes() == q.dequantize().tobytes()
    if len(shape) == 2:
        assert q.T.scale.shape == q.scale.T.shape


def test_storage_counts_codes_and_scales() -> None:
    x = np.zeros((128, 576), np.float32)  # 576 columns are four and a half blocks
    assert lp.quantize(x, "e4m3fn 1x128").nbytes == 128 * 576 + 4 * 128 * 5
    assert lp.quantize(x, "e4m3fn 1x128 ue8m0").nbytes == 128 * 576 + 128 * 5
    assert lp.quantize(x, "e2m1fn 1x16").bits_per_value == 4 + 32 / 16
    assert lp.quantize(x, "e5m6 128x128").nbytes == 128 * 576 * 12 // 8 + 4 * 5


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("columns", [16, 48, 1024])
def test_every_nan_of_a_transform_has_the_same_bits(axis, columns):
    """The sign of Inf - Inf, and of a NaN that is added, would depend on which loop computes it."""
    x = np.random.default_rng(0).choice([1.0, -np.inf, np.inf, -np.nan, np.nan], (64, columns)).astype(np.float32)
    y = lp.hadamard(x, axis=axis)
    assert set(y[np.isnan(y)].view(np.uint32).tolist()) == {0x7FC00000}


@pytest.mark.parametrize("quantizer", ["nvfp4_te", "mxfp8_floor", "te_block", "te_current", "nvfp4_modelopt"])
def test_values_written_past_the_caches_are_the_same(quantizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and ragged blocks, arrays that begin anywhere, over the input, NaN and Inf."""
    rng = np.random.default_rng(2)
    for shape in ((40, 512), (33, 250), (3, 20000)):
        x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, (shape[0], 1)))).astype(np.float32)
        x[0, 3], x[1, 5], x[2, :9] = np.nan, np.inf, -0.0
        wanted = lp.quantize(x, quantizer).dequantize().view(np.uint32)
        for least in (0, 1 << 60):
            monkeypatch.setattr(job, "STREAMED", least)
            own = x.copy()
            places = [(x, np.empty(x.size + start, np.float32)[start:].reshape(shape)) for start in range(5)]
            for source, out in [*places, (own, own)]:
                lp.quantize_dequantize(source, quantizer, out=out)
                assert np.array_equal(out.view(np.uint32), wanted)


@pytest.mark.parametrize(
    "spec", ["e4m3fn 1x128", "e4m3fn 32x64 ue8m0", "nvfp4_te", "nvfp4_te_row_scaled", "te_current"]
)
def test_rows_and_products_of_a_quantized_matrix(spec: str) -> None:
    q = lp.quantize(np.random.default_rng(5).standard_normal((100, 192)).astype(np.float32), spec)
    for rows in (slice(32, 64), slice(64, None), slice(None), slice(64, 0), slice(100, 100)):
        assert np.array_equal(q[rows].dequantize(), q.dequantize()[rows])
    assert np.shares_memory(q[32:].codes, q.codes)
    wide = lp.quantize(np.ones((64, 192), np.float32), "e4m3fn 1x64")
    assert np.array_equal(wide @ wide.T, lp.gemm(wide, wide))
    with pytest.raises(TypeError, match="Quantized: w must be Quantized in q @ w, got ndarray"):
        wide @ np.ones((192, 2))
