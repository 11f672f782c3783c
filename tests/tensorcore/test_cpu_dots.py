"""CPUs' dot products: worked examples, machines that nobody has built, and which operands the fast kernels take."""

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from machine_inputs import FAMILIES
from machine_samples import sample

import lowprec as lp
from lowprec.oracle import ACCUMULATORS, fma32

BF16_ONE = 2.0**24


def dot(accumulator: Any, a: list[float], b: list[float], c: float = 0.0, fmt: str | None = None) -> float:
    machine = lp.accumulators.get(accumulator)
    fmt = fmt or machine.default_format
    x, y = (lp.encode([side], fmt, policy="ocp_nonsat") for side in (a, b))
    start = np.array([[c]], machine.dtype)
    found = [lp.mma(x, y, start, accumulator=machine, a_format=fmt, b_format=fmt).item()]
    with lp.using(kernel="reference"):
        found.append(lp.mma(x, y, start, accumulator=machine, a_format=fmt, b_format=fmt).item())
    assert found[0] == found[1]
    return float(found[0])


LEAST = 2.0**-126
EXAMPLES: list[tuple[str, list[float], list[float], float, float]] = [
    # x86: of two products 2^-24 beside 1 the one order loses both
    ("avx512_bf16", [2.0**-12] * 2, [2.0**-12] * 2, 1.0, 1.0),
    ("amx_bf16", [2.0**-12] * 2, [2.0**-12] * 2, 1.0, 1 + 2.0**-23),
    ("avx512_bf16", [1.0] * 2, [1.0] * 2, BF16_ONE, BF16_ONE),
    ("amx_bf16", [1.0] * 2, [1.0] * 2, BF16_ONE, BF16_ONE + 2),
    ("avx512_bf16", [1.0] * 4, [1.0] * 4, BF16_ONE, BF16_ONE),
    ("amx_bf16", [1.0] * 4, [1.0] * 4, BF16_ONE, BF16_ONE + 4),
    ("amx_bf16", [BF16_ONE, 1.0, 1.0, -BF16_ONE], [1.0] * 4, 0.0, 1.0),
    ("avx512_bf16", [-(2.0**-63)], [2.0**-63], 1.5 * LEAST, 0.0),
    ("amx_bf16", [-(2.0**-63)], [2.0**-63], 1.5 * LEAST, 0.0),
    ("amx_fp8", [448.0] * 4, [448.0] * 4, 0.0, 802816.0),
    ("amx_fp8", [1.0], [1.0], BF16_ONE, BF16_ONE),
    # Arm
    ("arm_bf16", [2.0**-12] * 2, [2.0**-12] * 2, 1.0, 1 + 2.0**-23),
    ("arm_bf16_ebf", [2.0**-12] * 2, [2.0**-12] * 2, 1.0, 1 + 2.0**-23),
    ("arm_bf16", [2.0**-12, 2.0**-24], [2.0**-13, 2.0**-24], 1.0, 1 + 2.0**-23),
    ("arm_bf16_ebf", [2.0**-12, 2.0**-24], [2.0**-13, 2.0**-24], 1.0, 1.0),
    ("arm_bf16", [-(2.0**-63)], [2.0**-63], 1.5 * LEAST, 0.0),
    ("arm_bf16_ebf", [-(2.0**-63)], [2.0**-63], 1.5 * LEAST, 0.5 * LEAST),
    ("arm_bf16", [1 + 2.0**-7, -1.0], [1 + 2.0**-7, 1.0], 0.0, float.fromhex("0x1.01p-6")),
    ("arm_bf16_ebf", [1 + 2.0**-7, -1.0], [1 + 2.0**-7, 1.0], 0.0, float.fromhex("0x1.01p-6")),
    ("arm_bf16", [1.0] * 2, [1.0] * 2, BF16_ONE, BF16_ONE + 2),
    ("arm_fp8", [448.0] * 4, [448.0] * 4, 0.0, 802816.0),
    ("arm_fp8_f16", [448.0], [448.0], 0.0, float("inf")),
]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_worked_examples(example: tuple[str, list[float], list[float], float, float]) -> None:
    name, a, b, c, wanted = example
    assert dot(name, a, b, c) == wanted


