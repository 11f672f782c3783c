"""What of a recipe is not a pure function of its input, what a forward pass depends on, errors put into products."""

import numpy as np
import pytest
from recipe_operands import operands
from refusals import refusals

import lowprec as lp
from lowprec.moe.model.model import Model
from lowprec.recipe import LinearSpec, Recipe, recipes
from lowprec.recipe.injected_error import InjectedError
from lowprec.recipe.linears import BF16_LINEAR


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
    bound, again = (recipes["te_delayed"].with_(x="te_delayed amax_history2").bind() for _ in range(2))
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
    "wgrad_input": "high_precision",
    "moments": "float32",
    "dispatch_grad": "e5m2_1x128",
    "combine_grad": "e5m2_1x128",
    "saved_swiglu_input": "mxfp4_floor",
    "saved_attention_output": "mxfp4_floor",
}


@pytest.fixture(scope="module")
def losses():
    """Return what gives the losses of some text in a recipe."""
    model = Model("nano", "bf16", seed=0)
    return lambda recipe: model.with_recipe(recipe).token_losses(TOKENS).tobytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", list(recipes))
def test_the_forward_part_gives_the_bits_of_the_whole(name, losses):
    assert losses(recipes[name]) == losses(recipes[name].forward_fields)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["bf16", "dsv3", "te_current", "nvfp4"])
def test_what_is_left_out_changes_no_bit_and_no_part(name, losses):
    other = recipes[name].with_(**BACKWARD)
    assert other != recipes[name]
    assert losses(other) == losses(recipes[name])
    if name != "bf16":  # a change of all quantized layers makes some there
        assert other.forward_fields == recipes[name].forward_fields


@pytest.mark.parametrize("change", [{"x": "e5m2 1x128"}, {"dispatch": "bf16"}, {"fprop": {"promote_every": 64}}])
def test_what_a_forward_pass_does_is_in_it(change):
    assert recipes["dsv3"].with_(**change).forward_fields != recipes["dsv3"].forward_fields


def test_which_recipes_draw_and_which_remember():
    assert [name for name in recipes if recipes[name].uses_delayed_scaling] == ["te_delayed"]
    assert not any(recipes[name].uses_stochastic_rounding for name in recipes)  # nvfp4 rounds gradients alone so
    assert recipes["nvfp4"].with_(fprop={"a": "nvfp4_te stochastic"}).uses_stochastic_rounding


# --- errors put into products -----------------------------------------------------------------------------------------


def product(seed=0, shape=(64, 96)):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("gain", "noise"), [(-0.03, 0.0), (0.0, 0.05), (-0.02, 0.3)])
def test_errors_have_the_size_and_the_bias_that_was_asked(gain, noise):
    d = product().astype(np.float64)
    off = InjectedError(gain, noise).apply(product(), 7) - d
    assert np.sum(off * d) / np.sum(d * d) == pytest.approx(gain, abs=1e-6 + 3 * noise / np.sqrt(d.size))
    across = off - gain * d
    assert np.sqrt(np.sum(across**2) / np.sum(d * d)) == pytest.approx(noise, rel=0.03, abs=1e-6)
    assert abs(across.mean()) <= 4 * noise / np.sqrt(d.size) + 1e-6
    assert np.abs(across).max() <= 1.7321 * noise * np.sqrt(np.mean(d**2)) + 1e-6


def test_bits_follow_from_product_seed_and_place():
    d, off = product(), InjectedError(-0.01, 0.1).apply
    before = d.tobytes()
    first = off(d, 3)
    assert d.tobytes() == before
    assert first.tobytes() == off(d, 3).tobytes() == off(np.asfortranarray(d), 3).tobytes()
    for seed in (4, 3 + (1 << 32)):
        assert (first != off(d, seed)).mean() > 0.99


ODD = [np.zeros((2, 3)), np.empty((0, 3)), np.full((2, 2), np.nan), np.full((2, 2), np.inf)]


def test_odd_products_stay_what_they_are():
    pairs = [*((d, d) for d in ODD), (np.array([[1.0, np.inf]]), np.array([[0.5, np.inf]]))]
    for d, expected in pairs:
        got = InjectedError(-0.5, 0.5).apply(d.astype(np.float32), 0)
        assert got.shape == d.shape
        assert np.array_equal(got, expected, equal_nan=True)


