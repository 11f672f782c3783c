"""Training: the same bits for the same seeds, resumed or not; branches; failures that leave nothing behind."""

import dataclasses
import itertools
import json
import math
import os

import numpy as np
import pytest
from golden_runs import golden
from refusals import refusals
from small_models import in_bytes

import lowprec as lp
from lowprec import recipes
from lowprec.definitions.code import code_hash
from lowprec.moe.data.corpus import corpus_from_bytes, held_out_windows
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model
from lowprec.moe.run import checkpoint, saving
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.files import read_run
from lowprec.moe.run.train import Diverged, Schedule, Trainer, default_rate, train
from lowprec.recipe import derive_seed
from lowprec.registry import UnknownNameError
from lowprec.study.run.backend import BACKEND

MICRO = golden.MICRO
STEADY = Schedule(peak_lr=4e-3, warmup_steps=2, total_steps=100)


@pytest.fixture(scope="module")
def text():
    return golden.text()


def micro(text, recipe="bf16", steps=0, **changes):
    trainer = Trainer(MICRO, recipe, text, **{"seed": 3, "schedule": STEADY, **changes})
    for _ in range(steps):
        trainer.step()
    return trainer


def state(trainer):
    """Every bit that the next step depends on."""
    bound = trainer.model.recipe.state_dict()
    return bound["step"], in_bytes(saving.state_arrays(trainer) | bound["delayed"])


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "dsv3", "fp4_naive", "float64"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(text, tmp_path, recipe):
    straight, first = micro(text, recipe), micro(text, recipe)
    whole, parts = [straight.step() for _ in range(6)], [first.step() for _ in range(3)]
    first.save(tmp_path / "c.npz")
    second = Trainer.load(tmp_path / "c.npz", data=text)
    parts += [second.step() for _ in range(3)]
    if recipe == "float64":  # its products are NumPy's
        assert [r.loss for r in parts] == pytest.approx([r.loss for r in whole], rel=1e-9)
    else:
        assert parts == whole
        assert state(second) == state(straight)
        assert second.evaluate(n_bytes=256) == straight.evaluate(n_bytes=256)


def test_seeds(text):
    base = micro(text)
    assert state(base) != state(micro(text, seed=4))
    assert state(base) == state(micro(text, data_seed=4))
    assert base.data_seed == 3
    assert base.step().loss != micro(text, data_seed=4).step().loss


# --- a step ----------------------------------------------------------------------------------------------------------


def test_a_record_says_what_happened(text):
    trainer = micro(text)
    loss, gradients = Model(MICRO, "bf16", 3).loss_and_grads(trainer._batches[0])
    record = trainer.step()
    assert (record.step, record.tokens, record.nonfinite_operands) == (1, 256, 0)
    assert (record.loss, record.grad_norm) == (loss, trainer.optimizer.norm(gradients))
    assert min(record.max_violation, record.seconds) >= 0
    assert (record.learning_rate, trainer.step().learning_rate) == (STEADY.rate(0), STEADY.rate(1))


def test_biases_move_towards_an_even_load(text):
    model = micro(text, steps=1).model
    assert list(model.biases) == ["layers.1.ffn.gate", "layers.2.ffn.gate"]
    for gate, bias in model.biases.items():
        loads = model.loads[gate]
        assert loads.sum() == 256 * MICRO.top_k
        assert np.array_equal(
            bias, np.float32(MICRO.bias_update_speed) * np.sign(loads.mean() - loads).astype(np.float32)
        )
        assert bias.any()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "dsv3"])
def test_a_model_learns(text, recipe):
    trainer = micro(text, recipe, schedule=Schedule(2e-2, 5, 60, "linear_to_zero"))
    before = trainer.evaluate(n_bytes=2048)
    for _ in range(60):
        trainer.step()
    assert before > 5.4
    assert trainer.evaluate(n_bytes=2048) < 3.8  # the text's own entropy is about 1.4


