"""Tails of another precision, arms from scratch with other configurations, and expectations of branches."""

import math
from dataclasses import replace

import numpy as np
import pytest
import small_trainer
from contract import branches, edited
from refusals import refusals
from scipy import stats
from toys import ablation, make, results, summarize

from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.config import configs
from lowprec.moe.run.schedule import Schedule
from lowprec.moe.run.trainer import Trainer
from lowprec.recipe import recipes
from lowprec.study import (
    Ablation,
    Arm,
    Expectation,
    GradientComparison,
    MeasurementStudy,
    PrecisionSwitch,
    Setting,
    load,
    names,
    run_study,
    sources,
)
from lowprec.study.analysis.estimates import estimate
from lowprec.study.analysis.findings import AS_EXPECTED, BOTH, NEITHER, NOT_RESOLVED
from lowprec.study.branches import report
from lowprec.study.branches.sizes import LEAST_CHECKPOINTS
from lowprec.study.branches.study import BRANCH_METRICS
from lowprec.study.catalogue import interim_results
from lowprec.study.catalogue import read as read_study
from lowprec.study.report.parts import interval
from lowprec.study.run.backend import BACKEND
from lowprec.study.run.store import StudyError

SCRATCH = Setting("nano", checkpoint_steps=0, branch_steps=20, checkpoints=2, seeds=1, warmup_steps=4)
ONE_STEP = Setting("nano", checkpoint_steps=2, branch_steps=1, checkpoints=1, seeds=1, warmup_steps=0)
UNBALANCED = Arm("none", config={"bias_update_speed": 0.0})
LATE = Arm("late", tail=PrecisionSwitch(0.5))
UNKNOWN = "unknown arm 'dsv4' in expectation 'x': expected one of bf16, again, perturb, dsv3,"


def real(folder, setting, *arms):
    """Branches of the real trainer that a reference and these arms have come to, and one of an arm as a trainer."""
    arms = (Arm("bf16", role="reference"), *arms)
    study = Ablation(name="real", question="Does it?", arms=arms, quick=setting, full=setting)
    planned = run_study(study.plan(setting, folder / "real", backend=small_trainer.SMALL), jobs=0)
    return {task.name.partition("/")[0]: task for task in planned.arms}


def branched(task, recipe):
    """The trainer of an arm, by hand, before its first step."""
    schedule = Schedule(**task.work.schedule)
    return Trainer.load(
        task.start_file, recipe=recipe, schedule=schedule, data_seed=task.seed, data=load_corpus("stdlib")
    )


# --- tails -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "steps", "first"), [(0.18, 200, 164), (0.5, 3, 1), (0.001, 10, 9), (0.999, 2, 0), (0.25, 1, 0)]
)
def test_a_tail_has_its_share_of_the_steps_and_one_at_least(share, steps, first):
    assert PrecisionSwitch(share).start_step(steps) == first


@pytest.mark.slow
def test_a_tail_is_part_of_the_arms_name_and_of_what_its_runs_are(tmp_path):
    arm = Arm("switched", recipe="dsv3", tail=PrecisionSwitch(0.25, "bf16"))
    planned = make(tmp_path, arm)
    task = next(task for task in planned.arms if task.name == "switched/c0-s0")
    assert arm.recipe_name == "dsv3, bf16 for the last 25 %"
    assert task.work.tail == (15, "bf16")
    assert task.fingerprint["tail"] == {"from_step": 15, "recipe": recipes["bf16"].as_dict()}
    assert "tail" not in next(task for task in planned.arms if task.name == "dsv3/c0-s0").fingerprint
    run_study(planned, jobs=0)
    kept, _ = read_study(planned.folder)
    assert kept.arms[-1].recipe_name == arm.recipe_name
    assert summarize(planned.folder).recipes["switched"] == {
        **recipes["dsv3"].as_dict(),
        "tail": task.fingerprint["tail"],
    }
    assert not list(planned.folder.glob("switched/*/tmp*"))


