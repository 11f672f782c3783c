"""`Order`: a tree of additions with the formats of its sums, and its bits for any data."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_real
from .._checks import brief_repr, check_choice, check_int
from .._fpenv import quiet_nan, with_default_fpenv
from .._values import Value, normalize_fields
from .exact import cast, exact_sum, flushed, flushed_sum, fused_multiply_add
from .outline import drawing, expression

FormatName = Literal["float16", "bfloat16", "float32", "float64"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
SumFormat = Literal["float16", "bfloat16", "float32", "float64", "exact"]
SUM_FORMATS: tuple[SumFormat, ...] = get_args(SumFormat)
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in FORMATS
}
#: Formats in which an order may flush subnormals.
FLUSHED: tuple[FormatName, ...] = ("bfloat16", "float32")
Steps = tuple[tuple[int, ...], ...]
_ROWS = 1 << 18  # numbers in a block of rows, so that all of its running sums stay in the cache
_SHOWN = 200  # characters of an order's repr


@dataclass(frozen=True, eq=False, repr=False)
class Order(Value):
    """Order in which n numbers are added, and the arithmetic of the additions.

    Two orders are equal if they consist of the same additions in the same formats. Terms of an addition and steps that
    do not depend on each other are stored in a normalized order, because their order changes no bit.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    steps : tuple of tuple of int
        Terms of each addition. A number below n is an element; n + i is the result of an earlier step i. The last step
        gives the result; for one element there are zero steps. A step of more than two terms adds them in one
        operation of unknown rounding, unless `sum_format` is "exact". With `fma`, a step of one term, ``(k,)``, is the
        rounded product of an element.
    dtype : {"float16", "bfloat16", "float32", "float64"}
        Format of the elements.
    sum_format : {"float16", "bfloat16", "float32", "float64", "exact"}
        Format to which every sum, and every element or product that is not fused, is rounded; "exact": one sum without
        rounding. A sum is computed in the widest format among its terms' and `sum_format`, and then rounded.
    step_formats : tuple of (int, str)
        Steps with another format than `sum_format`, and that format.
    out_format : {"float16", "bfloat16", "float32", "float64"}
        Format to which the result is rounded.
    fma : bool
        Whether `dot` adds products without rounding them, as fused multiply-adds. Products in steps of one term are
        rounded, as is the first of two products that are added to each other.
    from_zero : bool
        Whether a running sum starts at +0 instead of its first term, so that a sum of -0 is +0.
    flush : bool
        Whether subnormal elements, products and sums become zeros, as in VDPBF16PS; sums must be float32.
    source : str
        Reference for the order.
    validated_against : str
        Software or samples with which the order was compared.

    Examples
    --------
    >>> import numpy as np
    >>> pairs = Order("pairs", ((0, 1), (2, 3), (4, 5)))
    >>> pairs
    Order('pairs', n=4, float32: (x[0] + x[1]) + (x[2] + x[3]))
    >>> float(pairs.sum([1e8, 1, -1e8, 1])), float(pairs.with_(sum_format="float64").sum([1e8, 1, -1e8, 1]))
    (0.0, 2.0)
    """

    name: str = dataclasses.field(compare=False)
    steps: Steps
    dtype: FormatName = "float32"
    sum_format: SumFormat = "float32"
    step_formats: tuple[tuple[int, FormatName], ...] = ()
    out_format: FormatName = "float32"
    fma: bool = False
    from_zero: bool = False
    flush: bool = False
    source: str = dataclasses.field(default="user-defined", compare=False)
    validated_against: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"Order {self.name}"
        for field in ("dtype", "out_format"):
            check_choice(caller, field, getattr(self, field), FORMATS)
        check_choice(caller, "sum_format", self.sum_format, SUM_FORMATS)
        formats = dict(self.step_formats)
        for step, fmt in formats.items():
            check_int(caller, "step_formats", step, 0, len(self.steps) - 1)
            check_choice(caller, "step_formats", fmt, FORMATS)
        steps, origins = _normalized(caller, self.steps, self.fma)
        other = tuple(
            (i, formats[old]) for i, old in enumerate(origins) if formats.get(old, self.sum_format) != self.sum_format
        )
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "fma", self.fma and bool(steps))
        object.__setattr__(self, "step_formats", other)
        if self.sum_format == "exact" and (len(steps) > 1 or self.fma):
            raise ValueError(
                f"{caller}: steps must be one of all terms, without fma, if sums are exact, got {len(steps)}"
            )
        formats_of_sums = {self.sum_format, *(fmt for _, fmt in other)}
        if self.flush and (formats_of_sums != {"float32"} or self.dtype not in FLUSHED):
            raise ValueError(
                f"{caller}: dtype must be 'bfloat16' or 'float32', and all sums 'float32', if subnormals are flushed, "
                f"got {self.dtype} and {', '.join(sorted(formats_of_sums))}"
            )

    @property
    def n(self) -> int:
        """Number of elements."""
        return _elements(self.steps)

    @property
    def is_binary(self) -> bool:
        """Whether no step adds more than two terms."""
        return all(len(terms) <= 2 for terms in self.steps)

    @functools.cached_property
    def is_sequential(self) -> bool:
        """Whether the elements are added one by one, in float32 or float64, as by `numpy.add.accumulate`."""
        n, head = self.n, self.n - len(self.steps)  # 0 if the first step rounds one product
        chain = ((0, 1)[: head + 1], *((n + i - 1, i + head) for i in range(1, len(self.steps))))
        return self.steps == chain and not (self.step_formats or self.flush) and self.sum_format in FORMATS[2:]

    @with_default_fpenv
    def sum(self, x: ArrayLike, axis: int = -1) -> Any:
        """Return the sum of x along an axis of length n, with the bits of this order.

        Parameters
        ----------
        x : array_like
            Numbers, converted to `dtype`.
        axis : int
            Axis of the sum.

        Returns
        -------
        array of `out_format`, or a scalar
            The sums; NaN is the positive quiet one.

        Raises
        ------
        ValueError
            If the axis has another length, or a step of more than two terms is not exact.

        Examples
        --------
        >>> import lowprec as lp
        >>> x = [1e8, 1.0, -1e8, 1.0]
        >>> float(lp.orders["sequential"](4).sum(x)), float(lp.orders["halving"](4).sum(x))
        (1.0, 2.0)
        """
        return self._computed("sum", axis, x)

    @with_default_fpenv
    def dot(self, a: ArrayLike, b: ArrayLike, axis: int = -1) -> Any:
        """Return the sum of the products of a and b along an axis of length n, with the bits of this order.

        Parameters
        ----------
        a, b : array_like
            Factors that broadcast, converted to `dtype`.
        axis : int
            Axis of the sum.

        Returns
        -------
        array of `out_format`, or a scalar
            The sums; NaN is the positive quiet one.

        Raises
        ------
        ValueError
            If the axis has another length, or a step of more than two terms is not exact.
        """
        return self._computed("dot", axis, a, b)

    def _computed(self, verb: str, axis: int, *operands: ArrayLike) -> Any:
        caller, dtype = f"Order.{verb}", DTYPES[self.dtype]
        if not self.is_binary and self.sum_format != "exact":
            widest = max(map(len, self.steps))
            raise ValueError(
                f"{caller}: order must have steps of two terms, got one of {widest}; lp.identify finds its arithmetic"
            )
        with np.errstate(all="ignore"):
            arrays = [cast(as_real(caller, x), dtype) for x in operands]
        try:
            given = np.broadcast_arrays(*arrays)
        except ValueError:
            shapes = " and ".join(str(x.shape) for x in arrays)
            raise ValueError(f"{caller}: a and b must have shapes that broadcast, got {shapes}") from None
        axis = check_int(caller, "axis", axis, -given[0].ndim, given[0].ndim - 1) if given[0].ndim else axis
        if not given[0].ndim or given[0].shape[axis] != self.n:
            raise ValueError(f"{caller}: axis {axis} must have length {self.n}, got shape {given[0].shape}")
        if len(given) == 1 and self.is_sequential:
            with np.errstate(all="ignore"):
                sums = np.add.accumulate(given[0].astype(DTYPES[self.sum_format]), axis)
                last = np.take(sums, [-1], axis) + (0.0 if self.from_zero else -0.0)
                return quiet_nan(cast(last, DTYPES[self.out_format]).squeeze(axis))[()]
        moved = [np.moveaxis(x, axis, 0) for x in given]
        shape = moved[0].shape[1:]
        columns = [x.reshape(self.n, -1) for x in moved]
        out = np.empty(columns[0].shape[1], DTYPES[self.out_format])
        width = max(1, _ROWS // self.n)
        for start in range(0, len(out), width):
            part = [np.ascontiguousarray(x[:, start : start + width]) for x in columns]
            with np.errstate(all="ignore"):
                out[start : start + width] = cast(self._sums(part), out.dtype)
        return quiet_nan(out).reshape(shape)[()]

    def _sums(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the sums of columns [n, width] in a format that represents them without further rounding."""
        if self.sum_format == "exact":
            return exact_sum(columns, DTYPES[self.out_format], self.from_zero)
        n, values = self.n, dict[int, NDArray[Any]]()
        usual = DTYPES[self.sum_format]
        own = {i: DTYPES[fmt] for i, fmt in self.step_formats}
        if self.flush:
            columns = [flushed(x.astype(np.float32)) for x in columns]

        def value(term: int, fmt: np.dtype[Any] = usual, *, starts: bool = False) -> NDArray[Any]:
            """Return a sum, or a rounded element or product; if it `starts` a running sum, +0 may be added."""
            if term >= n:
                return values.pop(term)
            x: NDArray[Any] = columns[0][term].astype(_wider(columns[0].dtype, fmt))
            if len(columns) == 2:
                y = columns[1][term].astype(x.dtype)
                x = flushed_sum(x.astype(np.float64) * y, np.array(-0.0)) if self.flush else x * y
            x = cast(x, fmt)
            return x + fmt.type(0) if starts and self.from_zero else x

        for i, terms in enumerate(self.steps):
            element, other, fmt = min(terms), max(terms), own.get(i, usual)
            if len(terms) == 1:
                values[n + i] = value(element, fmt, starts=True)
                continue
            right = value(other, starts=True)
            if element < n and self.fma and len(columns) == 2:
                wide = (
                    DTYPES["float64"] if self.flush else _wider(fmt, right.dtype, DTYPES["float32"], columns[0].dtype)
                )
                a, b, c = (x.astype(wide) for x in (columns[0][element], columns[1][element], right))
                values[n + i] = flushed_sum(a * b, c) if self.flush else cast(fused_multiply_add(a, b, c), fmt)
                continue
            left = value(element, starts=other < n)
            if self.flush:
                values[n + i] = flushed_sum(left.astype(np.float64), right.astype(np.float64))
                continue
            wide = _wider(fmt, left.dtype, right.dtype)
            values[n + i] = cast(left.astype(wide) + right.astype(wide), fmt)
        return value(n + len(self.steps) - 1, starts=True)

    def __str__(self) -> str:
        return expression(self.n, self.steps)

    def __repr__(self) -> str:
        text = expression(self.n, self.steps)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        return f"Order({self.name!r}, n={self.n}, {self.arithmetic}: {shown})"

    @property
    def arithmetic(self) -> str:
        """Description of the arithmetic: the format of the sums, other formats, and fused or rounded products."""
        words = [f"{self.sum_format} sums" if self.dtype != self.sum_format else self.sum_format]
        if self.dtype != self.sum_format:
            words.append(f"of {self.dtype}")
        if self.out_format != self.sum_format:
            words.append(f"rounded to {self.out_format}")
        if self.step_formats:
            words[-1] += ","
            others = sorted(set(dict(self.step_formats).values()))
            words.append(f"{len(self.step_formats)} of {len(self.steps)} steps in {'/'.join(others)}")
        return " ".join(words) + ", fused products" * self.fma + ", subnormals flushed" * self.flush

    def _repr_html_(self) -> str | None:
        try:
            return self.drawing()
        except ValueError:  # too many boxes: a notebook shows the repr
            return None

    def drawing(self) -> str:
        """Return the order as an SVG, with the elements on the left and the result on the right.

        Raises
        ------
        ValueError
            If the order has too many boxes to be legible.
        """
        return drawing(self.n, self.steps, f"Order of {self.name}")


