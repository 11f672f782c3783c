"""A study with a trainer that takes milliseconds: what is planned, and what comes out."""

from dataclasses import replace
from pathlib import Path

import fake_trainer
import numpy as np
import pytest
from toys import SMALL, ablation, make

from lowprec.moe.data.sources import SOURCES
from lowprec.study import Arm, Cell, ReplaySetting, ScalingSetting, Setting, WeightsSetting, load, names, run_study
from lowprec.study.kinds.branches.ablation import read_study
from lowprec.study.kinds.branches.summary import summarize
from lowprec.study.run.store import RunFolder, StudyError, read_json


def test_the_ablation_that_ships_is_complete():
    assert "fp8_vs_bf16" in names()
    item = load("fp8_vs_bf16")
    roles = [arm.role for arm in item.arms]
    assert roles == ["reference", "repeat", "floor", "treatment", "treatment", "treatment", "control"]
    assert item.margin == 0.0025
    assert item.question.endswith("?")
    assert item.expected
    assert item.source
    assert all(arm.expected for arm in item.arms if arm.role != "reference")


def test_every_pair_shares_checkpoint_and_batches_and_only_those(tmp_path):
    planned = make(tmp_path)
    by_name = {task.name: task for task in planned.tasks}
    assert len(by_name) == len(planned.tasks) == 2 + 4 + 2 + 4 + 4 + 4
    for arm in ("perturb", "dsv3", "fp4_naive"):
        for c in range(2):
            for s in range(2):
                ours, theirs = by_name[f"{arm}/c{c}-s{s}"], by_name[f"bf16/c{c}-s{s}"]
                assert (ours.seed, ours.checkpoint) == (theirs.seed, theirs.checkpoint)
    seeds = {task.seed for task in planned.arms}
    assert len(seeds) == 4
    assert not seeds & {task.seed for task in planned.checkpoints}


def test_seeds_and_checkpoints_only_add_runs(tmp_path):
    few = {task.name: task for task in make(tmp_path).tasks}
    many = {task.name: task for task in make(tmp_path, setting=replace(SMALL, seeds=3, checkpoints=3)).tasks}
    assert few.items() <= many.items()
    assert len(many) > len(few)


def test_a_study_from_start_to_verdict(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    study = summarize(planned.folder)
    verdicts = {item.arm.name: item.verdict for item in study.arms}
    assert verdicts == {"again": "bit-identical", "perturb": "equivalent", "dsv3": "equivalent", "fp4_naive": "worse"}
    assert study.broken == []
    assert study.floor == pytest.approx(np.sqrt(np.mean(study.arm("perturb").differences ** 2)), rel=1e-12)
    assert study.tokens_per_step == 2048
    # The effects are those of the runs' own files, pair by pair: L[forward](weights).
    dsv3 = study.arm("dsv3")
    for place, run in enumerate(dsv3.runs):
        records = [
            read_json(planned.folder / f"{arm}/c{run.checkpoint}-s{run.seed}/run.json") for arm in ("dsv3", "bf16")
        ]
        (own_arm, own_ref), (bf16_arm, bf16_ref) = (
            [record["forwards"][key] for record in records] for key in ("dsv3", "bf16")
        )
        for name, above, below in (
            ("forward", own_ref, bf16_ref), ("training", bf16_arm, bf16_ref), ("training_own", own_arm, own_ref),
            ("total", own_arm, bf16_ref),
        ):  # fmt: skip
            assert dsv3.by_effect[name].values[place] == (above - below) / below
        # A window's part in the difference: they sum to nothing, since the whole is the mean.
        assert abs(dsv3.by_effect["training"].text[place].sum()) < 1e-12
    assert dsv3.own is dsv3.effects["training"]
    assert dsv3.own.text_error >= 0.0
    for task in planned.tasks:
        run = task.folder.read()
        assert run["status"] == "done"
        assert run["fingerprint"] == task.fingerprint
        assert {"cpu", "features", "cores", "openblas"} <= run["host"].keys()
        assert task.folder.rows() == task.steps


def test_metrics_hold_every_bit_and_no_clock(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    columns = RunFolder(planned.folder / "bf16/c0-s0").columns()
    assert list(columns) == ["step", "loss", "learning_rate", "tokens", "max_violation"]
    checkpoint = planned.arms[0].checkpoint_file
    trainer = fake_trainer.Trainer.load(
        checkpoint, recipe="bf16", schedule=fake_trainer.Schedule(2e-3, 0, 20), data_seed=1000
    )
    assert columns["loss"] == [trainer.step().loss for _ in range(20)]


@pytest.mark.parametrize("name", SOURCES)
def test_corpora_are_planned_by_name_and_texts_by_path(tmp_path, name):
    assert {task.data for task in make(tmp_path, data=name).tasks} == {name}
    assert {task.data for task in make(tmp_path, data="book.txt").tasks} == {str(Path("book.txt").resolve())}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"branch_steps": "many"}, "branch_steps: cannot read 'many' as int"),
        ({"branch_steps": "0"}, "branch_steps=0: a whole number from 1 to 10"),
        ({"learning_rate": "nan"}, "learning_rate=nan: a finite number > 0 is needed"),
        ({"warmup_steps": "-1"}, "warmup_steps=-1: a whole number from 0 to 10"),
        ({"branch_step": "3"}, "unknown setting 'branch_step': did you mean 'branch_steps'"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        SMALL.with_(changes)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda steps, **more: Setting("nano", steps, 30, 1, 1, **more), "checkpoint_steps"),
        (lambda steps, **more: Setting("nano", 0, steps, 1, 1, **more), "branch_steps"),
        (lambda steps, **more: WeightsSetting("nano", steps, **more), "checkpoint_steps"),
        (lambda steps, **more: ReplaySetting("nano", steps, **more), "checkpoint_steps"),
    ],
)
def test_the_default_warm_up_is_no_longer_than_the_training(make, field):
    for steps in (1, 8, 19, 20, 21, 300):
        assert make(steps).warmup_steps == min(20, steps)
        assert make(steps) == make(steps, warmup_steps=min(20, steps))
    assert make(300).with_({field: "8"}) == make(8)
    assert make(8).with_({field: 300}) == make(300)
    assert make(300, warmup_steps=10).with_({field: 30}).warmup_steps == 10
    assert make(300).with_({field: 30, "warmup_steps": 5}).warmup_steps == 5
    for wrong in (lambda: make(8, warmup_steps=9), lambda: make(300, warmup_steps=9).with_({field: 8})):
        with pytest.raises(ValueError, match=f"warmup_steps must be at most {field}=8, got 9"):
            wrong()


