"""Objects that an ablation's file alone defines: workers have them, and runs of others of their names stay apart."""

import os
import pickle
import sys
from pathlib import Path

import pytest
import small_trainer

import lowprec as lp
from lowprec.study import Arm, run_study
from lowprec.study.catalogue import load
from lowprec.study.design import modules
from lowprec.study.design.arms import precision_of
from lowprec.study.run.backend import BACKEND
from lowprec.study.run.fingerprint import differences, key_of
from lowprec.study.run.store import StudyError

OWN = '''
from dataclasses import dataclass

import numpy as np

import lowprec as lp
from lowprec.study import Ablation, Arm, Setting
from lowprec.tensorcore.kinds import ExactSum

E3 = lp.Format("own", 3, BITS)


def twice(blocks, element_format, scale_format):
    return 2 * np.abs(blocks).max(axis=-1) / element_format.max


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OwnSum(ExactSum):
    """A kind of accumulator."""


machine = lp.accumulators["hopper_fp8"].with_(fraction_bits=9, input_formats=())
tile = lp.Quantizer("tile", format=E3, granularity="1x128", rule=twice)
own = lp.recipes["dsv3"].with_(name="own", x=tile, w=tile, dy=E3, accumulator=machine)
own = own.with_(name="own", dgrad={"accumulator": OwnSum("own_sum")})
small = Setting(config="nano", checkpoint_steps=1, branch_steps=1, checkpoints=1, seeds=1, warmup_steps=1)
ablation = Ablation(
    name="mine", question="Does it run?", quick=small, full=small,
    arms=(Arm("bf16", role="reference"), Arm("own", recipe=own)),
)
'''


def written(folder, bits):
    path = folder / "mine.py"
    path.write_text(OWN.replace("BITS", str(bits)))
    return load(str(path))


@pytest.mark.ci
def test_a_worker_has_them_and_others_are_refused(tmp_path, monkeypatch):
    here = [str(Path(__file__).parents[1]), str(Path(lp.__file__).parent.parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(here))

    def planned(bits):
        mine = written(tmp_path, bits)
        return mine.plan(mine.full, tmp_path / "runs", data="synthetic", backend=small_trainer.SMALL)

    done = run_study(planned(4), jobs=1)
    assert all(task.finished() for task in done.tasks)
    assert run_study(planned(4), jobs=0).folder == done.folder  # nothing is left to do
    with pytest.raises(StudyError, match=r"recipe.definitions.format.own.mantissa_bits: 4 then, 3 now"):
        run_study(planned(3), jobs=0)


def test_a_module_for_every_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (written(tmp_path / name, 4) for name in ("a", "b"))
    recipes = [study.arms[1].recipe for study in (one, other)]
    assert recipes[0] != recipes[1]  # their kinds of accumulator are two classes
    assert pickle.loads(pickle.dumps(recipes[0])) == recipes[0]
    ((name, place),) = modules.used_by(recipes[1]).items()
    assert place == str(tmp_path / "b" / "mine.py")
    assert modules.used_by([lp.recipes["dsv3"], {"x": (1, None)}]) == {}
    del sys.modules[name]
    assert pickle.loads(pickle.dumps(modules.Required({name: place}))) is None
    assert lp.Recipe.from_dict(recipes[1].as_dict()).as_dict()["hash"] == recipes[1].as_dict()["hash"]
    (tmp_path / "b" / "mine.py").write_text("1 / 0")
    module = sys.modules[name]
    with pytest.raises(ValueError, match=r"mine.py, line 1: ZeroDivisionError: division by zero"):
        load(place)
    assert sys.modules[name] is module


def test_recipes_by_value():
    mine = lp.recipes["dsv3"].with_(name="mine", dy="e5m2 1x128")
    with lp.recipes.scoped(mine=mine):
        assert precision_of("mine", {}) is mine  # workers do not have the name
        assert Arm("a", "mine").precision is mine
    assert (precision_of("dsv3", {}), precision_of("elsewhere", {})) == ("dsv3", "elsewhere")
    described = [BACKEND.describe("nano", recipe)["recipe"] for recipe in (mine, mine.with_(name="yours"))]
    assert differences(*described) == []
    assert key_of(described[0]) == key_of(described[1])
    assert BACKEND.forward(mine).key == BACKEND.forward("dsv3").key != BACKEND.forward("bf16").key
    renamed = mine.with_(name="mine", accumulator=lp.accumulators["hopper_fp8"].with_(name="mine"))
    assert differences(described[0], BACKEND.describe("nano", renamed)["recipe"]) == []