def diverges(trainer, message):
    """Check that a step fails with a message and leaves the trainer as it was."""
    before = state(trainer)
    with np.errstate(all="ignore"), pytest.raises(Diverged, match=message):
        trainer.step()
    assert state(trainer) == before


HISTORIES = pytest.param("te_delayed", np.nan, marks=pytest.mark.slow)


@pytest.mark.parametrize(("recipe", "bad"), [("bf16", np.inf), ("bf16", np.nan), HISTORIES])
def test_divergence_leaves_the_trainer_as_it_was(text, recipe, bad):
    trainer = micro(text, recipe, steps=1)
    trainer.model.params["layers.1.ffn.shared.w2"][0, 0] = bad
    diverges(trainer, r"step 2: the (loss|norm of the gradient)")
    assert trainer.steps == trainer.optimizer.steps == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", list(recipes))
def test_infinity_in_a_weight_is_a_divergence_in_every_recipe(text, recipe):
    trainer = micro(text, recipe)
    trainer.model.params["layers.1.attn.wq_a"][7, 3] = np.inf
    diverges(trainer, r"step 1: .* in layers\.1\.attn\.wq_a")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recipe", list(recipes))
def test_infinity_in_an_output_gradient_is_counted_in_every_recipe(text, recipe, monkeypatch):
    trainer = micro(text, recipe)
    layer = trainer.model._blocks[0].attn.linears["wq_b"]

    def disturbed(grads, d_y, saved, backward=layer.backward):
        d_y[5, 2] = np.inf
        return backward(grads, d_y, saved)

    with monkeypatch.context() as patched, np.errstate(all="ignore"):
        patched.setattr(layer, "backward", disturbed)
        try:
            counted = trainer.step().nonfinite_operands  # its casts saturate
        except Diverged as error:
            counted = str(error).count("NaN or infinity in")
    assert counted > 0
    assert "layers.0.attn.wq_b/dy" in trainer.model.recipe.nonfinite
    assert not trainer.steps or trainer.step().nonfinite_operands == 0


# --- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "fp4_naive"])
def test_evaluation_is_the_mean_over_fixed_windows_and_changes_nothing(text, recipe):
    trainer = micro(text, recipe, steps=1)
    before, windows = state(trainer), held_out_windows(text, 32, 32 * 19)
    for other in (None, recipe, "bf16", "dsv3"):
        losses = trainer.window_losses(other, n_bytes=32 * 19)  # 19 windows: two full batches of 8 and one of 3
        assert losses.shape == (19,) == windows.shape[:1]
        model = trainer.model.with_recipe(other) if other else trainer.model
        some = windows[: 3 if other else 19]
        assert losses[: len(some)] == pytest.approx([model.loss(window[None]) for window in some], rel=1e-6)
        assert trainer.evaluate(other, n_bytes=32 * 19) == pytest.approx(losses.mean(), rel=1e-14)
    assert state(trainer) == before


# --- branches --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "c.npz"
    micro(text, steps=3).save(path)
    return path


@pytest.fixture
def load(text, saved):
    """Return what makes trainers of the checkpoint, in other precisions and on other data."""
    return lambda recipe=None, **changes: Trainer.load(saved, recipe=recipe, data=text, **changes)


DOWN = Schedule(1e-3, 0, 4, "linear_to_zero")


@pytest.mark.slow
def test_equal_branches_are_equal_and_others_are_not(load):
    def branch(recipe=None, data_seed=9):
        trainer = load(recipe, schedule=DOWN, data_seed=data_seed)
        return trainer, [trainer.step() for _ in range(2)]

    (a, steps_a), (b, steps_b), (other_data, steps_other), (fp8, steps_fp8) = (
        branch(), branch(), branch(data_seed=10), branch("dsv3"),
    )  # fmt: skip
    assert steps_a == steps_b
    assert state(a) == state(b)
    assert [(record.step, record.learning_rate) for record in steps_a] == [(4, DOWN.rate(0)), (5, DOWN.rate(1))]
    assert steps_other[0].loss != steps_a[0].loss != steps_fp8[0].loss
    assert (fp8.recipe.name, other_data.data_seed) == ("dsv3", 10)


