"""Runs that are scaled inside the instruction: each form of the kernel against the integer reference, at its bounds.

Machines of the catalogue are compared on all families of operands in `test_machines_oracle` and `test_limits`.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from fast_kernels import KERNELS as NAMES
from fast_kernels import check_kernels
from numpy.typing import NDArray

import lowprec as lp
from lowprec.format.catalogue import formats
from lowprec.tensorcore.accumulator import Accumulator
from lowprec.tensorcore.engines.exact_groups import ExactGroupEngine
from lowprec.tensorcore.engines.selection import passes_trial, plan_for
from lowprec.tensorcore.problem import GemmProblem

FP4 = formats["e2m1fn"]
NVFP4, MXF4, MXF4_16 = (lp.accumulators[f"blackwell_{name}"] for name in ("nvfp4", "mxf4", "mxf4_16"))
SIX, ZERO = 7, 0  # codes; 8 is the sign

Codes = NDArray[np.uint8]
Rng = np.random.Generator


def check(unit: Accumulator, a: Codes, b: Codes, scales: tuple[Codes, Codes], *addends: Any) -> NDArray[np.float32]:
    """Compare every form with the integer reference, all bits; return the sums without C, or with the last one."""
    for c in addends or (None,):
        want = check_kernels(unit, (FP4, FP4), a, b, c, scales, used=ExactGroupEngine)
    return want


def with_factor(engine: Any, factor: float) -> Any:
    """The engine with another factor of B's scales."""
    return dataclasses.replace(engine, form=engine.form._replace(factor=factor))


def of_one(rows: int, columns: int, code_a: int, code_b: int, count: int = 4) -> tuple[Codes, Codes]:
    """Scales that are one code on each side."""
    return np.full((rows, count), code_a, np.uint8), np.full((columns, count), code_b, np.uint8)


def scale_codes(rng: Rng, rows: int, count: int, kind: str, unit: Accumulator) -> Codes:
    if unit.scale_format == "e4m3fn":
        ranges = {"near": (0x30, 0x48), "spread": (0, 0x7F), "subnormal": (0, 9), "high": (0x70, 0x7F)}
    else:
        ranges = {"near": (120, 134), "spread": (60, 190), "subnormal": (0, 40), "high": (220, 255)}
    scale = rng.integers(*ranges[kind], (rows, count)).astype(np.uint8)
    if unit.scale_format == "e4m3fn":
        scale[rng.random(scale.shape) < 0.15] = 0
        scale[rng.random(scale.shape) < 0.1] |= 0x80  # the sign means nothing
    return scale


