"""Files: whole or not at all, where they were asked for, with the mode that the umask leaves."""

import errno
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

import lowprec as lp
from lowprec import _files


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_the_umask_says_who_may_read_a_new_file_and_an_old_one_keeps_its_mode(tmp_path):
    path = tmp_path / "a"
    _files.write_bytes(path, b"1")
    assert (path.read_bytes(), mode(path)) == (b"1", 0o640)
    path.chmod(0o604)
    _files.write_bytes(path, b"22")
    assert (path.read_bytes(), mode(path)) == (b"22", 0o604)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
@pytest.mark.usefixtures("umask")
def test_python_and_the_command_line_save_with_one_mode(tmp_path):
    x = np.ones((8, 128), np.float32)
    np.save(tmp_path / "x.npy", x)
    lp.quantize(x, "e4m3fn 1x128").save(tmp_path / "q.npz")
    command = [sys.executable, "-m", "lowprec", "logfmt", "x.npy", "--bits", "8", "--out", "x.lfmt"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert {mode(tmp_path / name) for name in ("x.npy", "q.npz", "x.lfmt")} == {0o640}


def test_a_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "a", tmp_path / "link"
    link.symlink_to("disk/a")
    for content in (b"new", b"again"):  # what it points to need not exist
        _files.write_bytes(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert os.listdir(tmp_path / "disk") == ["a"]


def test_only_regular_files_are_replaced(tmp_path):
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to("loop")
    refused = [(pipe, "not a regular file"), ("/dev/null", "not a regular file"), (tmp_path, "Is a directory")]
    for path, why in [*refused, (tmp_path / "no" / "a", "No such file"), (loop, "Too many levels")]:
        with pytest.raises(OSError, match=why) as caught:
            _files.write_bytes(path, b"")
        assert caught.value.filename == os.fspath(path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert sorted(os.listdir(tmp_path)) == ["loop", "pipe"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_changes_nothing_and_names_the_file(tmp_path, monkeypatch, fails):
    path = tmp_path / "a"
    path.write_text("old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_files.os, fails, full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/a'"):
        _files.write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_name_of_the_greatest_length(tmp_path):
    path = tmp_path / ("n" * 255)
    _files.write_bytes(path, b"1")
    assert path.read_bytes() == b"1"


def test_a_folder_for_output(tmp_path):
    assert _files.make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"output folder '.*/file/a' cannot be written: Not a directory"):
        _files.make_folder(tmp_path / "file" / "a")
    (tmp_path / "a" / ".x.1-2.part").write_text("half")
    _files.remove_parts(tmp_path / "a")
    assert os.listdir(tmp_path / "a") == ["b"]


def test_tables_keep_every_bit(tmp_path):
    numbers = [0.1, -0.0, 5e-324, float("inf"), np.float32(0.1), np.float64(1) / 3]
    rows = [["a, b\n", i, x] for i, x in enumerate(numbers)]
    _files.write_text(tmp_path / "t.csv", _files.to_csv(["name", "step", "value"], rows))
    head, read = _files.read_csv(tmp_path / "t.csv")
    assert head == ["name", "step", "value"]
    assert [[name, int(step), float(value).hex()] for name, step, value in read] == [
        [name, step, float(value).hex()] for name, step, value in rows
    ]


def test_a_table_that_was_cut_off_is_damaged(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3")
    with pytest.raises(ValueError, match=r"t.csv is damaged: row 2 has 1 cells, its head 2"):
        _files.read_csv(path)
    path.write_text("")
    assert _files.read_csv(path) == ([], [])


def test_json_is_what_other_programs_read(tmp_path):
    path = tmp_path / "a.json"
    _files.write_json(path, {"x": float("nan"), "y": np.float32(0.5), 3: (np.int64(2), True, None), "å": np.float64(1)})
    assert _files.read_json(path) == {"x": "nan", "y": 0.5, "3": [2, True, None], "å": 1.0}
    assert "å" in path.read_text(encoding="utf-8")
    for damage in ('{"x": ', "[1]", "[" * 100_000):
        path.write_text(damage)
        with pytest.raises(ValueError, match=r"a.json is damaged \("):
            _files.read_json(path)
