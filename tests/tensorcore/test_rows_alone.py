"""A row's bits, and a column's, do not depend on what else shares the call: NaN, Inf, scales at the ends of float32."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fast_kernels import bits
from numpy.typing import NDArray
from test_limits import UNITS, chain, formats_of, quantized, seeded

import lowprec as lp
from lowprec.tensorcore.grouped import grouped_gemm

Rows = NDArray[np.intp]
M, N, K = 5, 19, 192
#: Operands, and scales of each: what the kernels do, what they leave to the reference, and both in one call.
CASES = (
    ("special", "NaN"), ("usual", "far apart"), ("negative by subnormals", "product underflows"),
    ("finite", "product overflows first"),
)  # fmt: skip


def alone(compute: Callable[[Rows, Rows], NDArray[Any]], *label: Any, m: int = M, n: int = N) -> None:
    """Ask that rows and columns come out of the whole as they do alone, and in another order."""
    rows, columns = np.arange(m), np.arange(n)
    whole = bits(compute(rows, columns))
    turned = bits(compute(rows[::-1], columns[::-1]))
    assert np.array_equal(turned[::-1, ::-1], whole), ("turned round", *label)
    for i in range(m):
        assert np.array_equal(bits(compute(rows[i : i + 1], columns))[0], whole[i]), ("row", i, *label)
    for j in (0, 1, 7, n - 1):
        assert np.array_equal(bits(compute(rows, columns[j : j + 1]))[:, 0], whole[:, j]), ("column", j, *label)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", UNITS)
def test_of_instructions(name: str) -> None:
    unit = lp.accumulators[name]
    formats = formats_of(unit)
    for operands, kind in (("special", "edges"), ("usual", "NaN"), ("subnormals by negative", "subnormal")):
        label = name, operands, kind
        a, b, c, scales = chain(unit, formats, operands, kind, (M, N, 2 * unit.step() + 3), *label)
        if kind == "subnormal":  # beside zeros of both signs
            c[::2] = np.copysign(0, c[::2])

        def compute(i: Rows, j: Rows, x: Any = (a, b, c, scales)) -> NDArray[Any]:
            a, b, c, scales = x
            inside = {} if scales is None else {"a_scale": scales[0][i], "b_scale": scales[1][j]}
            options = {"accumulator": unit, "a_format": formats[0], "b_format": formats[1]}
            return lp.mma(a[i], b[j], c[np.ix_(i, j)], **options, **inside)

        alone(compute, *label)


def part(q: lp.Quantized, rows: Rows) -> lp.Quantized:
    return lp.Quantized(np.ascontiguousarray(q.codes[rows]), q.scale[rows], q.format, q.granularity)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", UNITS)
def test_of_products(name: str) -> None:
    unit = lp.accumulators[name]
    runs_on = unit.has_running_sum and unit.dtype != np.float16
    for operands, kind in CASES:
        for every, changing in ((None, True), (None, False), ("auto", True)):
            if every is None and changing and not runs_on:
                continue
            label = name, operands, kind, every, changing
            a, b = quantized(unit, seeded(*label), operands, kind, (M, N, K), changing)

            def compute(i: Rows, j: Rows, x: Any = (a, b, every)) -> NDArray[Any]:
                a, b, every = x
                return lp.gemm(part(a, i), part(b, j), accumulator=unit, promote_every=every)

            alone(compute, *label)


@pytest.mark.parametrize("name", ["hopper_fp8", "blackwell_fp8", "cdna2_f16"])
def test_of_experts(name: str) -> None:
    """Rows of two experts, one after the other and mixed, are those of `gemm`."""
    unit = lp.accumulators[name]
    for operands, kind in CASES:
        a, b = quantized(unit, seeded(name, operands, kind), operands, kind, (M, N, K), False)
        experts = [part(b, np.arange(9)), part(b, np.arange(9, 18))]
        expert = np.array([0, 1, -1, 0, 1])
        options = {"accumulator": unit, "promote_every": None}
        got = bits(grouped_gemm(a, experts, expert=expert, **options))
        for i, e in enumerate(expert):
            want = bits(lp.gemm(part(a, np.array([i])), experts[e], **options))[0] if e >= 0 else np.zeros(9, np.uint32)
            assert np.array_equal(got[i], want), (i, operands, kind)


def test_of_float32_products() -> None:
    """Each row of y is another's: NaN of two operands, in every place of a tile and beyond it."""
    rng = seeded("float32")
    x, y = (rng.choice(np.float32([1, -2, 0.5, 3, np.inf, np.nan, -np.nan]), (rows, 4)) for rows in (13, 65))
    y = np.concatenate([y, y])
    alone(lambda i, j: lp.matmul_f32(x[i], y[j]), m=13, n=130)
    for to in ("float32", "bfloat16"):
        d = bits(lp.matmul_f32(x, y, out_format=to))
        assert np.array_equal(d[:, :65], d[:, 65:]), to
