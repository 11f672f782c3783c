"""Two stacks under one model: planted differences are named, and rules of A that mend them."""

import gc
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import lowprec as lp
from lowprec.cli.app import cli

torch = pytest.importorskip("torch")
import lowprec.torch as lpt  # noqa: E402
from lowprec.parity.operations import Arithmetic, ReciprocalRoot  # noqa: E402
from lowprec.parity.stack import Stack  # noqa: E402
from lowprec.parity.sums import Product, Sum  # noqa: E402
from lowprec.torch.switching import divergence  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread", "avx512")]
CPU = lp.stacks["torch_cpu"]
SEQUENTIAL = (lp.orders["sequential"],)
PLANTED = {
    "mm": (Product((lp.orders["halving"],)), "vdpbf16ps, tdpbf16ps; B: halving)"),
    "addmm": (Product(SEQUENTIAL), "; B: sequential)"),
    "mean": (CPU.rule("mean").with_(mean="reciprocal"), "mean (A: division; B: reciprocal)"),
    "sum": (Sum(SEQUENTIAL), "orders (A: torch_cpu_sum; B: sequential)"),
    "rsqrt": (ReciprocalRoot(once=True), "once (A: False; B: True)"),
    "silu": (CPU.rule("silu").with_(step=1 << 20), "step (A: 128; B: 1048576)"),
    "sigmoid": (Arithmetic("negative"), "A: Sigmoid; B: Arithmetic"),
    "add": (Arithmetic("subtract"), "function (A: add; B: subtract)"),
}


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, UP, DOWN, BIAS = normal(70, 37, seed=0), normal(35, 37, seed=1) / 6, normal(37, 35, seed=2) / 6, normal(37, seed=3)


def model(x):
    """A block of a model: a norm, two products, an activation and a gate."""
    h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    h = torch.nn.functional.linear(torch.nn.functional.silu(h @ UP.T), DOWN, BIAS)
    return x + h * torch.sigmoid(h.sum(-1, keepdim=True) / 4)


def other(*operations):
    return CPU.with_rules("other", {name: PLANTED[name][0] for name in operations})


@pytest.mark.slow
@pytest.mark.parametrize("operation", PLANTED)
def test_a_planted_difference_is_named(operation):
    found = lpt.parity(model, X, CPU, other(operation))
    assert found.outputs == X.numel()
    assert 0 < found.differing <= found.outputs
    assert found.fixes == ((operation,),)
    assert found.mended == {operation: 1.0}
    assert found.first.startswith(f"{operation} [")
    assert found.kl is None
    assert PLANTED[operation][1] in str(found)


@pytest.mark.slow
def test_no_rule_can_be_left_out():
    """The last rule that differs, of the division by 4, changes no bit."""
    b = other("mean", "rsqrt", "silu").with_rules("b", {"div": CPU.rule("div").with_(mark="own")})
    calls = []
    found = lpt.parity(model, X, CPU, b, progress=lambda *numbers: calls.append(numbers))
    assert [set(fix) for fix in found.fixes] == [{"mean", "rsqrt", "silu"}]
    assert found.mended.keys() == {"mean", "rsqrt", "silu", "div"}
    assert 0 <= found.mended["rsqrt"] < 1
    assert found.mended["div"] == 0
    text = str(found)
    assert "no single rule of A makes them equal; A's rules for these do, and none can be left out: " in text
    assert "div: mends 0 % of the differing outputs; mark (A: exact; B: own)" in text
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert calls[-1] == (11, 11)


def test_each_rule_that_suffices_is_named():
    """Either factor is zero with A's rule."""
    b = CPU.with_rules("b", {"sub": Arithmetic("add"), "neg": Arithmetic("copy")})
    found = lpt.parity(lambda x: (x - x) * (x + torch.neg(x)), X.abs() + 1, CPU, b)
    assert found.fixes == (("sub",), ("neg",))
    assert found.differing == X.numel()
    assert "one change of B makes them equal: A's rule for sub, or for neg\n" in str(found)


def test_equal_outputs():
    b = CPU.with_rules("b", {"mean": PLANTED["mean"][0], "cos": CPU.rule("cos").with_(ulps=2)})
    found = lpt.parity(lambda x: torch.cos(x.mean(-1)), X[:, :32], CPU, b)
    assert (found.differing, found.fixes) == (0, ())
    assert str(found).splitlines() == [
        "all 70 outputs of 'torch_cpu' (A) and 'b' (B) are equal",
        "rules that differ without effect on these outputs:",
        "  mean: mean (A: division; B: reciprocal)",
        "  cos: ulps (A: 1.0; B: 2)",
        "not compared: cos, whose bits are PyTorch's own",
    ]
    nan = lpt.parity(lambda x: x.to(torch.bfloat16) * torch.nan, X, CPU, CPU)
    assert str(nan) == "all 2590 outputs of 'torch_cpu' (A) and 'torch_cpu' (B) are equal"


