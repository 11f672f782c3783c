"""Every command that reads a file, with every file that it should not be given: one line that names the file."""

import os
import shutil
from pathlib import Path

import hostile_files
import numpy as np
import pytest
from command_line import refused, run

import lowprec as lp
from lowprec.vectors.recordings import RECORDINGS

#: Commands with BAD in place of a file of arrays.
OF_NPY = {
    "quantize": ["quantize", "BAD"], "quantize mxfp4": ["quantize", "BAD", "mxfp4_floor"],
    "gemm a": ["gemm", "BAD", "x.npy"], "gemm b": ["gemm", "x.npy", "BAD"], "logfmt": ["logfmt", "BAD"],
    "format-errors": ["format-errors", "BAD", "--format", "bf16"],
    "check values": ["check", "q.npz", "--values", "BAD"],
    "mma a": ["mma", "BAD", "codes.npy"], "mma b": ["mma", "codes.npy", "BAD"],
    "mma c": ["mma", "codes.npy", "codes.npy", "BAD"],
    "mma scale": ["mma", "codes.npy", "codes.npy", "--a-scale", "BAD", "--b-scale", "codes.npy"],
}  # fmt: skip
OF_NPZ = {
    "check": ["check", "BAD", "--values", "x.npy"], "convert": ["convert", "BAD"], "mma dump": ["mma", "BAD"],
    "convert from": ["convert", "BAD", "--from", "e4m3fn", "--from-granularity", "1x128"],
    "identify": ["identify", "BAD"], "identify with": ["identify", "dump.npz", "--answers", "BAD"],
}  # fmt: skip
OF_TEXT = {
    "recipes": ["recipes", "BAD.toml"], "bench": ["bench", "train", "--recipe", "BAD.toml"],
    "train config": ["train", "--config", "BAD.toml"], "train recipe": ["train", "--recipe", "BAD.toml"],
    "costs": ["costs", "--model", "BAD.toml"], "vectors": ["vectors", "compare", "cast/e4m3fn", "--results", "BAD"],
    "ablate": ["ablate", "BAD.py"],
}  # fmt: skip
BAD_TEXT = {
    "noise": bytes(range(128, 256)), "latin": b'name = "\xe9"', "zeros": bytes(64), "nested": b"a = " + b"[" * 5000,
    "archive": hostile_files.archive({}), "open": b'name = "x', "list": b"name = []\nbase = []\n",
    "date": b"base = 1979-05-27",
}  # fmt: skip
NAMES = ("codes", "scale", "scales", "header", "a", "b", "d")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    q = lp.quantize(x, "e4m3fn 1x128")
    np.save(folder / "x.npy", x)
    np.save(folder / "codes.npy", q.codes)
    q.save(folder / "q.npz")
    np.savez(folder / "dump.npz", a=q.codes, b=q.codes, d=lp.mma(q.codes, q.codes))
    return folder


