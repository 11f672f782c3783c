"""Report of the products of a function of JAX: which a recipe computes, and which XLA."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from ..recipe import LayerPrecision
from .attention import attend
from .products import backward, forward

#: Operations of XLA that multiply matrices.
_PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated", "scaled_matmul_wrapper", "triangular_solve")


class ProductRow(NamedTuple):
    """A product in a traced function.

    Attributes
    ----------
    name : str
        JAX's scopes around the product, for example the path of a module in flax.
    role : str
        Layer of the recipe, or ``"attention"``; empty if XLA computes it.
    precision : str
        Description of the product: its precision in the recipe; for attention, the kernel; for XLA, the operation
        with the dtypes and shapes of its operands.
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
    >>> from lowprec.jax import linear, report
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
        if isinstance(call, functools.partial) and call.func in (forward, backward):
            key, layer, _ = call.args
            gemms = "" if call.func is forward else "backward of "
            rows.append(ProductRow(scope, layer, f"{gemms}{LayerPrecision.from_key(key).spec}"))
        elif isinstance(call, functools.partial) and call.func is attend:
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
