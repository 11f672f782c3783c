"""Recordings of real GPUs from a checkout: converted, checked, compared; and errors of damaged files."""

from pathlib import Path

import numpy as np
import pytest
from recordings import FOLDER, needs_recordings
from tools import command

import lowprec as lp
from lowprec._files.npy import npz_bytes
from lowprec.vectors import recordings
from lowprec.vectors.recordings import RECORDINGS, Recording, RecordingError, convert, digest, digests, read

LINES = 30


def write_text(path: Path, values: np.ndarray, digits: str) -> None:
    rows = (" ".join(format(int(x), digits) for x in np.atleast_1d(row)) for row in values.view(np.uint32))
    path.write_text("".join(row + " \n" for row in rows))


def write_checkout(folder: Path, which: Recording, lines: int = LINES) -> dict[str, np.ndarray]:
    """Write the files of a recording as the repository has them: float32 bits in digits; return the arrays."""
    rng = np.random.default_rng(1)
    name = {"e4m3": "E4M3", "e5m2": "E5M2", "f16": "fp16", "bf16": "bf16", "tf32": "tf32"}[which.operand]
    here = folder / "model_validation" / which.gpu / name
    here.mkdir(parents=True, exist_ok=True)
    k = 32 if name.startswith("E") else 8
    a, b = (lp.round_to(rng.standard_normal((lines, k), np.float32), which.format) for _ in "ab")
    c, d = (rng.standard_normal(lines).astype(np.float16).astype(np.float32) for _ in "cd")
    half = which.output == "f16"
    write_text(here / f"a_{which.gpu}_{name}.txt", a, "08x")
    write_text(here / f"b_{which.gpu}_{name}.txt", b, "08x")
    write_text(here / f"c_{which.gpu}_fp32.txt", c, "032b")
    write_text(here / f"d_{which.gpu}_{'fp16' if half else 'fp32'}.txt", d, "032b")
    codes = [x.view(np.uint32) if which.operand == "tf32" else lp.encode(x, which.format) for x in (a, b)]
    results = [x.astype(np.float16).view(np.uint16) if half else x.view(np.uint32) for x in (c, d)]
    if not which.has_c:
        results[0] = np.zeros_like(results[0])
    return dict(zip("ABCD", [*codes, *results], strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", RECORDINGS[4:8] + RECORDINGS[-20:], ids=lambda r: r.file)
def test_texts_become_bits(which: Recording, tmp_path: Path) -> None:
    wanted = write_checkout(tmp_path, which)
    found = convert(tmp_path, which, LINES)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("a_H100_E4M3.txt", lambda t: t.replace(t[:8], "3f7a0001", 1), "must have values of e4m3fn, got 3f7a0001"),
        ("a_H100_E4M3.txt", lambda t: t.replace(t[:8], "3f7", 1), "must be words of 8 digits, got"),
        ("b_H100_E4M3.txt", lambda t: t[t.index("\n") + 1 :], "files must have one output per line"),
        ("c_H100_fp32.txt", lambda t: t[t.index("\n") + 1 :], "files must have one output per line"),
        ("d_H100_fp32.txt", lambda t: t.replace("0", "2", 1), "must be words of 32 digits, got"),
        ("c_H100_fp32.txt", lambda t: "\xe9" + t, "must be ASCII text, got other bytes"),
    ],
)
def test_damaged_texts(file: str, change, words: str, tmp_path: Path) -> None:
    which = Recording("H100", "e4m3", "f32")
    write_checkout(tmp_path, which)
    path = tmp_path / "model_validation" / "H100" / "E4M3" / file
    path.write_text(change(path.read_text()))
    with pytest.raises(RecordingError, match=words):
        convert(tmp_path, which, LINES)
    path.unlink()
    with pytest.raises(RecordingError, match="No such file"):
        convert(tmp_path, which, LINES)


def test_counts_and_digests_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = RECORDINGS[0]
    arrays = write_checkout(tmp_path, which)
    monkeypatch.setattr(recordings, "RECORDINGS", (which,))
    with pytest.raises(RecordingError, match="files must have 5000 outputs, as published, got 30"):
        list(recordings.write(tmp_path, tmp_path / "out"))
    monkeypatch.setattr(recordings.convert, "__defaults__", (LINES,))
    with pytest.raises(RecordingError, match="git checkout b12b5a7"):
        list(recordings.write(tmp_path, tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())
    monkeypatch.setattr(recordings, "digests", lambda: {which.file: digest(arrays)})
    assert list(recordings.write(tmp_path, tmp_path / "out")) == [(which, LINES)]
    assert digest(read(tmp_path / "out", which)) == digest(arrays)


def test_digests_are_of_all_recordings() -> None:
    assert sorted(digests()) == sorted(r.file for r in RECORDINGS)
    assert len(set(digests().values())) < 48  # H200 recorded what H100 did, L40S what Ada did


@needs_recordings
@pytest.mark.parametrize("which", RECORDINGS, ids=lambda r: r.file)
def test_the_folder_holds_the_published_recordings(which: Recording) -> None:
    assert digest(read(Path(FOLDER), which)) == digests()[which.file]


def test_verify_counts_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = Recording("Ada", "e4m3", "f32")
    arrays = write_checkout(tmp_path, which)
    a, b, c = (arrays[x] for x in "ABC")
    d = lp.mma(a, b, np.diag(c.view(np.float32)), accumulator="ada_fp8", a_format="e4m3fn", b_format="e4m3fn")
    arrays["D"] = np.ascontiguousarray(d.diagonal()).view(np.uint32)
    monkeypatch.setattr(recordings, "RECORDINGS", (which,))
    for wrong in (0, 3):
        arrays["D"][:wrong] ^= 1
        (tmp_path / which.file).write_bytes(npz_bytes(arrays))
        printed = command("selftest", "--recordings", tmp_path, code=int(wrong > 0))
        assert printed.rstrip().endswith(f"{wrong} of {LINES} recorded outputs differ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import-recordings", ".", "--out", "out"], "check out https://github.com"),
        (["selftest", "--recordings", "."], "made by lowprec import-recordings CHECKOUT --out"),
        (["selftest", "--recordings", ".", "--exhaustive"], "are for casts"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in command(*arguments, code=2)
