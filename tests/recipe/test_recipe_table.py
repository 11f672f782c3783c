"""A recipe's table says what its layers do: what it prints is read again, done by hand, and compared."""

import re

import numpy as np
import pytest
from recipe_operands import operands

import lowprec as lp
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.run.trainer import Schedule, Trainer
from lowprec.recipe import GemmSpec, recipes
from lowprec.recipe.table import rows

_STORES = {"BF16": "bfloat16", "float32": "float32", "float64": None}
RECIPES = [
    *(recipes[name] for name in recipes.names()),
    recipes["dsv3"].with_(name="dsv3 in float64", activations="float64", storage={"layers.*.attn.q": "fp8_1x128"}),
    recipes["dsv3"].with_(name="dsv3 in float32", activations="float32"),
    recipes["float32"].with_(name="fp8 wires in float32", dispatch="fp8_1x128", cache_swiglu_input="fp8_1x128"),
    recipes["te_block"].with_(name="cached and from the source", cache_attention_output="e5m6_1x128_ue8m0"),
    recipes["bf16"].with_(name="stochastic weights", w="e4m3fn stochastic"),
    recipes["bf16"].with_(name="whole moments", moments="float64"),
    recipes["bf16"].with_(name="one block", layers={"layers.2.attn.wo": {"x": "e4m3fn 1x128"}}),
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def said(recipe, part=None):
    """Return the table, or of one part what it says of it."""
    return [row for row in rows(recipe) if part is None or row.part == part]


def in_words(layer, recipe):
    """Return what the table says of a layer's three multiplications."""
    of_layer = {}
    for row in rows(recipe):
        last = ""
        for group in row.part.split("; "):
            for name in group.split(", "):
                last = name.rpartition(".")[0] if "." in name else last
                full = f"{last}.{name}" if last and "." not in name and name not in ("head", "projection") else name
                if full == layer:
                    of_layer[row.what] = row.precision
    return [of_layer[gemm] for gemm in ("Fprop", "Dgrad", "Wgrad")]


def product(words, a, b, stored, copied):
    """Return what a line's words give for rows a and b, weights; None where random bits or earlier steps decide."""
    if words == "float64 x float64 in NumPy":
        return a @ b.T
    words, _, left_in = words.partition(", y in ")
    text, _, place = words.removesuffix(", never promoted").partition(" on ")
    sides = text.split(" x ")
    drawn = {"stochastic", "fresh", "eden"} & {*text.split()}
    if drawn or any(lp.quantizers[s.split()[0]].history for s in sides if s.split()[0] in lp.quantizers):
        return None
    named = re.fullmatch(r"(\S+?)(?: by (\w+))?(?:, promoted every (\d+))?", place)
    accumulator, library, every = named.groups()
    spec = GemmSpec(*sides, accumulator, None if every is None else int(every), library or "deepgemm")
    weight = lp.round_to(b, "bfloat16") if copied and not spec.b.plain else b
    return lp.gemm(
        spec.a.quantize(a), spec.b.quantize(weight), accumulator=spec.summed_by, promote_every=spec.promote_every,
        library=spec.library, out=left_in or stored,
    )  # fmt: skip


@pytest.mark.sampled(23)
@every_recipe
@pytest.mark.parametrize("layer", ["attn.wq_a", "attn.wo", "ffn.gate", "ffn.experts.w2", "head"])
def test_what_is_printed_of_fprop_is_what_happens(recipe, layer):
    bound = recipe.bind(seed=1, layers=4)
    x, w, _ = operands()
    if recipe.activations == "float64":
        x, w = x + 1e-9, w + 1e-9  # no bfloat16 and no float32 numbers
    else:
        w += np.float32(1e-6)
    name = layer if layer == "head" else f"layers.1.{layer}".replace("experts.", "experts.0.")
    y, _ = bound.linear(name).fprop(x.astype(bound.dtype), w.astype(bound.dtype))
    assert y.dtype == bound.dtype
    words = in_words(layer, recipe)
    copied = [row.precision for row in said(recipe, "weights")] == ["their BF16 copy"]
    want = product(words[0], x.astype(bound.dtype), w.astype(bound.dtype), recipe.activations, copied)
    if want is None:
        assert "stochastic" in words[0] or "delayed" in words[0]
    else:
        assert np.array_equal(y, want), words[0]


@pytest.mark.sampled(12)
@every_recipe
def test_what_is_printed_of_the_backward_products_is_what_happens(recipe):
    bound = recipe.bind(seed=1, layers=4)
    ops = bound.linear("layers.1.attn.wq_a")
    x, w, dy = operands()
    w = w + np.float32(1e-6)
    if recipe.activations == "float64":
        x, w, dy = (v.astype(np.float64) + 1e-9 for v in (x, w, dy))
    _, saved = ops.fprop(x, w)
    _, dgrad, wgrad = in_words("attn.wq_a", recipe)
    copied = [row.precision for row in said(recipe, "weights")] == ["their BF16 copy"]
    source = wgrad.endswith(", x from its source") or isinstance(saved.x.row, np.ndarray)
    read = x if source else saved.x.row.dequantize()
    for words, result, a, b, stored, copy in (
        (dgrad, ops.dgrad(dy, saved), dy, w.T, recipe.activations, copied),
        (wgrad, ops.wgrad(dy, saved), dy.T, read.T, "float32", False),
    ):
        want = product(words.removesuffix(", x from its source"), a, b, stored, copy)
        assert result.dtype == bound.dtype
        if want is None:
            assert {"stochastic", "te_delayed", "fresh"} & {*words.split()}
        else:
            assert np.array_equal(result, want), words


@every_recipe
def test_wires_and_caches_are_what_is_printed(recipe):
    bound = recipe.bind(layers=4)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 256)).astype(bound.dtype)
    for row in said(recipe, "wire"):
        through = bound.codec(row.what.partition(":")[0]).round_trip(x)
        if row.precision.startswith("as it is, "):
            assert np.array_equal(through, x)
            assert through.dtype == bound.dtype
        else:
            assert np.array_equal(through, lp.codecs[row.precision].round_trip(x))
            assert not np.array_equal(through, x)
    swiglu = bound.cache("swiglu_input")
    kept = {row.what: row.precision for row in said(recipe, "kept for backward")}
    assert (swiglu is None) == kept["swiglu input"].startswith("as it is, ")
    assert swiglu is None or swiglu is lp.codecs[kept["swiglu input"]]
    # What comes of attention is kept by the linear layer after it.
    wo = bound.linear("layers.1.attn.wo").input(x).kept
    assert isinstance(wo, type(lp.codecs["bf16"].encode(x))) == (not kept["attention output"].startswith("as it is, "))