def _elements(steps: Steps) -> int:
    return 1 + sum(len(terms) - 1 for terms in steps)


def _wider(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return the narrowest format that represents the numbers of all given ones: float32 for float16 and bfloat16."""
    widest = max(dtypes, key=lambda dtype: dtype.itemsize)
    return widest if all(dtype.itemsize < widest.itemsize or dtype == widest for dtype in dtypes) else DTYPES["float32"]


def _normalized(caller: str, steps: Any, fma: bool) -> tuple[Steps, list[int]]:
    """Return the steps in depth-first order, with terms sorted by least element, and the original index of each step.

    A one-term step that was inserted has the index -1.

    Raises
    ------
    ValueError
        If the steps do not form a tree.
    """
    try:
        given = tuple(tuple(map(operator.index, terms)) for terms in steps)
    except TypeError:
        raise ValueError(f"{caller}: steps must be tuples of integers, got {brief_repr(steps)}") from None
    n = _elements(given)
    for i, terms in enumerate(given):
        if not terms or (len(terms) == 1 and terms[0] >= n) or not all(0 <= term < n + i for term in terms):
            raise ValueError(f"{caller}: step {i} must add terms from 0 to {n + i - 1}, got {terms}")
    if given and sorted(term for terms in given for term in terms) != list(range(n + len(given) - 1)):
        raise ValueError(
            f"{caller}: steps must add every element and every result but the last once, got {brief_repr(given)}"
        )
    least = list(range(n))
    for terms in given:
        least.append(min(least[term] for term in terms))
    ordered: list[tuple[int, ...]] = []
    origins: list[int] = []
    number = dict(enumerate(range(n)))
    for node in _postorder(n, given, least):
        terms = tuple(number[term] for term in sorted(given[node - n], key=least.__getitem__))
        if len(terms) == 1 and not fma:  # all products are rounded
            number[node] = terms[0]
            continue
        if fma and len(terms) == 2 and max(terms) < n:
            ordered.append(terms[:1])
            origins.append(-1)
            terms = (n + len(ordered) - 1, terms[1])
        number[node] = n + len(ordered)
        ordered.append(terms)
        origins.append(node - n)
    return tuple(ordered), origins


def _postorder(n: int, steps: Steps, least: Sequence[int]) -> Iterator[int]:
    """Yield the indices of the steps, each after those of its terms; without recursion, because chains are deep."""
    stack = [(n + len(steps) - 1, False)] if steps else []
    while stack:
        node, done = stack.pop()
        if done:
            yield node
            continue
        stack.append((node, True))
        inner = [term for term in steps[node - n] if term >= n]
        stack += [(term, False) for term in sorted(inner, key=least.__getitem__, reverse=True)]
