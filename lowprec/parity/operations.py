"""Rules of a stack, each of which describes the arithmetic of an operation as data."""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from .._checks import brief_repr, check_choice, check_positive
from .._values import Value, normalize_fields
from ..attn.forward import OnlineSoftmax
from ..attn.kernel import AttentionKernel
from ..attn.sums import RowSum
from ..attn.tiles import Visit
from ..norm.norm import Norm
from ..order.exact import fma
from ..order.order import DTYPES, FormatName, Order
from ..order.rules import OrderRule
from ..special.cpu import CpuExp, CpuGelu
from ..special.portable import RoundedFunction

Floats = NDArray[np.float32]
Mark = Literal["exact", "decided", "own"]
MARKS: tuple[Mark, ...] = get_args(Mark)
Mean = Literal["none", "division", "reciprocal"]
MEANS: tuple[Mean, ...] = get_args(Mean)


class Loop(NamedTuple):
    """Loop in which a library computes the elements of an operation.

    It covers each run of `run` consecutive elements in vector steps; elements beyond the run's last whole step are
    computed by scalar code, as are all if `run` is 0.
    """

    dtype: FormatName
    run: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Rule(Value):
    """Base of rules, one for each operation of a stack.

    Parameters
    ----------
    mark : {"exact", "decided", "own"}
        ``exact``: the bits follow from public sources or from measurements; ``decided``: the operation has a documented
        error bound, within which the bits of the running program are kept; ``own``: a custom rule.
    source : str
        Reference for the rule.
    """

    mark: Mark = dataclasses.field(default="own", kw_only=True)
    source: str = dataclasses.field(default="user-defined", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice(type(self).__name__, "mark", self.mark, MARKS)
        if not isinstance(self.source, str):
            raise ValueError(f"{type(self).__name__}: source must be a string, got {self.source!r}")


@dataclass(frozen=True, eq=False, repr=False)
class Moves(Rule):
    """Operation that moves, selects or creates values, without rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Elements(Rule):
    """Base of elementwise operations, whose results are rounded to the dtype."""

    @abstractmethod
    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32, not yet rounded to the dtype."""


#: Operations of IEEE arithmetic; each function is rounded to float32.
_ARITHMETIC: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "negative": np.negative,
    "copy": np.positive, "reciprocal": np.reciprocal, "subtract_from": lambda x, y: y - x,
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Arithmetic(Elements):
    """Elementwise operation of IEEE arithmetic in float32.

    Parameters
    ----------
    function : str
        Name of the operation.
    """

    function: str = "add"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Arithmetic", "function", self.function, tuple(_ARITHMETIC))

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        found: Floats = _ARITHMETIC[self.function](*operands)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Power(Elements):
    """Squares and cubes, computed as products, each of which is rounded to the dtype."""

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the power in float32."""
        x, power = operands
        if power not in (2, 3):
            raise ValueError(f"Power: exponent must be 2 or 3, got {power}")
        square: Floats = x * x
        return square if power == 2 else rounded(square, loop.dtype) * x


@dataclass(frozen=True, eq=False, repr=False)
class ReciprocalRoot(Elements):
    """1 / sqrt(x), by a square root and a division, each rounded to float32, or by a single rounding.

    Parameters
    ----------
    once : bool
        Whether the exact value is rounded once.
    """

    once: bool = False

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        x = operands[0].astype(np.float64) if self.once else operands[0]
        found: Floats = np.asarray(x.dtype.type(1) / np.sqrt(x), np.float32)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Stepped(Elements):
    """Base of functions that are computed in the vector steps of a `Loop` and, by other code, in the rest.

    Parameters
    ----------
    step : int
        Number of bytes per vector step of the loop.
    grain : int
        Number of elements from which PyTorch divides the loop among threads, so that each has a rest.
    """

    step: int = dataclasses.field(default=128, kw_only=True)
    grain: int = dataclasses.field(default=32768, kw_only=True)

    #: Whether vector steps and scalar code have other bits.
    has_rests = True

    @abstractmethod
    def in_steps(self, x: Floats) -> Floats:
        """Return the function of a vector, as in vector steps."""

    @abstractmethod
    def in_rest(self, x: Floats) -> Floats:
        """Return the function of a vector, as in scalar code."""

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        x = operands[0].reshape(-1)
        found = self.in_steps(x)
        step = self.step // DTYPES[loop.dtype].itemsize
        rest = np.arange(x.size) % max(loop.run, 1) >= loop.run // step * step
        found[rest] = self.in_rest(x[rest])
        return found.reshape(operands[0].shape)


@dataclass(frozen=True, eq=False, repr=False)
class Sigmoid(Stepped):
    """1 / (1 + exp(-x)) or x / (1 + exp(-x)).

    exp is a vector function in the vector steps of a `Loop`, and glibc's expf in its scalar code.

    Parameters
    ----------
    exp : CpuExp
        Vector function.
    times_x : bool
        Whether the numerator is x (SiLU) instead of 1.
    step, grain
        As in `Stepped`.
    """

    exp: CpuExp = dataclasses.field(kw_only=True)
    times_x: bool = False

    def in_steps(self, x: Floats) -> Floats:
        """Return the function of a vector by the vector function."""
        return self._of(x, self.exp.with_(width=1)(np.negative(x)[None])[0])

    def in_rest(self, x: Floats) -> Floats:
        """Return the function of a vector by glibc's expf."""
        return self._of(x, self.exp.factors(np.minimum(np.negative(x), np.float32(128))))

    def _of(self, x: Floats, e: Floats) -> Floats:
        return (x if self.times_x else np.float32(1)) / (np.float32(1) + e)


@dataclass(frozen=True, eq=False, repr=False)
class Gelu(Stepped):
    """GELU, or its approximation by tanh.

    Parameters
    ----------
    vector, scalar : CpuGelu
        Functions in the vector steps of a `Loop` and in its scalar code.
    dense : tuple of CpuGelu
        Functions of a library that computes all elements of contiguous operands; empty: there is none. The first that
        gives PyTorch's bits is used.
    probed : bool
        Whether every function is compared with PyTorch's before it is used; if not, they are used as given.
    step, grain
        As in `Stepped`.
    """

    vector: CpuGelu = dataclasses.field(kw_only=True)
    scalar: CpuGelu = dataclasses.field(kw_only=True)
    dense: tuple[CpuGelu, ...] = ()
    probed: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def has_rests(self) -> bool:  # type: ignore[override]
        """Whether vector steps and scalar code have other bits."""
        return self.vector != self.scalar

    def in_steps(self, x: Floats) -> Floats:
        """Return the function of a vector by the vector function."""
        return self.vector(x)

    def in_rest(self, x: Floats) -> Floats:
        """Return the function of a vector by the scalar function."""
        return self.scalar(x)


@dataclass(frozen=True, eq=False, repr=False)
class Function(Elements):
    """Function that the package computes itself.

    Parameters
    ----------
    function : RoundedFunction
        The function.
    """

    function: RoundedFunction = dataclasses.field(kw_only=True)

    def compute(self, loop: Loop, *operands: Any) -> Floats:
        """Return the result in float32."""
        return self.function(operands[0])


@dataclass(frozen=True, eq=False, repr=False)
class Bounded(Rule):
    """Function whose bits no public source defines: the running program's results are kept if within an error bound.

    Parameters
    ----------
    function : str
        Name of the function in NumPy.
    ulps : float
        Largest error, in units in the last place of float32.
    """

    function: str = "sin"
    ulps: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(getattr(np, str(self.function), None), "nin", 0) != 1:
            raise ValueError(f"Bounded: function must be a NumPy ufunc of one argument, got {self.function!r}")
        check_positive("Bounded", "ulps", self.ulps, zero=True)


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
    """Attention whose keys fit in one tile.

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
        return state.finish(one, None, one, None).out


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


def rounded(x: Floats, dtype: FormatName) -> Floats:
    """Round float32 values to a dtype, and return them as float32."""
    return x if dtype == "float32" else x.astype(DTYPES[dtype]).astype(np.float32)


def row_sums(order: RowSum, e: Floats) -> Floats:
    """Return the sums of rows in the order of a kernel."""
    sums = np.zeros((len(e), order.lanes), np.float32)
    order.add(np.ascontiguousarray(e), np.zeros(len(e), np.float32), False, sums)
    return order.total(sums)
