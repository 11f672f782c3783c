"""AdamW: against a written-out NumPy reference in the same order of operations, bit for bit."""

import math

import ml_dtypes
import numpy as np
import pytest
from refusals import refusals
from small_models import in_bytes

from lowprec.cast import casts as cast
from lowprec.moe.run.optim import AdamW, _power
from lowprec.moe.run.optimizer_state import StateFormat

F = np.float32


def numpy_step(weight, gradient, m, v, scale, rate, t, formats):
    """The definition, one rounding per written operation."""
    g = (F(scale) * gradient).astype(F)
    m = F(0.9) * m + F(1.0 - 0.9) * g
    v = F(0.95) * v + F(1.0 - 0.95) * (g * g)
    rate1, root = F(rate / (1.0 - _power(0.9, t))), F(1.0 / math.sqrt(1.0 - _power(0.95, t)))
    decay = rate * 0.1 if gradient.ndim == 2 else 0.0
    weight = (weight - F(decay) * weight) - rate1 * (m / (np.sqrt(v) * root + F(1e-8)))
    return [rounded(text, x) for text, x in zip(formats, (weight, m, v), strict=True)]


def rounded(text, x):
    """Return what a format of moments or weights keeps; of the two plain ones by an oracle of their own."""
    if text in ("bfloat16", "float32"):
        return x.astype(ml_dtypes.bfloat16 if text == "bfloat16" else F).astype(F)
    values = x.copy()
    StateFormat(text).round(values)
    return values


def parameters(seed):
    rng = np.random.default_rng(seed)
    shapes = {"matrix": (37, 29), "gain": 19, "none": (0, 4)}
    return {name: rng.standard_normal(shape).astype(F) for name, shape in shapes.items()}


@pytest.mark.parametrize(("m", "v", "master"), [
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"),
    ("e4m3fn tensor", "e5m2 1x128", "float32"),
    ("bfloat16", "float32", "bfloat16"),
    ("e5m2", "bfloat16", "float32"),
])  # fmt: skip
def test_twelve_steps_have_the_bits_of_the_definition(m, v, master):
    rng, weights = np.random.default_rng(5), parameters(6)
    expected = {name: [rounded(master, w), np.zeros_like(w), np.zeros_like(w)] for name, w in weights.items()}
    optimizer = AdamW(weights, moment_m=m, moment_v=v, master=master)
    assert in_bytes(weights) == {name: w.tobytes() for name, (w, *_) in expected.items()}
    for t in range(1, 13):
        rate = 1e-3 * t
        size = 10.0 ** rng.integers(-6, 3)  # clipped and unclipped steps, small and large moments
        gradients = {name: (size * rng.standard_normal(w.shape)).astype(F) for name, w in weights.items()}
        norm = optimizer.update(gradients, rate)
        squares = sum(float((g.astype(float) ** 2).sum()) for g in gradients.values())
        assert norm == pytest.approx(math.sqrt(squares), rel=1e-13)
        for name, gradient in gradients.items():
            expected[name] = numpy_step(
                expected[name][0], gradient, *expected[name][1:], 1 / max(norm, 1.0), rate, t, (master, m, v)
            )
            have = weights[name], optimizer.kept_m.load(optimizer.m[name]), optimizer.kept_v.load(optimizer.v[name])
            assert [x.tobytes() for x in have] == [x.tobytes() for x in expected[name]], (name, t)
    assert optimizer.steps == 12
    if m in ("bfloat16", "float32"):
        assert optimizer.m["matrix"].dtype == {"bfloat16": np.uint16, "float32": F}[m]


def test_storage_has_its_bits():
    assert StateFormat("bfloat16").bits_per_value((4, 128)) == 16
    assert StateFormat("e4m3fn 1x128").bits_per_value((4, 128)) == 8.25
    assert StateFormat("float64").bits_per_value((4, 128)) == 64


