"""lowprec.jax: the bits of the recipes, under JAX's transformations."""

import numpy as np
import pytest

import lowprec as lp

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import lowprec.jax as lpj  # noqa: E402
from lowprec.recipe import LayerState, Precision  # noqa: E402

pytestmark = pytest.mark.jax
PLACE = "layers.1.attn.wq_a"
STATELESS = ("dsv3", "dsv3_ue8m0", "mxfp8", "bf16", "te_current", "float32")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(name, x, w, dy, step=0):
    said, state = Precision.of(lp.recipes[name], PLACE, 1000), LayerState(PLACE, 0)
    state.step = step
    if said.activations == "bfloat16":
        x, dy = (lp.round_to(a, "bfloat16") for a in (x, dy))
    ops = said.ops(state)
    y, saved = ops.fprop(x, w)
    return y, ops.dgrad(dy, saved), ops.wgrad(dy, saved)


def ours(name, x, w, dy, transform=lambda f: f, **options):
    y, back = jax.vjp(transform(lambda x, w: lpj.linear(x, w, name, **options)), jnp.asarray(x), jnp.asarray(w))
    return y, *back(jnp.asarray(dy))


def check(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(np.asarray(a, np.float32).view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "remat"])
@pytest.mark.parametrize("name", STATELESS)
def test_the_bits_of_the_recipe(name, transform):
    operands = numbers(37, 200), numbers(70, 200, seed=1), numbers(37, 70, seed=2)
    check(ours(name, *operands, transform), reference(name, *operands))


def test_steps_decide_random_bits():
    operands = numbers(32, 128), numbers(48, 128, seed=1), numbers(32, 48, seed=2)
    for step in (0, 7):
        check(ours("nvfp4", *operands, jax.jit, step=step), reference("nvfp4", *operands, step))
    assert not np.array_equal(reference("nvfp4", *operands, 0)[1], reference("nvfp4", *operands, 7)[1])


def test_bfloat16_and_more_axes():
    x, w = jnp.asarray(numbers(2, 3, 128)).astype(jnp.bfloat16), jnp.asarray(numbers(16, 128))
    y = lpj.linear(x, w)
    assert y.shape == (2, 3, 16)
    assert y.dtype == jnp.bfloat16
    check(
        [y.reshape(6, 16)],
        reference("dsv3", np.asarray(x, np.float32).reshape(6, 128), np.asarray(w), numbers(6, 16))[:1],
    )


def test_vmap_and_scan():
    x, w = jnp.asarray(numbers(3, 8, 128)), jnp.asarray(numbers(3, 16, 128, seed=1))
    each = jnp.stack([lpj.linear(a, b) for a, b in zip(x, w, strict=True)])
    assert jnp.array_equal(jax.vmap(lpj.linear)(x, w), each)
    assert jnp.array_equal(jax.lax.scan(lambda c, xw: (c, lpj.linear(*xw)), 0, (x, w))[1], each)


def test_dot_general_takes_what_is_a_linear_layers_and_hands_on_the_rest():
    x, w = jnp.asarray(numbers(4, 128)), jnp.asarray(numbers(128, 16, seed=1))
    plain = (((1,), (0,)), ((), ()))
    assert jnp.array_equal(lpj.dot_general(x, w, plain), lpj.linear(x, w.T))
    batched = (((2,), (1,)), ((0,), (0,)))
    a, b = jnp.asarray(numbers(2, 4, 8)), jnp.asarray(numbers(2, 8, 4))
    assert jnp.array_equal(lpj.dot_general(a, b, batched), jax.lax.dot_general(a, b, batched))


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


def test_messages():
    x, w = jnp.ones((2, 128)), jnp.ones((4, 128))
    for call, error, words in (
        (lambda: lpj.linear(x.astype(jnp.float16), w), TypeError, "x is float16"),
        (lambda: lpj.linear(x, w[:, :64]), ValueError, r"x is \(2, 128\), w is \(4, 64\)"),
        (lambda: lpj.linear(x, w, "te_delayed"), ValueError, "te_delayed needs .* remember"),
        (lambda: lpj.linear(x, w, "float64"), ValueError, "float64"),
        (lambda: lpj.linear(x, w, "nvfp4"), ValueError, "give step="),
        (lambda: lpj.linear(x, w, "dsv9"), ValueError, "unknown recipe"),
    ):
        with pytest.raises(error, match=words):
            call()
