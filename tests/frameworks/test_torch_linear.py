"""Layers and functions of lowprec.torch: the bits of `lowprec.recipe`, gradients, messages, compilers, copies."""

import copy
import importlib
import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refusals

import lowprec as lp
from lowprec.recipe.operands import quantize_operand

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import lowprec.torch as lpt  # noqa: E402
from lowprec.recipe import LayerPrecision, LayerState, LinearSpec  # noqa: E402
from lowprec.registry import UnknownNameError  # noqa: E402
from lowprec.torch import ops  # noqa: E402

pytestmark = pytest.mark.torch
EVERY = [name for name in lp.recipes if lp.recipes[name].activations != "float64" and not name.startswith("combine")]
STATEFUL = ("nvfp4", "te_delayed")


def bits(t):
    t = t.detach()
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t.view(torch.int32)).numpy()


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(bits(a), bits(b))


def all_same(found, expected):
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def bf16(t):
    return lp.round_to(t.detach().numpy(), "bfloat16")


def layer(recipe="dsv3", k=128, n=96, bias=True, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return in_four_blocks(nn.Linear(k, n, bias=bias, dtype=dtype), recipe)


def in_four_blocks(linear, recipe, **options):
    """Return a converted layer of block 0 of 4: some recipes leave the last block alone."""
    model = nn.ModuleDict({"0": linear, "3": nn.Linear(1, 1, dtype=linear.weight.dtype)})
    return lpt.convert(model, recipe, **options)["0"]


def run(module, x, dy, forward=None):
    x = x.clone().requires_grad_()
    module.zero_grad()
    y = (forward or module)(x)
    y.backward(dy)
    return y, x.grad, *(p.grad for p in module.parameters())


@pytest.mark.filterwarnings("ignore:.*quantizes nothing")  # of a model that is a head
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_layers_give_the_recipes_bits_over_steps(name, dtype):
    recipe = lp.recipes[name]
    if recipe.activations == "float32" and dtype == torch.bfloat16:
        pytest.skip("refused: test_refused")
    places = "layers.0.attn.wq_a", "layers.0.attn.wo", "layers.0.ffn.gate", "head", "layers.1.ffn.w2"
    for place, (tokens, k, n) in itertools.product(places, ((5, 72, 40), (130, 256, 130))):
        linear = nn.Linear(k, n, bias=False, dtype=dtype)
        ours = in_four_blocks(linear, recipe, roles=dict.fromkeys("03", place), seed=3)
        precision, state = LayerPrecision.of(recipe, place, 4), LayerState(place, 3)
        plain, w = precision.ops(state), ours.weight.detach().float().numpy()
        for step in range(2):
            x, dy = numbers(tokens, k, seed=step), numbers(tokens, n, seed=9 + step)
            kept = x.to(ops.input_dtype(precision.key)).float().numpy()
            leaving = dy.to(ops.output_dtype(precision.key)).float().numpy()
            state.begin_forward(training=True)
            expected, saved = plain.fprop(kept, w)
            state.begin_backward()
            y, dx, dw = run(ours, x, dy)
            assert np.array_equal(bits(y.float()), expected.view(np.int32))
            assert np.array_equal(bits(dx), plain.dgrad(leaving, saved).view(np.int32))
            assert same(dw, torch.from_numpy(plain.wgrad(leaving, saved)).to(dtype))


@pytest.mark.parametrize("name", ["dsv3", "bf16", "te_current", "mxfp8"])
def test_a_bias_is_added_before_the_one_rounding(name):
    module, x = layer(name), numbers(33, 128).bfloat16()
    g, c = module.spec.fprop, np.broadcast_to(module.bias.detach().numpy(), (33, 96))
    q = quantize_operand(module.spec.x, x.float().numpy()), quantize_operand(module.spec.w, bf16(module.weight))
    how = {
        "accumulator": g.accumulator,
        "promote_every": g.promote_every,
        "library": g.library,
        "out_format": "bfloat16",
    }
    expected = lp.gemm(*q, c, **how)
    assert np.array_equal(module(x).detach().float().numpy(), expected)
    assert (lp.round_to(lp.gemm(*q, **how) + c, "bfloat16") != expected).mean() > 0.1


def test_the_gradient_of_a_bias_is_summed_in_order():
    module, dy, total = layer(), numbers(257, 96), np.zeros(96, np.float32)
    for row in bf16(dy):
        total = total + row
    assert np.array_equal(run(module, numbers(257, 128), dy)[-1].numpy(), total)


@pytest.mark.parametrize("shape", [(128,), (0, 128), (2, 0, 128), (2, 3, 4, 128)])
def test_shapes(shape):
    module, x = layer(), numbers(*shape)
    y, dx, *_ = run(module, x, numbers(*shape[:-1], 96))
    assert (y.shape, dx.shape) == ((*shape[:-1], 96), shape)
    assert same(y.reshape(-1, 96), module(x.reshape(-1, 128)))


def test_operands_that_are_not_contiguous():
    module, x = layer(), numbers(128, 50)
    assert same(module(x.t()), module(x.t().contiguous()))
    assert same(module(x[:, ::2].t()), module(x[:, ::2].t().contiguous()))


def test_only_what_is_needed_is_computed(monkeypatch):
    module, asked = layer(), []
    kind = type(LayerPrecision.from_key(module.key).ops())
    inner = kind.gradients
    monkeypatch.setattr(kind, "gradients", lambda self, *a: asked.append(a[3]) or inner(self, *a))
    for weight in (False, True):
        module.weight.requires_grad_(weight)
        module(numbers(4, 128).requires_grad_(not weight)).sum().backward()
    assert asked == [(True, False), (False, True)]


def test_nan_and_inf_stay_in_their_rows():
    module, x = layer("mxfp8"), numbers(4, 128)
    x[1, 5], x[2, 7] = float("nan"), float("inf")
    y = module(x)
    assert torch.isfinite(y[[0, 3]]).all()
    assert torch.isnan(y[1]).all()
    plain = LayerPrecision.from_key(module.key).ops()
    expected = plain.product(x.bfloat16().float().numpy(), module.weight.detach().numpy(), module.bias.detach().numpy())
    assert np.array_equal(y.detach().numpy(), expected, equal_nan=True)


def test_threads_do_not_matter(keep_threads):
    module, x, dy, found = layer("dsv3", 512, 384), numbers(300, 512), numbers(300, 384), []
    for threads in (1, 2):
        lp.set_num_threads(threads)
        found.append(run(module, x, dy))
    assert all_same(*found)


def test_autocast_changes_nothing():
    module, x = layer(), numbers(8, 128)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert same(y, module(x))


SMALL = "nn.Sequential(nn.Linear(2, 2))"
test_refused = refusals(
    [
        ("layer(numbers(2, 128).half())", TypeError, "lowprec.torch: x must be float32 or bfloat16, got torch.float16"),
        ("layer(numbers(2, 128).double())", TypeError, "lowprec.torch: x must be float32 or bfloat16, got"),
        ("layer(on_a_gpu)", RuntimeError, "x must be on the CPU, which emulates the bits, got cuda:0; move the"),
        ("lpt.convert(nn.Sequential(nn.ReLU()))", "model must have a module of exact type nn.Linear, .* Sequential"),
        (f"lpt.convert({SMALL}, skip=['0'])", "model must have a linear layer that is not skipped, got 1, all skipped"),
        ("lpt.linear(numbers(2, 2), numbers(2, 2), recipe='dsv3', layer='layers.1.attn.q')", UnknownNameError,
         "matches no layer of any model: did you mean"),
        (f"lpt.convert({SMALL}, 'dsv4x3')", UnknownNameError, "did you mean 'dsv4' or 'dsv3'"),
        ("lpt.convert(nn.ModuleDict({'lm_head': nn.Linear(2, 2)}), skip=['lm_hed'])", UnknownNameError,
         "no linear layer matches 'lm_hed': did you mean 'lm_head'"),
        (f"lpt.convert({SMALL}, 'float64')", TypeError, "recipe must compute in float32 or bfloat16, got float64"),
        (f"lpt.convert({SMALL}.bfloat16(), 'float32')", "lowprec.torch.convert: 0's weight must be float32 with"),
        (f"lpt.convert({SMALL}, roles='bert')", TypeError, "roles must be 'auto', a mapping of patterns to layers"),
        (f"lpt.convert({SMALL}, 'dsv3', strict=True)", "strict"),
        ("lpt.report(nn.Linear(2, 2))", "the model has not been converted; call lowprec.torch.convert first"),
        ("lpt.linear(numbers(2, 2), numbers(2, 2))", TypeError, "lowprec.torch.linear: one of spec and recipe must"),
        ("lpt.linear(numbers(2, 2), numbers(2, 2), recipe='nvfp4')", "spec must not depend on the step, got fprop"),
        ("lpt.grouped_linear(numbers(9, 128), numbers(4, 32, 128), torch.tensor([9, 1]), recipe='dsv3')",
         r"x, w and counts must be \[T, K\], \[E, N, K\] and \[E\] of sum T, got \(9, 128\), \(4, 32,"),
        ("lpt.apply_codec(numbers(2, 2), 'fp9')", UnknownNameError, "codec"),
        ("lpt.AdamW([nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))])", TypeError,
         r"parameter 0 must be contiguous float32, got torch.bfloat16 with strides \(1,\)"),
    ],
    lambda: {
        "torch": torch, "nn": nn, "lpt": lpt, "numbers": numbers, "layer": layer(),
        "on_a_gpu": SimpleNamespace(dtype=torch.float32, device=torch.device("cuda:0")),  # all that a tensor is asked
    },
)  # fmt: skip


def test_no_second_derivative():
    x = numbers(2, 128).requires_grad_()
    (gradient,) = torch.autograd.grad(layer()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_a_thread_that_flushes_subnormals_is_refused():
    module = layer()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush")
    try:
        with pytest.raises(RuntimeError, match="set_flush_denormal"):
            module(numbers(2, 128))
    finally:
        torch.set_flush_denormal(False)
    module(numbers(2, 128))


def test_experts_are_one_linear_each():
    x, w, counts = numbers(9, 128).requires_grad_(), numbers(4, 32, 128, seed=1).requires_grad_(), [3, 0, 5, 1]
    how = {"recipe": "dsv3", "layer": "layers.0.ffn.experts.0.w1"}
    y, dy = lpt.grouped_linear(x, w, torch.tensor(counts), **how), numbers(9, 32, seed=2)
    y.backward(dy)
    for e, (xs, ys, dys, dxs) in enumerate(zip(*(t.split(counts) for t in (x, y, dy, x.grad)), strict=True)):
        xe, we = (t.detach().clone().requires_grad_() for t in (xs, w[e]))
        ye = lpt.linear(xe, we, **how)
        ye.backward(dys)
        assert all_same((ys, dxs, w.grad[e]), (ye, xe.grad, we.grad))
    assert not bits(w.grad[1]).any()


def test_wires_code_both_ways():
    x, dy = numbers(4, 256).requires_grad_(), numbers(4, 256, seed=1)
    y = lpt.apply_codec(x, "fp8_1x128_ue8m0", "fp8_1x128")
    y.backward(dy)
    assert np.array_equal(y.detach().numpy(), lp.codecs["fp8_1x128_ue8m0"].round_trip(x.detach().numpy()))
    assert np.array_equal(x.grad.numpy(), lp.codecs["fp8_1x128"].round_trip(dy.numpy()))


def swiglu(codec=None):
    w2 = layer("dsv3", 256, 64, bias=False)
    a, b = (numbers(8, 256, seed=s).bfloat16().float().requires_grad_() for s in (1, 2))
    fn = lambda a, b: w2(torch.nn.functional.silu(a) * b)  # noqa: E731
    y = fn(a, b) if codec is None else lpt.checkpoint_with_codec(fn, a, b, codec=codec)
    y.sum().backward()
    return y, a.grad, b.grad, w2.weight.grad


def test_what_is_kept_coded_is_decoded_in_the_backward_pass():
    plain, lossless, coded = swiglu(), swiglu("bf16"), swiglu("fp8_1x128")
    assert all_same(plain, lossless)
    assert [same(p, c) for p, c in zip(plain, coded, strict=True)] == [True, False, False, False]


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_no_bit(name, reentrant):
    whole, again = (nn.Sequential(layer(name), layer(name, 96, 128, seed=1)) for _ in range(2))
    for step in range(3):
        x, dy = numbers(16, 128, seed=step), numbers(16, 128, seed=50 + step)
        checkpointed = run(again, x, dy, lambda x: checkpoint(again, x, use_reentrant=reentrant))
        assert all_same(run(whole, x, dy), checkpointed)


def test_evaluations_and_more_forward_passes_are_no_steps():
    module = layer("te_delayed")
    state = module.get_slot().states[0]
    x = numbers(4, 128)
    for step in range(3):
        module(x)
        assert state.step == step
        module.eval()
        module(x)
        module.train()
        module(x).sum().backward()
    assert state.step == 2


@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("name", ["dsv3", *STATEFUL])
def test_copies_go_separate_ways(name, make):
    module, x, dy = layer(name), numbers(8, 128), numbers(8, 96)
    run(module, x, dy)
    twin = make(module)
    first, second = ([run(one, 3 * x, dy) for _ in range(2)] for one in (module, twin))
    assert all(all_same(f, s) for f, s in zip(first, second, strict=True))


@pytest.mark.parametrize("name", STATEFUL)
def test_saved_state_goes_on_with_the_same_bits(name):
    x, dy = numbers(8, 128), numbers(8, 96)
    model, other = nn.Sequential(layer(name)), nn.Sequential(layer(name, seed=5))
    run(model, x, dy)
    kept, plain = lpt.state_dict(model), model.state_dict()
    assert (list(plain), list(kept)) == (["0.weight", "0.bias"], ["0"])
    other.load_state_dict(plain)
    lpt.load_state_dict(other, kept)
    assert all_same(run(model, x, dy), run(other, x, dy))
    with pytest.raises(ValueError, match="got '1' in the state only"):
        lpt.load_state_dict(other, {**kept, "1": kept["0"]})


def test_frozen_weights_give_the_same_bits_and_may_not_change():
    module, x = layer("dsv3"), numbers(8, 128)
    expected = module(x)
    with lpt.frozen(nn.Sequential(module)), torch.no_grad():
        assert same(module(x), expected)
        module.weight.mul_(2)
        with pytest.raises(RuntimeError, match="changed within frozen"):
            module(x)
    assert module.slot is None
    assert not same(module(x), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["dsv3", *STATEFUL])
def test_compiling_gives_one_graph_and_the_same_bits(name, backend):
    torch._dynamo.reset()
    counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend(backend)
    blocks = [layer(name, 128, 128, seed=s) for s in range(6)]
    compiled = [torch.compile(copy.deepcopy(block), fullgraph=True, backend=counter) for block in blocks]
    for step, (block, other) in itertools.product(range(2), zip(compiled, blocks, strict=True)):
        x, dy = numbers(4, 128, seed=step), numbers(4, 128, seed=9)
        assert all_same(run(block, x, dy), run(other, x, dy))
    assert counter.frame_count == 1


def test_torch_finds_the_operators_well_made():
    module, x = layer("dsv3", 128, 16), numbers(4, 128).bfloat16().requires_grad_()
    torch.library.opcheck(ops.product, (x, module.weight, module.bias, None, 0, module.key, True))


def test_export_gives_the_same_bits():
    module, x = layer(), numbers(4, 128)
    exported = torch.export.export(module, (x,)).module()
    assert same(exported(x), module(x))


def test_a_spec_of_ones_own():
    spec = LinearSpec.from_tensors("e5m2 1x32", "e4m3fn 32x32", "e5m2 1x32", "exact", 32)
    x, w = numbers(4, 64), numbers(8, 64)
    assert torch.isfinite(lpt.linear(x, w, spec=spec)).all()
