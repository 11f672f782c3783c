"""`mma` on random and adversarial operands, bit for bit against the oracle, and what follows from the rule alone."""

from typing import Any

import numpy as np
import pytest
from adversarial import FAMILIES, FINITE, PAIRS, Bits, Case, case, on_every_kernel, wanted
from answers import once
from hypothesis import given, settings
from hypothesis import strategies as st
from micro_vectors import DISCREPANCY, DISCREPANCY_RESULTS, HOPPER_E4M3, Dot
from numpy.typing import NDArray

import lowprec as lp
from lowprec import oracle
from lowprec.oracle import ADA_FP8, E4M3FN, E5M2, HOPPER_FP8, Rule

MACHINES = {"hopper_fp8": HOPPER_FP8, "ada_fp8": ADA_FP8}
IDEALS = ["exact", "float32"]
CANONICAL_NAN = 0x7FFFFFFF


def mma(x: Case, accumulator, a_format: str, b_format: str) -> Bits:
    def compute() -> NDArray[np.float32]:
        out = lp.mma(x.a, x.b, x.c.view(np.float32), accumulator=accumulator, a_format=a_format, b_format=b_format)
        assert out.dtype == np.float32
        assert out.shape == x.c.shape
        return out

    return on_every_kernel(compute) if accumulator not in IDEALS else compute().view(np.uint32)


def canonical(bits: Bits) -> Bits:
    """The oracle's IEEE sums with the one NaN that `mma` returns."""
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(CANONICAL_NAN), bits)


def assert_right(ours: Bits, x: Case, rule: Any, pair: tuple[str, str]) -> None:
    """Compare with the oracle, whose NaN is the one that `mma` returns."""
    once(lambda: assert_same(ours, canonical(wanted(x, rule, *pair)), x), rule, pair, x.a, x.b, x.c, ours)


def assert_same(ours: Bits, right: Bits, x: Case) -> None:
    wrong = np.argwhere(ours != right)
    if wrong.size:
        i, j = wrong[0]
        pytest.fail(
            f"{x.name}: {len(wrong)} of {ours.size} differ; ({i}, {j}): ours {ours[i, j]:#010x}, wanted "
            f"{right[i, j]:#010x}, c {x.c[i, j]:#010x}, a {x.a[i].tolist()}, b {x.b[j].tolist()}"
        )


# Published vectors


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dot", HOPPER_E4M3, ids=lambda dot: dot.name)
@pytest.mark.parametrize("machine", MACHINES)
def test_published_micro_vectors(dot: Dot, machine: str) -> None:
    a, b = np.zeros((2, 1, 32), dtype=np.uint8)
    a[0, : len(dot.a)] = [oracle.encode(v, E4M3FN) for v in dot.a]
    b[0, : len(dot.b)] = [oracle.encode(v, E4M3FN) for v in dot.b]
    x = Case(dot.name, a, b, np.array([[dot.c]], dtype=np.uint32))
    assert hex(mma(x, machine, "e4m3fn", "e4m3fn").item()) == hex(dot.d)


@pytest.mark.parametrize("generation", DISCREPANCY_RESULTS)
def test_one_vector_tells_the_generations_apart(generation: str) -> None:
    group, fraction_bits, output, value = DISCREPANCY_RESULTS[generation]
    machine = lp.accumulators["hopper_fp8"].with_(
        group=group, fraction_bits=fraction_bits, output={"f32": "float32"}.get(output, output)
    )
    a, b = (
        np.array([[oracle.encode(v, E5M2) for v in side]], dtype=np.uint8) for side in (DISCREPANCY.a, DISCREPANCY.b)
    )
    x = Case("", a, b, np.array([[DISCREPANCY.c]], dtype=np.uint32))
    assert mma(x, machine, "e5m2", "e5m2").view(np.float32).item() == value
    assert mma(x, "exact", "e5m2", "e5m2").view(np.float32).item() == -0.875


# Against the oracle


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("machine", MACHINES)
def test_mma_is_the_oracle(machine: str, family: str, pair: tuple[str, str]) -> None:
    """All kinds of C, one to sixteen instructions, whole and ragged K, M and N, on every kernel."""
    for m, n, k, c in [
        (5, 67, 32, "near"), (5, 9, 32, "edge"), (6, 5, 32, "any"), (4, 5, 32, "zeros"), (5, 4, 20, "tiny"),
        (13, 2, 32, "far"), (21, 1, 64, "verge"), (3, 3, 128, "near"), (2, 3, 512, "zeros"), (4, 3, 77, "near"),
        (3, 2, 1, "far"), (2, 2, 33, "edge"),
    ]:  # fmt: skip
        x = case(family, *pair, m, n, k, c)
        assert_right(mma(x, machine, *pair), x, MACHINES[machine], pair)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ideal", IDEALS)
