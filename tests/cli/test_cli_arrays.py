"""Commands on formats, catalogues and arrays in files, and how tables fit terminals."""

import csv
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec
from lowprec.cli import app as cli
from lowprec.cli import output as cli_output


def run(*arguments):
    return CliRunner().invoke(cli.cli, [str(argument) for argument in arguments])


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.random.Generator(np.random.PCG64(0)).standard_normal((32, 256)).astype(np.float32))
    return path


def test_formats():
    rows = {row["name"]: row for row in json.loads(run("formats", "--json").stdout)}
    assert rows["e4m3fn"]["max"] == 448.0
    assert list(rows) == lowprec.formats.names()
    facts = {
        row["property"]: row["value"] for row in csv.DictReader(run("formats", "e5m2", "--csv").stdout.splitlines())
    }
    assert facts["smallest_subnormal"] == repr(2.0**-16)
    grid = json.loads(run("formats", "e4m3fn", "--grid", "--json").stdout)
    assert [row["code"] for row in grid] == [f"0x{16 * i:02x}" for i in range(16)]
    assert grid[7]["+e"] == 448.0
    assert grid[7]["+f"] == "nan"
    assert grid[8]["+1"] == -(2.0**-9)


def test_cast():
    rows = json.loads(run("cast", "0.1", "-448", "1e9", "0x1p-9", "nan", "--to", "e4m3fn", "--json").stdout)
    assert [row["code"] for row in rows] == ["0x1d", "0xfe", "0x7e", "0x01", "0x7f"]
    assert [row["in e4m3fn"] for row in rows] == [0.1015625, -448.0, 448.0, 2.0**-9, "nan"]
    assert rows[0]["bits"] == "00011101"
    assert "0.10156" in run("cast", "0.1", "--to", "e4m3fn").stdout


def test_quantize(matrix, tmp_path):
    out = tmp_path / "q.npz"
    row = json.loads(run("quantize", matrix, "--granularity", "1x128", "--out", out, "--json").stdout)[0]
    x = np.load(matrix)
    q = lowprec.quantize(x, "e4m3fn", granularity="1x128")
    assert row["shape"] == "32x256"
    assert row["bits per value"] == q.bits_per_value
    assert row["sqnr"] == pytest.approx(
        10 * np.log10(np.sum(x.astype("f8") ** 2) / np.sum((x - q.dequantize()) ** 2.0))
    )
    with np.load(out) as saved:
        assert np.array_equal(saved["codes"], q.codes)
        assert np.array_equal(saved["scale"], q.scale)


def test_a_saved_file_says_all_that_dequantizes_it(matrix, tmp_path):
    out = tmp_path / "q.npz"
    assert run("quantize", matrix, "--quantizer", "nvfp4", "--out", out).exit_code == 0
    with np.load(out) as saved:
        values = saved["scale"].repeat(16, axis=1) * lowprec.decode(saved["codes"], str(saved["format"]))
        values *= saved["tensor_scale"]
        assert [str(saved[name]) for name in ("granularity", "scale_kind", "quantizer")] == ["1x16", "e4m3", "nvfp4_te"]
    assert values.tobytes() == lowprec.quantize(np.load(matrix), quantizer="nvfp4").dequantize().tobytes()
    assert (
        run("check", out, "--values", matrix, "--quantizer", "nvfp4", "--causes").stdout
        == "nothing differs from nvfp4_te\n"
    )


def test_unusual_values_are_counted_on_stderr(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.where(np.arange(256) == 130, np.inf, 1.0).reshape(2, 128))
    result = run("quantize", path, "--json")
    assert "holds 1 NaN or Inf among 256 values, the first at [1, 2]" in result.stderr
    assert json.loads(result.stdout)[0]["sqnr"] == "-inf"