@pytest.mark.slow
def test_a_tail_changes_the_precision_and_nothing_else(tmp_path):
    """On the real trainer: the bits of a run that was saved at that step and resumed with the other recipe."""
    setting = Setting("nano", checkpoint_steps=1, branch_steps=3, checkpoints=1, seeds=1, warmup_steps=0)
    tasks = real(
        tmp_path,
        setting,
        Arm("same", tail=PrecisionSwitch(0.3, "bf16")),
        Arm("float32", tail=PrecisionSwitch(0.3, "float32")),
    )
    runs = {name: task.folder.read() for name, task in tasks.items()}
    rows = {name: task.folder.columns()["loss"] for name, task in tasks.items()}
    for key in ("weights", "validation_loss", "validation_loss_bf16"):
        assert runs["same"][key] == runs["bf16"][key]
    assert rows["same"] == rows["bf16"]
    assert rows["float32"][:2] == rows["bf16"][:2]
    assert rows["float32"][2] != rows["bf16"][2]
    by_hand = branched(tasks["bf16"], "bf16")
    by_hand.step(), by_hand.step()
    by_hand.save(tmp_path / "saved.npz")
    by_hand = Trainer.load(tmp_path / "saved.npz", recipe="float32", data=load_corpus("stdlib"))
    assert [by_hand.step().loss] == rows["float32"][2:]
    assert BACKEND.weights_hash(by_hand) == runs["float32"]["weights"]
    assert runs["float32"]["validation_loss"] != runs["float32"]["validation_loss_bf16"]


# --- calibration -----------------------------------------------------------------------------------------------------


def test_calibration_is_part_of_what_runs_are_and_no_longer_than_the_checkpoint(tmp_path):
    arms = (Arm("bf16", role="reference"), Arm("cold", recipe="te_delayed"), Arm("warm", "te_delayed", calibration=9))
    study = ablation(arms=arms, quick=ONE_STEP, full=ONE_STEP)
    tasks = {task.name.partition("/")[0]: task for task in study.plan(ONE_STEP, tmp_path).arms}
    assert [tasks[name].work.calibration for name in ("bf16", "cold", "warm")] == [0, 0, 2]
    assert tasks["warm"].fingerprint == {**tasks["cold"].fingerprint, "calibration": 2}
    fresh = replace(ONE_STEP, checkpoint_steps=0)
    assert {task.work.calibration for task in study.plan(fresh, tmp_path).arms} == {0}


@pytest.mark.slow
def test_a_calibrated_branch_is_the_trainer_calibrated(tmp_path):
    task = real(tmp_path, ONE_STEP, Arm("warm", recipe="te_delayed", calibration=2))["warm"]
    by_hand = branched(task, "te_delayed")
    by_hand.calibrate(2)
    by_hand.step()
    assert BACKEND.weights_hash(by_hand) == task.folder.read()["weights"]


# --- from scratch ----------------------------------------------------------------------------------------------------


EXPECTATIONS = (
    Expectation("unbalanced", "max_violation", "none", "bf16", expected=(2.0, 10.0), published=(2.0, 10.0)),
    Expectation("control", "total_percent", "fp4_naive", expected=(1.8, 2.3), published=(4.0, math.inf)),
    Expectation("nothing diverges", "diverged", "dsv3", expected=(1.0, 1.0)),
    Expectation("more than FP8", "total_percent", "fp4_naive", minus="dsv3", expected=(1.0, 2.3)),
    Expectation("it explodes", "diverged", "explodes", expected=(1.0, 1.0)),
)
EXPLODES = Arm("explodes", recipe="explodes")
FIELDS = {"contrast_with": "dsv3", "expectations": EXPECTATIONS, "quick": SCRATCH, "full": SCRATCH}
TOY = branches(UNBALANCED, EXPLODES, setting=SCRATCH, **FIELDS)
study = pytest.fixture(lambda finished: summarize(finished), scope="module")


def test_arms_from_scratch_have_no_checkpoint_but_pairs(finished, study):
    planned = TOY.plan(finished)
    assert planned.checkpoints == ()
    assert (planned.study.tier, ablation().tier) == ("T4", "T3")
    by_name = {task.name: task for task in planned.arms}
    ours, theirs = by_name["none/c1-s0"], by_name["bf16/c1-s0"]
    assert (ours.work.weights_seed, ours.seed) == (theirs.work.weights_seed, theirs.seed) == (1, 2000)
    assert ours.work.schedule == {"peak_lr": 2e-3, "warmup_steps": 4, "total_steps": 20, "curve": "linear_to_zero"}
    assert [task.fingerprint["config"]["bias_update_speed"] for task in (ours, theirs)] == [0.0, 0.003]
    assert study.arm("again").verdict == "bit-identical"
    assert "from scratch, 2 pairs (2 initial weights x 1 data seed)" in study.size
    assert str(SCRATCH) == "nano: 2 x 20 steps per arm from scratch"
    before = results(finished)
    TOY.run(finished)
    assert results(finished) == before