def test_lscale_multiplies_products_before_the_only_rounding() -> None:
    small = lp.accumulators["arm_fp8"].with_(product_exponent=-9)
    assert dot(small, [2.0**-6] * 4, [2.0**-9] * 4, 1.0) == 1 + 2.0**-22
    assert dot(lp.accumulators["arm_fp8"].with_(product_exponent=-2), [1.0] * 4, [1.0] * 4, BF16_ONE) == BF16_ONE


def test_osm_saturates_what_overflows_and_no_infinity() -> None:
    saturating = lp.accumulators["arm_fp8_f16"].with_(saturate=True)
    assert dot(saturating, [448.0], [448.0]) == 65504
    assert dot(saturating, [448.0], [-448.0]) == -65504
    assert dot(saturating, [float("inf")], [1.0], fmt="e5m2") == float("inf")
    assert dot(saturating, [1.0], [1.0], float("-inf")) == float("-inf")


def test_the_two_readings_of_amx_fp8() -> None:
    """A subnormal of E5M2 is zero in Bochs; E4M3's are numbers in both."""
    least = 2.0**-16
    assert dot("amx_fp8", [least], [1.0], fmt="e5m2") == 0.0
    assert dot("amx_fp8_subnormals", [least], [1.0], fmt="e5m2") == least
    for name in ("amx_fp8", "amx_fp8_subnormals"):
        assert dot(name, [2.0**-9], [1.0], fmt="e4m3fn") == 2.0**-9


# What if


def rule_of(name: str, changes: dict[str, Any]) -> Any:
    words = {"product_exponent": "exponent", "run": "lanes"}
    return dataclasses.replace(ACCUMULATORS[name].rule, **{words.get(k, k): v for k, v in changes.items()})


WHAT_IFS = [
    ("avx512_bf16", {"group": 1}), ("avx512_bf16", {"group": 5}), ("amx_bf16", {"group": 8}),
    ("amx_bf16", {"group": 6}), ("amx_bf16", {"run": 1}), ("amx_f16", {"run": 4}), ("amx_fp8", {"group": 16}),
    ("amx_fp8", {"group": 12, "run": 3}), ("arm_bf16", {"group": 1}), ("arm_bf16", {"group": 4}),
    ("arm_bf16_ebf", {"group": 7}), ("arm_fp8", {"group": 9}), ("arm_fp8", {"product_exponent": -127}),
    ("arm_fp8", {"product_exponent": 100, "saturate": True}), ("arm_fp8_fmlall", {"product_exponent": -120}),
    ("arm_fp8_fmlall", {"product_exponent": 127}), ("arm_fp8_f16", {"product_exponent": -15}),
    ("arm_fp8_f16", {"saturate": True}),
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "changes"), WHAT_IFS, ids=str)
def test_machines_that_nobody_has_built(name: str, changes: dict[str, Any]) -> None:
    accumulator = lp.accumulators[name].with_(**changes)
    machine = dataclasses.replace(ACCUMULATORS[name], rule=rule_of(name, changes))
    pair = (machine.inputs[0], machine.inputs[-1])
    for family, addend in (
        ("narrow", "near"), ("subnormal", "tiny"), ("least", "zeros"), ("cancellation", "near"), ("largest", "edge"),
        ("special", "any"), ("two ladders", "near"),
    ):  # fmt: skip
        assert family in FAMILIES
        x = sample(machine, pair, family, (4, 19, 37), addend, count=6)
        for kernel in ("auto", "reference"):
            with lp.using(kernel=kernel):
                c = x.tile.c.view({2: np.float16, 4: np.float32}[x.tile.c.dtype.itemsize])
                d = lp.mma(x.tile.a, x.tile.b, c, accumulator=accumulator, a_format=pair[0], b_format=pair[1])
            for (i, j), wanted in zip(x.where, x.wanted(), strict=True):
                value = np.array(wanted, x.tile.c.dtype).view(d.dtype)
                same = d[i, j].tobytes() == value.tobytes() or (np.isnan(d[i, j]) and np.isnan(value))
                assert same, f"{family}, {kernel} ({i}, {j}): {d[i, j]!r}, wanted {value!r}"


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16", "arm_bf16", "arm_bf16_ebf", "arm_fp8", "amx_fp8"])
def test_operands_at_the_ends_beside_usual_ones(name: str) -> None:
    """Rows and columns that the fast kernel does not hold for are the reference's; the others stay as they are."""
    rng, fmt = np.random.default_rng(3), lp.accumulators[name].default_format
    wide = lp.formats[fmt].emax > 100
    a, b = (rng.standard_normal((40, 96), dtype=np.float32) for _ in range(2))
    a[7], b[11] = (a[7] * 2.0**-90, b[11] * 2.0**-60) if wide else (a[7] * 2.0**-12, b[11] * 2.0**-9)
    a[8] *= 2.0**120 if wide else 2.0**7
    a[9, 3], b[12, 5] = np.inf, np.nan
    c = rng.standard_normal((40, 40), dtype=np.float32)
    c[5, 5], c[6, 6] = 2.0**-140, -0.0
    x, y = lp.encode(a, fmt, policy="ocp_nonsat"), lp.encode(b, fmt, policy="ocp_nonsat")
    fast = lp.mma(x, y, c, accumulator=name)
    with lp.using(kernel="reference"):
        slow = lp.mma(x, y, c, accumulator=name)
    assert fast.tobytes() == slow.tobytes()


