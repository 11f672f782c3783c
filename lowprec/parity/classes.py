"""Orders of a function whose outputs are sums of equally many terms: found by probes, then applied to data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._fpenv import quiet_nan
from ..order.order import DTYPES, FormatName, Order
from ..order.probed import RevealError
from ..order.reveal import reveal
from ..tensorcore.matmul import matmul_f32

Floats = NDArray[np.float32]
Probe = Callable[[Floats, Floats, float], Floats]
_TRIALS, _PLAIN, _SAMPLES = 10, 6, 40
_TERMS = 100  # in inputs that do not cancel: these show the order of few terms
_LARGE = 2.0**40
_SECONDS = 600.0  # time limit of a search
_MOST = 1 << 22  # products in a block of outputs, to limit memory


@dataclass(frozen=True, eq=False)
class Classes:
    """Outputs of a function, classified by the order in which they are summed.

    Parameters
    ----------
    ids : array of int
        Index in `orders` of each output's order, flattened; a 0-d array if all outputs have the same order.
    orders : tuple of Order
        Orders in which the products are added; an addend, if there is one, is the last term.
    needs_finite : bool
        Whether the orders hold for finite operands only: with AMX, a kernel may multiply elements of the next row by 0.
    """

    ids: NDArray[np.int64]
    orders: tuple[Order, ...]
    needs_finite: bool = False

    @classmethod
    def one(cls, order: Order) -> Classes:
        """Return the classes of a function whose outputs all have the same order."""
        return cls(np.zeros((), np.int64), (order,))

    def of(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the index of each output's order, in a given shape."""
        return self.ids.reshape(shape) if self.ids.ndim else np.broadcast_to(self.ids, shape)

    def sums(self, a: Floats, b: Floats, c: Floats | None = None) -> Floats:
        """Return the sums [..., M, N] of the products of a [..., M, K] and b [..., N, K], plus c [N] if given.

        Raises
        ------
        RevealError
            If an operand is not finite although the orders hold for finite operands only.
        """
        if self.needs_finite and not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise RevealError("the kernel must not read beyond rows unless operands are finite, got Inf or NaN", {})
        if c is not None:
            a = np.concatenate([a, np.ones_like(a[..., :1])], -1)
            b = np.concatenate([b, np.broadcast_to(c[:, None], (*b.shape[:-1], 1))], -1)
        out = np.empty((*a.shape[:-1], b.shape[-2]), np.float32)
        ids, order = self.of(out.shape), self.orders[0]
        if (
            not self.ids.ndim
            and order.is_sequential
            and order.fma
            and order.from_zero
            and order.sum_format == "float32"
        ):
            for place in np.ndindex(out.shape[:-2]):
                matmul_f32(a[place], b[place], out=out[place])
            return quiet_nan(out)
        for place in np.ndindex(out.shape[:-2]):
            for i, order in enumerate(self.orders):
                rows, columns = np.nonzero((ids[place] == i).any(1))[0], np.nonzero((ids[place] == i).any(0))[0]
                step = max(1, _MOST // max(a.shape[-1] * len(columns), 1))
                for start in range(0, len(rows), step):
                    some = rows[start : start + step]
                    here = np.ix_(some, columns)
                    found = order.dot(a[place][some][:, None], b[place][columns][None])
                    out[place][here] = np.where(ids[place][here] == i, found, out[place][here])
        return out


class Search:
    """Search for the orders in which functions add; orders found for one function are tried first for the next.

    Parameters
    ----------
    candidates : sequence of callable
        Rules to try before an order is determined by `reveal`.
    """

    def __init__(self, candidates: Sequence[Callable[..., Order]] = ()) -> None:
        self.candidates = candidates
        self.found: dict[Any, list[Order]] = {}

    def classes(
        self, name: str, probe: Probe, n: int, dtype: FormatName, *, operands: int = 2, addend: bool = False,
        seen: Callable[[Floats], Floats] | None = None,
    ) -> Classes:  # fmt: skip
        """Return the orders of all outputs of a function.

        Parameters
        ----------
        name : str
            Name of the function, for messages.
        probe : callable
            Function of two vectors of length n and an addend; every output that it returns has these operands.
        n : int
            Number of terms.
        dtype : str
            Format of operands and outputs.
        operands : {1, 2}
            1 if outputs are sums of the first vector, 2 if they are sums of the products of both vectors.
        addend : bool
            Whether the function adds the addend to the products.
        seen : callable, optional
            Function that converts float32 sums [trials, 1] to outputs [trials, outputs], if outputs are not the sums
            themselves. Only `candidates` and orders that were found before are then tried.

        Raises
        ------
        RevealError
            If some output is not a sum in one order.
        """
        rng = np.random.default_rng(0)
        plain = max(_PLAIN, _TERMS // n)
        extra = _values(rng.standard_normal(plain + _TRIALS) * addend, dtype)
        inputs = [_normal(rng, n, dtype, operands) for _ in range(plain)]
        inputs += [_cancelling(rng, n, dtype, operands, float(c)) for c in extra[plain:]]
        if seen is None:
            inputs[-2:] = _edges(inputs[-1], dtype, operands)
            extra[-2:] = 0
        got = np.stack([probe(a, b, float(c)) for (a, b), c in zip(inputs, extra, strict=True)])
        ids = np.full(got.shape[1], -1)
        orders = list[Order]()
        known, without = (self.found.setdefault((n, dtype, operands, c, seen is None), []) for c in (addend, False))
        out_format: FormatName = dtype if seen is None else "float32"
        rules = [rule(n, dtype=dtype, out_format=out_format) for rule in self.candidates if _holds(rule, dtype)]
        if addend:
            after = _elements_before_addend(probe, n, 0)
            rules = [with_addend(order, after) for order in [*without, *rules]]
        untried = [*known, *rules]
        while (ids < 0).any():
            is_last = not untried
            if is_last and seen is not None:
                raise RevealError(f"{name} must be sums by one of the rules, got others", {})
            output = int((ids < 0).argmax())
            order = self._reveal(name, probe, n, dtype, operands, output, addend) if is_last else untried.pop(0)
            a, b = (np.stack(x) for x in zip(*inputs, strict=True))
            if addend:
                a, b = np.column_stack([a, np.ones(len(a), np.float32)]), np.column_stack([b, extra])
            mine = (order.dot(a, b) if operands == 2 else order.sum(a)).astype(np.float32)[:, None]
            mine = mine if seen is None else seen(mine)
            same = (ids < 0) & (mine.view(np.int32) == got.view(np.int32)).all(0)
            ids[same] = len(orders)
            if same.any():
                orders.append(order)
                if order not in known:
                    known.append(order)
            elif is_last:
                raise RevealError(f"{name} must be a sum, got other bits of output {output} than those of {order}", {})
        a, b = (np.ones(n, np.float32) for _ in range(2))
        a[0] = np.inf
        return Classes(ids, tuple(orders), seen is None and bool(np.isnan(probe(a, b, 0.0)).any()))

    def _reveal(
        self, name: str, probe: Probe, n: int, dtype: FormatName, operands: int, output: int, addend: bool
    ) -> Order:
        kind = DTYPES[dtype].type

        def function(*vectors: NDArray[Any]) -> Any:
            a = vectors[0].astype(np.float32)
            b = vectors[1].astype(np.float32) if operands == 2 else np.ones_like(a)
            return kind(probe(a, b, 0.0)[output])

        function.__qualname__ = function.__name__ = name
        order = reveal(function, n, dtype=dtype, operands=operands, samples=_SAMPLES, seconds=_SECONDS)
        return with_addend(order, _elements_before_addend(probe, n, output)) if addend else order


def _elements_before_addend(probe: Probe, n: int, output: int) -> int:
    """Return the number of elements that are summed before an addend joins them.

    In the probe, ones that are added to a large first element are lost, and the addend then cancels that element.
    """
    a = np.ones(n, np.float32)
    a[0] = _LARGE
    return n - round(float(probe(a, np.ones_like(a), -_LARGE)[output]))


def with_addend(order: Order, after: int) -> Order:
    """Return the order with an addend as last element, added to the sum of `after` elements that include the first.

    Examples
    --------
    >>> import lowprec as lp
    >>> print(with_addend(lp.orders["sequential"](3), 3))
    sum(x[0:4])
    >>> print(with_addend(lp.orders["sequential"](3), 2))
    sum(x[0], x[1], x[3], x[2])
    """
    n = order.n
    size, steps = [1] * n, list[tuple[int, ...]]()
    moved = list(range(n))  # new indices of elements and steps; the addend is element n
    head = 0  # the largest sum so far that has the first element
    is_added = False
    for terms in order.steps:
        size.append(sum(size[term] for term in terms))
        if head in terms:
            if not is_added and size[-1] > after:
                steps.append((moved[head], n))
                moved[head], is_added = n + len(steps), True
            head = len(size) - 1
        steps.append(tuple(moved[term] for term in terms))
        moved.append(n + len(steps))
    if not is_added:
        steps.append((moved[-1], n))
    numbers = tuple((moved[n + i] - n - 1, fmt) for i, fmt in order.step_formats)
    return order.with_(name=order.name, steps=tuple(steps), step_formats=numbers, source=order.source)


def _normal(rng: np.random.Generator, n: int, dtype: FormatName, operands: int) -> tuple[Floats, Floats]:
    """Return normally distributed vectors."""
    a, b = rng.standard_normal((2, n))
    return _values(a, dtype), _values(b, dtype) if operands == 2 else np.ones(n, np.float32)


def _cancelling(
    rng: np.random.Generator, n: int, dtype: FormatName, operands: int, addend: float
) -> tuple[Floats, Floats]:
    """Return vectors with products that cancel with an addend: only the rounding errors of the sum remain."""
    half = n // 2
    a, b = np.zeros(n), np.zeros(n)
    first, second = rng.permutation(n)[: 2 * half].reshape(2, half)
    spread = 3 if operands == 2 else 12  # products of bfloat16 have 16 bits; few sums of narrow numbers are rounded
    a[first] = a[second] = rng.standard_normal(half) * 2.0 ** rng.integers(-spread, spread + 1, half)
    b[first] = rng.standard_normal(half) if operands == 2 else 1
    b[second] = -b[first]
    if addend and half:
        a[first[0]], b[first[0]], a[second[0]] = 1, -addend, 0
    if n == 1:
        return _normal(rng, n, dtype, operands)
    if operands == 1:
        return _values(a * b, dtype), np.ones(n, np.float32)
    return _values(a, dtype), _values(b, dtype)


def _edges(pair: tuple[Floats, Floats], dtype: FormatName, operands: int) -> list[tuple[Floats, Floats]]:
    """Return vectors whose products are subnormal, to show flushing, and vectors of -0, to show a start from +0."""
    a, b = (1 + np.abs(x) % 1 for x in pair)  # subnormal products that cancel would give 0 with and without flushing
    if dtype == "float16":
        small = 1.0, 1.0  # products of float16 numbers are normal in float32
    else:
        small = (2.0**-66, 2.0**-66) if operands == 2 else (2.0**-130, 1.0)
    return [(_values(a * small[0], dtype), _values(b * small[1], dtype)), (np.full_like(a, -0.0), np.ones_like(b))]


def _values(x: NDArray[Any], dtype: FormatName) -> Floats:
    return np.asarray(x, np.float32).astype(DTYPES[dtype]).astype(np.float32)


def _holds(rule: Callable[..., Order], dtype: FormatName) -> bool:
    formats = dict(getattr(rule, "sum_formats", ()))
    return not formats or dtype in formats
