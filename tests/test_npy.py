"""Reading .npy and .npz: what NumPy reads, and of all else an error in one line, before anything is allocated."""

import contextlib
import io
import os
import random
import threading
import tracemalloc
import zipfile

import hostile_files
import numpy as np
import pytest

from lowprec._npy import Archive, read_npy

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
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    assert len(said) < 600


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
    with pytest.raises(ValueError, match=r"x\.npz: not .*: an archive of several arrays"):
        read_npy(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x\.npy: not .*: a single array"):
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
