"""lowprec.jax: the bits of the recipes, under JAX's transformations."""

import numpy as np
import pytest
from refusals import refusals

import lowprec as lp

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import lowprec.jax as lpj  # noqa: E402
from lowprec.recipe import LayerPrecision, LayerState  # noqa: E402

pytestmark = pytest.mark.jax
PLACE = "layers.1.attn.wq_a"


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


OPERANDS = numbers(37, 200), numbers(70, 200, seed=1), numbers(37, 70, seed=2)


def reference(name, x, w, dy, step=0):
    precision, state = LayerPrecision.of(lp.recipes[name], PLACE, 1000), LayerState(PLACE, 0)
    state.step = step
    if precision.activations == "bfloat16":
        x, dy = (lp.round_to(a, "bfloat16") for a in (x, dy))
    ops = precision.ops(state)
    y, saved = ops.fprop(x, w)
    return y, ops.dgrad(dy, saved), ops.wgrad(dy, saved)


def ours(name, x, w, dy, transform=lambda f: f, **options):
    y, back = jax.vjp(transform(lambda x, w: lpj.linear(x, w, name, **options)), jnp.asarray(x), jnp.asarray(w))
    return y, *back(jnp.asarray(dy))


def check(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(np.asarray(a, np.float32).view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "remat"])
@pytest.mark.parametrize("name", ["dsv3", "dsv3_ue8m0", "mxfp8", "bf16", "te_current", "float32"])
def test_the_bits_of_the_recipe(name, transform):
    check(ours(name, *OPERANDS, transform), reference(name, *OPERANDS))


def test_steps_decide_random_bits():
    first, later = (reference("nvfp4", *OPERANDS, step) for step in (0, 7))
    check(ours("nvfp4", *OPERANDS, jax.jit, step=0), first)
    check(ours("nvfp4", *OPERANDS, jax.jit, step=7), later)
    assert not np.array_equal(first[1], later[1])


def test_bfloat16_and_more_axes():
    x, w = jnp.asarray(numbers(2, 3, 128)).astype(jnp.bfloat16), numbers(16, 128)
    y = lpj.linear(x, jnp.asarray(w))
    assert (y.shape, y.dtype) == ((2, 3, 16), jnp.bfloat16)
    check([y.reshape(6, 16)], reference("dsv3", np.asarray(x, np.float32).reshape(6, 128), w, numbers(6, 16))[:1])


def test_vmap_and_scan():
    x, w = jnp.asarray(numbers(3, 8, 128)), jnp.asarray(numbers(3, 16, 128, seed=1))
    each = jnp.stack([lpj.linear(a, b) for a, b in zip(x, w, strict=True)])
    assert jnp.array_equal(jax.vmap(lpj.linear)(x, w), each)
    assert jnp.array_equal(jax.lax.scan(lambda c, xw: (c, lpj.linear(*xw)), 0, (x, w))[1], each)


@pytest.mark.filterwarnings("ignore")  # of qwix and flax
def test_a_provider_for_qwix():
    qwix, nn = pytest.importorskip("qwix"), pytest.importorskip("flax.linen")

    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.relu(nn.Dense(64, use_bias=False, name="first")(x))
            return nn.Dense(8, use_bias=False, name="second")(h)

    model, x = Layers(), jnp.asarray(numbers(4, 128))
    params = model.init(jax.random.key(0), x)
    found = qwix.quantize_model(model, lpj.QwixProvider("dsv3")).apply(params, x)
    first, second = (params["params"][name]["kernel"].T for name in ("first", "second"))
    expected = lpj.linear(jax.nn.relu(lpj.linear(x, first)), second)
    assert jnp.array_equal(found, expected)
    assert not jnp.array_equal(found, model.apply(params, x))


test_refused = refusals([
    ("linear(x.astype(np.float16), w)", TypeError, "lowprec.jax: x must be a float32 or bfloat16 array, got float16"),
    ("linear(x, w[:, :64])", r"lowprec.jax: x and w must have shapes \[..., K\] and \[N, K\], got \(2, 128\) and"),
    ("linear(x, w, 'te_delayed')", "lowprec.jax: recipe must be without float64 and delayed scaling, got te_delayed"),
    ("linear(x, w, 'float64')", "float64"),
    ("linear(x, w, 'nvfp4')", "step must be given with recipe nvfp4, which rounds stochastically, got None"),
    ("linear(x, w, 'dsv9')", "unknown recipe"),
], lambda: {"linear": lpj.linear, "x": jnp.ones((2, 128)), "w": jnp.ones((4, 128))})  # fmt: skip
