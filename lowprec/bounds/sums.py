"""`sum_tolerance`: bounds and expected errors of sums in a given order or in any order; proofs: docs/tolerances.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32
from .._checks import check_int
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..format.catalogue import Format, formats
from ..order.catalogue import orders as known_orders
from ..order.order import Order, Steps
from ..order.rules import Lanes, OrderRule
from .checksum import Values, half_ulp
from .derived import Tolerance
from .named import named_output
from .product import Errors

Floats = NDArray[np.float32]


@with_default_fpenv
def sum_tolerance(
    x: ArrayLike,
    *,
    axis: int = -1,
    order: str | OrderRule | Order = "any",
    sum_format: str | Format | None = None,
    out_format: str | Format | None = None,
    orders: int = 8,
    seed: int = 0,
) -> Tolerance:
    """Bound the error of sums of an array over an axis, such as row sums or an all-reduce.

    Every addition is rounded to nearest even. For an all-reduce the axis is that of the ranks: a ring, a tree and a
    switch add in different orders, so that by default a result of any order is accepted.

    Parameters
    ----------
    x : array_like
        Terms, taken as float32; they are rounded to `sum_format` first.
    axis : int
        Axis of the terms.
    order : str, OrderRule or Order
        Order of the additions. ``any``: every binary tree over the terms. Otherwise a name in ``lowprec.orders``, a
        rule, or an `Order` of the same number of terms, such as a result of `lowprec.reveal`, with its formats.
    sum_format : str or Format, optional
        Format of every sum; default: float32, or the formats of the `Order`. A rule must hold for the format.
    out_format : str or Format, optional
        Format of the result; default: `sum_format`, or that of the `Order`.
    orders : int
        Number of sampled orders, for the order ``any``.
    seed : int
        Seed of the orders.

    Returns
    -------
    Tolerance
        Exact sums, proven bound and expected error of every sum; `Tolerance.test` judges a result.

    Raises
    ------
    ValueError
        If the axis does not exist, or the order is unknown, has another number of terms or another format of sums, adds
        more than two terms in a step, has float64 sums, or flushes subnormals.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((64, 512), np.float32)
    >>> t = lp.sum_tolerance(x, order="any")
    >>> bool(t.test(x.sum(axis=1))), bool(t.test(x[:, 1:].sum(axis=1)))
    (True, False)
    >>> print(lp.sum_tolerance(x, order="numpy_sum").test(x.sum(axis=1)))
    bits equal
    """
    caller = "sum_tolerance"
    given = as_float32(caller, x)
    axis = check_int(caller, "axis", axis, -given.ndim, given.ndim - 1) if given.ndim else _no_axis(given)
    terms = np.moveaxis(given, axis, 0)
    if isinstance(order, Order):
        sum_format, out_format = _formats_of(order, len(terms), sum_format, out_format)
    target = formats.get("float32" if sum_format is None else sum_format)
    out = target if out_format is None else formats.get(out_format)
    made = None if isinstance(order, str) and order == "any" else _made(order, len(terms), target)
    seed, orders = check_int(caller, "seed", seed, 0), check_int(caller, "orders", orders, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        read = round_to(terms, formats[order.dtype], policy="ieee") if isinstance(order, Order) else terms
        if made is None or not len(terms):
            stored = round_to(read, target, policy="ieee")
            errors = _in_any_order(terms, stored, target)
            wide = _sampled(stored, target, orders, np.random.default_rng(seed))
            results: list[Floats] = []
        else:
            errors = _in_order(terms, read, made, target)
            wide = [np.asarray(made.with_(out_format="float32").sum(read, axis=0))]
            results = [round_to(wide[0], out, policy="ieee")]
    right = round_to(wide[0], out, policy="ieee")
    return Tolerance.of(
        errors, out, wide, results, name=lambda got, expected, d: named_output(right, expected, d, out)
    )  # fmt: skip


def _no_axis(x: Floats) -> int:
    raise ValueError(f"sum_tolerance: x must have an axis to sum over, got a number, {x}")


def _formats_of(order: Order, n: int, sum_format: Any, out_format: Any) -> tuple[str, str]:
    """Return the formats of an order's sums and of its result."""
    if order.n != n:
        raise ValueError(f"sum_tolerance: order must have {n} terms, got {order.n}: {order!r}")
    if sum_format is not None or out_format is not None:
        raise ValueError(
            f"sum_tolerance: sum_format and out_format must be None with an Order, which has formats, got {sum_format} "
            f"and {out_format}"
        )
    names = order.dtype, order.sum_format, order.out_format, *dict(order.step_formats).values()
    if not (order.is_binary and all(name in formats for name in names)):
        raise ValueError(f"sum_tolerance: order must add two terms in each step, in float32 or narrower, got {order!r}")
    return order.sum_format, order.out_format