def test_no_output_of_a_call_is_kept():
    """At the end of the second run, one input and one output of the chain are alive."""
    alive = []

    def chain(x):
        for _ in range(20):
            x = torch.neg(x)
        gc.collect()
        alive.append(sum(type(t) is torch.Tensor and t.shape == (71, 3) for t in gc.get_objects()))
        return x.sum()

    lpt.parity(chain, torch.ones(71, 3), CPU, CPU)
    assert max(alive) < 5


def test_masked_logits_have_a_finite_divergence():
    """KL((1/2, 1/2, 0) || (1/4, 3/4, 0)) is log(4/3) / 2; a second such position has 0."""
    p, q = (torch.tensor([x, (0.5, 0.5, 0)]).log() for x in ((0.5, 0.5, 0), (0.25, 0.75, 0)))
    np.testing.assert_allclose(divergence(p, q), [np.log(4 / 3) / 2, 0], rtol=1e-6)


def test_what_cannot_be_compared_is_an_error():
    numbers = itertools.count(1)
    for function, a, b, error, words in (
        (model, "torch_cp", CPU, KeyError, "unknown stack 'torch_cp'"),
        (model, CPU, Stack("few", CPU.rules[:20]), KeyError, "stack 'few': unknown operation"),
        (model, Stack("few"), CPU, KeyError, "stack 'few': unknown operation 'pow'"),
        (torch.nn.functional.elu, CPU, CPU, KeyError, "stack 'torch_cpu': unknown operation 'elu'"),
        (lambda x: x.double(), CPU, CPU, ValueError, "_to_copy must be in float32 or bfloat16"),
        (lambda x: [x], CPU, CPU, TypeError, "as a tensor or .logits, got list"),
        (lambda x: x[:0], CPU, CPU, TypeError, r"got torch.float32 \(0, 37\)"),
        (lambda x: SimpleNamespace(logits=x.sum()), CPU, CPU, ValueError, r"\[..., vocabulary\], got \(\)"),
        (lambda x: x > 0, CPU, CPU, TypeError, r"got torch.bool \(70, 37\)"),
        (lambda x: x * next(numbers), CPU, CPU, ValueError, "the same outputs in every run"),
        (lambda x: x[: next(numbers)], CPU, CPU, ValueError, "one shape in every run"),
    ):
        with pytest.raises(error, match=words):
            lpt.parity(function, X, a, b)


TOML = """base = "torch_cpu"
name = "rollout"

[rules.mean]
mean = "reciprocal"
"""


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_the_command(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=24, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    np.save(tmp_path / "tokens.npy", np.arange(30))
    (tmp_path / "rollout.toml").write_text(TOML)
    (tmp_path / "odd.toml").write_text(TOML.replace("rules.mean", "rules.men"))

    def run(b, *options):
        words = ["parity", "torch_cpu", b, "--model", str(tmp_path), "--data", str(tmp_path / "tokens.npy"), *options]
        return CliRunner().invoke(cli, words)

    for b, options, code, words in (
        ("torch_cpu", (), 0, "all 900 outputs of 'torch_cpu' (A) and 'torch_cpu' (B) are equal"),
        (f"{tmp_path}/rollout.toml", (), 1, "one change of B makes them equal: A's rule for mean"),
        (f"{tmp_path}/rollout.toml", (), 1, "the first operation with other outputs is mean [1, 30, 1], call"),
        (f"{tmp_path}/rollout.toml", (), 1, "KL of the logits: "),
        (f"{tmp_path}/rollout.toml", ("--json",), 1, '"name": "fixes"'),
        (f"{tmp_path}/odd.toml", (), 2, "unknown operation 'men': did you mean 'mean'?"),
        ("rollout", (), 2, "unknown stack 'rollout'"),
    ):
        found = run(b, "--window", "30", *options)
        assert found.exit_code == code, found.output
        assert words in found.output
        assert code < 2 or len(found.output.strip().splitlines()) == 1


@pytest.mark.slow
def test_the_page_shows_what_its_code_prints(shows_what_it_prints):
    shows_what_it_prints(r"lpt\.parity")
