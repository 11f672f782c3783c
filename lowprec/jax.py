"""Exact recipes in functions of JAX: `linear` and `dot_general`, under jit, grad, vmap and scan.

The bits are those of the recipe's multiplications in NumPy, which run outside of XLA. A function is pure: what is
rounded stochastically takes the step as an argument, and delayed scaling, which remembers, is refused.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    raise ImportError("lowprec.jax needs JAX: pip install 'lowprec[jax]'") from None

from lowprec.format.catalogue import formats
from lowprec.recipe import LinearOps, Precision, Recipe, TensorSpec, draw, load_recipe
from lowprec.scaling.quantize import Quantized

_FLOAT32 = formats["float32"]
__all__ = ["QwixProvider", "dot_general", "linear"]


class _AtStep:
    """Seeds of a layer's random bits in one step."""

    def __init__(self, layer: str, seed: int, step: int) -> None:
        self.layer, self.run_seed, self.step = layer, seed, step

    def seed(self, operand: str) -> int:
        return draw(self.run_seed, f"{self.layer}/{operand}", self.step)

    def delayed(self, role: str, spec: TensorSpec, x: Any, seed: int) -> Quantized:
        raise AssertionError("refused before")


@functools.lru_cache(1024)
def _stateless(key: str) -> LinearOps:
    return Precision.from_key(key).ops()


def _ops(key: str, layer: str, seed: int, step: Any) -> LinearOps:
    said = Precision.from_key(key)
    return said.ops(_AtStep(layer, seed, int(step))) if said.spec.stateful else _stateless(key)


def _values(*arrays: Any) -> list[np.ndarray[Any, Any]]:
    return [np.ascontiguousarray(np.asarray(a), dtype=np.float32) for a in arrays]


def _forward(key: str, layer: str, seed: int, x: Any, w: Any, step: Any) -> np.ndarray[Any, Any]:
    xs, ws = _values(x, w)
    return _ops(key, layer, seed, step).product(xs, ws)


def _backward(key: str, layer: str, seed: int, dy: Any, x: Any, w: Any, step: Any) -> tuple[Any, Any]:
    dys, xs, ws = _values(dy, x, w)
    dx, dw = _ops(key, layer, seed, step).gradients(dys, xs, ws)
    return dx, dw


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _product(key: str, layer: str, seed: int, x: Any, w: Any, step: Any) -> Any:
    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), jnp.float32)
    call = functools.partial(_forward, key, layer, seed)
    return jax.pure_callback(call, shape, x, w, step, vmap_method="sequential")


def _product_forward(key: str, layer: str, seed: int, x: Any, w: Any, step: Any) -> tuple[Any, Any]:
    return _product(key, layer, seed, x, w, step), (x, w, step)


def _product_backward(key: str, layer: str, seed: int, kept: Any, dy: Any) -> tuple[Any, Any, Any]:
    x, w, step = kept
    shapes = jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct(w.shape, jnp.float32)
    call = functools.partial(_backward, key, layer, seed)
    dx, dw = jax.pure_callback(call, shapes, dy, x, w, step, vmap_method="sequential")
    return dx.astype(x.dtype), dw.astype(w.dtype), np.zeros(np.shape(step), jax.dtypes.float0)


_product.defvjp(_product_forward, _product_backward)


def linear(
    x: Any, w: Any, recipe: str | Recipe = "dsv3", *, layer: str = "layers.1.attn.wq_a", seed: int = 0, step: Any = None
) -> Any:
    """Return x W^T, with gradients, by a recipe.

    Parameters
    ----------
    x : array, shape (..., K)
        float32 or bfloat16; stored as the recipe stores activations.
    w : array, shape (N, K)
        float32 or bfloat16.
    recipe : str or Recipe
        The precision.
    layer : str
        Which layer of the recipe this is.
    seed : int
        With layer and step it decides random bits.
    step : int or int32 array, optional
        The training step; needed where something is rounded stochastically.

    Returns
    -------
    array, shape (..., N)
        In the type of x.

    Raises
    ------
    TypeError
        For another type of x or w.
    ValueError
        For shapes that do not fit, delayed scaling, the recipe float64, or a missing step.
    """
    recipe = load_recipe(recipe)
    said = Precision.of(recipe, layer, 1000)
    for name, a in (("x", x), ("w", w)):
        if a.dtype not in (jnp.float32, jnp.bfloat16):
            raise TypeError(f"lowprec.jax: {name} is {a.dtype}; float32 or bfloat16 is needed")
    if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"lowprec.jax: x is {x.shape}, w is {w.shape}; x [..., K] and w [N, K] are needed")
    if recipe.activations == "float64" or said.spec.delayed_tensors():
        raise ValueError(f"lowprec.jax: recipe {recipe.name} needs float64, or scales that remember earlier steps")
    if step is None and said.spec.stateful:
        raise ValueError(f"lowprec.jax: recipe {recipe.name} rounds stochastically: give step=")
    stored = x.astype(jnp.bfloat16) if recipe.activations == "bfloat16" else x
    rows = stored.reshape(-1, x.shape[-1]).astype(jnp.float32)
    y = _product(said.key, layer, seed, rows, w, jnp.int32(0 if step is None else step))
    if recipe.activations == "bfloat16" and _FLOAT32 not in (said.spec.dgrad.a.format, said.spec.wgrad.a.format):
        y = y.astype(jnp.bfloat16)  # so is dy on its way back
    return y.astype(x.dtype).reshape(*x.shape[:-1], w.shape[0])


def dot_general(
    lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None, *,
    recipe: str | Recipe = "dsv3", **options: Any,
) -> Any:  # fmt: skip
    """Return what ``jax.lax.dot_general`` does, exact by a recipe where it is a linear layer's product.

    That is where the last axis of lhs meets one axis of a matrix, and nothing is batched; all else goes to JAX.

    Parameters
    ----------
    lhs, rhs, dimension_numbers, precision, preferred_element_type
        As there; the two last ones are the recipe's in its products.
    recipe : str or Recipe
        The precision.
    **options
        As for `linear`.
    """
    (contract_l, contract_r), (batch_l, batch_r) = dimension_numbers
    known = all(a.dtype in (jnp.float32, jnp.bfloat16) for a in (lhs, rhs))
    if batch_l or batch_r or tuple(contract_l) != (lhs.ndim - 1,) or rhs.ndim != 2 or not known:
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)
    return linear(lhs, rhs.T if tuple(contract_r) == (0,) else rhs, recipe, **options)


class QwixProvider:
    """Lets qwix put `dot_general` into a model: ``qwix.quantize_model(model, lowprec.jax.QwixProvider("dsv3"))``.

    Parameters
    ----------
    recipe : str or Recipe
        The precision.
    **options
        As for `linear`.

    Raises
    ------
    ImportError
        If qwix is missing.
    """

    def __new__(cls, recipe: str | Recipe = "dsv3", **options: Any) -> Any:
        """Return a provider of qwix."""
        try:
            from qwix import QuantizationProvider
        except ImportError:
            raise ImportError("lowprec.jax.QwixProvider needs qwix: pip install qwix") from None
        ours = functools.partial(dot_general, recipe=load_recipe(recipe), **options)

        class Provider(QuantizationProvider):  # type: ignore[misc, unused-ignore]
            def get_intercept_map(self) -> dict[str, Any]:
                return {**super().get_intercept_map(), "jax.lax.dot_general": ours}

        return Provider([])
