"""What a checkpoint's names stood for: runs go on with objects that nobody registered, and with no others."""

import json

import pytest
from golden_runs import golden

import lowprec as lp
from lowprec.definitions import short_hash
from lowprec.moe.data.corpus import corpus_from_bytes
from lowprec.moe.run import checkpoint
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.train import Schedule, Trainer, train
from lowprec.recipe import recipes

MICRO = golden.MICRO
OWN = lp.Format("own", 4, 3)


@pytest.fixture(scope="module")
def text():
    return corpus_from_bytes("short", golden.text().train[:60_000].tobytes(), held_out=1_000)


def with_format(fmt):
    """A recipe with a format and an accumulator that nobody registered."""
    machine = lp.accumulators["hopper_fp8"].with_(fraction_bits=9, input_formats=())
    return recipes["dsv3"].with_(name="own", dy=lp.Quantizer(format=fmt), accumulator=machine)


@pytest.mark.slow
def test_objects_that_nobody_registered_resume_and_others_of_their_names_do_not(text, tmp_path):
    short = {"steps": 3, "seed": 1, "data": text, "save_every": 1, "evaluate": False}
    whole = train(MICRO, with_format(OWN), **short)
    with pytest.raises(KeyboardInterrupt):
        train(MICRO, with_format(OWN), out=tmp_path, progress=interrupt, **short)
    other = with_format(OWN.with_(name="own", mantissa_bits=1))
    with pytest.raises(CheckpointError) as raised:
        train(MICRO, other, out=tmp_path, resume=True, **short)
    assert "its recipe is own, here it is own: definitions.format.own.mantissa_bits was 3, is 1; fresh moves" in str(
        raised.value
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
        train(MICRO, recipe(), progress=interrupt, **short)
    path = tmp_path / "checkpoint.npz"
    with lp.formats.scoped(own=OWN.with_(name="own", mantissa_bits=1)):
        with pytest.raises(CheckpointError, match=r"own.mantissa_bits was 3, is 1"):
            train(MICRO, recipe(), resume=True, **short)
        with pytest.raises(CheckpointError, match=r"format 'own' is another one than .*: mantissa_bits was 3, is 1$"):
            Trainer.load(path, data=text)
        assert Trainer.load(path, data=text, recipe="bf16").recipe == recipes["bf16"]
    assert Trainer.load(path, data=text).recipe.spec("layers.1.attn.wo").dy.format == OWN  # as it was


@pytest.mark.slow
def test_checkpoints_of_version_2_have_names_alone(text, tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    trainer = Trainer(MICRO, "dsv3", text, seed=1, schedule=Schedule(peak=1e-3, warmup_steps=1, total_steps=9))
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
    unsaid = pytest.raises(CheckpointError, match=r"old.npz' names format 'own' and does not say what it was")
    with lp.formats.scoped(own=OWN), unsaid:
        as_version_2(toml.replace('dgrad = { a = "float32"', 'dgrad = { a = "own"'))
    with pytest.raises(CheckpointError, match=r"unknown accumulator 'hopper_fp8\(fraction_bits=9\)'"):
        as_version_2(toml.replace("hopper_fp8", "hopper_fp8(fraction_bits=9)"))
