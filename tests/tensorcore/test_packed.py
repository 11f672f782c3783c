"""`prepack_b`: products with an operand laid out once have the bits of products with the operand itself."""

from dataclasses import replace

import numpy as np
import pytest
from fast_kernels import KERNELS
from floats import normal
from gemms import assert_same
from refusals import refusals

import lowprec as lp
from lowprec.tensorcore.packed import PackedB

# machine -> formats of a and b, granularity of a and of b, scales
KINDS = {
    "hopper_fp8": ("e4m3fn", "e4m3fn", "1x128", "128x128", "fp32"),
    "ada_fp8": ("e5m2", "e4m3fn", "1x128", "128x128", "fp32"),
    "blackwell_fp8": ("e5m2", "e4m3fn", "row", "row", "fp32"),
    "hopper_fp8_f16": ("e4m3fn", "e4m3fn", "row", "row", "fp32"),
    "blackwell_mxf8": ("e5m2", "e4m3fn", "1x32", "32x32", "ue8m0"),
    "blackwell_mxf4": ("e2m1fn", "e2m1fn", "1x32", "32x32", "ue8m0"),
    "exact": ("e4m3fn", "e5m2", "row", "row", "fp32"),
    "hopper_fp8_mma": ("e4m3fn", "e5m2", "row", "row", "fp32"),
}
SOME = ["hopper_fp8", "blackwell_mxf8", "blackwell_mxf4"]


def operands(machine, m=33, n=64, k=300):
    """Return A, B, and B packed."""
    fa, fb, ga, gb, scale = KINDS[machine]
    rng = np.random.default_rng([m, n, k])
    qa, qb = (
        lp.quantize(normal(rng, m, k), lp.Quantizer(format=fa, granularity=ga, scale_format=scale)),
        lp.quantize(normal(rng, n, k), lp.Quantizer(format=fb, granularity=gb, scale_format=scale)),
    )
    return qa, qb, lp.prepack_b(qb, machine, qa.format)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", KINDS)
def test_the_bits_are_the_same(machine):
    n = 70 if machine.endswith("mma") else 1100
    qa, qb, packed = operands(machine, n=n)
    other, _, _ = operands(machine, m=7, n=n)
    for a, out in ((qa, "float32"), (qa, "bfloat16"), (other, "float32")):
        options = {"accumulator": machine, "out_format": out}
        want = lp.gemm(a, qb, **options)
        for b in (packed, packed, qb):
            assert_same(lp.gemm(a, b, **options), want)


@pytest.mark.parametrize("machine", SOME)
def test_it_is_used(machine):
    """Codes that change afterwards do not show; on another kernel it is laid out anew."""
    qa, qb, packed = operands(machine)
    want = lp.gemm(qa, qb, accumulator=machine)
    for name in [*KERNELS, "reference"]:
        with lp.use_kernel(name):
            assert_same(lp.gemm(qa, packed, accumulator=machine), want)
    qb.codes[...] = 0
    assert_same(lp.gemm(qa, packed, accumulator=machine), want)
    assert not lp.gemm(qa, qb, accumulator=machine).any()


@pytest.mark.parametrize("machine", SOME[:2])
def test_specials_on_both_sides(machine):
    qa, qb, _ = operands(machine)
    qb.codes[5, 7] = qa.codes[3, 3] = 0x7F
    qb.scale[-1, 1] = np.nan
    want = lp.gemm(qa, qb, accumulator=machine)
    assert np.isnan(want[3]).all()
    assert np.isnan(want[:, 5]).all()
    assert_same(lp.gemm(qa, lp.prepack_b(qb, machine, qa.format), accumulator=machine), want)


def test_options_and_groups():
    """C, split K, scales at the end, promotion; and experts' weights."""
    qa, qb, packed = operands("hopper_fp8", n=40, k=512)
    c = np.ones((33, 40), np.float32)
    for options in ({"c": c, "beta": 0.5}, {"split_k": 2}, {"promote_every": 32}, {"promote_every": None}):
        assert_same(lp.gemm(qa, packed, **options), lp.gemm(qa, qb, **options))
    rows, tensor = lp.quantize(qa.dequantize(), "e4m3fn row"), lp.quantize(qb.dequantize(), "e4m3fn tensor")
    at_end = lp.gemm(rows, lp.prepack_b(tensor), library="cublaslt")
    assert_same(at_end, lp.gemm(rows, tensor, library="cublaslt"))
    other = replace(qb, codes=qb.codes[::-1].copy())
    expert = np.arange(33) % 2
    want = lp.grouped_gemm(qa, [qb, other], expert=expert)
    assert_same(lp.grouped_gemm(qa, [packed, lp.prepack_b(other)], expert=expert), want)


def test_an_operand_without_rows():
    qa, _, packed = operands("hopper_fp8")
    empty = lp.prepack_b(lp.quantize(np.ones((0, 300)), "e4m3fn 128x128"))
    assert isinstance(empty, PackedB)
    assert lp.gemm(qa, empty).shape == (33, 0)
    assert repr(packed).startswith("<PackedB for hopper_fp8: <Quantized ")


test_refused = refusals([
    ("lp.gemm(qa, packed, accumulator='ada_fp8')", "gemm: b must be packed for ada_fp8, got one packed for hopper_fp8"),
    ("lp.prepack_b(qb.codes)", TypeError, "q must be Quantized .*, got ndarray"),
    ("lp.prepack_b(qb, 'hopper_f16')", "hopper_f16: operands must be of float16, got e4m3fn"),
    ("lp.prepack_b(lp.quantize(np.ones((2, 128, 128)), 'e4m3fn 128x128'))", r"prepack_b: q must be a matrix \[N,"),
], lambda: dict(zip(("qa", "qb", "packed"), operands("hopper_fp8"), strict=True)))  # fmt: skip
