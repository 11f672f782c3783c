"""Commands on formats, catalogues and arrays in files, and how tables fit terminals."""

import re

import click
import numpy as np
import pytest
from command_line import csv_rows, refused, rows, run

import lowprec
from lowprec.cli import output as cli_output


def test_formats():
    known = {row["name"]: row for row in rows("formats")}
    assert known["e4m3fn"]["max"] == 448.0
    assert list(known) == lowprec.formats.names()
    facts = {row["property"]: row["value"] for row in csv_rows("formats", "e5m2")}
    assert facts["smallest_subnormal"] == repr(2.0**-16)
    grid = rows("formats", "e4m3fn", "--codes")
    assert [row["code"] for row in grid] == [f"0x{16 * i:02x}" for i in range(16)]
    assert (grid[7]["+e"], grid[7]["+f"], grid[8]["+1"]) == (448.0, "nan", -(2.0**-9))


def test_cast():
    found = rows("cast", "0.1", "-448", "1e9", "0x1p-9", "nan", "--to", "e4m3fn")
    assert [row["code"] for row in found] == ["0x1d", "0xfe", "0x7e", "0x01", "0x7f"]
    assert [row["result"] for row in found] == [0.1015625, -448.0, 448.0, 2.0**-9, "nan"]
    assert found[0]["bits"] == "00011101"
    assert "0.10156" in run("cast", "0.1", "--to", "e4m3fn").stdout


def test_quantize(matrix, tmp_path):
    out = tmp_path / "q.npz"
    (row,) = rows("quantize", matrix, "e4m3fn 1x128", "--out", out)
    x = np.load(matrix)
    q = lowprec.quantize(x, "e4m3fn 1x128")
    assert (row["shape"], row["bits_per_value"]) == ("32x256", q.bits_per_value)
    sqnr = 10 * np.log10(np.sum(x.astype("f8") ** 2) / np.sum((x - q.dequantize()) ** 2.0))
    assert row["sqnr"] == pytest.approx(sqnr)
    with np.load(out) as saved:
        assert np.array_equal(saved["codes"], q.codes)
        assert np.array_equal(saved["scale"], q.scale)


def test_a_saved_file_says_all_that_dequantizes_it(matrix, tmp_path):
    out = tmp_path / "q.npz"
    run("quantize", matrix, "nvfp4", "--out", out)
    with np.load(out) as saved:
        values = saved["scale"].repeat(16, axis=1) * lowprec.decode(saved["codes"], str(saved["format"]))
        values *= saved["tensor_scale"]
        assert [str(saved[name]) for name in ("granularity", "scale_format", "quantizer")] == [
            "1x16",
            "e4m3fn",
            "nvfp4_te",
        ]
    assert values.tobytes() == lowprec.quantize(np.load(matrix), "nvfp4").dequantize().tobytes()
    shown = run("check", out, "--values", matrix, "--quantizer", "nvfp4", "--causes").stdout
    assert shown == "nothing differs from nvfp4_te\n"


def test_unusual_values_are_counted_on_stderr(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.where(np.arange(256) == 130, np.inf, 1.0).reshape(2, 128))
    assert "holds 1 NaN or Inf among 256 values, the first at [1, 2]" in run("quantize", path).stderr
    assert rows("quantize", path)[0]["sqnr"] == "-inf"


def test_gemm_of_quantizers_and_wide_formats(matrix):
    for options in (
        "--quantizer nvfp4_te --accumulator blackwell_nvfp4", "--format bfloat16 --accumulator hopper_bf16"
    ):  # fmt: skip
        assert (
            float(rows("gemm", matrix, matrix, *options.split())[0]["sqnr"]) > 50
        )  # infinite where both sums are exact


@pytest.mark.parametrize("promote_every", [None, 128])
def test_gemm(matrix, tmp_path, promote_every):
    every = str(promote_every).lower()
    found = rows("gemm", matrix, matrix, "--promote-every", every, "--out", tmp_path / "d.npy")
    qa, qb = (lowprec.quantize(np.load(matrix), f"e4m3fn {block}") for block in ("1x128", "128x128"))
    product = lowprec.gemm(qa, qb, accumulator="hopper_fp8", promote_every=promote_every)
    assert np.load(tmp_path / "d.npy").tobytes() == product.tobytes()
    assert found[0]["sqnr"] > max(50, found[1]["sqnr"])


def test_catalogues_are_listed():
    assert [row["quantizer"] for row in rows("quantizers")] == lowprec.quantizers.names()
    known = {row["accumulator"]: row for row in rows("accumulators")}
    assert list(known) == lowprec.accumulators.names()
    assert [known[name]["fraction_bits"] for name in ("hopper_fp8", "float32")] == [13, None]
    for name, field, value in (("quantizers", "name", "nvfp4_te"), ("accumulators", "input_formats", "e4m3fn, e5m2")):
        about = rows(name, "nvfp4" if name == "quantizers" else "hopper_fp8")
        assert {row["field"]: row["value"] for row in about}[field] == value


