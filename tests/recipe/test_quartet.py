"""Quartet II's recipe: its backward operands by hand, unbiased over seeds, ragged sizes, and what is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from lowprec.recipe import LinearSpec, TensorSpec, linear_ops
from lowprec.recipe.operations import NoState
from lowprec.scaling.eden import parts, quantize_eden

F32 = NDArray[np.float32]
SPEC = lp.recipes["quartet2"].main


class Seeds(NoState):
    """Seeds that a test can say again: by operand, in a step."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def seed(self, operand: str) -> int:
        return sum(operand.encode()) * 1000 + self.step


def matrices(tokens: int, n: int, k: int, seed: int = 0) -> tuple[F32, F32, F32]:
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, k), (n, k), (tokens, n)))
    return lp.round_to(x, "bfloat16"), w, lp.round_to(dy * 1e-3, "bfloat16")


def eden(x: F32, seed: int, signs: int, turned: bool = False) -> lp.Quantized:
    """MS-EDEN along the rows of x; where the operand lies along columns, random words follow the turned scales."""
    codes, scale, factor, tensor = parts(lp.hadamard(x, 128, signs), 128)
    wanted = (scale * np.repeat(factor, 8, axis=1)).astype(np.float32)
    wanted = np.ascontiguousarray(wanted.T) if turned else wanted
    rounded = lp.round_to(wanted, "e4m3fn", rounding="stochastic", seed=seed)
    rounded = np.ascontiguousarray(rounded.T) if turned else rounded
    return lp.Quantized(codes, rounded, "e2m1fn", "1x16", "e4m3", tensor)


def bits(a: F32) -> list[int]:
    return np.asarray(a).view(np.uint32).ravel().tolist()


def test_its_products_by_hand() -> None:
    x, w, dy = matrices(128, 256, 384)
    state = Seeds()
    ops = linear_ops(SPEC, "bfloat16", None, state)
    y, saved = ops.fprop(x, w)
    q = [lp.quantize(v, quantizer="nvfp4_4over6_mse") for v in (x, lp.round_to(w, "bfloat16"))]
    machine = {"accumulator": "blackwell_nvfp4", "promote_every": None}
    assert bits(y) == bits(lp.gemm(*q, out="bfloat16", **machine))
    row, column = (
        eden(dy, state.seed("dgrad.dy"), state.seed("dgrad.signs")),
        eden(np.ascontiguousarray(q[1].dequantize().T), state.seed("dgrad.w"), state.seed("dgrad.signs"), True),
    )
    assert bits(ops.dgrad(dy, saved)) == bits(lp.gemm(row, column, out="bfloat16", **machine))
    row, column = (
        eden(np.ascontiguousarray(v.T), state.seed(f"wgrad.{name}"), state.seed("wgrad.signs"), True)
        for v, name in ((dy, "dy"), (q[0].dequantize(), "x"))
    )
    assert bits(ops.wgrad(dy, saved)) == bits(lp.gemm(row, column, out="float32", **machine))
    dx, dw = ops.gradients(dy, x, w)
    assert (bits(dx), bits(dw)) == (bits(ops.dgrad(dy, saved)), bits(ops.wgrad(dy, saved)))


def test_seeds_decide_and_products_have_signs_of_their_own() -> None:
    x, w, dy = matrices(128, 128, 128)

    def gradients(step: int) -> list[list[int]]:
        return [bits(g) for g in linear_ops(SPEC, "bfloat16", None, Seeds(step)).gradients(dy, x, w)]

    assert gradients(1) == gradients(1)
    assert all(a != b for a, b in zip(gradients(1), gradients(2), strict=True))
    assert SPEC.stateful
    assert not lp.recipes["quartet2"].stochastic  # nothing of its forward pass is


def test_gradients_are_unbiased_where_those_to_nearest_are_not() -> None:
    """Along the exact product of what is requantized: MS-EDEN's mean length is 1, nearest rounding's is less."""
    x, w, dy = matrices(128, 128, 128, 3)
    wq = lp.quantize_dequantize(lp.round_to(w, "bfloat16"), quantizer="nvfp4_4over6_mse").astype(np.float64)
    exact = dy.astype(np.float64) @ wq
    nearest = SPEC.with_(dgrad={"a": "nvfp4_te fresh hadamard128", "b": "nvfp4_te fresh hadamard128"})
    found = {}
    for name, spec in (("eden", SPEC), ("nearest", nearest)):
        shares = []
        for step in range(60):
            ops = linear_ops(spec, "float32", None, Seeds(step))
            dx = ops.gradients(dy, x, lp.round_to(w, "bfloat16"), (True, False))[0]
            shares.append(float(np.sum(dx * exact) / np.sum(exact * exact)))
        found[name] = np.mean(shares), np.std(shares) / np.sqrt(len(shares))
    mean, error = found["eden"]
    assert abs(mean - 1) < 4 * error + 1e-4
    mean, error = found["nearest"]
    assert mean < 1 - 10 * error