@pytest.mark.slow
def test_branches_on_other_data_draw_other_random_bits(load, text, tmp_path):
    noisy, place = recipes["fp4_naive"].with_(dy="e2m1fn 1x16 stochastic"), "layers.0.attn.wo/wgrad.dy"
    trainer = load(noisy, data_seed=1000)
    first = trainer.model.recipe.draw(place)
    assert load("nvfp4", data_seed=1000).model.recipe.draw(place) == first
    assert trainer.model.with_recipe("nvfp4").recipe.draw(place) == first
    trainer.save(tmp_path / "branch.npz")
    assert Trainer.load(tmp_path / "branch.npz", data=text).model.recipe.draw(place) == first
    assert len({load(noisy, data_seed=seed).model.recipe.draw(place) for seed in range(1000, 1020)}) == 20
    # Without a data seed of their own, runs draw by their seed alone.
    drawn = [load(noisy, **changes).model.recipe.draw(place) for changes in ({}, {"data_seed": 3})]
    assert drawn == [derive_seed(3, place, 0)] * 2
    # The bits are what is rounded with.
    tokens = trainer._batches[0]
    a, b, c = (load(noisy, data_seed=s).model.loss_and_grads(tokens)[1]["layers.0.attn.wo"] for s in (1000, 1000, 1001))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.slow
def test_a_branch_resumes_within_its_schedule(load, text, tmp_path):
    straight, branch = (load("dsv3", schedule=DOWN, data_seed=9) for _ in range(2))
    whole = [straight.step() for _ in range(3)]
    assert branch.step() == whole[0]
    branch.save(tmp_path / "b.npz")
    resumed = Trainer.load(tmp_path / "b.npz", data=text)
    assert [resumed.step(), resumed.step()] == whole[1:]
    assert state(resumed) == state(straight)


def test_a_branch_can_keep_its_moments_in_another_format(load):
    wide, narrow = load(recipes["bf16"].with_(name="wide", moments="float32")), load()
    assert wide.optimizer.m["head"].dtype == np.float32
    assert np.array_equal(wide.optimizer.m["head"], lp.decode(narrow.optimizer.m["head"], "bfloat16"))
    # The first update reads the same moments; what it stores differs, and the third loss is the first to show it.
    assert [wide.step(), wide.step()] == [narrow.step(), narrow.step()]
    assert wide.step().loss != narrow.step().loss


def test_a_float64_branch_starts_from_the_same_weights(load):
    exact, narrow = load("float64"), load()
    assert exact.model.params["head"].dtype == np.float64
    assert np.array_equal(exact.model.params["head"], narrow.model.params["head"])
    assert exact.step().loss == pytest.approx(narrow.step().loss, rel=2e-3)


def test_perturb_changes_one_weight_by_a_bfloat16_step(load):
    plain, changed = load(), load()
    where = changed.perturb()
    assert where == "layers.0.attn.wq_a[576]"
    ((name, place, old, new),) = (
        (name, place, w.reshape(-1)[place], changed.model.params[name].reshape(-1)[place])
        for name, w in plain.model.params.items()
        for place in np.flatnonzero(w.reshape(-1) != changed.model.params[name].reshape(-1))
    )
    assert f"{name}[{place}]" == where
    assert new == old * np.float32(1 + 2**-7)
    assert lp.round_to(new, "bfloat16") != lp.round_to(old, "bfloat16")
    assert plain.step().loss != changed.step().loss


def test_perturb_passes_over_zeros(text):
    trainer = micro(text)
    weights = trainer.model.params["layers.0.attn.wq_a"].reshape(-1)
    weights[576:580] = 0
    assert trainer.perturb() == "layers.0.attn.wq_a[580]"