def test_help_of_a_command_keeps_its_lines():
    shown = run("costs", "--help").stdout
    assert "\\b" not in shown
    assert "\n  nodes       traffic between nodes" in shown


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_numbers_and_names_stay_whole_on_any_terminal(width, monkeypatch, capsys):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    heads = ("name", "a long title of a column", "b", "c", "what it is")
    first = ("first_of_all", 0.123456, 1e-30, None, "words that may be folded anywhere between")
    second = ("second", 3, 4.5, 7, "")
    printed = click.command()(cli_output.machine_readable(lambda: cli_output.emit(heads, [first, second], "Title")))
    printed.main([], standalone_mode=False)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert {"first_of_all", "0.12346", "1e-30", "second", "4.5", "7", "anywhere"} <= set(shown.split())
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    parts = shown.count("first_of_all")
    assert parts == 1 if width >= 60 else parts > 1


def test_columns_are_honoured():
    wide, narrow = (run("formats", env={"COLUMNS": width}).output for width in (None, "60"))
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, wide.splitlines()))


def test_logfmt(matrix):
    (row,) = rows("logfmt", matrix, "--bits", "8")
    assert row["bits_per_value"] == lowprec.logfmt.encode(np.load(matrix), bits=8).bits_per_value
    assert row["sqnr"] > 20


def test_logfmt_in_another_variant_and_rounding(tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32) * np.float32(0.1)
    path, out = tmp_path / "x.npy", tmp_path / "x.logfmt"
    np.save(path, x)
    assert rows("logfmt", path, "--variant", "deepep")[0]["bits_per_value"] == 10.25
    run("logfmt", path, "--bits", "6", "--rounding", "stochastic", "--seed", "5", "--out", out)
    sent = lowprec.logfmt.encode(x, 6, rounding="stochastic", seed=5)
    assert lowprec.logfmt.from_bytes(out.read_bytes()).decode().tobytes() == sent.decode().tobytes()


@pytest.fixture
def attended(tmp_path):
    """Write operands and a dump; return the folder and the result."""
    rng = np.random.default_rng(0)
    q, k, v = (lowprec.round_to(rng.standard_normal((n, 64)), "bfloat16") for n in (4, 600, 600))
    found = lowprec.attention(q, k, v, kernel="fa3_bf16", causal=True, window=(400, 0), softcap=5.0, splits=2)
    for name, x in zip("qkv", (q, k, v), strict=True):
        np.save(tmp_path / f"{name}.npy", x)
    np.savez(tmp_path / "dump.npz", q=q, k=k, v=v, o=found.out, lse=found.lse, causal=True, window=(400, 0),
             softcap=5.0, splits=2)  # fmt: skip
    return tmp_path, found


def test_options_of_attention_are_those_of_python(attended):
    folder, found = attended
    files = [folder / f"{name}.npy" for name in "qkv"]
    options = ["--causal", "--window", 400, 0, "--softcap", 5, "--splits", 2, "--kernel", "fa3_bf16"]
    (row,) = rows("attention", *files, *options, "--out", folder / "out.npy")
    assert np.array_equal(np.load(folder / "out.npy"), found.out)
    assert row["sqnr"] > 40
    refused("attention", *files, "--page-size", 16, "--kernel", "flash2", match="page_size must be None for flash2")


def test_a_mask_of_attention_is_a_file_of_booleans(attended):
    folder, _ = attended
    q, k, v = (np.load(folder / f"{name}.npy") for name in "qkv")
    mask = np.random.default_rng(1).random((q.shape[-2], k.shape[-2])) < 0.5
    np.save(folder / "mask.npy", mask)
    np.save(folder / "numbers.npy", mask * 1.0)
    files = [folder / f"{name}.npy" for name in "qkv"]
    (row,) = rows("attention", *files, "--mask", folder / "mask.npy", "--kernel", "sdpa_math", "--out",
                  folder / "out.npy")  # fmt: skip
    assert np.array_equal(np.load(folder / "out.npy"), lowprec.attention(q, k, v, kernel="sdpa_math", mask=mask).out)
    assert row["sqnr"] > 100
    refused("attention", *files, "--mask", folder / "mask.npy", match="mask must be None for fa3_fp8")
    refused("attention", *files, "--mask", folder / "numbers.npy", "--kernel", "sdpa_math", match="mask must be bool")


def test_tiles_of_attention_kernels_name_the_head_sizes_of_v():
    tiles = {row["kernel"]: row["keys_per_tile"] for row in rows("attentions")}
    assert "96 (D <= 64, Dv <= 256)" in tiles["fa3_bf16"]
    assert (tiles["flash2"], tiles["sdpa_math"]) == ("128 (D <= 64), 64 (D <= 256)", "all")


def test_the_kernel_of_a_dump_is_found(attended):
    folder, _ = attended
    lines = run("identify", "--attention", folder / "dump.npz").stdout.splitlines()
    assert lines[0].startswith("fa3_bf16 reproduces all 256 outputs; 4 of 4 log-sum-exps are equal")
    assert "kernel='fa3_bf16'" in lines[1]
    np.savez(folder / "less.npz", q=np.ones((2, 8)), k=np.ones((2, 8)), v=np.ones((2, 8)))
    assert "must have arrays q, k, v, o, got none named o" in refused("identify", "--attention", folder / "less.npz")
    np.savez(folder / "typo.npz", widnow=(400, 0), **{name: np.ones((2, 8)) for name in "qkvo"})
    refused("identify", "--attention", folder / "typo.npz", match="unknown array 'widnow': did you mean 'window'?")
    refused(
        "identify",
        "--attention",
        folder / "dump.npz",
        "--format",
        "e4m3fn",
        match="--format must not be given with --attention",
    )
