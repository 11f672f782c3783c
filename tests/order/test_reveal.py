"""Orders of callables: planted, those of real libraries, and callables that have none."""

import functools
import math
import types

import numpy as np
import pytest
from planted import called, one_by_one, order_of

import lowprec as lp
from lowprec.order.order import Order
from lowprec.order.probed import RevealError, takes_tensors
from lowprec.order.recorded import dump, first_probes, next_probes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operands", [1, 2])
@pytest.mark.parametrize("seed", range(25))
def test_planted_orders_are_found(seed, operands):
    order = order_of(100 * operands + seed, operands)
    found = lp.reveal(called(order, operands), order.n, dtype=order.dtype, operands=operands)
    x = np.random.default_rng(seed).standard_normal((operands, 300, order.n)) * 2.0 ** (np.arange(order.n) % 9)
    x = x.astype(order.dtype)
    compute = "dot" if operands == 2 else "sum"
    np.testing.assert_array_equal(getattr(found, compute)(*x), getattr(order, compute)(*x))
    assert [len(t) for t in found.steps if len(t) > 1] == [len(t) for t in order.steps if len(t) > 1]
    if operands == 1:
        assert (found.steps, found.from_zero) == (order.steps, order.from_zero)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 20, 129, 300])
def test_numpy_sums_in_the_order_of_its_source(n):
    for dtype in ("float16", "float32", "float64"):
        found = lp.reveal(np.sum, n, dtype=dtype, samples=60)
        expected = lp.orders["numpy_sum"](n, dtype=dtype)
        assert found == (expected.with_(sum_format=dtype) if n <= 2 else expected)  # a single sum has one rounding
        assert found.validated_against == "0 of 60 sums of numpy.sum differ"


@pytest.mark.parametrize("n", [1, 31, 100, 300])
def test_products_of_openblas_have_the_order_of_the_catalogue(n):
    config = np.show_config(mode="dicts")
    if "openblas" not in config["Build Dependencies"]["blas"]["name"] or "AVX512" not in str(
        config["SIMD Extensions"]["found"]
    ):
        pytest.skip("needs NumPy's OpenBLAS and AVX512")

    def output(a, b):
        return (np.tile(a, (8, 1)) @ np.tile(b, (8, 1)).T)[0, 0]

    assert lp.reveal(output, n, operands=2, samples=60) == lp.orders["openblas_sgemm"](n)


def test_functions_of_numpy_and_python():
    chain = lp.orders["sequential"](30)
    assert lp.reveal(one_by_one, 30) == chain
    assert lp.reveal(sum, 30) == chain.with_(from_zero=True)
    assert lp.reveal(lambda x: np.add.reduce(np.array([x, x]), axis=1)[0], 30).steps == lp.orders["numpy_sum"](30).steps
    assert lp.reveal(lambda x: np.add.reduce(x[:, None] * np.ones(3, "f4"), axis=0)[1], 30).steps == chain.steps
    assert lp.reveal(math.fsum, 30).sum_format == "exact"
    double = lp.reveal(lambda x: np.cumsum(x, dtype=np.float64)[-1].astype(np.float32), 30)
    assert double == chain.with_(sum_format="float64")
    flushed = chain.with_(flush=True)
    assert lp.reveal(flushed.sum, 30) == flushed
    with pytest.raises(RevealError, match="must add in float64 or a narrower format, got a sum that keeps 54 bits"):
        lp.reveal(lambda x: np.cumsum(x, dtype=np.longdouble)[-1].astype(np.float32), 30)


