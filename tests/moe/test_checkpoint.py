"""Checkpoint files: the same state gives the same bytes; damage of any kind is refused in one line."""

import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from small_models import in_bytes

from lowprec import _files
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.run.checkpoint import CheckpointError, read, write
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer

HEADER = {"step": 7, "rate": 0.1 + 0.2, "name": "x", "nested": {"a": [1, 2]}}


ARRAYS = {
    "weights/layers.0.w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5),
    "m/layers.0.w": np.arange(5**6, step=1042, dtype=np.uint16).reshape(3, 5),
    "scalar": np.array(np.float32(-0.0)),
    "empty": np.zeros((0, 4)),
}


@pytest.fixture
def path(tmp_path):
    """A checkpoint."""
    write(tmp_path / "a.npz", HEADER, ARRAYS)
    return tmp_path / "a.npz"


def test_what_is_written_is_read(path):
    header, back = read(path)
    assert header == HEADER
    assert header["rate"].hex() == HEADER["rate"].hex()
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (back[name].dtype, back[name].shape, back[name].tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_the_same_state_is_the_same_file(path, tmp_path):
    write(tmp_path / "b.npz", HEADER, ARRAYS)
    assert path.read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "b.npz"]  # no temporary files left


@pytest.mark.slow
def test_any_changed_byte_is_refused_or_has_no_effect(path):
    good, refused = path.read_bytes(), 0
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ (1 << i % 8)]) + good[i + 1 :])
        try:
            header, back = read(path)
        except CheckpointError as error:
            refused += str(path) in str(error) and "\n" not in str(error)
        else:  # dates and other fields of the archive that carry nothing
            assert header == HEADER
            assert in_bytes(back) == in_bytes(ARRAYS)
    assert refused > len(good) / 2


def test_any_cut_is_refused(path):
    good = path.read_bytes()
    for length in range(0, len(good), 37):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match="damaged, cut off or no lowprec checkpoint"):
            read(path)


@pytest.mark.parametrize(("changes", "message"), [
    ({"version": 1}, "has version 1; this lowprec reads versions 2 and 3"),
    ({"kind": "picture"}, "is no lowprec checkpoint but a 'picture'"),
    ({"content": {"step": 8}}, "does not match its SHA-256"),
    ({"sha256": "0" * 64}, "does not match its SHA-256"),
])  # fmt: skip
def test_other_headers(path, changes, message):
    with np.load(path) as file:
        members = dict(file)
    header = json.loads(members["header"].tobytes()) | changes  # its checksum stays as it was unless given
    np.savez(path, **members | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    with pytest.raises(CheckpointError, match=message):
        read(path)


@pytest.mark.parametrize(("make", "message"), [
    (lambda path: None, "no such file"),
    (lambda path: path.mkdir(), "no such file"),
    (lambda path: np.savez(path, a=np.zeros(3)), "no lowprec checkpoint"),
    (lambda path: np.savez(path, header=np.array(["text"], dtype=object)), "no lowprec checkpoint"),
    (lambda path: zipfile.ZipFile(path, "w").writestr("readme.txt", "hello"), "no lowprec checkpoint"),
    (lambda path: path.write_bytes(b""), "no lowprec checkpoint"),
])  # fmt: skip
def test_foreign_files(tmp_path, make, message):
    make(tmp_path / "b.npz")
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "b.npz")


def test_a_failed_write_leaves_the_old_file(path, tmp_path, monkeypatch):
    before = path.read_bytes()

    def broken(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files.os, "replace", broken)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        write(path, {"step": 8}, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]
    with pytest.raises(CheckpointError, match="cannot be written: No such file or directory"):
        write(tmp_path / "missing" / "a.npz", HEADER, {})


@pytest.mark.slow
def test_a_branch_may_route_otherwise_and_nothing_else(tmp_path):
    """Groups shape no parameter: a checkpoint goes on with others, and what has other parameters is refused."""
    corpus, schedule = load_corpus("stdlib"), Schedule(peak=1e-3, warmup_steps=1, total_steps=4)
    trainer = Trainer("nano", "bf16", corpus, seed=0, schedule=schedule)
    trainer.step()
    trainer.save(tmp_path / "c.npz")
    free = replace(trainer.config, groups=1, kept_groups=1)
    other = Trainer.load(tmp_path / "c.npz", data=corpus, config=free)
    assert other.config == free
    assert all(np.array_equal(other.model.params[name], w) for name, w in trainer.model.params.items())
    assert other.step().loss != trainer.step().loss
    with pytest.raises(CheckpointError, match="does not fit this model"):
        Trainer.load(tmp_path / "c.npz", data=corpus, config=replace(trainer.config, dense_width=128))
