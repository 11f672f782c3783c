"""Combines do what the networks do: who rounds, how often, in which order."""

import numpy as np
import pytest
from counting import Counting
from refusals import refusals

from lowprec import round_to, sqnr
from lowprec.codec import codecs
from lowprec.codec.reductions import combine_low_latency, combine_normal
from lowprec.order.exact import fma
from lowprec.registry import UnknownNameError

F = np.float32


# --- combine ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def experts():
    """Outputs of 8 uncorrelated experts, in bfloat16, tokens of different scale; gates that sum to 1; exact sums."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((192, 8, 1024)).astype(F) * np.exp(rng.standard_normal((192, 1, 1)) / 2).astype(F)
    gates = rng.random((192, 8)).astype(F)
    x, gates = round_to(x, "bfloat16"), gates / gates.sum(1, keepdims=True)
    return x, gates, np.einsum("tkh,tk->th", x.astype(float), gates.astype(float))


# SNR in dB of the sum in float32, and after its rounding to bfloat16, as measured elsewhere for SwiGLU experts.
COMBINED = [
    ("fp8_1x128", 31.77, 31.76), ("e5m2_1x128", 25.79, 25.79), ("e5m6_1x128_ue8m0", 47.81, 47.14),
    ("logfmt6", 24.52, 24.52), ("logfmt7", 30.85, 30.83), ("logfmt8", 36.97, 36.91), ("logfmt9", 43.11, 42.87),
    ("logfmt10", 49.13, 48.26), ("logfmt12", 61.22, 54.56),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "sums", "stored"), COMBINED)
def test_combine_keeps_the_ratio_of_the_codec(experts, name, sums, stored):
    x, gates, exact = experts
    wide = sqnr(combine_low_latency(x, gates, name, out_format="float32"), exact)
    assert abs(wide - sums) < 0.2
    assert abs(sqnr(combine_low_latency(x, gates, name), exact) - stored) < 0.2
    # Noise and signal add up alike over uncorrelated experts: the sum has the codec's own ratio.
    assert abs(wide - sqnr(codecs[name].round_trip(x), x)) < 0.2


def test_bfloat16_combine(experts):
    x, gates, exact = experts
    assert sqnr(combine_low_latency(x, gates, out_format="float32"), exact) > 140
    assert abs(sqnr(combine_low_latency(x, gates), exact) - 55.62) < 0.2
    # Between nodes a second rounding: 3 dB, and more where sums of two bfloat16 numbers are ties.
    nodes = np.tile(np.arange(8) // 2, (192, 1))
    weighted = round_to(x * gates[:, :, None], "bfloat16")
    assert abs(sqnr(combine_normal(weighted, nodes), weighted.astype(float).sum(1)) - 52.3) < 0.5


def test_low_latency_by_hand(experts):
    x, gates = (each[:3] for each in experts[:2])
    arrived, want, plain = codecs["logfmt8"].round_trip(x), np.zeros((3, 1024), F), np.zeros((3, 1024), F)
    for slot in range(8):
        want = fma(arrived[:, slot], gates[:, slot, None], want)
        plain += arrived[:, slot] * gates[:, slot, None]
    assert combine_low_latency(x, gates, "logfmt8").tobytes() == round_to(want, "bfloat16").tobytes()
    assert combine_low_latency(x, gates, "logfmt8", out_format="float32").tobytes() == want.tobytes()
    # The order of the slots is part of the result, and so is the fused rounding.
    turned = combine_low_latency(x[:, ::-1], gates[:, ::-1], "logfmt8", out_format="float32")
    assert turned.tobytes() != want.tobytes()
    assert plain.tobytes() != want.tobytes()


def test_what_is_sent(experts):
    x, gates, _ = experts
    wire = Counting()
    combine_low_latency(x, gates, wire)
    assert [sent.shape for sent in wire.sent] == [(192 * 8, 1024)]  # each output once, unweighted
    assert np.array_equal(wire.sent[0].reshape(x.shape), x)
    wire, nodes = Counting(), np.tile(np.arange(8) // 2, (192, 1))
    nodes[:100, 6:] = -1
    combine_normal(x, nodes, wire)
    assert [sent.shape for sent in wire.sent] == [(192, 1024)] * 3 + [(92, 1024)]  # one row a token and node
    assert np.array_equal(wire.sent[3], round_to(x[100:, 6] + x[100:, 7], "bfloat16"))


def test_empty_slots(experts):
    x, gates, _ = experts
    chosen = np.tile(np.arange(8), (192, 1))
    chosen[0] = -1
    chosen[1, 3:] = -1
    poisoned = x.copy()
    poisoned[0] = poisoned[1, 3:] = np.nan
    got = combine_low_latency(poisoned, gates, "fp8_1x128", topk_idx=chosen)
    assert not got[0].any()
    assert got[1].tobytes() == combine_low_latency(x[1:2, :3], gates[1:2, :3], "fp8_1x128")[0].tobytes()
    normal = combine_normal(poisoned, np.where(chosen < 0, -1, chosen // 4))
    assert not normal[0].any()
    assert np.isfinite(normal).all()
    assert combine_low_latency(np.ones((0, 3, 4)), np.ones((0, 3))).shape == (0, 4)


# One node sums in float32 and rounds once; of several, each rounds its sum, and then the sums are added and rounded.
NODES = [
    (4, [0, 0, 0, 0], {}, 1 + 2.0**-7),  # 1 + 2^-8 + 2^-8 + 2^-9 rounds up
    (4, [0, 0, 1, 1], {}, 1 + 2.0**-7),  # 1 + 2^-8 is a tie and rounds to 1; 2^-8 + 2^-9 stays
    (2, [0, 0], {}, 1), (3, [0, 0, 1], {}, 1),  # a single sum would give 1 + 2^-7
    (3, [0, 0, 0], {}, 1 + 2.0**-7), (2, [0, 0], {"bias": [[2.0**-7]]}, 1 + 2.0**-7),
    (4, [0, 0, 1, 1], {"out_format": "float32"}, 1 + 2.0**-8 + 2.0**-9),
]  # fmt: skip


@pytest.mark.parametrize(("count", "nodes", "options", "wanted"), NODES)
def test_normal_by_hand(count, nodes, options, wanted):
    x = np.array([[[1.0], [2.0**-8], [2.0**-8], [2.0**-9]]], F)
    assert combine_normal(x[:, :count], [nodes], **options)[0, 0] == wanted


# --- what users give -------------------------------------------------------------------------------------------------

test_errors = refusals(
    [
        ("low(x[0], gates)", r"combine_low_latency: outputs must have shape \[tokens, slots, columns\], got \(3, 4\)"),
        ("low(x, gates[0])", r"combine_low_latency: weights must have shape \[tokens, slots\] = \(2, 3\), got \(3,\)"),
        ("low(x, gates, topk_idx=[[0, 1], [0, 1]])",
         r"combine_low_latency: topk_idx must have shape \[tokens, slots\]"),
        ("low(x, gates, 'fp7')", UnknownNameError, "unknown codec"),
        ("normal(x, gates)", "combine_normal: nodes must be integers, got float32"),
        ("normal(x, gates.astype(int), bias=np.ones(4))", r"combine_normal: bias must have shape \(2, 4\), got \(4,\)"),
    ],
    lambda: {"low": combine_low_latency, "normal": combine_normal,
             "x": np.ones((2, 3, 4), F), "gates": np.ones((2, 3), F)},
)  # fmt: skip
