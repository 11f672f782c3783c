"""Errors put into products: their size, their bits, and where a recipe has them."""

import numpy as np
import pytest
from refusals import refusals

import lowprec as lp
from lowprec.recipe import LinearSpec, Recipe
from lowprec.recipe.disturbance import Disturbance
from lowprec.recipe.linears import BF16_LINEAR


def product(seed=0, shape=(64, 96)):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("gain", "noise"), [(-0.03, 0.0), (0.0, 0.05), (-0.02, 0.3)])
def test_errors_have_the_size_and_the_bias_that_was_asked(gain, noise):
    d = product().astype(np.float64)
    off = Disturbance(gain, noise).apply(product(), 7) - d
    assert np.sum(off * d) / np.sum(d * d) == pytest.approx(gain, abs=1e-6 + 3 * noise / np.sqrt(d.size))
    across = off - gain * d
    assert np.sqrt(np.sum(across**2) / np.sum(d * d)) == pytest.approx(noise, rel=0.03, abs=1e-6)
    assert abs(across.mean()) <= 4 * noise / np.sqrt(d.size) + 1e-6
    assert np.abs(across).max() <= 1.7321 * noise * np.sqrt(np.mean(d**2)) + 1e-6


def test_bits_follow_from_product_seed_and_place():
    d, off = product(), Disturbance(-0.01, 0.1).apply
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
        got = Disturbance(-0.5, 0.5).apply(d.astype(np.float32), 0)
        assert got.shape == d.shape
        assert np.array_equal(got, expected, equal_nan=True)


def test_words_and_back():
    error = Disturbance(-0.03, 1e-05)
    assert Disturbance.parse(str(error)) == error
    assert Disturbance.parse("") is None
    assert Disturbance.parse(Disturbance()) is None
    assert Disturbance.parse(" noise=2 ") == Disturbance(0.0, 2.0)


test_refused = refusals([
    (f"Disturbance.parse({text!r})", "disturbance")
    for text in (
        "gain", "gain=x", "bias=0.1", "gain=0.1 gain=0.2", "noise=-1", "gain=-1.5", "gain=1e999", "noise=nan",
        "gain=1.2.3", 0.1,
    )
], lambda: {"Disturbance": Disturbance})  # fmt: skip


def test_a_recipe_with_errors_goes_through_toml_and_says_so():
    recipe = lp.recipes["bf16"].with_(wgrad={"disturbance": "gain=-0.01 noise=0.02"})
    spec = recipe.spec("layers.0.attn.wo")
    assert (spec.wgrad.disturbance, spec.fprop.disturbance) == (Disturbance(-0.01, 0.02), None)
    assert recipe.spec("layers.0.ffn.gate").wgrad.disturbance is None
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert "disturbed by gain=-0.01 noise=0.02" in str(spec)
    everywhere = lp.recipes["dsv3"].with_(disturbance="noise=0.1").spec("layers.1.ffn.experts.0.w2")
    assert {g.disturbance for g in (everywhere.fprop, everywhere.dgrad, everywhere.wgrad)} == {Disturbance(0, 0.1)}
    assert "disturbance" not in lp.recipes["dsv3"].to_toml()


@pytest.mark.parametrize("plain", [BF16_LINEAR, LinearSpec(out="float32")], ids=["activations", "float32"])
def test_a_layer_holds_it_before_rounding(plain):
    """A gain smaller than half a step of bfloat16 would vanish if it came after the rounding."""
    x, w, dy = product(1, (32, 128)), product(2, (16, 128)), product(3, (32, 16))
    x, dy = lp.round_to(x, "bfloat16"), lp.round_to(dy, "bfloat16")

    def products(spec):
        ops = lp.recipes["bf16"].with_(name="r", rules=(lp.recipe.Rule("head", spec),)).bind(5).linear("head")
        y, saved = ops.fprop(x, w)
        return y.astype(np.float64), ops.dgrad(dy, saved), ops.wgrad(dy, saved)

    gain = plain.with_(fprop={"disturbance": "gain=0.0005"}, wgrad={"disturbance": "gain=-0.25"})
    (y, dx, dw), (y_off, dx_off, dw_off) = products(plain), products(gain)
    assert (y != y_off).mean() > 0.05
    assert np.mean(y_off * y) / np.mean(y**2) == pytest.approx(1.0005, abs=2e-4)
    assert np.array_equal(dx, dx_off)
    assert np.array_equal(dw_off, (0.75 * dw.astype(np.float64)).astype(np.float32))


def test_noise_differs_by_layer_product_step_and_seed():
    recipe = lp.recipes["float32"].with_(disturbance="noise=0.1")
    x, w = product(1, (8, 128)), product(2, (8, 128))

    def first(seed, step, layer):
        bound = recipe.bind(seed)
        bound.begin_step(step)
        return bound.linear(layer).fprop(x, w)[0].tobytes()

    ways = [first(*way) for way in ((0, 0, "head"), (1, 0, "head"), (0, 1, "head"), (0, 0, "layers.0.attn.wo"))]
    assert len(set(ways)) == 4
    assert first(0, 1, "head") == ways[2]
