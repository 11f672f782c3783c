"""The command `convert`: exact or refused, with the place of the first change."""

from pathlib import Path

import numpy as np
from command_line import rows, run

import lowprec as lp


def test_mxfp4_to_block_fp8(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    narrow, wide, out = (tmp_path / f"{name}.npz" for name in ("narrow", "wide", "out"))
    lp.quantize(x, "dsv4_fp4").save(narrow)
    x[:64] *= 2.0**-20
    lp.quantize(x, "dsv4_fp4").save(wide)
    to = ("--to", "e4m3fn", "--granularity", "128x128")
    (row,) = rows("convert", narrow, *to, "--check")
    assert (row["lossless"], row["changed_values"], row["blocks"]) == ("yes", 0, 2)
    (row,) = rows("convert", wide, *to, "--check", code=1)
    assert (row["lossless"], row["changed_blocks"], row["first"]) == ("no", 2, "0, 0")
    assert row["max_binades"] > 14
    assert "not written" in run("convert", wide, *to, "--out", out, code=2).stderr
    assert not out.exists()
    run("convert", narrow, *to, "--out", out)
    with np.load(out) as held:
        q = lp.Quantized(held["codes"], held["scale"], str(held["format"]), str(held["granularity"]), "e8m0fnu")
    assert np.array_equal(q.dequantize(), lp.Quantized.load(narrow).dequantize())
    run("convert", out, "--to", "bfloat16", "--check")


def test_what_a_file_does_not_say_is_said_beside_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", codes=np.zeros((2, 64), np.uint8), scale=np.ones((2, 2), np.float32))
    source = ("--from", "e2m1fn", "--from-granularity", "1x32")
    run("convert", tmp_path / "plain.npz", "--to", "e4m3fn", *source, "--check")