@pytest.mark.parametrize(("key", "value"), [("batch", 8), ("bias_update_speed", 0.5)])
def test_configurations_may_differ_where_an_arm_says_so_and_nowhere_else(copied, key, value):
    config = TOY.plan(copied).arms[0].fingerprint["config"] | {"bias_update_speed": 0.0}
    edited("none/c0-s0/run.json", {"fingerprint": {"config": config | {key: value}}})(copied)
    with pytest.raises(StudyError, match=f"config.{key}: "):
        summarize(copied)


def test_the_backend_has_the_trainer_and_changes_fields_of_a_configuration():
    assert BACKEND.trainer is Trainer
    assert BACKEND.configuration("nano", {"bias_update_speed": 0.0}) == replace(configs["nano"], bias_update_speed=0.0)


@pytest.mark.slow
def test_from_scratch_is_the_trainer_from_scratch(tmp_path):
    setting = Setting("nano", checkpoint_steps=0, branch_steps=2, checkpoints=1, seeds=1, warmup_steps=1)
    tasks = real(tmp_path, setting, UNBALANCED)
    schedule = Schedule(peak_lr=2e-3, warmup_steps=1, total_steps=2, curve="linear_to_zero")
    for task, rate in ((tasks["bf16"], 3e-3), (tasks["none"], 0.0)):
        config = replace(configs["nano"], bias_update_speed=rate)
        trainer = Trainer(config, "bf16", load_corpus("stdlib"), seed=0, schedule=schedule, data_seed=1000)
        records = [trainer.step(), trainer.step()]
        columns = task.folder.columns()
        assert columns["loss"] == [record.loss for record in records]
        assert columns["max_violation"] == [record.max_violation for record in records]
        assert task.folder.read()["weights"] == BACKEND.weights_hash(trainer)


def test_weights_are_numbered_from_the_first_one_and_pairs_run_one_after_the_other(tmp_path):
    arms = (Arm("bf16", role="reference"), Arm("perturb", role="floor"), Arm("dsv3", recipe="dsv3"))
    setting = replace(SCRATCH, checkpoints=3, first_checkpoint=9)
    planned = make(tmp_path, setting=setting, arms=arms, second_reference="perturb")
    names = [task.name for task in planned.arms]
    assert [name.partition("/")[2] for name in names] == [f"c{number}-s0" for number in (9, 10, 11) for _ in arms]
    assert {task.fingerprint["weights"] for task in planned.arms} == {9, 10, 11}
    evaluated = {task.name.partition("/")[0]: len(task.work.evaluation.others) for task in planned.arms}
    assert evaluated == {"bf16": 1, "perturb": 1, "dsv3": 0}


def test_of_two_references_arms_are_compared_with_the_mean(tmp_path):
    arms = (Arm("bf16", role="reference"), Arm("perturb", role="floor"), Arm("dsv3", recipe="dsv3"))
    planned = make(tmp_path, setting=SCRATCH, arms=arms, second_reference="perturb", interim=False)
    run_study(planned, jobs=0)
    assert interim_results(planned.folder, plot=False) == ""
    found, records = summarize(planned.folder), {task.name: task.folder.read() for task in planned.arms}
    for place, pair in enumerate(("c0-s0", "c1-s0")):
        ours, one, two = (records[f"{arm}/{pair}"] for arm in ("dsv3", "bf16", "perturb"))
        mean = (one["validation_loss_bf16"] + two["validation_loss_bf16"]) / 2
        values = {name: found.arm(name).by_effect["training"].values[place] for name in ("dsv3", "perturb")}
        assert values["dsv3"] == pytest.approx(ours["validation_loss_bf16"] / mean - 1, rel=1e-9)
        assert values["perturb"] == pytest.approx(
            two["validation_loss_bf16"] / one["validation_loss_bf16"] - 1, rel=1e-9
        )
        read = (one["forwards"][ours["forward"]] + two["forwards"][ours["forward"]]) / 2
        assert found.arm("dsv3").by_effect["forward"].values[place] == pytest.approx(read / mean - 1, rel=1e-9)
    assert "against the mean of bf16 and perturb" in found.size
    with pytest.raises(ValueError, match=r"second_reference must be one of its floor arms \['perturb'\], got 'dsv3'"):
        ablation(arms=arms, second_reference="dsv3")


# --- expectations of branches ----------------------------------------------------------------------------------------


