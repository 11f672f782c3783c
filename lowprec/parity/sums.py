"""Rules of a stack for operations that add: sums, products, norms, attention."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np

from .._checks import brief_repr, check_choice
from ..attn.kernel import AttentionKernel
from ..attn.softmax import OnlineSoftmax
from ..attn.sums import RowSum
from ..attn.tiles import Visit
from ..norm.norm import Norm
from ..order.exact import fma
from ..order.order import DTYPES, FormatName, Order
from ..order.rules import OrderRule
from .operations import Floats, Rule, rounded

Mean = Literal["none", "division", "reciprocal"]
MEANS: tuple[Mean, ...] = get_args(Mean)


@dataclass(frozen=True, eq=False, repr=False)
class Ordered(Rule):
    """Base of operations that add terms in some order.

    Parameters
    ----------
    orders : tuple of OrderRule
        Rules of orders: the single order of all outputs or, if `probed`, the orders to try.
    probed : bool
        Whether each output has the first order that gives the running program's bits in probes; if none does, its order
        is determined by `reveal`. `with_`, given `orders`, sets it to False unless it is given too.
    """

    orders: tuple[OrderRule, ...] = ()
    probed: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.probed and len(self.orders) > 1:
            raise ValueError(
                f"{type(self).__name__}: orders must be a single rule unless probed, got {len(self.orders)} rules"
            )

    def with_(self, **changes: Any) -> Self:
        """Return a rule with the given fields replaced; new `orders` are not probed unless `probed` is given."""
        return super().with_(**({"probed": False} if "orders" in changes else {}) | changes)

    def order(self, n: int, **formats: Any) -> Order:
        """Return the order of n terms, of a rule that is not probed."""
        if not self.orders:
            raise ValueError(f"{type(self).__name__}: orders must be a single rule unless probed, got none")
        return _order(self.orders[0], n, *sorted(formats.items()))


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Ordered):
    """Sum or mean.

    Parameters
    ----------
    orders, probed
        Rules of orders and their use, as in `Ordered`.
    mean : {"none", "division", "reciprocal"}
        Calculation of a mean from the sum: division by the count, or multiplication by the rounded reciprocal of the
        count; ``none`` for a sum.
    """

    mean: Mean = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_orders("Sum", self.orders)
        check_choice("Sum", "mean", self.mean, MEANS)

    def finish(self, sums: Floats, n: int) -> Floats:
        """Return the sums, or the means of n terms, in float32."""
        if self.mean == "none":
            return sums
        return sums / np.float32(n) if self.mean == "division" else sums * (np.float32(1) / np.float32(n))


@dataclass(frozen=True, eq=False, repr=False)
class Product(Ordered):
    """Matrix product, with or without an addend."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_orders("Product", self.orders)


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Rule):
    """A norm or softmax of rows.

    Parameters
    ----------
    norms : tuple of (str, Norm)
        Norm for each dtype.
    """

    norms: tuple[tuple[FormatName, Norm], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pairs("Rows", "norms", self.norms, Norm)

    def compute(self, x: Floats, dtype: FormatName, *parameters: Floats | None, eps: float = 1e-6) -> Floats:
        """Apply the norm to rows [..., n], with its weight and bias [n] if it has these; return float32."""
        kind = DTYPES[dtype]
        given = [None if each is None else each.astype(kind) for each in parameters]
        found = dict(self.norms)[dtype](x.astype(kind), *given, eps=eps)
        return found.astype(np.float32)


@dataclass(frozen=True, eq=False, repr=False)
class SafeSoftmax(Rows):
    """Softmax of rows in which rows of -inf alone, such as those of hidden keys, give zeros in place of NaN."""

    def compute(self, x: Floats, dtype: FormatName, *parameters: Floats | None, eps: float = 1e-6) -> Floats:
        """Apply the softmax to rows [..., n]; return float32."""
        found = super().compute(x, dtype, *parameters, eps=eps)
        return np.where(np.isneginf(x).all(-1, keepdims=True), np.float32(0), found)


@dataclass(frozen=True, eq=False, repr=False)
class Flash(Ordered):
    """Attention with all keys in one tile.

    Parameters
    ----------
    kernels : tuple of (str, AttentionKernel)
        Kernel for each dtype; it determines everything except the orders of the products.
    orders, probed
        Rules of the orders of products, as in `Ordered`.
    """

    kernels: tuple[tuple[FormatName, AttentionKernel], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pairs("Flash", "kernels", self.kernels, AttentionKernel)
        _check_orders("Flash", self.orders)

    def kernel(self, dtype: FormatName) -> AttentionKernel:
        """Return the kernel of a dtype."""
        return dict(self.kernels)[dtype]

    def block(
        self, scores: Floats, scale: np.float32, mask: Floats | None, dtype: FormatName,
        times_values: Callable[[Floats], Floats],
    ) -> Floats:  # fmt: skip
        """Return the output of a block of rows, from products Q K^T and a function that multiplies by V."""
        one = np.float32(1)
        state = OnlineSoftmax(self.kernel(dtype), len(scores), 0, False)
        scores = np.ascontiguousarray(scores * scale if mask is None else fma(scores, scale, mask))
        state.out = times_values(rounded(state.update(scores, one, Visit(0).is_guarded), dtype))
        return state.finish(one, one, one, None).out


@dataclass(frozen=True, eq=False, repr=False)
class ComposedAttention(Rule):
    """Attention in float32 by the stack's own rules: those of ``bmm`` for its products, and of ``_safe_softmax``."""


@functools.lru_cache(256)
def _order(rule: OrderRule, n: int, *formats: tuple[str, Any]) -> Order:
    return rule(n, **dict(formats))


def _check_orders(caller: str, orders: tuple[OrderRule, ...]) -> None:
    if not orders or not all(isinstance(rule, OrderRule) for rule in orders):
        raise ValueError(
            f"{caller}: orders must be rules of orders, such as those of lowprec.orders, got {brief_repr(orders)}"
        )


def _check_pairs(caller: str, name: str, pairs: tuple[Any, ...], kind: type) -> None:
    """Check that a field has at least one pair of a dtype and an object of a class."""
    if not pairs or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 and pair[0] in DTYPES and isinstance(pair[1], kind)
        for pair in pairs
    ):
        raise ValueError(
            f"{caller}: {name} must be pairs of a dtype and an object of class {kind.__name__}, got {brief_repr(pairs)}"
        )


def row_sums(order: RowSum, e: Floats) -> Floats:
    """Return the sums of rows in the order of a kernel."""
    sums = np.zeros((len(e), order.lanes), np.float32)
    order.add(np.ascontiguousarray(e), np.zeros(len(e), np.float32), False, sums)
    return order.total(sums)