@pytest.mark.slow
def test_calibration_fills_histories_and_changes_nothing_else(load):
    cold, warm = load("te_delayed"), load("te_delayed")
    warm.calibrate(2)
    assert BACKEND.weights_hash(warm) == BACKEND.weights_hash(cold)
    assert warm.steps == cold.steps
    first, second = warm.step(), cold.step()
    assert first.step == second.step
    assert first.grad_norm != second.grad_norm  # the cold one had scales of 1
    place = "layers.0.attn.wo/x.e4m3fn/history"
    histories = [trainer.model.recipe.state_dict()["delayed"][place] for trainer in (cold, warm)]
    assert [np.count_nonzero(history) for history in histories] == [1, 3]


@pytest.mark.slow
def test_calibration_changes_no_bit_without_histories(load):
    plain, after = load("dsv3"), load("dsv3")
    after.calibrate(1)
    assert [plain.step(), plain.step()] == [after.step(), after.step()]
    assert state(plain) == state(after)


@pytest.mark.parametrize("batches", [-1, 4])
def test_calibration_takes_batches_that_were(load, batches):
    with pytest.raises(ValueError, match=f"calibrate: batches must be from 0 to 3, the steps so far, got {batches}"):
        load().calibrate(batches)


# --- checkpoints that do not fit -------------------------------------------------------------------------------------


def test_another_text_is_refused(saved):
    other = corpus_from_bytes("other", bytes(range(256)) * 1000)
    message = r"trained on 'synthetic' \(200000 bytes\), sha256 [0-9a-f]{16}; this is 'other' with sha256 [0-9a-f]{16}"
    with pytest.raises(CheckpointError, match=message):
        Trainer.load(saved, data=other)


def test_the_text_is_found_again_by_its_name(tmp_path):
    path, saved = tmp_path / "text.txt", tmp_path / "c.npz"
    path.write_bytes(bytes(i * i % 251 for i in range(140_000)))
    trainer = micro(load_corpus(path))
    trainer.save(saved)
    assert Trainer.load(saved).step() == trainer.step()
    path.write_bytes(bytes(i * i % 241 for i in range(140_000)))
    with pytest.raises(CheckpointError, match="was trained on"):
        Trainer.load(saved)


@pytest.mark.parametrize("written", [{"code_hash": "0123456789abcdef"}, {}])
def test_a_checkpoint_of_other_code_is_taken_with_a_warning(text, saved, load, tmp_path, written):
    header, arrays = checkpoint.read(saved)
    assert header.pop("code_hash") == code_hash()
    checkpoint.write(tmp_path / "c.npz", header | written, arrays)
    hash_there = written.get("code_hash", "not recorded")
    with pytest.warns(UserWarning, match=rf"c\.npz' was written by other code \(hash {hash_there}, here") as noted:
        trainer = Trainer.load(tmp_path / "c.npz", data=text)
    assert noted[0].filename == __file__
    assert state(trainer) == state(load())


def renamed(header):
    sizes = dict(header["config"])
    return header | {"config": sizes | {"width": sizes.pop("dim")}}


@pytest.mark.parametrize(("change", "message"), [
    (lambda h, a: (h, {name: array for name, array in a.items() if name != "v/head"}),
     r"does not fit this model: 1 arrays differ, the first is 'v/head'"),
    (lambda h, a: (h, a | {"weights/head": np.zeros((2, 2), np.float32)}),
     r"'weights/head' is \(2, 2\) there, \(256, 48\) here"),
    (lambda h, a: (renamed(h), a), "was written by lowprec .*, whose configurations differ: .*'width'"),
    (lambda h, a: ({"step": 1}, {"w": np.zeros(2)}), "lacks 'corpus': it is not that of a trainer"),
])  # fmt: skip
def test_checkpoints_that_do_not_fit(text, saved, tmp_path, change, message):
    checkpoint.write(tmp_path / "c.npz", *change(*checkpoint.read(saved)))
    with pytest.raises(CheckpointError, match=message):
        Trainer.load(tmp_path / "c.npz", data=text)


