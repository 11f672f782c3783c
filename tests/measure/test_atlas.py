"""Errors of formats: the measures are what they say, the tables in the literature of the field come out."""

import csv
import io
import json

import ml_dtypes
import numpy as np
import pytest
from refusals import refusals
from tools import command

import lowprec as lp
from lowprec.codec import BlockCodec, codecs
from lowprec.measure.atlas import find_format, measure_errors, round_trip
from lowprec.measure.distributions import distributions
from lowprec.measure.kappa import kappa
from lowprec.measure.metrics import gain_error
from lowprec.measure.spread import tile_range
from lowprec.registry import UnknownNameError
from lowprec.scaling.quantizer import quantizers

F = np.float32


def test_the_measures_by_hand():
    x = np.array([[1.0, 0.3, -0.002, 0.0, 900.0]], F)
    row = measure_errors(x, "fp16")
    y, wide = x.astype(np.float16).astype(float), x.astype(float)
    error = y - wide
    relative = np.abs(error)[x != 0] / np.abs(wide)[x != 0]
    assert (row.underflow, row.saturated, row.bits_per_value) == (0, 0, 16)
    for found, wanted in (
        (row.sqnr, 10 * np.log10((wide**2).sum() / (error**2).sum())),
        (row.relative_rms, np.sqrt((relative**2).mean())),
        (row.relative_max, relative.max()), (row.magnitude_bias, np.abs(y).sum() / np.abs(wide).sum() - 1),
        (row.gain_error, (y * wide).sum() / (wide**2).sum() - 1), (row.tile_range_octaves, np.log2(900 / 0.002)),
    ):  # fmt: skip
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-8)


def test_flushed_and_saturated():
    tile = np.full((1, 32), 0.5, F)
    tile[0, 0], tile[0, 1] = 480.0, 1e-4  # rounded down the scale is 1: 480 is cut to 448, and 1e-4 flushed
    row = measure_errors(tile, "mxfp8_floor")
    assert (row.saturated, row.underflow) == (1 / 32, 1 / 32)
    assert measure_errors(tile, "mxfp8").saturated == 0
    assert measure_errors(np.array([[1e6, 1.0]], F), "fp8_1x128").saturated == 0
    assert measure_errors(np.array([[1e9, 1.0]], F), BlockCodec("b", "e4m3fn", 2)).underflow == 0.5
    assert measure_errors(tile, "logfmt8").underflow == 0


def test_quantizers_too():
    x = distributions["gauss"].values((128, 256))
    for name in ("dsv3_inference", "mxfp8_floor", "nvfp4_te"):
        row = measure_errors(x, quantizers[name])
        assert row.format == name
        assert row.sqnr > 18
        assert measure_errors(x, quantizers[name]).sqnr == row.sqnr
    row, same = measure_errors(x, "dsv3_inference"), measure_errors(x, "fp8_1x128")
    assert (row.bits_per_value, row.sqnr) == (same.bits_per_value, same.sqnr)
    tall = quantizers["dsv3_inference"].with_(name="blocks", granularity="128x128")
    limits = round_trip(x, tall).limits
    assert limits.shape == x.shape
    assert np.isclose(limits[0, 0], np.abs(x[:128, :128]).max())
    assert find_format("mxfp8") is codecs["mxfp8"]  # a codec of that name comes first


def test_tile_range():
    assert tile_range([1.0, -8.0, 0.0, 3.0, 3.0], tile=3).tolist() == [3.0, 0.0]
    assert np.isnan(tile_range(np.zeros((2, 5)), 5)).all()
    assert np.isnan(tile_range([1.0, np.inf]))
    assert tile_range(np.zeros((0, 5))).shape == (0, 1)
    assert tile_range(np.zeros((3, 0))).shape == (3, 0)
    assert tile_range(np.ldexp(1.0, np.array([[0, 1], [-1074, 1023], [-149, 0]]))).tolist() == [
        [1.0],
        [2097.0],
        [149.0],
    ]
    x = np.abs(np.random.default_rng(0).standard_normal((40, 300))) + 1e-9
    wanted = [[np.log2(part.max() / part.min()) for part in np.split(row, [128, 256])] for row in x]
    np.testing.assert_allclose(tile_range(x), wanted, rtol=1e-14)
    assert tile_range(np.array([[1, 4]], ml_dtypes.bfloat16)).tolist() == [[2.0]]
    assert gain_error([2.0, 2.0], [1.0, 2.0]) == pytest.approx(6 / 5 - 1)