def each(commands, content, suffix, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for words in commands.values():
        name = next(word for word in words if word.startswith("BAD")).replace("BAD", f"bad{suffix}")
        Path(name).write_bytes(content)
        refused(*(name if word.startswith("BAD") else word for word in words), match=name)


@pytest.mark.parametrize("bad", hostile_files.BAD_NPY)
def test_arrays(bad, folder, monkeypatch):
    each(OF_NPY, hostile_files.BAD_NPY[bad], ".npy", folder, monkeypatch)


@pytest.mark.parametrize("bad", BOMBS := hostile_files.bombs(NAMES, hostile_files.GOOD))
def test_archives(bad, folder, monkeypatch):
    each(OF_NPZ, BOMBS[bad], ".npz", folder, monkeypatch)


def test_archives_of_other_arrays(folder, monkeypatch):
    """Right members of wrong types, sizes and meanings."""
    good = {"codes": np.zeros((4, 32), np.uint8), "scale": np.ones((4, 1), np.float32), "a": np.zeros((2, 8), np.uint8),
            "b": np.zeros((3, 8), np.uint8), "d": np.zeros((2, 3), np.float32)}  # fmt: skip
    others = [np.zeros(3, "c8"), np.array("text"), np.zeros((0, 4), np.uint8), np.zeros((2, 3, 4, 5)), np.array(1.5),
              np.zeros((4, 32), "V1"), np.full((1, 1), "x"), np.zeros((7, 5), "M8[s]").view("i8")]  # fmt: skip
    words = {"codes": ["check", "convert from"], "scale": ["convert from"], "a": ["mma dump", "identify"],
             "b": ["mma dump", "identify"], "d": ["mma dump", "identify"]}  # fmt: skip
    for name, commands in words.items():
        for other in others:
            content = hostile_files.archive({key: hostile_files.saved(x) for key, x in {**good, name: other}.items()})
            each({key: OF_NPZ[key] for key in commands}, content, ".npz", folder, monkeypatch)


@pytest.mark.sampled(0, default=6)
@pytest.mark.parametrize("bad", hostile_files.bombs(("A", "B", "C", "D", "header"), hostile_files.GOOD))
def test_folders_of_archives(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = hostile_files.bombs(("A", "B", "C", "D", "header"), hostile_files.GOOD)[bad]
    for path in (file := Path("recorded", RECORDINGS[0].file), Path("run", "checkpoint.npz")):
        path.parent.mkdir()
        path.write_bytes(content)
    refused("selftest", "--recordings", "recorded", match=file.name)
    train = ("train", "--config", "nano", "--steps", "1", "--data", "synthetic", "--out", "run", "--resume")
    (output,) = [line for line in run(*train, code=2).stderr.splitlines() if not line.startswith("[")]
    assert output.startswith("error: checkpoint 'run/checkpoint.npz' is damaged, cut off or not a lowprec checkpoint")


@pytest.mark.parametrize("bad", BAD_TEXT)
def test_texts(bad, folder, monkeypatch):
    each(OF_TEXT, BAD_TEXT[bad], "", folder, monkeypatch)


@pytest.mark.parametrize("words", [*OF_NPY.values(), *OF_NPZ.values(), *OF_TEXT.values()], ids=" ".join)
def test_what_is_no_file(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for suffix in ("", ".toml", ".py"):
        Path(f"directory{suffix}").mkdir(exist_ok=True)
    for name in ("missing", "directory"):
        refused(*(word.replace("BAD", name) for word in words), match=name)


# --- results in place of inputs --------------------------------------------------------------------------------------

RESULTS = {
    "quantize": ["quantize", "x.npy", "--out", "OUT"], "gemm": ["gemm", "x.npy", "y.npy", "--out", "OUT"],
    "logfmt": ["logfmt", "x.npy", "--out", "OUT"], "convert": ["convert", "q.npz", "--out", "OUT"],
    "mma": ["mma", "codes.npy", "other.npy", "--out", "OUT"], "mma dump": ["mma", "dump.npz", "--out", "OUT"],
    "mma scales": ["mma", "codes.npy", "other.npy", "--a-scale", "x.npy", "--b-scale", "y.npy", "--out", "OUT"],
    "identify": ["identify", "dump.npz", "--answers", "q.npz", "--write-probes", "OUT"],
}  # fmt: skip


@pytest.mark.parametrize("words", RESULTS.values(), ids=RESULTS)
def test_a_result_never_replaces_an_input(words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.npy", "codes.npy", "q.npz", "dump.npz"):
        shutil.copy(folder / name, ".")
    shutil.copy("x.npy", "y.npy")
    shutil.copy("codes.npy", "other.npy")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in [word for word in words if word in before]:
        Path("link").symlink_to(name)
        os.link(name, "hard")
        for out in (name, f"./{name}", str(tmp_path / name), f"../{tmp_path.name}/{name}", "link", "hard"):
            output = refused(*(word.replace("OUT", out) for word in words), match="is an input of the command")
            assert out in output
        os.remove("link")
        os.remove("hard")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
