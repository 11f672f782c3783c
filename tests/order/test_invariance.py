"""Batch sizes at which a row gets other bits: planted ones, and functions that have none."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.order.invariance import batch_invariance, find_changes
from lowprec.order.probed import RevealError


def in_turn(a, b):
    return np.cumsum(a[:, None] * b, axis=-1)[..., -1]


def from_8_rows_on(a, b):
    return in_turn(a, b) if len(a) < 8 else in_turn(a[:, ::-1], b[:, ::-1])


def one_column(a, b):
    """Change the order of column 3 alone, from 5 rows on, and back at 7."""
    out = in_turn(a, b)
    if 5 <= len(a) < 7:
        out[:, 3] = in_turn(a[:, ::-1], b[:, ::-1])[:, 3]
    return out


def test_sizes_and_orders_are_found():
    found = batch_invariance(from_8_rows_on, 40, 6, sizes=range(1, 12))
    (change,) = found.changes
    assert (change.m, str(change.before), str(change.after)) == (8, "sum(x[0:40])", "sum(x[39::-1])")
    assert 0.5 < change.share <= 1
    assert found.sentence == (
        f"order.from_8_rows_on: row 0 changes its bits at M = 8 ({change.share:.0%} of its outputs), in 48 outputs for "
        "each M of 11 from 1 to 11"
    ).replace("order.", found.name.removesuffix("from_8_rows_on"))
    found = batch_invariance(one_column, 40, 6, sizes=(4, 5, 6, 7, 8), orders=False)
    assert [(change.m, change.column, change.before) for change in found.changes] == [(5, 3, None), (7, 3, None)]
    assert all(change.share <= 1 / 6 for change in found.changes)


def test_functions_of_one_matrix_are_compared():
    """A sum has orders; of what divides by a sum, only the change is found."""

    def sums(a):
        return np.cumsum(a if len(a) < 3 else a[:, ::-1], axis=-1)[:, -1]

    (change,) = batch_invariance(sums, 40, sizes=range(1, 6), operands=1).changes
    assert (change.m, str(change.before), str(change.after)) == (3, "sum(x[0:40])", "sum(x[39::-1])")
    (change,) = batch_invariance(lambda a: a / sums(a)[:, None], 40, sizes=range(1, 6), operands=1).changes
    assert (change.m, change.after) == (3, None)
    assert "must return 0 for zeros" in change.reason


def test_a_change_is_found_where_no_order_is():
    def product(a, b):
        return in_turn(a, b) if len(a) < 4 else np.float32(1.01) * in_turn(a, b)

    (change,) = batch_invariance(product, 24, 5, sizes=range(1, 6)).changes
    assert (change.m, change.after) == (4, None)
    assert str(change.before) == "sum(x[0:24])"
    assert "must return 1 for a 1 at" in change.reason


def test_a_function_that_does_not_change_is_told():
    found = batch_invariance(in_turn, 33, 5, sizes=range(1, 5), dtype="bfloat16")
    assert found.changes == ()
    assert "row 0 keeps its bits in 40 outputs for each M of 4 from 1 to 4" in found.sentence


def unsteady(a, b, rng=np.random.default_rng(0)):  # noqa: B008  one stream for all calls
    p = rng.permutation(a.shape[1])
    return in_turn(a[:, p], b[:, p])


def test_sizes_of_any_function():
    x = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)

    def sums(size):
        return lp.orders["halving" if 3 <= size < 6 else "sequential"](32).sum(x)

    found = find_changes(sums, range(8))
    assert [change.m for change in found.changes] == [3, 6]
    assert found.changes[0].share == (sums(0) != sums(3)).mean() > 0.5
    assert "row 0 changes its bits at size = 3" in found.sentence
    with pytest.raises(RevealError, match=r"must return one dtype and shape, got float64 \(1,\) and float64 \(2,\)"):
        find_changes(np.ones, (1, 2))
    with pytest.raises(RevealError, match="must return one dtype and shape, got float32"):
        find_changes(lambda m: np.zeros(2, "fd"[m]), (0, 1))
    for dtype in (object, np.longdouble):
        with pytest.raises(RevealError, match="must return numbers, none of extended precision"):
            find_changes(lambda m, dtype=dtype: np.zeros(2, dtype), (0, 1))
    with pytest.raises(RevealError, match="must take 0, got ZeroDivisionError"):
        find_changes(lambda m: 1 // m, (1, 0))
    with pytest.raises(ValueError, match="find_changes: sizes must be one or more numbers"):
        find_changes(sums, ())
    with pytest.raises(TypeError, match="find_changes: function must be callable, got 3"):
        find_changes(3, (1, 2))


def test_bits_that_float64_does_not_hold_are_compared():
    buffer = np.zeros(3, np.int64)

    def integers(size):
        buffer[1] = 2**60 + size
        return buffer

    for function in (lambda size: np.array([0, 1 + size * 1j, 2]), integers):
        (change,) = find_changes(function, (1, 2)).changes
        assert (change.m, change.column, change.share) == (2, 1, 1 / 3)


@pytest.mark.parametrize(
    ("function", "match"),
    [(unsteady, "must have one answer to one input, got other bits the second time for 1 rows"),
     (lambda a, b: a, r"must return floating-point numbers of shape \(1, 6\), got float32 \(1, 20\)"),
     (lambda a, b: np.nan * in_turn(a, b), "must return numbers for finite inputs, got NaN for row 0 of 1"),
     (lambda a, b: 1 / 0, r"must take matrices \(1, 20\) and \(6, 20\) of float32, got ZeroDivisionError")],
)  # fmt: skip
def test_what_is_no_product_is_refused(function, match):
    with pytest.raises(RevealError, match=match):
        batch_invariance(function, 20, 6)


@pytest.mark.parametrize(
    ("function", "got"),
    [(lambda a: a[:, : len(a)], r"\(2, 1\), got float32 \(2, 2\)"),
     (lambda a: a[:, :0], r"\(1, ...\), got float32 \(1, 0\)"),
     (lambda a: a[0, 0], r"\(1, ...\), got float32 \(\)")],
)  # fmt: skip
def test_results_of_a_row_are_alike_for_all_sizes(function, got):
    with pytest.raises(RevealError, match=f"must return floating-point numbers of shape {got}"):
        batch_invariance(function, 20, operands=1)


def test_arguments_are_checked():
    for given in ({"k": 0}, {"k": 1 << 17}, {"k": 4, "n": 0}, {"k": 4, "sizes": ()}, {"k": 4, "sizes": (0,)},
                  {"k": 4, "sizes": np.zeros(0, int)}, {"k": 4, "dtype": "fp8"}, {"k": 4, "seconds": -1},
                  {"k": 4, "seed": -1}, {"k": 4, "operands": 1.0}):  # fmt: skip
        with pytest.raises(ValueError, match=f"batch_invariance: {list(given)[-1]} must be"):
            batch_invariance(in_turn, **given)
    with pytest.raises(TypeError, match="batch_invariance: function must be callable, got 3"):
        batch_invariance(3, 4)
    assert batch_invariance(in_turn, 4, sizes=np.array([1, 2]), orders=False).sizes == (1, 2)