def test_an_exact_sum_beyond_float64() -> None:
    """E5M2's products span 2^-32 to 2^32 and 6 bits more; the least decides a tie beside the largest and C."""
    a, b = [2.0**15, 2.0**15, 2.0**-16, 0.0], [2.0**15, -(2.0**15), 2.0**-16, 0.0]
    assert dot("arm_fp8", a, b, fmt="e5m2") == 2.0**-32
    tie = [1.0, 2.0**-16, 0.0, 0.0]
    assert Fraction(dot("arm_fp8", tie, [1.0, 2.0**-16, 0, 0], 2.0**24, fmt="e5m2")) == 2**24 + 2
    assert dot("arm_fp8", [1.0], [1.0], 2.0**24, fmt="e5m2") == 2.0**24


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("hopper_fp8", {"saturate": True}, "kind='fused' has no saturate"),
        ("arm_fp8", {"flushed": ("e5m2",)}, "kind='scaled_groups' has no flushed"),
        ("amx_fp8", {"product_exponent": 1}, "kind='pair_lanes' has no product_exponent"),
        ("amx_fp8", {"group": 6}, "group=6 is not a multiple of 4, 2 for each of 2 lanes"),
        ("amx_bf16", {"group": 5}, "group=5 is not a multiple of 2, 1 for each of 2 lanes"),
        ("arm_fp8", {"product_exponent": 200}, "product_exponent=200: -127 to 127"),
    ],
)
def test_fields_that_do_not_go_together(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.accumulators[name].with_(**changes)


def test_gemm_promotes_on_a_cpu_too() -> None:
    """Scales by block and chains of 128: the sum of chains that `mma` gives."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((32, 256), dtype=np.float32) for _ in range(2))
    qx, qw = lp.quantize(x, "e4m3fn", "1x128"), lp.quantize(w, "e4m3fn", "1x128")
    ours = lp.gemm(qx, qw, accumulator="amx_fp8", promote_every=128).view(np.uint32)
    parts = [slice(128 * t, 128 * t + 128) for t in range(2)]
    chains = [
        lp.mma(np.ascontiguousarray(qx.codes[:, part]), np.ascontiguousarray(qw.codes[:, part]), accumulator="amx_fp8")
        for part in parts
    ]
    for i, j in np.ndindex(32, 32):
        total = 0
        for t, chain in enumerate(chains):
            scale = np.float32(qx.scale[i, t] * qw.scale[j, t])
            total = fma32(int(scale.view(np.uint32)), int(chain[i, j].view(np.uint32)), total)
        assert int(ours[i, j]) == total


@pytest.mark.parametrize("name", ["arm_fp8", "arm_fp8_fmlall", "amx_fp8"])
def test_checksums_hold(name: str) -> None:
    rng = np.random.default_rng(1)
    machine = lp.accumulators[name]
    if "product_exponent" in machine.rule.own_fields:
        machine = machine.with_(product_exponent=-7)
    q = [lp.quantize(rng.standard_normal((48, 96), dtype=np.float32), machine.default_format) for _ in range(2)]
    d = lp.gemm(*q, accumulator=machine, promote_every=None)
    assert not lp.checksum(d, *q, accumulator=machine, promote_every=None).tripped
    d[3, 5] += np.abs(d).max()
    assert lp.checksum(d, *q, accumulator=machine, promote_every=None).suspects() == [(3, 5)]
