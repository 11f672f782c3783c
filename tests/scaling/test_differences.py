"""Causes of differences: a file is made with one rule changed, and that rule must be named."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import lowprec as lp
from lowprec.cli.app import cli
from lowprec.scaling.explain import UNEXPLAINED, Explanation, explain

STATELESS = [name for name in lp.quantizers.names() if lp.quantizers[name].history is None]


def brain(shape: tuple[int, int] = (64, 512)) -> NDArray[np.float32]:
    """Return bfloat16 numbers, which often lie on midpoints."""
    x = np.random.default_rng(5).standard_normal(shape)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def causes(q: lp.Quantized, quantizer: str, x: NDArray[np.float32]) -> tuple[set[str], set[str], Explanation]:
    """Return causes of codes and of scales; every difference must have one, and nothing else."""
    e = explain(q.codes, q.scale, x, quantizer, tensor_scale=q.tensor_scale)
    assert np.array_equal(e.codes != "", q.codes != e.expected.codes)
    same = (q.scale == e.expected.scale) | (np.isnan(q.scale) & np.isnan(e.expected.scale))
    assert np.array_equal(e.scales != "", ~same)
    return set(e.codes.ravel()) - {""}, set(e.scales.ravel()) - {""}, e


@pytest.mark.parametrize("name", STATELESS)
def test_what_a_quantizer_makes_needs_no_explanation(name: str) -> None:
    x = brain((32, 256))
    x[3], x[4] = 0.0, -0.0
    x[5, 7], x[6, 9] = np.nan, np.inf
    for y in (x, x * np.float32(1e-7)):
        assert causes(lp.quantize(y, quantizer=name), name, y)[:2] == (set(), set())


@pytest.mark.parametrize("name", STATELESS)
def test_the_value_before_the_cast_is_the_one_that_was_cast(name: str) -> None:
    x = brain((32, 256))
    e = causes(lp.quantize(x, quantizer=name), name, x)[2]
    codes = lp.encode(e.before, e.expected.format, policy="ocp_sat")
    assert np.array_equal(codes, e.expected.codes)


@pytest.mark.parametrize(
    ("made", "quantizer", "codes", "scales"),
    [
        ("deepgemm", "dsv3_inference", {"x * (1 / s) instead"}, set()),
        ("dsv3_inference", "deepgemm", {"x / s instead"}, set()),
        ("dsv32_inference", "dsv3_inference", {"scale: from amax*(1/max)"}, {"from amax*(1/max)"}),
        ("mxfp8_ceil", "mxfp8_rceil", {"scale: from ceil"}, {"from ceil"}),
        ("mxfp8_floor", "mxfp8_even", {"scale: from floor"}, {"from floor"}),
        ("nvfp4_torchao", "nvfp4_te", {"scale: from quotients"}, {"from quotients"}),
        ("nvfp4_modelopt", "nvfp4_te", {"x / (s * g) instead", "scale of the tensor"}, set()),
        ("nvfp4_4over6_mse", "nvfp4_4over6", {"scale: the other of four and six"}, {"the other of four and six"}),
        ("nvfp4_4over6", "nvfp4_te", {"scale: four over six"}, {"four over six"}),
        ("nvfp4_te", "nvfp4_4over6", {"scale: bound 448"}, {"bound 448"}),
    ],
)
def test_one_quantizer_against_another(made: str, quantizer: str, codes: set[str], scales: set[str]) -> None:
    x = brain((256, 1024))
    assert causes(lp.quantize(x, quantizer=made), quantizer, x)[:2] == (codes, scales)


@pytest.mark.parametrize(
    ("rounding", "cause"),
    [
        ("nearest_away", "tie away from zero"),
        ("toward_zero", "rounded toward zero"),
        ("up", "rounded up"),
        ("down", "rounded down"),
        ("to_odd", "rounded to odd"),
    ],
)
@pytest.mark.parametrize("name", ["dsv3_inference", "mxfp4_floor", "nvfp4_te"])
def test_roundings(name: str, rounding: str, cause: str) -> None:
    x = brain()
    x[0, 0] = 5.25  # NVFP4's scale of the tensor is 2^-9 then, and values lie on midpoints
    assert causes(lp.quantize(x, quantizer=name, rounding=rounding), name, x)[0] == {cause}


def test_stochastic_rounding_goes_to_a_neighbour() -> None:
    x = np.random.default_rng(7).standard_normal((64, 512)).astype(np.float32)
    e = causes(lp.quantize(x, quantizer="mxfp8", rounding="stochastic", seed=3), "mxfp8", x)[2]
    assert (e.codes == "the neighbour on the other side").sum() > 0.95 * (e.codes != "").sum()


def tampered(x: NDArray[np.float32], quantizer: str, wrong: NDArray[np.bool_], codes: object) -> lp.Quantized:
    q = lp.quantize(x, quantizer=quantizer)
    q.codes[wrong] = codes
    return q


def test_one_tie_alone() -> None:
    x = np.array([[448.0, 17.0, 19.0, 0.3]], np.float32)  # 17 and 19 lie between 16, 18 and 20
    q = tampered(x, "dsv3_inference", x == 17.0, 89)
    assert causes(q, "dsv3_inference", x)[0] == {"tie away from zero"}
    q = tampered(x, "dsv3_inference", x == 19.0, 89)
    assert causes(q, "dsv3_inference", x)[0] == {"tie toward zero"}


@pytest.mark.parametrize("first", ["bfloat16", "float16"])
def test_rounding_twice(first: str) -> None:
    x = np.random.default_rng(6).standard_normal((512, 1024)).astype(np.float32)
    q = lp.quantize(x, quantizer="mxfp8")
    scale = np.repeat(q.scale, 32, 1)
    q.codes[:] = lp.encode(lp.round_to(x / scale, first), "e4m3fn", policy="ocp_sat")
    names, _, e = causes(q, "mxfp8", x)
    assert names == {f"rounded twice, through {first}"}
    assert (e.codes != "").any()


def test_zeros_subnormals_overflow_and_codes_of_nan() -> None:
    x = brain()
    q = lp.quantize(x, quantizer="mxfp8_floor")
    values = lp.decode(q.codes, "e4m3fn")
    small = (np.abs(values) < 2.0**-6) & (values != 0)
    assert causes(tampered(x, "mxfp8_floor", small, q.codes[small] & 0x80), "mxfp8_floor", x)[0] == {
        "subnormal flushed to zero"
    }
    over = np.abs(x / np.repeat(q.scale, 32, 1)) >= 464
    # 0x7F is what an overflow of either sign could become without saturation, but not without its sign.
    assert causes(tampered(x, "mxfp8_floor", over, 0x7F), "mxfp8_floor", x)[0] == {"overflow not saturated", "overflow"}
    x[:, ::9] = -0.0
    zeros = lp.quantize(x, quantizer="dsv3_inference").codes == 0x80
    assert causes(tampered(x, "dsv3_inference", zeros, 0x00), "dsv3_inference", x)[0] == {"sign of zero dropped"}
    one = np.zeros_like(zeros)
    one[2, 9] = True
    assert causes(tampered(x, "dsv3_inference", one, 0x00), "dsv3_inference", x)[0] == {"sign of zero dropped"}
    x[2, 9] = np.inf
    assert causes(tampered(x, "dsv3_inference", one, 0x11), "dsv3_inference", x)[0] == {"NaN or Inf in the block"}


def test_what_no_rule_gives_is_not_explained() -> None:
    x = np.array([[448.0, 1.0, 3.0, 0.3]], np.float32)
    assert causes(tampered(x, "dsv3_inference", x == 1.0, 3), "dsv3_inference", x)[0] == {UNEXPLAINED}
    assert causes(tampered(x, "dsv3_inference", x == 3.0, 0xC4), "dsv3_inference", x)[0] == {"sign"}


@pytest.mark.parametrize(
    ("name", "change", "cause"),
    [
        ("dsv3_inference", lambda s: np.nextafter(s, np.float32(np.inf)), "one step higher"),
        ("dsv3_inference", lambda s: np.nextafter(s, np.float32(0)), "one step lower"),
        ("mxfp8", lambda s: s * np.float32(0.5), "one step lower"),
        ("mxfp8", lambda s: s * np.float32(4), "several steps higher"),
        ("nvfp4_te", lambda s: s * np.float32(0.5), "several steps lower"),
        ("dsv3_inference", lambda s: s * np.float32(np.nan), "NaN"),
    ],
)
def test_steps_of_a_scale(name: str, change, cause: str) -> None:
    x = brain()
    q = lp.quantize(x, quantizer=name)
    q.scale[7, 1] = change(q.scale[7, 1])
    e = explain(q.codes, q.scale, x, name, tensor_scale=q.tensor_scale)
    assert e.scales[7, 1] == cause
    assert (e.scales != "").sum() == 1


def test_a_scale_of_the_tensor_and_a_floor() -> None:
    x = brain()
    q = lp.quantize(x, quantizer="nvfp4_te", tensor_amax=float(np.abs(x).max()) * 1.25)
    names, scales, _ = causes(q, "nvfp4_te", x)
    assert names == {f"scale: {cause}" for cause in scales}
    assert "several steps lower" in scales
    y = x * np.float32(1e-6)
    q = lp.quantize(y, quantizer=lp.quantizers["dsv3_inference"].with_(amax_floor=0.0))
    assert causes(q, "dsv3_inference", y)[1] == {"amax at least 0"}


@pytest.mark.parametrize("name", [name for name in STATELESS if lp.quantizers[name].two_level])
def test_a_scale_of_the_tensor_that_is_another_one_is_named(name: str) -> None:
    x = brain((32, 256))
    q = lp.quantize(x, quantizer=name)
    own = np.float32(q.tensor_scale)
    amax = own * np.float32(6) * np.float32(lp.quantizers[name].bound)
    for found, cause in (
        (own, ""), (2 * own, "2 times it"), (own / 2, "0.5 times it"), (1 / own, "the inverse"), (None, "missing"),
        (np.nan, "no positive number"), (-own, "no positive number"), (0.0, "no positive number"), (amax, "amax"),
        (own * np.float32(6), "without 6"),
    ):  # fmt: skip
        e = explain(q.codes, q.scale, x, name, tensor_scale=found)
        assert e.tensor == cause, found
        assert set(e.codes.ravel()) == {""}
        assert set(e.scales.ravel()) == {""}
    assert explain(q.codes, q.scale, x, name).tensor == ""


def test_a_scale_of_the_tensor_by_another_arithmetic_or_of_a_quantizer_without_one() -> None:
    x = brain((32, 256))
    q = lp.quantize(x, quantizer="nvfp4_te")
    assert explain(q.codes, q.scale, x, "nvfp4_4over6", tensor_scale=q.tensor_scale).tensor == "bound 448"
    q = lp.quantize(x, quantizer="mxfp8")
    assert explain(q.codes, q.scale, x, "mxfp8", tensor_scale=1.0).tensor == ""
    assert explain(q.codes, q.scale, x, "mxfp8", tensor_scale=2.0).tensor == "the quantizer has none"


@pytest.mark.parametrize("name", STATELESS)
def test_scales_that_are_all_inverted_or_multiplied_are_named(name: str) -> None:
    x = brain((32, 256))
    q = lp.quantize(x, quantizer=name)
    for scale, cause in ((1 / q.scale, "the inverse"), (q.scale * np.float32(7), "7 times it")):
        e = explain(q.codes, scale, x, name, tensor_scale=q.tensor_scale)
        assert set(e.scales.ravel()) - {""} == {cause}
        assert set(e.codes.ravel()) == {""}


@pytest.mark.parametrize(
    ("change", "cause"), [(lambda t: 2 * t, "2 times it"), (lambda t: 1 / t, "the inverse"), (None, "missing")]
)
def test_the_command_names_what_is_wrong_with_the_scale_of_the_tensor(tmp_path: Path, change, cause: str) -> None:
    x, source, file = brain((32, 256)), str(tmp_path / "x.npy"), str(tmp_path / "q.npz")
    np.save(source, x)
    q = lp.quantize(x, quantizer="nvfp4_te")
    tensor = {} if change is None else {"tensor_scale": np.float32(change(q.tensor_scale))}
    np.savez(file, codes=q.codes, scale=q.scale, **tensor)
    for more in ([], ["--quantizer", "nvfp4_te"], ["--causes"]):
        shown = CliRunner().invoke(cli, ["check", file, "--values", source, *more])
        assert shown.exit_code == 0, shown.output
        assert cause in shown.output
        assert "nothing differs" not in shown.output
    done = CliRunner().invoke(cli, ["check", file, "--values", source, "--causes", "--json"])
    (row,) = json.loads(done.stdout)
    assert (row["what"], row["cause"]) == ("tensor scale", cause)
    np.savez(file, codes=q.codes, scale=q.scale, tensor_scale=q.tensor_scale)
    shown = CliRunner().invoke(cli, ["check", file, "--values", source, "--causes"])
    assert "nothing differs from nvfp4_te" in shown.output


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"codes \(1, 4\) and scales \(1, 2\)"):
        explain(np.zeros((1, 4), np.uint8), np.ones((1, 2)), np.ones((1, 4)), "dsv3_inference")


def test_the_command_names_causes(tmp_path: Path) -> None:
    x, source, file = brain(), str(tmp_path / "x.npy"), str(tmp_path / "q.npz")
    np.save(source, x)
    lp.quantize(x, quantizer="mxfp8", rounding="nearest_away").save(file)
    shown = CliRunner().invoke(cli, ["check", file, "--values", source])
    assert shown.exit_code == 0, shown.output
    assert "Why they are not mxfp8_rceil's" in shown.output
    assert "tie away from zero" in shown.output
    done = CliRunner().invoke(
        cli, ["check", file, "--values", source, "--quantizer", "mxfp8_floor", "--causes", "--json"]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert {(row["what"], row["cause"]) for row in rows} >= {("scale", "from amax/max")}
