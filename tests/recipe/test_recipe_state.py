"""What of a recipe is not a pure function of its input, and what of it a forward pass depends on."""

import numpy as np
import pytest
from recipe_operands import operands

import lowprec as lp
from lowprec.moe.model.model import Model
from lowprec.recipe import recipes


def test_random_bits_follow_from_seed_step_layer_and_tensor():
    x, w, dy = operands(k=208)

    def gradients(layer="layers.0.attn.wo", step=3, seed=7):
        bound = recipes["nvfp4"].bind(seed=seed, layers=4)
        bound.begin_step(step)
        ops = bound.linear(layer)
        saved = ops.fprop(x, w)[1]
        return ops.dgrad(dy, saved).tobytes(), ops.wgrad(dy, saved).tobytes()

    assert gradients() == gradients()
    for other in ({"step": 4}, {"layer": "layers.1.attn.wo"}, {"seed": 8}):
        assert all(a != b for a, b in zip(gradients(**other), gradients(), strict=True))
    bound = recipes["nvfp4"].bind(seed=7, layers=4)
    seeds = {bound.draw(f"layers.{i}.attn.wo/{gemm}.dy") for i in range(20) for gemm in ("dgrad", "wgrad")}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_nvfp4_operands_are_those_of_its_quantizers():
    (x, w, dy), machine = operands(rows=64, k=208, n=96), {"accumulator": "blackwell_nvfp4", "promote_every": None}
    bound = recipes["nvfp4"].bind(seed=7, layers=4)
    bound.begin_step(2)
    ops = bound.linear("layers.0.attn.wo")
    y, saved = ops.fprop(x, w)
    qx, qw = lp.quantize(x, "nvfp4_te"), lp.quantize(w, "nvfp4_te_2d")
    assert np.array_equal(y, lp.gemm(qx, qw, out_format="bfloat16", **machine))
    turned = lp.quantizers["nvfp4_te_rht"].with_(granularity="16x1")
    seed = bound.draw("layers.0.attn.wo/wgrad.dy")
    column = lp.quantize(dy, turned, rounding="stochastic", seed=seed).T
    dw = lp.gemm(column, lp.quantize(x, turned).T, **machine)
    assert np.array_equal(ops.wgrad(dy, saved), dw)


@pytest.mark.parametrize(("rows", "within"), [(64, 0.25), (21, 0.3)])  # whole blocks of 16, and zeros in the last
def test_hadamard_transforms_cancel(rows, within):
    x, w, dy = operands(rows=rows, k=208, n=96)
    ops, exact = recipes["nvfp4"].bind(seed=7, layers=4).linear("layers.0.attn.wo"), dy.T.astype(float) @ x
    dw = ops.wgrad(dy, ops.fprop(x, w)[1])
    assert np.linalg.norm(dw - exact) < within * np.linalg.norm(exact)


def test_delayed_scales_come_from_earlier_steps():
    bound, again = (recipes["te_delayed"].with_(x="te_delayed history2").bind() for _ in range(2))
    (x, w, dy), scales = operands(), []
    for step in range(4):
        bound.begin_step(step)
        ops = bound.linear("layers.0.attn.wo")
        _, saved = ops.fprop(x * np.float32(2.0**-step), w)
        ops.wgrad(dy, saved)
        with bound.evaluating():
            ops.fprop(x * np.float32(1000), w)
        scales.append(float(saved.x.row.scale[0, 0]))
    # A history of 2: of a step and the last.
    multipliers = [np.float32(448) / (np.abs(x).max() * np.float32(2.0**-i)) for i in (0, 0, 1)]
    assert scales == [1.0, *(float(np.float32(1) / m) for m in multipliers)]

    again.load_state_dict(bound.state_dict())
    bound.begin_step(4)
    again.begin_step(4)
    (y, saved), (same, _) = (run.linear("layers.0.attn.wo").fprop(x, w) for run in (bound, again))
    assert np.array_equal(y, same)
    assert float(saved.x.row.scale[0, 0]) != 1.0


# --- the part that a forward pass depends on: what is left out changes no bit -----------------------------------------


TOKENS = np.frombuffer(b"what of it does a forward pass depend on, and what not? " * 3, np.uint8)[None, :129].copy()
BACKWARD = {
    "dgrad": {"a": "e5m2 1x128", "b": "e4m3fn 1x128", "accumulator": "float32"},
    "wgrad": {"a": "e5m2 1x128", "b": "e4m3fn 1x128", "accumulator": "float32"},
    "wgrad_input": "source",
    "moments": "float32",
    "dispatch_grad": "e5m2_1x128",
    "combine_grad": "e5m2_1x128",
    "cache_swiglu_input": "mxfp4_floor",
    "cache_attention_output": "mxfp4_floor",
}


@pytest.fixture(scope="module")
def losses():
    """Return what gives the losses of some text in a recipe."""
    model = Model("nano", "bf16", seed=0)
    return lambda recipe: model.with_recipe(recipe).token_losses(TOKENS).tobytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", list(recipes))
def test_the_forward_part_gives_the_bits_of_the_whole(name, losses):
    assert losses(recipes[name]) == losses(recipes[name].forward)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["bf16", "dsv3", "te_current", "nvfp4"])
def test_what_is_left_out_changes_no_bit_and_no_part(name, losses):
    other = recipes[name].with_(**BACKWARD)
    assert other != recipes[name]
    assert losses(other) == losses(recipes[name])
    if name != "bf16":  # a change of all quantized layers makes some there
        assert other.forward == recipes[name].forward


@pytest.mark.parametrize("change", [{"x": "e5m2 1x128"}, {"dispatch": "bf16"}, {"fprop": {"promote_every": 64}}])
def test_what_a_forward_pass_does_is_in_it(change):
    assert recipes["dsv3"].with_(**change).forward != recipes["dsv3"].forward


def test_which_recipes_draw_and_which_remember():
    assert [name for name in recipes if recipes[name].remembers] == ["te_delayed"]
    assert not any(recipes[name].stochastic for name in recipes)  # nvfp4 rounds gradients alone so
    assert recipes["nvfp4"].with_(fprop={"a": "nvfp4_te stochastic"}).stochastic
