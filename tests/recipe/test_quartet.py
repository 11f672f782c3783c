"""Quartet II's recipe: its backward operands by hand, unbiased over seeds, ragged sizes, and what is refused."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.recipe import LayerPrecision, LinearSpec, linear_ops
from lowprec.recipe.operands import NoState
from lowprec.scaling.eden import quantize_eden, stages

SPEC = lp.recipes["quartet2"].typical_linear


class Seeds(NoState):
    """Seeds that a test can say again: by operand, in a step."""

    def __init__(self, step=0):
        self.step = step

    def seed(self, operand):
        return sum(operand.encode()) * 1000 + self.step


def matrices(tokens, n, k, seed=0):
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, k), (n, k), (tokens, n)))
    return lp.round_to(x, "bfloat16"), w, lp.round_to(dy * 1e-3, "bfloat16")


def turned(x):
    return np.ascontiguousarray(x.T)


def eden(x, seed, signs, along_columns=False):
    """MS-EDEN along the rows of x; where the operand lies along columns, random words follow the turned scales."""
    codes, scale, factor, tensor = stages(lp.hadamard(x, 128, signs), 128)
    order = turned if along_columns else np.ascontiguousarray
    wanted = order((scale * np.repeat(factor, 8, axis=1)).astype(np.float32))
    rounded = order(lp.round_to(wanted, "e4m3fn", rounding="stochastic", seed=seed))
    return lp.Quantized(codes, rounded, "e2m1fn", "1x16", "e4m3fn", tensor)


def bits(a):
    return np.asarray(a).view(np.uint32).tolist()


def test_its_products_by_hand():
    x, w, dy = matrices(128, 256, 384)
    state, machine = Seeds(), {"accumulator": "blackwell_nvfp4", "promote_every": None}
    ops = linear_ops(SPEC, "bfloat16", None, state)
    y, saved = ops.fprop(x, w)
    q = [lp.quantize(v, "nvfp4_4over6_mse") for v in (x, lp.round_to(w, "bfloat16"))]
    assert bits(y) == bits(lp.gemm(*q, out_format="bfloat16", **machine))
    d_signs, w_signs = state.seed("dgrad.signs"), state.seed("wgrad.signs")
    row = eden(dy, state.seed("dgrad.dy"), d_signs)
    column = eden(turned(q[1].dequantize()), state.seed("dgrad.w"), d_signs, True)
    dx = ops.dgrad(dy, saved)
    assert bits(dx) == bits(lp.gemm(row, column, out_format="bfloat16", **machine))
    row = eden(turned(dy), state.seed("wgrad.dy"), w_signs, True)
    column = eden(turned(q[0].dequantize()), state.seed("wgrad.x"), w_signs, True)
    dw = ops.wgrad(dy, saved)
    assert bits(dw) == bits(lp.gemm(row, column, out_format="float32", **machine))
    assert [bits(g) for g in ops.gradients(dy, x, w)] == [bits(dx), bits(dw)]


def test_seeds_decide_and_products_have_signs_of_their_own():
    x, w, dy = matrices(128, 128, 128)
    first, again, other = (
        [bits(g) for g in linear_ops(SPEC, "bfloat16", None, Seeds(step)).gradients(dy, x, w)] for step in (1, 1, 2)
    )
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert SPEC.stateful
    assert not lp.recipes["quartet2"].uses_stochastic_rounding  # nothing of its forward pass is


def test_gradients_are_unbiased_where_those_to_nearest_are_not():
    """Along the exact product of what is requantized: MS-EDEN's mean length is 1, nearest rounding's is less."""
    x, w, dy = matrices(128, 128, 128, 3)
    w = lp.round_to(w, "bfloat16")
    exact = dy.astype(np.float64) @ lp.quantize_dequantize(w, "nvfp4_4over6_mse").astype(np.float64)

    def length(spec):
        """Return its mean, and the error of the mean."""
        ops = (linear_ops(spec, "float32", None, Seeds(step)) for step in range(60))
        shares = [np.sum(o.gradients(dy, x, w, (True, False))[0] * exact) / np.sum(exact * exact) for o in ops]
        return np.mean(shares), np.std(shares) / np.sqrt(len(shares))

    mean, error = length(SPEC)
    assert abs(mean - 1) < 4 * error + 1e-4
    mean, error = length(SPEC.with_(dgrad=dict.fromkeys("ab", "nvfp4_te resample_signs hadamard128")))
    assert mean < 1 - 10 * error


@pytest.mark.parametrize(("tokens", "n", "k"), [(37, 160, 192), (128, 16, 48), (1, 128, 128)])
def test_ragged_sizes_are_filled_up_with_zeros(tokens, n, k):
    x, w, dy = matrices(tokens, n, k)
    found = linear_ops(SPEC, "bfloat16", None, Seeds()).gradients(dy, x, w)
    for ours, exact in zip(found, (dy @ w, dy.T @ x), strict=True):
        assert ours.shape == exact.shape
        assert np.linalg.norm(ours - exact) < 0.4 * np.linalg.norm(exact)


def test_the_weight_that_fprop_multiplied():
    x, w, dy = matrices(128, 128, 256)
    spec = LinearSpec.from_tensors("e4m3fn 1x128", "e4m3fn 1x128", "e4m3fn 1x128", "hopper_fp8", 128)
    again, bf16 = spec.with_(dgrad_weight="dequantized"), LinearSpec()
    row = lp.quantize(lp.round_to(w, "bfloat16"), "e4m3fn 1x128")
    dy_row, column = (lp.quantize(v, "e4m3fn 1x128") for v in (dy, turned(row.dequantize())))
    wanted = lp.gemm(dy_row, column, accumulator="hopper_fp8", promote_every=128, out_format="bf16")
    ours, plain, of_bf16, cached_bf16 = (
        bits(linear_ops(s, "bfloat16").gradients(dy, x, w)[0])
        for s in (again, spec, bf16, bf16.with_(dgrad_weight="dequantized"))
    )
    assert ours == bits(wanted) != plain
    assert of_bf16 == cached_bf16
    assert LayerPrecision.from_key(LayerPrecision(again).key).spec == again
    assert "dgrad_weight" not in LayerPrecision(spec).key
    assert "w as Fprop had it" in linear_ops(again, "bfloat16").words("dgrad")


def test_what_is_not_finite_stays_in_its_group():
    x = np.random.default_rng(5).standard_normal((4, 256)).astype(np.float32)
    clean = x.copy()
    x[1, 3], x[2, 200] = np.nan, np.inf
    q = lp.Quantizer("", "e2m1fn", "1x16", "e4m3fn", lp.AmaxRule("direct"), hadamard_size=128, hadamard_signs=4)
    ours = quantize_eden(x, q, 9)
    lost = np.isnan(ours.scale)
    assert np.argwhere(lost).tolist() == [[1, i] for i in range(8)] + [[2, i] for i in range(8, 16)]
    clean[1, :128] = clean[2, 128:] = 0
    wanted = quantize_eden(clean, q, 9)
    assert np.array_equal(ours.scale[~lost], wanted.scale[~lost])
    assert ours.tensor_scale == wanted.tensor_scale
    assert quantize_eden(np.zeros((0, 128), np.float32), q, 0).shape == (0, 128)