def test_ideal_sums_are_the_oracle(ideal: str, family: str, pair: tuple[str, str]) -> None:
    for m, n, k, c in [(5, 4, 32, "near"), (4, 5, 33, "edge"), (3, 3, 20, "any"), (2, 2, 200, "zeros")]:
        x = case(family, *pair, m, n, k, c)
        assert_right(mma(x, ideal, *pair), x, ideal, pair)


@pytest.mark.sampled(33)
@pytest.mark.parametrize("family", FINITE)
@pytest.mark.parametrize(
    "changes",
    [
        {"fraction_bits": 25, "output": "float32"}, {"fraction_bits": 12}, {"fraction_bits": 14}, {"fraction_bits": 25},
        {"output": "float32"}, {"group": 8, "fraction_bits": 24, "output": "float32"}, {"group": 64}, {"group": 3},
        {"fraction_bits": 35, "output": "float32"}, {"fraction_bits": 3},
    ],
    ids=str,
)  # fmt: skip
def test_machines_that_nobody_has_built(changes: dict, family: str) -> None:
    rule = Rule(**{k: "f32" if v == "float32" else v for k, v in changes.items()})
    machine = lp.accumulators["hopper_fp8"].with_(**changes)
    for m, n, k, c in [(4, 4, 32, "near"), (3, 2, 100, "edge")]:
        x = case(family, "e4m3fn", "e5m2", m, n, k, c)
        assert_right(mma(x, machine, "e4m3fn", "e5m2"), x, rule, ("e4m3fn", "e5m2"))


def test_large_tiles_and_threads_change_nothing() -> None:
    """More rows and columns than any blocking of the kernels; the oracle is asked about a sample."""
    x = case("narrow", "e4m3fn", "e4m3fn", 150, 141, 200, "near")
    ours = mma(x, "hopper_fp8", "e4m3fn", "e4m3fn")
    rng = np.random.default_rng(3)
    for i, j in zip(rng.integers(0, 150, 300), rng.integers(0, 141, 300), strict=True):
        right = oracle.fused_dot(x.a[i].tolist(), x.b[j].tolist(), int(x.c[i, j]), HOPPER_FP8, E4M3FN, E4M3FN)
        assert int(ours[i, j]) == right
    threads = lp.get_num_threads()
    try:
        for count in (1, 2, 3):
            lp.set_num_threads(count)
            assert np.array_equal(mma(x, "hopper_fp8", "e4m3fn", "e4m3fn"), ours)
    finally:
        lp.set_num_threads(threads)


def test_one_nan_row_leaves_its_neighbours_alone() -> None:
    x = case("narrow", "e4m3fn", "e5m2", 40, 70, 96, "zeros")
    clean = mma(x, "hopper_fp8", "e4m3fn", "e5m2")
    a, b = x.a.copy(), x.b.copy()
    a[17, 40] = 0x7F
    b[33, 5] = 0x7C
    dirty = mma(Case("", a, b, x.c), "hopper_fp8", "e4m3fn", "e5m2")
    assert np.all(dirty[17] == CANONICAL_NAN)
    others = np.ones(clean.shape, dtype=bool)
    others[17], others[:, 33] = False, False
    assert np.array_equal(dirty[others], clean[others])
    rest = np.delete(np.arange(40), 17)
    right = wanted(Case("", a[rest], b[33:34], x.c[rest, 33:34]), HOPPER_FP8, "e4m3fn", "e5m2")
    assert np.array_equal(dirty[rest, 33:34], right)


@pytest.mark.parametrize("machine", [*MACHINES, *IDEALS])
def test_empty_shapes(machine: str) -> None:
    empty = np.zeros((0, 32), dtype=np.uint8)
    some = np.full((3, 32), 0x38, dtype=np.uint8)
    assert lp.mma(empty, some, accumulator=machine).shape == (0, 3)
    assert lp.mma(some, empty, accumulator=machine).shape == (3, 0)
    none = np.zeros((3, 0), dtype=np.uint8)
    assert np.array_equal(lp.mma(none, none[:2], accumulator=machine).view(np.uint32), np.zeros((3, 2), np.uint32))


# What follows from the rule


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("machine", MACHINES)
def test_results_have_thirteen_fraction_bits(machine: str, pair: tuple[str, str]) -> None:
    for family in FAMILIES:
        bits = mma(case(family, *pair, 9, 9, 64, "any"), machine, *pair)
        assert np.all((bits & 0x3FF == 0) | (bits == CANONICAL_NAN))
        assert not np.any(bits == 0x80000000)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 0xFFFFFFFF))
def test_without_products_c_is_cut(c: int) -> None:
    """Any float32 at all: low ten bits cleared, NaN canonical, zeros positive."""
    zeros = np.array([[0x00, 0x80] * 16], dtype=np.uint8)
    got = mma(Case("", zeros, zeros, np.array([[c]], dtype=np.uint32)), "hopper_fp8", "e4m3fn", "e5m2").item()
    if c & 0x7FFFFFFF > 0x7F800000:
        assert got == CANONICAL_NAN
    else:
        cut = c & 0xFFFFFC00
        assert got == (0 if cut == 0x80000000 else cut)


