"""Whole models: what is converted and what is not, optimizers, disagreement, evaluation, several ranks."""

import itertools

import numpy as np
import pytest
from click.testing import CliRunner
from tools import command

import lowprec as lp

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import lowprec.torch as lpt  # noqa: E402
from lowprec.cli.app import cli  # noqa: E402
from lowprec.moe.run import optim  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.o_proj(torch.tanh(self.q_proj(x)))
        return x + self.fc2(torch.relu(self.fc1(x)))


class Model(nn.Module):
    """A language model without attention between tokens: enough to see what becomes of its layers."""

    def __init__(self, width=128, blocks=3, vocabulary=64, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.layers:
            x = block(x)
        return self.lm_head(x)


def tokens(*shape):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 64, shape))


def test_names_may_be_given():
    model = lpt.convert(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}), roles={"b": "head"})
    assert [model[n].layer for n in "ab"] == ["layers.0.attn.wq_a", "head"]
    assert str(model["b"].spec) == "bfloat16 on float32"


def test_converting_keeps_parameters_hooks_ties_and_names():
    model, seen = Model(tied=True), []
    before = dict(model.named_parameters())
    model.layers[0].fc1.register_forward_hook(lambda *_: seen.append("hook"))
    lpt.convert(model, "dsv3")
    after = dict(model.named_parameters())
    assert [(name, id(p)) for name, p in before.items()] == [(name, id(p)) for name, p in after.items()]
    assert model.lm_head.weight is model.embed.weight
    model(tokens(2, 4)).sum().backward()
    assert seen == ["hook"]
    assert model.embed.weight.grad is not None


def test_restored_models_compute_as_before():
    model = Model()
    expected = model(tokens(2, 8))
    assert not torch.equal(lpt.convert(model, "nvfp4")(tokens(2, 8)), expected)
    lpt.restore(model)
    assert torch.equal(model(tokens(2, 8)), expected)
    assert type(model.lm_head) is nn.Linear
    assert not {"keys", "layers", "slot"} & set(vars(model.lm_head))


def test_converting_again_changes_the_recipe_and_skips():
    model = lpt.convert(Model(), "dsv3")
    lpt.convert(model, "bf16", skip=["lm_head", "layers.0.*"], overrides=[("layers.1.fc1", "mxfp8")])
    assert type(model.lm_head) is nn.Linear
    assert type(model.layers[0].fc1) is nn.Linear
    assert "mxfp8" in str(model.layers[1].fc1.spec)
    assert str(model.layers[1].fc2.spec) == "bfloat16 on float32"
    assert "lm_head.weight (64, 128) of Linear: skipped" in lpt.report(model).unreached


def test_reports_name_what_is_not_reached():
    parts = {"attention": nn.MultiheadAttention(8, 2), "linear": nn.Linear(8, 8), "conv": nn.Conv1d(8, 8, 3)}
    report = lpt.report(lpt.convert(nn.ModuleDict(parts), "dsv3"))
    for words in ("in_proj_weight", "out_proj.weight", "subclass of nn.Linear", "conv.weight",
                  "dispatch = fp8_1x128_ue8m0", "moment_m"):  # fmt: skip
        assert words in "\n".join(report.unreached)
    assert [row.name for row in report.rows] == ["linear"]
    assert list(report.to_pandas().columns) == ["name", "role", "precision", "guess"]
    assert ": 1 linear layer\n" in str(report)


def test_the_path_past_the_linear_layers_is_closed():
    layer, called = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), []
    try:
        assert "fast path is off" in str(lpt.report(lpt.convert(nn.Sequential(layer), "mxfp8")))
        layer.linear1.register_forward_hook(lambda *_: called.append(1))
        with torch.no_grad():
            layer.eval()(torch.randn(1, 4, 16))
        assert called
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_every_part_of_a_recipe_without_a_place_is_told():
    changes = {"combine": "logfmt8", "master_weights": "bfloat16", "saved_swiglu_input": "fp8_1x128"}
    for name, value in (*changes.items(), ("storage", {"embed": "fp8_1x128"})):
        assert name in "\n".join(lpt.report(lpt.convert(Model(), lp.recipes["bf16"].with_(**{name: value}))).unreached)