def _made(order: str | OrderRule | Order, n: int, target: Format) -> Order:
    """Return the order of n terms; for n = 0, check a rule with one term."""
    dtype: Any = target.name  # raises an error if the rule does not hold for the format
    made = order if isinstance(order, Order) else known_orders.get(order)(max(n, 1), dtype=dtype)
    if made.flush:
        raise ValueError(f"sum_tolerance: order must not flush subnormals, got {made!r}")
    if made is not order and made.sum_format != target.name:
        raise ValueError(
            f"sum_tolerance: sum_format must be that of the order's sums, got {target.name}; give "
            f"lowprec.orders[{made.name!r}]({made.n}, dtype={target.name!r}), which has {made.sum_format} sums"
        )
    return made


def _sampled(stored: Floats, target: Format, count: int, rng: np.random.Generator) -> list[Floats]:
    """Return sums in random orders: terms are added one by one in 1, 2, 8 or n lanes, then the sums of the lanes."""
    n, found = len(stored), []
    for _ in range(count):
        at, lanes = rng.permutation(n), int(rng.choice((1, 2, 8, max(n, 1))))
        steps = Lanes("sampled", lanes=lanes, rest_in_lanes=True)(n).steps if n else ()
        found.append(computed_sum(stored[at], steps, target))
    return found


def computed_sum(terms: Floats, steps: Steps, target: Format) -> Floats:
    """Return the sum over the first axis, with every addition of two terms rounded to a format that `Order` may lack.

    A float64 sum of two numbers of up to 24 significant bits, rounded again, is the sum rounded once.
    """
    if not len(terms):
        return np.zeros(terms.shape[1:], np.float32)
    values: list[Floats] = list(terms)
    for first, second in steps:
        values.append(round_to(values[first].astype(np.float64) + values[second], target, policy="ieee"))
    return values[-1]


def _in_order(terms: Floats, read: Floats, order: Order, target: Format) -> Errors:
    """Return the errors of sums in an order: half an ulp of each partial sum, whose exact value is known.

    If formats differ, a sum may be rounded to float32 before it is rounded to its format, and a subnormal sum need not
    be exact.
    """
    wide, own = terms.astype(np.float64), {i: formats[name] for i, name in order.step_formats}

    def element(i: int, fmt: Format) -> Errors:
        lost = np.abs(round_to(read[i], fmt, policy="ieee") - wide[i])
        return Errors(wide[i], lost, lost**2)

    values = [element(i, target) for i in range(len(terms))]
    peak, most = np.zeros(terms.shape[1:]), min([target.max, *(fmt.max for fmt in own.values())])
    for step, (first, *others) in enumerate(order.steps):
        fmt = own.get(step, target)
        total = values[first] if others else element(first, fmt)
        for other in others:
            total, u = total.plus(values[other]), half_ulp(fmt)
            total = total.rounded(u + 2.0**-24 * (1 + u), fmt.smallest_subnormal) if own else total.rounded(u, 0.0)
            np.maximum(peak, np.abs(total.exact) + total.most, out=peak)
        values.append(total)
    return _bounded(*values[-1], peak, terms, most)


def _in_any_order(terms: Floats, stored: Floats, target: Format) -> Errors:
    """Return the errors of sums in any order, from the largest and the typical size of a partial sum."""
    n, u = len(terms), half_ulp(target)
    wide = terms.astype(np.float64)
    exact, size, lost = wide.sum(axis=0), np.abs(wide).sum(axis=0), np.abs(stored - wide).sum(axis=0)
    adds = max(n - 1, 0) * u
    partial = (size + np.abs(exact)) / 2 + lost
    by_height = np.expm1(max(n - 1, 0) * np.log1p(u)) * (size + lost)
    added = np.minimum(by_height, adds * partial / (1 - adds)) if adds < 1 else by_height
    usual = np.square(exact) / 3 + np.square(wide).sum(axis=0) / 6
    return _bounded(exact, lost + added, adds * u * usual / 3 + lost**2, partial + added, terms, target.max)


def _bounded(exact: Values, most: Values, variance: Values, peak: Values, terms: Floats, largest: float) -> Errors:
    """Return errors that include the rounding of the float64 sums, and are infinite where a sum may overflow."""
    slack = (len(terms) + 4) * 2.0**-52 * np.abs(terms.astype(np.float64)).sum(axis=0)
    most = np.where(peak + slack < largest, most * (1 + 2.0**-30) + slack, np.inf)
    return Errors(exact, most, variance + 1e-300)
