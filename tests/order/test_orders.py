"""Orders compute the bits of the oracle, and say what they are."""

import random

import numpy as np
import pytest
from planted import FORMATS, steps_of

import lowprec as lp
from lowprec.oracle.orders import ordered_sum
from lowprec.order.arithmetic import samples
from lowprec.order.exact import fused_multiply_add
from lowprec.order.order import DTYPES, FLUSHED, Order
from lowprec.order.outline import expression
from lowprec.order.rules import Lanes

WORDS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}


def drawn(seed):
    """Return an order with any formats, and operands with zeros, subnormals, Inf and NaN."""
    rng = random.Random(seed)
    n = rng.randint(1, 9)
    one = rng.choice([False, False, False, True]) and n > 1
    dtype, fma = rng.choice(FORMATS), not one and rng.random() < 0.5
    steps = (tuple(range(n)),) if one else steps_of(rng, n)
    other = () if one else tuple((i, rng.choice(FORMATS)) for i in range(n - 1) if rng.random() < 0.3)
    flush = not one and dtype in FLUSHED and rng.random() < 0.5
    sums = {"sum_format": "float32"} if flush else {"sum_format": "exact" if one else rng.choice(FORMATS),
                                                    "step_formats": other}  # fmt: skip
    order = Order("drawn", steps, dtype=dtype, **sums, out_format=rng.choice(FORMATS), fma=fma,
                  from_zero=rng.random() < 0.5, flush=flush)  # fmt: skip
    data = np.random.default_rng(seed)
    operands = samples(n, 12, 2, DTYPES[dtype], seed)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504, 2.0**-24, 2.0**-126, -(2.0**-127)])
    for x in operands:
        at = data.random(x.shape) < 0.15
        x[at] = data.choice(special, at.sum()).astype(x.dtype)
        x[0] = data.choice(special[:2], n).astype(x.dtype)
        if dtype != "bfloat16" and dtype != "float32":
            continue
        x[1:3] *= np.array([[2.0**-70], [2.0**-63]], x.dtype)  # products around the smallest normal number
    return order, operands


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(60))
def test_orders_have_the_bits_of_fractions(seed):
    order, (a, b) = drawn(seed)
    given = {"dtype": order.dtype, "sum_format": order.sum_format, "step_formats": dict(order.step_formats),
             "out_format": order.out_format, "fma": order.fma, "from_zero": order.from_zero,
             "flush": order.flush}  # fmt: skip
    for operands in ((a,), (a, b)):
        if len(operands) == 2 and order.sum_format == "exact" and order.dtype == "float64":
            continue
        got = np.atleast_1d((order.dot if len(operands) == 2 else order.sum)(*operands))
        assert got.dtype == DTYPES[order.out_format]
        for row in range(len(a)):
            pairs = [(float(x), float(b[row, i]) if len(operands) == 2 else None) for i, x in enumerate(a[row])]
            code = ordered_sum(pairs, order.steps, **given)
            assert int(got[row : row + 1].view(WORDS[order.out_format])[0]) == code, (row, pairs, order)


def test_an_order_with_one_thing_wrong_has_other_bits():
    """The samples that `reveal` compares tell each wrong arithmetic and order from the right one."""
    n = 12
    right = Order("right", steps_of(random.Random(3), n), fma=True)
    reverse = tuple(tuple(n - 1 - t if t < n else t for t in terms) for terms in right.steps)
    wrong = [right.with_(steps=reverse), right.with_(fma=False), right.with_(sum_format="float64"),
             right.with_(sum_format="bfloat16"), right.with_(flush=True), right.with_(out_format="bfloat16"),
             *(right.with_(step_formats=((i, "float64"),)) for i, t in enumerate(right.steps[:-1]) if len(t) > 1),
             *(right.with_(step_formats=((i, "bfloat16"),)) for i in range(len(right.steps) - 1))]  # fmt: skip
    operands = samples(n, 200, 2, np.dtype(np.float32), 0)
    expected = right.dot(*operands)
    for order in wrong:
        assert (order.dot(*operands).astype(np.float64) != expected).sum() >= 2, order


def test_float64_products_are_fused_exactly():
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(600) * 2.0 ** rng.integers(-e, e, 600) for e in (3, 600, 600))
    c[::3] = -a[::3] * b[::3] * (1 + rng.integers(-3, 4, c[::3].size) * 2.0**-52)
    a[:2], b[:2], c[:2] = 1e300, [1e300, 1e-200], [-np.inf, 5e-324]
    got = fused_multiply_add(a, b, c)
    for row in range(len(a)):
        code = ordered_sum([(c[row], 1.0), (a[row], b[row])], [(0,), (2, 1)], dtype="float64", sum_format="float64",
                           step_formats={}, out_format="float64", fma=True, from_zero=False)  # fmt: skip
        assert int(got[row : row + 1].view(np.uint64)[0]) == code, row


def test_equal_orders_are_written_in_many_ways():
    one = Order("one", ((0, 1), (2, 3), (4, 5)))
    assert one == Order("other", ((3, 2), (1, 0), (4, 5)))
    assert one != Order("other", ((0, 2), (1, 3), (4, 5)))
    assert one != one.with_(from_zero=True)
    fused = Order("fused", ((0,), (4, 1), (5, 2), (6, 3)), fma=True)
    assert fused == lp.orders["sequential"](4, fma=True)
    assert fused.with_(fma=False) == lp.orders["sequential"](4)