def test_what_was_expected_of_branches_is_judged_and_reported(finished, study):
    kept, _ = read_study(finished)
    assert kept.expectations == EXPECTATIONS
    assert [item.outcome for item in study.findings] == [BOTH, NOT_RESOLVED, NEITHER, AS_EXPECTED, AS_EXPECTED]
    # By hand, from the runs' files: the last quarter of 20 steps, the means over two pairs.
    assert study.findings[0].value == pytest.approx(np.mean(0.5 + 0.1 * np.arange(16, 21)) / 0.5)
    assert study.findings[1].value == pytest.approx(100 * np.mean(study.arm("fp4_naive").by_effect["total"].values))
    assert study.mean("total_percent", "bf16") == 0.0
    apart = study.mean("total_percent", "fp4_naive") - study.mean("total_percent", "dsv3")
    assert study.findings[3].value == apart != study.findings[1].value
    for effect in ("forward", "training", "training_own", "total"):
        assert study.mean(f"{effect}_percent", "dsv3") == 100 * study.arm("dsv3").effects[effect].mean
    assert study.mean("train_error_percent", "dsv3") == 100 * study.arm("dsv3").train_error
    assert "nothing diverges: diverged of dsv3 is 0, neither." in report.sentences(study)
    assert "| which happened |" in report.results(study).markdown()


def test_a_difference_of_arms_has_the_interval_of_its_contrast_and_an_effect_that_of_its_table(study):
    contrast = next(item for item in study.contrasts if item.arm == "fp4_naive").found
    (line,) = [line for line in report.sentences(study) if line.startswith("fp4_naive against dsv3: ")]
    ends = [float(end) for end in line.partition("95 % interval [")[2].partition("]")[0].split(", ")]
    assert ("no difference shown" in line) == (ends[0] <= 0.0 <= ends[1]), "the sentence contradicts the interval"
    alive = [item for item in study.contrasts if not item.found.diverged]
    assert len(alive) == len(study.contrasts) - 1 == 2
    for item in alive:  # one of three: at 1 - 0.1 / 3
        half = stats.t.ppf(1 - 0.05 / 3, item.found.df) * item.found.error
        assert item.together90 == pytest.approx((item.found.mean - half, item.found.mean + half), rel=1e-12)
    assert not any(line.startswith("All at once") for line in report.sentences(study)), "one diverged"
    ends = interval((min(item.together90[0] for item in alive), max(item.together90[1] for item in alive)))
    lines = [
        line for line in report.sentences(replace(study, contrasts=tuple(alive))) if line.startswith("All at once")
    ]
    assert lines[0].endswith(f"the simultaneous 90 % intervals of the differences are within {ends} %.")
    found = estimate(study, f"{study.ablation.primary_effect}_percent", "fp4_naive", minus="dsv3")
    assert found.ci90 == pytest.approx([100 * end for end in contrast.ci90])
    for effect in ("training", "total"):
        found = estimate(study, f"{effect}_percent", "fp4_naive")
        assert found.ci90 == pytest.approx([100 * end for end in study.arm("fp4_naive").effects[effect].ci90])
    assert study.findings[2].found.ci90 == (0.0, 0.0)  # no pair diverges


# --- the files -------------------------------------------------------------------------------------------------------

LOADED = {name: load(name) for name in names()}
BRANCHES = sorted(name for name, study in LOADED.items() if isinstance(study, Ablation))


@pytest.mark.parametrize("name", BRANCHES)
def test_every_branch_study_is_complete(name):
    study = LOADED[name]
    assert all((study.expected, study.source))
    assert all(arm.expected for arm in study.arms if arm.role != "reference")
    # Checkpoints are a sample, in whatever size is published.
    assert study.full.pairs >= (6 if study.tier == "T4" else 8)
    assert study.full.checkpoints >= LEAST_CHECKPOINTS
    assert study.quick.checkpoints >= LEAST_CHECKPOINTS or study.tier == "T4"  # whose quick sizes resolve nothing
    # Several expectations with ends on both sides, each of which a measurement could miss, and what was published.
    assert name == "fp8_vs_bf16" or len(study.expectations) >= 3
    for item in study.expectations:
        assert item.metric in BRANCH_METRICS
        assert np.isfinite(item.expected).all()
    assert not study.expectations or any(item.published for item in study.expectations)


