"""The three products of a linear layer are those of gemm on the operands that a recipe names."""

import numpy as np
import pytest
from recipe_operands import operands, products

import lowprec as lp
from lowprec.recipe import GemmSpec, LinearSpec, recipes

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
    assert spec.summed_by == machine
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


# --- three of them ---------------------------------------------------------------------------------------------------


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
    x, w, dy = (lp.encode(v, "bfloat16") for v in operands())

    def product(a, b):
        return lp.mma(a, b, accumulator="hopper_bf16", a_format="bfloat16", b_format="bfloat16")

    assert np.array_equal(y, lp.round_to(product(x, w), "bfloat16"))
    assert np.array_equal(dx, lp.round_to(product(dy, w.T), "bfloat16"))
    assert np.array_equal(dw, product(dy.T, x.T))
    assert not np.array_equal(dw, plain[2])


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
    column, again = lp.quantize(dy, "e4m3fn", "128x1").T, lp.quantize(kept, "e4m3fn", "128x1", scale="ue8m0").T
    got = products(recipe, "layers.0.attn.wo")
    assert np.array_equal(got[2], lp.gemm(column, again, promote_every=128))
    row, w = lp.quantize(x, "e4m3fn", "1x128", scale="ue8m0"), lp.quantize(operands()[1], "e4m3fn", "128x128")
    assert np.array_equal(got[0], lp.gemm(row, w, promote_every=128, out="bfloat16"))
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


def test_weights_kept_in_fp8_alone_come_from_the_masters_without_bf16_between():
    x, _, dy = operands()
    w = np.random.default_rng(5).standard_normal((90, 200)).astype(np.float32)  # a master weight has more than 8 bits

    def multiplied(recipe):
        ops = recipe.bind().linear("layers.0.attn.wq_a")
        y, saved = ops.fprop(x, w)
        return saved.w, y, ops.dgrad(dy, saved)

    direct, copied = multiplied(recipes["te_block_fp8_params"]), multiplied(recipes["te_block"])
    want = {"direct": w, "copied": lp.round_to(w, "bfloat16")}
    for kept, (name, source) in zip((direct[0], copied[0]), want.items(), strict=True):
        quantized = lp.quantize(source, quantizer=lp.quantizers["te_block"].with_(granularity="128x128"))
        assert np.array_equal(kept.codes, quantized.codes), name
        assert np.array_equal(kept.scale, quantized.scale), name
    share = np.mean(direct[0].dequantize() != copied[0].dequantize())
    assert 0.005 < share < 0.05  # values that two roundings push over the middle between two of E4M3
    assert not np.array_equal(direct[1], copied[1])
    assert not np.array_equal(direct[2], copied[2])
    # Weights that BF16 holds, and layers in BF16, are the same either way.
    plain = recipes["bf16"]
    for got, same in zip(products(plain), products(plain.with_(weights="float32")), strict=True):
        assert np.array_equal(got, same)
    for got, same in zip(products(recipes["te_block"]), products(recipes["te_block_fp8_params"]), strict=True):
        assert np.array_equal(got, same)
    with pytest.raises(ValueError, match="weights='float16': one of 'bfloat16', 'float32'"):
        plain.with_(weights="float16")
