"""The trainer's model as a module of torch, and as a folder of transformers: from a checkpoint, product by product."""

from dataclasses import replace

import numpy as np
import pytest
from golden_runs import golden
from recorded_trainer import Recorder
from tools import command

import lowprec as lp

torch = pytest.importorskip("torch")
import lowprec.torch as lpt  # noqa: E402
from lowprec.moe.data.synthetic import synthetic  # noqa: E402
from lowprec.moe.run.checkpoint import CheckpointError, write  # noqa: E402
from lowprec.moe.run.schedule import Schedule  # noqa: E402
from lowprec.moe.run.trainer import Trainer  # noqa: E402
from lowprec.recipe import BoundRecipe  # noqa: E402
from lowprec.torch.folder import load_tokens  # noqa: E402
from lowprec.torch.huggingface import export_blockers, hf_parameter_name  # noqa: E402

pytestmark = pytest.mark.torch
CONFIG = replace(golden.MICRO, balance_alpha=0.0, expert_groups=2, topk_groups=1)  # groups as transformers judges them
RECIPES = ("bf16", "dsv3", "dsv3_ue8m0", "te_current", "mxfp8", "nvfp4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer after a few steps, its checkpoint, and held-out sequences."""
    trainer = untrained(CONFIG)
    for _ in range(4):
        trainer.step()
    path = tmp_path_factory.mktemp("trained") / "checkpoint.npz"
    trainer.save(path)
    tokens = np.array(trainer.corpus.held_out[: 3 * (CONFIG.sequence + 1)]).reshape(3, -1)
    return trainer.model, path, tokens


def untrained(config):
    return Trainer(config, "bf16", synthetic(0), seed=1, schedule=Schedule(1e-3, 0, 9))


def loss_of(module, tokens):
    with torch.no_grad():
        return float(module.loss(torch.from_numpy(tokens)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_product_is_the_trainers(recipe, trained, monkeypatch):
    model, path, tokens = trained
    events, bind = [], BoundRecipe.linear
    monkeypatch.setattr(BoundRecipe, "linear", lambda self, layer: Recorder(layer, bind(self, layer), events))
    model.with_recipe(recipe).loss(tokens)
    monkeypatch.undo()
    modules = dict(lpt.load_checkpoint(path).use(recipe, seed=model.rounding_seed).train().named_modules())
    with torch.no_grad():
        for _, call in events:
            ours = modules[call.layer](torch.from_numpy(call.x)).numpy()
            assert np.array_equal(ours.view(np.uint32), call.y.view(np.uint32)), call.layer
    assert {call.layer for _, call in events} == {name for name, m in modules.items() if isinstance(m, lpt.Linear)}


@pytest.mark.parametrize("recipe", ["float32", *RECIPES])
def test_the_loss_is_the_trainers_but_for_roundings_of_torchs_own_sums(recipe, trained):
    model, path, tokens = trained
    ours = loss_of(lpt.load_checkpoint(path).use(recipe, seed=model.rounding_seed), tokens)
    # where activations are BF16, a sum in another order turns a rounding now and then
    within = 1e-6 if recipe == "float32" else 1e-4
    assert ours == pytest.approx(model.with_recipe(recipe).loss(tokens), rel=within)


def test_without_a_recipe_it_is_a_plain_module(trained):
    model, path, tokens = trained
    plain = lpt.load_checkpoint(path)
    assert not any(isinstance(m, lpt.Linear) for m in plain.modules())
    assert loss_of(plain, tokens) == pytest.approx(model.with_recipe("float32").loss(tokens), rel=1e-6)


@pytest.mark.parametrize("recipe", ["float32", "bf16", "dsv3", "mxfp8"])
def test_gradients_are_the_trainers_but_for_roundings_of_torchs_own_sums(recipe, trained):
    model, path, tokens = trained
    _, theirs = model.with_recipe(recipe).loss_and_grads(tokens)
    ours = lpt.load_checkpoint(path).use(recipe)
    ours.loss(torch.from_numpy(tokens)).backward()
    found = {name.removesuffix(".weight"): p.grad.numpy() for name, p in ours.named_parameters()}
    assert found.keys() == theirs.keys()
    # one rounding the other way moves all that comes after: the loss times 1 + 2^-22 alone moves FP8 gradients by 5 %
    within = {"float32": 1e-4, "bf16": 0.02}.get(recipe, 0.1)
    for name, gradient in theirs.items():
        assert np.linalg.norm(found[name] - gradient) <= within * np.linalg.norm(gradient), name


def test_loads_are_the_trainers(trained):
    model, path, tokens = trained
    theirs, ours = model.with_recipe("dsv3"), lpt.load_checkpoint(path).use("dsv3")
    theirs.loss_and_grads(tokens)
    ours.loss(torch.from_numpy(tokens))
    assert {
        f"layers.{i}.ffn.gate": b.ffn.loads.tolist() for i, b in enumerate(ours.layers) if hasattr(b.ffn, "gate")
    } == {name: loads.tolist() for name, loads in theirs.loads.items()}


def test_a_file_that_is_no_trainers_is_refused(tmp_path):
    write(tmp_path / "other.npz", {"step": 3}, {"w": np.zeros(2, np.float32)})
    for name, words in (("other.npz", "is not that of a trainer"), ("nothing.npz", "does not exist")):
        with pytest.raises(CheckpointError, match=words):
            lpt.load_checkpoint(tmp_path / name)


# --- the layout of the released models ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    folder = tmp_path_factory.mktemp("exported") / "model"
    assert command("export", trained[1], folder) == f"wrote {folder}: config.json, model.safetensors, tokenizer.json\n"
    return folder


def test_transformers_reads_every_weight_and_gives_the_trainers_loss(trained, exported):
    model, _, tokens = trained
    read, info = pytest.importorskip("transformers").DeepseekV3ForCausalLM.from_pretrained(
        exported, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    x = torch.from_numpy(tokens).long()
    for module in (lambda: read, lambda: lpt.convert(read, "float32")):
        with torch.no_grad():
            logits = module().eval()(x[:, :-1]).logits.double()
        loss = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()))
        assert loss == pytest.approx(model.with_recipe("float32").loss(tokens), rel=1e-6)


def test_its_tokens_are_bytes(exported):
    content = "".join(map(chr, range(1, 0x17F))) + "\u20ac \U0001f600  end"
    (exported / "text.txt").write_bytes(content.encode())
    assert bytes(load_tokens(exported / "text.txt", exported, 256).tolist()) == content.encode()


def test_eval_runs_on_it(exported):
    text = exported / "some.txt"
    text.write_bytes(bytes(range(32, 127)) * 4)
    assert "dsv3" in command("eval", exported, "--recipe", "dsv3", "--data", text, "--window", 32)


@pytest.mark.parametrize(("change", "words"), [
    ({"shared_experts": 0}, "it has a shared expert"),
    ({"top_k": 1}, "a group of experts is judged by its best 1, there by its best 2"),
    ({"norm_eps": 1e-5}, "norm_eps is 1e-05, its latent norms have 1e-06"),
])  # fmt: skip
def test_what_its_model_cannot_compute_is_said(change, words, tmp_path):
    config = replace(lp.configs["nano"], **change)
    assert export_blockers(config) == [words]
    untrained(config).save(tmp_path / "checkpoint.npz")
    with pytest.raises(ValueError, match=f"cannot be written as transformers' DeepSeek-V3: {words}"):
        lpt.export(tmp_path / "checkpoint.npz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_parameter_has_a_name_of_its_own():
    for config in lp.configs:
        names = [hf_parameter_name(name) for name in lp.configs[config].parameter_shapes()]
        assert len(set(names)) == len(names)
