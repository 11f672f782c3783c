"""Files: what NumPy writes is read, all else is an error in one line; written whole or not at all."""

import contextlib
import errno
import io
import os
import random
import stat
import subprocess
import sys
import threading
import tracemalloc
import zipfile

import hostile_files
import numpy as np
import pytest

import lowprec as lp
from lowprec import _files
from lowprec._files.npy import Archive, read_npy

RNG = np.random.default_rng(3)
ARRAYS = [
    *(RNG.integers(-100, 100, (3, 5)).astype(kind) for kind in "?bhilqefdgFD"),
    *(RNG.integers(0, 100, (4, 2, 3)).astype(kind) for kind in (">f4", "<u2", ">u8", ">c16")),
    np.array(7.5), np.array("text"), np.array(""), np.array([b"ab", b"c"]), np.zeros((2, 2), "V2"),
    np.empty((0, 3), np.float32), np.empty((2, 0, 2)), np.asfortranarray(RNG.random((3, 4))), RNG.random((3, 4)).T,
    RNG.random((1,) * 32),
]  # fmt: skip


def same(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert found.tobytes() == wanted.tobytes()
    assert found.flags.writeable
    assert found.flags.f_contiguous == wanted.flags.f_contiguous


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_what_numpy_writes_is_read(array, tmp_path):
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(tmp_path / "x.npy", "wb") as file:
            np.lib.format.write_array(file, array, version)
        same(read_npy(tmp_path / "x.npy"), np.load(tmp_path / "x.npy"))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", a=array, b=np.ones(3))
        with Archive(tmp_path / "x.npz") as held:
            assert held.names == ["a", "b"]
            same(held["a"], np.load(tmp_path / "x.npz")["a"])


def test_zeros_that_compress_well(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 22, np.uint8))
    assert os.path.getsize(tmp_path / "x.npz") < 1 << 13
    with Archive(tmp_path / "x.npz") as held:
        assert held["a"].size == 1 << 22


def test_headers_of_other_writers(tmp_path):
    for text in (
        "{'shape': (4, 4), 'descr': '<f4', 'fortran_order': False}", hostile_files.of_shape("(4L, 4L)"),
        '{"descr":"<f4","fortran_order":False,"shape":(4,4)}', hostile_files.of_shape("(4, 4)") + "  \n",
    ):  # fmt: skip
        (tmp_path / "x.npy").write_bytes(hostile_files.npy(text))
        assert read_npy(tmp_path / "x.npy").shape == (4, 4)


@contextlib.contextmanager
def little_memory(most):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def refused(read, path):
    """Read something that is an error in one line, with the file's name, and that takes little memory."""
    with little_memory(1 << 20), pytest.raises((ValueError, OSError)) as caught:
        read()
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize("name", hostile_files.BAD_NPY)
def test_bad_files(name, tmp_path):
    path = tmp_path / "bad.npy"
    path.write_bytes(hostile_files.BAD_NPY[name])
    refused(lambda: read_npy(path), path)


@pytest.mark.parametrize("name", hostile_files.bombs(("a",), hostile_files.GOOD))
def test_bad_archives(name, tmp_path):
    path = tmp_path / "bad.npz"
    path.write_bytes(hostile_files.bombs(("a",), hostile_files.GOOD)[name])

    def read():
        with Archive(path) as held:
            held["a"]

    refused(read, path)


@pytest.mark.slow
def test_a_bomb_that_unpacks_to_what_it_claims(tmp_path):
    """A header of one array, behind it zeros that unpack to a thousand times the file: only the array is allocated."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", hostile_files.GOOD + bytes(1 << 26))
        file.writestr("b.npy", hostile_files.npy(hostile_files.of_shape(f"({1 << 40},)"), bytes(1 << 26)))
    with little_memory(1 << 23), Archive(path) as held:
        assert held["a"].shape == (4, 6)
        with pytest.raises(ValueError, match="cannot hold float32 of shape"):
            held["b"]


def test_other_things_than_files(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "none", tmp_path / "loop", "/dev/zero"):
        for read in (lambda path=path: read_npy(path), lambda path=path: Archive(path)):
            with pytest.raises(OSError, match=str(path)):
                read()
    with pytest.raises(ValueError, match="null byte"):
        read_npy("a\0b")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    np.save(tmp_path / "x.npy", np.ones(2))
    with pytest.raises(ValueError, match=r"x\.npz: not .*: it is an archive of several arrays"):
        read_npy(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x\.npy: not .*: it is a single array"):
        Archive(tmp_path / "x.npy")
    with Archive(tmp_path / "x.npz") as held, pytest.raises(ValueError, match=r"x\.npz: not .*: it has no b"):
        held["b"]


def test_pipes_are_read_to_their_end(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(5))
    os.mkfifo(tmp_path / "pipe")
    content = (tmp_path / "x.npz").read_bytes()
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()
    with Archive(tmp_path / "pipe") as held:
        assert held["a"].tolist() == [0, 1, 2, 3, 4]
    writer.join()


def test_damage_anywhere(tmp_path):
    """Flipped bits, cuts and overwritten places of both kinds of file."""
    stored, deflated = io.BytesIO(), io.BytesIO()
    np.savez(stored, a=np.arange(6, dtype=np.float32), b=np.ones(3))
    np.savez_compressed(deflated, a=np.arange(6, dtype=np.float32), b=np.ones(3))
    draw = random.Random(11)
    loaded = 0
    for content in (hostile_files.GOOD, stored.getvalue(), deflated.getvalue()):
        path = tmp_path / ("x.npy" if content == hostile_files.GOOD else "x.npz")
        damaged = [content[:at] for at in range(0, len(content), 25)]
        for at in range(draw.randrange(3), len(content), 3):
            damaged.append(content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :])
        for _ in range(40):
            at, more = draw.randrange(len(content)), draw.randrange(1, 9)
            damaged.append(content[:at] + draw.choice((b"\xff", b"\0", b"(", b"9")) * more + content[at + more :])
        for bad in damaged:
            path.write_bytes(bad)
            try:
                if path.suffix == ".npy":
                    read_npy(path)
                else:
                    with Archive(path) as held:
                        held["a"], held["b"]
                loaded += 1
            except (ValueError, OSError) as error:
                assert str(path) in str(error)  # noqa: PT017
                assert "\n" not in str(error)  # noqa: PT017
    assert loaded > 20


# --- writing ----------------------------------------------------------------------------------------------------------


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

    monkeypatch.setattr(os, fails, full)
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
    _files.remove_temporary_files(tmp_path / "a")
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