def test_the_header_says_where_a_checkpoint_comes_from(text, saved):
    header, _ = checkpoint.read(saved)
    assert header["config"] == dataclasses.asdict(MICRO)
    assert (header["recipe"]["about"]["name"], header["steps"], header["seed"], header["data_seed"]) == (
        "bf16",
        3,
        3,
        3,
    )
    assert header["corpus"]["sha256"] == text.sha256
    assert header["code"] == lp.__version__


# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedules():
    constant, down = Schedule(1.0, 4, 10), Schedule(2.0, 0, 4, "linear_to_zero")
    assert [constant.rate(i) for i in (*range(6), 1000)] == [0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert [down.rate(i) for i in range(6)] == [2, 1.5, 1, 0.5, 0, 0]
    assert Schedule(1.0, 3, 3, "linear_to_zero").rate(2) == 1
    rates = [Schedule(1.0, 10, 1000, "deepseek").rate(i) for i in range(1000)]
    assert rates[9:676] == [1.0] * 667
    assert rates[821] == pytest.approx(0.55)
    assert all(b <= a for a, b in itertools.pairwise(rates[9:]))
    assert rates[966:] == pytest.approx([0.1] * 23 + [1 / 30] * 11)
    assert all(rate == float(np.float32(rate)) for rate in rates)


test_refused = refusals([
    ("Schedule(0.0, 1, 2)", "Schedule: learning_rate must be a finite number > 0, got 0.0"),
    ("Schedule(1.0, -1, 2)", "warmup_steps must be an integer >= 0, got -1"),
    ("Schedule(1.0, 0, 0)", "total_steps must be an integer from 1 to 10.*got 0"),
    ("Schedule(1.0, 3, 2)", "Schedule: warmup_steps must be at most total_steps=2, got 3"),
    ("Schedule(1.0, 1, 2, 'cosine')", "unknown schedule 'cosine': expected one of constant, linear_to_zero, deepseek"),
    ("Schedule.of_run(1.0, 100, 'cosine')", "unknown schedule 'cosine': expected one of constant, linear_to_zero,"),
], lambda: {"Schedule": Schedule})  # fmt: skip


# --- train() ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_train(text, tmp_path):
    seen, out = [], tmp_path / "a" / "run"
    run = train(MICRO, "bf16", 4, 1, data=text, learning_rate=1e-2, out=out, on_step=seen.append)
    assert list(run.metrics.columns) == [field.name for field in dataclasses.fields(seen[0])]
    assert run.metrics["loss"].tolist() == [record.loss for record in seen]
    assert run.metrics["step"].tolist() == [1, 2, 3, 4]
    assert run.validation_loss == run.trainer.evaluate()
    assert repr(run) == f"<Run micro bf16: 4 steps, validation loss {run.validation_loss:.4f} nats/byte>"
    assert sorted(os.listdir(out)) == ["checkpoint.npz", "metrics.csv", "run.json"]
    assert json.loads((out / "run.json").read_text())["validation_loss"] == run.validation_loss
    lines = (out / "metrics.csv").read_text().splitlines()
    assert [float(line.split(",")[1]) for line in lines[1:]] == run.metrics["loss"].tolist()
    again = train(MICRO, "bf16", 4, 1, data=text, learning_rate=1e-2)
    assert again.metrics.drop(columns="seconds").equals(run.metrics.drop(columns="seconds"))
    assert Trainer.load(out / "checkpoint.npz", data=text).evaluate() == run.validation_loss


@pytest.mark.slow
def test_train_without_evaluation(text, tmp_path, monkeypatch):
    """It says that there is no validation loss; the rest is the same, and a later call evaluates."""
    whole, stages = train(MICRO, "bf16", 2, 1, data=text), []
    options = {"data": text, "out": tmp_path, "on_stage": stages.append}
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "evaluate", None)
        run = train(MICRO, "bf16", 2, 1, evaluate=False, **options)
    assert (run.status, run.validation_loss, run.excess_loss) == ("done", None, None)
    assert repr(run) == "<Run micro bf16: 2 steps, not evaluated>"
    assert run.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    assert stages == ["the first step", "saving"]
    summary = read_run(tmp_path).summary
    assert (summary["status"], summary["validation_loss"], summary["evaluated"]) == ("done", None, False)
    later = train(MICRO, "bf16", 2, 1, resume=True, **options)
    summary = json.loads((tmp_path / "run.json").read_text())
    assert later.validation_loss == summary["validation_loss"] == whole.validation_loss
    assert summary["evaluated"]


