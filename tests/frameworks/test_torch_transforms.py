"""Transforms of torch over converted layers: each gives the bits of the plain call, or raises one sentence."""

import copy
import functools
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import func, nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import lowprec.torch as lpt  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.torch.jit.script")]  # of forward mode itself
RECIPES = ("bf16", "dsv3", "mxfp8", "nvfp4", "te_delayed")
TOKENS, K, N = 4, 64, 48


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def layer(recipe):
    """Return a layer of a block that all recipes quantize, in its second step."""
    torch.manual_seed(0)
    module = lpt.convert(nn.ModuleDict({"0": nn.Linear(K, N), "1": nn.Linear(1, 1)}), recipe)["0"]
    module(numbers(TOKENS, K, seed=8)).sum().backward()
    module.zero_grad()
    return module


X, DY = numbers(TOKENS, K), numbers(TOKENS, N, seed=1)


def run(module, x=X, dy=DY, forward=None):
    x = x.clone().requires_grad_()
    params = tuple(module.parameters())
    y = (forward or module)(x)
    return y, *torch.autograd.grad(y, (x, *params), dy)


@functools.cache
def plain(recipe):
    return run(layer(recipe))


def parameters(module):
    return {name: p.detach() for name, p in module.named_parameters()}


def call(module):
    return lambda p, x: func.functional_call(module, p, (x,))


def loss(module):
    return lambda p, x: (call(module)(p, x) * DY).sum()


def flat(found):
    return tuple(t.detach() for t in torch.utils._pytree.tree_leaves(found))


def same(found, expected):
    found, expected = flat(found), flat(expected)
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]
    assert all(
        np.array_equal(a.numpy().view(np.int32), b.numpy().view(np.int32)) for a, b in zip(found, expected, strict=True)
    )


def by_vjp(module):
    y, back = func.vjp(call(module), parameters(module), X)
    params, x = back(DY)
    return y, x, *params.values()


def by_grad(module, wrap=lambda f: f):
    params, x = wrap(func.grad(loss(module), (0, 1)))(parameters(module), X)
    return call(module)(parameters(module), X), x, *params.values()


def in_threads(module):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, (copy.deepcopy(module) for _ in range(3))))
    for other in found[1:]:
        same(other, found[0])
    return found[0]


def without_model(module):
    x, params = X.clone().requires_grad_(), tuple(module.parameters())
    y, alive = module(x), weakref.ref(module)
    del module
    gc.collect()
    assert alive() is None
    return y, *torch.autograd.grad(y, (x, *params), DY)


def kept_elsewhere(module):
    with torch.autograd.graph.save_on_cpu():
        return run(module)


def under_autocast(module):
    with torch.autocast("cpu", torch.bfloat16):
        return run(module)


#: Transforms that give the bits of the plain call: output and gradients.
SAME = {
    "functional_call": lambda m: run(m, forward=lambda x: call(m)(dict(m.named_parameters()), x)),
    "vjp": by_vjp,
    "grad": by_grad,
    "checkpoint": lambda m: run(m, forward=lambda x: checkpoint(m, x, use_reentrant=False)),
    "deepcopy": lambda m: run(copy.deepcopy(m)),
    "pickle": lambda m: run(pickle.loads(pickle.dumps(m))),
    "threads": in_threads,
    "freed model": without_model,
    "saved on the CPU": kept_elsewhere,
    "autocast": under_autocast,
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("transform", SAME)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_bits_of_the_plain_call(recipe, transform):
    same(SAME[transform](layer(recipe)), plain(recipe))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", RECIPES)
def test_examples_one_by_one(recipe):
    """vmap over examples, over gradients of examples, and over output gradients, against a loop."""
    module, xs = layer(recipe), numbers(3, TOKENS, K, seed=5)
    params = parameters(module)
    same(func.vmap(module)(xs), torch.stack([module(x) for x in xs]))
    each = func.vmap(func.grad(loss(module)), (None, 0))(params, xs)
    same(each, [torch.stack(t) for t in zip(*(run(layer(recipe), x)[2:] for x in xs), strict=True)])
    x, dys = X.clone().requires_grad_(), numbers(3, TOKENS, N, seed=6)
    y = layer(recipe)(x)
    expected = torch.stack([torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in dys])
    same(torch.autograd.grad(y, x, dys, is_grads_batched=True), expected)


def rows_of_the_jacobian(recipe):
    x = X[:1].clone().requires_grad_()
    y = layer(recipe)(x)
    rows = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in torch.eye(N)[:, None]]
    return torch.stack(rows)[None]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_jacobians_are_rows_of_gradients(recipe):
    expected = rows_of_the_jacobian(recipe)
    same(func.jacrev(layer(recipe))(X[:1]), expected)
    same(torch.autograd.functional.jacobian(layer(recipe), X[:1]), expected)


def dual(module, on_weight=False):
    with forward_ad.dual_level():
        if on_weight:
            w = forward_ad.make_dual(module.weight.detach(), module.weight.detach())
            return func.functional_call(module, {"weight": w}, (X,))
        return module(forward_ad.make_dual(X, X))