@pytest.mark.parametrize("machine", MACHINES)
def test_order_matters_between_groups_only(machine: str) -> None:
    group = MACHINES[machine].group
    rng = np.random.default_rng(8)
    for family in ("random", "narrow", "cancellation", "infinities"):
        x = case(family, "e5m2", "e4m3fn", 8, 8, 4 * group, "near")
        ours = mma(x, machine, "e5m2", "e4m3fn")
        within = np.concatenate([g * group + rng.permutation(group) for g in range(4)])
        assert np.array_equal(mma(Case("", x.a[:, within], x.b[:, within], x.c), machine, "e5m2", "e4m3fn"), ours)
        if family == "narrow":
            across = rng.permutation(4 * group)
            moved = mma(Case("", x.a[:, across], x.b[:, across], x.c), machine, "e5m2", "e4m3fn")
            assert not np.array_equal(moved, ours)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_ragged_tail_is_zero_padding(machine: str) -> None:
    x = case("narrow", "e4m3fn", "e5m2", 6, 6, 75, "near")
    pad = [(0, 0), (0, 96 - 75)]
    padded = Case("", np.pad(x.a, pad), np.pad(x.b, pad), x.c)
    assert np.array_equal(mma(padded, machine, "e4m3fn", "e5m2"), mma(x, machine, "e4m3fn", "e5m2"))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_chain_is_its_instructions(machine: str) -> None:
    """K = 128 at once is four calls of 32, each taking the previous D as C."""
    x = case("narrow", "e4m3fn", "e4m3fn", 7, 7, 128, "near")
    d = x.c
    for k in range(0, 128, 32):
        d = mma(Case("", x.a[:, k : k + 32], x.b[:, k : k + 32], d), machine, "e4m3fn", "e4m3fn").copy()
    assert np.array_equal(mma(x, machine, "e4m3fn", "e4m3fn"), d)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("j", [-3, -1, 2, 4])
def test_powers_of_two_scale_results_exactly(machine: str, j: int) -> None:
    """Away from subnormals and overflow: A and C times 2^j is D times 2^j."""
    x = case("narrow", "e5m2", "e5m2", 8, 8, 96, "near")
    scaled = Case("", x.a + np.uint8(j % 64 << 2), x.b, x.c + np.uint32((j % 512) << 23))
    assert np.all(lp.decode(scaled.a, "e5m2") == lp.decode(x.a, "e5m2") * 2.0**j)
    assert np.all(scaled.c.view(np.float32) == x.c.view(np.float32) * np.float32(2.0**j))
    ours, before = (mma(y, machine, "e5m2", "e5m2").view(np.float32) for y in (scaled, x))
    assert np.array_equal(ours, before * np.float32(2.0**j))


def test_the_sum_is_not_monotone() -> None:
    """A larger C can give a smaller D: at the next power of two it pushes 31 products of 2^-13 out of sight."""
    a = np.array([[oracle.encode(2.0**-7, E4M3FN)] * 31], dtype=np.uint8)
    b = np.array([[oracle.encode(2.0**-6, E4M3FN)] * 31], dtype=np.uint8)
    below, above = np.float32(2 - 2.0**-13), np.float32(2)
    low, high = (lp.mma(a, b, [[c]], accumulator="hopper_fp8").item() for c in (below, above))
    assert (low, high) == (2 + 30 * 2.0**-13, 2.0)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["e2m1fn", "e3m2fn", "e4m3fnuz", "e4m3b11fnuz", "e3m4", "bfloat16", "float16", "e5m6"])
def test_ideal_sums_of_other_formats(name: str) -> None:
    fmt = lp.formats[name]
    rng = np.random.default_rng(21)
    a, b = (rng.integers(0, 1 << fmt.bits, (5, 40)).astype(fmt.code_dtype) for _ in range(2))
    c = rng.standard_normal((5, 5)).astype(np.float32)
    dots = {"exact": oracle.exact_dot, "float32": oracle.sequential_f32}
    if fmt.bits > 8:
        with pytest.raises(ValueError, match=f"exact: products of {name}"):
            lp.mma(a, b, c, accumulator="exact", a_format=name, b_format=name)
        del dots["exact"]
    for machine, dot in dots.items():
        right = [
            [dot(p.tolist(), q.tolist(), int(c[i, j].view(np.uint32)), fmt, fmt) for j, q in enumerate(b)]
            for i, p in enumerate(a)
        ]
        ours = lp.mma(a, b, c, accumulator=machine, a_format=name, b_format=name).view(np.uint32)
        assert np.array_equal(ours, canonical(np.array(right, dtype=np.uint32))), machine


def test_default_addend_is_zero() -> None:
    x = case("random", "e4m3fn", "e4m3fn", 3, 3, 64, "zeros")
    without = lp.mma(x.a, x.b).view(np.uint32)
    assert np.array_equal(without, wanted(Case("", x.a, x.b, np.zeros_like(x.c)), HOPPER_FP8, "e4m3fn", "e4m3fn"))
