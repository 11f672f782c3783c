"""Errors of formats: the measures are what they say, the tables in the literature of the field come out."""

import csv
import io
import json

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli import app as cli
from lowprec.codec import BlockCodec, codecs
from lowprec.measure.atlas import errors_of, find_format, pass_through
from lowprec.measure.distributions import distributions
from lowprec.measure.metrics import gain_bias
from lowprec.measure.spread import tile_range
from lowprec.registry import UnknownNameError
from lowprec.scaling.quantizer import quantizers

F = np.float32


def command(*arguments):
    result = CliRunner().invoke(cli.cli, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_measures_by_hand():
    x = np.array([[1.0, 0.3, -0.002, 0.0, 900.0]], F)
    row = errors_of(x, "fp16")
    y = x.astype(np.float16).astype(F)
    error = (y - x).astype(float)
    assert np.isclose(row.sqnr, 10 * np.log10((x.astype(float) ** 2).sum() / (error**2).sum()))
    relative = np.abs(error)[x != 0] / np.abs(x)[x != 0]
    assert np.isclose(row.relative_rms, np.sqrt((relative**2).mean()))
    assert np.isclose(row.relative_max, relative.max())
    assert np.isclose(row.magnitude_bias, np.abs(y).astype(float).sum() / np.abs(x).astype(float).sum() - 1)
    assert np.isclose(row.gain_bias, (y.astype(float) * x).sum() / (x.astype(float) ** 2).sum() - 1)
    assert (row.flushed, row.saturated) == (0, 0)
    assert np.isclose(row.octaves, np.log2(900 / 0.002), rtol=1e-6)
    assert row.bits_per_value == 16


def test_flushed_and_saturated():
    tile = np.full((1, 32), 0.5, F)
    tile[0, 0], tile[0, 1] = 480.0, 1e-4  # rounded down the scale is 1: 480 is cut to 448, and 1e-4 flushed
    row = errors_of(tile, "mxfp8_floor")
    assert (row.saturated, row.flushed) == (1 / 32, 1 / 32)
    assert errors_of(tile, "mxfp8").saturated == 0
    assert errors_of(np.array([[1e6, 1.0]], F), "fp8_1x128").saturated == 0
    assert errors_of(np.array([[1e9, 1.0]], F), BlockCodec("b", "e4m3fn", 2)).flushed == 0.5
    assert errors_of(tile, "logfmt8").flushed == 0


def test_quantizers_too():
    x = distributions["gauss"].values((128, 256))
    for name in ("dsv3_inference", "mxfp8_floor", "nvfp4_te"):
        row = errors_of(x, quantizers[name])
        assert row.format == name
        assert row.sqnr > 18
        assert errors_of(x, quantizers[name]).sqnr == row.sqnr
    assert errors_of(x, "dsv3_inference").bits_per_value == errors_of(x, "fp8_1x128").bits_per_value
    assert errors_of(x, "dsv3_inference").sqnr == errors_of(x, "fp8_1x128").sqnr
    tall = quantizers["dsv3_inference"].with_(name="blocks", granularity="128x128")
    limits = pass_through(x, tall).limits
    assert limits.shape == x.shape
    assert np.isclose(limits[0, 0], np.abs(x[:128, :128]).max())
    assert find_format("mxfp8") is codecs["mxfp8"]  # a codec of that name comes first


def test_tile_range():
    assert tile_range([1.0, -8.0, 0.0, 3.0, 3.0], tile=3).tolist() == [3.0, 0.0]
    assert np.isnan(tile_range(np.zeros((2, 5)), 5)).all()
    assert np.isnan(tile_range([1.0, np.inf]))
    assert tile_range(np.zeros((0, 5))).shape == (0, 1)
    assert tile_range(np.zeros((3, 0))).shape == (3, 0)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=r"tile_range: tile=.*: a whole number >= 1 is needed"):
            tile_range([1.0], bad)
    with pytest.raises(ValueError, match="a single number has no tiles"):
        tile_range(1.0)
    binades = tile_range(np.ldexp(1.0, np.array([[0, 1], [-1074, 1023], [-149, 0]])))
    assert binades.tolist() == [[1.0], [2097.0], [149.0]]
    x = np.abs(np.random.default_rng(0).standard_normal((40, 300))) + 1e-9
    wanted = [[np.log2(part.max() / part.min()) for part in np.split(row, [128, 256])] for row in x]
    np.testing.assert_allclose(tile_range(x), wanted, rtol=1e-14)
    assert tile_range(np.array([[1, 4]], ml_dtypes.bfloat16)).tolist() == [[2.0]]
    assert gain_bias([2.0, 2.0], [1.0, 2.0]) == pytest.approx(6 / 5 - 1)


