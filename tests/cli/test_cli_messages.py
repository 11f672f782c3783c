"""Damaged and absurd input ends in one line and exit code 2; tables have the width that is asked for."""

import io
import zipfile

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli


def run(*arguments, **more):
    return CliRunner().invoke(cli, [str(a) for a in arguments], **more)


def refused(*arguments):
    done = run(*arguments)
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture
def matrix(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32))
    return tmp_path / "x.npy"


def test_a_header_that_claims_more_than_there_is_memory(tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (1 << 42, 1 << 10)})
    (tmp_path / "x.npy").write_bytes(content.getvalue() + bytes(64))
    refused("quantize", tmp_path / "x.npy", "--to", "e4m3fn")


def test_an_archive_that_is_cut_off(tmp_path, matrix):
    content = io.BytesIO()
    np.savez(content, x=np.ones(10))
    (tmp_path / "cut.npz").write_bytes(content.getvalue()[:100])
    for command in (["quantize"], ["gemm", matrix], ["error"]):
        assert "not a .npy file of numbers" in refused(*command, tmp_path / "cut.npz")


@pytest.mark.parametrize("block", ["1x99999999999999999999", "99999999999999999999x1", "0x1"])
def test_absurd_blocks(matrix, block):
    done = run("quantize", matrix, "--to", "e4m3fn", "--granularity", block)
    assert done.exit_code in (0, 2)
    assert done.exit_code == 0 or done.stderr.startswith("error: ")


def test_a_member_that_is_no_array(tmp_path, matrix):
    with zipfile.ZipFile(tmp_path / "q.npz", "w") as file:
        file.writestr("codes.npy", b"no array")
        file.writestr("scale.npy", b"neither")
    refused("check", tmp_path / "q.npz", "--values", matrix)


def test_an_ablation_with_a_mistake(tmp_path):
    (tmp_path / "mine.py").write_text("ablation = (\n")
    assert "mine.py, line 1" in refused("ablate", tmp_path / "mine.py", "--list")


def test_scales_inside_an_instruction_are_named(matrix):
    assert "blackwell_mxf8" in refused("gemm", matrix, matrix, "--quantizer", "mxfp8", "--promote-every", 128)


def test_columns_are_honoured():
    wide, narrow = (run("formats", env={"COLUMNS": width}).output for width in (None, "60"))
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, wide.splitlines()))


def test_arrays_of_ml_dtypes_are_codes():
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(ml_dtypes.float8_e4m3fn)
    codes = x.view(np.uint8)
    assert np.array_equal(lp.decode(x, "e4m3fn"), x.astype(np.float32))
    assert np.array_equal(lp.mma(x, x), lp.mma(codes, codes))
    y = x.astype(np.float32).astype(ml_dtypes.float8_e5m2)
    assert np.array_equal(lp.mma(x, y), lp.mma(codes, y.view(np.uint8), b_format="e5m2"))
    assert lp.Quantized(y, np.ones((1, 1), np.float32), "e5m2", "tensor").codes.dtype == np.uint8
    with pytest.raises(TypeError, match="codes of e5m2 are needed, the array holds float8_e4m3fn"):
        lp.decode(x, "e5m2")
    assert lp.Quantized(x, np.ones((1, 1), np.float32), "e4m3fn", "tensor").codes.dtype == np.uint8


def test_types_of_numpy_and_ml_dtypes_are_formats():
    y = np.float32([1.0, 448.0])
    for fmt in (ml_dtypes.float8_e4m3fn, np.dtype(ml_dtypes.float8_e4m3fn)):
        assert np.array_equal(lp.encode(y, fmt), lp.encode(y, "e4m3fn"))
        assert lp.formats.get(fmt) is lp.formats["e4m3fn"]
    assert lp.formats.get(np.float16) is lp.formats["float16"]
    with pytest.raises(TypeError, match="a format is a name"):
        lp.encode(y, np.int64)
