"""Recorded runs of a model with planted differences: `diverge` names the operation, and what it can of both sides."""

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


def run(folder, made, tokens=TOKENS):
    with torch.no_grad(), record(str(folder), made):
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
        (epsilon, f"{NORM}/aten.add.Tensor#0", "its arguments differ: 1e-06 in A and 1e-05 in B"),
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


class Steps(torch.nn.Module):
    """A model whose forward is a function of the model and its inputs."""

    def __init__(self, forward, **state):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.steps = forward
        for name, value in state.items():
            setattr(self, name, value if isinstance(value, torch.nn.Module) else torch.nn.Buffer(value))

    def forward(self, *inputs):
        return self.steps(self, *inputs)


def steps(folder, forward, *inputs, **state):
    torch.manual_seed(0)
    return run(folder, Steps(forward, **state), *inputs)


def test_parameters_that_are_written_are_hashed_again(tmp_path):
    def forward(self, x):
        first = x * self.scale
        self.scale.data.add_(1)
        return first * self.scale

    found = steps(tmp_path / "a", forward, torch.ones(2, 4), scale=torch.ones(4)).operations
    hashes = [found[f"<model>/aten.mul.Tensor#{i}"].inputs[1].hash for i in (0, 1)]
    assert hashes[0] != hashes[1]


def test_models_of_inference_mode_are_recorded(tmp_path):
    with torch.inference_mode():
        found = steps(tmp_path / "a", lambda self, x: self.inner(x), torch.ones(2, 4))
    assert found.about["finished"]
    assert any(name.startswith("inner/aten.") for name in found.operations)


def test_values_of_complex_buffers_are_compared(tmp_path):
    def forward(self, x):
        return (x * self.turn).real.clone()

    made = [steps(tmp_path / str(i), forward, torch.ones(2, 4), turn=torch.full((4,), i + 1j)) for i in (0, 1)]
    found = diverge(*made)
    assert found.unlike[0].startswith("the weights differ: 1 of 3 parameters, first turn")
    assert found.first.name == "<model>/aten.mul.Tensor#0"


def test_weights_are_not_the_inputs_of_the_model(recorded, tmp_path):
    made = model()
    made.model.embed_tokens.weight.data[3] *= 2
    found = diverge(recorded, run(tmp_path / "b", made))
    assert len(found.unlike) == 1
    assert found.unlike[0].startswith("the weights differ: 1 of")


def test_modules_that_fail_are_left(tmp_path):
    class Failing(torch.nn.Module):
        def forward(self, x):
            raise ArithmeticError

    def forward(self, x):
        try:
            self.failing(x)
        except ArithmeticError:
            return x.exp()

    found = steps(tmp_path / "a", forward, torch.ones(2, 4), failing=Failing())
    assert list(found.operations) == ["<model>/aten.exp.default#0", "<model>/module#0"]


def test_checkpoints_are_left(tmp_path):
    from torch.utils.checkpoint import checkpoint

    middle = Steps(lambda self, x: self.inner(x))
    made = Steps(lambda self, x: checkpoint(self.middle, x, use_reentrant=False), middle=middle)
    with record(str(tmp_path / "a"), made):
        made(torch.ones(2, 4, requires_grad=True)).sum().backward()
        torch.ones(2, 4).exp()
    assert "<model>/aten.exp.default#0" in load_recording(tmp_path / "a").operations


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_values_do_not_stop_a_run(tmp_path):
    def forward(self, x):
        torch.bmm(x.new_ones(0, 2, 4), x.new_ones(0, 4, 2))
        torch.ones(2, 4, device="meta") @ torch.ones(4, 4, device="meta")
        nested = torch.nested.nested_tensor([x, x[:1]])
        (nested * 2, torch.eye(4).to_sparse() @ x.T)
        return self.inner(x)

    found = steps(tmp_path / "a", forward, torch.ones(2, 4))
    assert found.operations["<model>/aten.bmm.default#0"].product is None
    hashes = {t.hash for op in found.operations.values() for t in op.outputs}
    assert {"torch.float32 (0, 2, 2) torch.strided ", "torch.float32 (2, 4) torch.strided meta"} <= hashes


def test_a_run_in_an_except_block_is_whole(tmp_path):
    try:
        raise KeyError
    except KeyError:
        found = steps(tmp_path / "a", lambda self, x: self.inner(x), torch.ones(2, 4))
    assert found.about["finished"]


def test_generators_are_recorded_without_addresses(tmp_path):
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    made = [
        steps(tmp_path / str(i), lambda self, x, g=g: torch.bernoulli(x / 2, generator=g), torch.ones(2, 4))
        for i, g in enumerate(generators)
    ]
    numbers = [run.operations["<model>/aten.bernoulli.default#0"].numbers for run in made]
    assert numbers[0] == numbers[1] == ("'generator'", "<torch._C.Generator object>")


def test_factors_and_scales_of_products_are_recorded(tmp_path):
    def forward(self, x):
        codes = x.to(torch.float8_e4m3fn)
        one = torch.tensor(0.5)
        torch._scaled_mm(codes, codes.T, scale_a=one, scale_b=one * 3, bias=None, out_dtype=torch.float32)
        return torch.addmm(x[:, :16], x, x.T, beta=2, alpha=0.5)

    torch.manual_seed(0)
    found = steps(tmp_path / "a", forward, torch.randn(16, 32)).operations
    scaled = found["<model>/aten._scaled_mm.default#0"].product
    assert [scaled.words[name].view("float32").item() for name in ("a_scale", "b_scale")] == [0.5, 1.5]
    assert found["<model>/aten.addmm.default#0"].product.factors == ("alpha 0.5", "beta 2")
