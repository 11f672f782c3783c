"""Bounds of sums, quantizers and attention kernels: nothing exceeds them, and wrong results are refused."""

from fractions import Fraction

import numpy as np
import pytest
from floats import normal
from refusals import refusals

import lowprec as lp
from lowprec.attn.attention import attention
from lowprec.bounds.sums import computed_sum
from lowprec.testing import BitsEqual, Impossible, Inside, Unlike

NO_BOUND = {"te_delayed", "nvfp4_te_rht", "nvfp4_te_rht_unsigned", "nvfp4_4over6", "nvfp4_4over6_mse"}


def terms(rng, kind, m, n):
    x = normal(rng, m, n)
    if kind == "powers":
        return np.exp2(rng.integers(-9, 5, (m, n))).astype(np.float32) * np.sign(x)
    return {"normal": x, "positive": np.abs(x), "steps": np.full((m, n), 1 + 2.0**-8, np.float32)}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ["any", "sequential", "pairwise", 4])
def test_no_sum_is_beyond_the_bound_in_exact_arithmetic(fmt, order):
    rng, near, target = np.random.default_rng(0), 0.0, lp.formats[fmt]
    for n in (1, 2, 33):
        for kind in ("normal", "positive", "powers", "steps"):
            x = terms(rng, kind, 8, n)
            t = lp.sum_tolerance(x, order=order, sum_format=fmt)
            exact = np.array([float(sum(map(Fraction, map(float, row)), Fraction(0))) for row in x])
            stored = lp.round_to(x, fmt).T
            if order == "any":
                by_size = np.argsort(np.abs(x[0]))
                tried = [(at, lanes) for at in (by_size, by_size[::-1], rng.permutation(n)) for lanes in (1, 8, n)]
            else:
                tried = [(np.arange(n), {"sequential": 1, "pairwise": n, 4: 4}[order])]
            for at, lanes in tried:
                d = computed_sum(stored[at], lanes, target)
                assert (np.abs(d - exact) <= t.bound).all()
                assert t.test(d, name_faults=False), (kind, n, lanes)
                near = max(near, float((np.abs(d - exact) / np.maximum(t.bound, 1e-300)).max()))
    assert near > 0.5


def test_infinity_must_not_be_lost_and_vectors_are_judged():
    x = np.ones((1, 4), np.float32)
    x[0, 0] = np.inf
    for order in ("sequential", "any"):
        assert isinstance(lp.sum_tolerance(x, order=order).test(np.float32([5])), lp.testing.Impossible)
        assert lp.sum_tolerance(x, order=order).test(np.float32([np.inf]))
    assert lp.sum_tolerance(np.float32([1, 2, 3])).test(np.float32(6))
    assert lp.sum_tolerance(np.zeros((0, 4), np.float32)).test(np.zeros(0, np.float32))


def test_an_all_reduce_is_judged_over_its_ranks():
    x = normal(np.random.default_rng(1), 8, 4, 64)
    t = lp.sum_tolerance(x, axis=0, sum_format="bfloat16")
    ring = computed_sum(np.roll(lp.round_to(x, "bfloat16"), 3, axis=0), 1, lp.formats["bfloat16"])
    assert isinstance(t.test(ring), Inside)
    one_rank_less = t.test(computed_sum(lp.round_to(x[1:], "bfloat16"), 1, lp.formats["bfloat16"]))
    assert isinstance(one_rank_less, Impossible)
    assert t.test(-ring).cause == "sign"
    assert (t.exact.shape, len(one_rank_less.worst)) == ((4, 64), 2)


def test_a_sum_that_may_overflow_is_not_judged():
    x = np.full((2, 40), 6e4, np.float32)
    t = lp.sum_tolerance(x, sum_format="float16")
    assert np.isinf(t.bound).all()
    assert lp.sum_tolerance(np.zeros((3, 0), np.float32)).test(np.zeros(3))


@pytest.mark.sampled(2, default=22)
@pytest.mark.parametrize("name", sorted(set(lp.quantizers) - NO_BOUND))
def test_no_code_of_a_quantizer_is_beyond_the_bound(name):
    rng = np.random.default_rng(2)
    special = normal(rng, 32, 64)
    special[3, 5], special[7, 9] = np.nan, np.inf
    wide = normal(rng, 32, 64) * np.exp2(rng.integers(-20, 20, (32, 64))).astype(np.float32)
    for x in (normal(rng, 32, 64), wide, terms(rng, "powers", 32, 64) * np.float32(1.0625), special):
        assert isinstance(lp.quantize_tolerance(x, name).test(lp.quantize(x, name)), BitsEqual)
        for rounding in ("stochastic", "up"):
            q = lp.quantize(x, name, rounding=rounding, seed=3 if rounding == "stochastic" else None)
            t = lp.quantize_tolerance(x, name, rounding=rounding)
            outside, _ = t._outside(q.dequantize().astype(np.float64))
            assert not outside.any(), rounding
    t = lp.quantize_tolerance(x := normal(rng, 32, 64), name)
    assert isinstance(t.test(lp.quantize(x, name, rounding="toward_zero"), name_faults=False), Impossible)


