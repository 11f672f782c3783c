"""Models with a forward pass that a stack computes: the same logits on every CPU, and operations left to PyTorch."""

import copy
import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import tiny_models  # noqa: E402
from tiny_models import DTYPES  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import lowprec.torch as lpt  # noqa: E402
from lowprec.torch.switching import preserve_model  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
STACK = "lowprec_sequential"
#: Hashes of the logits of models with integers as weights, by model, dtype and attention.
GOLDEN = {
    "llama/float32/eager": "d685afef3f707f6e",
    "llama/float32/sdpa": "d685afef3f707f6e",
    "llama/bfloat16/eager": "bf88e80e99eebfe6",
    "llama/bfloat16/sdpa": "c61cb6f7d0403537",
    "gpt2/float32/eager": "e983c382e357a3b2",
    "gpt2/float32/sdpa": "e983c382e357a3b2",
    "gpt2/bfloat16/eager": "d3e3d8036b743f5c",
    "gpt2/bfloat16/sdpa": "36ae450d008bcd15",
    "qwen3/float32/eager": "101bdbb64619fa8e",
    "qwen3/bfloat16/eager": "bd06d62da4db3d94",
    "qwen3_moe/float32/eager": "a48b17b899fc9f39",
    "qwen3_moe/float32/sdpa": "a48b17b899fc9f39",
    "qwen3_moe/bfloat16/eager": "63c016d51f213a92",
    "qwen3_moe/bfloat16/sdpa": "191a334b64009dd0",
    "mixtral/float32/eager": "5b48596b0732ee6d",
    "mixtral/bfloat16/eager": "ce2959ceff9d5080",
    "deepseek/float32/eager": "88ca56086eeceda8",
    "deepseek/float32/sdpa": "96d107eeafddf582",
    "deepseek/bfloat16/eager": "965746a7972081ac",
    "deepseek/bfloat16/sdpa": "2a718d21d2df8058",
    "neox/float32/eager": "a2c98fb14591965b",
    "neox/float32/sdpa": "a2c98fb14591965b",
    "neox/bfloat16/eager": "6441c860a69cdfbe",
    "neox/bfloat16/sdpa": "30a549e24efaa4bb",
    "gemma2/float32/eager": "62302d9e04978ef4",
    "gemma2/bfloat16/eager": "e5193b2a8f40994f",
}


def logits(name, dtype, attention):
    """Return the logits of a model without randomness and without functions of PyTorch in its weights."""
    model = getattr(tiny_models, name)(dtype, attention)
    integers = torch.Generator().manual_seed(0)
    for p in model.parameters():
        x = torch.randint(-1024, 1025, p.shape, generator=integers) / 4096
        p.data = (x if p.ndim > 1 else x + 1).to(p.dtype)
    for b in model.buffers():  # such as frequencies, which PyTorch computes as the model is made
        if b.is_floating_point():
            b.copy_((b.float() * 2**16).round() / 2**16)
    tokens = torch.arange(66).reshape(2, 33)
    with torch.no_grad():
        return lpt.convert(model, stack=STACK, strict=True)(tokens, use_cache=False).logits


def digest(*case):
    return hashlib.sha256(logits(*case).float().numpy().tobytes()).hexdigest()[:16]


CASES = [name.split("/") for name in GOLDEN]


@pytest.mark.ci
@pytest.mark.parametrize("case", CASES, ids="/".join)
def test_golden_logits(case, keep_threads):
    for threads in (1, 2):
        torch.set_num_threads(threads)
        lp.set_num_threads(threads)
        assert digest(*case) == GOLDEN["/".join(case)]


PROGRAM = """
import json, sys
sys.path[:0] = ["tests/frameworks"]
from test_torch_stack import CASES, digest
print(json.dumps({"/".join(case): digest(*case) for case in CASES}))
"""
#: Variables that give the libraries a CPU without AVX-512.
OTHERS = {
    "NUMBA_CPU_NAME": "x86-64-v3", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "NUMBA_CPU_FEATURES": "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+f16c,"
    "+movbe,+cx16,+fxsr,+mmx",
}  # fmt: skip


@pytest.mark.ci
@pytest.mark.skipif("x86" not in os.uname().machine, reason="the features are those of x86-64")
def test_the_kind_of_cpu_changes_no_logit():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, env={**os.environ, "PYTHONPATH": str(root), **OTHERS},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == GOLDEN