def test_an_order_is_text_and_a_drawing():
    assert str(lp.orders["numpy_sum"](20)) == (
        "sum((((x[0] + x[8]) + (x[1] + x[9])) + ((x[2] + x[10]) + (x[3] + x[11]))) + (((x[4] + x[12]) + "
        "(x[5] + x[13])) + ((x[6] + x[14]) + (x[7] + x[15]))), x[16:20])"
    )
    assert "x[0:64:8]" in lp.orders["numpy_sum"](64).drawing()
    assert repr(lp.orders["sequential"](4096)) == "Order('sequential', n=4096, float32: sum(x[0:4096]))"
    with pytest.raises(ValueError, match=r"at most 400 boxes, got \d+; print it instead"):
        lp.orders["pairwise"](1024).drawing()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Order("x", ((0, 1), (0, 3))), "add every element and every result but the last once"),
        (lambda: Order("x", ((0, 4), (1, 2))), "step 0 must add terms from 0 to 2"),
        (lambda: Order("x", "ab"), "steps must be"),
        (lambda: Order("x", ((0, 1.5),)), "steps must be tuples of integers"),
        (lambda: Order("x", ((0, 1), (2, 3)), sum_format="exact"), "one of all terms"),
        (lambda: Order("x", ((0, 1),), step_formats=((1, "float32"),)), "step_formats must be an integer from 0 to 0"),
        (lambda: Order("x", ((0, 1, 2),)).sum([1, 2, 3]), "got one of 3; lp.identify finds"),
        (lambda: lp.orders["pairwise"](4).sum(np.ones((4, 3))), r"axis -1 must have length 4, got shape \(4, 3\)"),
        (lambda: lp.orders["pairwise"](4).sum(1.0), r"axis -1 must have length 4, got shape \(\)"),
        (lambda: lp.orders["pairwise"](0), "pairwise: n must be an integer from 1 to"),
        (lambda: lp.orders["numpy_sum"](4, dtype="bfloat16"), "numpy_sum: dtype must be one of 'float16', 'float32'"),
        (lambda: Lanes("x", least="a"), "Lanes x: least must be an integer >= 1, got 'a'"),
        (
            lambda: lp.orders["pairwise"](4).dot(np.ones((2, 4)), np.ones((3, 4))),
            r"Order.dot: a and b must have shapes that broadcast, got \(2, 4\) and \(3, 4\)",
        ),
        (lambda: Order("x", ((0, 1),), dtype="float16", flush=True), "dtype must be 'bfloat16' or 'float32', and all"),
    ],
)
def test_bad_input_is_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_axes_and_blocks_change_nothing():
    x = np.random.default_rng(0).standard_normal((3, 16, 5)).astype(np.float32)
    order = lp.orders["halving"](16)
    assert (order.sum(x, axis=1) == order.sum(np.moveaxis(x, 1, 2))).all()
    wide = np.random.default_rng(0).standard_normal((40000, 16)).astype(np.float32)
    assert (order.sum(wide) == np.concatenate([order.sum(part) for part in np.array_split(wide, 7)])).all()


def test_a_float64_is_rounded_once_to_bfloat16():
    order = Order("x", (), dtype="float64", sum_format="float64", out_format="bfloat16")
    assert order.sum([1 + 2**-8 + 2**-40]) == 1 + 2**-7
    assert order.with_(dtype="bfloat16", sum_format="float32").sum([1 + 2**-8 + 2**-40]) == 1 + 2**-7


def test_an_exact_sum_is_rounded_once_where_partial_sums_overflow():
    order = Order("x", (tuple(range(6)),), dtype="float64", sum_format="exact", out_format="float32")
    h = 1.7e308
    assert order.sum([h, h, -h, -h, 1 + 2**-24, 2**-70]) == 1 + 2**-23
    assert order.sum([h, h, -h, -h, 1 + 2**-24, -(2**-70)]) == 1


def test_text_of_products_that_are_not_fused():
    assert expression(4, [(0,), (4, 1), (5, 2), (6, 3)]) == "sum(x[0:4])"
    rounded = [(0,), (1,), (2,), (3,), (4, 5), (8, 6), (9, 7)]
    assert expression(4, rounded) == "sum(round(x[0:4]))"
    assert expression(4, [(1,), (4, 2), (5, 0), (6, 3)]) == "sum(x[1], x[2], x[0], x[3])"
    n = 4096
    chain = [(i,) for i in range(n)] + [(n if i == 1 else 2 * n + i - 2, n + i) for i in range(1, n)]
    assert expression(n, chain) == "sum(round(x[0:4096]))"


def test_infinity_stays_among_exact_terms_that_overflow():
    order = Order("x", ((0, 1, 2),), dtype="float64", sum_format="exact", out_format="float64")
    assert order.sum([1.7e308, 1.7e308, -np.inf]) == -np.inf


def test_few_elements_have_the_start_and_the_products_of_their_own_rule():
    few = Lanes("few", lanes=1, from_zero=True, fma=True)
    rule = Lanes("mine", lanes=4, least=4, few=few)
    found = [(rule(n).from_zero, rule(n).fma) for n in (2, 3, 4)]
    assert found == [(True, True), (True, True), (False, False)]
    assert rule(3).dot([-1.0, 1 + 2**-12, 0.0], [1 + 2**-11, 1 + 2**-12, 0.0]) == 2.0**-24
    with pytest.raises(TypeError, match="few must be of class OrderRule or None, got 'sequential'"):
        Lanes("mine", few="sequential")


def test_named_orders_are_those_of_norms():
    for n in (48, 208, 1040):
        liger = lp.norms["liger_rms_norm"].order
        assert (lp.orders["triton_tree"](n) == liger(n, fma=False)) == (n < 1040)  # more warps from 1,040 on
    assert lp.orders["cub_block"](1555) == lp.norms["vllm_rms_norm"].order(1555, fma=False)
    assert lp.orders["warp_butterfly"](32) == lp.orders["halving"](32)
    assert str(lp.orders["warp_butterfly"](5)) == "sum(x[0], x[4], x[2]) + (x[1] + x[3])"