def test_gemm_of_quantizers_and_wide_formats(matrix):
    x = np.load(matrix)
    for arguments in (
        ["--quantizer", "nvfp4_te", "--accumulator", "blackwell_nvfp4"],
        ["--format", "bfloat16", "--accumulator", "hopper_bf16"],
        ["--promote-every", "none"],
    ):
        out = matrix.with_name("d.npy")
        rows = json.loads(run("gemm", matrix, matrix, *arguments, "--out", out, "--json").stdout)
        assert float(rows[0]["sqnr"]) > 50  # infinite where both sums are exact
    q = lowprec.quantize(x, "e4m3fn", "1x128"), lowprec.quantize(x, "e4m3fn", "128x128")
    assert np.load(out).tobytes() == lowprec.gemm(*q, promote_every=None).tobytes()


def test_catalogues_are_listed():
    rows = json.loads(run("quantizers", "--json").stdout)
    assert [row["quantizer"] for row in rows] == lowprec.quantizers.names()
    rows = {row["accumulator"]: row for row in json.loads(run("accumulators", "--json").stdout)}
    assert list(rows) == lowprec.accumulators.names()
    assert rows["hopper_fp8"]["fraction bits"] == 13
    assert rows["float32"]["fraction bits"] is None
    about = {row["field"]: row["value"] for row in json.loads(run("quantizers", "nvfp4", "--json").stdout)}
    assert about["name"] == "nvfp4_te"
    about = {row["field"]: row["value"] for row in json.loads(run("accumulators", "hopper_fp8", "--json").stdout)}
    assert about["inputs"] == "e4m3fn, e5m2"


def test_help_of_a_command_keeps_its_lines():
    shown = run("costs", "--help").stdout
    assert "\\b" not in shown
    assert "\n  nodes      traffic between nodes" in shown


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_numbers_and_names_stay_whole_on_any_terminal(width, monkeypatch, capsys):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    heads = ("name", "a long title of a column", "b", "c", "what it is")
    rows = [
        ("first_of_all", 0.123456, 1e-30, None, "words that may be folded anywhere between"),
        ("second", 3, 4.5, 7, ""),
    ]
    cli_output.emit(heads, rows, "Title", False, False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert {"first_of_all", "0.12346", "1e-30", "second", "4.5", "7", "anywhere"} <= set(shown.split())
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    parts = shown.count("first_of_all")
    assert parts == 1 if width >= 60 else parts > 1


def test_gemm(matrix, tmp_path):
    out = tmp_path / "d.npy"
    rows = json.loads(run("gemm", matrix, matrix, "--promote-every", "128", "--out", out, "--json").stdout)
    x = np.load(matrix)
    qa, qb = lowprec.quantize(x, "e4m3fn", granularity="1x128"), lowprec.quantize(x, "e4m3fn", granularity="128x128")
    assert np.load(out).tobytes() == lowprec.gemm(qa, qb, accumulator="hopper_fp8", promote_every=128).tobytes()
    assert rows[0]["sqnr"] > rows[1]["sqnr"]


def test_logfmt(matrix):
    row = json.loads(run("logfmt", matrix, "--bits", "8", "--json").stdout)[0]
    assert row["bits per value"] == lowprec.logfmt.encode(np.load(matrix), bits=8).bits_per_value
    assert row["sqnr"] > 20


def test_logfmt_in_another_mode_and_rounding(tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32) * np.float32(0.1)
    np.save(tmp_path / "x.npy", x)
    row = json.loads(run("logfmt", str(tmp_path / "x.npy"), "--mode", "deepep", "--json").stdout)[0]
    assert row["bits per value"] == 10.25
    out = tmp_path / "x.logfmt"
    run("logfmt", str(tmp_path / "x.npy"), "--bits", "6", "--rounding", "stochastic", "--seed", "5", "--out", str(out))
    sent = lowprec.logfmt.encode(x, 6, rounding="stochastic", seed=5)
    assert lowprec.logfmt.from_bytes(out.read_bytes()).decode().tobytes() == sent.decode().tobytes()
