"""Recipes that change some layers, by name, in what they multiply and how their output leaves: the router first."""

import re

import numpy as np
import pytest

import lowprec as lp
from lowprec.moe.model.config import configs
from lowprec.moe.model.model import Model
from lowprec.recipe import Recipe, recipes
from lowprec.recipe.table import rows

GATE = "layers.*.ffn.gate"
IN_FLOAT32 = {"x": "float32", "w": "float32", "dy": "float32", "out": "float32"}


def operands(rows=70, k=200, n=8):
    rng = np.random.default_rng(0)
    x = lp.round_to(rng.standard_normal((rows, k)).astype(np.float32), "bfloat16")
    return x, rng.standard_normal((n, k), dtype=np.float32), rng.standard_normal((rows, n), dtype=np.float32)


def router(base, **change):
    return recipes[base].with_(layers={GATE: change})


def products(recipe, layer="layers.1.ffn.gate"):
    x, w, dy = operands()
    ops = recipe.bind(layers=3).linear(layer)
    y, saved = ops.fprop(x, w)
    return y, ops.dgrad(dy, saved), ops.wgrad(dy, saved)


def bf16(x):
    return lp.round_to(x, "bfloat16")


@pytest.mark.parametrize("base", ["bf16", "dsv3", "nvfp4"])
def test_logits_and_operands_of_the_router(base):
    x, w, dy = operands()
    exact, narrow = lp.matmul_f32(x, w), lp.matmul_f32(x, bf16(w))
    y, dx, dw = products(recipes[base])  # as it is: BF16 operands, BF16 logits, the gradient as it comes
    assert np.array_equal(y, bf16(narrow))
    assert np.array_equal(dx, bf16(lp.matmul_f32(dy, bf16(w).T)))
    assert np.array_equal(dw, lp.matmul_f32(dy.T, x.T))
    assert not np.array_equal(y, narrow)

    y, dx, _ = products(router(base, out="float32"))
    assert np.array_equal(y, narrow)
    assert np.array_equal(dx, lp.matmul_f32(dy, bf16(w).T))

    for layer in ("layers.1.ffn.gate", "layers.2.ffn.gate"):  # the last block too, where NVFP4 has a rule of its own
        y, dx, dw = products(router(base, **IN_FLOAT32), layer)
        assert np.array_equal(y, exact)
        assert np.array_equal(dx, lp.matmul_f32(dy, w.T))
        assert np.array_equal(dw, lp.matmul_f32(dy.T, x.T))
    assert not np.array_equal(exact, narrow)


def test_logits_alone_in_bf16():
    x, w, _ = operands()
    y = products(router("float32", out="bfloat16"))[0]
    assert np.array_equal(y, bf16(lp.matmul_f32(x, w)))
    # Output that is left to the activations follows them.
    y = products(recipes["bf16"].with_(activations="float32"))[0]
    assert np.array_equal(y, lp.matmul_f32(x, bf16(w)))


def test_other_layers_stay_as_they_are():
    changed, base = router("dsv3", **IN_FLOAT32), recipes["dsv3"]
    for layer in ("head", "layers.1.attn.wo", "layers.0.ffn.w1", "layers.1.ffn.experts.3.w2", "layers.1.ffn.shared.w1"):
        assert changed.spec(layer) == base.spec(layer)


def test_the_choice_of_experts_sees_it():
    tokens = np.random.default_rng(0).integers(0, 256, (2, 33)).astype(np.uint8)

    def scores(recipe):
        model = Model(configs["nano"], recipe, seed=0)
        _, saved = model._forward(model.params, tokens[:, :-1])
        return [routing.scores for routing in saved.routings if routing]

    as_it_is, same, wider = map(scores, (recipes["bf16"], router("bf16", out="bfloat16"), router("bf16", **IN_FLOAT32)))
    assert all(np.array_equal(a, b) for a, b in zip(as_it_is, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(as_it_is, wider, strict=True))


def test_words_and_back():
    recipe = router("dsv3", **IN_FLOAT32)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    text = 'base = "dsv3"\nlayers."layers.*.ffn.gate" = {x = "float32", w = "float32", dy = "float32", out = "float32"}'
    assert Recipe.from_toml(text) == recipe
    text = 'base = "dsv3"\n[layers."layers.*.attn.wo"]\nfprop = {promote_every = "never"}\n'
    output = Recipe.from_toml(text).spec("layers.1.attn.wo")
    assert (output.fprop.promote_every, output.dgrad.promote_every) == (None, 128)


def test_the_precision_map_shows_it():
    said = {row.what: row.precision for row in rows(router("dsv3", out="float32")) if row.part == "ffn.gate"}
    assert said == {
        "Fprop": "bfloat16 x bfloat16 on float32, y in float32",
        "Dgrad": "float32 x bfloat16 on float32, dx in float32",
        "Wgrad": "float32 x bfloat16 on float32",
    }
    assert str(router("dsv3", **IN_FLOAT32).spec("layers.1.ffn.gate")) == "float32 on float32, y and dx in float32"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            {"layers.*.ffn.gat": {}},
            "'layers.*.ffn.gat' matches no layer of any model: did you mean 'layers.0.ffn.gate'",
        ),
        ({GATE: {"y": "float32"}}, "a linear layer has no 'y'; what can change is fprop"),
        ({GATE: {"out": "flaot32"}}, "unknown format 'flaot32': did you mean 'float32'"),
        ({GATE: "float32"}, "a mapping from patterns of names to what changes"),
        ("float32", "layers='float32': a mapping from patterns"),
        ({"layers.*.ffn.*": {"out": "float32"}}, "'layers.*.ffn.*' differ in precision, so change them one by one"),
    ],
)
def test_changes_that_cannot_be(layers, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        recipes["dsv3"].with_(layers=layers)


def test_blocks_that_rules_single_out_are_told_apart():
    with pytest.raises(ValueError, match="differ in precision"):  # the last block of this recipe is in BF16
        recipes["nvfp4"].with_(layers={"layers.*.attn.wo": {"out": "float32"}})
    one = recipes["nvfp4"].with_(layers={"layers.-1.attn.wo": {"x": "float32"}})
    assert [str(one.spec(f"layers.{i}.attn.wo", 3).x) for i in (1, 2)] == ["nvfp4_te", "float32"]


def test_later_patterns_refine_earlier_ones():
    layers = {"layers.*.attn.wo": {"x": "e5m2 1x128"}, "layers.0.attn.wo": {"promote_every": 64}}
    recipe = recipes["dsv3"].with_(layers=layers)
    specs = [recipe.spec(f"layers.{i}.attn.wo").fprop for i in (0, 1)]
    assert [(str(spec.a), spec.promote_every) for spec in specs] == [("e5m2 1x128", 64), ("e5m2 1x128", 128)]
