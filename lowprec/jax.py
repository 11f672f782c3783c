"""Exact recipes in functions of JAX: `linear` and `dot_general`, under jit, grad, vmap and scan.

The bits are those of the recipe's multiplications in NumPy, which run outside of XLA. A function is pure: stochastic
rounding takes the step as an argument, and delayed scaling, which has state, is refused. `report` lists the products of
a function, including those that XLA computes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    raise ImportError("lowprec.jax needs JAX: pip install 'lowprec[jax]'") from None

from lowprec.attn.attention import attention as attend
from lowprec.attn.catalogue import attentions
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.operands import quantize_operands
from lowprec.format.catalogue import formats
from lowprec.recipe import LayerPrecision, LinearOps, Recipe, TensorSpec, derive_seed, load_recipe
from lowprec.scaling.quantize import Quantized

_FLOAT32 = formats["float32"]
#: Dtypes of operands; XLA computes all others.
_DTYPES = (jnp.float32, jnp.bfloat16)
#: Operations of XLA that multiply matrices.
_PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated", "scaled_matmul_wrapper", "triangular_solve")
__all__ = ["ProductRow", "QwixProvider", "Report", "attention", "dot_general", "linear", "report"]


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
        if getattr(a, "dtype", None) not in _DTYPES:
            raise TypeError(f"lowprec.jax: {name} must be a float32 or bfloat16 array, got {_dtype(a)}")
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
        Dtype of the result; default: the promoted dtype of the operands. For this dtype and bfloat16, the float32 sums
        are rounded to the recipe's storage format of activations, for any other directly to the dtype.
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
    >>> heads = dot_general(jnp.ones((2, 3, 64)), jnp.ones((2, 5, 64)), (((2,), (2,)), ((0,), (0,))))
    >>> heads.shape, heads.dtype
    ((2, 3, 5), dtype('float32'))
    """
    natural = jnp.promote_types(lhs.dtype, rhs.dtype)
    out = natural if preferred_element_type is None else jnp.dtype(preferred_element_type)
    others = [str(t) for t in (lhs.dtype, rhs.dtype) if t not in _DTYPES]
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


def _dtype(a: Any) -> str:
    """Return the dtype of an array, or the type of another object, for a message."""
    return str(getattr(a, "dtype", type(a).__name__))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _attention(q: Any, k: Any, v: Any, kernel: AttentionKernel, causal: bool, scale: float) -> Any:
    return _attention_forward(q, k, v, kernel, causal, scale)[0]


def _attend(kernel: AttentionKernel, causal: bool, scale: float, *arrays: Any) -> tuple[Any, Any]:
    q, k, v = _values(*arrays)
    *operands, descale = quantize_operands(q, k, v, kernel)
    found = attend(*operands, kernel=kernel, causal=causal, scale=scale, descale=descale, out_format="float32")
    return found.out, found.lse


def _attention_forward(q: Any, k: Any, v: Any, kernel: AttentionKernel, causal: bool, scale: float) -> tuple[Any, Any]:
    call = functools.partial(_attend, kernel, causal, scale)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*q.shape[:3], v.shape[3]), q.shape[:3])]
    out, lse = jax.pure_callback(call, shapes, q, k, v, vmap_method="sequential")
    return out.astype(q.dtype), (q, k, v, out, lse)


def _attention_backward(kernel: AttentionKernel, causal: bool, scale: float, kept: Any, d_out: Any) -> Any:
    q, k, v, out, lse = kept
    groups, (m, n) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    keys, values = (jnp.repeat(x.astype(jnp.float32), groups, 1) for x in (k, v))
    queries, d_out = q.astype(jnp.float32), d_out.astype(jnp.float32)
    seen = jnp.tri(m, n, n - m if causal else n, dtype=bool)
    p = jnp.where(seen, jnp.exp(queries @ keys.mT * scale - lse[..., None]), 0)
    d_scores = p * (d_out @ values.mT - (d_out * out).sum(-1, keepdims=True)) * scale
    d_k, d_v = (
        x.reshape(len(x), -1, groups, *x.shape[2:]).sum(2) for x in (d_scores.mT @ queries, p.mT @ d_out)
    )  # fmt: skip
    return (d_scores @ keys).astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype)


_attention.defvjp(_attention_forward, _attention_backward)