def test_every_study_has_data_seeds_of_its_own():
    """Else a noise floor that was measured once would be printed by several studies."""
    blocks = {name: LOADED[name].seed_block for name in BRANCHES}
    assert all(blocks.values())
    assert len(set(blocks.values())) == len(blocks), blocks


@pytest.mark.sampled(10)
@pytest.mark.parametrize("config", ["nano", "pilot"])
@pytest.mark.parametrize("name", BRANCHES)
def test_every_arm_binds(name, config):
    for arm in LOADED[name].arms:
        shape = configs.get(BACKEND.configuration(config, arm.config))
        layers = [item for item, size in shape.parameter_shapes().items() if len(size) == 2 and item != "embed"]
        for precision in (arm.precision, *([arm.tail.precision] if arm.tail else [])):
            bound = recipes.get(precision).bind(seed=1, layers=shape.layers)
            for layer in layers:
                bound.linear(layer)
            assert BACKEND.describe(shape, precision)["recipe"]["about"]["name"] == recipes.get(precision).name


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", BRANCHES)
def test_arms_of_a_study_differ_from_each_other(name):
    def what(arm):
        tail = arm.tail and (arm.tail.share, replace(recipes.get(arm.tail.precision), name="", description=""))
        recipe = replace(recipes.get(arm.precision), name="", description="")
        return recipe, tail, tuple(sorted(arm.config.items())), arm.calibration

    arms = [arm for arm in LOADED[name].arms if arm.role in ("reference", "treatment", "control")]
    for i, arm in enumerate(arms):
        for other in arms[:i]:
            assert what(arm) != what(other), (arm.name, other.name)


def test_storage_is_changed_by_tensor():
    recipe = recipes["dsv3"].with_(storage={"layers.*.attn.[qkv]": "fp8_1x128"})
    assert recipe.storage[0].pattern == "layers.*.attn.[qkv]"
    assert recipe.bind().storage("layers.1.attn.k") is not recipe.bind().store


def same_weights(*more):
    arms = (*sources.SAME_WEIGHTS_ARMS, *more)
    return MeasurementStudy(name="x", question="?", measurement=GradientComparison(), arms=arms)


test_refused = refusals([
    *[(f"PrecisionSwitch({share})", r"tail must be a share of the steps in \(0, 1\), got")
      for share in ("0.0", "1.0", "-0.5", "math.nan", "'half'", "True")],
    *[(f"Arm('a', calibration={count})", "arm 'a': calibration must be an integer >= 0, got .*")
      for count in ("-1", "1.5", "True")],
    ("ablation(UNBALANCED)", "config of a branch must change expert_groups, topk_groups, route_scale only, got"),
    ("same_weights(UNBALANCED)", "tail and config must be empty for a measurement of one batch, got None and"),
    ("same_weights(LATE)", "tail and config must be empty for a measurement of one batch, got bf16 for the last"),
    ("replace(SCRATCH, warmup_steps=30)", "warmup_steps must be at most branch_steps=20, got 30"),
    ("replace(ablation().quick, checkpoint_steps=2)", "warmup_steps must be at most checkpoint_steps=2, got 20"),
    ("BACKEND.configuration('nano', {'bias_rat': 0.0})", TypeError, "bias_rat"),
    ("ablation(expectations=(Expectation('x', 'kl', 'dsv3'),))", "unknown metric 'kl' in expectation 'x': expected"),
    ("ablation(expectations=(Expectation('x', 'diverged', 'dsv4'),))", UNKNOWN),
    ("ablation(expectations=(Expectation('x', 'diverged', 'dsv3', 'dsv4'),))", UNKNOWN),
    ("ablation(expectations=(Expectation('x', 'diverged', 'dsv3', minus='dsv4'),))", UNKNOWN),
    ("Expectation('x', 'm', 'c', over='a', minus='b')", "expectation 'x': one of over and minus must be empty, got"),
    ("recipes['dsv3'].with_(storage={'layers.*.attn.x': 'fp8_1x128'})", "no layer"),
    *[(f"lp.recipe.linears.GemmSpec({a!r}, {b!r})", "a and b must have the same Hadamard transform,") for a, b in (
        ("nvfp4_te_rht", "nvfp4_te"), ("nvfp4_te", "nvfp4_te_rht"), ("nvfp4_te_rht", "bfloat16"),
        ("nvfp4_te_rht", "nvfp4_te_rht_unsigned"), ("nvfp4_te_rht_unsigned", "nvfp4_te_rht_unsigned hadamard4"),
    )],
], lambda: globals())  # fmt: skip
