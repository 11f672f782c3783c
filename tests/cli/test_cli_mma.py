"""`lowprec mma`: raw codes from files or the line, and what differs from a dump."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli


def run(*arguments, code=0):
    done = CliRunner().invoke(cli, ["mma", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def operands(tmp_path):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 0x7E, (n, 64)).astype(np.uint8) for n in (3, 5))
    c = rng.standard_normal((3, 5)).astype(np.float32)
    for name, x in (("a", a), ("b", b), ("c", c)):
        np.save(tmp_path / f"{name}.npy", x)
        words = x.view(f"u{x.itemsize}")
        (tmp_path / f"{name}.txt").write_text("\n".join(" ".join(f"{w:0{2 * x.itemsize}x}" for w in r) for r in words))
    d = lp.mma(a, b, c, accumulator="ada_fp8", a_format="e4m3fn", b_format="e5m2")
    np.savez(tmp_path / "dump.npz", A=a, B=b, C=c.view(np.uint32), D=d.view(np.uint32))
    return tmp_path, d


OPTIONS = ("--accumulator", "ada_fp8", "--format", "e4m3fn,e5m2")


@pytest.mark.parametrize("suffix", ["npy", "txt"])
def test_files_of_codes(operands, suffix):
    folder, d = operands
    files = [folder / f"{x}.{suffix}" for x in "abc"]
    rows = json.loads(run(*files, *OPTIONS, "--json").stdout)
    assert [int(row["bits"], 16) for row in rows] == d.view(np.uint32).reshape(-1).tolist()
    assert [row["at"] for row in rows[4:6]] == ["[0, 4]", "[1, 0]"]
    run(*files, *OPTIONS, "--out", folder / "d.npy")
    assert np.array_equal(np.load(folder / "d.npy").view(np.uint32), d.view(np.uint32))


def test_words_on_the_line_and_scales():
    assert "0x42000000" in run("0x" + ",0x".join(["38"] * 32), "0x" + ",0x".join(["38"] * 32)).stdout
    ones, two, half = "0x" + ",".join(["38"] * 32), "0x80", "0x7e"
    row = json.loads(
        run(ones, ones, "--accumulator", "blackwell_mxf8", "--a-scale", two, "--b-scale", half, "--json").stdout
    )
    assert row == [{"at": "[0, 0]", "bits": "0x42000000", "value": 32.0}]


def test_a_dump_with_its_result(operands):
    folder, d = operands
    assert "0 of 15 outputs differ" in run(folder / "dump.npz", *OPTIONS).stdout
    said = run(folder / "dump.npz", "--accumulator", "hopper_fp8", "--format", "e4m3fn,e5m2", code=1).stdout
    wrong = lp.mma(np.load(folder / "a.npy"), np.load(folder / "b.npy"), np.load(folder / "c.npy"), b_format="e5m2")
    count = np.count_nonzero(wrong.view(np.uint32) != d.view(np.uint32))
    assert count > 0
    assert said.rstrip().endswith(f"{count} of 15 outputs differ")
    assert "their value" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.npz",), "No such file"), (("a.npy",), "a single array"), (("a.npy", "missing.npy"), "No such file"),
        (("no.npz",), "needs the arrays a and b"), (("noise.txt",), "not an .npz of arrays"),
        (("a.npy", "cut.npy"), "damaged"), (("0x38", "0x3x"), "hexadecimal"), (("0x38,38/38", "0x38"), "one length"),
        (("0x38,38", "0x38"), "K differs"), (("a.txt", "noise.txt"), "hexadecimal"),
        (("0x38", "0x38", "0x3f800000", "--accumulator", "hopper_fp8_f16"), "words of 32 bits"),
        (("0x38", "0x38", "--accumulator", "none"), "unknown accumulator"), (("x.npy", "x.npy"), "shape"),
        (("f.npy", "a.npy"), "unsigned integers"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(operands, monkeypatch, arguments, words):
    folder, _ = operands
    monkeypatch.chdir(folder)
    (folder / "cut.npy").write_bytes((folder / "a.npy").read_bytes()[:90])
    np.savez(folder / "no.npz", a=np.ones(3))
    (folder / "noise.txt").write_text("no words")
    np.save(folder / "x.npy", np.uint8([1, 2]))
    np.save(folder / "f.npy", np.ones((3, 64)))
    done = run(*arguments, code=2)
    assert words in done.stderr, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
