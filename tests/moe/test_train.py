"""Training: the same bits for the same seeds, resumed or not; branches; failures that leave nothing behind."""

import dataclasses
import itertools
import json
import math
import os

import numpy as np
import pytest
from golden_runs import golden

import lowprec as lp
from lowprec import recipes
from lowprec._code import code_hash
from lowprec.moe.data.corpus import corpus_from_bytes, held_out_windows
from lowprec.moe.data.sources import load_corpus
from lowprec.moe.model.model import Model
from lowprec.moe.run import checkpoint, saving
from lowprec.moe.run.checkpoint import CheckpointError
from lowprec.moe.run.files import read_run
from lowprec.moe.run.train import Diverged, Schedule, Trainer, default_rate, train
from lowprec.recipe import draw
from lowprec.registry import UnknownNameError
from lowprec.study.run.backend import BACKEND

MICRO = golden.MICRO
STEADY = Schedule(peak=4e-3, warmup_steps=2, total_steps=100)


@pytest.fixture(scope="module")
def text():
    return golden.text()


def micro(text, recipe="bf16", **changes):
    return Trainer(MICRO, recipe, text, **{"seed": 3, "schedule": STEADY, **changes})


def state(trainer):
    """Every bit that the next step depends on."""
    return {name: array.tobytes() for name, array in saving.state(trainer).items()}


# --- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "dsv3", "fp4_naive", "float64"])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(text, tmp_path, recipe):
    straight = micro(text, recipe)
    whole = [straight.step() for _ in range(6)]
    first = micro(text, recipe)
    parts = [first.step() for _ in range(3)]
    first.save(tmp_path / "c.npz")
    second = Trainer.load(tmp_path / "c.npz", data=text)
    parts += [second.step() for _ in range(3)]
    if recipe == "float64":  # its products are NumPy's
        assert [r.loss for r in parts] == pytest.approx([r.loss for r in whole], rel=1e-9)
    else:
        assert parts == whole
        assert state(second) == state(straight)
        assert second.evaluate(n_bytes=256) == straight.evaluate(n_bytes=256)


def test_saving_twice_gives_the_same_file(text, tmp_path):
    for name in ("a.npz", "b.npz"):
        trainer = micro(text)
        trainer.step()
        trainer.save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


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
    assert (record.step, record.tokens) == (1, 256)
    assert record.loss == loss
    assert record.grad_norm == trainer.optimizer.norm(gradients)
    assert record.learning_rate == STEADY.rate(0)
    assert record.max_violation >= 0
    assert record.nonfinite_operands == 0
    assert record.seconds > 0
    assert trainer.step().learning_rate == STEADY.rate(1)


def test_biases_move_towards_an_even_load(text):
    trainer = micro(text)
    trainer.step()
    assert list(trainer.model.biases) == ["layers.1.ffn.gate", "layers.2.ffn.gate"]
    for gate, bias in trainer.model.biases.items():
        loads = trainer.model.loads[gate]
        assert loads.sum() == 256 * MICRO.top_k
        assert np.array_equal(bias, np.float32(MICRO.bias_rate) * np.sign(loads.mean() - loads).astype(np.float32))
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


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_divergence_leaves_the_trainer_as_it_was(text, bad):
    trainer = micro(text)
    trainer.step()
    trainer.model.params["layers.1.ffn.shared.w2"][0, 0] = bad
    before = state(trainer)
    with np.errstate(all="ignore"), pytest.raises(Diverged, match=r"step 2: the (loss|norm of the gradient)"):
        trainer.step()
    assert state(trainer) == before
    assert trainer.steps == trainer.optimizer.steps == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", list(recipes))
def test_infinity_in_a_weight_is_a_divergence_in_every_recipe(text, recipe):
    trainer = micro(text, recipe)
    trainer.model.params["layers.1.attn.wq_a"][7, 3] = np.inf
    before = state(trainer)
    with np.errstate(all="ignore"), pytest.raises(Diverged, match=r"step 1: .* in layers\.1\.attn\.wq_a"):
        trainer.step()
    assert state(trainer) == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recipe", list(recipes))