@pytest.mark.parametrize("name", ["bf16", "float32", "dsv3"])
def test_adamw_is_the_trainers(name):
    recipe, rng = lp.recipes[name], np.random.default_rng(0)
    draw = lambda: {s: rng.standard_normal(s).astype(np.float32) for s in ((8, 16), (16,), (3, 4, 5))}  # noqa: E731
    arrays = draw()
    params = [nn.Parameter(torch.from_numpy(a.copy())) for a in arrays.values()]
    ours = lpt.AdamW(params, recipe=name, lr=1e-2)
    theirs = optim.AdamW(arrays, moment_m=recipe.moment_m, moment_v=recipe.moment_v, master=recipe.master_weights)
    for step in range(3):
        gradients, versions = draw(), [p._version for p in params]
        for p, g in zip(params, gradients.values(), strict=True):
            p.grad = torch.from_numpy(g)
        ours.step()
        theirs.update(gradients, 1e-2)
        assert all(p._version > v for p, v in zip(params, versions, strict=True))
        assert all(np.array_equal(p.detach().numpy(), a) for p, a in zip(params, arrays.values(), strict=True)), step
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    other = lpt.AdamW(copies, recipe=name, lr=1.0)
    other.load_state_dict(ours.state_dict())
    for p, q in zip(params, copies, strict=True):
        p.grad = q.grad = torch.ones_like(p)
    ours.step()
    other.step()
    assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))


def test_adamw_refuses_what_is_not_finite():
    optimizer = lpt.AdamW([p := nn.Parameter(torch.ones(2))])
    p.grad = torch.full((2,), float("inf"))
    with pytest.raises(FloatingPointError):
        optimizer.step()
    assert torch.equal(p, torch.ones(2))


def test_states_of_torchs_adamw_are_rounded():
    p = nn.Parameter(torch.linspace(-1, 1, 256).reshape(2, 128))
    narrow = lambda t: np.array_equal(t.detach().numpy(), lp.round_to(t.detach().numpy(), "bfloat16"))  # noqa: E731
    optimizer = torch.optim.AdamW([p], lr=1e-2)
    formats = lpt.RoundedOptimizerState(optimizer, m="e4m3fn 1x128", v="bfloat16", master="bfloat16")
    p.grad = torch.sin(torch.arange(256.0)).reshape(2, 128)
    optimizer.step()
    state = optimizer.state[p]
    assert narrow(state["exp_avg_sq"])
    assert narrow(p)
    assert len(np.unique(state["exp_avg"][0].numpy())) < 128
    formats.remove()
    optimizer.step()
    assert not narrow(p)
    wrong = torch.optim.SGD([p], lr=1e-2, momentum=0.9)
    lpt.RoundedOptimizerState(wrong)
    with pytest.raises(ValueError, match="formats must be of states of SGD, got 'exp_avg'"):
        wrong.step()


def test_gradients_of_bfloat16_weights_may_stay_float32():
    model = lpt.convert(nn.Sequential(nn.Linear(128, 8, dtype=torch.bfloat16)), "dsv3")
    weight = model[0].weight
    if not hasattr(weight, "grad_dtype"):
        pytest.skip("this torch rounds every gradient to its weight's type")
    weight.grad_dtype = torch.float32
    model(torch.randn(64, 128).bfloat16()).sum().backward()
    assert weight.grad.dtype == torch.float32
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


def test_the_same_recipe_disagrees_with_itself_in_nothing():
    found = lpt.mismatch(Model(), tokens(2, 16), "dsv3", "dsv3", group_by="layer")
    assert found.mean == 0
    assert not found.log_ratio.any()
    assert not any(group.is_significant for group in found.parts)
    assert np.isnan(found.noise_floor)  # of these layers, only the head has another order


BLAMED = {"layer": "layers.1", "part": "layers.1", "kind": "fc1", "ingredient": "operands (formats, scales)"}


