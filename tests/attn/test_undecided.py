"""Outputs that the documentation of 2**x and 1/x does not determine: no allowed function changes a decided one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from test_attention_oracle import GPU, any_size

import lowprec as lp
from lowprec.attn.bounds import Bounds
from lowprec.attn.forward import Forward, Head
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.tiles import Block, KeyTile, Visit
from lowprec.special.exp2 import Exp2, RoundedExp2
from lowprec.special.mufu import MufuExp2
from lowprec.special.reciprocal import Reciprocal, RoundedReciprocal, around

Floats = np.ndarray[Any, np.dtype[np.float32]]
NAMES = [name for name in GPU if not name.endswith("_hopper")]  # those have another tensor core alone


def between(ends: tuple[Floats, Floats], x: Floats, seed: int) -> Floats:
    """Return a function of x between two ends: the lower, the upper, or numbers selected by a hash of x."""
    low, high = (end.view(np.uint32).astype(np.uint64) for end in ends)
    mixed = (x.view(np.uint32).astype(np.uint64) * np.uint64(0x9E3779B1) + np.uint64(seed)) * np.uint64(0x85EBCA77)
    share = (mixed >> np.uint64(7)) % np.uint64(1 << 16)
    found = {0: low, 1: high}.get(seed, low + ((high - low) * share >> np.uint64(15)).clip(max=high - low))
    value = found.astype(np.uint32).view(np.float32)
    return np.where((value < np.float32(2.0**-126)) & (value > 0), np.float32(0), value)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False, repr=False)
class SomeExp2(Exp2):
    """An exp2 within the bounds of another one, or `ulps` beyond them."""

    inner: Exp2
    seed: int
    ulps: int
    is_published = False

    def __call__(self, x: Floats) -> Floats:
        low, high = self.inner.bounds(x)
        return between((low, around(high, self.ulps)[1] if self.ulps else high), x, self.seed)

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        return self.inner.bounds(x)


@dataclass(frozen=True, eq=False, repr=False)
class SomeReciprocal(Reciprocal):
    """A reciprocal within the bounds of another one."""

    inner: Reciprocal
    seed: int
    is_published = False

    def __call__(self, x: Floats) -> Floats:
        return between(self.inner.bounds(x), x, self.seed)

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        return self.inner.bounds(x)


def undecided(name: str) -> AttentionKernel:
    """Return a kernel of which the special functions have documented bounds only, as on a GPU without recordings."""
    kernel = any_size(name)
    exp2 = RoundedExp2() if isinstance(kernel.exp2, MufuExp2) else kernel.exp2
    return kernel.with_(exp2=exp2, reciprocal=RoundedReciprocal())


def operands(kernel: AttentionKernel, case: int) -> list[Floats]:
    """Return Q [24, 16], K and V [75, 16]: normal numbers, values of many magnitudes that cancel, special values."""
    rng = np.random.default_rng(case)
    q, k, v = (rng.standard_normal((rows, 16)) * size for rows, size in ((24, 1 + case), (75, 1), (75, 1)))
    if case % 3 == 1:
        v *= 2.0 ** rng.integers(-7, 7, v.shape)
        v[1::2] = -v[::2][: len(v[1::2])]
        k[1::2] = k[::2][: len(k[1::2])]
    if case % 3 == 2:
        v[:, 0], v[3, 1], v[60, 2], v[:, 3] = 0, np.nan, -448 if kernel.operands.bits == 8 else np.inf, -0.0
        q[5], k[40, 2], q[7] = 0, np.nan, -30
    return [lp.round_to(x.astype(np.float32), kernel.operands, policy="ieee") for x in (q, k, v)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_function_within_the_bounds_changes_a_decided_output(name: str) -> None:
    kernel = undecided(name).with_(key_tiles=(KeyTile(64, 32, 32, 32),))
    for case in range(6):
        data, fmt = operands(kernel, case), None if case < 3 else "fp22"
        descale = (1.0, 1.0, -1.5) if kernel.takes_descale else None
        options: dict[str, Any] = {"causal": case % 2 == 1, "out_format": fmt, "descale": descale}
        got = lp.attention(*data, kernel=kernel, undecided=True, **options)
        assert got.out.tobytes() == lp.attention(*data, kernel=kernel, **options).out.tobytes()
        assert got.undecided is not None
        known = ~got.undecided
        assert known.mean() > (0.8 if fmt is None else 0.3)
        for seed in range(6):
            inverse = SomeReciprocal(kernel.reciprocal, seed)
            changed = kernel.with_(exp2=SomeExp2(kernel.exp2, seed, 0), reciprocal=inverse)
            other = lp.attention(*data, kernel=changed, **options)
            assert other.out[known].tobytes() == got.out[known].tobytes()


def test_functions_beyond_the_bounds_change_decided_outputs() -> None:
    """The inputs above tell an exp2 that is a few ulps further away."""
    kernel = undecided("fa3_bf16")
    data = operands(kernel, 0)
    got = lp.attention(*data, kernel=kernel, undecided=True)
    other = lp.attention(*data, kernel=kernel.with_(exp2=SomeExp2(kernel.exp2, 7, 2000)))
    assert got.undecided is not None
    assert (got.out != other.out)[~got.undecided].any()


@dataclass(frozen=True, eq=False, repr=False)
class WideExp2(Exp2):
    """An exp2 whose documented error is large."""

    ulps: int
    is_published = False

    def __call__(self, x: Floats) -> Floats:
        return RoundedExp2()(x)

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        return around(RoundedExp2()(x), self.ulps)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bounds_hold_for_inexact_functions(name: str) -> None:
    """With errors of 2^4 to 2^20 ulp, codes of P and exponents of the output differ between both ends."""
    for log2_ulps in (4, 12, 16, 20):
        exp2 = WideExp2(1 << log2_ulps)
        kernel = undecided(name).with_(key_tiles=(KeyTile(64, 32, 32, 32),), exp2=exp2)
        for case in range(3):
            q, k, v = (lp.encode(x, kernel.operands, policy="ieee") for x in operands(kernel, case))
            visible = np.zeros(len(q), np.int64), np.arange(len(q)) * 3 + 2
            blocks = [Block(0, len(q), (Visit(64), Visit(32), Visit(0)))]
            head, tail = (
                Head(q, k, np.ascontiguousarray(v.T), *visible, blocks),
                (32, *[np.float32(0.3)] * 2, np.float32(1)),
            )
            got = Forward(kernel, *tail, True).head(head)
            for seed in range(6):
                out = Forward(kernel.with_(exp2=SomeExp2(exp2, seed, 0)), *tail).head(head).out
                inside = (got.low <= out) & (out <= got.high) | np.isnan(out) & np.isnan(got.low)
                assert (inside | (got.low == -np.inf)).all()


def test_bounds_hold_where_the_alignment_changes() -> None:
    """A larger C can align small products to a larger exponent, which cuts them: the sum is then smaller."""
    kernel = undecided("fa3_fp8")
    rng = np.random.default_rng(0)
    codes, values = (lp.encode(rng.uniform(0.5, 1, (rows, 32)) * 2.0**-6, "e4m3fn") for rows in (64, 8))
    p = lp.decode(codes, "e4m3fn")
    middle = np.where(rng.random((64, 8)) < 0.5, 2, -2) * 2.0 ** rng.integers(-2, 3, (64, 8))
    low, high = (np.float32(middle + sign * rng.uniform(0, 2.0**-9, (64, 8))) for sign in (-1, 1))
    bounds = Bounds(kernel, 64, 8)
    bounds.out, bounds.p = [low, high], [p, p]
    bounds.add_values(values, 1)
    assert not bounds.lost.any()
    ends = [lp.mma(codes, values, c) for c in (low, high)]
    assert (ends[0] > ends[1]).any()
    for share in np.linspace(0, 1, 9):
        found = lp.mma(codes, values, (low + share * (high - low)).astype(np.float32))
        assert ((bounds.out[0] <= found) & (found <= bounds.out[1])).all()


def test_infinities_and_zeros_between_the_ends_have_no_bounds() -> None:
    """Infinity times 0 or the least normal number is NaN or infinity; subnormals of both signs become zeros."""
    bounds = Bounds(undecided("fa3_bf16"), 1, 3)
    bounds.out = [np.float32([[np.inf, 1, -1e-38]]), np.float32([[np.inf, 1, 1e-38]])]
    bounds.sums = [np.full((1, 4), 1000, np.float32)] * 2
    rescaled = Bounds(bounds.kernel, 1, 3)
    rescaled.out = bounds.out
    rescaled.update(np.zeros((1, 8), np.float32), np.float32([-126]), np.array([False]))
    assert rescaled.lost.tolist() == [[True, False, False]]
    low, high = bounds.finish(np.float32(1))
    assert np.isinf([low[0, 2], high[0, 2]]).all()
    assert (low[0, :2] <= high[0, :2]).all()


@pytest.mark.parametrize("name", NAMES)
def test_few_outputs_are_undecided(name: str) -> None:
    """Normal numbers, 500 keys: below 2 % in BF16; in float32 most are, as a reciprocal's last bits are not public."""
    kernel = undecided(name)
    rng = np.random.default_rng(0)
    q, k, v = (lp.round_to(rng.standard_normal((rows, 64)), kernel.operands) for rows in (16, 500, 500))
    for fmt, low, high in ((None, 0, 0.02), ("float32", 0.5, 1)):
        found = lp.attention(q, k, v, kernel=kernel, out_format=fmt, undecided=True).undecided
        assert found is not None
        assert low <= found.mean() <= high


