"""`tolerance`: bounds and expected errors of a product in an arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32, as_real, check_matmul, check_shape
from .._checks import brief_repr, check_choice, check_float32, check_int, check_optional_int
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..format.catalogue import formats
from ..scaling.quantized import Quantized
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.catalogue import accumulators
from ..tensorcore.engines.selection import plan_for
from ..tensorcore.library import gemm_libraries
from ..tensorcore.operands import check_is_quantized, check_quantized, promotion_interval
from .checksum import Values
from .derived import Tolerance
from .named import named
from .product import Errors, Order, Product, errors_of

_SAMPLED = 1 << 15  # smallest number of outputs to sample
OrderOfK = Literal["chains", "any"]


def _pair(values: Any, a: Quantized, b: Quantized) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise ValueError(f"tolerance: values must be a pair of arrays, those of a and of b, got {brief_repr(values)}")
    x, y = (as_float32("tolerance", v) for v in values)
    for name, v, q in (("a", x, a), ("b", y, b)):
        check_shape("tolerance", f"values of {name}", v, q.shape)
    return x, y


@with_default_fpenv
def tolerance(
    a: Quantized,
    b: Quantized,
    c: ArrayLike | None = None,
    *,
    accumulator: str | Accumulator | Sequence[str | Accumulator] = "hopper_fp8",
    order: OrderOfK = "chains",
    orders: int | None = None,
    seed: int = 0,
    values: tuple[ArrayLike, ArrayLike] | None = None,
    **options: Any,
) -> Tolerance:
    """Bound the error of a product ``alpha * A @ B.T + beta * C`` in a named arithmetic.

    Parameters
    ----------
    a, b : Quantized, shapes (M, K) and (N, K)
        Operands of the product.
    c : array_like, shape (M, N), optional
        Addend.
    accumulator : str, Accumulator, or a sequence of them
        Summation rule, or several: a result of any of them is accepted.
    order : {"chains", "any"}
        Orders of K that a correct kernel may have. ``chains``: the chains of `lowprec.gemm`, added in any order;
        ``any``: products that share a scale, and the scale blocks within each part of split-K, are added in any order,
        with a larger bound. The parts of split-K, and the slices of a part, are added in the order of the library.
    orders : int, optional
        Number of sampled orders; default: 2 to 32, fewer for large products.
    seed : int
        Seed of the orders.
    values : pair of array_like, optional
        Values before quantization; they allow the verdict to name an operand that was not quantized.
    **options
        Further arguments of `lowprec.gemm`: `promote_every`, `out_format`, `library`, `alpha`, `beta`, `split_k`.

    Returns
    -------
    Tolerance
        Exact product, proven bound and expected error of every output; `Tolerance.test` judges a result.

    Raises
    ------
    ValueError
        If shapes do not match, or an accumulator or the library does not take the operands.
    TypeError
        If an operand is not `Quantized`, or an option or accumulator is unknown.

    Notes
    -----
    docs/tolerances.md has proofs and measurements.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> a, b = (lp.quantize(rng.standard_normal((n, 512), np.float32), "e4m3fn 1x128") for n in (32, 48))
    >>> t = lp.tolerance(a, b, out_format="bfloat16")
    >>> d = lp.gemm(a, b, out_format="bfloat16")
    >>> print(t.test(d))
    bits equal
    >>> print(t.test(-d).cause)
    sign
    """
    several = accumulator if isinstance(accumulator, list | tuple) else (accumulator,)
    if not several:
        raise ValueError("tolerance: accumulator must be one or more, got none")
    rules = [accumulators.get(each) for each in several]
    unknown = options.keys() - {"promote_every", "out_format", "library", "alpha", "beta", "split_k"}
    if unknown:
        raise TypeError(f"tolerance: unknown option {min(unknown)!r}; see lowprec.gemm")
    orders, seed = check_optional_int("tolerance", "orders", orders, 0), check_int("tolerance", "seed", seed, 0)
    for name, q in (("a", a), ("b", b)):
        check_is_quantized("tolerance", name, q)
    check_matmul("tolerance", a.shape, b.shape)
    options = {"out_format": "float32", **options}
    for name in options.keys() & {"alpha", "beta"}:
        options[name] = float(check_float32("tolerance", name, options[name]))
    sources = None if values is None else _pair(values, a, b)
    products = tuple(Product(a, b, c, {**options, "accumulator": rule}, sources) for rule in rules)
    check_choice("tolerance", "order", order, ("chains", "any"))
    found = [_errors(product, order == "any") for product in products]
    exact, target = found[0].exact, formats.get(options["out_format"])
    most = np.maximum.reduce([each.most for each in found])
    variance = np.maximum.reduce([each.variance for each in found])
    if orders is None:
        orders = min(max(_SAMPLED // max(found[0].exact.size, 1), 2), 32)
    rngs = [np.random.default_rng([seed, i]) for i in range(orders)]
    moved = [pair for rng in rngs if (pair := reordered(products[0], rng, order)) is not None]
    # Where parts are stored in the result's format, a float32 result would lack their roundings.
    plan = _order(products[0])
    stored = plan.library.split_k_reduction != "float32" and len(plan.parts(a.shape[1])) > 1
    wide_format = target if stored else "float32"
    wide = [p.result(out_format=wide_format) for p in products]
    is_rounded_once = stored or plan.library.round_through == "float32" or target.bits >= 16
    results = [round_to(d, target) for d in wide] if is_rounded_once else [p.result() for p in products]
    wide += [p.result(a=x, b=y, out_format=wide_format) for p in products for x, y in moved]
    return Tolerance.of(
        Errors(exact, most, variance), target, wide, results, products=products,
        name=lambda got, expected, d: named(products[0], expected, d), addend=_addend(products[0]),
    )  # fmt: skip


def _errors(product: Product, any_order: bool) -> Errors:
    for name, q in (("a", product.a), ("b", product.b)):
        check_quantized(name, q, product.options["accumulator"])
    return errors_of(product.a, product.b, _order(product, any_order), _addend(product))


def _addend(product: Product) -> Values | None:
    """Return ``beta * C`` in float32."""
    beta = float(product.options.get("beta", 1.0))
    if product.c is None or beta == 0:
        return None
    c = as_real("tolerance: c", product.c)
    check_shape("tolerance", "c", c, (product.a.shape[0], product.b.shape[0]))
    return (c.astype(np.float32) * np.float32(beta)).astype(np.float64)


def _order(product: Product, any_order: bool = False) -> Order:
    options = product.options
    library, split = gemm_libraries.get(options.get("library", "deepgemm")), options.get("split_k")
    return Order(
        options["accumulator"], library, options.get("promote_every", "auto"),
        library.split_k if split is None else check_int("tolerance", "split_k", split, 1),
        formats.get(options["out_format"]), float(options.get("alpha", 1.0)), any_order,
    )  # fmt: skip


def reordered(
    product: Product, rng: np.random.Generator, order: OrderOfK = "chains"
) -> tuple[Quantized, Quantized] | None:  # fmt: skip
    """Return the operands with K in another order that a correct kernel may have, or None if there is only one."""
    a, b, plan = product.a, product.b, _order(product)
    (m, k), n, way = a.shape, b.shape[0], plan_for(plan.accumulator, a.format, b.format)
    spans = [min(q.granularity.columns or k, k) for q in (a, b)]
    every = promotion_interval("tolerance", a, b, way, plan.library, plan.promote_every)
    wide, narrow = max(*spans, 1), max(min(spans), 1)
    unit = narrow if order == "any" else (every or k) * (2 if plan.library.k_order == "interleaved" else 1)
    if k == 0 or wide % narrow or (order == "chains" and unit >= k):
        return None
    at = np.arange(k)
    for start, stop in plan.common_parts(m, n, k):
        size = min(max(wide, unit) if order == "chains" and wide < k else wide, stop - start)
        starts = np.arange(start, stop, size)
        starts[: (stop - start) // size] = rng.permutation(starts[: (stop - start) // size])
        inside = [_permuted(np.arange(i, min(int(i) + size, stop)), min(unit, size), rng, order) for i in starts]
        at[start:stop] = np.concatenate(inside)

    def moved(q: Quantized, span: int) -> Quantized:
        codes = np.ascontiguousarray(q.codes[:, at])
        return replace(q, codes=codes, scale=np.ascontiguousarray(q.scale[:, at[::span] // span]), quantizer=None)

    return moved(a, spans[0]), moved(b, spans[1])


def _permuted(at: NDArray[np.intp], unit: int, rng: np.random.Generator, order: OrderOfK) -> NDArray[np.intp]:
    """Permute the indices within every unit, or whole units; a short last unit stays last."""
    units = [at[i : i + unit] for i in range(0, len(at), unit)]
    if order == "any":
        return np.concatenate([rng.permutation(each) for each in units])
    full = len(at) // unit
    return np.concatenate([units[i] for i in (*rng.permutation(full), *range(full, len(units)))])