def attention(
    q: Any, k: Any, v: Any, kernel: str | AttentionKernel = "fa3_fp8", *, causal: bool = False,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Compute attention with a kernel; operands are quantized for it, with one scale per sequence and key head.

    The gradient is a straight-through estimate in XLA's float32: probabilities are recomputed from q, k and the
    kernel's log-sum-exp, and the softmax gradient uses the kernel's output, as in the trainer.

    Parameters
    ----------
    q, k, v : array, shapes (B, H, M, D), (B, Hk, N, D) and (B, Hk, N, Dv)
        Queries, keys and values, float32 or bfloat16. H must be a multiple of Hk.
    kernel : str or AttentionKernel
        Kernel in `lowprec.attentions`, or a custom one.
    causal : bool
        Whether query i sees keys up to ``i + N - M`` only. Other masks are not supported.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(D)`` by default.

    Returns
    -------
    array, shape (B, H, M, Dv)
        Output in the dtype of q.

    Examples
    --------
    >>> x = jnp.ones((1, 2, 4, 8))
    >>> attention(x, x, x, causal=True).shape
    (1, 2, 4, 8)
    """
    for name, a in (("q", q), ("k", k), ("v", v)):
        if getattr(a, "dtype", None) not in _DTYPES or a.ndim != 4:
            raise ValueError(
                f"lowprec.jax.attention: {name} must be a float32 or bfloat16 array (batch, heads, rows, columns), got "
                f"{_dtype(a)} {np.shape(a)}"
            )
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return _attention(q, k, v, attentions.get(kernel), causal, factor)


class ProductRow(NamedTuple):
    """A product in a traced function.

    Attributes
    ----------
    name : str
        JAX's scopes around the product, for example the path of a module in flax.
    role : str
        Layer of the recipe, or ``"attention"``; empty if XLA computes it.
    precision : str
        Precision of the product in the recipe, the kernel, or the operation of XLA with its dtypes.
    """

    name: str
    role: str
    precision: str


@dataclass(frozen=True)
class Report:
    """Result of `report`.

    Attributes
    ----------
    rows : tuple of ProductRow
        Products and attentions that a recipe or kernel computes, in the forward and backward passes of the function.
    unreached : tuple of ProductRow
        Products of XLA.
    """

    rows: tuple[ProductRow, ...]
    unreached: tuple[ProductRow, ...]

    def __str__(self) -> str:
        lines = [f"products of a recipe: {len(self.rows)}"]
        lines += [f"  {row.name or '(no scope)'}, role {row.role}: {row.precision}" for row in self.rows]
        if self.unreached:
            lines.append(f"products of XLA: {len(self.unreached)}")
        return "\n".join([*lines, *(f"  {row.name or '(no scope)'}: {row.precision}" for row in self.unreached)])


def report(function: Callable[..., Any], *args: Any, strict: bool = False, **kwargs: Any) -> Report:
    """Trace a function and list its products, computed by a recipe or by XLA.

    Parameters
    ----------
    function : callable
        Function to trace, or its gradient.
    *args, **kwargs
        Arguments of the function, or ``jax.ShapeDtypeStruct`` in place of arrays.
    strict : bool
        Whether to raise an error for a product of XLA.

    Raises
    ------
    ValueError
        If `strict`, and XLA computes a product.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> print(report(lambda x, w: linear(x, w, "bf16") @ w, jnp.ones((4, 16)), jnp.ones((16, 16))))
    products of a recipe: 1
      (no scope), role layers.1.attn.wq_a: bfloat16 on float32
    products of XLA: 1
      (no scope): dot_general float32[4,16] x float32[16,16]
    """
    rows: list[ProductRow] = []
    unreached: list[ProductRow] = []
    for scope, equation in _equations(jax.make_jaxpr(function)(*args, **kwargs).jaxpr, ""):
        call = getattr(equation.params.get("callback"), "callback_func", None)
        if isinstance(call, functools.partial) and call.func in (_forward, _backward):
            key, layer, _ = call.args
            gemms = "" if call.func is _forward else "backward of "
            rows.append(ProductRow(scope, layer, f"{gemms}{LayerPrecision.from_key(key).spec}"))
        elif isinstance(call, functools.partial) and call.func is _attend:
            rows.append(ProductRow(scope, "attention", str(call.args[0])))
        elif equation.primitive.name in _PRODUCTS:
            types = " x ".join(f"{v.aval.dtype}[{','.join(map(str, v.aval.shape))}]" for v in equation.invars[:2])
            unreached.append(ProductRow(scope, "", f"{equation.primitive.name} {types}"))
    if strict and unreached:
        products = "; ".join(f"{row.name} {row.precision}".strip() for row in unreached)
        raise ValueError(f"lowprec.jax.report: no product must be left to XLA with strict=True, got {products}")
    return Report(tuple(rows), tuple(unreached))


def _equations(jaxpr: Any, outer: str) -> Iterator[tuple[str, Any]]:
    """Yield all operations of a traced function, including those of inner functions, with their scopes."""
    for equation in jaxpr.eqns:
        scope = "/".join(filter(None, (outer, str(equation.source_info.name_stack))))
        yield scope, equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _equations(getattr(inner, "jaxpr", inner), scope)


class QwixProvider:
    """Provider of `dot_general` for qwix: ``qwix.quantize_model(model, lowprec.jax.QwixProvider("dsv3"))``.

    The recipe computes all calls of ``jax.lax.dot_general``, including those between two activations.

    Parameters
    ----------
    recipe : str or Recipe
        Recipe of the multiplications.
    **options
        See `dot_general`.

    Raises
    ------
    ImportError
        If qwix is missing.
    """

    def __new__(cls, recipe: str | Recipe = "dsv3", **options: Any) -> Any:
        """Return an instance of a subclass of qwix's provider."""
        try:
            from qwix import QuantizationProvider
        except ImportError:
            raise ImportError("lowprec.jax.QwixProvider needs qwix: pip install qwix") from None
        ours = functools.partial(dot_general, recipe=load_recipe(recipe), **options)

        class Provider(QuantizationProvider):  # type: ignore[misc, unused-ignore]
            def get_intercept_map(self) -> dict[str, Any]:
                return {**super().get_intercept_map(), "jax.lax.dot_general": ours}

        return Provider([])
