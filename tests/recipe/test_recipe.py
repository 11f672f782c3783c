"""Recipes as data: words for one operand, rules by name, and variations of them."""

import dataclasses

import numpy as np
import pytest
from recipe_operands import operands
from refusals import refusals

import lowprec as lp
from lowprec.moe.model.config import configs
from lowprec.moe.model.model import Model
from lowprec.recipe import GemmSpec, LayerRule, LinearSpec, Recipe, StorageRule, TensorSpec, recipes
from lowprec.recipe.names import LINEARS, matches

LAYERS = [name for name, shape in configs["tiny"].parameter_shapes().items() if len(shape) == 2 and name != "embed"]
GATE = "layers.*.ffn.gate"
IN_FLOAT32 = {"x": "float32", "w": "float32", "dy": "float32", "out_format": "float32"}

test_refused = refusals(
    [
        ("TensorSpec.parse('e4m3 1x128x')", "unknown word '1x128x'.*did you mean '1x128'"),
        ("TensorSpec.parse('e4m3fm 1x128')", "unknown word 'e4m3fm'.*did you mean 'e4m3fn'"),
        ("TensorSpec.parse('1x128')", "spec must name an element format, such as 'e4m3fn', got '1x128'"),
        ("TensorSpec.parse('e4m3fn e5m2 1x128')", "spec must have one word for format, got 'e5m2' as the"),
        ("TensorSpec.parse('e4m3fn 1x128 128x128')", "spec must have one word for granularity, got '128x128' as the"),
        ("TensorSpec.parse('e4m3fn 0x128')", "granularity must be rows x columns such as '1x128' or"),
        ("TensorSpec.parse('e4m3fn 1x128 floor=1e')", "'e4m3fn 1x128 floor=1e': floor must be a number, got"),
        ("TensorSpec.parse('te_current amax_history4')",
         r"a history must be of delayed"),
        ("TensorSpec.parse('bfloat16 hadamard16')", "spec must name a granularity, such as '1x128', got 'bfloat16"),
        ("TensorSpec.parse('nvfp4_te hadamard15')", "hadamard"),
        ("TensorSpec.parse('nvfp4_te eden')",
         "quantizer must have a transform such as 'hadamard128' with eden,"),
        ("TensorSpec.parse('nvfp4_te resample_signs')",
         "quantizer must have a transform such as 'hadamard128' with resample_signs,"),
        ("TensorSpec.parse('e4m3fn 1x128 eden hadamard16')", "e4m3fn 1x128 eden hadamard16: quantizer must be"),
        ("TensorSpec.parse('bfloat16 eden')",
         "resample_signs and eden must be False without a quantizer, got resample_signs=False"),
        ("TensorSpec.parse('nvfp4_te eden stochastic hadamard32')", "nvfp4_te stochastic eden hadamard32:"),
        ("TensorSpec.parse('nvfp4_te_2d eden hadamard16')", "blocks of 1x16"),
        ("TensorSpec.parse('nvfp4_te eden hadamard8')", "16 or more"),
        ("GemmSpec(a='e2m1fn 1x16', accumulator='hopper_fp8')", "hopper_fp8: operands must be of e4m3fn, e5m2, got"),
        ("GemmSpec(accumulator='hoper_fp8')", "unknown accumulator 'hoper_fp8': did you mean 'hopper_fp8'"),
        ("GemmSpec(accumulator='hopper_fp8(bits=3)')", r"unknown field 'bits' in accumulator 'hopper_fp8\(bits=3\)'"),
        ("GemmSpec(promote_every=0)", "promote_every must be an integer >= 1 or None, got 0"),
        ("GemmSpec(injected_error='much')", "injected_error must be words such as .* frozen', got 'much'"),
        ("LayerRule('layers.*.atn.w*', LinearSpec())", r"'layers.\*.atn.w\*' matches no layer.*did you mean"),
        ("LayerRule('layers.0.attn.wo_a', LinearSpec())", "did you mean .*'layers.0.attn.wo'"),
        ("StorageRule('layers.0.attn.w', 'bf16')", "did you mean"),
        ("StorageRule('embed', 'bf17')", "unknown codec 'bf17': did you mean 'bf16'"),
        ("bf16.with_(combine='logfmt99')", "unknown codec 'logfmt99'"),
        ("bf16.with_(attention='fa3_fp8 plain')",
         "attention: the word after 'fa3_fp8' must be 'kernel_gradient' or 'plain_gradient', got 'plain'"),
        ("bf16.with_(moment_m='bfloat61')", "unknown word 'bfloat61'"),
        ("bf16.with_(activations='fp8')", r"Recipe bf16\(activations=fp8\): activations must be one of 'bfloat16',"),
        ("bf16.with_(weight_source='float16')", "weight_source must be 'bfloat16' or 'float32', got 'float16'"),
        ("bf16.with_(dispach='bf16')", TypeError, "unknown field 'dispach': expected one of name, description,"),
        ("dsv3.bind().codec('dispach')", "direction must be one of dispatch, combine, dispatch_grad, combine_grad,"),
        ("dsv3.bind().cache('swiglu')", "role must be one of attention_output, swiglu_input, got 'swiglu'"),
        ("dsv3.with_(protect='layers.-1.*').bind()", r"'layers.-1.\*' counts from the last block"),
        ("dsv3.with_(protect='layers.9.*').bind(0, 4)", r"pattern must name a block of a model of 4 layers, got"),
        ("dsv3.with_(layers={'layers.*.ffn.gat': {}})",
         r"'layers.\*.ffn.gat' matches no layer of any model: did you mean 'layers.0.ffn.gate'"),
        ("dsv3.with_(layers={GATE: {'y': 'float32'}})", TypeError,
         r"layers 'layers.\*.ffn.gate': unknown field 'y' of a linear layer: expected one of"),
        ("dsv3.with_(layers={GATE: {'out_format': 'flaot32'}})", "unknown format 'flaot32': did you mean 'float32'"),
        ("dsv3.with_(layers={GATE: 'float32'})", TypeError, "layers must be a mapping from patterns of names to"),
        ("dsv3.with_(layers='float32')", TypeError, "layers must be a mapping from patterns of names to mappings"),
        ("dsv3.with_(layers={'layers.*.ffn.*': {'out_format': 'float32'}})",
         r"layers 'layers.\*.ffn.\*' differ in precision; change them one by one:"),
        # the last block of this recipe is in BF16
        ("lp.recipes['nvfp4'].with_(layers={'layers.*.attn.wo': {'out_format': 'float32'}})", "differ in precision"),
    ],
    lambda: {cls.__name__: cls for cls in (TensorSpec, GemmSpec, LinearSpec, LayerRule, StorageRule)}
    | {"GATE": GATE, "bf16": recipes["bf16"], "dsv3": recipes["dsv3"]},
)  # fmt: skip


