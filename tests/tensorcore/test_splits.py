"""Splits of K against the oracle in fractions; each wrong rule changes results."""

import dataclasses
import functools
import itertools
from typing import get_args

import numpy as np
import pytest
from gemms import fma

import lowprec as lp
from lowprec.oracle.splits import WRONG, split_sum, stream_cuts
from lowprec.oracle.values import exact
from lowprec.recipe.operands import as_quantized
from lowprec.tensorcore.library import SplitKReduction

WORDS = {"float32": np.uint32, "bfloat16": np.uint32, "float16": np.uint16}


def operands(k, m=4, n=5, seed=0):
    """Return operands of bfloat16 without scales."""
    rng = np.random.default_rng(seed)
    pair = [rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-3, 3, (rows, k)) for rows in (m, n)]
    return [as_quantized(x.astype(np.float32), lp.formats["bfloat16"]) for x in pair]


def expected(a, b, fmt, **given):
    x, y = a.dequantize().tolist(), b.dequantize().tolist()
    c = given.pop("c", None)
    codes = [
        [split_sum([(exact(p), exact(q)) for p, q in zip(row, column, strict=True)], out=fmt,
                   c=None if c is None else exact(float(c[i, j])), **given) for j, column in enumerate(y)]
        for i, row in enumerate(x)
    ]  # fmt: skip
    codes = np.array(codes)
    return (codes << 16 if fmt == "bfloat16" else codes).astype(WORDS[fmt])


def word(values, fmt):
    return values.astype(np.float16).view(np.uint16) if fmt == "float16" else values.view(np.uint32)


SPLIT = {"cutlass_serial": "serial", "cutlass_workspace": "workspace", "cutlass_sliced": "serial", "det_gemm": "tree"}


@pytest.mark.sampled(1, default=16)
@pytest.mark.parametrize("fmt", WORDS)
@pytest.mark.parametrize(("k", "split_k"), [(500, 3), (129, 2), (64, 4), (33, 1)])
@pytest.mark.parametrize("library", SPLIT)
def test_libraries_have_the_bits_of_fractions(library, k, split_k, fmt):
    a, b = operands(k)
    fields = lp.gemm_libraries[library]
    given = {"reduction": SPLIT[library], "split_k": split_k, "split_tile": fields.split_tile, "slices": fields.slices}
    c = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32) * 30
    for options, more in (({}, {}), ({"alpha": 0.75, "c": c}, {"alpha": exact(0.75), "c": c})):
        got = lp.gemm(a, b, accumulator="float32", library=library, split_k=split_k, out_format=fmt, **options)
        np.testing.assert_array_equal(word(got, fmt), expected(a, b, fmt, **given, **more))