def drawn(rng: Rng, unit: Accumulator, shape: tuple[int, int, int], kind: str) -> Any:
    """Operands, any codes, and their scales."""
    m, n, k = shape
    a, b = (rng.integers(0, 16, (rows, k)).astype(np.uint8) for rows in (m, n))
    return a, b, tuple(scale_codes(rng, rows, k // unit.scale_block, kind, unit) for rows in (m, n))


@pytest.mark.parametrize("change", [
    {"fraction_bits": 3}, {"fraction_bits": 20, "output_format": "fp22"}, {"fraction_bits": 37}, {"group_size": 16},
    {"group_size": 256}, {"zero_exponent": None}, {"zero_exponent": -126, "fraction_bits": 8}, {"scale_block": 64},
], ids=str)  # fmt: skip
def test_machines_nobody_has_built(change: dict[str, Any]) -> None:
    rng = np.random.default_rng(17)
    unit = MXF4_16.with_(**change)
    if unit.group_size == 256:
        unit = unit.with_(fraction_bits=34)
    for kind in ("near", "spread", "subnormal"):
        check(unit, *drawn(rng, unit, (9, 37, 640), kind), None, rng.standard_normal((9, 37)).astype(np.float32))


# --- the bounds of `runs_tile`'s docstring ----------------------------------------------------------------------


@pytest.mark.parametrize("sign", [0, 8])
def test_the_sum_stays_below_its_limit(sign: int) -> None:
    """F = 37, the largest elements and significands (15 / 8): terms of 2025 * 2^37 q."""
    a, b = np.full((4, 128), SIX | sign, np.uint8), np.full((33, 128), SIX, np.uint8)
    scales = of_one(4, 33, 0x7E, 0x77, 8)
    scales[0][:, 3], scales[1][:, 5] = 0x37, 0x3F
    unit = NVFP4.with_(fraction_bits=37)
    c = np.full((4, 33), -(2 - 2.0**-23) * 2.0**14 if sign else (2 - 2.0**-23) * 2.0**14, np.float32)
    check(unit, a, b, scales, c)
    b[:, 1::2] ^= 8
    check(unit, a, b, scales, c)
    for beyond in (unit.with_(fraction_bits=38), unit.with_(group_size=128)):
        assert not any(ExactGroupEngine.find(beyond, FP4, FP4, name) for name in NAMES)


def of_many_bits(rng: Rng, count: int) -> tuple[Codes, Codes]:
    """Runs whose sums, in quarters, have nearly all of their low eight bits set: [count, 16] times [1, 16]."""
    b = rng.integers(0, 16, (1, 16)).astype(np.uint8)
    a = rng.integers(0, 16, (4000, 16)).astype(np.uint8)
    values = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    total = (values[a] * values[b]).sum(axis=1)
    low = np.abs(total) & 0xFF
    best = np.argsort(np.bincount(np.repeat(np.arange(4000), 8), ((low[:, None] >> np.arange(8)) & 1).ravel()))[::-1]
    assert (low[best[:count]] >= 0x7F).all()
    return a[best[:count]], b


@pytest.mark.parametrize("fraction_bits", [20, 28, 35, 37])
def test_all_alignments_of_a_term(fraction_bits: int) -> None:
    """Terms with all their bits set beside a C at every distance: the largest fractions that truncation must drop."""
    a, b = of_many_bits(np.random.default_rng(1), 14)
    unit = NVFP4.with_(fraction_bits=fraction_bits)
    steps = np.arange(-50, 60)
    c = np.ldexp(1.0, np.concatenate([steps, steps]))
    c[: steps.size] *= -1
    for code_a, code_b in ((0x3F, 0x3F), (0x37, 0x77), (0x07, 0x07), (0x01, 0x01), (0x38, 0x38)):
        scales = of_one(len(a), c.size, code_a, code_b, 1)
        check(unit, a, np.tile(b, (c.size, 1)), scales, np.tile(c, (len(a), 1)).astype(np.float32))


@pytest.mark.parametrize("fraction_bits", [10, 35])
def test_all_distances_between_terms(fraction_bits: int) -> None:
    """Two runs whose power-of-two scales lie up to 60 binades apart, of either sign."""
    a, b = of_many_bits(np.random.default_rng(2), 12)
    a = np.concatenate([a, a[::-1]], axis=1)
    distance = np.arange(60)
    b = np.tile(np.concatenate([b, b], axis=1), (distance.size, 1))
    scales = np.full((len(a), 2), 127, np.uint8), np.stack([127 + 0 * distance, 127 - distance], 1).astype(np.uint8)
    check(MXF4_16.with_(fraction_bits=fraction_bits), a, b, scales)


def test_what_takes_part_in_the_alignment() -> None:
    """A run that cancels keeps its exponent; one whose products are all zero, or whose scale is, has none."""
    unit = NVFP4.with_(fraction_bits=10)
    a, b = np.zeros((4, 64), np.uint8), np.zeros((1, 64), np.uint8)
    a[0, :2], a[1, 0], a[2, :2] = (SIX, SIX | 8), SIX, (SIX, SIX)
    b[0, :2], b[0, 16] = SIX, 3
    a[:, 16] = 3  # 2.25 at 2^-6, which 10 fraction bits below 2^6 cut to 2.25 / 64 = 2^-5 + 2^-8
    sa, sb = of_one(4, 1, 0x20, 0x20)
    sa[:, 0], sb[:, 0] = 0x60, 0x50
    sa[2, 0] = 0  # and with it what its run has
    want = check(unit, a, b, (sa, sb))
    lone = 2.25 * 2.0**-6
    assert want[2, 0] == want[3, 0] == lone
    assert want[0, 0] == np.floor(lone * 2.0**2) / 2.0**2 == 0.0  # E = 5 + 3
    assert want[1, 0] == 36 * 2.0**8


@pytest.mark.parametrize(("exponent", "right"), [(-47, False), (-48, True), (-49, True), (-50, True), (-53, False)])
def test_the_factor_is_between_its_bounds(exponent: int, right: bool) -> None:
    """A term of nearly 2^48 q and two of minus half of it: what is too much, or missing, is all that is left."""
    a, b = np.full((4, 64), SIX, np.uint8), np.full((33, 64), SIX, np.uint8)
    a[:, 16:48] |= 8
    a[:, 24:32] = a[:, 40:48] = a[:, 48:] = ZERO
    given = of_one(4, 33, 0x77, 0x77)  # significands of 15 / 8
    unit = NVFP4.with_(fraction_bits=37)
    assert not check(unit, a, b, given).any()
    for name in set(NAMES) - {"portable"}:
        fast = with_factor(ExactGroupEngine.find(unit, FP4, FP4, name), 1 + 2.0**exponent)
        assert fast.run(GemmProblem(a, b, FP4, FP4, None, *given)).out.any() != right


@pytest.mark.parametrize("factor", [1.0, 1 + 2.0**-30, 1 - 2.0**-49])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "portable"])
def test_the_trial_notices_a_wrong_factor(name: str, factor: float) -> None:
    engine = ExactGroupEngine.find(NVFP4, FP4, FP4, name)
    assert engine is not None
    assert passes_trial(engine)
    assert not passes_trial(with_factor(engine, factor))


def test_what_is_refused() -> None:
    e3m2 = formats["e3m2fn"]
    for unit in (
        NVFP4.with_(align="floor"), NVFP4.with_(exact_group=8), NVFP4.with_(output_format="float16"),
        NVFP4.with_(zero_exponent=-120),
    ):  # fmt: skip
        assert plan_for(unit, FP4, FP4).engine is None
    assert ExactGroupEngine.find(NVFP4, e3m2, FP4, "portable") is None


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_on_both_sides_of_infinity() -> None:
    """Sums of 2^127 and more, of both signs, and those that truncation keeps finite."""
    a, b = np.full((4, 64), 2, np.uint8), np.full((34, 64), 2, np.uint8)  # ones
    a[1::2] |= 8
    scales = of_one(4, 34, 127 + 61, 127 + 61, 2)  # 2^128 in all
    check(MXF4, a, b, scales)
    scales[1][::2] = 127 + 60
    c = np.full((4, 34), np.finfo(np.float32).max)
    c[:2] *= -1
    want = check(MXF4, a, b, scales, c)
    assert np.isinf(want).any()
    assert np.isfinite(want).any()
    for low, other in ((10, 127 - 30), *((low, 127 - 24) for low in range(12))):  # down to the last subnormal
        check(MXF4, a, b, of_one(4, 34, low, other, 2))
