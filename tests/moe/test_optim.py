"""AdamW: against a written-out NumPy reference in the same order of operations, bit for bit."""

import math

import ml_dtypes
import numpy as np
import pytest

from lowprec.cast import casts as cast
from lowprec.moe.run.optim import AdamW, _power
from lowprec.moe.run.optimizer_state import StateFormat

F = np.float32


def numpy_step(weight, gradient, m, v, scale, rate, t, decay, store):
    """The definition, one rounding per written operation."""
    g = (F(scale) * gradient).astype(F)
    m = F(0.9) * m + F(1.0 - 0.9) * g
    v = F(0.95) * v + F(1.0 - 0.95) * (g * g)
    rate1, root = F(rate / (1.0 - _power(0.9, t))), F(1.0 / math.sqrt(1.0 - _power(0.95, t)))
    weight = (weight - F(decay) * weight) - rate1 * (m / (np.sqrt(v) * root + F(1e-8)))
    return weight, store(m), store(v)


STORES = {
    "bfloat16": lambda x: x.astype(ml_dtypes.bfloat16).astype(F),
    "float32": lambda x: x,
}


def parameters(rng, dtype=F):
    return {
        "matrix": rng.standard_normal((37, 29)).astype(dtype),
        "gain": rng.standard_normal(19).astype(dtype),
        "none": np.zeros((0, 4), dtype),
    }


def kept(text):
    return {"moment_m": text, "moment_v": text, "master": "float64" if text == "float64" else "float32"}


