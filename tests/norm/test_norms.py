"""Norms have the bits of fractions, the values of float64 formulas, and decide what their documentation decides."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from floats import Exact, fma

import lowprec as lp
from lowprec.norm.functions import Approximate, SleefLog
from lowprec.norm.sums import ThreadsWelford, TorchColumnSum, Welford
from lowprec.special.cpu import SleefExp

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ENTRIES = [(name, dtype) for name in lp.norms for dtype in lp.norms[name].dtypes]


def operands(n, dtype, rows=6, seed=0):
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal((rows, n)).astype("f4").astype(DTYPES[dtype]) for _ in range(2))
    weight, bias = (rng.standard_normal(n).astype("f4").astype(DTYPES[dtype]) for _ in range(2))
    return x, dy, weight, bias


def add_in_lanes(terms, lanes):
    """Add in lanes of vectors, the last of which is masked, then the second half to the first."""
    if len(terms) < lanes:
        sums = [terms[0]]
        for term in terms[1:]:
            sums[0] = sums[0] + term
    else:
        sums = terms[:lanes]
        for i, term in enumerate(terms[lanes:]):
            sums[i % lanes] = sums[i % lanes] + term
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[i] + sums[half + i] for i in range(half)]
    return sums[0]


@pytest.mark.parametrize("n", [1, 5, 15, 16, 37])
def test_softmax_and_its_gradient_have_the_bits_of_fractions(n):
    x, dy, _, _ = operands(n, "float32", 2)
    norm = lp.norms["torch_cpu_softmax"]
    y, dx = norm(x), norm.gradient(dy, x).dx
    for row in range(len(x)):
        e = [Exact(float(v)) for v in SleefExp(1)((x[row] - x[row].max())[None])[0]]
        scale = Exact(1) / add_in_lanes(e, 16)
        expected = [v * scale for v in e]
        assert [Fraction(float(v)) for v in y[row]] == [v.value for v in expected]
        given, whole = [Exact(float(v)) for v in dy[row]], n - n % 16
        sums = [a * b for a, b in zip(given, expected, strict=True)]
        if n < 16:
            total = add_in_lanes(sums, 16)
        else:
            lanes = sums[:16]
            for i in range(16, n):
                lanes[i % 16] = fma(given[i], expected[i], lanes[i % 16]) if i >= whole else lanes[i % 16] + sums[i]
            total = add_in_lanes(lanes, 16)
        assert [Fraction(float(v)) for v in dx[row]] == [
            ((a - total) * b).value for a, b in zip(given, expected, strict=True)
        ]


def values(name, x, weight, bias, dy):
    """Return the function and its gradients in float64."""
    n, eps = x.shape[1], 1e-5
    if "softmax" in name:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        if "log" in name:
            return np.log(p), dy - p * dy.sum(axis=1, keepdims=True)
        return p, (dy - (dy * p).sum(axis=1, keepdims=True)) * p
    centred = x - x.mean(axis=1, keepdims=True) if "layer" in name else x
    r = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
    g = dy * weight
    dx = r * g - centred * r**3 * (g * centred).sum(axis=1, keepdims=True) / n
    if "layer" not in name:
        return centred * r * weight, dx, (dy * centred * r).sum(axis=0)
    dx -= r * g.mean(axis=1, keepdims=True)
    return centred * r * weight + bias, dx, (dy * centred * r).sum(axis=0), dy.sum(axis=0)


def arguments(name, weight, bias):
    return (weight, bias) if "layer" in name else (weight,) if "rms" in name else ()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "dtype"), ENTRIES)
def test_values_are_those_of_float64(name, dtype):
    norm = lp.norms[name]
    x, dy, weight, bias = operands(45 if norm.validated_against or "softmax" in name else 2064, dtype)
    given = arguments(name, weight, bias)
    found = [norm(x, *given, eps=1e-5)]
    if norm.backward:
        found += [g for g in norm.gradient(dy, x, *given, eps=1e-5) if g is not None]
    wide = [v.astype(np.float64) for v in (x, weight, bias, dy)]
    for got, expected in zip(found, values(name, *wide), strict=False):
        assert got.dtype == DTYPES[dtype]
        tolerance = 1e-5 if dtype == "float32" else 0.02
        np.testing.assert_allclose(got.astype(np.float64), expected, tolerance, tolerance)


RSQRT = ("rsqrt", Approximate("rsqrt"))
MUTANTS = {
    "sequential": lambda norm: norm.with_(order=lp.orders["sequential"], backward_order=None, moments=norm.moments),
    "fused": lambda norm: norm.with_(order=norm.order.with_(fma=not norm.order.fma), moments=norm.moments),
    "divided": lambda norm: norm.with_(forward=norm.forward.replace("(1 / sum(e))", "1 / sum(e)")),
    "not rounded": lambda norm: norm.with_(forward=norm.forward.replace("round(", "(")),
    "reciprocal": lambda norm: norm.with_(forward=norm.forward.replace("/ n", "* (1 / n)")),
    "rounded once": lambda norm: norm.with_(
        forward=norm.forward.replace("1 / sqrt(", "rsqrt("),
        functions=(*norm.functions, RSQRT),
    ),
    "more lanes": lambda norm: norm.with_(moments=norm.moments and norm.moments.with_(lanes=16)),
    "rest fused": lambda norm: norm.with_(moments=norm.moments and norm.moments.with_(fuses_rest=True)),
    "columns in turn": lambda norm: norm.with_(columns=norm.columns.with_(order=lp.orders["pairwise"])),
}


SOFTMAX, LAYER, LLAMA = {"torch_cpu_softmax"}, {"torch_cpu_layer_norm"}, {"llama_rms_norm_cpu"}
RMS = {"torch_cpu_rms_norm"} | LLAMA
#: Norms that show a mutant, if not all do: the others lack what it changes.
KILLED = {
    "fused": LAYER | SOFTMAX, "divided": SOFTMAX, "not rounded": LLAMA, "reciprocal": RMS, "rounded once": LAYER | RMS,
    "more lanes": LAYER, "rest fused": LAYER, "columns in turn": LAYER,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_norm_with_one_thing_wrong_has_other_bits(mutant):
    killed = set()
    for name in ("torch_cpu_softmax", "torch_cpu_rms_norm", "llama_rms_norm_cpu", "torch_cpu_layer_norm"):
        norm = lp.norms[name]
        wrong = MUTANTS[mutant](norm)
        if wrong == norm:
            continue
        for dtype in ("float32", "bfloat16")[: len(norm.dtypes)]:
            x, dy, weight, bias = operands(47, dtype, 40)
            given = arguments(name, weight, bias)
            pairs = [(n(x, *given), *n.gradient(dy, x, *given)) for n in (norm, wrong)]
            if any((a != b).any() for a, b in zip(*pairs, strict=True) if a is not None):
                killed.add(name)
    assert killed == KILLED.get(mutant, LAYER | SOFTMAX | RMS)


def test_what_a_function_may_be_does_not_change_decided_outputs():
    class Between(Approximate):
        def __call__(self, x):
            low, high = Approximate(self.function, self.ulps).bounds(x)
            return np.where(np.random.default_rng(1).random(x.shape) < 0.5, low, high)

    norm = lp.Norm("mine", "y = exp2(x - max(x)) / sum(exp2(x - max(x))) * -rsqrt(eps + x * x)",
                   functions=[("rsqrt", Approximate("rsqrt", 64)), ("exp2", Approximate("exp2", 64))])  # fmt: skip
    other = norm.with_(functions=[("rsqrt", Between("rsqrt", 64)), ("exp2", Between("exp2", 64))])
    x = operands(50, "bfloat16", 40)[0]
    undecided = norm.undecided(x)
    changed = norm(x) != other(x)
    assert changed.any()
    assert not (changed & ~undecided).any()
    assert undecided.mean() < 0.2
    assert not lp.norms["torch_cpu_rms_norm"].undecided(x).any()
    pole = lp.Norm("pole", "y = 1 / (exp(x) - 1)", functions=[("exp", Approximate("exp"))])
    assert pole.undecided([[1e-8, 1.0, np.nan]]).tolist() == [[True, True, False]]


EXP = [("exp", Approximate("exp", 2))]


@pytest.mark.parametrize(
    ("formula", "weight"),
    [
        ("y = dot(exp(x * x), weight) * x", [1.0, -1.0]),
        ("y = dot(weight, exp(x * x)) * x", [1.0, -1.0]),
        ("y = dot_rows(exp(x * x), x) * x", [1.0, 1.0]),
        ("m, v = moments(exp(x * x))\ny = x - m", [1.0, 1.0]),
        ("m, v = moments(exp(x * x))\ny = x * v", [1.0, 1.0]),
        ("y = 1 / (exp(x * x) - 2.7182817) * 0", [1.0, 1.0]),
    ],
)
def test_outputs_that_are_zero_only_by_cancellation_are_undecided(formula, weight):
    norm = lp.Norm("mine", formula, functions=EXP, moments=Welford())
    assert norm.undecided([[1.0, 1.0], [-1.0, -1.0]], weight).all()


def test_dot_products_that_every_value_agrees_on_are_decided():
    norm = lp.Norm("mine", "y = dot(exp(x), weight) * weight", functions=EXP)
    x = [[1.0, 1.0], [1.0, np.inf], [1.0, np.nan]]
    assert norm.undecided(x, [0.0, 1.0])[:, 1].tolist() == [True, False, False]
    assert not norm.undecided(np.zeros((1, 2), "f2"), np.ones(2, "f2")).any()


def test_errors_around_zero_have_both_signs():
    low, high = Approximate("log", 2).bounds(np.ones(1, np.float32))
    assert low == -high < 0
    assert Approximate("exp", 2).bounds(np.full(1, -200, np.float32))[0] == 0


def test_logarithms_of_sleef_are_within_an_ulp():
    x = np.exp(np.random.default_rng(0).uniform(0, 80, 20000)).astype(np.float32)
    got, exact = SleefLog()(x), np.log(x.astype(np.float64))
    assert (np.abs(got - exact) < np.spacing(got)).all()
    assert SleefLog()(np.ones(1, np.float32)) == 0


def test_columns_have_orders_by_place():
    assert [count for _, count in TorchColumnSum().rules(77)] == [64, 13]
    x = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    got = TorchColumnSum()("float32", x)[0]
    assert got[3] == lp.orders["torch_cpu_sum"].with_(vector_bytes=4, sums=1)(50).sum(x[:, 3])
    assert (got[4:] == [lp.orders["torch_cpu_sum"].with_(vector_bytes=4)(50).sum(x[:, i]) for i in (4, 5, 6)]).all()


ROWS = np.ones((2, 3), np.float32)
MOMENTS = lp.Norm("mine", "y = x", moments=Welford())


def test_with_replaces_fields_of_the_norm_without_a_weight():
    x = np.random.default_rng(0).standard_normal((40, 100)).astype(np.float32)
    plain = lp.Norm("plain", "y = x / sum(x)")
    norm = lp.Norm("mine", "y = x / sum(x) * weight", unweighted=plain).with_(order=lp.orders["halving"])
    want = plain.with_(order=lp.orders["halving"])(x)
    np.testing.assert_array_equal(norm(x), want)
    assert (want != plain(x)).any()
    assert norm.with_(unweighted=plain).unweighted == plain
    layer_norm = lp.norms["torch_cpu_layer_norm"]
    lanes = layer_norm.with_(order=lp.orders["halving"], moments=Welford(4)).unweighted
    assert (lanes.order, lanes.moments, lanes.forward) == (
        lp.orders["halving"], Welford(4), layer_norm.unweighted.forward
    )  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), ENTRIES)
def test_no_rows_have_no_outputs_and_gradients_of_zero(name, dtype):
    x, dy, weight, bias = operands(5, dtype, 0)
    norm, given = lp.norms[name], arguments(name, weight, bias)
    assert norm(x, *given).shape == norm.undecided(x, *given).shape == (0, 5)
    gradients = norm.gradient(dy, x, *given) if norm.backward else ()
    for mine, of in zip(gradients, (x, *given), strict=False):
        if mine is None:
            assert not norm.validated_against
            continue
        assert mine.dtype == x.dtype
        assert (mine == np.zeros_like(of)).all()
        assert mine.shape == of.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lp.norms["torch_cpu_softmax"](ROWS.astype("f2")), "x must be of float32 for torch_cpu_softmax"),
        (lambda: lp.norms["torch_cpu_softmax"](1.0), r"x must have shape \[..., n >= 1\], got \(\)"),
        (lambda: lp.norms["torch_cpu_rms_norm"](ROWS, np.ones(2)), r"weight must have shape \(3,\), got \(2,\)"),
        (lambda: lp.norms["torch_cpu_rms_norm"](ROWS, np.ones(3, "f2")), "weight must be of x's dtype, float32"),
        (lambda: lp.norms["torch_cpu_rms_norm"](ROWS, eps=-1), "eps must be"),
        (lambda: lp.Norm("mine", "y = x").gradient(ROWS, ROWS), "norm must have formulas of its gradient, got mine"),
        (lambda: lp.Norm("mine", "z = x"), "forward must assign 'y'"),
        (lambda: lp.Norm("mine", "y = x ** 2"), r"formulas must be assignments of \+ - \* /"),
        (lambda: lp.Norm("mine", "y = = x"), "formulas must be assignments, got"),
        (lambda: lp.Norm("mine", "y = z")(ROWS), "names must be x, weight, bias, eps, n, got 'z'"),
        (lambda: lp.Norm("mine", "y = erf(x)")(ROWS), "functions must be fma, sqrt, max, .*, got 'erf'"),
        (lambda: lp.Norm("mine", "y = x", dtypes=("float64",)), "dtypes must be one of"),
        (lambda: lp.Norm("mine", "y = sum(x)")(ROWS), r"y must be an array \[2, 3\], got \[2, 1\]"),
        (lambda: lp.Norm("mine", "y = sum(x, x)")(ROWS), r"arguments of sum must be 1, got 'sum\(x, x\)'"),
        (lambda: lp.Norm("mine", "y = (x, x)"), "formulas must be assignments of"),
        (lambda: lp.Norm("mine", "y = z = x"), "formulas must be assignments of"),
        (lambda: lp.Norm("mine", "y = x * 'a'"), "formulas must be assignments of"),
        (lambda: lp.Norm("mine", "y, z = sum(x)")(ROWS), r"names assigned by sum\(x\) must be 1, got y, z"),
        (lambda: MOMENTS.with_(forward="y = moments(x) * x")(ROWS), "moments must be assigned to two names"),
        (lambda: MOMENTS.with_(order=lp.orders["halving"]), "moments must be given with order, which does not change"),
        (lambda: lp.Norm("mine", "y = x", order="halving"), "order must be of class OrderRule, got 'halving'"),
        (lambda: lp.Norm("mine", "y = x", columns=3), "columns must be of class ColumnSum, got 3"),
        (lambda: lp.Norm("mine", "y = x", moments=3), "moments must be of class Moments or None, got 3"),
        (lambda: Welford(0), "lanes must be an integer"),
        (lambda: ThreadsWelford(48), "ThreadsWelford: threads must be one of 32, 64, 128, 256, 512, 1024, got 48"),
        (lambda: ThreadsWelford()(ROWS), "ThreadsWelford: n must be a multiple of 4, got 3"),
        (lambda: Approximate("tan"), "function must be one of"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