def test_infinity_in_an_output_gradient_is_counted_in_every_recipe(text, recipe, monkeypatch):
    trainer = micro(text, recipe)
    layer = trainer.model._blocks[0].attn.linears["wq_b"]
    backward = layer.backward

    def disturbed(grads, d_y, saved):
        d_y[5, 2] = np.inf
        return backward(grads, d_y, saved)

    monkeypatch.setattr(layer, "backward", disturbed)
    with np.errstate(all="ignore"):
        try:
            counted = trainer.step().nonfinite_operands  # its casts saturate
        except Diverged as error:
            counted = str(error).count("NaN or infinity in")
    assert counted > 0
    assert "layers.0.attn.wq_b/dy" in trainer.model.recipe.nonfinite
    monkeypatch.undo()
    if trainer.steps:
        assert trainer.step().nonfinite_operands == 0


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation_is_the_mean_over_fixed_windows_and_changes_nothing(text):
    trainer = micro(text)
    trainer.step()
    before = state(trainer)
    value = trainer.evaluate(n_bytes=32 * 19)  # 19 windows: two full batches of 8 and one of 3
    windows = held_out_windows(text, 32, 32 * 19)
    each = [trainer.model.loss(window[None]) for window in windows]
    assert len(each) == 19
    assert value == pytest.approx(np.mean(each), rel=1e-6)
    assert state(trainer) == before
    assert trainer.evaluate(n_bytes=32 * 19) == value


def test_evaluation_in_another_precision_reads_the_same_weights(text):
    trainer = micro(text, "fp4_naive")
    trainer.step()
    own, plain = trainer.evaluate(n_bytes=512), trainer.evaluate(recipe="bf16", n_bytes=512)
    other = micro(text, "bf16")
    for name, weight in trainer.model.params.items():
        other.model.params[name][...] = weight
    for name, bias in trainer.model.biases.items():
        other.model.biases[name][...] = bias
    assert plain == other.evaluate(n_bytes=512)
    assert own != plain
    assert own == trainer.evaluate(recipe="fp4_naive", n_bytes=512)


# --- branches --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "c.npz"
    trainer = micro(text)
    for _ in range(3):
        trainer.step()
    trainer.save(path)
    return path


@pytest.mark.slow
def test_equal_branches_are_equal_and_others_are_not(text, saved):
    down = Schedule(1e-3, 0, 4, "linear_to_zero")

    def branch(**changes):
        trainer = Trainer.load(saved, data=text, **{"schedule": down, "data_seed": 9, **changes})
        return trainer, [trainer.step() for _ in range(2)]

    a, steps_a = branch()
    b, steps_b = branch()
    assert steps_a == steps_b
    assert state(a) == state(b)
    assert [record.step for record in steps_a] == [4, 5]
    assert [record.learning_rate for record in steps_a] == [down.rate(0), down.rate(1)]
    other_data, steps_other = branch(data_seed=10)
    assert steps_other[0].loss != steps_a[0].loss
    fp8, steps_fp8 = branch(recipe="dsv3")
    assert steps_fp8[0].loss != steps_a[0].loss
    assert (fp8.recipe.name, other_data.data_seed) == ("dsv3", 10)