@pytest.mark.parametrize("moments", ["bfloat16", "float32"])
def test_twelve_steps_have_the_bits_of_the_definition(moments):
    rng = np.random.default_rng(5)
    weights = parameters(rng)
    expected = {name: (w.copy(), np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    optimizer = AdamW(weights, moment_m=moments, moment_v=moments)
    for t in range(1, 13):
        rate = 1e-3 * t
        size = 10.0 ** rng.integers(-6, 3)  # clipped and unclipped steps, small and large moments
        gradients = {name: (size * rng.standard_normal(w.shape)).astype(F) for name, w in weights.items()}
        norm = optimizer.update(gradients, rate)
        assert norm == pytest.approx(
            math.sqrt(sum(float((g.astype(float) ** 2).sum()) for g in gradients.values())), rel=1e-13
        )
        scale = 1.0 / norm if norm > 1.0 else 1.0
        for name, gradient in gradients.items():
            decay = rate * 0.1 if gradient.ndim == 2 else 0.0
            expected[name] = numpy_step(
                expected[name][0], gradient, *expected[name][1:], scale, rate, t, decay, STORES[moments]
            )
            for have, want in zip(
                (weights[name], optimizer.kept_m.load(optimizer.m[name]), optimizer.kept_v.load(optimizer.v[name])),
                expected[name],
                strict=True,
            ):
                assert have.tobytes() == want.tobytes(), (name, t)
    assert optimizer.steps == 12


def test_bfloat16_moments_are_not_float32_moments():
    def train(moments):
        rng = np.random.default_rng(5)
        weights = parameters(rng)
        optimizer = AdamW(weights, moment_m=moments, moment_v=moments)
        for _ in range(3):
            optimizer.update({name: rng.standard_normal(w.shape).astype(F) for name, w in weights.items()}, 1e-2)
        return weights["matrix"], optimizer.m["matrix"].dtype

    (rounded, code_type), (plain, float_type) = train("bfloat16"), train("float32")
    assert (code_type, float_type) == (np.uint16, np.float32)
    assert rounded.tobytes() != plain.tobytes()
    assert np.allclose(rounded, plain, atol=1e-3)


@pytest.mark.parametrize(
    ("m", "v", "master"),
    [("e4m3fn tensor", "e5m2 1x128", "float32"), ("bfloat16", "float32", "bfloat16"), ("e5m2", "bfloat16", "float32")],
)
def test_moments_and_weights_of_different_formats(m, v, master):
    rng = np.random.default_rng(7)
    weights = parameters(rng)
    optimizer = AdamW(weights, moment_m=m, moment_v=v, master=master)

    def rounded(text, x):
        values = x.copy()
        StateFormat(text).round(values)
        return values

    expected = {name: (rounded(master, w), np.zeros_like(w), np.zeros_like(w)) for name, w in weights.items()}
    for name, w in weights.items():
        assert w.tobytes() == expected[name][0].tobytes()
    for t in range(1, 5):
        gradients = {name: rng.standard_normal(w.shape).astype(F) for name, w in weights.items()}
        scale = 1.0 / optimizer.update(gradients, 1e-2)
        for name, gradient in gradients.items():
            decay = 1e-2 * 0.1 if gradient.ndim == 2 else 0.0
            w, mm, vv = numpy_step(expected[name][0], gradient, *expected[name][1:], scale, 1e-2, t, decay, lambda x: x)
            expected[name] = rounded(master, w), rounded(m, mm), rounded(v, vv)
            assert weights[name].tobytes() == expected[name][0].tobytes(), (name, t)
            moments = optimizer.kept_m.load(optimizer.m[name]), optimizer.kept_v.load(optimizer.v[name])
            assert [x.tobytes() for x in moments] == [x.tobytes() for x in expected[name][1:]], (name, t)


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


def test_only_matrices_decay():
    weights = {"matrix": np.ones((2, 2), F), "gain": np.ones(2, F)}
    AdamW(weights).update({name: np.zeros_like(w) for name, w in weights.items()}, rate=0.5)
    assert np.all(weights["gain"] == 1)
    assert np.all(weights["matrix"] == F(1) - F(0.5 * 0.1))


def test_a_large_gradient_moves_as_its_clipped_self():
    def moved(size):
        weights = {"w": np.zeros((4, 4), F)}
        # Large epsilon: the step is then proportional to the gradient instead of to its sign.
        optimizer = AdamW(weights, epsilon=1.0, weight_decay=0.0)
        optimizer.update({"w": np.full((4, 4), size, F)}, rate=1.0)
        return weights["w"]

    assert moved(1024.0).tobytes() == moved(0.25).tobytes()  # the second has norm exactly 1
    assert moved(0.125).tobytes() != moved(0.25).tobytes()


def test_a_gradient_that_is_not_finite_changes_nothing():
    rng = np.random.default_rng(0)
    weights = parameters(rng)
    before = {name: w.copy() for name, w in weights.items()}
    optimizer = AdamW(weights)
    for bad in (np.nan, np.inf):
        gradients = {name: np.zeros_like(w) for name, w in weights.items()}
        gradients["gain"][3] = bad
        with pytest.raises(FloatingPointError, match="norm of the gradient"):
            optimizer.update(gradients, 0.1)
    assert optimizer.steps == 0
    assert all(weights[name].tobytes() == before[name].tobytes() for name in weights)
    assert all(not m.any() for m in optimizer.m.values())


def test_a_weight_that_is_not_finite_is_named():
    weights = parameters(np.random.default_rng(0))
    zeros = {name: np.zeros_like(w) for name, w in weights.items()}
    weights["gain"][3] = np.inf
    before = {name: w.copy() for name, w in weights.items()}
    optimizer = AdamW(weights)
    with pytest.raises(FloatingPointError, match="weight 'gain' is not finite"):
        optimizer.update(zeros, 0.1)
    assert optimizer.steps == 0
    assert all(weights[name].tobytes() == before[name].tobytes() for name in weights)
    weights["gain"][3] = -3.4e38  # the step itself leaves float32
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match="weight 'gain' is not finite"):
        optimizer.update({**zeros, "gain": np.ones_like(weights["gain"])}, 1e37)


def test_the_norm_is_summed_in_a_stated_order():
    x = (np.random.default_rng(1).standard_normal(1003) * 1e3).astype(F)
    wide = x.astype(np.float64)
    sums = [0.0] * 8
    for i in range(1000):
        sums[i % 8] += wide[i] * wide[i]
    total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
    for i in range(1000, 1003):
        total += wide[i] * wide[i]
    weights = {"w": np.zeros(1003, F)}
    assert AdamW(weights).norm({"w": x}) == math.sqrt(total)


@pytest.mark.parametrize("source", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["bfloat16", "float32", "float64"])
def test_moments_are_taken_over_from_any_format(source, target):
    values = np.array([[0.0, 1.0, 3.14159274, 1e-30, 1 + 2**-8, 1 + 3 * 2**-8]])
    types = {"bfloat16": F, "float32": F, "float64": np.float64}
    giver = AdamW({"w": np.zeros(values.shape, types[source])}, **kept(source))
    giver.m["w"][...] = cast.encode(values, "bfloat16") if source == "bfloat16" else values
    taker = AdamW({"w": np.zeros(values.shape, types[target])}, **kept(target))
    taker.set_moments((source, source), giver.m, giver.m)
    rounded = values
    for name in (source, target):
        if name != "float64":
            rounded = rounded.astype(ml_dtypes.bfloat16 if name == "bfloat16" else F).astype(np.float64)
    for found in (taker.kept_m.load(taker.m["w"]), taker.kept_v.load(taker.v["w"])):
        assert np.array_equal(found.astype(np.float64), rounded)


def test_power_is_exact_where_it_can_be():
    assert _power(0.5, 30) == 2.0**-30
    assert _power(0.9, 1) == 0.9
    assert _power(0.95, 0) == 1.0
    assert _power(0.9, 1000) == pytest.approx(0.9**1000, rel=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="unknown word 'e4m33'"):
        AdamW({"w": np.zeros(3, F)}, moment_v="e4m33 tensor")
    with pytest.raises(ValueError, match="state in float64 does not go with weights in float32"):
        AdamW({"w": np.zeros(3, F)}, moment_m="float64")
    with pytest.raises(ValueError, match="'w' is not contiguous"):
        AdamW({"w": np.zeros((3, 4), F).T})
