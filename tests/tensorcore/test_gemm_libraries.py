"""`gemm` as libraries order it, scales inside the instruction, `grouped_gemm` and batches: against chains of `mma`."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from floats import bits, normal
from gemms import assert_same, both_scales, by_row, chain, fma, operands, promoted, rounded, scaled_chain, summed
from refusals import refusals

import lowprec as lp
from lowprec.kernels.tensorcore import epilogue
from lowprec.tensorcore.grouped import grouped_gemm
from lowprec.tensorcore.library import GemmLibrary, gemm_libraries

# Orders of operations

#: Libraries of the catalogue, so that a new one is compared too; test_splits.py has those that split K in other ways.
USUAL = [name for name in gemm_libraries if gemm_libraries[name].has_usual_parts]
#: Those that multiply scales in at the end.
AT_END = [name for name in USUAL if gemm_libraries[name].apply_scales_at == "end"]


@pytest.mark.parametrize("machine", ["hopper_fp8", "ada_fp8", "blackwell_fp8_f16", "blackwell_fp8", "exact"])
@pytest.mark.parametrize("library", AT_END)
@pytest.mark.parametrize("granularity", [("tensor", "tensor"), ("row", "tensor"), ("row", "row")], ids="-".join)
def test_scales_at_the_end(machine, library, granularity):
    formats = ("e2m1fn", "e2m1fn") if machine.endswith("f16") else ("e4m3fn", "e5m2")
    qa, qb = operands(5, 4, 600, granularity, formats)
    total, way = summed(qa, qb, machine, gemm_libraries[library].promote_every), gemm_libraries[library]
    right = both_scales(qa, qb) * total
    if way.scales_one_by_one and granularity == ("row", "row"):
        differs, right = right, total * by_row(qb, 0) * by_row(qa, 0)[:, None]
        assert (differs != right).any()
    assert_same(lp.gemm(qa, qb, accumulator=machine, library=library), right)
    for out in ("bfloat16", "float16"):
        assert_same(lp.gemm(qa, qb, accumulator=machine, library=library, out_format=out), rounded(right, out))


@pytest.mark.parametrize("library", USUAL)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 1.0), (1.0, -0.7), (2.5, 0.0)])
def test_alpha_beta_and_c(library, alpha, beta):
    """``D = fma(alpha * s, T, float32(beta * C))``."""
    qa, qb = operands(4, 5, 300)
    c = normal(1, 4, 5) * 100
    if gemm_libraries[library].apply_scales_at == "promotion":
        factor, total = np.float32(alpha), lp.gemm(qa, qb, library=library)  # without C: `test_split_k` has it by hand
    else:
        factor = both_scales(qa, qb) * np.float32(alpha)
        total = summed(qa, qb, "hopper_fp8", gemm_libraries[library].promote_every)
    given = c.copy()
    right = fma(factor, total, np.float32(beta) * c)
    assert_same(lp.gemm(qa, qb, given, library=library, alpha=alpha, beta=beta), right)
    assert_same(given, c)
    assert_same(lp.gemm(qa, qb, library=library, alpha=alpha, beta=beta), factor * total)


def test_libraries_differ():
    """The inputs above tell the orders apart."""
    qa, qb = operands(16, 16, 1024)
    results = {name: lp.gemm(qa, qb, library=name) for name in USUAL}
    assert np.count_nonzero(bits(results["deepgemm"]) != bits(results["cublaslt"])) > 5
    assert np.count_nonzero(bits(results["cublaslt_fast"]) != bits(results["cublaslt"])) > 100
    assert_same(results["cutlass_2xacc"], results["cublaslt"])  # with FP8 and without C they agree


@pytest.mark.parametrize("library", USUAL)
@pytest.mark.parametrize(("k", "split_k", "runs"), [
    (1024, 2, [512, 512]), (1000, 3, [384, 384, 232]), (640, 4, [256, 256, 128]), (100, 5, [100]), (512, 1, [512]),
])  # fmt: skip
def test_split_k(library, k, split_k, runs):
    """Whole tiles of 128, the last run shorter, added one after the other before scales that come at the end."""
    qa, qb = operands(5, 6, k)
    own, s = gemm_libraries[library], both_scales(qa, qb)
    at_end = own.apply_scales_at == "end"
    total = np.zeros((5, 6), np.float32)
    for start, stop in itertools.pairwise(np.cumsum([0, *runs])):
        part = np.zeros((5, 6), np.float32)
        step = gemm_libraries[library].promote_every or stop
        for p in range(start, stop, step):
            each = chain(qa, qb, p, min(p + step, stop), "hopper_fp8")
            part = part + each if at_end else promoted(own, qa, qb, p, each, part)
        total = part if start == 0 else total + part
    assert_same(lp.gemm(qa, qb, library=library, split_k=split_k), s * total if at_end else total)


def test_split_k_with_scales_along_k():
    qa, qb = operands(3, 4, 512, ("1x128", "128x128"))
    halves = [
        lp.gemm(
            *(replace(q, codes=q.codes[:, p : p + 256], scale=q.scale[:, p // 128 : p // 128 + 2]) for q in (qa, qb))
        )
        for p in (0, 256)
    ]
    assert_same(lp.gemm(qa, qb, split_k=2), halves[0] + halves[1])


def test_order_of_promotion_intervals():
    """The argument, else the accumulator's, else the library's."""
    mine = GemmLibrary("mine", apply_scales_at="end", promote_every=64)
    qa, qb = operands(4, 4, 256)
    for every, options in ((64, {}), (32, {"promote_every": 32})):
        right = both_scales(qa, qb) * summed(qa, qb, "hopper_fp8", every)
        assert_same(lp.gemm(qa, qb, library=mine, **options), right)
    machine = lp.accumulators["hopper_fp8"].with_(promote_every=64)
    assert_same(lp.gemm(qa, qb, accumulator=machine), lp.gemm(qa, qb, promote_every=64))
    assert_same(lp.gemm(qa, qb, accumulator=machine, promote_every=128), lp.gemm(qa, qb))


# Scales inside the instruction


#: Formats of both operands, and of scales.
SCALED = {
    "blackwell_mxf8": (("e4m3fn", "e5m2"), "e8m0fnu"), "rtx_blackwell_mxf8": (("e3m2fn", "e2m1fn"), "e8m0fnu"),
    "blackwell_mxf4": ("e2m1fn", "e8m0fnu"), "blackwell_mxf4_16": ("e2m1fn", "e8m0fnu"),
    "blackwell_nvfp4": ("e2m1fn", "e4m3fn"),
}  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize("machine", SCALED)
@pytest.mark.parametrize("blocks", [((0, 1), (0, 1)), ((0, 4), (4, 4)), ((0, 1), (1, 2))], ids=str)
@pytest.mark.parametrize("k", [256, 136, 24])
def test_scales_go_into_the_instruction(machine, blocks, k):
    """One chain over all of K: no promotion is needed or done unless it is asked for.

    `blocks` are in those of the machine, rows of 0 a single row.
    """
    size, (formats, scale) = lp.accumulators[machine].scale_block, SCALED[machine]
    granularity = [f"{rows * size or 1}x{columns * size}" for rows, columns in blocks]
    qa, qb = operands(5, 70, k, granularity, formats, scale)
    right = scaled_chain(qa, qb, machine)
    assert_same(lp.gemm(qa, qb, accumulator=machine), right)
    assert_same(lp.gemm(qa, qb, accumulator=machine, library="cublaslt", out_format="bfloat16"), rounded(right, "bf16"))
    if k == 256:
        for size, options in ((64, {"promote_every": 64}), (128, {"split_k": 2})):
            parts = [scaled_chain(qa, qb, machine, slice(p, p + size)) for p in range(0, k, size)]
            assert_same(lp.gemm(qa, qb, **options, accumulator=machine), np.add.accumulate(parts)[-1])


@pytest.mark.parametrize("given", [(0.3, 0.7), (None, 0.7), (0.7, None)], ids=str)
@pytest.mark.parametrize("machine", ["blackwell_nvfp4", "blackwell_mxf8"])
def test_scales_per_tensor_join_alpha(machine: str, given: tuple[float | None, float | None]) -> None:
    """``f = (t_a * t_b) * alpha``; ``D = fma(f, T, beta * C)``, and a bfloat16 result is rounded from that."""
    t = [None if x is None else np.float32(x) for x in given]
    pair, scale = SCALED[machine]
    both = operands(12, 15, 96, f"1x{lp.accumulators[machine].scale_block}", pair, scale)
    qa, qb = (replace(q, tensor_scale=x) for q, x in zip(both, t, strict=True))
    total = scaled_chain(qa, qb, machine)
    factor = np.float32(1)
    for x in t:
        factor = factor if x is None else factor * x
    c = normal(1, 12, 15) * 1000
    for alpha in (1.0, 0.9):
        f = factor * np.float32(alpha)
        assert_same(lp.gemm(qa, qb, accumulator=machine, alpha=alpha), f * total)
        got = lp.gemm(qa, qb, c, accumulator=machine, alpha=alpha, beta=0.3)
        assert_same(got, fma(f, total, np.float32(0.3) * c))
    assert_same(lp.gemm(qa, qb, accumulator=machine, out_format="bfloat16"), lp.round_to(factor * total, "bfloat16"))
    if None not in t:  # with these numbers the order of the three shows
        assert factor * np.float32(0.9) not in (t[0] * (t[1] * np.float32(0.9)), t[0] * np.float32(0.9) * t[1])


def test_every_wrong_scale_is_noticed() -> None:
    """The quick look at all scales: the ends of what is allowed, and what lies just beyond."""
    for value in (0.0, -0.0, -(2.0**-149), -1.0, np.inf, -np.inf, np.nan, 2.0**-149, np.finfo(np.float32).max):
        scale = np.ones((5, 7), np.float32)
        scale[3, 4] = value
        assert epilogue.all_positive(scale) == bool(0 < value < np.inf), value
    assert epilogue.all_positive(np.empty((0, 7), np.float32))


def test_loose_operands_give_the_same_bits():
    """Codes and scales that are views: columns of wider arrays, every other row, column order."""
    for machine, scale in (("hopper_fp8", "fp32"), ("blackwell_fp8", "fp32"), ("blackwell_mxf8", "ue8m0")):
        qa, qb = operands(6, 8, 384, "1x128", scale=scale)
        part = [replace(q, codes=q.codes[::2, 128:], scale=q.scale[::2, 1:]) for q in (qa, qb)]
        tight = [replace(q, codes=q.codes.copy(), scale=q.scale.copy()) for q in part]
        turned = [replace(q, codes=np.asfortranarray(q.codes), scale=np.asfortranarray(q.scale)) for q in part]
        for pair, options in itertools.product((part, turned), ({}, {"split_k": 2})):
            right = lp.gemm(*tight, accumulator=machine, **options)
            assert_same(lp.gemm(*pair, accumulator=machine, **options), right)


# Batches and experts


@pytest.mark.parametrize(("granularity", "rows"), [(("1x128", "128x128"), 128), (("1x128", "1x128"), 3)])
def test_a_batch_is_its_matrices(granularity, rows):
    rng = np.random.default_rng(5)
    sides, c = [normal(rng, 3, 4, 256), normal(rng, 3, rows, 256)], normal(rng, 3, 4, rows)
    whole, *alone = (
        [lp.quantize(x if i is None else x[i], f"e4m3fn {g}") for x, g in zip(sides, granularity, strict=True)]
        for i in (None, 0, 1, 2)
    )
    assert_same(lp.gemm(*whole, c), np.stack([lp.gemm(*pair, c[i]) for i, pair in enumerate(alone)]))
    assert_same(
        lp.gemm(*whole, out_format="bfloat16"), np.stack([lp.gemm(*pair, out_format="bfloat16") for pair in alone])
    )


def experts() -> tuple[list[lp.Quantized], lp.Quantized]:
    w = normal(6, 4, 128, 256)
    return [lp.quantize(x, "e4m3fn 128x128") for x in w], lp.quantize(w, "e4m3fn 128x128")


@pytest.mark.parametrize(
    "expert", [[0, 0, 0, 1, 1, 3, -1, -1], [3, -1, 0, 2, 2, 0, 1, 0], [-1] * 8], ids=["runs", "mixed", "padding"]
)
def test_rows_of_experts(expert):
    alone, together = experts()
    x, c = normal(7, 8, 256), normal(8, 8, 128)
    qx = lp.quantize(x, "e4m3fn 1x128")
    right, with_c = np.zeros((2, 8, 128), np.float32)
    for i, e in enumerate(expert):
        if e >= 0:
            row = lp.quantize(x[i : i + 1], "e4m3fn 1x128")
            right[i], with_c[i] = lp.gemm(row, alone[e])[0], lp.gemm(row, alone[e], c[i : i + 1])[0]
    for weights in (alone, together):
        assert_same(grouped_gemm(qx, weights, expert=expert), right)
        assert_same(grouped_gemm(qx, weights, expert=np.array(expert), c=c), with_c)
    assert_same(grouped_gemm(qx, alone, expert=expert, out_format="bfloat16"), rounded(right, "bfloat16"))


def test_masked_experts():
    alone, together = experts()
    x, counts = normal(9, 4, 6, 256), [6, 0, 2, 5]
    qx = lp.quantize(x, "e4m3fn 1x128")
    right = np.zeros((4, 6, 128), np.float32)
    for e, rows in enumerate(counts):
        right[e, :rows] = lp.gemm(lp.quantize(x[e, :rows], "e4m3fn 1x128"), alone[e])
    assert_same(grouped_gemm(qx, together, counts=counts), right)
    filled = np.arange(6) < np.array(counts)[:, None]
    c = np.full(right.shape, 3, np.float32)
    assert_same(grouped_gemm(qx, alone, counts=counts, c=c), np.where(filled[:, :, None], right + c, 0))


def test_rows_in_blocks_of_two_keep_their_scales():
    alone, _ = experts()
    qx = lp.quantize(normal(10, 5, 256), "e4m3fn 2x128")
    ours = grouped_gemm(qx, alone, expert=[2, 0, 2, 2, 2])
    assert_same(ours[[0, 2, 3, 4]], lp.gemm(qx, alone[2])[[0, 2, 3, 4]])


# Orders that the catalogue does not have


@pytest.mark.parametrize("every", [64, 128])
@pytest.mark.parametrize("machine", ["hopper_fp8", "blackwell_fp8_mma", "exact"])
def test_a_separate_addition_at_promotion(machine, every):
    qa, qb = operands(5, 4, 640, ("1x128", "128x128"))
    total = np.zeros((5, 4), np.float32)
    for k in range(0, 640, every):
        total = total + both_scales(qa, qb, k) * chain(qa, qb, k, k + every, machine)
    separate = GemmLibrary("separate", fma_promotion=False, promote_every=every)
    assert_same(lp.gemm(qa, qb, accumulator=machine, library=separate), total)
    assert not np.array_equal(total, lp.gemm(qa, qb, accumulator=machine, promote_every=every))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("granularity", ["1x128", "1x64"])
@pytest.mark.parametrize("machine", ["hopper_fp8", "blackwell_fp8_mma", "exact"])
def test_scales_one_by_one_at_promotion(machine, granularity):
    library, (qa, qb) = gemm_libraries["cublaslt_1x128"], operands(15, 14, 640, granularity)
    total, step = np.zeros((15, 14), np.float32), qa.granularity.columns
    for k in range(0, 640, step):
        total = promoted(library, qa, qb, k, chain(qa, qb, k, k + step, machine), total)
    options = {"accumulator": machine, "library": library}
    assert_same(lp.gemm(qa, qb, **options), total)
    assert_same(lp.gemm(qa, lp.prepack_b(qb, accumulator=machine), **options), total)
    assert not np.array_equal(total, lp.gemm(qa, qb, accumulator=machine))
    assert not np.array_equal(total, lp.gemm(qb, qa, **options).T)


@pytest.mark.parametrize("k", [640, 600, 50])
@pytest.mark.parametrize("granularity", ["tensor", "1x128"])
@pytest.mark.parametrize(("machine", "step"), [("hopper_fp8", 32), ("ada_fp8", 16)])
def test_interleaved_k(machine, step, k, granularity):
    qa, qb = operands(5, 4, k, granularity)
    order: list[int] = []
    for window in range(0, k, 2 * step):
        for half in (0, 1):
            order += [window + i if window + i < k else -1 for i in range(2 * step) if i % 4 // 2 == half]

    def turned(q: lp.Quantized) -> lp.Quantized:
        wide = np.concatenate([q.codes, np.zeros((len(q.codes), 1), np.uint8)], axis=1)
        return replace(q, codes=np.ascontiguousarray(wide[:, order]))

    right = lp.gemm(turned(qa), turned(qb), accumulator=machine)
    assert_same(lp.gemm(qa, qb, accumulator=machine, library=GemmLibrary("halves", k_order="interleaved")), right)
    if k == 640:
        assert not np.array_equal(right, lp.gemm(qa, qb, accumulator=machine))


@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_splits_that_are_rounded_before_they_are_added(out):
    qa, qb = operands(5, 4, 640)
    c, total = normal(1, 5, 4) * 100, None
    for start, stop in ((0, 256), (256, 512), (512, 640)):
        part = summed(qa, qb, "hopper_fp8", None, start, stop)
        own = rounded(fma(both_scales(qa, qb), part, c if start == 0 else np.float32(0)), out)
        total = own if total is None else rounded(total + own, out)
    library = GemmLibrary("rounds", apply_scales_at="end", promote_every=None, split_k=3, split_k_reduction="out")
    assert_same(lp.gemm(qa, qb, c, library=library, out_format=out), total)


# Mistakes


def names():
    alone, together = experts()
    qa, qb = operands(3, 4, 256)
    return {
        "qa": qa, "qb": qb, "c": np.zeros((3, 4)), "tiles": operands(3, 4, 256, ("1x128", "128x128")),
        "small": operands(3, 3, 256, "1x32", scale="e8m0fnu"),
        "fine": operands(2, 2, 64, "1x16", scale="e8m0fnu"),
        "fp32": operands(2, 2, 256, "1x32"), "whole": operands(2, 2, 256), "wide": operands(2, 2, 512, "1x256"),
        "alone": alone, "together": together, "qx": lp.quantize(np.ones((3, 256)), "e4m3fn 1x128"),
        "qy": lp.quantize(np.ones((4, 3, 256)), "e4m3fn 1x128"), "grouped": grouped_gemm, "replace": replace,
        "straddling": lp.quantize(np.ones((2, 100, 128)), "e4m3fn 128x128"), "GemmLibrary": GemmLibrary,
        "halves": GemmLibrary("halves", k_order="interleaved"), "rounds": GemmLibrary("rounds", split_k=2),
        "mx": operands(4, 4, 64, "1x32", scale="e8m0fnu"), "nv": operands(4, 4, 64, "1x16", "e2m1fn", "e4m3fn"),
    }  # fmt: skip


test_refused = refusals([
    ("lp.gemm(*tiles, library='cublaslt')", "scales of a must be constant along K, as cublaslt multiplies them in"),
    ("lp.gemm(qa, qb, library='cublas')", KeyError, "unknown library 'cublas': did you mean 'cublaslt'"),
    ("lp.gemm(qa, qb, c.T)", r"c must have shape \(3, 4\), got \(4, 3\)"),
    ("lp.gemm(qa, qb, split_k=0)", "gemm: split_k must be an integer >= 1, got 0"),
    ("lp.gemm(qa, qb, promote_every='never')", "gemm: promote_every must be an integer >= 1 or None, got 'never'"),
    ("lp.gemm(qa, qb, promote_every=0)", "gemm: promote_every must be an integer >= 1 or None, got 0"),
    ("lp.gemm(qa, qb, promote_every=48)", "gemm: promote_every must be a multiple of hopper_fp8's group of 32, got 48"),
    ("lp.gemm(qa, qb, accumulator='blackwell_mxf8')", "scales of a must be values of blackwell_mxf8's e8m0fnu, got"),
    ("lp.gemm(qa, qb, accumulator='hopper_bf16')", "hopper_bf16: operands must be of bfloat16, got e4m3fn"),
    ("lp.gemm(replace(qa, scale=-qa.scale), qb)", "scales of a must be finite and > 0, or NaN for NaN blocks, got"),
    ("lp.gemm(qa, replace(qb, scale=qb.scale * 0))", "gemm: scales of b must be finite and > 0, or NaN for NaN"),
    ("lp.gemm(qa, replace(qb, scale=qb.scale * np.float32(np.inf)))", "gemm: scales of b must be finite and > 0,"),
    ("lp.gemm(nv[0], replace(nv[1], scale=-nv[1].scale), accumulator='blackwell_nvfp4')",
     "gemm: scales of b must be finite and > 0, or NaN for NaN blocks, got -0.203125"),
    ("lp.gemm(nv[0], replace(nv[1], scale=nv[1].scale * 0 + np.float32(1 / 3)), accumulator='blackwell_nvfp4')",
     "gemm: scales of b must be values of blackwell_nvfp4's e4m3fn, got 0.3333333432674408"),
    ("lp.gemm(replace(mx[0], scale=mx[0].scale * 0), mx[1], accumulator='blackwell_mxf8')",
     "gemm: scales of a must be finite and > 0, or NaN for NaN blocks, got 0.0"),
    ("lp.gemm(*small, accumulator='blackwell_mxf8', promote_every=40)",
     "gemm: promote_every must be a multiple of blackwell_mxf8's group_size, 32, got 40"),
    ("lp.gemm(*fine, accumulator='blackwell_mxf8')", "blocks of a along K must be multiples of blackwell_mxf8's"),
    ("lp.gemm(*wide, split_k=4)", "gemm: a range of K must begin at a block of 256, got 128"),
    ("lp.gemm(*tiles, promote_every=256)", "256"),
    ("lp.gemm(straddling, straddling)", r"blocks of 128 rows must divide the matrices of a batch, got 100 rows"),
    ("lp.gemm(*fp32, library=halves, promote_every=32)", "gemm: blocks along K must be multiples of two"),
    ("lp.gemm(*whole, accumulator='float32', library=halves)", "k_order='interleaved' must have an even number of"),
    ("lp.checksum(np.zeros((2, 2), np.float32), *fp32, library=rounds)",
     r"library must have fma_promotion=True, split_k=1, .* got GemmLibrary\(name=.rounds."),
    ("grouped(qx, alone)", r"one of expert \(for rows \[M, K\]\) and counts \(for \[experts, M, K\]\) must be"),
    ("grouped(qx, alone, expert=[0, 1])", r"grouped_gemm: expert must be integers of shape \(3,\), got int64 \(2,\)"),
    ("grouped(qx, alone, expert=[0, 1, 4])", "grouped_gemm: expert must be from -1 to 3, got 0 to 4"),
    ("grouped(qx, alone, expert=[0.0, 1.0, 2.0])", r"grouped_gemm: expert must be integers of shape \(3,\), got"),
    ("grouped(qx, alone, counts=[1, 1, 1, 1])", r"grouped_gemm: a must have shape \[4 experts, M, K\] with counts,"),
    ("grouped(qy, alone, counts=[1, 1, 4, 1])", "grouped_gemm: counts must be from 0 to 3, got 1 to 4"),
    ("grouped(qy, together, expert=[0] * 4)", r"grouped_gemm: a must have shape \[M, K\] with expert, got \(4, 3,"),
    ("grouped(qx, qx, expert=[0] * 3)", r"b must be a Quantized of shape \(experts, N, K\) or a sequence of \(N,"),
    ("grouped(qx, [alone[0], qx], expert=[0] * 3)", "matrices of one shape"),
    ("grouped(qx, alone, expert=[0] * 3, c=np.zeros(3))", r"grouped_gemm: c must have shape \(3, 128\), got \(3,\)"),
    ("GemmLibrary('odd', 'end', split_k_reduction='out', scales_one_by_one=True)",
     "scales_one_by_one must be False with apply_scales_at='end' and split_k_reduction='out', got True"),
    ("GemmLibrary('odd', apply_scales_at='middle')",
     "GemmLibrary odd: apply_scales_at must be 'promotion' or 'end', got 'middle'"),
    ("GemmLibrary('odd', k_order='odd')",
     "GemmLibrary odd: k_order must be 'increasing' or 'interleaved', got 'odd'"),
    ("GemmLibrary('odd', split_k_reduction='odd')",
     "GemmLibrary odd: split_k_reduction must be one of 'float32', 'out', 'serial', 'workspace', 'tree', got 'odd'"),
    ("GemmLibrary('odd', split_k=0)", "GemmLibrary odd: split_k must be an integer >= 1, got 0"),
    ("GemmLibrary('odd', fma_promotion='yes')", "GemmLibrary: fma_promotion must be True or False, got 'yes'"),
], names)  # fmt: skip