@pytest.mark.parametrize(("by", "expected"), BLAMED.items())
def test_blame_falls_on_what_was_switched(by, expected):
    model = Model()
    rules = [(pattern, "bf16") for pattern in ("layers.[02].*", "lm_head", "layers.1.fc2", "layers.1.[qo]_proj")]
    found = lpt.mismatch(model, tokens(4, 32), "bf16", lp.recipes["fp4_naive"], group_by=by, overrides=rules)
    assert [group.name for group in found.parts if group.is_significant] == [expected]
    assert found.mean > 10 * found.noise_floor
    assert expected in str(found)
    assert type(model.lm_head) is nn.Linear


def test_powers_of_two_as_scales_raise_the_mismatch():
    """prime-rl#3112: with the same FP8 trainer, a rollout with UE8M0 scales is further off than another accumulator."""
    elsewhere = lp.recipes["dsv3"].with_(accumulator="blackwell_fp8")
    other, powers = (
        lpt.mismatch(Model(256), tokens(4, 64), "dsv3", r, group_by=None) for r in (elsewhere, "dsv3_ue8m0")
    )
    difference = powers.kl - other.kl
    assert difference.mean() > 10 * difference.std() / difference.size**0.5
    assert powers.mean > 5 * other.mean


def test_a_model_that_was_converted_is_left_as_it_was():
    model = lpt.convert(Model(), "mxfp8", skip=["lm_head"]).train()
    expected = model(tokens(2, 8))
    lpt.mismatch(model, tokens(2, 8), group_by=None)
    assert model.training
    assert torch.equal(model(tokens(2, 8)), expected)
    assert lpt.report(model).recipe == "mxfp8"


def test_evaluation():
    reference, fp8, fp4 = lpt.evaluate(Model(), tokens(3, 32), ["dsv3", "fp4_naive"])
    assert reference.ratio == 1
    assert not reference.kl.any()
    assert 0 < fp8.kl.mean() < fp4.kl.mean()
    assert (fp8.hidden < fp4.hidden).all()
    assert (np.diff(fp8.hidden) > 0).all()
    assert np.isnan(fp8.routing).all()
    for bad in (tokens(3), tokens(3, 1)):
        with pytest.raises(ValueError, match="windows must have shape"):
            lpt.evaluate(Model(), bad, ["dsv3"])


def saved(folder, make):
    model = made(make)
    for p in model.parameters():
        p.data.mul_(2 if p.dim() > 1 else 1)
    model.to(torch.bfloat16).save_pretrained(folder)
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 64, 100))
    return model


def made(make):
    torch.manual_seed(0)
    return make(pytest.importorskip("transformers"))