@every_recipe
def test_stores_are_what_is_printed(recipe):
    bound = recipe.bind(layers=4)
    x = np.random.default_rng(4).standard_normal((4, 256)).astype(bound.dtype)
    (row,) = said(recipe, "activations")
    store = _STORES[row.precision]
    assert np.array_equal(bound.store(x.copy()), x if store is None else lp.round_to(x, store))
    for rule in recipe.storage:
        (row,) = said(recipe, rule.pattern)
        got = bound.storage(rule.pattern.replace("*", "1"))(x.copy())
        assert np.array_equal(got, x if row.precision == "float64" else lp.codecs[row.precision].round_trip(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "master"),
    [("bf16", None), ("bf16", "bfloat16"), ("float32", "float64"), ("float64", None), ("dsv3", None)],
)
def test_the_optimizer_keeps_what_is_printed(name, master):
    recipe = recipes[name] if master is None else recipes[name].with_(master=master)
    trainer = Trainer("nano", recipe, load_corpus("synthetic"), seed=0, schedule=Schedule(1e-3, 0, 2))
    trainer.step()
    moments, weights = (row.precision.split(", ") for row in said(recipe, "optimizer"))
    params = list(trainer.model.params.values())
    for text, kept in ((moments[0], trainer.optimizer.m), (moments[1], trainer.optimizer.v), (weights[0], None)):
        arrays = params if kept is None else list(kept.values())
        for array in arrays:
            if text in ("float32", "float64"):
                assert array.dtype == text
            elif kept is None:
                assert np.array_equal(lp.round_to(array, text), array)
            else:
                assert array.dtype == np.uint16
    if text in ("float32", "float64"):
        assert any(not np.array_equal(lp.round_to(p, "bfloat16"), p) for p in params)
    x = trainer.corpus.train[:17].reshape(1, 17)
    gradients = trainer.model.loss_and_grads(x)[1]
    assert {str(g.dtype) for g in gradients.values()} == {weights[1]}


def test_a_block_of_its_own_has_a_line():
    (recipe,) = (r for r in RECIPES if r.name == "one block")
    assert [row.precision for row in said(recipe, "layers.2.attn.wo")]
    assert "e4m3fn" not in in_words("attn.wo", recipe)[0]
