"""Kernels for CDNA1, CDNA2 and CDNA3 against their references: what-if machines, ends of ranges."""

from typing import Any

import numpy as np
import pytest
from fast_kernels import check_kernels, codes_of
from test_limits import instructions

import lowprec as lp
from lowprec.tensorcore.engines.engine import Engine
from lowprec.tensorcore.engines.selection import way_for
from lowprec.tensorcore.problem import GemmProblem

#: Machines that nobody has built; those of the catalogue are compared in `test_limits` and `test_machines_oracle`.
WHAT_IFS: list[tuple[str, str, dict[str, Any]]] = [
    ("cdna1_f16", "float16", {"group": 2}), ("cdna1_bf16", "bfloat16", {"group": 4}),
    ("cdna3_fp8", "e4m3fnuz", {"group": 1, "run": 1}), ("cdna3_fp8", "e5m2fnuz", {"group": 21, "run": 3}),
    ("cdna3_f16", "float16", {"fraction_bits": 3}), ("cdna3_f16", "float16", {"fraction_bits": 32}),
    ("cdna3_bf16", "bfloat16", {"group": 256}), ("cdna3_bf16", "bfloat16", {"group": 3, "run": 8}),
]  # fmt: skip


def check(machine: lp.Accumulator, fmt: str, *operands: Any) -> np.ndarray:
    return check_kernels(machine, (lp.formats[fmt], lp.formats[fmt]), *operands, used=Engine, kernels=["auto"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fmt", "changes"), WHAT_IFS, ids=str)
def test_machines_that_nobody_has_built(name, fmt, changes):
    machine, f = lp.accumulators[name].with_(**changes), lp.formats[fmt]
    assert way_for(machine, f, f).engine is not None
    instructions(machine, (f, f), ["auto"])


@pytest.mark.parametrize("name", ["cdna3_bf16", "cdna1_bf16", "cdna2_bf16"])
def test_products_beyond_float32_beside_usual_ones(name: str) -> None:
    """A product of 2^128 or more is Inf on CDNA2 and CDNA3, though another would cancel it in CDNA1's exact sum."""
    x, y = np.ones((6, 8)), np.ones((4, 8))
    x[2, :2], y[1, :2] = [2.0**100, -(2.0**100)], 2.0**60
    x[4, 3], y[3, 5] = np.inf, np.nan
    d = check(lp.accumulators[name], "bfloat16", codes_of(x, "bfloat16"), codes_of(y, "bfloat16"))
    assert np.isnan(d[2, 1]) == (name != "cdna1_bf16")
    assert d[0, 0] == 8


def test_ties_of_an_exact_sum_are_decided_far_below() -> None:
    """1 + 2^-24 is a tie in float32; what decides it lies 70 binades below the largest term, which cancels."""
    big, one, half, least = 2.0**15, 1.0, 2.0**-12, 2.0**-24
    for sign, wanted in ((1, 1 + 2.0**-23), (-1, 1.0), (0, 1.0)):
        a, b = (codes_of([x], "float16") for x in ([big, big, half, least], [big, -big, half, sign * least]))
        assert check(lp.accumulators["cdna1_f16"], "float16", a, b, np.float32([[one]])).item() == wanted


@pytest.mark.parametrize(("name", "fmt"), [("cdna1_f16", "float16"), ("cdna2_f16", "float16"), ("cdna3_f16", "float16"),
                                           ("cdna3_fp8", "e4m3fnuz")])  # fmt: skip
def test_groups_of_zeros_are_not_left_to_the_reference(name: str, fmt: str) -> None:
    machine, f = lp.accumulators[name], lp.formats[fmt]
    x = np.random.default_rng(5).standard_normal((20, 101)).astype(np.float32)
    x[3:9] = 0
    x[:, 32:64] = 0
    x[:, 1::2] *= x[:, 1::2] > 1
    engine = way_for(machine, f, f).engine
    assert engine is not None
    codes = lp.encode(x, fmt)
    found = engine.run(GemmProblem(codes, codes, f, f, np.zeros((20, 20), np.float32)))
    assert found.rows.size == found.columns.size == 0
