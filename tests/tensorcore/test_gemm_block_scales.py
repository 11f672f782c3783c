"""`gemm` on machines that take scales inside the instruction: against `mma` and float32 by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from fast_kernels import bits
from gemms import assert_same, fma, normal, scaled_chain
from refusals import refusals

import lowprec as lp
from lowprec.kernels.tensorcore import epilogue

FORMATS8 = ("e4m3fn", "e5m2", "e3m2fn", "e2m3fn", "e2m1fn")
# machine -> element formats, granularity, how scales are stored
KINDS = {
    "blackwell_mxf8": (("e4m3fn", "e5m2"), 32, "ue8m0"),
    "rtx_blackwell_mxf8": (("e3m2fn", "e2m1fn"), 32, "ue8m0"),
    "blackwell_mxf4": (("e2m1fn", "e2m1fn"), 32, "ue8m0"),
    "blackwell_mxf4_16": (("e2m1fn", "e2m1fn"), 16, "ue8m0"),
    "blackwell_nvfp4": (("e2m1fn", "e2m1fn"), 16, "e4m3"),
}


def quantized(rng: np.random.Generator, shape: tuple[int, int], fmt: str, rows: int, block: int, kind: str, t=None):
    """Codes and scales at random: any finite code, scales over many binades, zeros and subnormals where there are."""
    f = lp.formats[fmt]
    codes = rng.integers(0, f.max_code + 1, shape).astype(np.uint8)
    codes |= (rng.integers(0, 2, shape) * f.sign_mask).astype(np.uint8)
    granularity = lp.Granularity(rows, block)
    size = granularity.scale_shape(shape)
    low, high, scale_format = (110, 140, "e8m0fnu") if kind == "ue8m0" else (0, 0x7F, "e4m3fn")
    scale = lp.decode(rng.integers(low, high, size).astype(np.uint8), scale_format)
    if kind != "ue8m0":
        scale[rng.random(size) < 0.1] = 0
        scale[rng.random(size) < 0.1] = 2.0**-9
    return lp.Quantized(codes, scale, f, granularity, kind, t)


def operands(machine: str, m: int, n: int, k: int, rows=(1, 1), seed=0, tensor_scales=(None, None)):
    rng = np.random.default_rng([seed, m, n, k])
    pair, block, kind = KINDS[machine]
    return [
        quantized(rng, (count, k), fmt, r, block, kind, t)
        for count, fmt, r, t in zip((m, n), pair, rows, tensor_scales, strict=True)
    ]


@pytest.mark.sampled(45)
@pytest.mark.parametrize("machine", KINDS)
@pytest.mark.parametrize("k", [32, 64, 100, 640])
@pytest.mark.parametrize("rows", [(1, 1), (1, 32), (16, 16)], ids=str)
def test_scales_go_into_the_instruction(machine: str, k: int, rows: tuple[int, int]) -> None:
    """Tiles, blocks of several rows, a short last block: a chain over all of K."""
    qa, qb = operands(machine, 37, 70, k, rows)
    assert_same(lp.gemm(qa, qb, accumulator=machine), scaled_chain(qa, qb, machine))


@pytest.mark.parametrize("pair", list(itertools.product(FORMATS8, FORMATS8)), ids="-".join)
def test_every_pair_of_formats(pair: tuple[str, str]) -> None:
    rng = np.random.default_rng(3)
    qa, qb = (quantized(rng, (9, 96), fmt, 1, 32, "ue8m0") for fmt in pair)
    assert_same(lp.gemm(qa, qb, accumulator="blackwell_mxf8"), scaled_chain(qa, qb, "blackwell_mxf8"))


@pytest.mark.parametrize("given", [(0.3, 0.7), (None, 0.7), (0.7, None)], ids=str)
@pytest.mark.parametrize("machine", ["blackwell_nvfp4", "blackwell_mxf8"])
def test_scales_per_tensor_join_alpha(machine: str, given: tuple[float | None, float | None]) -> None:
    """``f = (t_a * t_b) * alpha``; ``D = fma(f, T, beta * C)``, and a bfloat16 result is rounded from that."""
    t = [None if x is None else np.float32(x) for x in given]
    qa, qb = operands(machine, 12, 15, 96, tensor_scales=t)
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


def test_scales_per_tensor_on_machines_without_scales() -> None:
    """They come last wherever block scales come: after promotion, and after float32 sums of decoded values."""
    rng = np.random.default_rng(4)
    q = [quantized(rng, (6, 256), "e4m3fn", 1, 128, "ue8m0") for _ in range(2)]
    qa, qb = (replace(x, tensor_scale=np.float32(t)) for x, t in zip(q, (0.1, 0.3), strict=True))
    factor = np.float32(0.1) * np.float32(0.3)
    for options in ({"accumulator": "hopper_fp8"}, {"accumulator": "float32", "promote_every": None}):
        assert_same(lp.gemm(qa, qb, **options), factor * lp.gemm(*q, **options))


@pytest.mark.parametrize("machine", KINDS)
def test_transposed_operands(machine: str) -> None:
    """Square blocks turn with the matrix, so that one quantization of W serves W and W.T."""
    _, block, _ = KINDS[machine]
    qa, qb = operands(machine, 64, 96, 128, (1, block))
    back, _ = operands(machine, 64, 1, 96, (1, 1), seed=1)
    got = lp.gemm(back, qb.T, accumulator=machine)
    assert got.shape == (64, 128)
    assert_same(got, scaled_chain(back, qb.T, machine))
    assert_same(lp.gemm(qa, qb, accumulator=machine), scaled_chain(qa, qb, machine))


@pytest.mark.parametrize("machine", KINDS)
def test_nan_scales(machine: str) -> None:
    """A block that held NaN makes its row or column the canonical NaN, and nothing else."""
    qa, qb = operands(machine, 5, 40, 128)
    for q, index in ((qa, 3), (qb, 35)):
        q.scale[index, 1] = np.nan
    got = lp.gemm(qa, qb, accumulator=machine)
    assert_same(got, scaled_chain(qa, qb, machine))
    nan = np.zeros((5, 40), bool)
    nan[3], nan[:, 35] = True, True
    assert np.array_equal(bits(got) == 0x7FFFFFFF, nan)


def test_quantized_by_name() -> None:
    """What `quantize` makes fits the machines as it is."""
    rng = np.random.default_rng(6)
    x, w = normal(rng, 8, 192), normal(rng, 6, 192)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    for quantizer, machine, error in (("mxfp8_rceil", "blackwell_mxf8", 0.06), ("nvfp4_te", "blackwell_nvfp4", 0.25)):
        qx, qw = lp.quantize(x, quantizer), lp.quantize(w, quantizer)
        got = lp.gemm(qx, qw, accumulator=machine)
        assert np.linalg.norm(got - exact) < error * np.linalg.norm(exact)
        scales = [q.tensor_scale for q in (qx, qw) if q.tensor_scale is not None]
        assert_same(got, np.prod(scales, dtype=np.float32) * scaled_chain(qx, qw, machine))


def test_every_wrong_scale_is_noticed() -> None:
    """The quick look at all scales: the ends of what is allowed, and what lies just beyond."""
    for value in (0.0, -0.0, -(2.0**-149), -1.0, np.inf, -np.inf, np.nan, 2.0**-149, np.finfo(np.float32).max):
        scale = np.ones((5, 7), np.float32)
        scale[3, 4] = value
        assert epilogue.all_positive(scale) == bool(0 < value < np.inf), value
    assert epilogue.all_positive(np.empty((0, 7), np.float32))


def names():
    qa, qb = operands("blackwell_nvfp4", 4, 4, 64)
    mx = operands("blackwell_mxf8", 4, 4, 64)
    return {"qa": qa, "qb": qb, "replace": replace, "mx": mx, "third": np.full_like(qb.scale, 1 / 3)}


test_refused = refusals([
    ("lp.gemm(qa, replace(qb, scale=-np.ones_like(qb.scale)), accumulator='blackwell_nvfp4')", "a scale of b is -1"),
    ("lp.gemm(qa, replace(qb, scale=third), accumulator='blackwell_nvfp4')", "no number of blackwell_nvfp4's e4m3fn"),
    ("lp.gemm(replace(mx[0], scale=mx[0].scale * 0), mx[1], accumulator='blackwell_mxf8')", r"a scale of a is 0\.0"),
], names)  # fmt: skip