def parts_one_by_one(a, b, library, split_k, fmt, accumulator, alpha=1.0, c=None):
    """Return the result of a split as products of its parts, which are scaled, rounded and added in NumPy."""
    at_end, scales = library.apply_scales_at == "end", [q.scale.reshape(-1, 1) for q in (a, b)]
    factor = (scales[0] * scales[1].T if at_end else np.float32(1)) * np.float32(alpha)
    unit = [dataclasses.replace(q, scale=np.ones_like(q.scale)) for q in (a, b)] if at_end else (a, b)
    one_part = library.with_(slices=1, split_k_reduction="float32", promote_every=library.promote_every)

    def chain(some):
        x, y = (dataclasses.replace(q, codes=np.ascontiguousarray(q.codes[:, some])) for q in unit)
        return lp.gemm(x, y, accumulator=accumulator, library=one_part)

    def part(start, stop):
        ks = np.arange(start, stop)
        slices = [ks[(ks - start) // library.slice_length % library.slices == s] for s in range(library.slices)]
        return functools.reduce(np.add, (chain(some) for some in slices if some.size))

    def finished(x, addend=None):
        if alpha == 1 and addend is None and (factor == 1).all():
            return x
        return fma(factor, x, 0 if addend is None else addend)

    def halves(start, stop):
        if stop - start <= library.split_tile:
            return lp.round_to(part(start, stop), fmt)
        middle = start + (stop - start) // 2
        return lp.round_to(halves(start, middle) + halves(middle, stop), fmt)

    k, reduction = a.codes.shape[1], library.split_k_reduction
    with np.errstate(over="ignore", invalid="ignore"):
        if reduction == "tree":
            return lp.round_to(finished(halves(0, k), c), fmt)
        sums = [part(*ends) for ends in library.parts(k, split_k)]
        if reduction == "serial":
            return functools.reduce(lambda total, x: lp.round_to(finished(x, total), fmt), sums, c)
        if reduction == "out":
            sums = [lp.round_to(finished(x, None if i else c), fmt) for i, x in enumerate(sums)]
            return functools.reduce(lambda total, x: lp.round_to(total + x, fmt), sums)
        if reduction == "workspace":
            sums = [lp.round_to(x, fmt) for x in sums]
        return lp.round_to(finished(functools.reduce(np.add, sums), c), fmt)


REDUCTIONS = [{"split_k_reduction": reduction} for reduction in get_args(SplitKReduction)]
#: Fields of a library, granularity of the operands, alpha, and whether there is a C.
EPILOGUES = [
    ({"apply_scales_at": "end", "promote_every": None}, None, 1.0, False),
    ({"apply_scales_at": "end", "promote_every": 64}, "row", -0.3, True),
    ({"apply_scales_at": "promotion", "promote_every": 64, "fma_promotion": False}, "row", 1.0, True),
    ({"apply_scales_at": "promotion", "promote_every": 32}, "tensor", 1.5, False),
]


@pytest.mark.sampled(12, default=108)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda x: f"{x[0]['apply_scales_at']}-{x[0]['promote_every']}")
@pytest.mark.parametrize("fields", [*REDUCTIONS, {"slices": 3, "slice_length": 8}])
@pytest.mark.parametrize("fmt", ["bfloat16", "e4m3fn", "nf4"])
@pytest.mark.parametrize(
    ("accumulator", "codes"),
    [("hopper_fp8", "e4m3fn"), ("hopper_bf16", "bfloat16"), ("hopper_f16_f16", "float16"), ("float32", "bfloat16"),
     ("cdna1_bf16", "bfloat16"), ("hopper_fp8_mma", "e4m3fn")],
)  # fmt: skip
def test_one_product_has_the_bits_of_its_parts_one_by_one(accumulator, codes, fmt, fields, epilogue):
    (more, granularity, alpha, has_c), k = epilogue, 327
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-4, 5, (rows, k)) for rows in (35, 9))
    x[:3] *= 2.0**20  # partial sums beyond float16 and FP8
    x[3, 7], x[4, 80], y[1, 50] = np.nan, np.inf, 0
    c = (rng.standard_normal((35, 9)) * 100).astype(np.float32) if has_c else None
    a, b = (as_quantized(lp.round_to(z.astype(np.float32), codes), lp.formats[codes]) for z in (x, y))
    if granularity is not None:
        a, b = (
            dataclasses.replace(
                q, scale=rng.uniform(0.5, 2, (1 if granularity == "tensor" else len(q.codes), 1)).astype(np.float32),
                granularity=lp.Granularity.parse(granularity),
            )
            for q in (a, b)
        )  # fmt: skip
    library = lp.GemmLibrary("mine", split_tile=24, **fields, **more)
    got = lp.gemm(a, b, c, accumulator=accumulator, library=library, split_k=3, out_format=fmt, alpha=alpha)
    want = parts_one_by_one(a, b, library, 3, fmt, accumulator, alpha, c)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want) & ~np.isnan(want))
    assert np.isfinite(want).any()


@pytest.mark.slow
@pytest.mark.sampled(1, default=2)
@pytest.mark.parametrize("reduction", WRONG)
def test_wrong_rules_are_noticed(reduction):
    a, b = operands(400)
    c = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32) * 30
    slices = 1 if reduction == "tree" else 2
    given = {"reduction": reduction, "split_k": 3, "split_tile": 32, "slices": slices, "c": c}
    right = expected(a, b, "bfloat16", **given)
    library = lp.GemmLibrary("mine", "end", None, split_k=3, split_k_reduction=reduction, split_tile=32, slices=slices)
    got = lp.gemm(a, b, c, accumulator="float32", library=library, out_format="bfloat16")
    np.testing.assert_array_equal(word(got, "bfloat16"), right)
    fmt = "float32" if reduction == "float32" else "bfloat16"
    right = expected(a, b, fmt, **given)
    for wrong in WRONG[reduction]:
        assert (expected(a, b, fmt, **given, wrong=wrong) != right).sum() >= 2, wrong


