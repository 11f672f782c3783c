"""P3109's blocks: the draft's example, edges, and every operation against fractions with one projection at the end."""

import functools
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.oracle import casts, decode
from lowprec.scaling.p3109 import ScaledBlocks, block_apply, block_convert, block_dot, block_project, block_reduce

E, S = lp.formats["binary8p4se"], lp.formats["binary8p1ue"]
FINE, COARSE = lp.formats["binary12p7se"], lp.formats["binary8p3ue"]
PROJECTIONS = [
    ("nearest_even", "p3109_satfinite"), ("toward_zero", "p3109_satnone"), ("up", "p3109_satpropagate"),
    ("to_odd", "p3109_satnone"),
]  # fmt: skip


def test_the_drafts_example() -> None:
    x = [3.5, -1, 0.1, 6, math.inf, math.nan]
    b = block_convert(x, E, S, policy="p3109_satpropagate")
    assert int(b.scale) == 0x82
    assert b.elements.tolist() == [0x3E, 0xB0, 0x15, 0x44, 0x7F, 0x80]
    assert block_convert([12.0], E, S).scale == S.max_code // S.max_code * lp.encode(16.0, S)


def project(value: Fraction | float, f: lp.Format, how: tuple[str, str]) -> int:
    mode, policy = how
    return casts.cast(value, f, mode, policy)


def divided(value: Fraction | float, scale: Fraction | float) -> Fraction | float:
    """BlockProject before its projection, as the draft's cases read."""
    if value != value or scale != scale:
        return math.nan
    if scale == 0:
        return Fraction(0)
    if scale in (math.inf, -math.inf):
        return Fraction(1)
    if value in (math.inf, -math.inf):
        return value if scale > 0 else -value
    return Fraction(value) / Fraction(scale)


def times(a: Fraction | float, b: Fraction | float) -> Fraction | float:
    if any(v != v for v in (a, b)) or (0 in (a, b) and any(isinstance(v, float) for v in (a, b))):
        return math.nan
    finite = isinstance(a, Fraction) and isinstance(b, Fraction)
    return a * b if finite else math.copysign(math.inf, (1 if a > 0 else -1) * (1 if b > 0 else -1))


def exact(b: ScaledBlocks) -> list[list[Fraction | float]]:
    return [
        [times(decode(int(code), b.format), decode(int(scale), b.scale_format)) for code in row]
        for row, scale in zip(b.elements, b.scale, strict=True)
    ]


def numbers(count: int, n: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, n)) * 2.0 ** rng.integers(-14, 14, (count, 1))
    x[::3] = rng.standard_normal((len(x[::3]), n)) * 2.0 ** rng.integers(-100, 100, (len(x[::3]), n))
    x[1::3] = np.round(x[1::3] * 64) / 64
    x[rng.random(x.shape) < 0.03] = 0
    x[5, :2] = np.inf, -np.inf
    x[6, 0] = np.nan
    x[7], x[8], x[9] = 0, np.nan, np.inf
    return x


def some_blocks(f: lp.Format, g: lp.Format, count: int, n: int, seed: int) -> ScaledBlocks:
    """Blocks of any codes; most scales are such as leave sums of many binades."""
    rng = np.random.default_rng(seed)
    elements = rng.integers(0, 1 << f.bits, (count, n)).astype(f.code_dtype)
    if f.nan_code is not None:
        elements[rng.random(elements.shape) < 0.95] %= f.max_code
    return ScaledBlocks(elements, rng.integers(0, 1 << g.bits, count).astype(g.code_dtype), f, g)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", PROJECTIONS)
@pytest.mark.parametrize(("f", "g"), [(E, S), (FINE, COARSE), (COARSE, COARSE)], ids=str)
def test_projection_of_blocks(f: lp.Format, g: lp.Format, how: tuple[str, str]) -> None:
    x = numbers(120, 8, 1)
    scale = np.random.default_rng(2).integers(0, 1 << g.bits, 120)
    scale[:6] = 0, g.inf_code, g.nan_code, g.max_code, 1, 2
    ours = block_project(x, scale, f, g, rounding=how[0], policy=how[1])
    wanted = [
        [project(divided(v if abs(v) == math.inf or v != v else Fraction(v), decode(int(s), g)), f, how) for v in row]
        for row, s in zip(x.tolist(), scale, strict=True)
    ]
    assert ours.elements.tolist() == wanted


