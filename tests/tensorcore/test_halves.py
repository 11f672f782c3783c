"""FP8 `mma.sync` as two float16 instructions: the fast kernels against the integer reference, results' ends too."""

import numpy as np
import pytest
from adversarial import KERNELS
from numpy.typing import NDArray

import lowprec as lp
from lowprec.tensorcore.chains import chains_of
from lowprec.tensorcore.kinds.halves import Promoted
from lowprec.tensorcore.product import Product

MACHINES = ["hopper_fp8_mma", "hopper_fp8_mma_f16"]
PAIRS = [("e4m3fn", "e4m3fn"), ("e5m2", "e5m2"), ("e4m3fn", "e5m2")]


def check(name: str, pair: tuple[str, str], a: NDArray[np.uint8], b: NDArray[np.uint8], c: NDArray) -> NDArray:
    machine, (fa, fb) = lp.accumulators[name], (lp.formats[x] for x in pair)
    product = Product(fa, fb, a, b, c)
    with np.errstate(invalid="ignore"):
        want = machine.rule.reference(machine, product)
        for kernel in KERNELS:
            with lp.using(kernel=kernel):
                chains = chains_of(machine, fa, fb)
            assert isinstance(chains.kernel, Promoted)
            assert chains.compute(product).tobytes() == want.tobytes(), kernel
    return want


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("shape", [(7, 70, 200), (1, 1, 1), (33, 5, 64), (261, 3, 96)], ids=str)
def test_every_kernel_is_the_reference(name: str, pair: tuple[str, str], shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    dtype = lp.accumulators[name].dtype
    a, b = (rng.integers(0, 256, (rows, k)).astype(np.uint8) for rows in (m, n))
    a[rng.random(a.shape) < 0.9] &= 0xB7  # few NaN, Inf and large numbers
    b[rng.random(b.shape) < 0.99] &= 0xB7
    c = (rng.standard_normal((m, n)) * 2.0 ** rng.integers(-20, 12, (m, n))).astype(dtype)
    want = check(name, pair, a, b, c)
    assert np.isfinite(want).any()
    a, b = (lp.encode(rng.standard_normal((rows, k)), f) for rows, f in zip((m, n), pair, strict=True))
    assert np.isfinite(check(name, pair, a, b, c)).all()


@pytest.mark.parametrize("name", MACHINES)
def test_sums_at_float16s_ends(name: str) -> None:
    """Ties between float16 numbers, its largest and its subnormal ones, met by what one product adds."""
    dtype = lp.accumulators[name].dtype
    x = lp.encode(np.array([1.0, 2.0**-6, 16.0, -1.0, 448.0, 2.0**-9]), "e4m3fn")
    a, b = np.zeros((6, 40), np.uint8), np.zeros((6, 40), np.uint8)
    a[:, 5], b[:, 5] = x, x  # in the first half
    a[:, 34], b[:, 34] = x, x  # in the second, of the next instruction
    edges = np.array([2048, 2049, 65504, 65488, -65504, 2.0**-24, 2.0**-14, 0.33325, -0.0, 1024.5])
    for shift in range(10):
        c = np.resize(np.roll(edges, shift), (6, 6)).astype(dtype)
        want = check(name, ("e4m3fn", "e4m3fn"), a, b, c)
    assert np.isinf(want).any() == name.endswith("f16")


def test_what_is_not_plain_is_left_to_the_reference() -> None:
    e4m3 = lp.formats["e4m3fn"]
    machine = lp.accumulators["hopper_fp8_mma"].with_(group=6)
    rng = np.random.default_rng(3)
    a, b = (lp.encode(rng.standard_normal((rows, 50)), e4m3) for rows in (4, 5))
    c = np.zeros((4, 5), np.float32)
    product = Product(e4m3, e4m3, a, b, c)
    want = machine.rule.reference(machine, product)
    assert chains_of(machine, e4m3, e4m3).compute(product).tobytes() == want.tobytes()


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", lp.formats.names())
def test_only_what_float16_holds_is_multiplied_as_float16(name: str) -> None:
    """Of every format: the exact product with 1, or a refusal; no warning that a number left float16."""
    machine, f = lp.accumulators["hopper_fp8_mma"].with_(inputs=()), lp.formats[name]
    if f.bits > 16:
        zeros = np.zeros((1, 4), f.code_dtype)
        with pytest.raises(ValueError, match="float16 does not hold all values"):
            lp.mma(zeros, zeros, accumulator=machine, a_format=f, b_format=f)
        return
    codes, values = np.arange(1 << f.bits, dtype=f.code_dtype)[:, None], f.values()
    with np.errstate(over="ignore"):
        held = ((values.astype(np.float16) == values) | np.isnan(values)).all()
    one = np.full((1, 1), lp.encode(1.0, "e4m3fn"), np.uint8)
    if not held:
        with pytest.raises(ValueError, match=f"float16 does not hold all values of {name}"):
            lp.mma(codes, one, accumulator=machine, a_format=f, b_format="e4m3fn")
        return
    product = lp.mma(codes, one, accumulator=machine, a_format=f, b_format="e4m3fn")[:, 0]
    kept = np.abs(values) >= 2.0**-13  # the machine's alignment cuts what is smaller
    assert np.array_equal(product[kept], values[kept], equal_nan=True)


def test_a_format_that_leaves_float16_is_refused() -> None:
    machine = lp.accumulators["ada_bf16"].with_(kind="halves")
    with pytest.raises(ValueError, match="float16 does not hold all values of bfloat16"):
        lp.mma(np.full((1, 16), 0x7F00, np.uint16), np.full((1, 16), 0x7F00, np.uint16), accumulator=machine)