def test_float64():
    weights = {"w": np.full((3, 3), 1.0)}
    optimizer = AdamW(weights, moment_m="float64", moment_v="float64", master="float64", weight_decay=0.5)
    optimizer.update({"w": np.full((3, 3), 0.125)}, rate=0.25)
    # The first corrected step is the sign of the gradient, but for epsilon.
    assert weights["w"] == pytest.approx(np.full((3, 3), 1.0 - 0.25 * 0.5 - 0.25), abs=1e-7)
    assert weights["w"].dtype == np.float64


@pytest.mark.parametrize(("what", "bad", "message"), [
    ("gradient", np.nan, "norm of the gradient"),
    ("gradient", np.inf, "norm of the gradient"),
    ("weight", np.inf, "weight 'gain' is not finite"),
])  # fmt: skip
def test_what_is_not_finite_is_named_and_changes_nothing(what, bad, message):
    weights = parameters(0)
    gradients = {name: np.zeros_like(w) for name, w in weights.items()}
    {"gradient": gradients, "weight": weights}[what]["gain"][3] = bad
    before, optimizer = in_bytes(weights), AdamW(weights)
    with pytest.raises(FloatingPointError, match=message):
        optimizer.update(gradients, 0.1)
    assert optimizer.steps == 0
    assert in_bytes(weights) == before
    assert not any(m.any() for m in optimizer.m.values())


def test_a_step_that_leaves_float32_is_named():
    weights = {"gain": np.full(19, -3.4e38, F)}
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match="weight 'gain' is not finite"):
        AdamW(weights).update({"gain": np.ones(19, F)}, 1e37)


def test_the_norm_is_summed_in_a_stated_order():
    x = (np.random.default_rng(1).standard_normal(1003) * 1e3).astype(F)
    wide, sums = x.astype(np.float64), [0.0] * 8
    for i in range(1000):
        sums[i % 8] += wide[i] * wide[i]
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
    for i in range(1000, 1003):
        total += wide[i] * wide[i]
    assert AdamW({"w": np.zeros(1003, F)}).norm({"w": x}) == math.sqrt(total)


@pytest.mark.parametrize("source", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["bfloat16", "float32", "float64"])
def test_moments_are_taken_over_from_any_format(source, target):
    values = np.array([[0.0, 1.0, 3.14159274, 1e-30, 1 + 2**-8, 1 + 3 * 2**-8]])

    def holding(text):
        master = "float64" if text == "float64" else "float32"
        return AdamW({"w": np.zeros(values.shape, master)}, moment_m=text, moment_v=text, master=master)

    giver, taker, want = holding(source), holding(target), values
    giver.m["w"][...] = cast.encode(values, "bfloat16") if source == "bfloat16" else values
    taker.set_moments((source, source), giver.m, giver.m)
    for name in (source, target):
        want = want.astype(ml_dtypes.bfloat16 if name == "bfloat16" else name).astype(np.float64)
    for found in (taker.kept_m.load(taker.m["w"]), taker.kept_v.load(taker.v["w"])):
        assert np.array_equal(found.astype(np.float64), want)


def test_power_is_exact_where_it_can_be():
    assert _power(0.5, 30) == 2.0**-30
    assert _power(0.9, 1) == 0.9
    assert _power(0.95, 0) == 1.0
    assert _power(0.9, 1000) == pytest.approx(0.9**1000, rel=1e-12)


test_refused = refusals([
    ("AdamW({'w': np.zeros(3, 'f4')}, moment_v='e4m33 tensor')", "unknown word 'e4m33'"),
    ("AdamW({'w': np.zeros(3, 'f4')}, moment_m='float64')", "weights must be float64 with state in float64 only,"),
    ("AdamW({'w': np.zeros((3, 4), 'f4').T})", r"AdamW: weight 'w' must be C-contiguous, got strides \(4, 16\)"),
], lambda: {"AdamW": AdamW})  # fmt: skip