# --- words for one operand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "e4m3fn 1x128", "e5m2 tensor ue8m0", "e2m1fn 16x16 floor=0.0001", "bfloat16", "e4m3fn row", "float32",
    "nvfp4_te resample_signs eden hadamard32",
])  # fmt: skip
def test_a_tensor_reads_what_it_prints(text):
    spec = TensorSpec.parse(text)
    assert str(spec) == text
    assert TensorSpec.parse(spec) == TensorSpec.parse(" ".join(reversed(text.split()))) == spec


# --- rules -----------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_model():
    mtp = dataclasses.replace(configs["tiny"], mtp_depth=1).parameter_shapes()
    linears = {name for name, shape in mtp.items() if len(shape) == 2 and name != "embed"}
    assert {".".join("0" if part.isdigit() else part for part in name.split(".")) for name in linears} == set(LINEARS)


@pytest.mark.parametrize("name", sorted(recipes.names()))
def test_what_stays_out_of_the_narrow_formats(name):
    recipe, narrow = recipes[name], [layer for layer in LAYERS if layer != "head" and "gate" not in layer]
    assert not any(recipe.spec(layer, 4).quantized for layer in ("head", "layers.2.ffn.gate"))
    assert not recipe.typical_linear.quantized or all(recipe.spec(layer, 9).quantized for layer in narrow)


def test_rules_may_count_from_the_end():
    assert matches("layers.3.attn.wo", "layers.-1.*", 4)
    assert not matches("layers.2.attn.wo", "layers.-1.*", 4)
    assert not matches("layers.3.attn.wo", "layers.-1.*")
    recipe = recipes["dsv3"].with_(protect=["layers.-1.*", "layers.0.*"])
    assert [recipe.spec(f"layers.{i}.attn.wo", 4).quantized for i in range(4)] == [False, True, True, False]


def test_storage_by_name():
    bound = recipes["bf16"].with_(storage=(StorageRule("layers.*.attn.q", "fp8_1x128"),)).bind()
    x = np.random.default_rng(0).standard_normal((4, 2, 96)).astype(np.float32)
    y = x.copy()
    assert bound.storage("layers.2.attn.q")(y) is y
    assert np.array_equal(y, lp.codecs["fp8_1x128"].round_trip(x))
    assert np.array_equal(bound.storage("layers.2.attn.k")(x.copy()), lp.round_to(x, "bfloat16"))


def test_variations_in_one_line():
    dsv3 = recipes["dsv3"]
    changed = dsv3.with_(promote_every=None)
    assert changed.name == "dsv3(promote_every=never)"
    assert changed.typical_linear == recipes["dsv3_no_promotion"].typical_linear
    assert changed.spec("head") == dsv3.spec("head")
    assert dsv3.with_(accumulator="exact").typical_linear.wgrad.accumulator == lp.accumulators["exact"]
    assert dsv3.with_(moments="float32").moment_v == TensorSpec.parse("float32")
    assert dsv3.with_(quantize="head").spec("head") == dsv3.typical_linear
    assert not dsv3.with_(protect="layers.*.attn.*").spec("layers.1.attn.wo").quantized
    everywhere = recipes["bf16"].with_(x="e4m3fn 1x128")  # none is quantized: those of the blocks are meant
    assert [everywhere.spec(f"layers.1.ffn.{name}").quantized for name in ("gate", "w1")] == [False, True]