@pytest.mark.parametrize("shape", [(37, 160, 192), (128, 16, 48), (1, 128, 128)])
def test_ragged_sizes_are_filled_up_with_zeros(shape: tuple[int, int, int]) -> None:
    tokens, n, k = shape
    x, w, dy = matrices(tokens, n, k)
    ops = linear_ops(SPEC, "bfloat16", None, Seeds())
    dx, dw = ops.gradients(dy, x, w)
    assert dx is not None
    assert dw is not None
    assert (dx.shape, dw.shape) == ((tokens, k), (n, k))
    for ours, exact in ((dx, dy @ w), (dw, dy.T @ x)):
        assert np.linalg.norm(ours - exact) < 0.4 * np.linalg.norm(exact)


def test_the_weight_that_fprop_multiplied() -> None:
    x, w, dy = matrices(128, 128, 256)
    spec = LinearSpec.of("e4m3fn 1x128", "e4m3fn 1x128", "e4m3fn 1x128", "hopper_fp8", 128)
    again = spec.with_(dgrad_weight="cached")
    row = lp.quantize(lp.round_to(w, "bfloat16"), "e4m3fn", "1x128")
    column = lp.quantize(np.ascontiguousarray(row.dequantize().T), "e4m3fn", "1x128")
    wanted = lp.gemm(
        lp.quantize(dy, "e4m3fn", "1x128"), column, accumulator="hopper_fp8", promote_every=128, out="bf16"
    )
    ours, plain = (linear_ops(s, "bfloat16").gradients(dy, x, w)[0] for s in (again, spec))
    assert bits(ours) == bits(wanted) != bits(plain)
    assert LinearSpec.from_text(again.to_text()) == again
    assert "dgrad_weight" not in spec.to_text()
    assert "w as Fprop had it" in linear_ops(again, "bfloat16").words("dgrad")
    bf16 = LinearSpec(dgrad_weight="cached")
    assert bits(linear_ops(bf16, "bfloat16").gradients(dy, x, w)[0]) == bits(
        linear_ops(LinearSpec(), "bfloat16").gradients(dy, x, w)[0]
    )


def test_what_is_not_finite_stays_in_its_group() -> None:
    x = np.random.default_rng(5).standard_normal((4, 256)).astype(np.float32)
    clean = x.copy()
    x[1, 3], x[2, 200] = np.nan, np.inf
    q = lp.Quantizer(format="e2m1fn", granularity="1x16", scale="e4m3", arithmetic="plain", hadamard=128, signs=4)
    ours = quantize_eden(x, q, 9)
    lost = np.isnan(ours.scale)
    assert np.argwhere(lost).tolist() == [[1, i] for i in range(8)] + [[2, i] for i in range(8, 16)]
    clean[1, :128] = clean[2, 128:] = 0
    wanted = quantize_eden(clean, q, 9)
    assert np.array_equal(ours.scale[~lost], wanted.scale[~lost])
    assert ours.tensor_scale == wanted.tensor_scale
    assert quantize_eden(np.zeros((0, 128), np.float32), q, 0).shape == (0, 128)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nvfp4_te eden", "need a transform"), ("nvfp4_te fresh", "need a transform"),
        ("e4m3fn 1x128 eden hadamard16", "takes an NVFP4 quantizer"), ("bfloat16 eden", "without blocks"),
        ("nvfp4_te eden stochastic hadamard32", "no element stochastically"),
        ("nvfp4_te_2d eden hadamard16", "blocks of 1x16"), ("nvfp4_te eden hadamard8", "16 or more"),
    ],
)  # fmt: skip
def test_what_is_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorSpec.parse(words)
    assert str(TensorSpec.parse("hadamard32 eden nvfp4_te fresh")) == "nvfp4_te fresh eden hadamard32"