@pytest.mark.slow
def test_branches_on_other_data_draw_other_random_bits(text, saved, tmp_path):
    noisy = recipes["fp4_naive"].with_(dy="e2m1fn 1x16 stochastic")

    def bits(**changes):
        trainer = Trainer.load(saved, recipe=noisy, data=text, **changes)
        return trainer, trainer.model.recipe.draw("layers.0.attn.wo/wgrad.dy")

    trainer, first = bits(data_seed=1000)
    other_arm = Trainer.load(saved, recipe="nvfp4", data=text, data_seed=1000).model.recipe
    assert other_arm.draw("layers.0.attn.wo/wgrad.dy") == first
    assert trainer.model.with_recipe("nvfp4").recipe.draw("layers.0.attn.wo/wgrad.dy") == first
    trainer.save(tmp_path / "branch.npz")
    resumed = Trainer.load(tmp_path / "branch.npz", data=text)
    assert resumed.model.recipe.draw("layers.0.attn.wo/wgrad.dy") == first
    assert len({bits(data_seed=seed)[1] for seed in range(1000, 1020)}) == 20
    # Without a data seed of their own, runs draw by their seed alone.
    assert bits()[1] == bits(data_seed=3)[1] == draw(3, "layers.0.attn.wo/wgrad.dy", 0)
    # The bits are what is rounded with.
    tokens = trainer._batches[0]
    grads = [bits(data_seed=seed)[0].model.loss_and_grads(tokens)[1]["layers.0.attn.wo"] for seed in (1000, 1000, 1001)]
    assert np.array_equal(grads[0], grads[1])
    assert not np.array_equal(grads[0], grads[2])


@pytest.mark.slow
def test_a_branch_resumes_within_its_schedule(text, saved, tmp_path):
    down = Schedule(1e-3, 0, 4, "linear_to_zero")
    straight = Trainer.load(saved, recipe="dsv3", schedule=down, data_seed=9, data=text)
    whole = [straight.step() for _ in range(3)]
    branch = Trainer.load(saved, recipe="dsv3", schedule=down, data_seed=9, data=text)
    assert branch.step() == whole[0]
    branch.save(tmp_path / "b.npz")
    resumed = Trainer.load(tmp_path / "b.npz", data=text)
    assert [resumed.step(), resumed.step()] == whole[1:]
    assert state(resumed) == state(straight)


def test_a_branch_can_keep_its_moments_in_another_format(text, saved):
    wide = Trainer.load(saved, recipe=recipes["bf16"].with_(name="wide", moments="float32"), data=text)
    narrow = Trainer.load(saved, data=text)
    assert wide.optimizer.m["head"].dtype == np.float32
    assert np.array_equal(wide.optimizer.m["head"], lp.decode(narrow.optimizer.m["head"], "bfloat16"))
    # The first update reads the same moments; what it stores differs, and the third loss is the first to show it.
    assert [wide.step(), wide.step()] == [narrow.step(), narrow.step()]
    assert wide.step().loss != narrow.step().loss


def test_a_float64_branch_starts_from_the_same_weights(text, saved):
    exact = Trainer.load(saved, recipe="float64", data=text)
    narrow = Trainer.load(saved, data=text)
    assert exact.model.params["head"].dtype == np.float64
    assert np.array_equal(exact.model.params["head"], narrow.model.params["head"])
    assert exact.step().loss == pytest.approx(narrow.step().loss, rel=2e-3)


def test_perturb_changes_one_weight_by_a_bfloat16_step(text, saved):
    plain, changed = Trainer.load(saved, data=text), Trainer.load(saved, data=text)
    where = changed.perturb()
    assert where == "layers.0.attn.wq_a[576]"
    differences = [
        (name, place, w.reshape(-1)[place], changed.model.params[name].reshape(-1)[place])
        for name, w in plain.model.params.items()
        for place in np.flatnonzero(w.reshape(-1) != changed.model.params[name].reshape(-1))
    ]
    ((name, place, old, new),) = differences
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
def test_calibration_fills_histories_and_changes_nothing_else(text, saved):
    cold, warm = (Trainer.load(saved, recipe="te_delayed", data=text) for _ in range(2))
    warm.calibrate(2)
    assert BACKEND.weights_hash(warm) == BACKEND.weights_hash(cold)
    assert warm.steps == cold.steps
    first, second = warm.step(), cold.step()
    assert first.step == second.step
    assert first.grad_norm != second.grad_norm  # the cold one had scales of 1
    layer = "layers.0.attn.wo/x.e4m3fn"
    histories = [trainer.model.recipe.state_dict()["delayed"][f"{layer}/history"] for trainer in (cold, warm)]
    assert [np.count_nonzero(history) for history in histories] == [1, 3]