def test_short_cells_of_a_scaling_warm_up_all_along():
    size = ScalingSetting((Cell("nano", 8), Cell("nano", 300)))
    assert [size.of(cell).warmup_steps for cell in size.cells] == [8, 20]


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ((Arm("a"), Arm("b")), "exactly one arm is the reference, got"),
        ((Arm("a", role="reference"), Arm("a")), "two arms are called 'a'"),
        ((Arm("a", role="reference"), Arm("b", recipe="dsv3", role="repeat")), "its recipe must be the reference's"),
    ],
)
def test_ablations_that_make_no_sense(arms, message):
    with pytest.raises(ValueError, match=message):
        ablation(arms=arms)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a/b"}, "arm name 'a/b': letters, digits and"),
        ({"name": ""}, "arm name '': letters, digits and"),
        ({"name": "a", "role": "best"}, "arm 'a': unknown role 'best'; allowed are reference, repeat"),
        ({"name": "a", "pairs": 0}, "arm 'a': pairs=0: a whole number >= 1 or None is needed"),
    ],
)
def test_arms_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        Arm(**fields)


def test_loading_ablations(tmp_path):
    with pytest.raises(KeyError, match="unknown ablation 'fp8_vs_fb16': did you mean 'fp8_vs_bf16'"):
        load("fp8_vs_fb16")
    with pytest.raises(FileNotFoundError, match=r"no such ablation file: 'nowhere\.py'"):
        load("nowhere.py")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match="defines no `ablation = Ablation"):
        load(str(tmp_path / "empty.py"))


def test_study_json_is_the_ablation(tmp_path):
    planned = run_study(make(tmp_path), jobs=0)
    assert read_study(planned.folder) == (planned.study, planned.setting)
    with pytest.raises(StudyError, match="holds no study"):
        read_study(tmp_path)


def test_an_arm_can_differ_from_a_recipe_by_data(tmp_path):
    arm = Arm("hybrid", recipe="dsv3", change={"dy": "e5m2 1x128"})
    assert arm.recipe_name == arm.precision.name == "dsv3(dy=e5m2 1x128)"
    assert str(arm.precision.spec("layers.0.attn.wo").dy) == "e5m2 1x128"
    assert Arm("plain", recipe="dsv3").precision == "dsv3"
