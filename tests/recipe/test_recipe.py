"""Recipes as data: words for one operand, rules by name, and variations of them."""

import dataclasses

import numpy as np
import pytest

import lowprec as lp
from lowprec.moe.model.config import configs
from lowprec.recipe import LinearSpec, Rule, Storage, TensorSpec, recipes
from lowprec.recipe.names import LINEARS, matches
from lowprec.recipe.table import as_text, rows

LAYERS = [name for name, shape in configs["tiny"].parameter_shapes().items() if len(shape) == 2 and name != "embed"]


# --- words for one operand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["e4m3fn 1x128", "e5m2 tensor ue8m0", "e2m1fn 16x16 floor=0.0001", "bfloat16", "e4m3fn row", "float32"]
)
def test_a_tensor_reads_what_it_prints(text):
    assert str(TensorSpec.parse(text)) == text
    spec = TensorSpec.parse(text)
    assert TensorSpec.parse(spec) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e4m3 1x128x", "unknown word '1x128x'.*did you mean '1x128'"),
        ("e4m3fm 1x128", "unknown word 'e4m3fm'.*did you mean 'e4m3fn'"),
        ("1x128", "an element format is missing"),
        ("e4m3fn e5m2 1x128", "'e5m2' is the second format"),
        ("e4m3fn 1x128 128x128", "'128x128' is the second granularity"),
        ("e4m3fn 0x128", "granularity='0x128'"),
        ("e4m3fn 1x128 floor=1e", "cannot read the number in 'floor=1e'"),
    ],
)
def test_a_tensor_that_cannot_be(text, message):
    with pytest.raises(ValueError, match=message):
        TensorSpec.parse(text)


def test_words_that_contradict_each_other():
    with pytest.raises(ValueError, match="history goes with delayed scaling"):
        TensorSpec.parse("te_current history4")
    with pytest.raises(ValueError, match="has no scales and no transform"):
        TensorSpec.parse("bfloat16 hadamard16")
    with pytest.raises(ValueError, match="hadamard"):
        TensorSpec.parse("nvfp4_te hadamard15")


# --- rules -----------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_model():
    mtp = dataclasses.replace(configs["tiny"], mtp_depth=1).parameter_shapes()
    linears = {name for name, shape in mtp.items() if len(shape) == 2 and name != "embed"}
    assert {".".join("0" if part.isdigit() else part for part in name.split(".")) for name in linears} == set(LINEARS)


@pytest.mark.parametrize("name", sorted(recipes.names()))
def test_what_stays_out_of_the_narrow_formats(name):
    recipe = recipes[name]
    for layer in ("head", "layers.2.ffn.gate"):
        assert not recipe.spec(layer, 4).quantized
    if recipe.main.quantized:
        assert all(
            recipe.spec(layer, 9).quantized for layer in LAYERS if layer not in ("head",) and "gate" not in layer
        )


def test_rules_may_count_from_the_end():
    assert matches("layers.3.attn.wo", "layers.-1.*", 4)
    assert not matches("layers.2.attn.wo", "layers.-1.*", 4)
    assert not matches("layers.3.attn.wo", "layers.-1.*")
    recipe = recipes["dsv3"].with_(protect=["layers.-1.*", "layers.0.*"])
    inside = [recipe.spec(f"layers.{i}.attn.wo", 4).quantized for i in range(4)]
    assert inside == [False, True, True, False]
    with pytest.raises(ValueError, match=r"'layers.-1.\*' counts from the last block"):
        recipe.bind()
    with pytest.raises(ValueError, match=r"'layers.9.\*' names a block that a model of 4 layers lacks"):
        recipes["dsv3"].with_(protect="layers.9.*").bind(0, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule("layers.*.atn.w*", LinearSpec()), r"'layers.\*.atn.w\*' matches no layer.*did you mean"),
        (lambda: Rule("layers.0.attn.wo_a", LinearSpec()), "did you mean .*'layers.0.attn.wo'"),
        (lambda: Storage("layers.0.attn.w", "bf16"), "did you mean"),
        (lambda: Storage("embed", "bf17"), "unknown codec 'bf17': did you mean 'bf16'"),
        (lambda: recipes["bf16"].with_(combine="logfmt99"), "unknown codec 'logfmt99'"),
        (lambda: recipes["bf16"].with_(moment_m="bfloat61"), "unknown word 'bfloat61'"),
        (lambda: recipes["bf16"].with_(activations="fp8"), "activations='fp8'"),
        (lambda: recipes["bf16"].with_(dispach="bf16"), "Recipe has no 'dispach'"),
        (lambda: recipes["dsv3"].bind().codec("dispach"), "direction 'dispach': one of dispatch"),
        (lambda: recipes["dsv3"].bind().cache("swiglu"), "cache 'swiglu': one of attention_output"),
    ],
)
def test_unknown_names(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_storage_by_name():
    recipe = recipes["bf16"].with_(storage=(Storage("layers.*.attn.q", "fp8_1x128"),))
    bound = recipe.bind()
    x = np.random.default_rng(0).standard_normal((4, 2, 96)).astype(np.float32)
    want = lp.codecs["fp8_1x128"].round_trip(x)
    y = x.copy()
    assert bound.storage("layers.2.attn.q")(y) is y
    assert np.array_equal(y, want)
    y = x.copy()
    assert np.array_equal(bound.storage("layers.2.attn.k")(y), lp.round_to(x, "bfloat16"))


def test_variations_in_one_line():
    dsv3 = recipes["dsv3"]
    changed = dsv3.with_(promote_every=None)
    assert changed.name == "dsv3(promote_every=never)"
    assert changed.main == recipes["dsv3_no_promotion"].main
    assert changed.spec("head") == dsv3.spec("head")
    assert dsv3.with_(accumulator="exact").main.wgrad.accumulator == "exact"
    assert dsv3.with_(moments="float32").moment_v == "float32"
    assert dsv3.with_(quantize="head").spec("head") == dsv3.main
    assert not dsv3.with_(protect="layers.*.attn.*").spec("layers.1.attn.wo").quantized
    everywhere = recipes["bf16"].with_(x="e4m3fn 1x128")  # none is quantized: those of the blocks are meant
    assert [everywhere.spec(f"layers.1.ffn.{name}").quantized for name in ("gate", "w1")] == [False, True]


# --- on paper --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes.names())
def test_the_table_says_it_all(name):
    table = rows(recipes[name])
    said = as_text(recipes[name])
    spec = recipes[name].main
    for gemm in ("fprop", "dgrad", "wgrad"):
        assert ("float64 x float64" if name == "float64" else str(getattr(spec, gemm))) in said
    assert {row.part for row in table} >= {"wire", "kept for backward", "optimizer"}
    assert recipes[name].dispatch in said or recipes[name].activations != "bfloat16"