@pytest.mark.slow
def test_calibration_changes_no_bit_without_histories(text, saved):
    plain, after = (Trainer.load(saved, recipe="dsv3", data=text) for _ in range(2))
    after.calibrate(1)
    assert [plain.step(), plain.step()] == [after.step(), after.step()]
    assert state(plain) == state(after)


@pytest.mark.parametrize("batches", [-1, 4])
def test_calibration_takes_batches_that_were(text, saved, batches):
    trainer = Trainer.load(saved, data=text)
    with pytest.raises(ValueError, match=f"calibration with {batches} batches, after {trainer.steps} steps: 0 to"):
        trainer.calibrate(batches)


# --- checkpoints that do not fit -------------------------------------------------------------------------------------


def test_another_text_is_refused(saved):
    other = corpus_from_bytes("other", bytes(range(256)) * 1000)
    message = (
        r"was trained on 'synthetic' \(200000 bytes\), sha256 [0-9a-f]{16}; this is 'other' with sha256 [0-9a-f]{16}"
    )
    with pytest.raises(CheckpointError, match=message):
        Trainer.load(saved, data=other)


def test_the_text_is_found_again_by_its_name(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(i * i % 251 for i in range(140_000)))
    trainer = micro(load_corpus(path))
    trainer.save(tmp_path / "c.npz")
    assert Trainer.load(tmp_path / "c.npz").step() == trainer.step()
    path.write_bytes(bytes(i * i % 241 for i in range(140_000)))
    with pytest.raises(CheckpointError, match="was trained on"):
        Trainer.load(tmp_path / "c.npz")


@pytest.mark.parametrize("written", [{"code_hash": "0123456789abcdef"}, {}])
def test_a_checkpoint_of_other_code_is_taken_with_a_warning(text, saved, tmp_path, written):
    header, arrays = checkpoint.read(saved)
    assert header.pop("code_hash") == code_hash()
    checkpoint.write(tmp_path / "c.npz", header | written, arrays)
    hash_there = written.get("code_hash", "not recorded")
    with pytest.warns(UserWarning, match=rf"c\.npz' was written by other code \(hash {hash_there}, here") as noted:
        trainer = Trainer.load(tmp_path / "c.npz", data=text)
    assert noted[0].filename == __file__
    assert state(trainer) == state(Trainer.load(saved, data=text))


def test_arrays_that_do_not_fit(text, saved, tmp_path):
    header, arrays = checkpoint.read(saved)
    less = {name: array for name, array in arrays.items() if name != "v/head"}
    checkpoint.write(tmp_path / "less.npz", header, less)
    with pytest.raises(CheckpointError, match=r"does not fit this model: 1 arrays differ, the first is 'v/head'"):
        Trainer.load(tmp_path / "less.npz", data=text)
    checkpoint.write(tmp_path / "odd.npz", header, {**arrays, "weights/head": np.zeros((2, 2), np.float32)})
    with pytest.raises(CheckpointError, match=r"'weights/head' is \(2, 2\) there, \(256, 48\) here"):
        Trainer.load(tmp_path / "odd.npz", data=text)
    header["config"]["width"] = header["config"].pop("dim")
    checkpoint.write(tmp_path / "old.npz", header, arrays)
    with pytest.raises(CheckpointError, match=r"comes from lowprec .*, which had other sizes: .*'width'"):
        Trainer.load(tmp_path / "old.npz", data=text)
    (tmp_path / "cut.npz").write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged, cut off"):
        Trainer.load(tmp_path / "cut.npz", data=text)


def test_the_header_says_where_a_checkpoint_comes_from(text, saved):
    header, _ = checkpoint.read(saved)
    assert header["config"] == dataclasses.asdict(MICRO)
    assert (header["recipe"], header["steps"], header["seed"], header["data_seed"]) == ("bf16", 3, 3, 3)
    assert header["corpus"]["sha256"] == text.sha256
    assert header["code"] == lp.__version__


# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedules():
    constant = Schedule(1.0, 4, 10)
    assert [constant.rate(i) for i in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert constant.rate(1000) == 1
    down = Schedule(2.0, 0, 4, "linear_to_zero")
    assert [down.rate(i) for i in range(6)] == [2, 1.5, 1, 0.5, 0, 0]
    assert Schedule(1.0, 3, 3, "linear_to_zero").rate(2) == 1
    stages = Schedule(1.0, 10, 1000, "deepseek")
    rates = [stages.rate(i) for i in range(1000)]
    assert rates[9:676] == [1.0] * 667
    assert rates[821] == pytest.approx(0.55)
    assert all(b <= a for a, b in itertools.pairwise(rates[9:]))
    assert rates[966:989] == [pytest.approx(0.1)] * 23
    assert rates[989:] == [pytest.approx(1 / 30)] * 11
    assert all(rate == float(np.float32(rate)) for rate in rates)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1, 2), "learning_rate=0.0: a finite number > 0"),
        ((math.nan, 1, 2), "learning_rate=nan"),
        ((math.inf, 1, 2), "learning_rate=inf"),
        (("1e-3", 1, 2), "learning_rate='1e-3'"),
        ((1.0, -1, 2), "warmup_steps=-1: a whole number >= 0"),
        ((1.0, 0, 0), "total_steps=0: a whole number from 1 to 10"),
        ((1.0, 1.5, 2), "warmup_steps=1.5"),
        ((1.0, 3, 2), "warmup_steps 3 are more than total_steps 2"),
        ((1.0, 1, 2, "cosine"), "schedule kind 'cosine': known are constant, linear_to_zero, deepseek"),
    ],
)
def test_bad_schedules(arguments, message):
    with pytest.raises(ValueError, match=message):
        Schedule(*arguments)


# --- train() ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_train(text, tmp_path):
    seen = []
    run = train(MICRO, "bf16", 4, 1, data=text, learning_rate=1e-2, out=tmp_path / "a" / "run", progress=seen.append)
    assert list(run.metrics.columns) == [field.name for field in dataclasses.fields(seen[0])]
    assert run.metrics["loss"].tolist() == [record.loss for record in seen]
    assert run.metrics["step"].tolist() == [1, 2, 3, 4]
    assert run.validation_loss == run.trainer.evaluate()
    assert repr(run) == f"<Run micro bf16: 4 steps, validation loss {run.validation_loss:.4f} nats/byte>"
    assert sorted(os.listdir(tmp_path / "a" / "run")) == ["checkpoint.npz", "metrics.csv", "run.json"]
    summary = json.loads((tmp_path / "a" / "run" / "run.json").read_text())
    assert summary["validation_loss"] == run.validation_loss
    lines = (tmp_path / "a" / "run" / "metrics.csv").read_text().splitlines()
    assert [float(line.split(",")[1]) for line in lines[1:]] == run.metrics["loss"].tolist()
    again = train(MICRO, "bf16", 4, 1, data=text, learning_rate=1e-2)
    assert again.metrics.drop(columns="seconds").equals(run.metrics.drop(columns="seconds"))
    resumed = Trainer.load(tmp_path / "a" / "run" / "checkpoint.npz", data=text)
    assert resumed.evaluate() == run.validation_loss


