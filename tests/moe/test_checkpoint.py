"""Checkpoint files: the same state gives the same bytes; damage of any kind is refused in one line."""

import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from lowprec import _files
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.run.checkpoint import CheckpointError, read, write
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer

HEADER = {"step": 7, "rate": 0.1 + 0.2, "name": "x", "nested": {"a": [1, 2]}}


def arrays():
    rng = np.random.default_rng(0)
    return {
        "weights/layers.0.w": rng.standard_normal((3, 5)).astype(np.float32),
        "m/layers.0.w": rng.integers(0, 2**16, (3, 5)).astype(np.uint16),
        "scalar": np.array(np.float32(-0.0)),
        "empty": np.zeros((0, 4)),
    }


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.npz"
    write(path, HEADER, arrays())
    header, back = read(path)
    assert header == HEADER
    assert header["rate"].hex() == HEADER["rate"].hex()
    assert list(back) == list(arrays())
    for name, array in arrays().items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


def test_the_same_state_is_the_same_file(tmp_path):
    write(tmp_path / "a", HEADER, arrays())
    write(tmp_path / "b", HEADER, arrays())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert os.listdir(tmp_path) in (["a", "b"], ["b", "a"])  # no temporary files left


@pytest.mark.slow
def test_any_changed_byte_is_refused_or_has_no_effect(tmp_path):
    path = tmp_path / "a.npz"
    write(path, HEADER, arrays())
    good = path.read_bytes()
    refused = 0
    for i in range(len(good)):
        path.write_bytes(good[:i] + bytes([good[i] ^ (1 << i % 8)]) + good[i + 1 :])
        try:
            header, back = read(path)
        except CheckpointError as error:
            refused += str(path) in str(error) and "\n" not in str(error)
        else:  # dates and other fields of the archive that carry nothing
            assert header == HEADER
            assert {n: a.tobytes() for n, a in back.items()} == {n: a.tobytes() for n, a in arrays().items()}
    assert refused > len(good) / 2


def test_any_cut_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    write(path, HEADER, arrays())
    good = path.read_bytes()
    for length in range(0, len(good), 37):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match="damaged, cut off or no lowprec checkpoint"):
            read(path)


def _rewritten(path, **changes):
    """The same archive with other header fields, its checksum kept as it was unless given."""
    with np.load(path) as file:
        members = dict(file)
    full = json.loads(members["header"].tobytes())
    full.update(changes)
    members["header"] = np.frombuffer(json.dumps(full).encode(), np.uint8)
    np.savez(path, **members)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "has version 1; this lowprec reads version 2"),
        ({"kind": "picture"}, "is no lowprec checkpoint but a 'picture'"),
        ({"content": {"step": 8}}, "does not match its SHA-256"),
        ({"sha256": "0" * 64}, "does not match its SHA-256"),
    ],
)
def test_other_headers(tmp_path, changes, message):
    path = tmp_path / "a.npz"
    write(path, HEADER, arrays())
    _rewritten(path, **changes)
    with pytest.raises(CheckpointError, match=message):
        read(path)


def test_foreign_files(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(CheckpointError, match="no such file"):
        read(path)
    with pytest.raises(CheckpointError, match="no such file"):
        read(tmp_path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(CheckpointError, match="no lowprec checkpoint"):
        read(path)
    np.savez(path, header=np.array(["text"], dtype=object))
    with pytest.raises(CheckpointError, match="no lowprec checkpoint"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match="no lowprec checkpoint"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no lowprec checkpoint"):
        read(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    write(path, HEADER, arrays())
    before = path.read_bytes()

    def broken(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files.os, "replace", broken)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        write(path, {"step": 8}, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


def test_a_folder_that_is_not_there(tmp_path):
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
