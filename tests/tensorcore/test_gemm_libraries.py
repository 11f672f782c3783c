"""`gemm` as libraries order it, `grouped_gemm` and batches: against chains of `mma` and float32 arithmetic by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.tensorcore.grouped import grouped_gemm
from lowprec.tensorcore.library import Library, libraries

F32 = NDArray[np.float32]


def bits(x: F32) -> NDArray[np.uint32]:
    return np.ascontiguousarray(x).view(np.uint32)


def fma(a: F32, b: F32, c: F32) -> F32:
    """Float32 fused multiply-add, one number at a time by the oracle."""
    a, b, c = np.broadcast_arrays(*(np.asarray(x, np.float32) for x in (a, b, c)))
    triples = zip(*(bits(x).ravel().tolist() for x in (a, b, c)), strict=True)
    return np.array([oracle.fma32(*t) for t in triples], np.uint32).view(np.float32).reshape(a.shape)


def rounded(x: F32, fmt: str) -> F32:
    f = lp.formats[fmt]
    values = [oracle.decode(oracle.encode(float(v), f, "nonsaturate"), f) for v in x.ravel()]
    return np.array([float(v) for v in values], np.float32).reshape(x.shape)


def by_row(q: lp.Quantized, k: int) -> F32:
    """Scales of all rows at one k."""
    rows, columns = q.granularity.block(q.shape)
    return q.scale[np.arange(q.shape[0]) // rows, k // columns]


def chain(qa: lp.Quantized, qb: lp.Quantized, start: int, stop: int, machine, c: F32 | None = None) -> F32:
    a, b = (np.ascontiguousarray(q.codes[:, start:stop]) for q in (qa, qb))
    return lp.mma(a, b, c, accumulator=machine, a_format=qa.format, b_format=qb.format)


def operands(
    m: int, n: int, k: int, granularity=("tensor", "tensor"), formats=("e4m3fn", "e4m3fn"), scale="fp32", seed=0
) -> tuple[lp.Quantized, lp.Quantized]:
    rng = np.random.default_rng([seed, m, n, k])
    pair = (rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-3, 4, (rows, 1)) for rows in (m, n))
    qa, qb = (
        lp.quantize(x.astype(np.float32), f, g, scale=scale) for x, f, g in zip(pair, formats, granularity, strict=True)
    )
    return qa, qb


def assert_same(ours: F32, right: F32) -> None:
    assert ours.dtype == np.float32
    assert np.array_equal(bits(ours), bits(right.astype(np.float32)))


# Orders of operations


def summed(qa, qb, machine, every: int | None, start: int = 0, stop: int | None = None) -> F32:
    """Chains of `every` products added in float32."""
    stop = qa.shape[1] if stop is None else stop
    total = np.zeros((len(qa.codes), len(qb.codes)), np.float32)
    for k in range(start, stop, every or stop):
        total += chain(qa, qb, k, min(k + (every or stop), stop), machine)
    return total


#: Libraries of the catalogue, so that a new one is compared too, that multiply scales in at the end.
AT_END = [name for name in libraries if libraries[name].scales == "end"]


@pytest.mark.parametrize("machine", ["hopper_fp8", "ada_fp8", "blackwell_fp8_f16", "blackwell_fp8", "exact"])
@pytest.mark.parametrize("library", AT_END)
@pytest.mark.parametrize("granularity", [("tensor", "tensor"), ("row", "tensor"), ("row", "row")], ids="-".join)
def test_scales_at_the_end(machine: str, library: str, granularity: tuple[str, str]) -> None:
    formats = ("e2m1fn", "e2m1fn") if machine.endswith("f16") else ("e4m3fn", "e5m2")
    qa, qb = operands(5, 4, 600, granularity, formats)
    total = summed(qa, qb, machine, libraries[library].promote_every)
    right = by_row(qa, 0)[:, None] * by_row(qb, 0)[None, :] * total
    assert_same(lp.gemm(qa, qb, accumulator=machine, library=library), right)
    for out in ("bfloat16", "float16"):
        assert_same(lp.gemm(qa, qb, accumulator=machine, library=library, out=out), rounded(right, out))


@pytest.mark.parametrize("library", list(libraries))
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 1.0), (1.0, -0.7), (2.5, 0.0)])
def test_alpha_beta_and_c(library: str, alpha: float, beta: float) -> None:
    """``D = fma(alpha * s, T, float32(beta * C))``."""
    qa, qb = operands(4, 5, 300)
    c = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32) * 100
    s = by_row(qa, 0)[0] * by_row(qb, 0)[0]
    if libraries[library].scales == "promotion":
        factor, total = np.float32(alpha), lp.gemm(qa, qb, library=library)  # without C: `test_split_k` has it by hand
    else:
        factor, total = s * np.float32(alpha), summed(qa, qb, "hopper_fp8", libraries[library].promote_every)
    right = fma(factor, total, np.float32(beta) * c)
    given = c.copy()
    assert_same(lp.gemm(qa, qb, given, library=library, alpha=alpha, beta=beta), right)
    assert_same(given, c)
    assert_same(lp.gemm(qa, qb, library=library, alpha=alpha, beta=beta), factor * total)


def test_a_gradient_is_added_to_in_float32() -> None:
    """1D1D: both operands in tiles, the result added to what is there with one rounding."""
    qa, qb = operands(6, 5, 512, ("1x128", "1x128"), ("e5m2", "e4m3fn"))
    c = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float32)
    product = np.zeros((6, 5), np.float32)
    for k in range(0, 512, 128):
        s = by_row(qa, k)[:, None] * by_row(qb, k)[None, :]
        product = fma(s, chain(qa, qb, k, k + 128, "hopper_fp8"), product)
    assert_same(lp.gemm(qa, qb, c), c + product)
    assert_same(lp.gemm(qa, qb, c.astype(np.float64)), c + product)


def test_libraries_differ() -> None:
    """The inputs above tell the orders apart."""
    qa, qb = operands(16, 16, 1024)
    results = {name: lp.gemm(qa, qb, library=name) for name in libraries}
    assert np.count_nonzero(bits(results["deepgemm"]) != bits(results["cublaslt"])) > 5
    assert np.count_nonzero(bits(results["cublaslt_fast"]) != bits(results["cublaslt"])) > 100
    assert_same(results["cutlass_2xacc"], results["cublaslt"])  # with FP8 and without C they agree


@pytest.mark.parametrize("library", list(libraries))
@pytest.mark.parametrize(("k", "split_k", "runs"), [
    (1024, 2, [512, 512]), (1000, 3, [384, 384, 232]), (640, 4, [256, 256, 128]), (100, 5, [100]), (512, 1, [512]),
])  # fmt: skip
def test_split_k(library: str, k: int, split_k: int, runs: list[int]) -> None:
    """Whole tiles of 128, the last run shorter, added one after the other before scales that come at the end."""
    qa, qb = operands(5, 6, k)
    edges = np.cumsum([0, *runs])
    at_end = libraries[library].scales == "end"
    s = by_row(qa, 0)[0] * by_row(qb, 0)[0]
    total = np.zeros((5, 6), np.float32)
    for start, stop in itertools.pairwise(edges):
        part = np.zeros((5, 6), np.float32)
        step = libraries[library].promote_every or stop
        for p in range(start, stop, step):
            part = fma(1 if at_end else s, chain(qa, qb, p, min(p + step, stop), "hopper_fp8"), part)
        total = part if start == 0 else total + part
    assert_same(lp.gemm(qa, qb, library=library, split_k=split_k), s * total if at_end else total)


def test_split_k_with_scales_along_k() -> None:
    qa, qb = operands(3, 4, 512, ("1x128", "128x128"))
    halves = [
        lp.gemm(
            *(replace(q, codes=q.codes[:, p : p + 256], scale=q.scale[:, p // 128 : p // 128 + 2]) for q in (qa, qb))
        )
        for p in (0, 256)
    ]
    assert_same(lp.gemm(qa, qb, split_k=2), halves[0] + halves[1])


def test_a_library_of_ones_own() -> None:
    mine = Library("mine", scales="end", promote_every=64)
    qa, qb = operands(4, 4, 200)
    s = by_row(qa, 0)[0] * by_row(qb, 0)[0]
    assert_same(lp.gemm(qa, qb, library=mine), s * summed(qa, qb, "hopper_fp8", 64))
    assert_same(lp.gemm(qa, qb, library=mine, promote_every=32), s * summed(qa, qb, "hopper_fp8", 32))


def test_the_machines_own_promotion_comes_first() -> None:
    qa, qb = operands(4, 4, 256)
    machine = lp.accumulators["hopper_fp8"].with_(promote_every=64)
    assert_same(lp.gemm(qa, qb, accumulator=machine), lp.gemm(qa, qb, promote_every=64))
    assert_same(lp.gemm(qa, qb, accumulator=machine, promote_every=128), lp.gemm(qa, qb))


# Scales inside the instruction


def mx(qa: lp.Quantized, qb: lp.Quantized, machine: str, k: slice = slice(None), c: F32 | None = None) -> F32:
    """`mma` with the scales as codes."""
    block, fmt = lp.accumulators[machine].scale_block, lp.accumulators[machine].scale_format
    codes, scales = [], []
    for q in (qa, qb):
        span = range(*k.indices(q.shape[1]))
        pad = -len(span) % block
        codes.append(np.pad(q.codes[:, k], [(0, 0), (0, pad)]))
        scales.append(lp.encode(np.stack([by_row(q, p) for p in span[::block]], axis=1), fmt))
    return lp.mma(
        *codes, c, accumulator=machine, a_format=qa.format, b_format=qb.format, a_scale=scales[0], b_scale=scales[1]
    )


@pytest.mark.parametrize("pair", [("e4m3fn", "e5m2"), ("e2m1fn", "e3m2fn")], ids="-".join)
@pytest.mark.parametrize("granularity", [("1x32", "1x32"), ("1x128", "128x128"), ("1x32", "32x64")], ids="-".join)
@pytest.mark.parametrize("k", [256, 136, 24])
def test_mx_scales_are_inside_the_instruction(pair, granularity, k: int) -> None:
    """One chain over all of K: no promotion is needed or done unless it is asked for."""
    qa, qb = operands(5, 6, k, granularity, pair, "ue8m0")
    right = mx(qa, qb, "blackwell_mxf8")
    assert_same(lp.gemm(qa, qb, accumulator="blackwell_mxf8"), right)
    assert_same(
        lp.gemm(qa, qb, accumulator="blackwell_mxf8", library="cublaslt", out="bfloat16"), rounded(right, "bf16")
    )
    if k == 256:
        parts = [mx(qa, qb, "blackwell_mxf8", slice(p, p + 64)) for p in range(0, k, 64)]
        promoted = parts[0] + parts[1] + parts[2] + parts[3]
        assert_same(lp.gemm(qa, qb, accumulator="blackwell_mxf8", promote_every=64), promoted)
        halves = [mx(qa, qb, "blackwell_mxf8", slice(p, p + 128)) for p in (0, 128)]
        assert_same(lp.gemm(qa, qb, accumulator="blackwell_mxf8", split_k=2), halves[0] + halves[1])


@pytest.mark.parametrize("machine", ["blackwell_nvfp4", "blackwell_mxf4", "blackwell_mxf4_16"])
def test_fp4_scales_are_inside_the_instruction(machine: str) -> None:
    """Scales of 16 in E4M3 and one of the tensor as alpha; C enters in float32."""
    block = lp.accumulators[machine].scale_block
    qa, qb = operands(5, 6, 192, (f"1x{block}",) * 2, ("e2m1fn",) * 2, "ue8m0")
    if machine == "blackwell_nvfp4":
        rng = np.random.default_rng(3)
        qa, qb = (replace(q, scale=lp.round_to(rng.uniform(0.01, 400, q.scale.shape), "e4m3fn")) for q in (qa, qb))
    c = np.random.default_rng(4).standard_normal((5, 6)).astype(np.float32)
    right = mx(qa, qb, machine)
    assert_same(lp.gemm(qa, qb, accumulator=machine), right)
    assert_same(lp.gemm(qa, qb, c, accumulator=machine, alpha=0.0123), fma(np.float32(0.0123), right, c))


def test_a_nan_block_reaches_its_rows_only() -> None:
    x = np.ones((3, 64), np.float32)
    x[1, 40] = np.inf
    qx, qy = (
        lp.quantize(x, "e4m3fn", "1x32", scale="ue8m0"),
        lp.quantize(np.ones((2, 64)), "e4m3fn", "1x32", scale="ue8m0"),
    )
    d = lp.gemm(qx, qy, accumulator="blackwell_mxf8")
    assert np.array_equal(np.isnan(d), np.array([[False] * 2, [True] * 2, [False] * 2]))
    assert np.all(d[[0, 2]] == 64)


def test_loose_operands_give_the_same_bits() -> None:
    """Codes and scales that are views: columns of wider arrays, every other row, column order."""
    for machine, scale in (("hopper_fp8", "fp32"), ("blackwell_fp8", "fp32"), ("blackwell_mxf8", "ue8m0")):
        qa, qb = operands(6, 8, 384, ("1x128", "1x128"), scale=scale)
        part = [replace(q, codes=q.codes[::2, 128:], scale=q.scale[::2, 1:]) for q in (qa, qb)]
        tight = [replace(q, codes=q.codes.copy(), scale=q.scale.copy()) for q in part]
        turned = [replace(q, codes=np.asfortranarray(q.codes), scale=np.asfortranarray(q.scale)) for q in part]
        right = lp.gemm(*tight, accumulator=machine)
        for pair in (part, turned):
            assert_same(lp.gemm(*pair, accumulator=machine), right)
            assert_same(lp.gemm(*pair, accumulator=machine, split_k=2), lp.gemm(*tight, accumulator=machine, split_k=2))


# Batches and experts


@pytest.mark.parametrize(("granularity", "rows"), [(("1x128", "128x128"), 128), (("1x128", "1x128"), 3)])
def test_a_batch_is_its_matrices(granularity: tuple[str, str], rows: int) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 4, 256)).astype(np.float32), rng.standard_normal((3, rows, 256)).astype(np.float32)
    c = rng.standard_normal((3, 4, rows)).astype(np.float32)
    qa, qb = (lp.quantize(x, "e4m3fn", g) for x, g in zip((a, b), granularity, strict=True))
    alone = [[lp.quantize(x[i], "e4m3fn", g) for x, g in zip((a, b), granularity, strict=True)] for i in range(3)]
    assert_same(lp.gemm(qa, qb, c), np.stack([lp.gemm(*pair, c[i]) for i, pair in enumerate(alone)]))
    assert_same(lp.gemm(qa, qb, out="bfloat16"), np.stack([lp.gemm(*pair, out="bfloat16") for pair in alone]))


def experts(count: int = 4, n: int = 128, k: int = 256) -> tuple[list[lp.Quantized], lp.Quantized]:
    w = np.random.default_rng(6).standard_normal((count, n, k)).astype(np.float32)
    return [lp.quantize(x, "e4m3fn", "128x128") for x in w], lp.quantize(w, "e4m3fn", "128x128")


@pytest.mark.parametrize(
    "expert", [[0, 0, 0, 1, 1, 3, -1, -1], [3, -1, 0, 2, 2, 0, 1, 0], [-1] * 8], ids=["runs", "mixed", "padding"]
)
def test_rows_of_experts(expert: list[int]) -> None:
    alone, together = experts()
    x = np.random.default_rng(7).standard_normal((8, 256)).astype(np.float32)
    qx = lp.quantize(x, "e4m3fn", "1x128")
    c = np.random.default_rng(8).standard_normal((8, 128)).astype(np.float32)
    right = np.zeros((8, 128), np.float32)
    with_c = right.copy()
    for i, e in enumerate(expert):
        if e >= 0:
            row = lp.quantize(x[i : i + 1], "e4m3fn", "1x128")
            right[i], with_c[i] = lp.gemm(row, alone[e])[0], lp.gemm(row, alone[e], c[i : i + 1])[0]
    for weights in (alone, together):
        assert_same(grouped_gemm(qx, weights, expert=expert), right)
        assert_same(grouped_gemm(qx, weights, expert=np.array(expert), c=c), with_c)
    assert_same(grouped_gemm(qx, alone, expert=expert, out="bfloat16"), rounded(right, "bfloat16"))


def test_masked_experts() -> None:
    alone, together = experts()
    x = np.random.default_rng(9).standard_normal((4, 6, 256)).astype(np.float32)
    qx = lp.quantize(x, "e4m3fn", "1x128")
    counts = [6, 0, 2, 5]
    right = np.zeros((4, 6, 128), np.float32)
    for e, rows in enumerate(counts):
        right[e, :rows] = lp.gemm(lp.quantize(x[e, :rows], "e4m3fn", "1x128"), alone[e])
    assert_same(grouped_gemm(qx, together, counts=counts), right)
    c = np.full(right.shape, 3, np.float32)
    filled = np.arange(6) < np.array(counts)[:, None]
    assert_same(grouped_gemm(qx, alone, counts=counts, c=c), np.where(filled[:, :, None], right + c, 0))


def test_rows_in_blocks_of_two_keep_their_scales() -> None:
    alone, _ = experts()
    x = np.random.default_rng(10).standard_normal((5, 256)).astype(np.float32)
    qx = lp.quantize(x, "e4m3fn", "2x128")
    full = lp.gemm(qx, alone[2])
    assert_same(grouped_gemm(qx, alone, expert=[2, 0, 2, 2, 2])[[0, 2, 3, 4]], full[[0, 2, 3, 4]])


# Mistakes


def test_mistakes_of_gemm() -> None:
    qa, qb = operands(3, 4, 256)
    tiles, blocks = operands(3, 4, 256, ("1x128", "128x128"))
    small, _ = operands(3, 4, 256, ("1x32", "1x32"), scale="ue8m0")
    fine = operands(2, 2, 64, ("1x16", "1x16"), scale="ue8m0")
    cases = [
        (lambda: lp.gemm(tiles, blocks, library="cublaslt"), "cublaslt multiplies scales in at the end: those of a"),
        (lambda: lp.gemm(qa, qb, library="cublas"), "unknown library 'cublas': did you mean 'cublaslt'"),
        (lambda: lp.gemm(qa, qb, np.zeros((4, 3))), r"c is \(4, 3\), needed is \(3, 4\)"),
        (lambda: lp.gemm(qa, qb, split_k=0), "split_k=0"),
        (lambda: lp.gemm(qa, qb, promote_every="never"), "promote_every='never'"),
        (lambda: lp.gemm(qa, qb, promote_every=0), "promote_every=0"),
        (lambda: lp.gemm(qa, qb, promote_every=48), "promote_every=48 is not a multiple of hopper_fp8's group"),
        (lambda: lp.gemm(qa, qb, accumulator="blackwell_mxf8"), "a scale of a is .*, no number of blackwell_mxf8's"),
        (lambda: lp.gemm(qa, qb, accumulator="hopper_bf16"), "hopper_bf16 takes bfloat16, not e4m3fn"),
        (lambda: lp.gemm(replace(qa, scale=-qa.scale), qb), "a scale of a is -.*: finite numbers above 0 are needed"),
        (lambda: lp.gemm(qa, replace(qb, scale=qb.scale * 0)), "a scale of b is 0.0"),
        (lambda: lp.gemm(qa, replace(qb, scale=qb.scale * np.float32(np.inf))), "a scale of b is inf"),
        (
            lambda: lp.gemm(small, small, accumulator="blackwell_mxf8", promote_every=40),
            "promote_every=40 is not a multiple of blackwell_mxf8's group of 32",
        ),
        (lambda: lp.gemm(*fine, accumulator="blackwell_mxf8"), "scales of a change every 16 in k, inside"),
        (lambda: lp.gemm(*operands(2, 2, 512, ("1x256", "1x256")), split_k=4), "begins at 128"),
    ]  # fmt: skip
    for call, message in cases:
        with pytest.raises((ValueError, KeyError), match=message):
            call()
    with pytest.raises(TypeError, match="gemm: c: values of type complex128"):
        lp.gemm(qa, qb, np.zeros((3, 4), complex))


def test_mistakes_of_groups() -> None:
    alone, together = experts()
    qx = lp.quantize(np.ones((3, 256)), "e4m3fn", "1x128")
    qy = lp.quantize(np.ones((4, 3, 256)), "e4m3fn", "1x128")
    cases = [
        (lambda: grouped_gemm(qx, alone), "give expert"),
        (lambda: grouped_gemm(qx, alone, expert=[0, 1]), r"expert is int64 \(2,\), needed are whole numbers \(3,\)"),
        (lambda: grouped_gemm(qx, alone, expert=[0, 1, 4]), "expert reaches from 0 to 4, allowed is -1 to 3"),
        (lambda: grouped_gemm(qx, alone, expert=[0.0, 1.0, 2.0]), "expert is float64"),
        (lambda: grouped_gemm(qx, alone, counts=[1, 1, 1, 1]), r"a is \[4 experts, M, K\], not \(3, 256\)"),
        (lambda: grouped_gemm(qy, alone, counts=[1, 1, 4, 1]), "counts reaches from 1 to 4, allowed is 0 to 3"),
        (lambda: grouped_gemm(qy, together, expert=[0] * 4), "with expert, a is"),
        (lambda: grouped_gemm(qx, qx, expert=[0] * 3), "b is one Quantized of shape"),
        (lambda: grouped_gemm(qx, [alone[0], qx], expert=[0] * 3), "matrices of one shape"),
        (lambda: grouped_gemm(qx, alone, expert=[0] * 3, c=np.zeros(3)), r"c is \(3,\)"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    straddling = lp.quantize(np.ones((2, 100, 128)), "e4m3fn", "128x128")
    with pytest.raises(ValueError, match="scales for 128 rows straddle"):
        lp.gemm(straddling, straddling)


@pytest.mark.parametrize(("options", "message"), [
    ({"scales": "middle"}, "scales='middle': 'promotion' or 'end'"), ({"promote_every": 0}, "promote_every=0"),
    ({"k_order": "odd"}, "k_order='odd'"), ({"split_sum": "tree"}, "split_sum='tree'"), ({"split_k": 0}, "split_k=0"),
    ({"fused": "yes"}, "fused="),
])  # fmt: skip
def test_libraries_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Library("odd", **options)


# Orders that the catalogue does not have


@pytest.mark.parametrize("every", [64, 128])
@pytest.mark.parametrize("machine", ["hopper_fp8", "blackwell_fp8_mma", "exact"])
def test_a_separate_addition_at_promotion(machine: str, every: int) -> None:
    qa, qb = operands(5, 4, 640, ("1x128", "128x128"))
    total = np.zeros((5, 4), np.float32)
    for k in range(0, 640, every):
        s = by_row(qa, k)[:, None] * by_row(qb, k)[None, :]
        total = total + s * chain(qa, qb, k, k + every, machine)
    separate = Library("separate", fused=False, promote_every=every)
    assert_same(lp.gemm(qa, qb, accumulator=machine, library=separate), total)
    assert not np.array_equal(total, lp.gemm(qa, qb, accumulator=machine, promote_every=every))


@pytest.mark.parametrize("k", [640, 600, 50])
@pytest.mark.parametrize("granularity", ["tensor", "1x128"])
@pytest.mark.parametrize(("machine", "step"), [("hopper_fp8", 32), ("ada_fp8", 16)])
def test_interleaved_k(machine: str, step: int, k: int, granularity: str) -> None:
    qa, qb = operands(5, 4, k, (granularity, granularity))
    order: list[int] = []
    for window in range(0, k, 2 * step):
        for half in (0, 1):
            order += [window + i if window + i < k else -1 for i in range(2 * step) if i % 4 // 2 == half]

    def turned(q: lp.Quantized) -> lp.Quantized:
        wide = np.concatenate([q.codes, np.zeros((len(q.codes), 1), np.uint8)], axis=1)
        return replace(q, codes=np.ascontiguousarray(wide[:, order]))

    library = Library("halves", k_order="interleaved")
    right = lp.gemm(turned(qa), turned(qb), accumulator=machine)
    assert_same(lp.gemm(qa, qb, accumulator=machine, library=library), right)
    if k == 640:
        assert not np.array_equal(right, lp.gemm(qa, qb, accumulator=machine))


@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_splits_that_are_rounded_before_they_are_added(out: str) -> None:
    qa, qb = operands(5, 4, 640)
    c = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32) * 100
    s = by_row(qa, 0)[:, None] * by_row(qb, 0)[None, :]
    total = None
    for start, stop in ((0, 256), (256, 512), (512, 640)):
        part = summed(qa, qb, "hopper_fp8", None, start, stop)
        own = rounded(fma(s, part, c if start == 0 else np.float32(0)), out)
        total = own if total is None else rounded(total + own, out)
    library = Library("rounds", scales="end", promote_every=None, split_k=3, split_sum="out")
    assert_same(lp.gemm(qa, qb, c, library=library, out=out), total)


def test_orders_that_do_not_fit() -> None:
    qa, qb = operands(2, 2, 256, ("1x32", "1x32"))
    interleaved, rounds = Library("halves", k_order="interleaved"), Library("rounds", split_k=2)
    with pytest.raises(ValueError, match="inside two interleaved instructions of 32"):
        lp.gemm(qa, qb, library=interleaved, promote_every=32)
    with pytest.raises(ValueError, match="not 1"):
        lp.gemm(*operands(2, 2, 256), accumulator="float32", library=interleaved)
    with pytest.raises(ValueError, match="rounds rounds more often than the bounds know"):
        lp.checksum(np.zeros((2, 2), np.float32), qa, qb, library=rounds)