@pytest.mark.parametrize(("changes", "message"), [
    ({"config": "nanno"}, "unknown model configuration 'nanno': did you mean 'nano'"),
    ({"recipe": "dsv2"}, "unknown recipe 'dsv2': did you mean 'dsv4' or 'dsv3'"),
    ({"steps": 0}, "steps must be an integer from 1 to 10.*got 0"),
    ({"seed": -1}, r"corpus: seed must be an integer from 0 to 2\^64 - 1, got -1"),
    ({"data": "no/such/file"}, "corpus must be 'stdlib', 'bible', 'synthetic' or the path of a text file, got"),
    ({"learning_rate": -1.0}, "Schedule: learning_rate must be a finite number > 0, got -1.0"),
    ({"recompute": "everything"}, "unknown recompute policy 'everything': .*none, norms, up_projections"),
])  # fmt: skip
def test_bad_arguments_leave_no_folder(text, tmp_path, changes, message):
    arguments = {"config": MICRO, "recipe": "bf16", "steps": 2, "data": text, "out": tmp_path / "out", **changes}
    with pytest.raises(UnknownNameError if "unknown" in message else ValueError, match=message):
        train(**arguments)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("place", "reason"), [("file", "file' cannot be written: File exists"), ("file/in", "in' .*: Not a directory")]
)
def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(text, tmp_path, place, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"output folder '.*{reason}"):
        train(MICRO, "bf16", 2, data=text, out=tmp_path / place, on_step=pytest.fail)


def test_default_rates():
    assert default_rate(lp.configs["nano"]) == 2e-3
    assert default_rate(lp.configs["pilot"]) == pytest.approx(2e-3 / math.sqrt(2))


# --- losses of windows -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stochastic_forward_pass_has_a_seed(text):
    noisy = recipes["nvfp4"].with_(fprop={"a": "nvfp4_te stochastic"})
    plain, own = micro(text, steps=1), micro(text, noisy, steps=1)
    for trainer, recipe, differ in ((plain, noisy, True), (own, None, True), (plain, "dsv3", False)):
        a, b, c = (trainer.window_losses(recipe, n_bytes=32 * 8, seed=seed).tobytes() for seed in (0, 1, 0))
        assert a == c
        assert (a != b) == differ


@pytest.mark.slow
def test_scales_of_earlier_values_are_found_before_weights_are_read_in_another_precision(load):
    """Calibrated by the batches before, as a branch in that precision would have been; the trainer stays as it was."""
    trainer, branch = load(), load("te_delayed")
    before = state(trainer)
    warm = trainer.window_losses("te_delayed", n_bytes=32 * 8, calibration=3)
    assert state(trainer) == before
    assert warm.tobytes() != trainer.window_losses("te_delayed", n_bytes=32 * 8).tobytes()
    branch.calibrate(3)
    branch.model.recipe.begin_step(branch.steps)
    assert branch.window_losses(n_bytes=32 * 8).tobytes() == warm.tobytes()
    # Its own precision comes with the scales that it has: nothing to calibrate.
    assert branch.window_losses(n_bytes=32 * 8, seed=5, calibration=3).tobytes() == warm.tobytes()