def test_words_and_back():
    error = InjectedError(-0.03, 1e-05)
    assert InjectedError.parse(str(error)) == error
    assert InjectedError.parse("") is None
    assert InjectedError.parse(InjectedError()) is None
    assert InjectedError.parse(" noise=2 ") == InjectedError(0.0, 2.0)


test_refused = refusals([
    (f"InjectedError.parse({text!r})", "injected_error")
    for text in (
        "gain", "gain=x", "bias=0.1", "gain=0.1 gain=0.2", "noise=-1", "gain=-1.5", "gain=1e999", "noise=nan",
        "gain=1.2.3", "frozen noise=0.1 frozen", "frozen", 0.1,
    )
], lambda: {"InjectedError": InjectedError})  # fmt: skip


def test_a_recipe_with_errors_goes_through_toml_and_says_so():
    recipe = lp.recipes["bf16"].with_(wgrad={"injected_error": "gain=-0.01 noise=0.02"})
    spec = recipe.spec("layers.0.attn.wo")
    assert (spec.wgrad.injected_error, spec.fprop.injected_error) == (InjectedError(-0.01, 0.02), None)
    assert recipe.spec("layers.0.ffn.gate").wgrad.injected_error is None
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert "disturbed by gain=-0.01 noise=0.02" in str(spec)
    frozen = recipe.with_(wgrad={"injected_error": "noise=0.02 frozen"})
    assert Recipe.from_toml(frozen.to_toml()) == frozen != recipe.with_(wgrad={"injected_error": "noise=0.02"})
    everywhere = lp.recipes["dsv3"].with_(injected_error="noise=0.1").spec("layers.1.ffn.experts.0.w2")
    assert {g.injected_error for g in (everywhere.fprop, everywhere.dgrad, everywhere.wgrad)} == {InjectedError(0, 0.1)}
    assert "injected_error" not in lp.recipes["dsv3"].to_toml()


@pytest.mark.parametrize("plain", [BF16_LINEAR, LinearSpec(out_format="float32")], ids=["activations", "float32"])
def test_a_layer_holds_it_before_rounding(plain):
    """A gain smaller than half a step of bfloat16 would vanish if it came after the rounding."""
    x, w, dy = product(1, (32, 128)), product(2, (16, 128)), product(3, (32, 16))
    x, dy = lp.round_to(x, "bfloat16"), lp.round_to(dy, "bfloat16")

    def products(spec):
        ops = lp.recipes["bf16"].with_(name="r", rules=(lp.recipe.LayerRule("head", spec),)).bind(5).linear("head")
        y, saved = ops.fprop(x, w)
        return y.astype(np.float64), ops.dgrad(dy, saved), ops.wgrad(dy, saved)

    gain = plain.with_(fprop={"injected_error": "gain=0.0005"}, wgrad={"injected_error": "gain=-0.25"})
    (y, dx, dw), (y_off, dx_off, dw_off) = products(plain), products(gain)
    assert (y != y_off).mean() > 0.05
    assert np.mean(y_off * y) / np.mean(y**2) == pytest.approx(1.0005, abs=2e-4)
    assert np.array_equal(dx, dx_off)
    assert np.array_equal(dw_off, (0.75 * dw.astype(np.float64)).astype(np.float32))


def test_noise_differs_by_layer_product_step_and_seed():
    recipe = lp.recipes["float32"].with_(injected_error="noise=0.1")
    x, w = product(1, (8, 128)), product(2, (8, 128))

    def first(seed, step, layer):
        bound = recipe.bind(seed)
        bound.begin_step(step)
        return bound.linear(layer).fprop(x, w)[0].tobytes()

    ways = [first(*way) for way in ((0, 0, "head"), (1, 0, "head"), (0, 1, "head"), (0, 0, "layers.0.attn.wo"))]
    assert len(set(ways)) == 4
    assert first(0, 1, "head") == ways[2]
    recipe = lp.recipes["float32"].with_(injected_error="noise=0.1 frozen")
    ways = [first(*way) for way in ((0, 0, "head"), (1, 0, "head"), (0, 1, "head"), (0, 0, "layers.0.attn.wo"))]
    assert len(set(ways)) == 3
    assert ways[0] == ways[2]