# --- multiplications --------------------------------------------------------------------------------------------------


def test_every_multiplication_has_its_own_machine_and_operands():
    spec = LinearSpec.from_tensors("e4m3fn 1x128", "e4m3fn 128x128", "e5m2 1x128", "hopper_fp8", 128)
    changed = spec.with_(fprop={"accumulator": "exact"}, dgrad={"promote_every": 64}, dy="e4m3fn 1x32")
    assert changed.fprop.accumulator == lp.accumulators["exact"]
    assert changed.dgrad.accumulator == lp.accumulators["hopper_fp8"]
    assert (changed.dgrad.promote_every, changed.wgrad.promote_every) == (64, 128)
    assert [str(t) for t in changed.tensors("wgrad")] == ["e4m3fn 1x32", "e4m3fn 1x128"]
    assert str(changed.dgrad.a) == "e4m3fn 1x32"


def test_an_accumulator_of_ones_own():
    machine = lp.accumulators["hopper_fp8"].with_(fraction_bits=20, align="nearest")
    spec = GemmSpec("e4m3fn 1x128", "e4m3fn 1x128", machine, 128)
    assert spec.accumulator is machine
    assert spec.accumulator_summary == "on hopper_fp8(fraction_bits=20, align=nearest), promoted every 128"
    assert GemmSpec(spec.a, spec.b, spec.accumulator, 128) == spec


def test_an_input_can_be_shared():
    bound = recipes["dsv3"].bind()
    x, w, _ = operands()
    first, second = bound.linear("layers.0.ffn.w1"), bound.linear("layers.0.ffn.w3")
    assert first.input_spec == second.input_spec
    assert first.input_spec != bound.linear("layers.1.ffn.experts.0.w1").input_spec
    y, saved = second.fprop(x, w, cached=first.input(x))
    assert np.array_equal(y, second.fprop(x, w)[0])
    assert saved.x.nbytes == 70 * 200 + 70 * 2 * 4


# --- some layers by name, the router first ---------------------------------------------------------------------------


def router(base, **change):
    return recipes[base].with_(layers={GATE: change})


def test_changes_of_some_layers_leave_the_others():
    changed, base = router("dsv3", **IN_FLOAT32), recipes["dsv3"]
    for layer in ("head", "layers.1.attn.wo", "layers.0.ffn.w1", "layers.1.ffn.experts.3.w2", "layers.1.ffn.shared.w1"):
        assert changed.spec(layer) == base.spec(layer)
    for name in ("bf16", "dsv3", "nvfp4"):  # the last block too, where NVFP4 has a rule of its own
        for layer in ("layers.1.ffn.gate", "layers.2.ffn.gate"):
            assert str(router(name, **IN_FLOAT32).spec(layer, 3)) == "float32 on float32, y and dx in float32"


def test_the_choice_of_experts_sees_it():
    tokens = np.random.default_rng(0).integers(0, 256, (2, 33)).astype(np.uint8)

    def scores(recipe):
        model = Model(configs["nano"], recipe, seed=0)
        _, saved = model._forward(model.params, tokens[:, :-1])
        return [routing.scores.tobytes() for routing in saved.routings if routing]

    as_it_is, same, wider = map(
        scores, (recipes["bf16"], router("bf16", out_format="bfloat16"), router("bf16", **IN_FLOAT32))
    )
    assert as_it_is == same != wider


def test_layers_in_words_and_back():
    recipe = router("dsv3", **IN_FLOAT32)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    fields = 'x = "float32", w = "float32", dy = "float32", out_format = "float32"'
    text = f'base = "dsv3"\nlayers."layers.*.ffn.gate" = {{{fields}}}'
    assert Recipe.from_toml(text) == recipe
    text = 'base = "dsv3"\n[layers."layers.*.attn.wo"]\nfprop = {promote_every = "never"}\n'
    output = Recipe.from_toml(text).spec("layers.1.attn.wo")
    assert (output.fprop.promote_every, output.dgrad.promote_every) == (None, 128)


def test_blocks_that_rules_single_out_are_told_apart_and_later_patterns_refine_earlier_ones():
    one = recipes["nvfp4"].with_(layers={"layers.-1.attn.wo": {"x": "float32"}})
    assert [str(one.spec(f"layers.{i}.attn.wo", 3).x) for i in (1, 2)] == ["nvfp4_te", "float32"]
    layers = {"layers.*.attn.wo": {"x": "e5m2 1x128"}, "layers.0.attn.wo": {"promote_every": 64}}
    specs = [recipes["dsv3"].with_(layers=layers).spec(f"layers.{i}.attn.wo").fprop for i in (0, 1)]
    assert [(str(spec.a), spec.promote_every) for spec in specs] == [("e5m2 1x128", 64), ("e5m2 1x128", 128)]