# Mean R of tiles of 128 values, octaves.
RANGES = {"gauss": 8.95, "laplace": 10.2, "t5": 9.7, "t3": 10.3, "logn1": 7.5, "logn2": 15.0, "swiglu": 12.9,
          "expert": 9.0, "outlier": 12.3}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_ranges_of_distributions(name):
    x = distributions[name].values((256, 1024))
    assert abs(np.nanmean(tile_range(x)) - RANGES[name]) < 0.15
    assert distributions[name].values((256, 1024)).tobytes() == x.tobytes()
    assert distributions[name].values((256, 1024), seed=1).tobytes() != x.tobytes()


def test_the_command(tmp_path):
    out = command("format-errors", "--dist", "gauss,zeros", "--format", "fp8_1x128,logfmt8,dsv3_inference", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["data"] for row in rows] == ["gauss"] * 3 + ["zeros"] * 3
    assert [row["format"] for row in rows] == ["fp8_1x128", "logfmt8", "dsv3_inference"] * 2
    assert abs(float(rows[1]["sqnr"]) - 37.08) < 0.3
    path = tmp_path / "x.npy"
    np.save(path, distributions["gauss"].values((4, 256)))
    found = json.loads(command("format-errors", path, "--json"))
    assert (len(found), found[0]["data"]) == (12, str(path))
    out = command("format-errors", "--dist", "all", "--format", "bf16", "--rows", 2, "--columns", 130)
    assert all(name in out for name in distributions)


def test_element_formats_and_the_columns_of_quantize(tmp_path):
    """`error` and `quantize` call the same numbers by the same names, in the same units."""
    path, x = tmp_path / "x.npy", distributions["gauss"].values((4, 256))
    np.save(path, x)
    element, quantizer = json.loads(command("format-errors", path, "--format", "e4m3fn,deepgemm", "--json"))
    (of_quantize,) = json.loads(command("quantize", path, "deepgemm", "--json"))
    del of_quantize["shape"]
    assert {key: quantizer[key] for key in of_quantize} == of_quantize
    wanted = lp.compare(lp.round_to(x, "e4m3fn"), x).as_dict()
    wanted |= {"format": "e4m3fn", "bits_per_value": 8.0, "saturated": 0.0}
    assert {key: element[key] for key in wanted} == wanted
    assert measure_errors(x * 1e4, lp.formats["e4m3fn"]).saturated > 0.9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nan.npy",), "NaN or infinite, the first at (0, 1)"), (("empty.npy",), "must not be empty, got shape (0, 4)"),
        ((), "give either FILE or --dist"), (("nan.npy", "--dist", "gauss"), "give either FILE or --dist"),
        (("--dist", "normal"), "distribution"), (("--dist", ","), "got none"), (("none.npy",), "No such file"),
        (("--dist", "gauss", "--format", "fp7"), "unknown codec, quantizer or format 'fp7'"),
        (("--dist", "gauss", "--format", ""), "--format must be one name at least"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("nan.npy", np.array([[1.0, np.nan]]))
    np.save("empty.npy", np.zeros((0, 4)))
    assert words in command("format-errors", *arguments, code=2)


def test_zeros():
    zeros = measure_errors(np.zeros((2, 4)), "logfmt8")
    assert np.isnan(zeros.tile_range_octaves)
    assert zeros.sqnr == np.inf


test_refused = refusals(
    [
        ("measure_errors([1.0], 'logfmt88')", UnknownNameError, "did you mean 'logfmt8'"),
        ("measure_errors([1.0], 3)", TypeError, "codec must be a name or a Codec, got 3"),
        *(
            (f"measure_errors({x}, 'bf16')", "x must have an axis and a value at least, got shape")
            for x in ("[]", "1.0", "np.zeros((3, 0))")
        ),
        *((f"tile_range([1.0], {x})", r"tile_range: tile must be an integer >= 1, got .*") for x in (0, -1, 1.5, True)),
        ("tile_range(1.0)", "tile_range: x must have one axis or more, got a single number"),
        (
            "kappa(lambda a, b: a, lambda a, b: a, ('bfloat16', 'bfloat16'), 'bfloat16')",
            r"kappa: operands must have at most 2\^24 tuples of codes, got bfloat16 x bfloat16",
        ),
        (
            "kappa(lambda c: c[1:], lambda c: c, 'e4m3fn', 'e4m3fn')",
            r"kappa: results must have shape \(256,\), as the codes, got \(255,\) and \(256,\)",
        ),
        (
            "lp.compare(np.zeros(2), np.zeros(3))",
            r"compare: both arrays must have the same shape, got \(2,\) and \(3,\)",
        ),
    ],
    lambda: {"measure_errors": measure_errors, "tile_range": tile_range, "kappa": kappa},
)
