"""Fused sums in float64 lanes: every form of the kernel against the integer reference, and each bound at its edge."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_kernels import KERNELS as NAMES
from fast_kernels import agree, check_kernels, codes_of
from numpy.typing import NDArray

import lowprec as lp
from lowprec.format.catalogue import Format, formats
from lowprec.kernels.tensorcore.float64_lanes import pack
from lowprec.kernels.tensorcore.float64_lanes.sums import FACTOR
from lowprec.tensorcore.accumulator import ALIGNMENTS, Align
from lowprec.tensorcore.engines.float64_lanes import ExponentRange, Float64Lanes, SplitF16InFloat64Lanes
from lowprec.tensorcore.engines.selection import passes_trial
from lowprec.tensorcore.kinds.nvidia import FusedSum
from lowprec.tensorcore.problem import GemmProblem

HALF, BF16, TF32 = formats["float16"], formats["bfloat16"], formats["tf32"]

Codes = NDArray[np.unsignedinteger]


def machine(
    group: int, fraction_bits: int, output: str = "float32", zero: int | None = -133, align: Align = "truncate"
) -> FusedSum:
    fields = {"group_size": group, "fraction_bits": fraction_bits, "zero_exponent": zero, "align": align}
    return FusedSum("test", output_format=output, **fields)


def check(unit: FusedSum, fmt: Format, a: Codes, b: Codes, *addends: Any) -> NDArray[np.floating]:
    """Compare every form with the integer reference, all bits; return the sums without C, or with the last one."""
    for c in addends or (None,):
        want = check_kernels(unit, (fmt, fmt), a, b, c, engine=Float64Lanes)
    return want


def some_codes(rng: np.random.Generator, shape: tuple[int, int], fmt: Format, low: float, high: float) -> Codes:
    """All significands, exponents and signs between two magnitudes, some zeros."""
    first, last = (int(codes_of(x, fmt)) for x in (low, high))
    codes = rng.integers(first, last, shape, endpoint=True) | (rng.integers(0, 2, shape) << (fmt.bits - 1))
    codes[rng.random(shape) < 0.1] = 0
    return codes.astype(fmt.code_dtype)


@pytest.mark.parametrize("fmt", [BF16, TF32], ids=str)
@pytest.mark.parametrize(("low", "high"), [(2.0**-149, 2.0**-50), (2.0**-70, 2.0**-55), (2.0**-126, 2.0**127)])
def test_the_ends_of_float32(fmt: Format, low: float, high: float) -> None:
    """Subnormal operands, C and results; zeros' exponent; sums that leave float32 and come back."""
    rng = np.random.default_rng(3)
    low = max(low, fmt.smallest_subnormal)
    a, b = (some_codes(rng, (6, 90), fmt, low, high), some_codes(rng, (37, 90), fmt, low, high))
    a[1] = codes_of(0.0, fmt)
    c = rng.integers(0, 1 << 24, (6, 37), dtype=np.uint32) | rng.integers(0, 2, (6, 37), dtype=np.uint32) << 31
    c[:, ::3] = 0
    others = (machine(16, 25, align="floor"), machine(8, 13, "fp22", align="floor"), machine(16, 25, align="nearest"))
    for unit in (
        machine(16, 25), machine(8, 24, zero=-132), machine(4, 23, zero=-131), machine(16, 13, "fp22"), *others
    ):  # fmt: skip
        check(unit, fmt, a, b, c.view(np.float32), None)


def test_results_on_both_sides_of_infinity() -> None:
    """2^128 exactly and up to 2^129 are Inf, which stays; what is truncated to the largest float32 is not."""
    a = np.zeros((5, 8))
    a[0, 0], a[1, :2], a[2, :2], a[3, [0, 4]], a[4, 0] = 2.0**64, 2.0**63, 1.9921875 * 2.0**63, (2.0**64, -(2.0**64)), 1
    b = codes_of(np.stack([np.full(8, 2.0**64), np.full(8, -(2.0**64)), np.full(8, 1.9921875 * 2.0**63)]), BF16)
    c = np.zeros((5, 3), np.float32)
    c[0], c[4] = -(2.0**104), np.finfo(np.float32).max
    d = check(machine(4, 24, zero=-132), BF16, codes_of(a, BF16), b, c, None)
    assert d[0, :2].tolist() == [np.inf, -np.inf]
    assert np.isinf(d[3, 0])
    assert np.isfinite(d[0, 2])


def test_a_subnormal_c_alone() -> None:
    """Without products C is cut by its own exponent, which is -126 for subnormals: with few bits that shows."""
    c = np.array([[0x007FFFFF, 0x00400FFF, 0x800FFFFF, 0x00000400, 0x000003FF, 0x00FFFFFF]], np.uint32).view(np.float32)
    ones, zeros = codes_of(np.ones((6, 8)), BF16), codes_of(np.zeros((1, 8)), BF16)
    for unit in (machine(8, 3), machine(8, 13, "fp22"), machine(8, 25), machine(8, 25, "fp22")):
        check(unit, BF16, zeros, ones, c)