# Mean R of tiles of 128 values, octaves.
RANGES = {"gauss": 8.95, "laplace": 10.2, "t5": 9.7, "t3": 10.3, "logn1": 7.5, "logn2": 15.0, "swiglu": 12.9,
          "expert": 9.0, "outlier": 12.3}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_ranges_of_distributions(name):
    x = distributions[name].values((256, 1024))
    assert abs(np.nanmean(tile_range(x)) - RANGES[name]) < 0.15
    assert distributions[name].values((256, 1024)).tobytes() == x.tobytes()
    assert distributions[name].values((256, 1024), seed=1).tobytes() != x.tobytes()


def test_a_logarithmic_format_is_predicted_by_the_range():
    """SNR = 13.98 + 20 log10((2^(n-1) - 2) / R) dB, or 0.2 to 0.5 dB better since the ends are exact."""
    x = distributions["gauss"].values((256, 1024))
    energy = (x.astype(float).reshape(-1, 128) ** 2).sum(1)
    octaves = np.sqrt(np.average(tile_range(x).reshape(-1) ** 2, weights=energy))
    for bits in (6, 8, 10, 12):
        row = errors_of(x, f"logfmt{bits}")
        predicted = 13.98 + 20 * np.log10((2 ** (bits - 1) - 2) / octaves)
        assert 0.0 < row.sqnr - predicted < 0.6


def test_the_command(tmp_path):
    code, out, _ = command("error", "--dist", "gauss,zeros", "--format", "fp8_1x128,logfmt8,dsv3_inference", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [(row["data"], row["format"]) for row in rows][:3] == [
        ("gauss", n) for n in ("fp8_1x128", "logfmt8", "dsv3_inference")
    ]
    assert abs(float(rows[1]["sqnr"]) - 37.08) < 0.3
    path = tmp_path / "x.npy"
    np.save(path, distributions["gauss"].values((4, 256)))
    code, out, _ = command("error", path, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found) == 12
    assert found[0]["data"] == str(path)
    code, out, _ = command("error", "--dist", "all", "--format", "bf16", "--rows", 2, "--columns", 130)
    assert code == 0
    assert all(name in out for name in distributions)


def test_element_formats_and_the_columns_of_quantize(tmp_path):
    """`error` and `quantize` call the same numbers by the same names, in the same units."""
    path, x = tmp_path / "x.npy", distributions["gauss"].values((4, 256))
    np.save(path, x)
    code, out, _ = command("error", path, "--format", "e4m3fn,deepgemm", "--json")
    assert code == 0
    element, quantizer = json.loads(out)
    code, out, _ = command("quantize", path, "--quantizer", "deepgemm", "--json")
    of_quantize = json.loads(out)[0]
    assert {key: quantizer[key] for key in of_quantize if key != "shape"} == {
        k: v for k, v in of_quantize.items() if k != "shape"
    }
    wanted = lp.compare(lp.round_to(x, "e4m3fn"), x).as_dict()
    assert {key: element[key] for key in wanted} == wanted
    assert (element["format"], element["bits per value"], element["saturated"]) == ("e4m3fn", 8.0, 0.0)
    assert errors_of(x * 1e4, lp.formats["e4m3fn"]).saturated > 0.9


def test_bad_input(tmp_path):
    nan, empty = tmp_path / "nan.npy", tmp_path / "empty.npy"
    np.save(nan, np.array([[1.0, np.nan]]))
    np.save(empty, np.zeros((0, 4)))
    for arguments, words in (
        ((nan,), "NaN or infinite, the first at (0, 1)"), ((empty,), "is empty"),
        ((), "a FILE or --dist"), ((nan, "--dist", "gauss"), "one of the two"), (("--dist", "normal"), "distribution"),
        (("--dist", "gauss", "--format", "fp7"), "neither a codec nor a quantizer nor a format"),
        (("--dist", ","), "no name given"), (("--dist", "gauss", "--format", ""), "no name given"),
        ((tmp_path / "none.npy",), "No such file"),
    ):  # fmt: skip
        code, out, err = command("error", *arguments)
        assert (code, out) == (2, ""), arguments
        assert words in err
        assert err.count("\n") == 1
    with pytest.raises(UnknownNameError, match="did you mean 'logfmt8'"):
        errors_of([1.0], "logfmt88")
    with pytest.raises(TypeError, match="a codec is a name"):
        errors_of([1.0], 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="real numbers"):
        errors_of(["a"], "bf16")
    for bad in ([], 1.0, np.zeros((3, 0))):
        with pytest.raises(ValueError, match="rows of one value"):
            errors_of(bad, "bf16")
    zeros = errors_of(np.zeros((2, 4)), "logfmt8")
    assert np.isnan(zeros.octaves)
    assert zeros.sqnr == np.inf
