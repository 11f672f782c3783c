"""Worked examples of CPUs' dot products, and of CDNA1."""

from typing import Any

import numpy as np
import pytest
from fast_kernels import check_kernels, codes_of

import lowprec as lp
from lowprec.tensorcore.kinds.arm import ScaledGroupSum

BF16_ONE = 2.0**24


LEAST = 2.0**-126
INF = float("inf")
E5M2 = {"fmt": "e5m2"}
SATURATES = {"saturate": True}
Example = tuple[str, list[float], list[float], float, float] | tuple[str, list[float], list[float], float, float, Any]
#: Machine, values of a and b, c, the sum, and what is changed of the machine, or the format.
EXAMPLES: list[Example] = [
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
    ("arm_fp8_f16", [448.0], [448.0], 0.0, INF),
    # LSCALE multiplies products before the only rounding
    ("arm_fp8", [2.0**-6] * 4, [2.0**-9] * 4, 1.0, 1 + 2.0**-22, {"product_scale_log2": -9}),
    ("arm_fp8", [1.0] * 4, [1.0] * 4, BF16_ONE, BF16_ONE, {"product_scale_log2": -2}),
    # OSM saturates what overflows, and no infinity
    ("arm_fp8_f16", [448.0], [448.0], 0.0, 65504, SATURATES),
    ("arm_fp8_f16", [448.0], [-448.0], 0.0, -65504, SATURATES),
    ("arm_fp8_f16", [INF], [1.0], 0.0, INF, SATURATES | E5M2),
    ("arm_fp8_f16", [1.0], [1.0], -INF, -INF, SATURATES),
    # Two readings of AMX FP8: a subnormal of E5M2 is zero in Bochs; E4M3's are numbers in both
    ("amx_fp8", [2.0**-16], [1.0], 0.0, 0.0, E5M2),
    ("amx_fp8_subnormals", [2.0**-16], [1.0], 0.0, 2.0**-16, E5M2),
    ("amx_fp8", [2.0**-9], [1.0], 0.0, 2.0**-9),
    ("amx_fp8_subnormals", [2.0**-9], [1.0], 0.0, 2.0**-9),
    # E5M2's products span 2^-32 to 2^32 and 6 bits more; the least decides a tie beside the largest and C
    ("arm_fp8", [2.0**15, 2.0**15, 2.0**-16], [2.0**15, -(2.0**15), 2.0**-16], 0.0, 2.0**-32, E5M2),
    ("arm_fp8", [1.0, 2.0**-16], [1.0, 2.0**-16], 2.0**24, 2.0**24 + 2, E5M2),
    ("arm_fp8", [1.0], [1.0], 2.0**24, 2.0**24, E5M2),
    # A sum of -0 alone stays -0, whatever K is filled up with
    *((name, [-0.0] * 4, [1.0] * 4, -0.0, -0.0) for name in ("avx512_bf16", "arm_bf16", "arm_bf16_ebf", "arm_fp8")),
    # CDNA1: 1 + 2^-24 is a tie in float32; what decides it lies 70 binades below the largest term, which cancels
    *(("cdna1_f16", [2.0**15, 2.0**15, 2.0**-12, 2.0**-24], [2.0**15, -(2.0**15), 2.0**-12, least], 1.0, wanted)
      for least, wanted in ((2.0**-24, 1 + 2.0**-23), (-(2.0**-24), 1.0), (0.0, 1.0))),
]  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_worked_examples(example: Example) -> None:
    name, *sides, c, wanted, changes = example if len(example) == 6 else (*example, {})
    machine = lp.accumulators[name].with_(**{key: value for key, value in changes.items() if key != "fmt"})
    fmt = lp.formats.get(changes.get("fmt", machine.default_format))
    a, b = (codes_of([side], fmt) for side in sides)
    start = np.array([[c]], machine.dtype)
    assert check_kernels(machine, (fmt, fmt), a, b, start, kernels=["auto"]).item() == wanted


@pytest.mark.parametrize("name", ["arm_fp8", "arm_fp8_fmlall", "amx_fp8"])
def test_checksums_hold(name: str) -> None:
    rng = np.random.default_rng(1)
    machine = lp.accumulators[name]
    if isinstance(machine, ScaledGroupSum):
        machine = machine.with_(product_scale_log2=-7)
    q = [
        lp.quantize(rng.standard_normal((48, 96), dtype=np.float32), f"{machine.default_format} 1x128")
        for _ in range(2)
    ]
    d = lp.gemm(*q, accumulator=machine, promote_every=None)
    assert not lp.checksum(d, *q, accumulator=machine, promote_every=None).failed
    d[3, 5] += np.abs(d).max()
    assert lp.checksum(d, *q, accumulator=machine, promote_every=None).suspects() == [(3, 5)]