@pytest.mark.slow
def test_train_without_evaluation(text, tmp_path, monkeypatch):
    """It says that there is no validation loss; the rest is the same, and a later call evaluates."""
    whole = train(MICRO, "bf16", 2, 1, data=text)
    stages = []
    options = {"data": text, "out": tmp_path, "stage": stages.append}
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "evaluate", None)
        run = train(MICRO, "bf16", 2, 1, evaluate=False, **options)
    assert (run.status, run.validation_loss, run.excess_loss) == ("done", None, None)
    assert repr(run) == "<Run micro bf16: 2 steps, not evaluated>"
    assert run.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    assert stages == ["the first step", "saving"]
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (summary["status"], summary["validation_loss"], summary["evaluated"]) == ("done", None, False)
    assert read_run(tmp_path).summary == summary
    later = train(MICRO, "bf16", 2, 1, resume=True, **options)
    assert later.validation_loss == whole.validation_loss
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (summary["validation_loss"], summary["evaluated"]) == (whole.validation_loss, True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"config": "nanno"}, UnknownNameError, "unknown model configuration 'nanno': did you mean 'nano'"),
        ({"recipe": "dsv2"}, UnknownNameError, "unknown recipe 'dsv2': did you mean 'dsv4' or 'dsv3'"),
        ({"steps": 0}, ValueError, "steps=0: a whole number from 1 to 10"),
        ({"steps": 2.0}, ValueError, "steps=2.0"),
        ({"steps": math.nan}, ValueError, "steps=nan"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"data": "no/such/file"}, ValueError, "corpus 'no/such/file': no such file"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate=-1.0"),
    ],
)
def test_bad_arguments_leave_no_folder(text, tmp_path, changes, error, message):
    arguments = {"config": MICRO, "recipe": "bf16", "steps": 2, "data": text, "out": tmp_path / "out", **changes}
    with pytest.raises(error, match=message):
        train(**arguments)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(text, tmp_path):
    (tmp_path / "file").write_text("")
    steps = []
    with pytest.raises(ValueError, match=r"output folder '.*file' cannot be written: File exists"):
        train(MICRO, "bf16", 2, data=text, out=tmp_path / "file", progress=steps.append)
    with pytest.raises(ValueError, match=r"output folder '.*inside' cannot be written: Not a directory"):
        train(MICRO, "bf16", 2, data=text, out=tmp_path / "file" / "inside", progress=steps.append)
    assert steps == []


def test_default_rates():
    assert default_rate(lp.configs["nano"]) == 2e-3
    assert default_rate(lp.configs["pilot"]) == pytest.approx(2e-3 / math.sqrt(2))


# --- losses of windows -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("recipe", ["bf16", "fp4_naive"])
def test_window_losses_are_what_evaluate_averages(text, recipe):
    trainer = micro(text, recipe)
    trainer.step()
    before = state(trainer)
    for other in (None, "bf16", "dsv3"):
        windows = trainer.window_losses(other, n_bytes=32 * 19)
        assert windows.shape == (19,)
        assert windows.mean() == pytest.approx(trainer.evaluate(other, n_bytes=32 * 19), rel=1e-14)
    assert state(trainer) == before


@pytest.mark.slow
def test_a_stochastic_forward_pass_has_a_seed(text):
    recipe = recipes["nvfp4"].with_(fprop={"a": "nvfp4_te stochastic"})
    trainer = micro(text)
    trainer.step()
    found = [trainer.window_losses(recipe, n_bytes=32 * 8, seed=seed).tobytes() for seed in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
    own = micro(text, recipe)
    own.step()
    found = [own.window_losses(n_bytes=32 * 8, seed=seed).tobytes() for seed in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
    plain = [trainer.window_losses("dsv3", n_bytes=32 * 8, seed=seed).tobytes() for seed in (0, 1)]
    assert plain[0] == plain[1]


@pytest.mark.slow
def test_scales_of_earlier_values_are_found_before_weights_are_read_in_another_precision(text, saved):
    """Calibrated by the batches before, as a branch in that precision would have been; the trainer stays as it was."""
    trainer, branch = Trainer.load(saved, data=text), Trainer.load(saved, recipe="te_delayed", data=text)
    before = state(trainer)
    warm = trainer.window_losses("te_delayed", n_bytes=32 * 8, calibration=3)
    assert state(trainer) == before
    assert warm.tobytes() != trainer.window_losses("te_delayed", n_bytes=32 * 8).tobytes()
    branch.calibrate(3)
    branch.model.recipe.begin_step(branch.steps)
    assert branch.window_losses(n_bytes=32 * 8).tobytes() == warm.tobytes()
    # Its own precision comes with the scales that it has: nothing to calibrate.
    assert branch.window_losses(n_bytes=32 * 8, seed=5, calibration=3).tobytes() == warm.tobytes()