SHAPE = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1}
WIDE = {
    **SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
MAKE = {
    "llama": lambda t: t.LlamaForCausalLM(t.LlamaConfig(**WIDE)),
    "gpt2": lambda t: t.GPT2LMHeadModel(t.GPT2Config(**SHAPE, n_embd=64, n_layer=2, n_head=4, n_positions=64)),
    "mixtral": lambda t: t.MixtralForCausalLM(t.MixtralConfig(**WIDE, num_local_experts=4)),
    "deepseek": lambda t: t.DeepseekV3ForCausalLM(
        t.DeepseekV3Config(
            **WIDE, moe_intermediate_size=32, n_shared_experts=1, n_routed_experts=8, kv_lora_rank=32, q_lora_rank=32,
            qk_rope_head_dim=16, v_head_dim=16, qk_nope_head_dim=16, n_group=4, topk_group=2, num_experts_per_tok=2,
            first_k_dense_replace=1,
        )
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of transformers' own
@pytest.mark.parametrize(("name", "routers"), [("llama", 0), ("gpt2", 0), ("mixtral", 2), ("deepseek", 1)])
def test_folders_of_transformers(name, routers, tmp_path):
    model = saved(tmp_path, MAKE[name]).float()
    report = lpt.report(lpt.convert(model, "dsv3"))
    assert sum("Router" in what for what in report.unreached) == routers
    embeddings = "embed", "wte", "wpe"
    owned = [n for n, p in model.named_parameters() if p.dim() > 1 and not any(e in n for e in embeddings)]
    assert all(any(row.name.startswith(n.rpartition(".")[0]) for row in report.rows) or "gate" in n for n in owned)
    data = torch.from_numpy(np.load(tmp_path / "tokens.npy"))[None, :32]
    model(data, labels=data).loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if not n.endswith("bias") or "proj" in n)
    figure, data = tmp_path / "figure.png", tmp_path / "tokens.npy"
    out = command("eval", tmp_path, "--recipe", "dsv3", "--data", data, "--window", 25, "--csv", "--figure", figure)
    lines = [line.split(",") for line in out.splitlines()]
    assert [line[0] for line in lines] == ["recipe", "bf16", "dsv3"]
    assert float(lines[1][4]) == 0 < float(lines[2][4])
    assert figure.stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore")
def test_experts_of_a_folder_are_one_linear_layer_each():
    block = lpt.convert(made(MAKE["mixtral"]), "dsv3").model.layers[0].mlp.experts
    index = torch.tensor([[0, 2], [2, 3], [0, 3], [2, 0], [3, 2], [0, 2]])
    x, weights, expected = torch.randn(6, 64), torch.rand(6, 2), torch.zeros(6, 2, 64)
    for token, slot in itertools.product(range(6), range(2)):
        e, layer = int(index[token, slot]), "layers.0.ffn.experts.0."
        gate, up = lpt.linear(x[token], block.gate_up_proj[e], recipe="dsv3", layer=layer + "w1").chunk(2, -1)
        h = torch.nn.functional.silu(gate) * up
        y = lpt.linear(h, block.down_proj[e], recipe="dsv3", layer=layer + "w2")
        expected[token, slot] = y * weights[token, slot]
    assert torch.equal(block(x, index, weights), expected.sum(1))


@pytest.mark.filterwarnings("ignore")
def test_mismatch_and_its_messages_on_the_command_line(tmp_path):
    saved(tmp_path, MAKE["llama"])
    (tmp_path / "text.txt").write_text("hello")

    def run(recipe, data, *options):
        words = ["mismatch", "bf16", recipe, "--data", str(tmp_path / data), *options]
        found = CliRunner().invoke(cli, [*words, "--model", str(tmp_path), "--window", "20"])
        return found.exit_code, found.output

    code, output = run("dsv3", "tokens.npy", "--group-by", "kind")
    assert code == 0, output
    assert "KL reduction" in output
    assert "o_proj" in output
    for arguments, words in (
        (("dsv9", "tokens.npy"), "unknown recipe 'dsv9'"),
        (("dsv3", "text.txt"), "no tokenizer.json"),
        (("dsv3", "tokens.npy", "--skip", "q_prj"), "no linear layer matches 'q_prj'"),
    ):
        code, output = run(*arguments)
        assert code == 2
        assert words in output
        assert len(output.strip().splitlines()) == 1


# --- data-parallel and sharded models of one rank: the same bits as without -------------------------------------------


dist = torch.distributed


@pytest.fixture
def alone(tmp_path):
    """Join a group of one rank."""
    if not dist.is_available():
        pytest.skip("this torch has no distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def small(recipe):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 128)) for _ in range(3)]
    return lpt.convert(nn.Sequential(*blocks), recipe)


def steps(run, plain):
    """Return outputs and gradients of two steps."""
    found = []
    for step in range(2):
        x = torch.from_numpy(np.random.default_rng(step).standard_normal((8, 128)).astype(np.float32))
        run.zero_grad()
        y = run(x)
        y.square().sum().backward()
        whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in plain.parameters()]
        found += [t.detach().clone() for t in (y, *whole)]
    return found


def data_parallel(plain):
    return nn.parallel.DistributedDataParallel(plain)


def fully_sharded(plain):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for module in (*plain, plain):
        fsdp.fully_shard(module, mesh=mesh)
    return plain


@pytest.mark.filterwarnings("ignore")  # of torch's own
@pytest.mark.parametrize("wrapped", [data_parallel, fully_sharded])
@pytest.mark.parametrize("recipe", ["dsv3", "nvfp4", "te_delayed"])
def test_one_rank_gives_the_same_bits(alone, recipe, wrapped):
    plain, other = small(recipe), small(recipe)
    expected, found = steps(plain, plain), steps(wrapped(other), other)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