def test_known_values_of_exp2_have_no_bounds() -> None:
    """PTX ISA gives the results for zeros, infinities and NaN."""
    x = np.array([[0.0, -0.0, -np.inf, np.inf, np.nan, 1e-40, 1.0, -126.0, -127.0]], np.float32)
    low, high = RoundedExp2().bounds(x)
    np.testing.assert_array_equal(low[0, :6], [1, 1, 0, np.inf, np.nan, 1])
    np.testing.assert_array_equal(high[0, :6], low[0, :6])
    np.testing.assert_array_equal(low[0, 6:], np.float32([2 - 2**-21, 0, 0]))
    np.testing.assert_array_equal(high[0, 6:], np.float32([2 + 2**-21, 2.0**-126 + 2.0**-148, 0]))


def test_normalized_p_has_no_bounds() -> None:
    """P times 1/l is not bounded: only kernels whose bits are public are compared."""
    kernel, x = lp.attentions["sdpa_math"], np.ones((12, 12), np.float32)
    assert lp.attention(x, x, x, kernel=kernel, undecided=True).undecided is not None
    with pytest.raises(ValueError, match=r"undecided must be False for sdpa_math.*, which normalizes P"):
        lp.attention(x, x, x, kernel=kernel.with_(reciprocal=RoundedReciprocal()), undecided=True)
