"""FP8 `mma.sync` as two float16 instructions: the fast kernels against the integer reference, results' ends too."""

import numpy as np
import pytest
from fast_kernels import KERNELS, agree, check_kernels

import lowprec as lp
from lowprec.tensorcore.engines.float64_lanes import HalvesInFloat64Lanes
from lowprec.tensorcore.kinds.nvidia import SplitF16Sum

MACHINES = ["hopper_fp8_mma", "hopper_fp8_mma_f16"]
E4M3 = lp.formats["e4m3fn"]


@pytest.mark.parametrize("name", MACHINES)
def test_sums_at_float16s_ends(name):
    """Ties between float16 numbers, its largest and its subnormal ones, met by what one product adds."""
    unit = lp.accumulators[name]
    x = np.zeros((6, 40), np.uint8)
    # In the first half, and in the second of the next instruction.
    x[:, [5, 34]] = lp.encode(np.array([1.0, 2.0**-6, 16.0, -1.0, 448.0, 2.0**-9]), "e4m3fn")[:, None]
    edges = np.array([2048, 2049, 65504, 65488, -65504, 2.0**-24, 2.0**-14, 0.33325, -0.0, 1024.5])
    for shift in range(10):
        c = np.resize(np.roll(edges, shift), (6, 6)).astype(unit.dtype)
        want = check_kernels(unit, (E4M3, E4M3), x, x, c, used=HalvesInFloat64Lanes)
    assert np.isinf(want).any() == name.endswith("f16")


def test_what_is_not_plain_is_left_to_the_reference():
    machine = lp.accumulators["hopper_fp8_mma"].with_(group=6)
    rng = np.random.default_rng(3)
    a, b = (lp.encode(rng.standard_normal((rows, 50)), "e4m3fn") for rows in (4, 5))
    agree(lambda: lp.mma(a, b, accumulator=machine), kernels=[*KERNELS, "auto"])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", lp.formats.names())
def test_only_what_float16_holds_is_multiplied_as_float16(name):
    """Of every format: the exact product with 1, or a refusal; no warning that a number left float16."""
    machine, f = lp.accumulators["hopper_fp8_mma"].with_(input_formats=()), lp.formats[name]
    one = np.full((1, 1), lp.encode(1.0, "e4m3fn"), np.uint8)
    codes = np.arange(1 << f.bits if f.bits <= 16 else 1, dtype=f.code_dtype)[:, None]
    with np.errstate(over="ignore"):
        held = f.bits <= 16 and ((f.values().astype(np.float16) == f.values()) | np.isnan(f.values())).all()
    if not held:
        with pytest.raises(ValueError, match=f"float16 does not hold all values of {name}"):
            lp.mma(codes, one, accumulator=machine, a_format=f, b_format="e4m3fn")
        return
    product = lp.mma(codes, one, accumulator=machine, a_format=f, b_format="e4m3fn")[:, 0]
    kept = np.abs(f.values()) >= 2.0**-13  # the machine's alignment cuts what is smaller
    assert np.array_equal(product[kept], f.values()[kept], equal_nan=True)


def test_a_format_that_leaves_float16_is_refused():
    codes, machine = np.full((1, 16), 0x7F00, np.uint16), SplitF16Sum("mine")
    with pytest.raises(ValueError, match="float16 does not hold all values of bfloat16"):
        lp.mma(codes, codes, accumulator=machine, a_format="bfloat16", b_format="bfloat16")
