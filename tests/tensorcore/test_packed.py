"""`pack_operand`: products with an operand laid out once have the bits of products with the operand itself."""

from dataclasses import replace

import numpy as np
import pytest
from adversarial import KERNELS

import lowprec as lp
from lowprec.tensorcore.packed import PackedOperand

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


def operands(machine: str, m: int = 33, n: int = 1100, k: int = 300) -> tuple[lp.Quantized, lp.Quantized]:
    fa, fb, ga, gb, scale = KINDS[machine]
    rng = np.random.default_rng([m, n, k])
    x, w = (rng.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    return lp.quantize(x, fa, ga, scale=scale), lp.quantize(w, fb, gb, scale=scale)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", KINDS)
def test_the_bits_are_the_same(machine: str) -> None:
    few = {"n": 70} if machine.endswith("mma") else {}
    qa, qb = operands(machine, **few)
    packed = lp.pack_operand(qb, machine, qa.format)
    for out in ("float32", "bfloat16"):
        want = lp.gemm(qa, qb, accumulator=machine, out=out)
        for _ in range(2):
            assert lp.gemm(qa, packed, accumulator=machine, out=out).tobytes() == want.tobytes()
        assert lp.gemm(qa, qb, accumulator=machine, out=out).tobytes() == want.tobytes()
    other, _ = operands(machine, m=7, **few)
    want = lp.gemm(other, qb, accumulator=machine)
    assert lp.gemm(other, packed, accumulator=machine).tobytes() == want.tobytes()


@pytest.mark.parametrize("machine", ["hopper_fp8", "blackwell_mxf8", "blackwell_mxf4"])
def test_it_is_used(machine: str) -> None:
    """Codes that change afterwards do not show."""
    qa, qb = operands(machine, n=64)
    packed = lp.pack_operand(qb, machine, qa.format)
    want = lp.gemm(qa, qb, accumulator=machine)
    qb.codes[...] = 0
    assert lp.gemm(qa, packed, accumulator=machine).tobytes() == want.tobytes()
    assert not lp.gemm(qa, qb, accumulator=machine).any()


@pytest.mark.parametrize("machine", ["hopper_fp8", "blackwell_mxf8", "blackwell_mxf4"])
def test_on_another_kernel_it_is_laid_out_anew(machine: str) -> None:
    qa, qb = operands(machine, n=64)
    packed = lp.pack_operand(qb, machine, qa.format)
    answers = set()
    for name in [*KERNELS, "reference"]:
        with lp.using(kernel=name):
            answers.add(lp.gemm(qa, packed, accumulator=machine).tobytes())
    assert answers == {lp.gemm(qa, qb, accumulator=machine).tobytes()}


@pytest.mark.parametrize("machine", ["hopper_fp8", "blackwell_mxf8"])
def test_specials_on_both_sides(machine: str) -> None:
    qa, qb = operands(machine, n=64)
    qb.codes[5, 7] = qa.codes[3, 3] = 0x7F
    qb.scale[-1, 1] = np.nan
    want = lp.gemm(qa, qb, accumulator=machine)
    assert np.isnan(want[3]).all()
    assert np.isnan(want[:, 5]).all()
    packed = lp.pack_operand(qb, machine, qa.format)
    assert lp.gemm(qa, packed, accumulator=machine).tobytes() == want.tobytes()


def test_options_and_groups() -> None:
    """C, split K, scales at the end, promotion; and experts' weights."""
    qa, qb = operands("hopper_fp8", n=40, k=512)
    packed = lp.pack_operand(qb)
    c = np.ones((33, 40), np.float32)
    for options in ({"c": c, "beta": 0.5}, {"split_k": 2}, {"promote_every": 32}, {"promote_every": None}):
        assert lp.gemm(qa, packed, **options).tobytes() == lp.gemm(qa, qb, **options).tobytes()
    rows = lp.quantize(qa.dequantize(), "e4m3fn", "row"), lp.quantize(qb.dequantize(), "e4m3fn", "tensor")
    at_end = lp.gemm(rows[0], lp.pack_operand(rows[1]), library="cublaslt")
    assert at_end.tobytes() == lp.gemm(*rows, library="cublaslt").tobytes()
    other = replace(qb, codes=qb.codes[::-1].copy())
    expert = np.arange(33) % 2
    want = lp.grouped_gemm(qa, [qb, other], expert=expert)
    assert lp.grouped_gemm(qa, [packed, lp.pack_operand(other)], expert=expert).tobytes() == want.tobytes()


def test_bad_input() -> None:
    qa, qb = operands("hopper_fp8", n=40)
    packed = lp.pack_operand(qb)
    with pytest.raises(ValueError, match="b was packed for hopper_fp8, not for ada_fp8"):
        lp.gemm(qa, packed, accumulator="ada_fp8")
    with pytest.raises(TypeError, match="ndarray is not Quantized"):
        lp.pack_operand(qb.codes)
    with pytest.raises(ValueError, match="takes float16"):
        lp.pack_operand(qb, "hopper_f16")
    with pytest.raises(ValueError, match=r"a matrix \[N, K\] is needed"):
        lp.pack_operand(lp.quantize(np.ones((2, 128, 128)), "e4m3fn", "128x128"))
    empty = lp.pack_operand(lp.quantize(np.ones((0, 300)), "e4m3fn", "128x128"))
    assert isinstance(empty, PackedOperand)
    assert lp.gemm(qa, empty).shape == (33, 0)
    assert repr(packed).endswith("for hopper_fp8)")
