"""Recorded runs of a model with planted differences: `diverge` names the operation, and what it can of both sides."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch.nn import functional as F  # noqa: E402

from lowprec.parity.diverge import diverge  # noqa: E402
from lowprec.parity.recording import FILES, load_recording  # noqa: E402
from lowprec.torch.recorder import record  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS = torch.arange(66).reshape(2, 33) % 80
NORM = "model.layers.1.post_attention_layernorm"


def model(dtype=torch.bfloat16, **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=80, intermediate_size=400, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=20, **more,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval().to(dtype)


def run(folder, made, tokens=TOKENS, **how):
    with torch.no_grad(), record(str(folder), made, **how):
        made(tokens)
    return load_recording(folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return run(tmp_path_factory.mktemp("a") / "run", model())


def patched(change):
    def make():
        made = model()
        change(made.model.layers[1])
        return made

    return make


def epsilon(layer):
    layer.post_attention_layernorm.variance_epsilon = 1e-5


def halves_of_k(layer):
    linear = layer.mlp.down_proj
    parts = slice(None, 200), slice(200, None)
    linear.forward = lambda x: sum(F.linear(x[..., part], linear.weight[:, part]) for part in parts)


def in_float32(layer):
    linear = layer.mlp.down_proj
    linear.forward = lambda x: F.linear(x.float(), linear.weight.float()).bfloat16()


def reversed_k(layer):
    linear, order = layer.mlp.down_proj, torch.arange(399, -1, -1)
    linear.forward = lambda x: F.linear(x[..., order], linear.weight[:, order])


def norm_in_bfloat16(layer):
    norm = layer.post_attention_layernorm
    norm.forward = lambda x: norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))


def weight(layer):
    layer.mlp.up_proj.weight.data[3, 5] *= 1.01


def activation(layer):
    layer.mlp.act_fn = torch.nn.GELU(approximate="tanh")


def scale(layer):
    layer.self_attn.scaling *= 1.0078125


def no_rounding_of_x(layer):
    norm = layer.post_attention_layernorm

    def forward(x):
        x = x.float()
        return (norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))).bfloat16()

    norm.forward = forward


def mean_in_another_order(layer):
    norm = layer.post_attention_layernorm

    def forward(x):
        x = x.float()
        by_columns = x.pow(2).transpose(-1, -2).contiguous().transpose(-1, -2)  # other strides: other order
        variance = by_columns.mean(-1, keepdim=True)
        return norm.weight * (x * torch.rsqrt(variance + norm.variance_epsilon)).bfloat16()

    norm.forward = forward


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        (epsilon, f"{NORM}/aten.add.Tensor#0", "its arguments differ: 1e-06 in A, 1e-05 in B"),
        (halves_of_k, "model.layers.1.mlp.down_proj/aten.mm.default#0", "aten.mm.default#1"),
        (in_float32, "model.layers.1.mlp.down_proj/aten.mm.default#0", "bfloat16 [66, 80] in A, float32 [66, 80] in B"),
        (reversed_k, "model.layers.1.mlp.down_proj/aten.mm.default#0", "B computes"),
        (norm_in_bfloat16, f"{NORM}/aten.pow.Tensor_Scalar#0", "float32 [2, 33, 80] in A, bfloat16 [2, 33, 80] in B"),
        (no_rounding_of_x, f"{NORM}/aten.mul.Tensor#1", "float32"),
        (mean_in_another_order, f"{NORM}/aten.mean.dim#0", "torch_cpu_sum"),
        (weight, "model.layers.1.mlp.up_proj/aten.mm.default#0", "first model.layers.1.mlp.up_proj.weight (1 of"),
        (activation, "model.layers.1.mlp.act_fn/module#0", "aten.gelu.default"),
        (scale, "model.layers.1.self_attn/", "its arguments differ"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_planted_differences_are_named(recorded, tmp_path, change, name, text):
    found = diverge(recorded, run(tmp_path / "b", patched(change)()), seconds=5)
    assert found.first is not None
    assert found.first.name.startswith(name)
    assert text in "\n".join(found.lines())


def test_equal_runs_are_equal(recorded, tmp_path):
    found = diverge(recorded, run(tmp_path / "b", model()))
    assert found.first is None
    assert not found.unlike
    assert found.compared == len(recorded.operations) > 100
    assert not list(found.only_a + found.only_b)


def test_other_batches_and_models_are_said_first(recorded, tmp_path):
    one = run(tmp_path / "one", model(), TOKENS[:1])
    found = diverge(recorded, one)
    shapes = "[2, 33] in A, [1, 33] in B"
    assert found.unlike == (f"the model's inputs have shapes {shapes}: their common rows are compared",)
    other = diverge(recorded, run(tmp_path / "tokens", model(), TOKENS.flip(1)))
    assert other.unlike[0].startswith("the model's inputs differ: 2 of 2 rows differ")
    assert other.first.name.startswith("model.embed_tokens/")
    made = model(tie_word_embeddings=True)
    assert any(
        "lm_head" in line or "weights differ" in line for line in diverge(recorded, run(tmp_path / "tied", made)).unlike
    )


def test_products_on_both_sides_are_identified(tmp_path):
    """A product of one row and of many takes other kernels in float32: both sides are searched."""
    made = [run(tmp_path / str(n), model(torch.float32), TOKENS[:, :n]) for n in (1, 33)]
    found = diverge(*made, seconds=2)
    assert found.first is None or found.first.kind != "module"


def test_names_can_be_replaced(recorded, tmp_path):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = model()

        def forward(self, tokens):
            return self.policy(tokens)

    folder = tmp_path / "b"
    run(folder, Wrapped())
    assert diverge(recorded, load_recording(folder)).compared < 3
    found = diverge(recorded, load_recording(folder, {"policy.": ""}))
    assert found.first is None
    assert found.compared > 100


def test_whole_tensors_are_kept(tmp_path):
    run(tmp_path / "b", model(), keep="*.up_proj/aten.mm*")
    rows = [json.loads(line) for line in (tmp_path / "b" / FILES[1]).read_text().splitlines()]
    assert {row["name"]: row["whole"][1] for row in rows if "whole" in row} == {
        f"model.layers.{i}.mlp.up_proj/aten.mm.default#0": 66 * 400 * 2 for i in (0, 1)
    }


def test_half_a_folder_and_others_are_refused(recorded, tmp_path):
    with pytest.raises(FileExistsError):
        run(tmp_path, model())
    folder = shutil.copytree(recorded.folder, tmp_path / "b")
    (folder / FILES[1]).write_text((folder / FILES[1]).read_text()[:-40])
    for path, message in (
        (tmp_path / "none", "is not a folder"), (folder, "must hold JSON"),
        (tmp_path, "without manifest.json and operations.jsonl and tensors.bin"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            load_recording(path)


def test_a_run_that_fails_says_so(recorded, tmp_path):
    with pytest.raises(IndexError), record(str(tmp_path / "b"), model()):
        model()(TOKENS + 80)
    assert "B ended with an error" in diverge(recorded, load_recording(tmp_path / "b")).unlike[0]