@pytest.mark.parametrize(("f", "g"), [(E, S), (FINE, COARSE)], ids=str)
def test_scales_from_the_largest_finite_magnitude(f: lp.Format, g: lp.Format) -> None:
    x = numbers(60, 8, 3)
    ours = block_convert(x, f, g)
    for row, scale, elements in zip(x.tolist(), ours.scale, ours.elements.tolist(), strict=True):
        finite = [Fraction(abs(v)) for v in row if math.isfinite(v)]
        largest = max(finite) if finite else math.inf if math.inf in map(abs, row) else math.nan
        assert project(largest, g, PROJECTIONS[0]) == scale
        exact_row = [Fraction(v) if math.isfinite(v) else v for v in row]
        assert [project(divided(v, decode(int(scale), g)), f, PROJECTIONS[0]) for v in exact_row] == elements


def test_edges() -> None:
    convert = block_convert([[0.0, 0.0], [math.nan, math.nan], [math.inf, math.nan], [1e-300, 0.0]], E, COARSE)
    assert decode(int(convert.scale[0]), COARSE) == 0
    assert convert.elements[0].tolist() == [0, 0]
    assert (convert.scale[1], convert.elements[1].tolist()) == (COARSE.nan_code, [E.nan_code] * 2)
    assert decode(int(convert.scale[3]), COARSE) == 0
    infinite = block_convert([math.inf, math.nan], E, COARSE, scale_policy="p3109_satpropagate")
    assert int(infinite.scale) == COARSE.inf_code
    assert lp.decode(infinite.elements, E).tolist()[0] == 1.0
    over = [block_project([1e9], 0x80, E, S, policy=f"p3109_{p}").elements[0] for p in ("satfinite", "satnone")]
    assert over == [E.max_code, E.inf_code]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", PROJECTIONS)
def test_conversions_reductions_and_dot_products(how: tuple[str, str]) -> None:
    options = {"rounding": how[0], "policy": how[1]}
    for f, g, to in ((E, COARSE, FINE), (FINE, COARSE, E), (FINE, S, lp.formats["binary16p11se"])):
        x, y = some_blocks(f, g, 60, 6, 4), some_blocks(f, g, 60, 6, 5)
        y.scale[::2] = x.scale[::2]
        y.elements[::4, :3] = x.elements[::4, 3:]
        a, b = exact(x), exact(y)
        assert x.to(to, **options).tolist() == [[project(v, to, how) for v in row] for row in a]
        sums = [sum(row, Fraction(0)) for row in a]
        assert block_reduce("add", x, to, **options).tolist() == [project(v, to, how) for v in sums]
        products = [functools.reduce(times, row, Fraction(1)) for row in a]
        assert block_reduce("multiply", x, to, **options).tolist() == [project(v, to, how) for v in products]
        dots = [sum(map(times, u, v), Fraction(0)) for u, v in zip(a, b, strict=True)]
        assert block_dot(x, y, to, **options).tolist() == [project(v, to, how) for v in dots]


def over(a: Fraction | float, b: Fraction | float) -> Fraction | float:
    """Quotients as IEEE 754 has them; there is no -0."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b if b else math.nan if not a else math.copysign(math.inf, a)
    if a != a or b != b or (isinstance(a, float) and isinstance(b, float)):
        return math.nan
    return Fraction(0) if isinstance(b, float) else math.copysign(math.inf, (1 if a > 0 else -1) * (-1 if b < 0 else 1))


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
def test_operations_on_elements(operation: str) -> None:
    rules = {"add": operator.add, "subtract": operator.sub, "multiply": times, "divide": over}
    x, y = some_blocks(E, COARSE, 80, 5, 6), some_blocks(FINE, COARSE, 80, 5, 7)
    y.scale[::2] = x.scale[::2]
    scale = np.random.default_rng(8).integers(0, 256, 80)
    ours = block_apply(operation, x, y, scale, FINE, COARSE, policy="p3109_satnone")
    for row, a, b, s in zip(ours.elements.tolist(), exact(x), exact(y), scale, strict=True):
        wanted = [divided(rules[operation](u, v), decode(int(s), COARSE)) for u, v in zip(a, b, strict=True)]
        assert row == [project(v, FINE, ("nearest_even", "p3109_satnone")) for v in wanted]
