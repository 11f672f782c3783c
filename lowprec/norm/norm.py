"""`Norm`: a function of rows, defined by formulas and orders of sums; its gradient, and a mask of undecided outputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_real, check_shape
from .._checks import brief_repr, check_choice, check_int, check_positive
from .._fpenv import quiet_nan, with_default_fpenv
from .._values import Value, normalize_fields
from ..order.exact import cast
from ..order.order import DTYPES, FORMATS, FormatName, Order
from ..order.rules import OrderRule
from .formula import FUNCTIONS, Span, bilinear, evaluate, monotone, parse
from .functions import SpecialFunction
from .sums import IN_TURN, ColumnSum, Moments

Array = NDArray[Any]
Floats = NDArray[np.float32]
_COLUMNS = ColumnSum()
_OF_FORMULAS = {"name", "forward", "backward", "unweighted", "unaligned", "source", "validated_against"}
_OF_LENGTHS = {"order", "row_orders", "backward_order", "moments", "default_bias"}
_OUTPUTS = ("y", "dx", "dweight", "dbias")


@functools.lru_cache(64)
def _order(rule: OrderRule, n: int, fma: bool | None) -> Order:
    return rule(n, fma=fma)


class Gradient(NamedTuple):
    """Gradients of the input and of the parameters; None for a parameter that is not given or has no formula."""

    dx: Array
    dweight: Array | None
    dbias: Array | None


@dataclass(frozen=True, eq=False, repr=False)
class Norm(Value):
    """A function of rows, such as RMSNorm, LayerNorm or softmax, in which every operation is rounded to float32.

    Formulas are assignments, one per line, of expressions of ``+ - * /``, numbers, names and functions. Names are
    ``x``, ``weight``, ``bias``, ``eps``, ``n`` (the length of a row) and those assigned before; in `backward` also
    ``dy`` and the names of `forward`, with ``y`` rounded to the dtype of x. Functions are:

    - ``fma(a, b, c)``, ``sqrt(a)``, ``max(a)``, and those of `functions`;
    - ``round(a)``: rounded to the dtype of x;
    - ``sum(a)`` and ``dot(a, b)``: sum of a row, or of the products of two rows, in the order that `order` gives;
    - ``mean, variance = moments(a)``: mean and variance of a row, computed by `moments`;
    - ``sum_rows(a)`` and ``dot_rows(a, b)``: sum of each column over the rows, computed by `columns`.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    forward : str
        Formulas that assign ``y``.
    backward : str
        Formulas that assign ``dx`` and, for norms with these parameters, ``dweight`` and ``dbias``; empty if the
        gradient is not known.
    order : OrderRule
        Order of the sums of a row; its `fma` applies to ``dot``.
    row_orders : tuple of (int, OrderRule)
        Orders that replace `order` from a number of rows on, in ascending order; `with_` removes them if it is given
        another `order` alone.
    backward_order : OrderRule, optional
        Order of the sums of a row in `backward`; by default, the same.
    columns : ColumnSum
        Rule of the sums over rows.
    moments : Moments, optional
        Rule of the mean and variance of a row.
    functions : tuple of (str, SpecialFunction)
        Special functions, each with its name in the formulas.
    default_bias : float
        Bias if none is given; -0.0 leaves every number as it is, as a kernel does that does not add it.
    unweighted : Norm, optional
        Norm that is applied if no weight is given; by default, this one with a weight of ones. `with_` replaces fields
        other than formulas in it too.
    unaligned : Norm, optional
        Norm of rows with lengths that `order` does not define, as a kernel without vectors has. By default, such rows
        are refused. `with_` replaces fields other than formulas, orders, `moments` and `default_bias` in it too.
    dtypes : tuple of str
        Dtypes of x for which the formulas hold.
    source : str
        Reference for the formulas.
    validated_against : str
        Software that gives the same outputs, bit for bit.

    Examples
    --------
    >>> import lowprec as lp
    >>> mine = lp.Norm("mine", "y = x / sqrt(sum(x * x) / n + eps) * weight", order=lp.orders["halving"])
    >>> mine([[3.0, 4.0]], eps=0.5)
    array([[0.8320503, 1.1094004]], dtype=float32)
    """

    name: str = dataclasses.field(compare=False)
    forward: str
    backward: str = ""
    order: OrderRule = IN_TURN
    row_orders: tuple[tuple[int, OrderRule], ...] = ()
    backward_order: OrderRule | None = None
    columns: ColumnSum = _COLUMNS
    moments: Moments | None = None
    functions: tuple[tuple[str, SpecialFunction], ...] = ()
    default_bias: float = 0.0
    unweighted: Norm | None = None
    unaligned: Norm | None = None
    dtypes: tuple[FormatName, ...] = ("float32", "bfloat16", "float16")
    source: str = dataclasses.field(default="user-defined", compare=False)
    validated_against: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"Norm {self.name}"
        kinds = {"order": OrderRule, "backward_order": OrderRule | None, "columns": ColumnSum,
                 "moments": Moments | None, "unweighted": Norm | None, "unaligned": Norm | None}  # fmt: skip
        for field, kind in kinds.items():
            if not isinstance(value := getattr(self, field), kind):
                needed = str(getattr(kind, "__name__", kind)).rpartition(".")[2].replace(" | ", " or ")
                raise TypeError(f"{caller}: {field} must be of class {needed}, got {brief_repr(value)}")
        least = [1]
        for rows, rule in self.row_orders:
            least.append(check_int(caller, "row_orders", rows, least[-1] + 1))
            if not isinstance(rule, OrderRule):
                raise TypeError(f"{caller}: row_orders must have orders of class OrderRule, got {brief_repr(rule)}")
        for dtype in self.dtypes:
            check_choice(caller, "dtypes", dtype, FORMATS[:3])
        for field, output in (("forward", "y"), ("backward", "dx")):
            text = getattr(self, field)
            object.__setattr__(self, field, "\n".join(line.strip() for line in text.strip().splitlines()))
            found = parse(caller, getattr(self, field))
            if (found or field == "forward") and output not in {name for line in found for name in line.names}:
                raise ValueError(f"{caller}: {field} must assign {output!r}, got {brief_repr(text)}")

    def with_(self, **changes: Any) -> Self:
        """Return a norm with the given fields replaced, also in `unweighted` and `unaligned`, which keep formulas.

        `order` also replaces `row_orders` that are not given.

        Raises
        ------
        TypeError
            If a field does not exist.
        ValueError
            If a field is out of range, or the order of the sums changes without `moments`, which define an order.
        """
        orders = [
            field for field in ("order", "row_orders") if field in changes and changes[field] != getattr(self, field)
        ]
        if orders and self.moments is not None and "moments" not in changes:
            raise ValueError(
                f"Norm {self.name}: moments must be given with {orders[0]}, which does not change the order of "
                f"{self.moments}, got {orders[0]} alone"
            )
        more: dict[str, Any] = {"row_orders": ()} if "order" in changes else {}
        for field, own in (("unweighted", _OF_FORMULAS), ("unaligned", _OF_FORMULAS | _OF_LENGTHS)):
            norm, shared = getattr(self, field), {name: value for name, value in changes.items() if name not in own}
            if norm is not None and shared:
                more[field] = norm.with_(**shared)
        changed = super().with_(**changes)
        return dataclasses.replace(changed, **more | changes) if more else changed

    def for_length(self, n: int) -> Norm:
        """Return the norm that is applied to rows of `n` numbers: this one or `unaligned`."""
        return self.unaligned if self.unaligned and not self.order.is_defined_for(n) else self

    def order_for(self, rows: int) -> OrderRule:
        """Return the order of the sums of each row if there are `rows` rows."""
        return next((rule for least, rule in reversed(self.row_orders) if rows >= least), self.order)

    def __call__(
        self, x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, eps: float = 1e-6
    ) -> Array:
        """Apply the norm to each row.

        Parameters
        ----------
        x : array [..., n]
            Rows, of float32, bfloat16 or float16; float64 is rounded to float32.
        weight, bias : array [n], optional
            Parameters, of the dtype of x; by default, ones (or the norm `unweighted`) and `default_bias`.
        eps : float
            Constant added to the variance, or to the mean of the squares.

        Returns
        -------
        array [..., n]
            Results in the dtype of x; every NaN is the positive quiet NaN.

        Raises
        ------
        TypeError
            If a dtype is not supported, or the dtypes differ.
        ValueError
            If a shape is not supported.
        """
        rows = _Rows(self, "norm", x, weight, bias, eps)
        return rows.finish("y", rows.forward()["y"].low)

    def gradient(
        self, dy: ArrayLike, x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *,
        eps: float = 1e-6,
    ) -> Gradient:  # fmt: skip
        """Return the gradients of the input and of the parameters, given the gradient of the output.

        Parameters
        ----------
        dy : array [..., n]
            Gradient of the output, in the dtype of x.
        x, weight, bias, eps
            As in a call.

        Raises
        ------
        TypeError
            If a dtype is not supported, or the dtypes differ.
        ValueError
            If a shape is not supported, or the norm has no formulas for its gradient.
        """
        rows = _Rows(self, "gradient", x, weight, bias, eps)
        found = rows.backward(dy)
        names = [name if name in found and rows.given[name] else "" for name in _OUTPUTS[1:]]
        return Gradient(*(rows.finish(name, found[name].low) if name else None for name in names))  # type: ignore[arg-type]

    def undecided(
        self, x: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None, *, eps: float = 1e-6
    ) -> NDArray[np.bool_]:
        """Return a mask of the outputs that depend on unpublished bits of special functions.

        The other outputs are the same for all values within the documented errors. Bounds are propagated through one
        operation at a time, so that some outputs may be marked as undecided although they are decided.

        Parameters
        ----------
        x, weight, bias, eps
            As in a call.

        Returns
        -------
        bool array [..., n]
            Whether an output is undecided.

        Examples
        --------
        >>> import lowprec as lp
        >>> from lowprec.norm.functions import Approximate
        >>> formula, rsqrt = "y = x * rsqrt(sum(x * x) / n + eps)", ("rsqrt", Approximate("rsqrt", 2))
        >>> lp.Norm("mine", formula, functions=[rsqrt]).undecided([[3.0, 0.0]])
        array([[ True, False]])
        """
        rows = _Rows(self, "undecided", x, weight, bias, eps, bounded=True)
        low, high = (rows.finish("y", end) for end in rows.forward()["y"])
        word = np.dtype(f"u{low.itemsize}")
        different: NDArray[np.bool_] = low.view(word) != high.view(word)
        return different


def _moments(rule: Moments, a: Span) -> tuple[Span, ...]:
    """Return the mean and the variance; both are unbounded if a is not known, as they are not monotonic in it."""
    if a.low is a.high:
        return tuple(map(Span.of, rule(a.low)))
    limit = np.full((len(a.low), 1), np.inf, np.float32)
    return (Span(-limit, limit),) * 2


class _Rows:
    """Rows and parameters of one call, converted to float32, on which the formulas are evaluated."""

    def __init__(
        self, norm: Norm, caller: str, x: ArrayLike, weight: ArrayLike | None, bias: ArrayLike | None, eps: float, *,
        bounded: bool = False,
    ) -> None:  # fmt: skip
        self.caller, self.bounded = caller, bounded
        self.given = {"y": True, "dx": True, "dweight": weight is not None, "dbias": bias is not None}
        given = as_real(caller, x)
        if given.dtype == np.float64:
            given = given.astype(np.float32)
        self.shape, self.dtype = given.shape, given.dtype
        if given.dtype.name not in norm.dtypes:
            raise TypeError(f"{caller}: x must be of {' or '.join(norm.dtypes)} for {norm.name}, got {given.dtype}")
        if given.ndim < 1 or not given.shape[-1]:
            raise ValueError(f"{caller}: x must have shape [..., n >= 1], got {given.shape}")
        n = given.shape[-1]
        norm = norm.for_length(n)
        self.norm = norm = norm.unweighted if weight is None and norm.unweighted else norm
        self.order = norm.order_for(given.size // n)
        eps = check_positive(caller, "eps", eps, zero=True)
        self.values = {
            "x": Span.of(given.reshape(-1, n).astype(np.float32)),
            "weight": self._parameter("weight", weight, 1), "bias": self._parameter("bias", bias, norm.default_bias),
            "eps": Span.of(np.full((1, 1), eps, np.float32)), "n": Span.of(np.full((1, 1), n, np.float32)),
        }  # fmt: skip

    def _parameter(self, name: str, given: ArrayLike | None, default: float) -> Span:
        array = np.full(self.shape[-1], default, self.dtype) if given is None else self._array(name, given)
        check_shape(self.caller, name, array, self.shape[-1:])
        return Span.of(array.astype(np.float32)[None])

    def _array(self, name: str, given: ArrayLike) -> Array:
        array = as_real(self.caller, given)
        if array.dtype == np.float64 and self.dtype == np.float32:
            array = array.astype(np.float32)
        if array.dtype != self.dtype:
            raise TypeError(f"{self.caller}: {name} must be of x's dtype, {self.dtype}, got {array.dtype}")
        return array

    def forward(self) -> dict[str, Span]:
        """Return the values of all names after the forward formulas."""
        return self._evaluate(self.norm.forward, self.values, self.order)

    def backward(self, dy: ArrayLike) -> dict[str, Span]:
        """Return the values of all names after the backward formulas.

        Raises
        ------
        ValueError
            If the norm has no backward formulas.
        """
        if not self.norm.backward:
            raise ValueError(f"{self.caller}: norm must have formulas of its gradient, got {self.norm.name}")
        given = self._array("dy", dy)
        check_shape(self.caller, "dy", given, self.shape)
        known = self.forward()
        known["y"] = monotone(self._round)(known["y"])
        known["dy"] = Span.of(given.reshape(-1, self.shape[-1]).astype(np.float32))
        return self._evaluate(self.norm.backward, known, self.norm.backward_order or self.order)

    @with_default_fpenv
    def _evaluate(self, text: str, values: dict[str, Span], rule: OrderRule) -> dict[str, Span]:
        norm, n = self.norm, self.shape[-1]
        if 0 in self.shape:
            names = [name for line in parse(f"Norm {norm.name}", text) for name in line.names]
            return dict.fromkeys([*values, *names], Span.of(np.zeros((1, n), np.float32)))
        dtype: FormatName = self.dtype.name  # type: ignore[assignment]
        plain, products = _order(rule, n, False), _order(rule, n, None)
        functions: dict[str, Callable[..., Any]] = FUNCTIONS | {
            "round": monotone(self._round),
            "sum": monotone(lambda a: plain.sum(a)[:, None]),
            "dot": bilinear(lambda a, b: products.dot(a, b)[:, None]),
            "sum_rows": monotone(lambda a: norm.columns(dtype, a)),
            "dot_rows": bilinear(lambda a, b: norm.columns(dtype, a, b)),
            **{name: self._special(function) for name, function in norm.functions},
        }
        if norm.moments:
            functions["moments"] = functools.partial(_moments, norm.moments)
        with np.errstate(all="ignore"):
            return evaluate(f"Norm {norm.name}", text, values, functions)

    def _special(self, function: SpecialFunction) -> Callable[[Span], Span]:
        if function.is_published or not self.bounded:
            return monotone(function)
        return lambda a: Span.around([y for x in a.ends for y in function.bounds(x)])

    def _round(self, a: Floats) -> Floats:
        return cast(a, self.dtype).astype(np.float32)

    def finish(self, name: str, values: Floats) -> Array:
        """Convert an output to the dtype of x, and to the shape of x or of a parameter."""
        shape = self.shape if name in ("y", "dx") else self.shape[-1:]
        if 0 in shape:
            return np.zeros(shape, self.dtype)
        rows = self.values["x"].low.shape[0] if shape is self.shape else 1
        if values.shape != (rows, shape[-1]):
            raise ValueError(
                f"Norm {self.norm.name}: {name} must be an array [{rows}, {shape[-1]}], got {list(values.shape)}"
            )
        with np.errstate(all="ignore"):
            return quiet_nan(cast(np.ascontiguousarray(values), DTYPES[self.dtype.name])).reshape(shape)
