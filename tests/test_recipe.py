"""Recipes as data: rules by name, variations, TOML and back, and errors that quote what came."""

import dataclasses

import numpy as np
import pytest

import lowprec as lp
from lowprec.moe.config import configs
from lowprec.recipe import GemmSpec, LinearSpec, Recipe, Rule, Storage, TensorSpec, recipes
from lowprec.recipe.names import LINEARS, matches
from lowprec.registry import UnknownNameError

LAYERS = [name for name, shape in configs["tiny"].parameter_shapes().items() if len(shape) == 2 and name != "embed"]


# --- one tensor ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["e4m3fn 1x128", "e5m2 tensor ue8m0", "e2m1fn 16x16 floor=0.0001", "bfloat16", "e4m3fn row", "float32"]
)
def test_a_tensor_reads_what_it_prints(text):
    assert str(TensorSpec.parse(text)) == text
    assert TensorSpec.parse(TensorSpec.parse(text)) is not None


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


# --- one multiplication ----------------------------------------------------------------------------------------------


def test_every_multiplication_has_its_own_machine_and_operands():
    spec = LinearSpec.of("e4m3fn 1x128", "e4m3fn 128x128", "e5m2 1x128", "hopper_fp8", 128)
    changed = spec.with_(fprop={"accumulator": "exact"}, dgrad={"promote_every": 64}, dy="e4m3fn 1x32")
    assert (changed.fprop.accumulator, changed.dgrad.accumulator) == ("exact", "hopper_fp8")
    assert (changed.dgrad.promote_every, changed.wgrad.promote_every) == (64, 128)
    assert [str(t) for t in changed.tensors("wgrad")] == ["e4m3fn 1x32", "e4m3fn 1x128"]
    assert str(changed.dgrad.a) == "e4m3fn 1x32"