def test_the_exponent_of_zeros_shows() -> None:
    """Products of 2^-136 next to a zero: cut at its exponent less F, or at their own."""
    a, b = codes_of([[2.0**-70 * (1 + 2.0**-7), 0]], BF16), codes_of([[2.0**-66, 1.0]], BF16)
    results = [check(machine(4, 3, zero=zero), BF16, a, b).item() for zero in (-126, -133, None)]
    assert results == [0.0, 2.0**-136, 2.0**-136]
    assert Float64Lanes.find(machine(4, 3, zero=-125), BF16, BF16, "portable") is None


# --- the bounds of `float64_lanes.tile`'s docstring ------------------------------------------------------------------


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("group", [32, 256])
def test_the_sum_stays_below_its_limit(group: int, sign: int, align: Align) -> None:
    """L products just below 4 * 2^E, C just below 2 * 2^E, F = 40: |S| comes within a hair of its bound."""
    largest = 2 - 2.0**-10
    a, b = codes_of(np.full((4, 2 * group), sign * largest), HALF), codes_of(np.full((33, 2 * group), largest), HALF)
    c = np.full((4, 33), sign * (2 - 2.0**-23), np.float32)
    check(machine(group, 40, align=align), HALF, a, b, c)
    b[:, ::2] ^= 0x8000  # half of them take one q too much
    check(machine(group, 40, align=align), HALF, a, b, c)


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("fraction_bits", [22, 23, 24, 25, 39, 40])
def test_all_alignments_of_a_full_significand(fraction_bits: int, align: Align) -> None:
    """Products with all 22 bits set, at every distance below E, both signs: the largest f that truncation must drop."""
    steps = np.arange(-14, 16)
    full = (2 - 2.0**-10) * 2.0**steps
    a, b = np.zeros((2 * steps.size, 8)), np.zeros((steps.size, 8))
    a[:, 0], a[:, 1], b[1::2, 0], b[:, 1] = 2.0**15, np.concatenate([full, -full]), 2.0**15, full
    check(machine(8, fraction_bits, align=align), HALF, codes_of(a, HALF), codes_of(b, HALF))


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("fraction_bits", [13, 23, 25, 40])
def test_all_alignments_of_c(fraction_bits: int, align: Align) -> None:
    """C with all 24 bits set, or just one bit above a power of two, at every distance from E."""
    steps = np.arange(-60, 60)
    c = np.concatenate([(2 - 2.0**-23) * 2.0**steps, (1 + 2.0**-23) * 2.0**steps]).astype(np.float32)
    c = np.stack([c, -c, c, -c])
    a = codes_of([[1.0, 0], [1.0, 0], [-1.5, 2.0**-14], [0.0, 0.0]], HALF)
    b = codes_of(np.tile([[1.0, 2.0**-10]], (c.shape[1], 1)), HALF)
    check(machine(4, fraction_bits, align=align), HALF, a, b, c)


@pytest.mark.parametrize("k", [21, 22])
def test_the_factor_must_cover_the_products_bits(k: int) -> None:
    """With 1 + 2^-22 a product of 22 bits is truncated; with 1 + 2^-21 it is not: the bound P <= k is sharp."""
    full = codes_of([[2 - 2.0**-11 * 2, 0, 0, 0]], HALF)
    # p / q has the bits down to 2^-20, and below them f; a small q shows the fraction.
    units = [machine(4, f) for f in range(14, 21)]
    truncated = [np.floor(float(2 - 2.0**-10) ** 2 * 2.0**f) / 2.0**f for f in range(14, 21)]
    assert [check(unit, HALF, full, full).item() for unit in units] == truncated
    for name in set(NAMES) - {"portable"}:
        engines = (Float64Lanes.find(unit, HALF, HALF, name) for unit in units)
        loose = [dataclasses.replace(engine, form=engine.form._replace(factor=1 + 2.0**-k)) for engine in engines]
        got = [engine.run(GemmProblem(full, full, HALF, HALF)).out.item() for engine in loose]
        assert (got == truncated) == (k >= 22)


def test_bits_that_no_longer_fit_are_refused() -> None:
    assert (1 + 2.0**-42) * (2 - 2.0**-10) - (2 - 2.0**-10) == 2.0**-42 * (2 - 2.0**-10)  # exact
    assert FACTOR == 1 + 2.0**-42
    assert Float64Lanes.find(machine(256, 40), TF32, HALF, "portable") is not None
    assert Float64Lanes.find(machine(16, 25), Format("e5m11", 5, 11), HALF, "portable") is None
    assert Float64Lanes.find(machine(16, 25, "float16", -21), HALF, HALF, "fma") is None


