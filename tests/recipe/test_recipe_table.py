"""A recipe's table says what its layers do: what it prints is read again, done by hand, and compared."""

import re

import numpy as np
import pytest
from recipe_operands import operands

import lowprec as lp
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.run.trainer import Schedule, Trainer
from lowprec.recipe import GemmSpec, recipes
from lowprec.recipe.operands import quantize_operand
from lowprec.recipe.table import precision_rows, to_markdown

_STORES = {"BF16": "bfloat16", "float32": "float32", "float64": None}
PLAIN = {"a": "bfloat16", "b": "bfloat16", "accumulator": "float32", "promote_every": None}
GATE = "layers.*.ffn.gate"
IN_FLOAT32 = {"x": "float32", "w": "float32", "dy": "float32", "out_format": "float32"}
E4M3 = "e4m3fn 1x128 x e4m3fn 128x128 on hopper_fp8, promoted every 128"
COLUMNS = "e4m3fn 1x128 x e4m3fn 1x128 on hopper_fp8, promoted every 128"
BF16, RAW = "bfloat16 x bfloat16 on float32", "float32 x bfloat16 on float32"
ALL_FLOAT32 = ["float32 x float32 on float32" + out for out in (", y in float32", ", dx in float32", "")]
#: Recipes that differ from one of the catalogue, a layer, and what its three products are then.
VARIED = [
    ("dsv3", {"dy": "e5m2 1x128", "dgrad": {"promote_every": 32}}, "attn.wq_a",
     [E4M3, "e5m2 1x128 x e4m3fn 128x128 on hopper_fp8, promoted every 32", COLUMNS.replace("e4m3fn", "e5m2", 1)]),
    ("dsv3", {"wgrad_input": "high_precision"}, "attn.wq_a", [E4M3, E4M3, COLUMNS + ", x from its source"]),
    ("dsv3", {"w": "e4m3fn 1x128"}, "attn.wq_a", [COLUMNS] * 3),  # blocks that are not square, in each direction
    ("dsv3", {"dgrad": PLAIN, "wgrad": PLAIN, "wgrad_input": "high_precision"}, "attn.wq_a",
     [E4M3, BF16, BF16 + ", x from its source"]),
    ("dsv3", {"fprop": PLAIN, "wgrad_input": "high_precision"}, "attn.wq_a",
     [BF16, E4M3, COLUMNS + ", x from its source"]),
    ("dsv3", {"saved_attention_output": "e5m6_1x128_ue8m0"}, "attn.wq_a", [E4M3, E4M3, COLUMNS]),
    ("bf16", {"accumulator": "hopper_bf16"}, "attn.wq_a", ["bfloat16 x bfloat16 on hopper_bf16"] * 3),
    ("bf16", {"w": "e4m3fn 128x128"}, "attn.wq_a", [BF16.replace("x bfloat16", "x e4m3fn 128x128")] * 2 + [BF16]),
    ("bf16", {"weight_source": "float32"}, "attn.wq_a", [BF16] * 3),
    ("bf16", {"activations": "float32"}, "ffn.gate", [BF16, RAW, RAW]),
    ("float32", {"layers": {GATE: {"out_format": "bfloat16"}}}, "ffn.gate",
     [words.replace(" in float32", " in bfloat16") for words in ALL_FLOAT32]),
    *((base, {"layers": {GATE: {"out_format": "float32"}}}, "ffn.gate",
       [BF16 + ", y in float32", RAW + ", dx in float32", RAW]) for base in ("bf16", "dsv3", "nvfp4")),
    *((base, {"layers": {GATE: IN_FLOAT32}}, "ffn.gate", ALL_FLOAT32) for base in ("bf16", "dsv3", "nvfp4")),
]  # fmt: skip
ONE_BLOCK = recipes["bf16"].with_(name="one block", layers={"layers.2.attn.wo": {"x": "e4m3fn 1x128"}})


