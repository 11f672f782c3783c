"""What `gemm` does where nothing is said: the interval of promotion, no C, a beta of 0."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from fast_kernels import bits
from gemms import assert_same, operands

import lowprec as lp
from lowprec.tensorcore.library import GemmLibrary, gemm_libraries


@pytest.mark.parametrize("library", list(gemm_libraries))
def test_without_beta_c_is_not_read(library: str) -> None:
    """NaN and Inf times 0 do not count, nor does the sign of C's zeros; its shape is looked at all the same."""
    qa, qb = operands(4, 5, 300)
    c = np.resize(np.array([np.nan, np.inf, -np.inf, -1.0, -0.0], np.float32), (4, 5))
    for alpha, beta in ((1.0, 0.0), (0.3, -0.0)):
        plain = lp.gemm(qa, qb, library=library, alpha=alpha)
        assert_same(lp.gemm(qa, qb, c, library=library, alpha=alpha, beta=beta), plain)
    with pytest.raises(ValueError, match="c is"):
        lp.gemm(qa, qb, c[:3], library=library, beta=0.0)


@pytest.mark.parametrize("library", list(gemm_libraries))
def test_exact_zeros_of_the_epilogue(library: str) -> None:
    """``fma(f, T, +0)`` is +0 for T = +0, whatever f's sign."""
    qa, qb = operands(2, 3, 128)
    nothing = replace(qa, codes=np.zeros_like(qa.codes))
    assert not bits(lp.gemm(nothing, qb, library=library, alpha=-1.0)).any()


#: What `gemm` cannot do whatever the interval: scales that change within an instruction, or where they come at the end.
WHATEVER = "inside|multiplies scales in at the end|is not a multiple of .* codes|no number of"


@pytest.mark.sampled(22)
@pytest.mark.parametrize("machine", [name for name in lp.accumulators if lp.accumulators[name].dtype != np.float64])
def test_the_default_interval_fits_the_scales(machine: str) -> None:
    """The library's, or the largest whole number of instructions below it that divides the k of a scale."""
    unit = lp.accumulators[machine]
    step = unit.step()
    mine = [GemmLibrary(f"every {n}", promote_every=n) for n in (None, 96, 640)]
    done = 0
    orders = (*map(gemm_libraries.get, gemm_libraries), *mine)
    for span, library in itertools.product((32, 48, 64, 96, 128, 192, 320, None), orders):
        fmt = unit.default_format
        codes = np.ones((2, 384), fmt.code_dtype)
        scale = np.float32(2) ** -np.arange(2 * -(-384 // (span or 384)), dtype=np.float32).reshape(2, -1)
        q = lp.Quantized(codes, scale, fmt, "row" if span is None else f"1x{span}")
        try:
            got = lp.gemm(q, q, accumulator=unit, library=library)
        except ValueError as problem:
            if not re.search(WHATEVER, str(problem)):
                raise
            continue
        done += 1
        every = unit.promote_every or library.promote_every
        if unit.scale_format is None and every is not None and not (span and span % every) and every % step == 0:
            assert_same(got, lp.gemm(q, q, accumulator=unit, library=library, promote_every=every))
    assert done >= len(gemm_libraries)


@pytest.mark.parametrize(("granularity", "machine", "every"), [
    ("1x64", "exact", 64), ("1x64", "hopper_fp8", 64), ("1x192", "exact", 96), ("1x192", "hopper_fp8", 96),
    ("1x192", "amx_fp8", 64), ("row", lp.accumulators["hopper_fp8"].with_(group=12), 120),
], ids=str)  # fmt: skip
def test_an_interval_is_cut_to_the_scales(granularity, machine, every) -> None:
    qa, qb = operands(4, 5, 384, granularity)
    d = lp.gemm(qa, qb, accumulator=machine)
    assert_same(d, lp.gemm(qa, qb, accumulator=machine, promote_every=every))
    assert not lp.checksum(d, qa, qb, accumulator=machine).tripped
