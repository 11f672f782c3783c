"""Flipped bits: a product emulated chain by chain has gemm's bits, and a flip is at its reported place."""

import numpy as np
import pytest

import lowprec as lp
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model
from lowprec.study.measurements.faults import BITS, Fault, Faults, OperandRows, emulated_product, flip, with_fault

DSV3 = lp.recipes["dsv3"]
LAYER = "layers.0.attn.wo"
SPEC = DSV3.spec(LAYER).fprop


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(0)
    return [
        lp.quantize(rng.standard_normal((rows, 384)).astype(np.float32), f"e4m3fn {g}")
        for rows, g in ((40, "1x128"), (200, "128x128"))
    ]


@pytest.fixture(scope="module")
def tokens():
    return load_corpus("stdlib").held_out[: 2 * 129].reshape(2, 129).copy()


@pytest.mark.parametrize("accumulator", ["hopper_fp8", "blackwell_fp8"])
def test_emulated_chains_have_the_bits_of_gemm(operands, accumulator):
    spec = DSV3.with_(accumulator=accumulator).spec(LAYER).fprop
    a, b = operands
    got = emulated_product(OperandRows.of(a, np.arange(40)), OperandRows.of(b, np.arange(200)), spec, None, 0)
    assert np.array_equal(got.view(np.uint32), lp.gemm(a, b, accumulator=accumulator).view(np.uint32))


@pytest.mark.parametrize("place", ["code of x", "code of w"])
def test_a_struck_code_is_the_product_of_the_struck_operand(operands, place):
    a, b = operands
    for seed in range(4):
        found, rows, columns = Fault(place, 6, LAYER, np.random.default_rng(seed)).product(a, b, SPEC)
        whole = lp.gemm(a, b)
        whole[np.ix_(rows, columns)] = found
        differs = np.argwhere(whole != lp.gemm(a, b))
        assert len(np.unique(differs[:, 0 if place == "code of x" else 1])) == 1
        side, other = (a, b) if place == "code of x" else (b, a)
        line = rows[0] if place == "code of x" else columns[0]
        codes = side.codes[[line]].repeat(384, axis=0)
        codes[np.arange(384), np.arange(384)] ^= np.uint8(1 << 6)
        scale = side.scale[[line // (1 if place == "code of x" else 128)]]
        all_flips = lp.Quantized(codes, scale.repeat(384, axis=0), side.format, lp.Granularity.parse("1x128"))
        possible = lp.gemm(all_flips, other)
        assert (possible == found.reshape(1, -1)).all(axis=1).any()


@pytest.mark.parametrize("place", ["FP22 register", "float32 sum"])
def test_a_struck_sum_differs_in_one_element(operands, place):
    found, rows, columns = Fault(place, 31, LAYER, np.random.default_rng(1)).product(*operands, SPEC)
    assert found.shape == (1, 1)
    assert found[0, 0] != lp.gemm(*operands)[rows[0], columns[0]]


def test_a_sum_struck_behind_the_last_tile_has_that_bit(operands):
    a, b = operands
    rows = OperandRows.of(a, [3]), OperandRows.of(b, [7])
    for bit in (31, 22, 0):
        got = emulated_product(*rows, SPEC, (2, bit), 0).view(np.uint32)
        assert got[0, 0] == lp.gemm(a, b)[3, 7].view(np.uint32) ^ np.uint32(1 << bit)


def test_a_register_struck_between_instructions_goes_on_from_there(operands):
    a, b = operands
    x, y = OperandRows.of(a, [3]), OperandRows.of(b, [7])
    half = lp.mma(x.codes[:, 256:320], y.codes[:, 256:320])
    half.view(np.uint32)[0, 0] ^= np.uint32(1 << 25)
    chain = lp.mma(x.codes[:, 320:], y.codes[:, 320:], half)
    before = lp.gemm(*(lp.Quantized(q.codes[:, :256], q.scales[:, :2], q.format, lp.Granularity.parse("1x128"))
                       for q in (x, y)))  # fmt: skip
    scale = x.scales[0, 2] * y.scales[0, 2]
    expected = np.float32(np.float64(scale) * np.float64(chain[0, 0]) + np.float64(before[0, 0]))
    assert emulated_product(x, y, SPEC, (2, 25), 2)[0, 0] == pytest.approx(expected, rel=1e-7)


def test_only_the_struck_layer_differs_and_the_rest_is_as_without(tokens):
    model = Model("nano", "bf16", seed=1)
    bound = DSV3.bind(layers=3)
    fault = Fault("float32 sum", 10, LAYER, np.random.default_rng(0))
    struck = with_fault(bound, fault)
    assert struck.linear("layers.1.attn.wo") is bound.linear("layers.1.attn.wo")
    x = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    w = model.params[LAYER]
    ours, theirs = (ops.linear(LAYER).fprop(lp.round_to(x, "bfloat16"), w)[0] for ops in (struck, bound))
    assert np.count_nonzero(ours != theirs) <= 1
    assert fault.false_alarm is False


@pytest.mark.ci
def test_flips_of_every_place_are_measured_and_repeat(tokens):
    model = Model("nano", "bf16", seed=1)
    rows = list(Faults(trials=1, sequences=1).measure(model, DSV3, DSV3, tokens, 7))
    assert [row.condition for row in rows] == [f"{place}, bit {bit}" for place, bits in BITS.items() for bit in bits]
    found = {row.condition: row.values for row in rows}
    assert all(values["false_alarms"] == 0.0 or np.isnan(values["false_alarms"]) for values in found.values())
    assert any(values["detected"] for values in found.values())
    assert all(values["missed"] <= values["harmful"] for values in found.values())
    assert found["master weight, bit 30"]["detected"] == 0.0
    again = list(Faults(trials=1, sequences=1).measure(model, DSV3, DSV3, tokens, 7))
    assert repr(again) == repr(rows)  # nan and all


@pytest.mark.slow
def test_logits_that_are_no_numbers_do_no_harm_to_memory(tokens):
    """Routing has to do something with them; the loss may be anything."""
    model = Model("nano", "bf16", seed=1)

    class Ruined(Fault):
        def result(self, y):
            struck = y.copy()
            struck[::3] = np.nan
            struck[1::3, 0] = np.inf
            return struck

    fault = Ruined("router logit", 0, "layers.1.ffn.gate", np.random.default_rng(0))
    with np.errstate(all="ignore"):
        loss, gradients = model.with_bound(with_fault(DSV3.bind(layers=3), fault)).loss_and_grads(tokens)
    assert set(gradients) == set(model.params)
    assert np.isnan(loss) or loss > 0


def test_flip_counts_bits_from_the_lowest():
    for dtype, bit in ((np.uint8, 7), (np.float32, 0), (np.uint16, 15)):
        x = np.zeros(3, dtype)
        flip(x, 2, bit)
        assert x.view(f"uint{8 * x.itemsize}").tolist() == [0, 0, 1 << bit]
