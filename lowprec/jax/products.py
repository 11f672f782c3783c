"""Products of a recipe in functions of JAX: `linear` and `dot_general`, with their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..format.catalogue import formats
from ..recipe import LayerPrecision, LinearOps, Recipe, TensorSpec, derive_seed, load_recipe
from ..scaling.quantize import Quantized

_FLOAT32 = formats["float32"]
#: Dtypes of operands; XLA computes all others.
DTYPES = (jnp.float32, jnp.bfloat16)


class _AtStep:
    """Layer state that gives the seeds of random bits in one step."""

    def __init__(self, layer: str, seed: int, step: int) -> None:
        self.layer, self.run_seed, self.step = layer, seed, step

    def seed(self, operand: str, frozen: bool = False) -> int:
        return derive_seed(self.run_seed, f"{self.layer}/{operand}", 0 if frozen else self.step)

    def delayed(self, role: str, spec: TensorSpec, x: Any, seed: int) -> Quantized:
        raise AssertionError("refused before")


@functools.lru_cache(1024)
def _stateless(key: str) -> LinearOps:
    return LayerPrecision.from_key(key).ops()


def _ops(key: str, layer: str, seed: int, step: Any) -> LinearOps:
    precision = LayerPrecision.from_key(key)
    return precision.ops(_AtStep(layer, seed, int(step))) if precision.spec.stateful else _stateless(key)


def to_float32(*arrays: Any) -> list[np.ndarray[Any, Any]]:
    """Return arrays as contiguous float32 arrays of NumPy."""
    return [np.ascontiguousarray(np.asarray(a), dtype=np.float32) for a in arrays]


def forward(key: str, layer: str, seed: int, x: Any, w: Any, step: Any) -> np.ndarray[Any, Any]:
    """Compute the product of the forward pass in NumPy; `key` describes the precision of the layer."""
    xs, ws = to_float32(x, w)
    return _ops(key, layer, seed, step).product(xs, ws)


def backward(key: str, layer: str, seed: int, dy: Any, x: Any, w: Any, step: Any) -> tuple[Any, Any]:
    """Compute the gradients of x and w in NumPy."""
    dys, xs, ws = to_float32(dy, x, w)
    dx, dw = _ops(key, layer, seed, step).gradients(dys, xs, ws)
    return dx, dw


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _product(key: str, layer: str, seed: int, x: Any, w: Any, step: Any) -> Any:
    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), jnp.float32)
    call = functools.partial(forward, key, layer, seed)
    return jax.pure_callback(call, shape, x, w, step, vmap_method="sequential")


def _product_forward(key: str, layer: str, seed: int, x: Any, w: Any, step: Any) -> tuple[Any, Any]:
    return _product(key, layer, seed, x, w, step), (x, w, step)


def _product_backward(key: str, layer: str, seed: int, kept: Any, dy: Any) -> tuple[Any, Any, Any]:
    x, w, step = kept
    shapes = jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct(w.shape, jnp.float32)
    call = functools.partial(backward, key, layer, seed)
    dx, dw = jax.pure_callback(call, shapes, dy, x, w, step, vmap_method="sequential")
    return dx.astype(x.dtype), dw.astype(w.dtype), np.zeros(np.shape(step), jax.dtypes.float0)


_product.defvjp(_product_forward, _product_backward)


def linear(
    x: Any, w: Any, recipe: str | Recipe = "dsv3", *, layer: str = "layers.1.attn.wq_a", seed: int = 0, step: Any = None
) -> Any:
    """Compute x W^T with the precision of a recipe; differentiable.

    Parameters
    ----------
    x : array, shape (..., K)
        Input, float32 or bfloat16; rounded to the recipe's storage format of activations.
    w : array, shape (N, K)
        Weight, float32 or bfloat16.
    recipe : str or Recipe
        Recipe of the multiplications.
    layer : str
        Name of the layer in the recipe.
    seed : int
        Seed of random bits, which also depend on layer and step.
    step : int or int32 array, optional
        Training step; required for stochastic rounding.

    Returns
    -------
    array, shape (..., N)
        Result in the dtype of x.

    Raises
    ------
    TypeError
        If x or w has another dtype.
    ValueError
        If shapes do not fit, the step is missing, no model has such a layer, or the recipe has delayed scaling or is
        float64.
    """
    for name, a in (("x", x), ("w", w)):
        if getattr(a, "dtype", None) not in DTYPES:
            raise TypeError(f"lowprec.jax: {name} must be a float32 or bfloat16 array, got {dtype_name(a)}")
    if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"lowprec.jax: x and w must have shapes [..., K] and [N, K], got {x.shape} and {w.shape}")
    multiply = _multiplication(recipe, layer, seed, step)
    y = multiply(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), w)
    return y.astype(x.dtype).reshape(*x.shape[:-1], w.shape[0])


def _multiplication(
    recipe: str | Recipe, layer: str, seed: int, step: Any, unrounded: bool = False
) -> Callable[[Any, Any], Any]:
    """Return the function that multiplies rows [M, K] and [N, K] by a recipe.

    Results have the recipe's storage dtype, or are float32 if `unrounded`.
    """
    recipe = load_recipe(recipe)
    precision = LayerPrecision.of(recipe, layer, 1000)
    if recipe.activations == "float64" or precision.spec.delayed_tensors():
        raise ValueError(f"lowprec.jax: recipe must be without float64 and delayed scaling, got {recipe.name}")
    if step is None and precision.spec.stateful:
        raise ValueError(
            f"lowprec.jax: step must be given with recipe {recipe.name}, which rounds stochastically, got None"
        )
    if unrounded:
        precision = precision._replace(spec=precision.spec.with_(out_format=_FLOAT32))
    stores_bfloat16 = recipe.activations == "bfloat16"
    rounds_dy = _FLOAT32 not in (precision.spec.dgrad.a.format, precision.spec.wgrad.a.format)
    at = jnp.int32(0 if step is None else step)

    def multiply(x: Any, w: Any) -> Any:
        rows = (x.astype(jnp.bfloat16) if stores_bfloat16 else x).astype(jnp.float32)
        y = _product(precision.key, layer, seed, rows, w, at)
        return y.astype(jnp.bfloat16) if stores_bfloat16 and rounds_dy and not unrounded else y  # and dy

    return multiply


def dot_general(
    lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None, *,
    out_sharding: Any = None, recipe: str | Recipe = "dsv3", layer: str = "layers.1.attn.wq_a", seed: int = 0,
    step: Any = None, strict: bool = False,
) -> Any:  # fmt: skip
    """Compute ``jax.lax.dot_general`` with the precision of a recipe.

    The contracted axes are flattened, in their order, to K. Each index of the batch axes is a separate product; all of
    them use the same random bits. lhs is quantized as x, rhs as w. Operands of dtypes other than float32 and bfloat16
    are left to XLA.

    Parameters
    ----------
    lhs, rhs, dimension_numbers
        See ``jax.lax.dot_general``.
    precision, out_sharding
        Ignored: the recipe defines the precision, and it runs on one CPU.
    preferred_element_type : dtype, optional
        Dtype of the result; by default, the promoted dtype of the operands. If it is that promoted dtype or bfloat16,
        the float32 sums are first rounded to the recipe's storage format of activations. To any other dtype, they are
        converted directly.
    recipe, layer, seed, step
        See `linear`.
    strict : bool
        Whether to raise an error for a product that would be left to XLA.

    Raises
    ------
    TypeError
        If axes or shapes do not fit, or, with `strict`, if operands or the result have another dtype.
    ValueError
        See `linear`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from lowprec.jax import dot_general
    >>> heads = dot_general(jnp.ones((2, 3, 64)), jnp.ones((2, 5, 64)), (((2,), (2,)), ((0,), (0,))))
    >>> heads.shape, heads.dtype
    ((2, 3, 5), dtype('float32'))
    """
    natural = jnp.promote_types(lhs.dtype, rhs.dtype)
    out = natural if preferred_element_type is None else jnp.dtype(preferred_element_type)
    others = [str(t) for t in (lhs.dtype, rhs.dtype) if t not in DTYPES]
    if others or not jnp.issubdtype(out, jnp.floating):
        if strict:
            raise TypeError(
                "lowprec.jax.dot_general: dtypes must be float32 or bfloat16 with strict=True, "
                f"got {lhs.dtype} x {rhs.dtype} to {out}"
            )
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)
    # JAX's errors about axes and shapes, and the shape of the result.
    shape = jax.eval_shape(lambda a, b: jax.lax.dot_general(a, b, dimension_numbers), lhs, rhs).shape
    rows, columns = map(_as_matrices, (lhs, rhs), *dimension_numbers)
    if 0 in (*rows.shape, *columns.shape):
        return jnp.zeros(shape, out)
    multiply = _multiplication(recipe, layer, seed, step, unrounded=out not in (natural, jnp.bfloat16))
    y = jax.vmap(multiply)(rows, columns)
    return y.astype(out).reshape(shape)


def _as_matrices(a: Any, contract: Sequence[int], batch: Sequence[int]) -> Any:
    """Return an operand as [batch, rows, K]."""
    free = [i for i in range(a.ndim) if i not in (*contract, *batch)]
    sizes = [math.prod(a.shape[i] for i in axes) for axes in (batch, free, contract)]
    return a.transpose(*batch, *free, *contract).reshape(sizes)


def dtype_name(a: Any) -> str:
    """Return the dtype of an array, or the type of another object, for a message."""
    return str(getattr(a, "dtype", type(a).__name__))