def test_the_condition_for_normal_results_at_its_edge() -> None:
    """The form without instructions for subnormals is taken at e - F = -126 and not below; both give the same bits."""
    rng = np.random.default_rng(11)
    unit = machine(16, 25)
    cases = []
    for low, taken in ((-101, True), (-102, False)):
        a = rng.choice([-1, 1], (4, 64)) * 2.0**-50 * (1 + rng.integers(0, 128, (4, 64)) / 128)
        b = rng.choice([-1, 1], (40, 64)) * 2.0 ** (low + 50) * (1 + rng.integers(0, 128, (40, 64)) / 128)
        cases.append((a, b, taken))
    for high, taken in ((59, True), (60, False)):
        cases.append((np.full((4, 64), 1.9921875 * 2.0**58), np.full((40, 64), -1.9921875 * 2.0**high), taken))
    for a, b, taken in cases:
        extents = [ExponentRange.of(x.astype(np.float32), BF16) for x in (a, b)]
        assert extents[0].is_normal(extents[1], unit.fraction_bits, 64) == taken
        check(unit, BF16, codes_of(a, BF16), codes_of(b, BF16))


def test_exponent_range() -> None:
    x = np.array([0.0, -0.0, 3.0, -(2.0**-30), 2.0**-149], np.float32)
    assert pack.exponent_range(x) == (-126, 1)
    assert pack.exponent_range(x[:4]) == (-30, 1)
    assert pack.exponent_range(x[:2])[0] == 128  # no number at all
    assert pack.exponent_range(np.array([np.inf], np.float32))[1] == 128


# --- results ----------------------------------------------------------------------------------------------------------


# --- the machinery ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_trial_notices_a_wrong_kernel(align: Align, name: str) -> None:
    """A factor that is off, and forms that align in another way."""
    found = {x: Float64Lanes.find(machine(16, 25, align=x), HALF, HALF, name) for x in ALIGNMENTS}
    own = found.pop(align)
    if own is None:
        assert (align, name) == ("nearest", "fma")  # a thread has one rounding mode
        return
    assert passes_trial(own)
    wrong = [own.form._replace(factor=own.form.factor + 2.0**-12)]
    wrong += [own.form._replace(kernels=other.form.kernels) for other in found.values() if other is not None]
    for form in wrong:
        assert not passes_trial(dataclasses.replace(own, form=form))


@pytest.mark.skipif("fma" not in NAMES, reason="needs AVX2")
def test_the_rounding_mode_does_not_leak() -> None:
    with lp.use_kernel("fma"):
        ones = codes_of(np.ones((4, 64)), BF16)
        lp.mma(ones, ones, accumulator=machine(16, 25), a_format=BF16, b_format=BF16)
    assert np.float32(1) + np.float32(2.0**-24 * 1.5) == np.float32(1 + 2.0**-23)


@pytest.mark.ci
def test_kernels_are_found_in_the_cache_again(tmp_path: Path) -> None:
    """A second process compiles nothing: neither the kernels nor what they call."""
    script = (
        "import numpy as np, lowprec as lp\n"
        "from lowprec.kernels.tensorcore.float64_lanes.tile import FORMS\n"
        "x = lp.encode(np.ones((4, 16), np.float32), 'bfloat16')\n"
        "lp.mma(x, x, accumulator='hopper_bf16')\n"
        "stats = FORMS['truncate']['portable']['float32'].stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))\n"
    )
    environment = {
        **os.environ,
        "LOWPREC_KERNEL": "portable",
        "LOWPREC_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(lp.__file__).parents[1]),
    }
    found = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert found == ["0 1\n", "1 0\n"]


# --- FP8 as two float16 instructions ----------------------------------------------------------------------------------

MACHINES = ["hopper_fp8_mma", "hopper_fp8_mma_f16"]
E4M3 = formats["e4m3fn"]


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
        want = check_kernels(unit, (E4M3, E4M3), x, x, c, used=SplitF16InFloat64Lanes)
    assert np.isinf(want).any() == name.endswith("f16")


def test_what_is_not_plain_is_left_to_the_reference():
    machine = lp.accumulators["hopper_fp8_mma"].with_(group_size=6)
    rng = np.random.default_rng(3)
    a, b = (lp.encode(rng.standard_normal((rows, 50)), "e4m3fn") for rows in (4, 5))
    agree(lambda: lp.mma(a, b, accumulator=machine), kernels=[*NAMES, "auto"])


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
        with pytest.raises(ValueError, match=f"operands must be of formats whose values float16 has, got {name}"):
            lp.mma(codes, one, accumulator=machine, a_format=f, b_format="e4m3fn")
        return
    product = lp.mma(codes, one, accumulator=machine, a_format=f, b_format="e4m3fn")[:, 0]
    kept = np.abs(f.values()) >= 2.0**-13  # the machine's alignment cuts what is smaller
    assert np.array_equal(product[kept], f.values()[kept], equal_nan=True)