class Steps(torch.nn.Module):
    """A module that computes a function."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.function = function
        self.parameters_of = torch.nn.ParameterList(parameters)

    def forward(self, x):
        return self.function(x)


def by_stack(function, x):
    with torch.no_grad():
        return lpt.convert(Steps(function), stack=STACK, strict=True)(x).numpy()


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def in_turn(terms):
    total = np.float32(0)
    for term in terms:
        total = np.float32(total + term)
    return total


def exp(x):
    return np.float32(np.exp(np.float64(x)))


@pytest.mark.slow
def test_operations_are_their_definitions():
    x = normal(3, 37) * 4
    rows, n = x.numpy(), np.float32(37)
    shifted = [exp(row - row.max()) for row in rows]
    softmax = [e / in_turn(e) for e in shifted]
    assert (by_stack(lambda x: x.softmax(-1), x) == softmax).all()
    logs = [row - row.max() - np.float32(np.log(np.float64(in_turn(e)))) for row, e in zip(rows, shifted, strict=True)]
    assert (by_stack(lambda x: x.log_softmax(-1), x) == logs).all()
    assert (by_stack(lambda x: x.mean(-1), x) == [in_turn(row) / n for row in rows]).all()
    centered = [row - in_turn(row) / n for row in rows]
    normed = [d / np.sqrt(in_turn(d * d) / n + np.float32(1e-5)) for d in centered]
    assert (by_stack(lambda x: F.layer_norm(x, (37,)), x) == normed).all()
    products = np.array([[in_fma(a, b) for b in rows] for a in rows])
    assert (by_stack(lambda x: x @ x.T, x) == products).all()
    scores = products * np.float32(37**-0.5)
    p = [e / in_turn(e) for e in (exp(row - row.max()) for row in scores)]
    attended = np.array([[in_fma(row, column) for column in rows.T] for row in p])
    q = x[None, None]
    assert (by_stack(lambda x: F.scaled_dot_product_attention(q, q, q)[0, 0], x) == attended).all()


def in_fma(a, b):
    """Return a dot product by fused multiply-adds: each is exact in a long double, for numbers of few binades."""
    total = np.float32(0)
    for x, y in zip(a.astype(np.longdouble), b.astype(np.longdouble), strict=True):
        total = np.float32(x * y + total)
    return total


def test_operations_that_a_stack_does_not_know_are_reported_or_refused():
    x = normal(3, 8)
    model = lpt.convert(Steps(lambda x: x.cumsum(0).exp()), stack=STACK)
    assert lpt.report(model).unreached == ()
    assert torch.equal(model(x), torch.from_numpy(by_stack(torch.exp, x.cumsum(0))))
    assert lpt.report(model).unreached[0].startswith("cumsum, computed by PyTorch: stack 'lowprec_sequential': unknown")
    assert "stack lowprec_sequential" in str(lpt.report(model))
    strict = lpt.convert(model, stack=STACK, strict=True)
    with pytest.raises(ValueError, match="unknown operation 'cumsum'"):
        strict(x)
    with torch.no_grad(), lpt.emulate(STACK) as run:
        y = x.exp()
    assert torch.equal(y, torch.from_numpy(by_stack(torch.exp, x)))
    assert run.counts["exp"].outputs == 24
    assert torch.equal(lpt.restore(strict)(x), x.cumsum(0).exp())
    with pytest.raises(TypeError, match="recipe must be given with skip"):
        lpt.convert(model, stack=STACK, skip=["a"])


def test_a_recipe_computes_linear_layers_and_a_stack_the_rest():
    layers = torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 8)
    model = lpt.convert(torch.nn.Sequential(*layers), "dsv3", stack=STACK)
    x = normal(4, 128)
    found = model(x)
    plain = lpt.convert(copy.deepcopy(model), "dsv3")
    middle = torch.from_numpy(by_stack(F.gelu, plain[0](x).detach()))
    assert torch.equal(found, plain[2](middle))
    report = lpt.report(model)
    assert report.recipe == "dsv3"
    assert len(report.rows) == 2
    assert any("stack lowprec_sequential" in note for note in report.notes)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.slow
def test_copies_keep_the_stack():
    model = lpt.convert(tiny_models.llama("float32", "sdpa"), stack=STACK)
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = model(tokens).logits
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(tokens).logits, expected)
        with preserve_model(model):
            lpt.convert(model, "bf16")
            assert not torch.equal(model(tokens).logits, expected)
        assert torch.equal(model(tokens).logits, expected)
        assert not torch.equal(lpt.restore(model)(tokens).logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_masks_groups_and_dropout(dtype):
    q, k = normal(1, 4, 5, 8).to(DTYPES[dtype]), normal(1, 2, 5, 8).to(DTYPES[dtype])
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf).to(q.dtype)

    def attend(**options):
        function = Steps(lambda x: F.scaled_dot_product_attention(x, k, k, enable_gqa=True, **options).float())
        return lpt.convert(function, stack=STACK, strict=True)(q)

    with torch.no_grad():
        assert torch.equal(attend(is_causal=True), attend(attn_mask=mask))
        hidden = attend(attn_mask=torch.full((5, 5), -torch.inf, dtype=q.dtype))
        assert (hidden == 0).all()
