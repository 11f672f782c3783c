"""Checkpoint files: the same state gives the same bytes, damage is refused in one line, names mean what they meant."""

import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from golden_runs import golden, short_text
from small_models import in_bytes

import lowprec as lp
from lowprec.definitions import short_hash
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.run import checkpoint
from lowprec.moe.run.checkpoint import CheckpointError, read, write
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.train import train
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import recipes

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
        with pytest.raises(CheckpointError, match="is damaged, cut off or not a lowprec checkpoint"):
            read(path)


@pytest.mark.parametrize(("changes", "message"), [
    ({"version": 1}, "must have version 2 or 3, got 1"),
    ({"kind": "picture"}, "must be a lowprec checkpoint, got a 'picture'"),
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
    (lambda path: None, "does not exist"),
    (lambda path: path.mkdir(), "does not exist"),
    (lambda path: np.savez(path, a=np.zeros(3)), "not a lowprec checkpoint"),
    (lambda path: np.savez(path, header=np.array(["text"], dtype=object)), "not a lowprec checkpoint"),
    (lambda path: zipfile.ZipFile(path, "w").writestr("readme.txt", "hello"), "not a lowprec checkpoint"),
    (lambda path: path.write_bytes(b""), "not a lowprec checkpoint"),
])  # fmt: skip
def test_foreign_files(tmp_path, make, message):
    make(tmp_path / "b.npz")
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "b.npz")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint '.*c.npz' cannot be written: No such file or directory"):
        write(tmp_path / "absent" / "c.npz", {}, {})


@pytest.mark.slow
def test_a_branch_may_route_otherwise_and_nothing_else(tmp_path):
    """Groups shape no parameter: a checkpoint goes on with others, and what has other parameters is refused."""
    corpus, schedule = load_corpus("stdlib"), Schedule(peak_lr=1e-3, warmup_steps=1, total_steps=4)
    trainer = Trainer("nano", "bf16", corpus, seed=0, schedule=schedule)
    trainer.step()
    trainer.save(tmp_path / "c.npz")
    free = replace(trainer.config, expert_groups=1, topk_groups=1)
    other = Trainer.load(tmp_path / "c.npz", data=corpus, config=free)
    assert other.config == free
    assert all(np.array_equal(other.model.params[name], w) for name, w in trainer.model.params.items())
    assert other.step().loss != trainer.step().loss
    with pytest.raises(CheckpointError, match="does not fit this model"):
        Trainer.load(tmp_path / "c.npz", data=corpus, config=replace(trainer.config, dense_width=128))


# --- what names stood for ---------------------------------------------------------------------------------------------


MICRO = golden.MICRO
OWN = lp.Format("own", 4, 3)


@pytest.fixture(scope="module")
def text():
    return short_text()


def with_format(fmt):
    """A recipe with a format and an accumulator that nobody registered."""
    machine = lp.accumulators["hopper_fp8"].with_(fraction_bits=9, input_formats=())
    return recipes["dsv3"].with_(name="own", dy=lp.Quantizer(format=fmt), accumulator=machine)


@pytest.mark.slow
def test_objects_that_nobody_registered_resume_and_others_of_their_names_do_not(text, tmp_path):
    short = {"steps": 3, "seed": 1, "data": text, "save_every": 1, "evaluate": False}
    whole = train(MICRO, with_format(OWN), **short)
    with pytest.raises(KeyboardInterrupt):
        train(MICRO, with_format(OWN), out=tmp_path, on_step=interrupt, **short)
    other = with_format(OWN.with_(name="own", mantissa_bits=1))
    with pytest.raises(CheckpointError) as raised:
        train(MICRO, other, out=tmp_path, resume=True, **short)
    assert (
        "recipe must be own, as in the checkpoint, got own: definitions.format.own.mantissa_bits was 3, is 1; restart"
        in str(raised.value)
    )
    renamed = with_format(OWN.with_(name="renamed")).with_(name="called otherwise")
    rest = train(MICRO, renamed, out=tmp_path, resume=True, **short)
    assert rest.metrics["loss"].tolist() == whole.metrics["loss"].tolist()
    kept = json.loads((tmp_path / "run.json").read_text())
    assert (kept["recipe"], kept["recipe_hash"]) == ("own", short_hash(other.with_(dy=lp.Quantizer(format=OWN))))
    assert Trainer.load(tmp_path / "checkpoint.npz", data=text).recipe == with_format(OWN)


def interrupt(record):
    if record.step == 2:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_registered_format_that_is_another_one_since(text, tmp_path):
    short = {"steps": 3, "seed": 1, "data": text, "save_every": 1, "evaluate": False, "out": tmp_path}

    def recipe():
        return recipes["bf16"].with_(name="registered", dy="own")

    with lp.formats.scoped(own=OWN), pytest.raises(KeyboardInterrupt):
        train(MICRO, recipe(), on_step=interrupt, **short)
    path = tmp_path / "checkpoint.npz"
    with lp.formats.scoped(own=OWN.with_(name="own", mantissa_bits=1)):
        with pytest.raises(CheckpointError, match=r"own.mantissa_bits was 3, is 1"):
            train(MICRO, recipe(), resume=True, **short)
        with pytest.raises(
            CheckpointError, match=r"format 'own' has changed since the file was written: mantissa_bits was 3, is 1$"
        ):
            Trainer.load(path, data=text)
        assert Trainer.load(path, data=text, recipe="bf16").recipe == recipes["bf16"]
    assert Trainer.load(path, data=text).recipe.spec("layers.1.attn.wo").dy.format == OWN  # as it was


@pytest.mark.slow
def test_checkpoints_of_version_2_have_names_alone(text, tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    trainer = Trainer(MICRO, "dsv3", text, seed=1, schedule=Schedule(peak_lr=1e-3, warmup_steps=1, total_steps=9))
    trainer.save(path)

    def as_version_2(toml):
        header, arrays = checkpoint.read(path)
        del header["recipe"]
        old = header | {"recipe": "dsv3", "recipe_toml": toml, "moments": ["bfloat16", "bfloat16"]}
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "VERSION", 2)
            checkpoint.write(tmp_path / "old.npz", old, arrays)
        return Trainer.load(tmp_path / "old.npz", data=text)

    toml = recipes["dsv3"].to_toml().partition("\n[definitions]")[0]
    old = as_version_2(toml)
    assert (old.recipe, old.recipe.source) == (recipes["dsv3"], recipes["dsv3"].source)
    unsaid = pytest.raises(CheckpointError, match=r"old.npz' names format 'own' without its definition")
    with lp.formats.scoped(own=OWN), unsaid:
        as_version_2(toml.replace('dgrad = { a = "float32"', 'dgrad = { a = "own"'))
    with pytest.raises(CheckpointError, match=r"accumulator 'hopper_fp8\(fraction_bits=9\)' without its definition"):
        as_version_2(toml.replace("hopper_fp8", "hopper_fp8(fraction_bits=9)"))