@pytest.mark.slow
def test_other_operations_of_the_same_rule_are_accepted_and_other_rules_are_named():
    x = normal(np.random.default_rng(4), 64, 256)
    for family in (("deepgemm", "te_block_fp32", "dsv32_inference"), ("nvfp4_te", "nvfp4_torchao", "nvfp4_modelopt")):
        t = lp.quantize_tolerance(x, family[0])
        assert all(t.test(lp.quantize(x, other), name_faults=False) for other in family)
    t, q = lp.quantize_tolerance(x, "deepgemm"), lp.quantize(x, "deepgemm")
    wrong = lp.Quantized(q.codes, 1 / q.scale, q.format, q.granularity)
    assert "inverted" in t.test(wrong).cause
    assert t.test(-q.dequantize()).cause == "sign"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in lp.attentions if not lp.attentions[name].exp2.is_natural])
def test_no_output_of_attention_is_beyond_the_bound(name):
    rng, fmt = np.random.default_rng(5), lp.attentions[name].operands
    for n, causal in ((100, False), (500, True)):
        for kind in ("normal", "positive", "powers"):
            q, k, v = (lp.round_to(terms(rng, kind, rows, 64), fmt) for rows in (12, n, n))
            t = lp.attention_tolerance(q, k, v, kernel=name, causal=causal, out_format="float32")
            d = attention(q, k, v, kernel=name, causal=causal, out_format="float32").out
            error = np.abs(d - t.exact)
            assert (error <= t.bound).all()
            assert np.isfinite(t.bound).all()
            assert t.bound.max() < 400 * error.max()
    assert isinstance(t.test(d), BitsEqual)


@pytest.mark.slow
def test_worst_cases_of_attention_stay_within_the_bound():
    """Coordinate search: keep a change of an operand if the error becomes a larger share of the bound."""
    rng, near = np.random.default_rng(6), np.zeros(1)
    for name in ("fa3_fp8", "fa4_fp8"):
        fmt = lp.attentions[name].operands
        best = [lp.round_to(normal(rng, rows, 32) * 2, fmt) for rows in (1, 300, 300)]
        share = 0.0
        for _ in range(30):
            moved = [x.copy() for x in best]
            for x in moved:
                at = tuple(rng.integers(0, size, 8) for size in x.shape)
                x[at] = lp.round_to(normal(rng, 8) * np.exp2(rng.integers(-4, 5, 8)), fmt)
            t = lp.attention_tolerance(*moved, kernel=name, out_format="float32")
            d = attention(*moved, kernel=name, out_format="float32").out
            now = float((np.abs(d - t.exact) / t.bound).max())
            assert now <= 1
            if now > share:
                best, share = moved, now
        near = max(near, share)
    assert near > 0.02


def test_wrong_attention_is_refused():
    rng = np.random.default_rng(7)
    q, k, v = (lp.round_to(normal(rng, rows, 64), "bfloat16") for rows in (16, 256, 256))
    t = lp.attention_tolerance(q, k, v, kernel="fa3_bf16", causal=True)
    right = attention(q, k, v, kernel="fa3_bf16", causal=True).out
    assert isinstance(t.test(right), BitsEqual)
    assert t.test(attention(q, k, v, kernel="flash2", causal=True).out)
    assert t.test(-right).cause == "sign"
    for wrong in (
        attention(q, k, v, kernel="fa3_bf16").out, attention(q, k, v, kernel="fa3_bf16", causal=True, scale=0.12).out,
        attention(q, k, np.roll(v, 1, axis=0), kernel="fa3_bf16", causal=True).out,
    ):  # fmt: skip
        assert isinstance(t.test(wrong), Impossible)
    assert isinstance(t.test(lp.round_to(right * np.float32(1.004), "bfloat16")), Impossible | Unlike)


def _names():
    x = normal(np.random.default_rng(8), 4, 64)
    return {"x": x, "own": lp.attentions["fa3_bf16"].with_(exp2=_Unknown())}


class _Unknown(type(lp.attentions["fa3_bf16"].exp2)):
    relative_error = np.inf


test_refusals = refusals(
    [
        ("lp.sum_tolerance(1.0)", "sum_tolerance: x must have an axis to sum over, got a number, 1.0"),
        ("lp.sum_tolerance(x, axis=2)", "sum_tolerance: axis must be"),
        ("lp.sum_tolerance(x, order='random')", "order must be any, sequential, pairwise or a number of chains, got"),
        ("lp.sum_tolerance(x, order=0.5)", "order must be any, sequential, pairwise or a number of chains, got 0.5"),
        ("lp.quantize_tolerance(x, 'te_delayed')", "spec must have no state, got 'te_delayed'"),
        ("lp.quantize_tolerance(x, 'nvfp4_te_rht')", "got one with hadamard_size=16; transform x first"),
        ("lp.quantize_tolerance(x, 'nvfp4_4over6')", "got one with a scale chosen by a comparison of sums, mae"),
        ("lp.attention_tolerance(x, x, x, kernel=own)", "kernel must have a 2\\*\\*x and a reciprocal of documented"),
        ("lp.attention_tolerance(x, x[:, :8], x)", "attention"),
    ],
    _names,
)  # fmt: skip