@pytest.mark.parametrize("n", [5, 64, 100])
def test_blas_dots_have_an_order(n):
    """Whatever it is on this computer; it was compared with the library."""
    found = lp.reveal(np.dot, n, operands=2)
    a, b = np.random.default_rng(n).standard_normal((2, 500, n)).astype(np.float32)
    assert (found.dot(a, b) == [np.dot(*pair) for pair in zip(a, b, strict=True)]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_element_is_a_sum(dtype):
    assert lp.reveal(lambda x: x[0], 1, dtype=dtype).sum_format == dtype
    assert lp.reveal(lambda a, b: a[0] * b[0], 1, dtype=dtype, operands=2).n == 1


def test_products_that_float64_does_not_hold_are_not_called_exact():
    def dot(a, b):
        return np.cumsum(a.astype(np.float64) * b.astype(np.float64))[-1]

    with pytest.raises(RevealError, match="must add products of float16 exactly"):
        lp.reveal(dot, 30, dtype="float16", operands=2)


def test_long_chains_are_cheap():
    count = 0

    def counted(x):
        nonlocal count
        count += 1
        return one_by_one(x[::-1])

    order = lp.reveal(counted, 400, samples=4)
    assert count < 400 * 5  # the tree 2 n on average, the formats 2 n
    assert order.source == f"revealed by {count} calls"


# Callables without one order.


def random_order(x, rng=np.random.default_rng(0)):  # noqa: B008  one stream for all calls
    return one_by_one(rng.permutation(x))


def rarely_another(x, state=[0]):  # noqa: B006
    state[0] += 1
    return one_by_one(x[::-1] if state[0] % 97 == 0 else x)


def by_sign(x):
    return one_by_one(x if x[0] > 0 else x[::-1])


def by_zeros(x):
    return one_by_one(x if np.count_nonzero(x) > x.size // 2 else x[::-1])


def compensated(x):
    total = carry = np.float32(0)
    for value in x:
        y = value - carry
        new = total + y
        carry = (new - total) - y
        total = new
    return total


LIARS = {
    random_order: "one answer to one input", rarely_another: "one answer to one input|no tree explains|must add its",
    by_sign: "one order", by_zeros: "one order", compensated: "one order|must add its inputs",
}  # fmt: skip


@pytest.mark.parametrize("liar", LIARS)
def test_liars_are_refused_with_evidence(liar):
    with pytest.raises(RevealError, match=LIARS[liar]) as caught:
        lp.reveal(liar, 24)
    assert caught.value.evidence["x"].shape == (24,)
    assert "got" in caught.value.evidence


def test_annotated_functions_take_tensors():
    def tensors(x: "torch.Tensor"): ...  # noqa: F821
    def imported_for_checkers(x: "Tensor"): ...  # noqa: F821
    def second(x, w: "torch.Tensor" = None): ...  # noqa: F821
    def arrays(x) -> "torch.Tensor": ...  # noqa: F821

    class Layer:
        def __call__(self, x: "torch.Tensor"): ...  # noqa: F821

    known = types.FunctionType(tensors.__code__, {"T": types.new_class("torch.Tensor")})
    known.__annotations__ = {"x": "T"}
    of_torch = types.FunctionType(arrays.__code__, {})
    of_torch.__module__ = "torch.nn.functional"
    yes = tensors, imported_for_checkers, Layer(), known, functools.partial(of_torch, 1), functools.partial(second, 1)
    assert [takes_tensors(function) for function in yes] == [True] * len(yes)
    assert not any(
        takes_tensors(function) for function in (arrays, second, np.sum, np.add, max, functools.partial(sum))
    )


def test_a_sort_has_no_confident_answer():
    found = lp.reveal(lambda x: one_by_one(np.sort(x)), 12)
    assert found.validated_against.startswith("nothing")
    with pytest.raises(ValueError, match=r"lp\.identify"):
        found.sum(np.ones(12))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: 1 / 0, "must take a vector of 6 float32 numbers, got ZeroDivisionError: division by zero"),
        (lambda x: x, r"must return one number in .*, got an array of shape \(6,\)"),
        (lambda x: None, "must return one number in .*, got None"),
        (lambda x: "1", "must return one number in .*, got '1'"),
        (lambda x: 1j, "must return one number in .*, got 1j"),
        (lambda x: np.float32(np.nan), "must return 0 for zeros, got nan$"),
        (lambda x: x.sum() + np.float32(2), "must return 0 for zeros, got 2; subtract what it adds"),
        (np.mean, "numpy.mean must return 1 for a 1 at . and zeros, got 0.166667; divide out a factor"),
        (np.max, "numpy.max must add its inputs, got 1 for 6 ones, 0 zeros$"),
        (lambda x: np.float32(np.nan) if x.min() < -1 else x.sum(), "got nan for 4 ones, 0 zeros, 1.26"),
        (lambda x: x[:5].sum(), "must return 1 for a 1 at 5 and zeros, got 0|must add its inputs"),
        (lambda x: x.sum() if x[0] else np.float64(x.sum()), "must return numbers of one dtype, got float64 and"),
    ],
)  # fmt: skip
def test_what_is_no_sum_is_refused(function, match):
    with pytest.raises(RevealError, match=match):
        lp.reveal(function, 6)


def test_arguments_are_checked():
    wrong = {"n": 0}, {"n": 4, "dtype": "int8"}, {"n": 4, "operands": 3}, {"n": 4, "seconds": 0}, {"n": 4, "samples": 0}
    for given in wrong:
        with pytest.raises(ValueError, match=f"reveal: {list(given)[-1]} must be"):
            lp.reveal(np.sum, **given)
    with pytest.raises(TypeError, match="function must be callable, got 3"):
        lp.reveal(3, 4)


def test_a_slow_callable_is_told_early(monkeypatch):
    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    seen = []
    with pytest.raises(RevealError, match="2 s a call, and at least 64 calls, got 60, of which"):
        lp.reveal(np.sum, 64, progress=seen.append)
    assert seen


@pytest.mark.slow
def test_fused_terms_are_handed_to_identify():
    def core(a, b):
        return lp.mma(a[None], b[None], accumulator="hopper_bf16")[0, 0]

    found = lp.reveal(core, 32, dtype="bfloat16", operands=2)
    assert str(found) == "fused(fused(x[0:16]), x[16:32])"
    assert found == Order("core", (tuple(range(16)), (32, *range(16, 32))), dtype="bfloat16")
    given = dump(core, 32, dtype="bfloat16", rows=48, operands=2)
    assert "hopper_bf16" in [machine.name for machine in lp.identify(**given).machines]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("operands", [1, 2])
def test_probes_as_files(operands):
    order = order_of(7, operands, 12)
    function, n = called(order, operands), order.n
    given = {"dtype": order.dtype, "operands": operands}
    files, found = [first_probes(n, **given)], None
    while not isinstance(found, Order):
        assert len(files) < 4
        rows = [files[-1][name].astype(order.dtype) for name in "ab"[:operands]]
        files[-1]["d"] = np.array([function(*row) for row in zip(*rows, strict=True)])
        found = next_probes(files, n, out_format=order.out_format, **given)
        if isinstance(found, dict):
            files.append(found)
    assert found == lp.reveal(function, n, **given)
    with pytest.raises(ValueError, match="from 1 to 128, got 129"):
        first_probes(129)
    with pytest.raises(ValueError, match=r"answers must have a.* \[P, \d+\] and d \[P\], got"):
        next_probes([{"a": np.ones((3, n))}], n, **given)
    with pytest.raises(ValueError, match="answers must have"):
        next_probes(files, n + 1, **given)
    other = {**files[0], "d": -files[0]["d"]}
    with pytest.raises(RevealError, match="answers must have one d for one input, got") as caught:
        next_probes([*files, other], n, out_format=order.out_format, **given)
    assert len(caught.value.evidence["got"]) == 2
