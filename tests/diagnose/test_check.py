"""`lp.check` and `lowprec check`: the cause of every difference, what is shown, what is refused."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from refusals import refusals
from tools import command

import lowprec as lp
from lowprec.diagnose.check.attribution import FOLLOWS_SCALE, UNEXPLAINED
from lowprec.diagnose.check.causes import add, causes
from lowprec.diagnose.check.result import Check
from lowprec.scaling.constants import bound_of

STATELESS = [
    name for name in lp.quantizers.names()
    if lp.quantizers[name].amax_history_len is None and not lp.quantizers[name].has_row_scales
]  # fmt: skip
F32 = NDArray[np.float32]


def brain(shape: tuple[int, int] = (64, 512)) -> F32:
    """Return bfloat16 numbers, which often lie on midpoints."""
    x = np.random.default_rng(5).standard_normal(shape)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def checked(q: lp.Quantized, quantizer: str, x: F32, **changes: object) -> Check:
    """Compare with a quantizer; every difference must have a cause, and nothing else."""
    given = {"scale": q.scale, "tensor_scale": q.tensor_scale, "seconds": 1e6, **changes}  # whatever else runs
    found = lp.check(q.codes, x, quantizer, **given)
    assert np.array_equal(found.codes != "", q.codes != found.made.codes)
    if found.counts.fits:
        same = (found.found.scale == found.made.scale) | (np.isnan(found.found.scale) & np.isnan(found.made.scale))
        assert np.array_equal(found.scales != "", ~same)
    assert bool(found) == (not found.causes and not found.counts.total)
    return found


def words(found: Check) -> tuple[set[str], set[str]]:
    """Return causes of codes and of scales."""
    return set(found.codes.ravel()) - {""}, set(found.scales.ravel()) - {""}


def tampered(x: F32, quantizer: str, wrong: NDArray[np.bool_], codes: object) -> Check:
    """Compare codes of which some are others."""
    q = lp.quantize(x, quantizer)
    q.codes[wrong] = codes
    return checked(q, quantizer, x)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", STATELESS)
def test_nothing_differs_from_what_a_quantizer_makes(name: str) -> None:
    x = brain((32, 256))
    x[3], x[4] = 0.0, -0.0
    x[5, 7], x[6, 9] = np.nan, np.inf
    for y in (x, x * np.float32(1e-7)):
        found = checked(lp.quantize(y, name), name, y)
        assert found
        assert repr(found) == f"nothing differs from {name}"
        assert not found.tables()
        assert found._repr_html_().count("<table>") == 0
    made = lp.check(lp.quantize(brain((32, 256)), name), brain((32, 256))).made
    assert np.array_equal(made.cast(made.v), made.codes), "the value before the cast is the one that was cast"


def test_no_cause_is_tried_if_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowprec.diagnose.check.search.CauseSearch.of_stage", None)
    x = brain((32, 256))
    assert lp.check(lp.quantize(x, "nvfp4_te"), x)
    with pytest.raises(TypeError, match="not callable"):
        lp.check(lp.quantize(x, "nvfp4_te"), 2 * x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "quantizer", "cause"),
    [
        ("deepgemm", "dsv3_inference", "values divided otherwise: x * (1 / s) instead of x / s"),
        ("dsv3_inference", "deepgemm", "values divided otherwise: x / s instead of x * (1 / s)"),
        ("dsv32_inference", "dsv3_inference", "scale from another arithmetic: amax*(1/max) instead of amax/max"),
        ("mxfp8_ceil", "mxfp8_rceil", "scale from another arithmetic: ceil instead of amax*(1/max)"),
        ("mxfp8_floor", "mxfp8_even", "scale from another arithmetic: floor instead of even"),
        ("nvfp4_torchao", "nvfp4_te", "scale from another arithmetic: two_quotients instead of te_folded"),
        ("nvfp4_4over6_mse", "nvfp4_4over6", "another bound on block scales: mse decides"),
        ("nvfp4_4over6", "nvfp4_te", "another bound on block scales: four over six, mae"),
        ("nvfp4_te", "nvfp4_4over6", "another quantizer: nvfp4_te"),
        ("mxfp8_floor", "nvfp4_te", None),
    ],
)
def test_one_quantizer_against_another(made: str, quantizer: str, cause: str | None) -> None:
    x = brain((256, 1024))
    q = lp.quantize(x, made)
    found = checked(q, quantizer, x)
    assert not found
    assert found.causes[:1] == (() if cause is None else (cause,))


@pytest.mark.sampled(0, default=6)
@pytest.mark.parametrize("rounding", ["toward_zero", "up", "down", "to_odd", "nearest_away"])
@pytest.mark.parametrize("name", ["dsv3_inference", "mxfp4_floor", "nvfp4_te"])
def test_roundings(name: str, rounding: str) -> None:
    x = brain()
    x[0, 0] = 5.25  # NVFP4's scale of the tensor is 2^-9 then, and values lie on midpoints
    found = checked(lp.quantize(x, name, rounding=rounding), name, x)
    # Ties alone go toward zero, or to odd, too: all elements must fit, not some.
    away = rounding == "nearest_away"
    cause = "tie rounded otherwise: away from zero" if away else f"rounded in another direction: {rounding}"
    assert found.causes == (cause,)


@pytest.mark.sampled(0, default=3)
@pytest.mark.parametrize("rounding", ["stochastic", "stochastic_b", "stochastic_c"])
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4_rceil", "nvfp4_te", "dsv3_inference", "te_current"])
def test_stochastic_rounding_is_told_from_noise(name: str, rounding: str) -> None:
    x = np.random.default_rng(7).standard_normal((64, 512)).astype(np.float32)
    q = lp.quantize(x, name, rounding=rounding, seed=3)
    assert checked(q, name, x).causes == ("stochastic rounding",)
    # A third of the elements to any side, whatever is nearer, is no stochastic rounding.
    low, high, own = (lp.quantize(x, name, rounding=mode) for mode in ("down", "up", None))
    own.codes[:] = np.choose(np.random.default_rng(8).integers(0, 3, x.shape), [low.codes, high.codes, own.codes])
    assert not checked(own, name, x).causes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "code", "causes", "said"),
    [  # 17 lies between 16 and 18
        (
            17.0,
            89,
            ("tie rounded otherwise: away from zero", "bit flipped: bit 0 at [0, 1]"),
            "do not distinguish them",
        ),
        (3.0, 0xC4, ("bit flipped: bit 7 at [0, 2]",), "1 of 4 codes differs"),
        (1.0, 3, (), "1 of 4 codes differs from dsv3_inference; no known cause explains most of it"),
    ],
)
def test_one_code(value: float, code: int, causes: tuple[str, ...], said: str) -> None:
    x = np.array([[448.0, 17.0, 3.0, 1.0]], np.float32)
    found = tampered(x, "dsv3_inference", x == value, code)
    assert found.causes[:1] == causes[:1]
    assert set(causes) <= set(found.causes)
    assert said in repr(found)
    assert causes or words(found)[0] == {UNEXPLAINED}


@pytest.mark.slow
def test_codes_that_one_rule_explains_in_part_have_names_of_their_own() -> None:
    x = brain()
    over = np.abs(x / np.repeat(lp.quantize(x, "mxfp8_floor").scale, 32, 1)) >= 464
    # 0x7F is what an overflow of either sign could become without saturation, but not without its sign.
    assert words(tampered(x, "mxfp8_floor", over, 0x7F))[0] == {"overflow not saturated", "overflow"}
    one = np.zeros(x.shape, bool)
    one[2, 9], x[:, ::9] = True, -0.0
    assert tampered(x, "dsv3_inference", one, 0x00).causes == ("bit flipped: bit 7 at [2, 9]",)
    x[2, 9] = np.inf
    assert words(tampered(x, "dsv3_inference", one, 0x11))[0] == {"NaN or Inf in the block"}


@pytest.mark.slow
def test_what_a_cause_leaves_is_counted() -> None:
    x = np.random.default_rng(7).standard_normal((64, 512)).astype(np.float32)
    q = lp.quantize(x, "mxfp8_floor")
    q.codes[3, 7], q.codes[9, 100] = q.codes[3, 7] ^ 1, q.codes[9, 100] ^ 6
    found = checked(q, "mxfp8", x)
    assert found.explanations[0].left in (1, 2)
    assert "scale from another arithmetic: floor" in found.causes[0]
    assert f"all but {found.explanations[0].left} fit: " in repr(found)
    assert found.codes[9, 100] == UNEXPLAINED
    assert found.first()[1][0][-1] == UNEXPLAINED  # what is left comes first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "cause"),
    [
        ("dsv3_inference", lambda s: np.nextafter(s, np.float32(np.inf)), "higher"),
        ("mxfp8", lambda s: s * np.float32(0.25), "lower"),
        ("mxfp8", lambda s: s * np.float32(4), "higher"),
        ("dsv3_inference", lambda s: s * np.float32(np.nan), "NaN"),
    ],
)
def test_one_scale(name: str, change, cause: str) -> None:
    x = brain()
    q = lp.quantize(x, name)
    q.scale[7, 1] = change(q.scale[7, 1])
    found = checked(q, name, x)
    assert found.scales[7, 1].startswith((cause, "bit flipped in a scale", "scales off by steps of their format"))
    assert (found.scales != "").sum() == 1
    assert not found


@pytest.mark.slow
def test_scales_that_nobody_made_are_followed_by_their_codes() -> None:
    x = brain()
    rng = np.random.default_rng(3)
    q = lp.quantize(x, "dsv3_inference")
    scale = q.scale * rng.uniform(1, 2, q.scale.shape).astype(np.float32)
    q.codes[:] = lp.encode(x / np.repeat(scale, 128, 1), "e4m3fn", policy="ocp_sat")
    found = checked(q, "dsv3_inference", x, scale=scale)
    assert words(found)[0] == {FOLLOWS_SCALE}
    assert words(found)[1] == {UNEXPLAINED}
    assert found.causes == ("the codes are those of the scales found, which no known cause gives",)


@pytest.mark.slow
def test_two_mistakes_at_once() -> None:
    x = brain((128, 512))
    q = lp.quantize(x, "nvfp4_te", rounding="toward_zero")
    found = lp.check(q.codes, x, "nvfp4_te", scale=1 / q.scale, tensor_scale=2 * q.tensor_scale)
    assert found.causes == (
        "rounded in another direction: toward_zero, and scales inverted, and scale of the tensor multiplied: by 2",
    )
    own = lp.quantize(x, "nvfp4_te").codes.reshape(128, 256, 2)[:, :, ::-1].reshape(128, 512)
    found = lp.check(own, x, "nvfp4_te", scale=np.ascontiguousarray(q.scale.T), tensor_scale=q.tensor_scale)
    assert found.causes == ("nibbles swapped, and scales transposed",)


@pytest.mark.slow
def test_what_is_read_off_the_dump_does_not_hide_a_rule() -> None:
    """Orders that correlation does not show, a factor beside a rounding, steps of many scales."""
    x = np.random.default_rng(6).standard_normal((32, 256)).astype(np.float32)
    q = lp.quantize(np.ascontiguousarray(x[:, ::-1]), "mxfp8")
    found = lp.check(np.roll(q.codes, 3, 0), x, "mxfp8", scale=q.scale)
    assert found.causes == (
        "columns in another order: in reverse, and rows of the codes in another order: shifted by 3",
    )
    exact = np.abs(x).reshape(32, 2, 128).max(-1).astype(np.float64) * 2 / 448
    scale = exact.astype(np.float32)
    scale = np.where(scale > exact, np.nextafter(scale, np.float32(0)), scale)
    codes = lp.encode(x / np.repeat(scale, 128, 1), "e4m3fn", policy="ocp_sat")
    found = lp.check(codes, x, "dsv3_inference", scale=scale)
    assert found.causes[0] == "amax multiplied: by 2, and scale rounded in another direction: down"
    assert "scales multiplied: by 2; the codes follow" not in found.causes
    q = lp.quantize(x, "mxfp8_floor")
    scale = q.scale.copy()
    scale[0, 2] = scale[0, 1]  # which is half of its own
    codes = lp.encode(x / np.repeat(scale, 32, 1), "e4m3fn", policy="ocp_sat")
    found = lp.check(codes, x, "mxfp8_rceil", scale=scale)
    arithmetic, neighbour = found.causes[0].split(", and ")
    assert arithmetic == "scale from another arithmetic: floor instead of amax*(1/max)"
    assert neighbour == "amax of a neighbouring block: the one below, in 1 blocks"


@pytest.mark.sampled(0, default=4)
@pytest.mark.parametrize("name", [name for name in STATELESS if lp.quantizers[name].has_tensor_scale])
def test_a_scale_of_the_tensor_that_is_another_one_is_named(name: str) -> None:
    x = brain((32, 256))
    q = lp.quantize(x, name)
    own = np.float32(q.tensor_scale)
    amax = own * np.float32(6) * np.float32(bound_of(lp.quantizers[name]))
    said = "scale of the tensor "
    for found, cause in (
        (own, ""), (2 * own, said + "multiplied: by 2"), (own / 2, said + "multiplied: by 0.5"),
        (1 / own, said + "inverted"), (None, said + "missing"), (np.float32(1), said + "missing"),
        (np.nan, said + "is not a positive number: nan"), (0.0, said + "is not a positive number: 0"),
        (amax, "the tensor's amax in place of its scale: amax"),
    ):  # fmt: skip
        result = checked(q, name, x, tensor_scale=found)
        assert (result.tensor, result.causes[:1]) == (cause, (cause,) if cause else ()), found
        assert words(result) == (set(), set())
    one = lp.quantize(x, "mxfp8")
    assert checked(one, "mxfp8", x, tensor_scale=1.0)
    assert checked(one, "mxfp8", x, tensor_scale=2.0).causes == ("scale of a tensor where there is none: 2",)


# --- what is given ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_catalogue_is_ranked_where_no_quantizer_is_named() -> None:
    x = brain()
    q = lp.quantize(x, "deepgemm")
    found = lp.check(q.codes, x, scale=q.scale)
    assert found
    assert found.quantizer == "deepgemm"
    assert [c.quantizer for c in found.ranking].index("deepgemm") == 0
    found = lp.check(q.codes, x, scale=q.scale * 3)
    assert found.causes == ("scales multiplied: by 3",)
    assert found.quantizer == "deepgemm"
    twins = lp.quantize(x, "dsv3_inference_ue8m0")
    assert "these values do not distinguish them" in repr(lp.check(twins.codes, x, scale=twins.scale))
    found = lp.check(twins.codes, x, scale=twins.scale * 3)
    assert "deepgemm_ue8m0" in found.tied
    assert "(and, as well, from " in repr(found)


def test_what_a_quantized_says_of_itself_is_what_it_is_compared_with() -> None:
    x = brain()
    assert lp.check(lp.quantize(x, "e4m3fn 1x64"), x)
    bare = lp.quantize(x, "e5m2 1x96")
    bare = lp.Quantized(bare.codes, bare.scale, "e5m2", "1x96")
    found = lp.check(bare, x)
    assert found
    assert found.quantizer == "e5m2 1x96 float32, amax/max"


@pytest.mark.slow
def test_packed_codes_and_types_of_others() -> None:
    x = brain()
    q = lp.quantize(x, "nvfp4_te")
    packed = q.codes[:, ::2] | (q.codes[:, 1::2] << 4)
    scale = lp.encode(q.scale, "e4m3fn").view(ml_dtypes.float8_e4m3fn)
    assert lp.check(packed, x, "nvfp4_te", scale=scale, tensor_scale=q.tensor_scale)
    swapped = (q.codes[:, ::2] << 4) | q.codes[:, 1::2]
    found = lp.check(swapped, x, "nvfp4_te", scale=scale, tensor_scale=q.tensor_scale)
    assert found.causes[0] == "nibbles swapped"
    q = lp.quantize(x, "mxfp8")
    codes = q.codes.view(ml_dtypes.float8_e4m3fn)
    scale = lp.encode(q.scale, "e8m0fnu")
    assert lp.check(codes, x, scale=scale.view(ml_dtypes.float8_e8m0fnu))
    assert lp.check(codes, x, "mxfp8", scale=scale).causes[0] == "scales stored as raw bytes: E8M0 codes as numbers"


def test_leading_axes_and_a_single_scale() -> None:
    x = brain().reshape(4, 16, 512)
    q = lp.quantize(x, "mxfp8")
    assert lp.check(q.codes, x, "mxfp8", scale=q.scale.reshape(4, 16, 16))
    q = lp.quantize(x, "te_current")
    assert lp.check(q.codes, x, "te_current", scale=float(q.scale[0, 0]))
    q = lp.quantize(x, "e4m3fn row")
    assert lp.check(q.codes, x, q.quantizer, scale=q.scale.ravel())


test_what_does_not_fit_is_refused = refusals(
    [
        ("lp.check(codes, ones)", "scale must be given with an array of codes"),
        ("lp.check(codes, np.ones((1, 5)), scale=1.0)", r"got \(1, 4\) for values \(1, 5\)"),
        ("lp.check(codes[:0], ones[:0], scale=1.0)", r"codes must have elements, got shape \(0, 4\)"),
        ("lp.check(codes, ones[:0], scale=1.0)", r"values must have elements, got shape \(0, 4\)"),
        ("lp.check(codes.astype(np.float32), ones, scale=1.0)", TypeError, "codes must be uint8 .* got float32"),
        ("lp.check(codes, ones, scale='x')", TypeError, "scale must be an array of numbers, got <U1"),
        ("lp.check(codes.astype(np.uint16), ones, 'mxfp8', scale=1.0)", "codes must be uint8 for mxfp8.* got uint16"),
        ("lp.check(codes, ones, 'te_delayed', scale=1.0)", "spec must have no state, got .te_delayed."),
        ("lp.check(codes, ones, 'mxfp9', scale=1.0)", "unknown word .mxfp9. in .mxfp9.: did you mean"),
        (
            "lp.check(lp.quantize(ones, 'e4m3fn 1x4'), ones, scale=1.0)",
            "scale and tensor_scale must be None, got them with Quantized",
        ),
        ("lp.check(codes, ones * 1j, scale=1.0)", TypeError, "values must be real numbers"),
        ("lp.check(codes, ones, scale=1.0, seconds=np.nan)", "check: seconds must be a finite number >= 0, got nan"),
    ],
    lambda: {"codes": np.zeros((1, 4), np.uint8), "ones": np.ones((1, 4), np.float32)},
)


@pytest.mark.slow
def test_values_that_are_not_finite_or_ragged() -> None:
    x = brain((33, 300))
    x[0, 0], x[1, 5], x[2, :] = np.nan, -np.inf, 0
    for name in ("dsv3_inference", "mxfp8", "mxfp4_rceil", "nvfp4_te", "te_current"):
        q = lp.quantize(x, name)
        assert checked(q, name, x)
        for change in ({"scale": q.scale * np.float32(0.5)}, {"scale": q.scale[:, ::-1].copy()}):
            assert repr(checked(q, name, x, **change))
    one = np.float32([[3.0]])
    assert lp.check(lp.quantize(one, "mxfp8"), one)


# --- what is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_is_shown_as_text_and_as_html() -> None:
    x = brain()
    q = lp.quantize(x, "mxfp8_floor")
    found = lp.check(q, x, "mxfp8")
    assert repr(found).startswith(
        f"{found.counts.codes} of 32768 codes and {found.counts.scales} of 1024 scales differ"
    )
    page = found._repr_html_()
    assert page.count("<table>") == 3
    assert "scale from another arithmetic: floor instead of amax*(1/max)" in page
    q.scale[0, 0] = np.nan
    assert "<script" not in lp.check(q, x, lp.quantizers["mxfp8"].with_(name="<script>"))._repr_html_()


@pytest.mark.slow
def test_the_command_names_causes(tmp_path: Path) -> None:
    x, source, file = brain((32, 256)), tmp_path / "x.npy", tmp_path / "q.npz"
    np.save(source, x)
    q = lp.quantize(x, "nvfp4_te", rounding="nearest_away")
    bare = tmp_path / "bare.npz"
    np.savez(bare, codes=q.codes, scale=q.scale)
    q.save(file)
    for more in ([], ["--quantizer", "nvfp4_te"], ["--causes"]):
        shown = command("check", file, "--values", source, *more, code=1)
        assert "tie rounded otherwise: away from zero" in shown
        assert "--causes" in more or "round to nearest, ties to even" in shown
    for more in ([], ["--causes"]):
        assert "scale of the tensor missing" in command("check", bare, "--values", source, *more, code=1)
    command("check", file, "--values", source, "--quantizer", "nvfp4_te", "--exit-zero")
    np.savez(file, codes=q.codes, scale=1 / q.scale)
    shown = command("check", file, "--values", source, "--quantizer", "nvfp4_te", "--causes", "--json", code=1)
    assert {row["part"] for row in json.loads(shown)} == {"tensor scale", "scale", "code"}
    lp.quantize(x, "nvfp4_te").save(file)
    assert command("check", file, "--values", source, "--causes").startswith("nothing differs from nvfp4_te")


# --- the catalogue of causes -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cause_is_one_entry() -> None:
    x = brain()
    q = lp.quantize(x, "mxfp8")
    q.codes[:] ^= 0x55
    assert not lp.check(q, x).causes
    with causes.scoped():
        add("every other bit inverted", "codes", "do not")(
            lambda made, found: iter([("", made.codes ^ np.uint8(0x55))])
        )
        assert lp.check(q, x).causes == ("every other bit inverted",)
    assert "every other bit inverted" not in causes


def test_every_cause_says_how_to_mend_it_and_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "identify.md").read_text(encoding="utf-8")
    for name in causes.names():
        assert len(causes[name].fix) > 10
        assert causes[name].stage in ("making", "codes", "scale", "tensor scale")
        assert f" {name} | {causes[name].fix} |" in page, name