@pytest.mark.parametrize(
    ("m", "n", "k", "blocks"), [(5, 9, 200, 4), (9, 4, 150, 7), (4, 4, 100, 3), (8, 8, 64, 1), (5, 9, 200, 12)]
)
def test_stream_k_cuts_where_a_block_ends(m, n, k, blocks):
    library = lp.GemmLibrary("mine", "end", None, split_tile=16, stream_k=(blocks, 4, 4))
    a, b = operands(k, m, n)
    got = lp.gemm(a, b, accumulator="float32", library=library)
    down, across, each = -(-m // 4), -(-n // 4), -(-k // 16)
    cuts = list(stream_cuts(down * across, each, blocks))
    for t, inside in enumerate(cuts):
        i, j = (t % down, t // down) if down < across else (t // across, t % across)
        rows, columns, ends = slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4), [0, *(16 * x for x in inside), k]
        x, y = a[rows].dequantize(), b[columns].dequantize()
        total = None
        for start, stop in itertools.pairwise(ends):
            part = lp.matmul_f32(x[:, start:stop], y[:, start:stop])
            total = part if total is None else total + part
        np.testing.assert_array_equal(got[rows, columns], total)
    if blocks > 1:
        assert (got != lp.gemm(a, b, accumulator="float32", library="cublaslt_fast")).any()


@pytest.mark.parametrize("library", [*lp.gemm_libraries, lp.GemmLibrary("mine", "end", None, stream_k=(4, 32, 48))])
def test_a_packed_operand_has_the_same_bits(library):
    rng = np.random.default_rng(0)
    a, b = (lp.quantize(rng.standard_normal((rows, 32), np.float32), "e4m3fn tensor") for rows in (130, 150))
    packed = lp.prepack_b(b, "hopper_fp8")
    np.testing.assert_array_equal(lp.gemm(a, packed, library=library), lp.gemm(a, b, library=library))


def test_no_products_are_c():
    a, b = operands(0)
    for library in lp.gemm_libraries:
        for accumulator in ("float32", "hopper_bf16"):
            got = lp.gemm(a, b, np.full((4, 5), 5), accumulator=accumulator, library=library)
            np.testing.assert_array_equal(got, np.full((4, 5), 5, np.float32), library)


def test_results_pass_through_float16():
    a, b = operands(64)
    plain = lp.gemm(a, b, accumulator="float32", library="cublaslt_fast")
    for fmt in ("float32", "bfloat16"):
        got = lp.gemm(a, b, accumulator="float32", library="batch_invariant_ops", out_format=fmt, alpha=65536.0)
        with np.errstate(over="ignore"):
            half = (plain * np.float32(65536)).astype(np.float16)
        np.testing.assert_array_equal(got, lp.round_to(half, fmt))
        assert np.isinf(got).any()
    narrow = [
        lp.gemm(a, b, accumulator="float32", library=name, out_format="e4m3fn")
        for name in ("batch_invariant_ops", "cublaslt_fast")
    ]
    np.testing.assert_array_equal(*narrow)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: lp.GemmLibrary("x", stream_k=(4, 128)), r"x: stream_k must be numbers of blocks, rows and columns"),
        (
            lambda: lp.GemmLibrary("x", stream_k=(4, 8, 8), split_k_reduction="tree"),
            r"with split_k_reduction='float32'",
        ),
        (
            lambda: lp.GemmLibrary("x", stream_k=(4, 8, 8), split_k=2),
            r"and split_k=1, got \(4, 8, 8\) with 'float32' and 2",
        ),
        (
            lambda: lp.gemm(*operands(64), accumulator="float32", library="cutlass_stream_k", split_k=3),
            "gemm: split_k must be None with stream_k, .* got 3 with cutlass_stream_k",
        ),
        (
            lambda: lp.gemm(
                *(lp.quantize(np.ones((160, 128)), "e4m3fn 128x128"),) * 2,
                library=lp.GemmLibrary("x", stream_k=(4, 128, 32)),
            ),
            r"stream_k's tiles must be multiples of the 128 rows with one scale in b, got stream_k=\(4, 128, 32\)",
        ),
        (
            lambda: lp.checksum(np.ones((4, 5)), *operands(64), library="cutlass_sliced", accumulator="float32"),
            "checksum: library must have .* split_tile=128, slices=1, .*, got .*slices=2",
        ),
        (lambda: lp.GemmLibrary("x", slices=0), "x: slices must be an integer >= 1, got 0"),
        (
            lambda: lp.gemm(
                *(lp.quantize(np.ones((2, 256)), "e4m3fn 1x128"),) * 2, library=lp.GemmLibrary("x", slices=2)
            ),
            "scales must be constant along K if the library has slices of K, got 1x128",
        ),
    ],
)
def test_bad_input_is_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()