FORWARD_MODE, SECOND = "not forward mode", "no second derivative"
#: Transforms that a recipe does not define, and words of the message.
REFUSED = {
    "jvp": (FORWARD_MODE, lambda m: func.jvp(m, (X,), (X,))),
    "jvp of weights": (FORWARD_MODE, lambda m: func.jvp(lambda p: call(m)(p, X), (parameters(m),), (parameters(m),))),
    "jacfwd": (FORWARD_MODE, lambda m: func.jacfwd(m)(X[:1])),
    "hessian": (FORWARD_MODE, lambda m: func.hessian(lambda x: m(x).sum())(X[:1])),
    "linearize": (FORWARD_MODE, lambda m: func.linearize(m, X)),
    "dual numbers": (FORWARD_MODE, dual),
    "dual weights": (FORWARD_MODE, lambda m: dual(m, on_weight=True)),
    "vmap of jvp": (FORWARD_MODE, lambda m: func.vmap(lambda x: func.jvp(m, (x,), (x,)))(X)),
    "jvp of vmap": (FORWARD_MODE, lambda m: func.jvp(func.vmap(m), (X,), (X,))),
    "jvp of grad": (FORWARD_MODE, lambda m: func.jvp(func.grad(lambda x: m(x).sum()), (X,), (X,))),
    "grad of grad": (SECOND, lambda m: func.grad(lambda x: func.grad(lambda x: m(x).sum())(x).sum())(X)),
    "jacrev of jacrev": (SECOND, lambda m: func.jacrev(func.jacrev(lambda x: m(x).sum()))(X[:1])),
    "autograd's hessian": (SECOND, lambda m: torch.autograd.functional.hessian(lambda x: m(x).sum(), X[:1])),
    "autograd's jvp": (SECOND, lambda m: torch.autograd.functional.jvp(m, X, X)),
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("transform", REFUSED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_one_sentence(recipe, transform):
    words, transformed = REFUSED[transform]
    with pytest.raises(RuntimeError, match=f"^lowprec.torch: [^\\n]*{words}[^\\n]*$"):
        transformed(layer(recipe))


def test_forward_mode_goes_past_a_layer_that_does_not_change():
    module = layer("dsv3")
    y, tangent = func.jvp(lambda t: module(X) * t, (torch.tensor(2.0),), (torch.tensor(3.0),))
    same((y, tangent), (module(X) * 2, module(X) * 3))


def test_a_state_that_is_gone_says_so():
    module = layer("nvfp4")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = module(X)
    del module
    gc.collect()
    with pytest.raises(RuntimeError, match="keep the model until its backward pass"):
        y.sum().backward()


def test_slots_go_with_their_layers():
    from lowprec.torch import ops

    gc.collect()
    before = len(ops._slots)
    module = layer("nvfp4")
    assert len(ops._slots) == before + 1
    del module
    gc.collect()
    assert len(ops._slots) == before


def test_autocast_leaves_a_layer_in_the_type_of_its_input():
    module = layer("dsv3")
    with torch.autocast("cpu", torch.bfloat16):
        assert module(X).dtype == torch.float32
        assert module(X.bfloat16()).dtype == torch.bfloat16
    same(module(X.bfloat16()).float(), module(X))


def test_wires_and_caches_under_transforms():
    wire = functools.partial(lpt.apply_codec, forward="fp8_1x128_ue8m0", backward="fp8_1x128")
    x, dy = numbers(3, 2, 256), numbers(3, 2, 256, seed=1)
    plain = x.clone().requires_grad_()
    each = torch.stack([wire(one) for one in plain])
    each.backward(dy)
    y, back = func.vjp(func.vmap(wire), x)
    same((y, *back(dy)), (each, plain.grad))
    for transformed in (lambda f: func.jvp(f, (x[0],), (x[0],)), lambda f: func.jacfwd(f)(x[0, :1])):
        with pytest.raises(RuntimeError, match=FORWARD_MODE):
            transformed(wire)


def test_caches_under_transforms():
    x, cached = numbers(2, 256), functools.partial(lpt.checkpoint_with_codec, torch.tanh, codec="bf16")
    for transform in (func.grad, func.jacfwd):
        with pytest.raises(RuntimeError, match=r"cached keeps its inputs for backward\(\)"):
            transform(lambda x: cached(x).sum())(x)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=FORWARD_MODE):
        cached(forward_ad.make_dual(x, x))


def test_frozen_weights_under_transforms():
    module, xs = layer("dsv3"), numbers(3, TOKENS, K)
    expected = torch.stack([module(x) for x in xs])
    with lpt.frozen(nn.Sequential(module)):
        same(func.vmap(module)(xs), expected)
        same(by_vjp(module), plain("dsv3"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled_transforms(recipe):
    aot = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    same(by_grad(layer(recipe), aot), plain(recipe))
    torch._dynamo.reset()
    module = layer(recipe)
    with pytest.raises(RuntimeError, match=FORWARD_MODE):  # within what the compiler says of it
        aot(lambda x: func.jvp(module, (x,), (x,)))(X)
