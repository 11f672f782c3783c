"""dot_general of lowprec.jax: every contraction is a product, types are as asked, and a report shows the others."""

import itertools

import numpy as np
import pytest
from refusals import refusals

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import lowprec as lp  # noqa: E402
import lowprec.jax as lpj  # noqa: E402
from lowprec.recipe import LayerPrecision  # noqa: E402
from lowprec.registry import UnknownNameError  # noqa: E402

pytestmark = pytest.mark.jax


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


#: Contracted and batch axes, and the same in letters of einsum.
CONTRACTIONS = {
    "ik,kj->ij": ((3, 64), (64, 5), ((1,), (0,)), ((), ())),
    "ki,jk->ij": ((64, 3), (5, 64), ((0,), (1,)), ((), ())),
    "k,k->": ((64,), (64,), ((0,), (0,)), ((), ())),
    "abk,kcd->abcd": ((2, 3, 64), (64, 5, 2), ((2,), (0,)), ((), ())),
    "akl,klb->ab": ((3, 4, 32), (4, 32, 5), ((1, 2), (0, 1)), ((), ())),
    "akl,lkb->ab": ((3, 4, 32), (32, 4, 5), ((1, 2), (1, 0)), ((), ())),
    "zik,zjk->zij": ((2, 3, 64), (2, 5, 64), ((2,), (2,)), ((0,), (0,))),
    "yzik,zykj->zyij": ((2, 3, 4, 64), (3, 2, 64, 5), ((3,), (2,)), ((1, 0), (0, 1))),
    "i,j->ij": ((3,), (5,), ((), ()), ((), ())),
}


