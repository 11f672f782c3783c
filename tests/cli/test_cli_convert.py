"""The command `convert`: exact or refused, and said where."""

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["convert", *arguments])
    return result.exit_code, result.output


def test_mxfp4_to_block_fp8(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    names = {}
    for name in ("narrow", "wide"):
        names[name] = str(tmp_path / f"{name}.npz")
        lp.quantize(x, quantizer="dsv4_fp4").save(names[name])
        x[:64] *= 2.0**-20
    to = ("--to", "e4m3fn", "--granularity", "128x128")
    code, text = run(names["narrow"], *to, "--check", "--json")
    row = json.loads(text)[0]
    assert (code, row["lossless"], row["values that change"], row["blocks"]) == (0, "yes", 0, 2)
    code, text = run(names["wide"], *to, "--check", "--json")
    row = json.loads(text)[0]
    assert (code, row["lossless"], row["blocks that change"], row["first"]) == (1, "no", 2, "0, 0")
    assert row["most binades"] > 14
    out = tmp_path / "out.npz"
    code, text = run(names["wide"], *to, "--out", str(out))
    assert code == 2
    assert "not written" in text
    assert not out.exists()
    code, _ = run(names["narrow"], *to, "--out", str(out))
    assert code == 0
    with np.load(out) as held:
        q = lp.Quantized(held["codes"], held["scale"], str(held["format"]), str(held["granularity"]), "ue8m0")
    assert np.array_equal(q.dequantize(), lp.Quantized.load(names["narrow"]).dequantize())
    assert run(str(out), "--to", "bfloat16", "--check")[0] == 0


def test_a_file_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "plain.npz")
    np.savez(path, codes=np.zeros((2, 64), np.uint8), scale=np.ones((2, 2), np.float32))
    code, text = run(path, "--to", "e4m3fn")
    assert code == 2
    assert "--from and --from-granularity are needed" in text
    assert run(path, "--to", "e4m3fn", "--from", "e2m1fn", "--from-granularity", "1x32", "--check")[0] == 0
