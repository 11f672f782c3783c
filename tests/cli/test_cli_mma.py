"""`lowprec mma`: raw codes from files or the line, and what differs from a dump."""

import numpy as np
import pytest
from command_line import rows, run

import lowprec as lp


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
    found = rows("mma", *files, *OPTIONS)
    assert [int(row["bits"], 16) for row in found] == d.view(np.uint32).reshape(-1).tolist()
    assert [row["index"] for row in found[4:6]] == ["[0, 4]", "[1, 0]"]
    run("mma", *files, *OPTIONS, "--out", folder / "d.npy")
    assert np.array_equal(np.load(folder / "d.npy").view(np.uint32), d.view(np.uint32))


def test_words_on_the_line_and_scales():
    ones, two, half = "0x" + ",".join(["38"] * 32), "0x80", "0x7e"
    assert "0x42000000" in run("mma", ones, ones.replace(",", ",0x")).stdout
    scaled = ("--accumulator", "blackwell_mxf8", "--a-scale", two, "--b-scale", half)
    assert rows("mma", ones, ones, *scaled) == [{"index": "[0, 0]", "bits": "0x42000000", "value": 32.0}]


def test_a_dump_with_its_result(operands):
    folder, d = operands
    assert "0 of 15 outputs differ" in run("mma", folder / "dump.npz", *OPTIONS).stdout
    output = run("mma", folder / "dump.npz", "--accumulator", "hopper_fp8", "--format", "e4m3fn,e5m2", code=1).stdout
    wrong = lp.mma(np.load(folder / "a.npy"), np.load(folder / "b.npy"), np.load(folder / "c.npy"), b_format="e5m2")
    count = np.count_nonzero(wrong.view(np.uint32) != d.view(np.uint32))
    assert count > 0
    assert output.rstrip().endswith(f"{count} of 15 outputs differ")
    assert "expected value" in output
