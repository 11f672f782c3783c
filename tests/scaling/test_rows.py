"""Scales of rows on top of blocks' own, as row-scaled NVFP4 has them: quantizer, arrays, files, products, refusals."""

import copy
import functools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scale_rules
from numpy.typing import NDArray
from refusals import refusals

import lowprec as lp
from lowprec.scaling.rules import AmaxRule
from lowprec.tensorcore.grouped import grouped_gemm, grouped_wgrad
from lowprec.testing import assert_bits_equal

F32 = NDArray[np.float32]
NAME = "nvfp4_te_row_scaled"
KINDS = ("normal", "wide", "tiny", "huge", "zeros", "nan", "inf")


@functools.cache
def matrix(kind: str) -> F32:
    """Return numbers whose rows are of different sizes, and what is special about a kind."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6, 80)) * np.exp2(rng.integers(-9, 9, (6, 1)))
    if kind == "wide":
        x *= np.exp2(rng.integers(-30, 30, x.shape))
    x = (x * {"tiny": 2.0**-140, "huge": 2.0**110}.get(kind, 1.0)).astype(np.float32)
    if kind == "zeros":
        x[1], x[2], x[3, :16], x[4, :-1] = 0, -0.0, 0, 0
    if kind == "nan":
        x[1, 5], x[2], x[3, -1] = np.nan, np.nan, -np.nan
    if kind == "inf":
        x[1, 5], x[2, ::7], x[3, :2] = np.inf, -np.inf, (np.inf, np.nan)
    return x


def quantized(kind: str = "normal") -> lp.Quantized:
    return lp.quantize(matrix(kind), NAME)


def bits(x: F32) -> list[int]:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint32).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_a_row_is_a_tensor_of_its_own(kind, rounding):
    """Codes, scales and values of a row are those that NVFP4 has for the row alone."""
    x = matrix(kind)
    seed = {"seed": 4} if rounding == "stochastic" else {}
    q = lp.quantize(x, NAME, rounding=rounding, **seed)
    values = lp.quantize_dequantize(x, NAME, rounding=rounding, **seed)
    assert bits(values) == bits(q.dequantize())
    if not seed:  # whose words belong to indices
        turned = lp.quantize(x.T, f"{NAME} 16x1").T
        assert (turned.codes == q.codes).all()
        assert bits(turned.scale) == bits(q.scale)
        assert bits(turned.tensor_scale) == bits(q.tensor_scale)
    for i, row in enumerate(x):
        more = {**seed, "offset": i * x.shape[1]} if seed else {}
        one = lp.quantize(row[None], "nvfp4_te", rounding=rounding, **more)
        assert (one.codes == q.codes[i]).all()
        assert bits(one.scale) == bits(q.scale[i])
        assert bits(one.tensor_scale) == bits(q.tensor_scale[i])
        assert bits(one.dequantize()) == bits(values[i])


def test_an_amax_that_is_given_is_every_rows():
    q, tensor = (lp.quantize(matrix("wide"), name, tensor_amax=7.5) for name in (NAME, "nvfp4_te"))
    assert (q.codes == tensor.codes).all()
    assert bits(q.scale) == bits(tensor.scale)
    assert q.tensor_scale.tolist() == [[float(tensor.tensor_scale)]] * 6


def test_transposed_turned_and_reshaped():
    q, x = quantized(), matrix("normal")
    assert q.T.tensor_scale.shape == (1, 6)
    assert q.T.granularity == lp.Granularity(16, 1)
    assert q == q.T.T
    assert bits(q.T.dequantize().T) == bits(q.dequantize())
    rows, columns = lp.quantize_with_transpose(x, NAME)
    assert rows == q
    assert replace(columns, quantizer=q.quantizer) == lp.quantize(np.ascontiguousarray(x.T), NAME)
    batch = lp.quantize(x.reshape(2, 3, 80), NAME)
    assert batch.tensor_scale.shape == (6, 1)
    assert bits(batch.dequantize()) == bits(q.dequantize())
    assert q.requantize("1x16").codes.shape == x.shape
    assert lp.quantize(np.zeros((3, 0), np.float32), NAME).tensor_scale.tolist() == [[1.0]] * 3
    lossless = q.convert("float16 1x16 fp32")
    assert np.allclose(lossless.quantized.dequantize(), q.dequantize(), rtol=1e-3)


def test_an_array_of_scales_is_part_of_the_value():
    q = quantized()
    other = replace(q, tensor_scale=q.tensor_scale * 2)
    assert pickle.loads(pickle.dumps(q)) == copy.deepcopy(q) == q != other
    assert q != replace(q, tensor_scale=q.tensor_scale[0, 0])
    assert q.nbytes == 6 * 80 // 2 + 6 * 5 + 6 * 4
    assert "1x16 with e4m3fn scales times those of 6 rows" in repr(q)
    assert "times those of 6 columns" in repr(q.T)
    assert "scales of rows" in q._repr_html_()
    out = q.dequantize(out=np.empty(q.shape, np.float32))
    scale, decoded = np.repeat(q.scale, 16, axis=1), lp.decode(q.codes, q.format)
    assert bits(out) == bits((scale * decoded) * q.tensor_scale)
    assert_bits_equal(q, copy.copy(q))
    for wrong in (other, replace(q, tensor_scale=None), replace(q, tensor_scale=np.float32(1))):
        with pytest.raises(AssertionError, match="tensor_scale"):
            assert_bits_equal(q, wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind, tmp_path):
    row, column = (lp.quantize(x, NAME) for x in (matrix(kind)[:1], matrix(kind)[:, :1]))
    for q in (quantized(kind), quantized(kind).T, row, row.T, column, column.T):
        q.save(tmp_path / "q.npz")
        assert lp.Quantized.load(tmp_path / "q.npz") == q


def test_damaged_files(tmp_path):
    path = tmp_path / "q.npz"
    quantized().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    for change in ({"tensor_scales": arrays["tensor_scales"] * 2}, {"tensor_scales": arrays["tensor_scales"][:5]}):
        np.savez(path, **{**arrays, **change})
        with pytest.raises(ValueError, match="damaged"):
            lp.Quantized.load(path)
    del arrays["tensor_scales"]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="damaged"):
        lp.Quantized.load(path)


@functools.cache
def operands(scaled: str, k: int = 64) -> tuple[lp.Quantized, lp.Quantized]:
    rng = np.random.default_rng(8)
    names = [NAME if side in scaled else "nvfp4_te" for side in "ab"]
    x, w = ((rng.standard_normal((n, k)) * np.exp2(rng.integers(-9, 9, (n, 1)))).astype(np.float32) for n in (6, 9))
    return lp.quantize(x, names[0]), lp.quantize(w, names[1])


def scaled_product(a: lp.Quantized, b: lp.Quantized, alpha: float, c: F32 | None, **options: object) -> F32:
    """Return fma(float32(float32(t_a * t_b) * alpha), product of the blocks, C), each float32 operation by itself."""
    plain = lp.gemm(replace(a, tensor_scale=None), replace(b, tensor_scale=None), **options)
    left, right = np.float32(a.tensor_scale), np.float32(b.tensor_scale)
    factor = (left * (right.T if right.ndim else right)).astype(np.float32) * np.float32(alpha)
    exact = factor.astype(np.float64) * plain  # 24 + 24 bits fit
    return (exact if c is None else exact + c).astype(np.float32)


@pytest.mark.parametrize("scaled", ["a", "b", "ab"])
@pytest.mark.parametrize("accumulator", ["blackwell_nvfp4", "float32", "exact"])
def test_products_are_multiplied_by_the_scales_of_row_and_column(accumulator, scaled):
    a, b = operands(scaled)
    d = lp.gemm(a, b, accumulator=accumulator, alpha=0.3)
    assert bits(d) == bits(scaled_product(a, b, 0.3, None, accumulator=accumulator))
    c = np.full(d.shape, 2.0**-3, np.float32)
    with_c = lp.gemm(a, b, c, accumulator=accumulator)
    want = scaled_product(a, b, 1.0, c, accumulator=accumulator)
    assert np.allclose(with_c, want, rtol=2**-23)  # the sum in float64 is rounded twice
    assert (lp.gemm(a, b, accumulator=accumulator, out_format="bfloat16") == lp.round_to(
        lp.gemm(a, b, accumulator=accumulator), "bfloat16")).all()  # fmt: skip
    close = a.dequantize().astype(np.float64) @ b.dequantize().T.astype(np.float64)
    assert np.allclose(d, 0.3 * close, rtol=1e-3, atol=1e-3 * np.abs(close).max(axis=1, keepdims=True))


@pytest.mark.parametrize("scaled", ["a", "ab"])
def test_products_of_rows_alone_batches_and_experts(scaled):
    a, b = operands(scaled)
    d = lp.gemm(a, b, accumulator="blackwell_nvfp4")
    packed = lp.prepack_b(b, "blackwell_nvfp4")
    assert bits(lp.gemm(a, packed, accumulator="blackwell_nvfp4")) == bits(d)
    for i, row in enumerate(a.dequantize()):
        one = lp.quantize(row[None], NAME)
        alone = replace(one, codes=a.codes[i : i + 1], scale=a.scale[i : i + 1], tensor_scale=a.tensor_scale[i : i + 1])
        assert bits(lp.gemm(alone, b, accumulator="blackwell_nvfp4")) == bits(d[i])
    batch = replace(a, codes=a.codes.reshape(2, 3, -1))
    each = lp.gemm(batch, replace(b, codes=np.stack([b.codes] * 2), scale=np.tile(b.scale, (2, 1)),
                                  tensor_scale=np.tile(b.tensor_scale, (2, 1)) if scaled == "ab" else b.tensor_scale),
                   accumulator="blackwell_nvfp4")  # fmt: skip
    assert bits(each) == bits(d)
    rows = grouped_gemm(a, [b, b], expert=[0, 1, -1, 1, 0, 0], accumulator="blackwell_nvfp4")
    assert bits(rows[[0, 1, 3, 4, 5]]) == bits(d[[0, 1, 3, 4, 5]])
    runs = grouped_wgrad(a, b, [16, 64 - 32], align=32, accumulator="blackwell_nvfp4")
    parts = [replace(q, codes=q.codes[:, 32:], scale=q.scale[:, 2:]) for q in (a, b)]
    assert bits(runs[1]) == bits(lp.gemm(*parts, accumulator="blackwell_nvfp4"))


def test_scales_at_the_end_and_of_rows():
    """What comes at the end and what stands on top of it are multiplied in that order, each rounded."""
    a, b = operands("ab", 16)
    d = lp.gemm(a, b, accumulator="exact", library="cublaslt")
    ones = [replace(q, scale=np.ones((1, 1), np.float32), granularity="tensor", tensor_scale=None) for q in (a, b)]
    plain = lp.gemm(*ones, accumulator="exact", library="cublaslt")
    factor = a.scale * (a.tensor_scale * b.tensor_scale.T)
    assert bits(d) == bits((factor.astype(np.float64) * (plain * b.scale.T)).astype(np.float32))


@pytest.mark.parametrize("scaled", ["a", "ab"])
def test_checksums_see_a_wrong_element_of_any_row(scaled):
    a, b = operands(scaled)
    for accumulator in ("blackwell_nvfp4", "float32"):
        d = lp.gemm(a, b, accumulator=accumulator)
        assert not lp.checksum(d, a, b, accumulator=accumulator).failed
        for i in range(len(d)):
            wrong = d.copy()
            wrong[i, 3] += np.abs(d[i]).max()
            assert lp.checksum(wrong, a, b, accumulator=accumulator, tile=1).failed


def test_functions_return_scales_of_rows_or_columns():
    x = matrix("wide")
    mine = lp.Quantizer("mine", "e2m1fn", "1x16", "e4m3fn", scale_rules.row_scaled)
    q = lp.quantize(x, mine)
    assert q.tensor_scale.shape == (6, 1)
    want = np.maximum(np.abs(x).max(axis=1, keepdims=True) / np.float32(6 * 448), 2.0**-120).astype(np.float32)
    assert bits(q.tensor_scale) == bits(want)
    divisor = np.maximum(np.repeat(q.scale, 16, axis=1) * q.tensor_scale, np.float32(2.0**-149))
    assert (q.codes == lp.encode(x / divisor, "e2m1fn", overflow="saturate")).all()
    assert bits(lp.quantize_dequantize(x, mine)) == bits(q.dequantize())
    turned = lp.quantize(x.T, mine.with_(granularity="16x1", rule=scale_rules.row_scaled))
    assert turned.T.tensor_scale.shape == (6, 1)
    assert (turned.T.codes == q.codes).all()
    wide = lp.quantize(x, mine.with_(granularity="4x16"))
    assert wide.tensor_scale.shape == (6, 1)
    assert (wide.tensor_scale[:4] == wide.tensor_scale[0]).all()
    special = matrix("nan")
    assert lp.quantize(special, mine).tensor_scale[2, 0] == 1  # nothing but NaN
    rows = np.isfinite(special).all(axis=1)
    assert bits(lp.quantize(special, mine).dequantize()[rows]) == bits(lp.quantize(special[rows], mine).dequantize())


def test_quantizers_of_ones_own():
    q = lp.quantizers["nvfp4_te"].with_(tensor_scale="row")
    assert q == lp.quantizers[NAME]
    assert hash(q) == hash(lp.quantizers[NAME])
    assert q.name == "nvfp4_te(tensor_scale=row)"
    assert q != lp.quantizers["nvfp4_te"]
    assert pickle.loads(pickle.dumps(q)) == q
    torchao = lp.quantizers["nvfp4_torchao"].with_(tensor_scale="row")
    x = matrix("normal")
    for i, row in enumerate(x):
        one = lp.quantize(row[None], "nvfp4_torchao")
        assert (one.codes == lp.quantize(x, torchao).codes[i]).all()
    turned = lp.quantizers["nvfp4_te_rht"].with_(tensor_scale="row")
    hadamard = lp.round_to(lp.hadamard(x), "bfloat16")
    assert (lp.quantize(x, turned).codes == lp.quantize(hadamard, NAME).codes).all()


def names():
    q = quantized()
    one = np.ones((4, 32), np.float32)
    mine = lp.Quantizer("mine", "e2m1fn", "1x16", "e4m3fn", scale_rules.row_scaled)
    return {"q": q, "x": matrix("normal"), "one": one, "N": NAME, "replace": replace, "AmaxRule": AmaxRule,
            "row": lp.quantizers[NAME], "mine": mine, "rules": scale_rules, "Codec": type(lp.codecs["nvfp4"]),
            "grouped_wgrad": grouped_wgrad}  # fmt: skip


test_refused = refusals(
    [
        (
            "AmaxRule('te_folded', tensor_scale='column')",
            "AmaxRule: tensor_scale must be 'tensor' or 'row', got 'column'",
        ),
        (
            "AmaxRule('block_scale_only', tensor_scale='row')",
            "scale_calculation must have two levels of scales with tensor_scale='row', got 'block_scale_only'",
        ),
        (
            "AmaxRule('direct', tensor_scale='row', four_over_six='mae')",
            "four_over_six must be None with tensor_scale='row'",
        ),
        ("row.with_(granularity='16x16')", "granularity must be 1xN or Nx1 with tensor_scale='row', .* got 16x16"),
        (
            "lp.quantize(x, f'{N} bfloat16')",
            "element format must be one such as e2m1fn with two levels of scales, got bfloat16,",
        ),
        ("lp.quantize(x, N, tensor_amax=-1.0)", "quantize: tensor_amax must be a number >= 0 or Inf, got -1.0"),
        ("lp.quantize(x, N, inverse_scale=1.0)", "inverse_scale must be None with e4m3fn scales by .*'row'"),
        ("replace(q, tensor_scale=q.tensor_scale[:4])", r"of shape \(6, 1\) or \(1, 80\) .* got shape \(4, 1\)"),
        ("replace(q, tensor_scale=np.float32([1]))", r"must be a number or of shape \(6, 1\) or \(1, 80\)"),
        ("replace(q, tensor_scale=np.ones((6, 1)))", TypeError, "a number or an ndarray of float32, got float64"),
        (
            "replace(q, tensor_scale=-q.tensor_scale).save('q.npz')",
            "tensor_scales must be >= 0, got -0.07911903411149979",
        ),
        (
            "lp.gemm(q.T, q.T, accumulator='float32')",
            r"gemm: tensor_scale of a must be a number or one per row, got shape \(1, 6\)",
        ),
        (
            "grouped_wgrad(q.T, q.T, [3], align=16)",
            r"gemm: tensor_scale of dy must be a number or one per row, got shape \(1, 6\)",
        ),
        ("lp.check(q, x)", r"check: tensor_scale must be a number of the tensor, got an array of shape \(6, 1\)"),
        ("lp.check(q.codes, x, N, scale=q.scale)", "check: quantizer must have one scale of the tensor or none"),
        (
            "Codec('c', 'e2m1fn', 16, 'e4m3fn', N, True)",
            "quantizer must have one tensor scale or none, got nvfp4_te_row_scaled with a scale",
        ),
        (
            "Codec('c', 'e2m1fn', 16, 'e4m3fn', mine).encode(one)",
            "quantizer must have one tensor scale with tensor_scale=True, else none, got",
        ),
        ("lp.quantize(x, mine.with_(rule=rules.row_and_column))", r"or scales of shape \(6, 1\) or \(1, 5\)"),
    ],
    names,
)
