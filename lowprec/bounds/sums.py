"""`sum_tolerance`: bounds and expected errors of sums in a stated order or in any; docs/tolerances.md has proofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32
from .._checks import brief_repr, check_int
from .._fpenv import with_default_fpenv
from ..cast.casts import round_to
from ..format.catalogue import Format, formats
from .checksum import Values
from .derived import Tolerance
from .faults import named_output
from .product import Errors

Order = Literal["sequential", "pairwise", "any"] | int
Floats = NDArray[np.float32]
T = TypeVar("T")


@with_default_fpenv
def sum_tolerance(
    x: ArrayLike,
    *,
    axis: int = -1,
    order: Order = "any",
    sum_format: str | Format = "float32",
    out_format: str | Format | None = None,
    orders: int = 8,
    seed: int = 0,
) -> Tolerance:
    """Bound the error of sums of an array over an axis, such as row sums or an all-reduce.

    Every addition is rounded to nearest even in `sum_format`. For an all-reduce the axis is that of the ranks: a ring,
    a tree and a switch add in different orders, so that by default a result of any order is accepted.

    Parameters
    ----------
    x : array_like
        Terms, taken as float32; they are rounded to `sum_format` first.
    axis : int
        Axis of the terms.
    order : {"any", "sequential", "pairwise"} or int
        Order of the additions. ``any``: every binary tree over the terms; ``sequential``: one after the other;
        ``pairwise``: neighbours, then neighbouring sums; n: term i is added to chain i mod n, and the sums of the n
        chains are added pairwise.
    sum_format : str or Format
        Format of every sum.
    out_format : str or Format, optional
        Format of the result; default: `sum_format`.
    orders : int
        Number of sampled orders, if any is allowed.
    seed : int
        Seed of the orders.

    Returns
    -------
    Tolerance
        Exact sums, proven bound and expected error of every sum; `Tolerance.test` judges a result.

    Raises
    ------
    ValueError
        If the array has no such axis, or the order is unknown.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((64, 512), np.float32)
    >>> t = lp.sum_tolerance(x, order="any")
    >>> bool(t.test(x.sum(axis=1))), bool(t.test(x[:, 1:].sum(axis=1)))
    (True, False)
    """
    caller = "sum_tolerance"
    given, target = as_float32(caller, x), formats.get(sum_format)
    axis = check_int(caller, "axis", axis, -given.ndim, given.ndim - 1) if given.ndim else _no_axis(given)
    out = target if out_format is None else formats.get(out_format)
    terms = np.moveaxis(given, axis, 0)
    n = len(terms)
    chains = _chains(order, n)
    seed, orders = check_int(caller, "seed", seed, 0), check_int(caller, "orders", orders, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = round_to(terms, target, policy="ieee")
        if chains is None:
            errors = _in_any_order(terms, stored, target)
            rng = np.random.default_rng(seed)
            sampled = [(rng.permutation(n), int(rng.choice((1, 2, 8, max(n, 1))))) for _ in range(orders)]
            wide = [computed_sum(stored[at], lanes, target) for at, lanes in sampled]
            results: list[Floats] = []
        else:
            errors = _in_order(terms, stored, chains, target)
            wide = [computed_sum(stored, chains, target)]
            results = [round_to(wide[0], out, policy="ieee")]
    right = round_to(wide[0], out, policy="ieee")
    return Tolerance.of(
        errors, out, wide, results, name=lambda got, expected, d: named_output(right, expected, d, out)
    )  # fmt: skip


def _no_axis(x: Floats) -> int:
    raise ValueError(f"sum_tolerance: x must have an axis to sum over, got a number, {x}")


def _chains(order: Order, n: int) -> int | None:
    """Return the number of chains; None for any order."""
    if isinstance(order, str):
        if order not in ("any", "sequential", "pairwise"):
            raise ValueError(
                f"sum_tolerance: order must be any, sequential, pairwise or a number of chains, got {order!r}"
            )
        return {"any": None, "sequential": 1, "pairwise": max(n, 1)}[order]
    if isinstance(order, bool) or not isinstance(order, int | np.integer):
        raise ValueError(
            f"sum_tolerance: order must be any, sequential, pairwise or a number of chains, got {brief_repr(order)}"
        )
    return check_int("sum_tolerance", "order", order, 1)


def _folded(terms: Sequence[T], chains: int, add: Callable[[T, T], T]) -> T:
    """Return the sum of terms in interleaved chains; the sums of the chains are added pairwise."""
    lanes = list(terms[:chains])
    for i, term in enumerate(terms[chains:]):
        lanes[i % chains] = add(lanes[i % chains], term)
    while len(lanes) > 1:
        odd = lanes[-1:] if len(lanes) % 2 else []
        lanes = [add(*lanes[i : i + 2]) for i in range(0, len(lanes) - 1, 2)] + odd
    return lanes[0]


def computed_sum(terms: Floats, chains: int, target: Format) -> Floats:
    """Return the sum over the first axis, each addition rounded to a format.

    A float64 sum of two numbers of up to 24 significant bits, rounded again, is the sum rounded once.
    """
    if not len(terms):
        return np.zeros(terms.shape[1:], np.float32)

    def add(x: Floats, y: Floats) -> Floats:
        return round_to(x.astype(np.float64) + y, target, policy="ieee")

    return _folded(list(terms), chains, np.add if target.same_codes(formats["float32"]) else add)


def _in_order(terms: Floats, stored: Floats, chains: int, target: Format) -> Errors:
    """Return the errors of sums in an order: half an ulp of every sum, which is known exactly."""
    u, wide = 2.0 ** -(target.mantissa_bits + 1), terms.astype(np.float64)
    if not len(terms):
        return _in_any_order(terms, stored, target)
    lost = np.abs(stored - wide)
    peak = np.zeros(terms.shape[1:])

    def add(x: Errors, y: Errors) -> Errors:
        found = x.plus(y).rounded(u, 0.0)
        np.maximum(peak, np.abs(found.exact) + found.most, out=peak)
        return found

    exact, most, variance = _folded([Errors(*each) for each in zip(wide, lost, lost**2, strict=True)], chains, add)
    return _bounded(exact, most, variance, peak, terms, target)


def _in_any_order(terms: Floats, stored: Floats, target: Format) -> Errors:
    """Return the errors of sums in any order, from bounds on a partial sum and on its usual size."""
    n, u = len(terms), 2.0 ** -(target.mantissa_bits + 1)
    wide = terms.astype(np.float64)
    exact, size, lost = wide.sum(axis=0), np.abs(wide).sum(axis=0), np.abs(stored - wide).sum(axis=0)
    adds = max(n - 1, 0) * u
    partial = (size + np.abs(exact)) / 2 + lost
    by_height = np.expm1(max(n - 1, 0) * np.log1p(u)) * (size + lost)
    added = np.minimum(by_height, adds * partial / (1 - adds)) if adds < 1 else by_height
    usual = np.square(exact) / 3 + np.square(wide).sum(axis=0) / 6
    return _bounded(exact, lost + added, adds * u * usual / 3 + lost**2, partial + added, terms, target)


def _bounded(
    exact: Values, most: Values, variance: Values, peak: Values, terms: Floats, target: Format
) -> Errors:  # fmt: skip
    """Return errors with the slack of the float64 sums, infinite where a sum may overflow."""
    slack = (len(terms) + 4) * 2.0**-52 * np.abs(terms.astype(np.float64)).sum(axis=0)
    most = np.where(peak + slack < target.max, most * (1 + 2.0**-30) + slack, np.inf)
    return Errors(exact, most, variance + 1e-300)