def by_slices(letters, lhs, rhs, linear):
    """Return an einsum computed with `linear` of rows alone, one batch index after the other."""
    left, right, out = letters.replace("->", ",").split(",")
    batch = [c for c in out if c in left and c in right]
    summed = [c for c in left if c in right and c not in out]
    free = [[c for c in side if c not in batch + summed] for side in (left, right)]
    rows, columns = (
        jnp.einsum(f"{side}->{''.join(batch + own + summed)}", a)
        for side, own, a in ((left, free[0], lhs), (right, free[1], rhs))
    )
    sizes = dict(zip(left + right, lhs.shape + rhs.shape, strict=True))
    k = int(np.prod([sizes[c] for c in summed], dtype=int))
    found = []
    for index in itertools.product(*(range(sizes[c]) for c in batch)):
        found.append(linear(rows[index].reshape(-1, k), columns[index].reshape(-1, k)))
    return jnp.stack(found).reshape([sizes[c] for c in batch + free[0] + free[1]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", ["dsv3", "mxfp8", "bf16"])
@pytest.mark.parametrize("letters", CONTRACTIONS)
def test_every_contraction_is_a_product(letters, recipe):
    left, right, *numbers_of_axes = CONTRACTIONS[letters]
    operands = numbers(*left), numbers(*right, seed=1)

    def ours(lhs, rhs):
        return lpj.dot_general(lhs, rhs, tuple(numbers_of_axes), recipe=recipe, strict=True)

    def slices(lhs, rhs):
        return by_slices(letters, lhs, rhs, lambda x, w: lpj.linear(x, w, recipe))

    (y, back), (expected, expected_back) = (jax.vjp(f, *operands) for f in (ours, slices))
    assert y.shape == jax.lax.dot_general(*operands, tuple(numbers_of_axes)).shape
    assert jnp.array_equal(y, expected)
    dy = numbers(*y.shape, seed=2)
    assert all(map(jnp.array_equal, back(dy), expected_back(dy)))
    assert jnp.array_equal(jax.jit(ours)(*operands), y)


MATRICES = (((1,), (1,)), ((), ()))


@pytest.mark.parametrize(("left", "right", "preferred", "result"), [
    ("float32", "float32", None, "float32"),
    ("float32", "float32", "bfloat16", "bfloat16"),
    ("bfloat16", "bfloat16", None, "bfloat16"),
    ("bfloat16", "bfloat16", "float32", "float32"),
    ("bfloat16", "float32", None, "float32"),
    ("float32", "bfloat16", "float16", "float16"),
])  # fmt: skip
def test_the_preferred_type_is_obeyed(left, right, preferred, result):
    x, w = numbers(7, 256).astype(left), numbers(9, 256, seed=1).astype(right)
    y = lpj.dot_general(x, w, MATRICES, None, preferred)
    assert y.dtype == result == jax.lax.dot_general(x.astype(jnp.float32), w, MATRICES, None, preferred or result).dtype
    stored = lpj.linear(x.astype(jnp.float32), w)
    assert (y.astype(jnp.bfloat16) == stored).mean() > 0.9
    rounded = bool(jnp.array_equal(y.astype(jnp.float32), stored))
    assert rounded == (result == "bfloat16" or preferred is None)


def test_sums_that_are_asked_for_are_not_rounded_in_gradients():
    x, w, dy = numbers(7, 256).astype("bfloat16"), numbers(9, 256, seed=1).astype("bfloat16"), numbers(7, 9, seed=2)
    y, back = jax.vjp(lambda x, w: lpj.dot_general(x, w, MATRICES, None, jnp.float32, recipe="bf16"), x, w)
    assert np.abs(np.asarray(y) - np.asarray(x, np.float64) @ np.asarray(w, np.float64).T).max() < 1e-4
    assert [g.dtype for g in back(dy)] == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize(("left", "right"), [((0, 4), (3, 4)), ((3, 0), (5, 0))])
def test_empty_products(left, right):
    y = lpj.dot_general(jnp.ones(left), jnp.ones(right), MATRICES)
    assert jnp.array_equal(y, jnp.zeros((left[0], right[0])))


def two_layers(x, w, kernel):
    with jax.named_scope("first"):
        h = lpj.linear(x, w, "mxfp8", layer="layers.0.ffn.w1")
    with jax.named_scope("second"):
        return jax.jit(jnp.tanh)(jax.lax.dot_general(h, kernel, (((1,), (0,)), ((), ()))))


OPERANDS = numbers(4, 64), numbers(32, 64, seed=1), numbers(32, 3, 2, seed=2)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_a_report_lists_products_of_recipes_and_of_xla(transform):
    report = lpj.report(transform(two_layers), *OPERANDS)
    ((name, role, precision),) = report.rows
    assert (name.rpartition("/")[2], role) == ("first", "layers.0.ffn.w1")
    assert precision == str(LayerPrecision.of(lp.recipes["mxfp8"], role, 1000).spec)
    ((where, _, what),) = report.unreached
    assert "second" in where
    assert what == "dot_general float32[4,32] x float32[32,3,2]"
    assert what in str(report)


def test_a_report_of_a_gradient_has_both_directions():
    report = lpj.report(jax.grad(lambda *a: two_layers(*a).sum(), (0, 1)), *OPERANDS)
    assert [row.precision.startswith("backward of ") for row in report.rows] == [False, True]


def test_attention_is_listed():
    report = lpj.report(lambda x: lpj.attention(x, x, x, causal=True), jnp.ones((1, 2, 4, 8)))
    assert [(role, precision) for _, role, precision in report.rows] == [("attention", "fa3_fp8")]
    assert not report.unreached


def test_scans_are_looked_into():
    report = lpj.report(
        lambda xs, w: jax.lax.scan(lambda c, x: (c, (lpj.linear(x, w), x @ w.T)), 0, xs),
        jnp.ones((2, 4, 64)),
        jnp.ones((8, 64)),
    )
    assert (len(report.rows), len(report.unreached)) == (1, 1)


test_refused = refusals([
    ("lpj.dot_general(x.astype('float16'), x, m, strict=True)", TypeError, "dtypes must be float32 or bfloat16"),
    ("lpj.dot_general(x, x, m, None, 'int32', strict=True)", TypeError, "dtypes must be float32 or bfloat16 with"),
    ("lpj.dot_general(x, x[:, :2], m)", TypeError, "dot_general requires contracting dimensions to have the same"),
    ("lpj.dot_general(x, x, (((-1,), (-1,)), ((), ())))", TypeError, "dot_general requires .* dimension"),
    ("lpj.linear(x, x, layer='attn.wo')", UnknownNameError, "'attn.wo' matches no layer of any model: did you mean"),
    ("lpj.linear(x, [[1.0]])", TypeError, "w must be a float32 or bfloat16 array, got list"),
    ("lpj.attention(x, x, x)", r"q must be .* array \(batch, heads, rows, columns\), got float32 \(2, 4\)"),
    ("lpj.dot_general(x, x, m, recipe='nvfp4')", "step must be given with recipe nvfp4, which rounds"),
    ("lpj.report(lambda x: x @ x.T, x, strict=True)", r"no product must be left to XLA with strict=True, got"),
], lambda: {"lpj": lpj, "x": jnp.ones((2, 4)), "m": MATRICES})  # fmt: skip


def test_other_types_are_xlas():
    x = jnp.arange(8).reshape(2, 4)
    assert jnp.array_equal(lpj.dot_general(x, x, MATRICES), x @ x.T)