RECIPES = [
    *(recipes[base].with_(**changes) for base, changes, *_ in VARIED),
    *(recipes[name] for name in recipes.names()),
    recipes["dsv3"].with_(name="dsv3 in float64", activations="float64", storage={"layers.*.attn.q": "fp8_1x128"}),
    recipes["dsv3"].with_(name="dsv3 in float32", activations="float32"),
    recipes["float32"].with_(name="fp8 wires in float32", dispatch="fp8_1x128", saved_swiglu_input="fp8_1x128"),
    recipes["te_block"].with_(name="cached and from the source", saved_attention_output="e5m6_1x128_ue8m0"),
    recipes["bf16"].with_(name="stochastic weights", w="e4m3fn stochastic"),
    recipes["bf16"].with_(name="whole moments", moments="float64"),
    ONE_BLOCK,
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def rows_of(recipe, part=None):
    """Return the table, or of one part what it says of it."""
    return [row for row in precision_rows(recipe) if part is None or row.part == part]


def in_words(layer, recipe):
    """Return what the table says of a layer's three multiplications."""
    of_layer = {}
    for row in precision_rows(recipe):
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
    words, _, left_in = words.removesuffix(", x from its source").replace(", dx in ", ", y in ").partition(", y in ")
    text, _, place = words.removesuffix(", never promoted").partition(" on ")
    sides = text.split(" x ")
    drawn = {"stochastic", "resample_signs", "eden"} & {*text.split()}
    if drawn or any(lp.quantizers[s.split()[0]].amax_history_len for s in sides if s.split()[0] in lp.quantizers):
        return None
    named = re.fullmatch(r"(\S+?)(?: by (\w+))?(?:, promoted every (\d+))?", place)
    accumulator, library, every = named.groups()
    spec = GemmSpec(*sides, accumulator, None if every is None else int(every), library or "deepgemm")
    weight = lp.round_to(b, "bfloat16") if copied and not spec.b.plain else b
    return lp.gemm(
        quantize_operand(spec.a, a), quantize_operand(spec.b, weight), accumulator=spec.accumulator,
        promote_every=spec.promote_every,
        library=spec.library, out_format=left_in or stored,
    )  # fmt: skip


@pytest.mark.parametrize(("base", "changes", "layer", "words"), VARIED)
def test_a_change_is_printed(base, changes, layer, words):
    recipe = recipes[base].with_(**changes)
    assert in_words(layer, recipe) == words
    assert all(line in to_markdown(recipe) for line in words)


@pytest.mark.sampled(24)
@every_recipe
@pytest.mark.parametrize("layer", ["attn.wq_a", "attn.wo", "ffn.gate", "ffn.experts.w2", "head"])
def test_what_is_printed_of_the_products_is_what_happens(recipe, layer):
    bound = recipe.bind(seed=1, layers=4)
    x, w, dy = (a.astype(bound.dtype) for a in operands())
    w = np.random.default_rng(5).standard_normal(w.shape).astype(bound.dtype)  # a master weight has more than 8 bits
    if recipe.activations != "bfloat16":
        x, dy = (a * 1.0001 for a in (x, dy))
    if layer == "ffn.gate":  # whose output's gradient comes in float32
        dy = dy * 1.0001
    ops = bound.linear(layer if layer == "head" else f"layers.1.{layer}".replace("experts.", "experts.0."))
    y, saved = ops.fprop(x, w)
    fprop, dgrad, wgrad = in_words(layer, recipe)
    copied = [row.precision for row in rows_of(recipe, "weights")] == ["their BF16 copy"]
    read, cache = x, bound.cache("attention_output")
    if layer == "attn.wo" and cache is not None:
        read = cache.round_trip(x)
    elif not wgrad.endswith(", x from its source") and not isinstance(saved.x.row, np.ndarray):
        read = saved.x.row.dequantize()
    for words, result, a, b, stored, copy in (
        (fprop, y, x, w, recipe.activations, copied),
        (dgrad, ops.dgrad(dy, saved), dy, w.T, recipe.activations, copied),
        (wgrad, ops.wgrad(dy, saved), dy.T, read.T, "float32", False),
    ):
        want = product(words, a, b, stored, copy)
        assert result.dtype == bound.dtype
        if want is None:
            assert {"stochastic", "te_delayed", "resample_signs"} & {*words.split()}
        else:
            assert np.array_equal(result, want), words


@every_recipe
def test_wires_and_caches_are_what_is_printed(recipe):
    bound = recipe.bind(layers=4)
    x = np.random.default_rng(3).standard_normal((4, 256)).astype(bound.dtype)
    wires = rows_of(recipe, "wire")
    assert len(wires) == 4
    for row in wires:
        through, plain = bound.codec(row.what.partition(":")[0]).round_trip(x), row.precision.startswith("as it is, ")
        assert through.dtype == bound.dtype or not plain
        assert np.array_equal(through, x if plain else lp.codecs[row.precision].round_trip(x))
        assert np.array_equal(through, x) == plain
    swiglu, kept = bound.cache("swiglu_input"), {r.what: r.precision for r in rows_of(recipe, "kept for backward")}
    assert (swiglu is None) == kept["swiglu input"].startswith("as it is, ")
    assert swiglu is None or swiglu is lp.codecs[kept["swiglu input"]]
    # What comes of attention is kept by the linear layer after it.
    wo = bound.linear("layers.1.attn.wo").input(x).kept
    assert isinstance(wo, type(lp.codecs["bf16"].encode(x))) == (not kept["attention output"].startswith("as it is, "))


@every_recipe
def test_stores_are_what_is_printed(recipe):
    bound = recipe.bind(layers=4)
    x = np.random.default_rng(4).standard_normal((4, 256)).astype(bound.dtype)
    (row,) = rows_of(recipe, "activations")
    store = _STORES[row.precision]
    assert np.array_equal(bound.store(x.copy()), x if store is None else lp.round_to(x, store))
    for rule in recipe.storage:
        (row,) = rows_of(recipe, rule.pattern)
        got = bound.storage(rule.pattern.replace("*", "1"))(x.copy())
        assert np.array_equal(got, x if row.precision == "float64" else lp.codecs[row.precision].round_trip(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "master"),
    [("bf16", None), ("bf16", "bfloat16"), ("float32", "float64"), ("float64", None), ("dsv3", None)],
)
def test_the_optimizer_keeps_what_is_printed(name, master):
    recipe = recipes[name].with_(master_weights=master) if master else recipes[name]
    trainer = Trainer("nano", recipe, load_corpus("synthetic"), seed=0, schedule=Schedule(1e-3, 0, 2))
    trainer.step()
    (m, v), (weights, gradients) = (row.precision.split(", ") for row in rows_of(recipe, "optimizer"))
    params = list(trainer.model.params.values())
    for text, kept in ((m, trainer.optimizer.m), (v, trainer.optimizer.v)):
        assert {array.dtype for array in kept.values()} == {np.dtype(text if text.startswith("float") else np.uint16)}
    if weights.startswith("float"):
        assert {array.dtype for array in params} == {np.dtype(weights)}
    narrow = weights if not weights.startswith("float") else "bfloat16"
    assert all(np.array_equal(lp.round_to(p, narrow), p) for p in params) == (narrow == weights)
    x = trainer.corpus.train[:17].reshape(1, 17)
    assert {str(g.dtype) for g in trainer.model.loss_and_grads(x)[1].values()} == {gradients}


def test_a_block_of_its_own_has_a_line():
    assert [row.precision for row in rows_of(ONE_BLOCK, "layers.2.attn.wo")]
    assert "e4m3fn" not in in_words("attn.wo", ONE_BLOCK)[0]