def test_a_what_if_machine_can_be_named():
    machine = lp.accumulators["hopper_fp8"].with_(fraction_bits=20, align="nearest")
    spec = GemmSpec("e4m3fn 1x128", "e4m3fn 1x128", machine, 128)
    assert spec.accumulator == "hopper_fp8(fraction_bits=20,align=nearest)"
    assert spec.machine == machine
    assert GemmSpec(spec.a, spec.b, spec.accumulator, 128) == spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": "e2m1fn 1x16", "accumulator": "hopper_fp8"}, "hopper_fp8 takes e4m3fn, e5m2, not"),
        ({"accumulator": "hoper_fp8"}, "unknown accumulator 'hoper_fp8': did you mean 'hopper_fp8'"),
        ({"accumulator": "hopper_fp8(bits=3)"}, "Accumulator has no field 'bits'"),
        ({"promote_every": 0}, "promote_every=0"),
        ({"promote_every": True}, "promote_every=True"),
    ],
)
def test_a_multiplication_that_cannot_be(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        GemmSpec(**arguments)


def operands(rows=70, k=200, n=90, seed=0):
    rng = np.random.default_rng(seed)
    bf16 = lambda *shape: lp.round_to(rng.standard_normal(shape).astype(np.float32), "bfloat16")  # noqa: E731
    return bf16(rows, k), bf16(n, k), bf16(rows, n)


def products(recipe, layer="layers.0.attn.wq_a", **sizes):
    ops = recipe.bind(seed=1, layers=4).linear(layer)
    x, w, dy = operands(**sizes)
    y, saved = ops.fprop(x, w)
    return y, ops.dgrad(dy, saved), ops.wgrad(dy, saved)


def test_products_are_those_of_gemm_on_the_operands():
    recipe = recipes["dsv3"].with_(dy="e5m2 1x128", dgrad={"promote_every": 32})
    x, w, dy = operands()
    q = {"x": lp.quantize(x, "e4m3fn", "1x128"), "w": lp.quantize(w, "e4m3fn", "128x128")}
    y, dx, dw = products(recipe)
    assert np.array_equal(y, lp.gemm(q["x"], q["w"], promote_every=128, out="bfloat16"))
    row = lp.quantize(dy, "e5m2", "1x128")
    assert np.array_equal(dx, lp.gemm(row, q["w"].T, promote_every=32, out="bfloat16"))
    again = lp.quantize(q["x"].dequantize(), "e4m3fn", "128x1").T
    column = lp.quantize(dy, "e5m2", "128x1").T
    assert np.array_equal(dw, lp.gemm(column, again, promote_every=128))


def test_wgrad_from_the_source_is_quantized_once():
    recipe = recipes["dsv3"].with_(wgrad_input="source")
    x, _, dy = operands()
    column, source = (lp.quantize(v, "e4m3fn", "128x1").T for v in (dy, x))
    assert np.array_equal(products(recipe)[2], lp.gemm(column, source, promote_every=128))
    assert not np.array_equal(products(recipe)[2], products(recipes["dsv3"])[2])


def test_a_weight_whose_blocks_are_not_square_is_quantized_for_each_direction():
    recipe = recipes["dsv3"].with_(w="e4m3fn 1x128")
    x, w, dy = operands()
    y, dx, _ = products(recipe)
    assert np.array_equal(
        y, lp.gemm(*(lp.quantize(v, "e4m3fn", "1x128") for v in (x, w)), promote_every=128, out="bfloat16")
    )
    turned = lp.quantize(w, "e4m3fn", "128x1").T
    assert np.array_equal(dx, lp.gemm(lp.quantize(dy, "e4m3fn", "1x128"), turned, promote_every=128, out="bfloat16"))


def test_bf16_on_a_tensor_core():
    y, dx, dw = products(recipes["bf16"].with_(accumulator="hopper_bf16"))
    plain = products(recipes["bf16"])
    x, w, _ = operands()
    codes = [lp.encode(v, "bfloat16") for v in (x, w)]
    want = lp.mma(*codes, accumulator="hopper_bf16", a_format="bfloat16", b_format="bfloat16")
    assert np.array_equal(y, lp.round_to(want, "bfloat16"))
    assert [a.shape for a in (y, dx, dw)] == [b.shape for b in plain]
    assert not np.array_equal(dw, plain[2])
    np.testing.assert_allclose(dw, plain[2], atol=1e-3)


def test_one_operand_may_stay_plain():
    y, dx, dw = products(recipes["bf16"].with_(w="e4m3fn 128x128"))
    x, w, dy = operands()
    narrow = lp.quantize(w, "e4m3fn", "128x128").dequantize()
    assert np.array_equal(y, lp.round_to(lp.matmul_f32(x, narrow), "bfloat16"))
    assert np.array_equal(dx, lp.round_to(lp.matmul_f32(dy, narrow.T), "bfloat16"))
    assert np.array_equal(dw, lp.matmul_f32(dy.T, x.T))


def test_forward_or_backward_alone():
    fp8, bf16 = recipes["dsv3"], recipes["bf16"]
    plain = {"a": "bfloat16", "b": "bfloat16", "accumulator": "float32", "promote_every": None}
    forward = products(fp8.with_(dgrad=plain, wgrad=plain, wgrad_input="source"))
    assert np.array_equal(forward[0], products(fp8)[0])
    for got, want in zip(forward[1:], products(bf16)[1:], strict=True):
        assert np.array_equal(got, want)
    backward = products(fp8.with_(fprop=plain, wgrad_input="source"))
    assert np.array_equal(backward[0], products(bf16)[0])
    assert np.array_equal(backward[1], products(fp8)[1])


def test_the_cache_of_the_attention_output_is_what_wgrad_reads():
    recipe = recipes["dsv3"].with_(cache_attention_output="e5m6_1x128_ue8m0")
    x, _, dy = operands()
    kept = lp.codecs["e5m6_1x128_ue8m0"].round_trip(x)
    column, again = (lp.quantize(v, "e4m3fn", "128x1").T for v in (dy, kept))
    got = products(recipe, "layers.0.attn.wo")
    assert np.array_equal(got[2], lp.gemm(column, again, promote_every=128))
    assert np.array_equal(got[0], products(recipes["dsv3"])[0])
    assert np.array_equal(products(recipe, "layers.0.attn.wq_a")[2], products(recipes["dsv3"])[2])


def test_an_input_can_be_shared():
    bound = recipes["dsv3"].bind()
    x, w, _ = operands()
    first, second = bound.linear("layers.0.ffn.w1"), bound.linear("layers.0.ffn.w3")
    assert first.input_spec == second.input_spec
    assert first.input_spec != bound.linear("layers.1.ffn.experts.0.w1").input_spec
    y, saved = second.fprop(x, w, cached=first.input(x))
    assert np.array_equal(y, second.fprop(x, w)[0])
    assert saved.x.nbytes == 70 * 200 + 70 * 2 * 4


def test_float32_rounds_nothing():
    x, w, dy = (v * np.float32(1.0001) for v in operands())
    ops = recipes["float32"].bind().linear("layers.0.ffn.gate")
    y, saved = ops.fprop(x, w)
    assert np.array_equal(y, lp.matmul_f32(x, w))
    assert np.array_equal(ops.dgrad(dy, saved), lp.matmul_f32(dy, w.T))
    assert np.array_equal(ops.wgrad(dy, saved), lp.matmul_f32(dy.T, x.T))
    bound = recipes["float32"].bind()
    assert bound.store(x) is x
    assert bound.codec("combine").round_trip(x) is x


# --- rules -----------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_model():
    assert {matched for name in LAYERS for matched in LINEARS if name == matched} <= set(LINEARS)
    general = {name.replace(f".{i}.", ".0.") for i in range(16) for name in LINEARS}
    for name in LAYERS:
        parts = ["0" if part.isdigit() else part for part in name.split(".")]
        assert ".".join(parts) in general


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
    with pytest.raises(ValueError, match=r"'layers.9.\*' names a block that a model of 4 layers has not"):
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


# --- variations and TOML ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", recipes.names())
def test_toml_gives_the_recipe_again(name):
    recipe = recipes[name]
    text = recipe.to_toml()
    again = Recipe.from_toml(text)
    assert again == recipe
    assert again.source == recipe.source
    assert again.to_toml() == text
    changed = recipe.with_(storage=(Storage("embed", "fp8_1x128"),), accumulator="float32", promote_every=None)
    assert Recipe.from_toml(changed.to_toml()) == changed


def test_toml_with_a_base():
    text = 'base = "dsv3"\nname = "mine"\ndy = "e5m2 1x128"\npromote_every = "never"\n'
    text += 'fprop = { accumulator = "exact" }\nprotect = ["layers.0.*"]\n'
    text += '[[storage]]\ntensors = "embed"\ncodec = "fp8_1x128"\n'
    recipe = Recipe.from_toml(text)
    assert recipe == dataclasses.replace(
        recipes["dsv3"].with_(
            dy="e5m2 1x128", promote_every=None, fprop={"accumulator": "exact"}, protect=["layers.0.*"]
        ),
        name="mine",
        storage=(Storage("embed", "fp8_1x128"),),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "this is no TOML"),
        ("description = 'x'", "'name' is missing"),
        ("base = 'dsv4'", "unknown recipe 'dsv4': did you mean 'dsv3'"),
        ("base = 'dsv3'\ndispach = 'bf16'", "unknown entry of recipe 'dispach': did you mean 'dispatch'"),
        ("name = 'a'\ncombin = 'bf16'", "unknown entry of recipe 'combin': did you mean 'combine'"),
        ("name = 'a'\ncombine = 3", "combine = 3: a text is needed"),
        ("name = 'a'\nlinear = 3", r"linear is written as tables \[\[linear\]\]"),
        ("name = 'a'\n[[linear]]\nout = 'bfloat16'", "'layers', the pattern of names, is missing"),
        ("name = 'a'\n[[linear]]\nlayers = 'hed'", "pattern 'hed' matches no layer of any model: did you mean 'head'"),
        ("name = 'a'\n[[linear]]\nlayers = 'head'\nfprop = 'fp8'", "fprop = 'fp8': a table is needed"),
        ("name = 'a'\n[[linear]]\nlayers = 'head'\nfprop = { c = 'x' }", "unknown entry of .* fprop 'c'"),
        ("name = 'a'\n[[linear]]\nlayers = 'head'\nfprop = { a = 'fp9' }", "unknown word 'fp9'"),
        ("name = 'a'\n[[storage]]\ntensors = 'embed'", "'tensors' and 'codec' are needed"),
    ],
)
def test_toml_that_is_no_recipe(text, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        Recipe.from_toml(text)


def test_plain_data_for_results():
    import json

    plain = recipes["dsv3"].as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["linear"][0]["fprop"]["a"] == "e4m3fn 1x128 ue8m0"


# --- chance and memory -----------------------------------------------------------------------------------------------


def test_random_bits_follow_from_seed_step_layer_and_tensor():
    bound = recipes["nvfp4"].bind(seed=7, layers=4)
    _, w, dy = operands(k=208)
    x = operands(k=208)[0]

    def gradient(layer, step, seed=7):
        run = recipes["nvfp4"].bind(seed=seed, layers=4)
        run.begin_step(step)
        ops = run.linear(layer)
        saved = ops.fprop(x, w)[1]
        return ops.dgrad(dy, saved), ops.wgrad(dy, saved)

    first = gradient("layers.0.attn.wo", 3)
    for i in range(2):
        assert np.array_equal(gradient("layers.0.attn.wo", 3)[i], first[i])
        for other in (("layers.0.attn.wo", 4), ("layers.1.attn.wo", 3), ("layers.0.attn.wo", 3, 8)):
            assert not np.array_equal(gradient(*other)[i], first[i])
    seeds = {bound.draw(f"layers.{i}.attn.wo/{gemm}.dy") for i in range(20) for gemm in ("dgrad", "wgrad")}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_nvfp4_operands_are_those_of_its_quantizers():
    x, w, dy = operands(rows=64, k=208, n=96)
    bound = recipes["nvfp4"].bind(seed=7, layers=4)
    bound.begin_step(2)
    ops = bound.linear("layers.0.attn.wo")
    y, saved = ops.fprop(x, w)
    qx, qw = lp.quantize(x, recipe="nvfp4_te"), lp.quantize(w, recipe="nvfp4_te_2d")
    assert np.array_equal(y, lp.gemm(qx, qw, accumulator="blackwell_nvfp4", promote_every=None, out="bfloat16"))
    turned = lp.quantizers["nvfp4_te_rht"].with_(granularity="16x1")
    seed = bound.draw("layers.0.attn.wo/wgrad.dy")
    column = lp.quantize(dy, recipe=turned, rounding="stochastic", seed=seed).T
    source = lp.quantize(x, recipe=turned).T
    dw = lp.gemm(column, source, accumulator="blackwell_nvfp4", promote_every=None)
    assert np.array_equal(ops.wgrad(dy, saved), dw)
    exact = dy.T.astype(float) @ x
    assert np.linalg.norm(dw - exact) < 0.25 * np.linalg.norm(exact)  # the transforms cancel


def test_hadamard_fills_the_last_block_with_zeros():
    x, w, dy = operands(rows=21, k=208, n=96)
    ops = recipes["nvfp4"].bind(seed=7, layers=4).linear("layers.0.attn.wo")
    dw = ops.wgrad(dy, ops.fprop(x, w)[1])
    exact = dy.T.astype(float) @ x
    assert np.linalg.norm(dw - exact) < 0.3 * np.linalg.norm(exact)


def test_delayed_scales_come_from_earlier_steps():
    bound = recipes["te_delayed"].with_(x="te_delayed history2").bind()
    x, w, dy = operands()
    ops = bound.linear("layers.0.attn.wo")
    scales = []
    for step in range(4):
        bound.begin_step(step)
        _, saved = ops.fprop(x * np.float32(2.0**-step), w)
        ops.wgrad(dy, saved)
        with bound.evaluating():
            ops.fprop(x * np.float32(1000), w)
        scales.append(float(saved.x.row.scale[0, 0]))
    amax = np.float32(np.abs(x).max())
    multipliers = [np.float32(448) / (amax * np.float32(2.0**-i)) for i in (0, 0, 1)]  # a history of 2: step and last
    assert scales == [1.0, *(float(np.float32(1) / m) for m in multipliers)]

    state = bound.state_dict()
    again = recipes["te_delayed"].with_(x="te_delayed history2").bind()
    again.load_state_dict(state)
    for run in (bound, again):
        run.begin_step(4)
    pair = [run.linear("layers.0.attn.wo").fprop(x, w) for run in (bound, again)]
    assert np.array_equal(pair[0][0], pair[1][0])
    assert float(pair[0][1].x.row.scale[0, 0]) != 1.0


def test_words_that_contradict_each_other():
    with pytest.raises(ValueError, match="history goes with delayed scaling"):
        TensorSpec.parse("te_current history4")
    with pytest.raises(ValueError, match="has no scales and no transform"):
        TensorSpec.parse("bfloat16 hadamard16")
    with pytest.raises(ValueError, match="hadamard"):
        TensorSpec.parse("nvfp4_te hadamard15")


# --- on paper --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes.names())
def test_the_table_says_it_all(name):
    from lowprec.recipe.table import as_text, rows

    table = rows(recipes[name])
    said = as_text(recipes[name])
    spec = recipes[name].main
    for gemm in ("fprop", "dgrad", "wgrad"):
        assert str(getattr(spec, gemm)) in said
    assert {row.part for row in table} >= {"wire", "kept for backward", "optimizer"}
    assert recipes[name].dispatch in said


def test_the_page_is_current():
    from pathlib import Path

    from lowprec.recipe.page import page

    assert (Path(__file__).parents[1] / "docs" / "recipes.md").read_text() == page()
