"""Bounds of sums, quantizers and attention kernels: nothing exceeds them, and wrong results are refused."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from floats import normal
from refusals import refusals

import lowprec as lp
from lowprec.attn.attention import attention
from lowprec.order.order import Order
from lowprec.testing import BitsEqual, Impossible, Inside, Unlike

NO_BOUND = {"te_delayed", "nvfp4_te_rht", "nvfp4_te_rht_unsigned", "nvfp4_4over6", "nvfp4_4over6_mse"}


def terms(rng, kind, m, n):
    x = normal(rng, m, n)
    if kind == "powers":
        return np.exp2(rng.integers(-9, 5, (m, n))).astype(np.float32) * np.sign(x)
    return {"normal": x, "positive": np.abs(x), "steps": np.full((m, n), 1 + 2.0**-8, np.float32)}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ["any", "sequential", "pairwise", "halving"])
def test_no_sum_is_beyond_the_bound_in_exact_arithmetic(fmt, order):
    rng, near = np.random.default_rng(0), 0.0
    for n in (1, 2, 33):
        for kind in ("normal", "positive", "powers", "steps"):
            x = terms(rng, kind, 8, n)
            t = lp.sum_tolerance(x, order=order, sum_format=fmt)
            exact = np.array([float(sum(map(Fraction, map(float, row)), Fraction(0))) for row in x])
            stored = lp.round_to(x, fmt).T
            names = [order] if order != "any" else ["sequential", "halving", "pairwise"]
            by_size = np.argsort(np.abs(x[0]))
            places = [np.arange(n)] if order != "any" else [by_size, by_size[::-1], rng.permutation(n)]
            for at, name in itertools.product(places, names):
                d = lp.orders[name](n, dtype=fmt).sum(stored[at], axis=0).astype(np.float32)
                assert (np.abs(d - exact) <= t.bound).all()
                assert t.test(d, name_faults=False), (kind, n, name)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sums", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["halving", "pairwise"])
def test_an_order_has_its_own_bits_and_formats(name, sums):
    x = lp.round_to(normal(np.random.default_rng(10), 6, 300), "bfloat16")
    order = lp.orders[name](300, dtype="bfloat16", sum_format=sums, out_format=sums)
    wide = order.with_(step_formats=((5, "float32"), (80, "float16"))) if sums == "bfloat16" else order
    for one in (order, wide):
        t, d = lp.sum_tolerance(x, order=one), one.sum(x).astype(np.float32)
        assert isinstance(t.test(d), BitsEqual)
        assert (np.abs(d - t.exact) <= t.bound).all()
    assert lp.sum_tolerance(x, order=order).bound.max() < lp.sum_tolerance(x, sum_format=sums).bound.max()


def test_mixed_formats_are_rounded_as_the_order_rounds_them():
    """The first order rounds to float32 and then to bfloat16, the second rounds an element to float16 alone."""
    twice = Order("twice", ((0, 1), (3, 2)), "float16", "float16", ((1, "bfloat16"),), "float16")
    t = lp.sum_tolerance(np.float32([-0.07611083984375, -4176, -0.00011593103408813477]), order=twice)
    assert isinstance(t.test(np.float32(-4160)), BitsEqual)
    own = Order("own", ((0,), (2, 1)), step_formats=((0, "float16"),), fma=True)
    x = np.float32([1 + 2.0**-12, 2.0**-13])
    t = lp.sum_tolerance(x, order=own)
    assert isinstance(t.test(own.sum(x)), BitsEqual)
    assert t.bound >= abs(own.sum(x) - t.exact) > 2.0**-13


@pytest.mark.parametrize("fmt", ["e4m3fn", "tf32", "e5m6"])
def test_any_order_takes_every_format_of_sums(fmt):
    x = lp.round_to(np.abs(normal(np.random.default_rng(4), 16, 12)), fmt)
    total, t = np.zeros(16, np.float32), lp.sum_tolerance(x, order="any", sum_format=fmt)
    for term in x.T:
        total = lp.round_to(total + term, fmt)
    assert t.test(total, name_faults=False)
    assert isinstance(t.test(4 * total), Impossible)


def test_an_all_reduce_is_judged_over_its_ranks():
    x = normal(np.random.default_rng(1), 8, 4, 64)
    t = lp.sum_tolerance(x, axis=0, sum_format="bfloat16")
    ring = lp.orders["sequential"](8, dtype="bfloat16").sum(np.roll(x, 3, axis=0), axis=0).astype(np.float32)
    assert isinstance(t.test(ring), Inside)
    one_rank_less = t.test(lp.orders["sequential"](7, dtype="bfloat16").sum(x[1:], axis=0).astype(np.float32))
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
@pytest.mark.parametrize("name", [name for name in lp.attentions if "sage" not in name])
def test_no_output_of_attention_is_beyond_the_bound(name):
    rng, fmt, on_cpu = np.random.default_rng(5), lp.attentions[name].operands, lp.attentions[name].exp2.is_natural
    is_whole = name == "triton_fused"  # whole tiles of keys, and a causal mask with as many queries
    for n, causal in ((128, False), (192, True)) if is_whole else ((100, False), (500, name != "flashmla_fp8")):
        for kind in ("normal", "positive", "powers"):
            queries = n if (on_cpu or is_whole) and causal else 12  # else PyTorch's mask hides other keys
            d, channels = (576, 512) if "flashmla" in name else (64, 64)
            shapes = (queries, d), (n, d), (n, channels)
            q, k, v = (lp.round_to(terms(rng, kind, *shape), fmt) for shape in shapes)
            t = lp.attention_tolerance(q, k, v, kernel=name, causal=causal, out_format="float32")
            d = attention(q, k, v, kernel=name, causal=causal, out_format="float32").out
            error = np.abs(d - t.exact)
            assert (error <= t.bound).all()
            assert np.isfinite(t.bound).all()
            assert t.bound.max() < (4000 if fmt.bits == 32 else 400) * error.max()
    assert isinstance(t.test(d), BitsEqual)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in lp.attentions if lp.attentions[name].softcap])
def test_capped_scores_stay_within_the_bound(name):
    rng, fmt = np.random.default_rng(11), lp.attentions[name].operands
    for cap, size in ((30.0, 1), (0.7, 1), (50.0, 4)):
        q, k, v = (lp.round_to(normal(rng, rows, 64) * size, fmt) for rows in (12, 300, 300))
        options = {"kernel": name, "softcap": cap, "scale": -0.3 if cap < 1 else None}
        t = lp.attention_tolerance(q, k, v, **options, out_format="float32")
        d = attention(q, k, v, **options, out_format="float32").out
        assert (np.abs(d - t.exact) <= t.bound).all()
        assert isinstance(t.test(d), BitsEqual)
        uncapped = attention(q, k, v, kernel=name, scale=options["scale"], out_format="float32").out
        assert cap == 30 or not t.test(uncapped)  # a cap of 30 hardly changes scores of 1


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


def test_probabilities_without_subnormals_are_lost_within_the_bound():
    """P just below the smallest number of a format without subnormals is zero, in 1,024 keys."""
    kernel, n = lp.attentions["fa3_fp8"], 1025
    kernel = kernel.with_(p_format=lp.formats["dl8"], values=lp.accumulators["float32"].with_(input_formats=()))
    q, k, v = (np.zeros((rows, 64), np.float32) for rows in (1, n, n))
    q[0, 0] = k[-1, 0] = v[:-1] = 1
    options = {"kernel": kernel, "scale": 14.93 * np.log(2), "out_format": "float32"}
    t, d = lp.attention_tolerance(q, k, v, **options), attention(q, k, v, **options).out
    assert (d == 0).all()
    assert (np.abs(d - t.exact) <= t.bound).all()
    assert isinstance(t.test(d), BitsEqual)


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


def test_attention_whose_chunks_overflow_has_no_finite_bound():
    unit = lp.accumulators["aiu_dl8"].with_(input_formats=(), chunk_format="dl8")
    kernel, q, k = lp.attentions["fa3_bf16"].with_(values=unit), *(np.zeros((n, 64), np.float32) for n in (2, 64))
    for value, is_finite in ((200, False), (0.5, True)):
        v = np.full((64, 64), value, np.float32)
        assert np.isfinite(attention(q, k, v, kernel=kernel).out).all() == is_finite
        assert np.isfinite(lp.attention_tolerance(q, k, v, kernel=kernel).bound).all() == is_finite


def _names():
    x = normal(np.random.default_rng(8), 4, 64)
    return {"x": x, "own": lp.attentions["fa3_bf16"].with_(exp2=_Unknown())}


class _Unknown(type(lp.attentions["fa3_bf16"].exp2)):
    relative_error = np.inf


test_refusals = refusals(
    [
        ("lp.sum_tolerance(1.0)", "sum_tolerance: x must have an axis to sum over, got a number, 1.0"),
        ("lp.sum_tolerance(x, axis=2)", "sum_tolerance: axis must be"),
        ("lp.sum_tolerance(x, order='random')", "unknown order 'random'"),
        ("lp.sum_tolerance(x[:, :0], order='random')", "unknown order 'random'"),
        ("lp.sum_tolerance(x[:, :0], order='numpy_sum', sum_format='float16')", "which has float32 sums"),
        ("lp.sum_tolerance(x, order=0.5)", TypeError, "order must be a name or an OrderRule, got 0.5"),
        ("lp.sum_tolerance(x, order='numpy_sum', sum_format='float16')", "which has float32 sums"),
        ("lp.sum_tolerance(x, order='numpy_sum', sum_format='bfloat16')", "numpy_sum: dtype must be one of"),
        ("lp.sum_tolerance(x, order=lp.orders['pairwise'](64).with_(flush=True))", "order must not flush subnormals"),
        ("lp.sum_tolerance(x, order=lp.orders['pairwise'](8))", "sum_tolerance: order must have 64 terms, got 8"),
        ("lp.sum_tolerance(x, order=lp.orders['pairwise'](64), sum_format='float16')", "must be None with an Order"),
        ("lp.sum_tolerance(x, order=lp.orders['pairwise'](64, dtype='float64'))", "in float32 or narrower, got"),
        ("lp.quantize_tolerance(x, 'te_delayed')", "spec must have no state, got 'te_delayed'"),
        ("lp.quantize_tolerance(x, 'nvfp4_te_rht')", "got one with hadamard_size=16; transform x first"),
        ("lp.quantize_tolerance(x, 'nvfp4_4over6')", "got one with a scale chosen by a comparison of sums, mae"),
        ("lp.attention_tolerance(x, x[:0], x[:0])", r"k must have at least 1 key, got shape \(0, 64\)"),
        ("lp.attention_tolerance(x, x, x, kernel=own)", "kernel must have a 2\\*\\*x and a reciprocal of documented"),
        ("lp.attention_tolerance(x, x[:, :8], x)", "attention"),
    ],
    _names,
)  # fmt: skip
