"""Batch sizes at which the bits of a row change, for a matrix product or another function of rows, with its orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._arrays import to_numpy
from .._checks import brief_repr, check_int, check_positive
from .._fpenv import with_default_fpenv
from .arithmetic import KINDS, bits, samples
from .order import DTYPES, FORMATS, FormatName, Order
from .probed import Call, RevealError, check_callable, check_options, name_of
from .reveal import MOST, SECONDS, reveal

Array = NDArray[Any]
_DRAWS = 4  # samples of each kind of operands


@dataclass(frozen=True, eq=False)
class Change:
    """A number of rows at which the bits of a row, or the order of its sum, change, compared with the previous number.

    Attributes
    ----------
    m : int
        Number of rows.
    share : float
        Share of the row's outputs that differ from those with the previous number of rows; 0 for a norm whose order
        changes and whose outputs do not.
    column : int
        Index of an output that differs.
    before, after : Order or None
        Orders of that output; None if they were not found.
    reason : str
        Reason why no order was found.
    """

    m: int
    share: float
    column: int
    before: Order | None = None
    after: Order | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Invariance:
    """Result of `batch_invariance`.

    Attributes
    ----------
    name : str
        Name of the function.
    sizes : tuple of int
        Numbers of rows that were compared.
    changes : tuple of Change
        Numbers of rows at which the bits of row 0, or the order of its sum, change.
    outputs : int
        Number of outputs of row 0 that were compared for each size.
    variable : str
        Name of the size in messages, such as "M".
    """

    name: str
    sizes: tuple[int, ...]
    changes: tuple[Change, ...]
    outputs: int
    variable: str = "M"

    @property
    def sentence(self) -> str:
        """Result in one sentence."""
        span = f"{len(self.sizes)} from {self.sizes[0]} to {self.sizes[-1]}"
        count = f"{self.outputs} outputs for each {self.variable} of {span}"
        if not self.changes:
            return f"{self.name}: row 0 keeps its bits in {count}"
        parts: dict[str, list[str]] = {}
        for change in self.changes:
            share = "under 1%" if change.share < 0.01 else f"{change.share:.0%}"
            where, what = f"{change.m} ({share} of its outputs)", "its bits"
            if not change.share:
                where, what = str(change.m), "the order of its sum but no bits"
            parts.setdefault(what, []).append(where)
        said = " and ".join(f"{what} at {self.variable} = {', '.join(where)}" for what, where in parts.items())
        return f"{self.name}: row 0 changes {said}, in {count}"


@with_default_fpenv
def batch_invariance(
    function: Callable[..., Any], k: int, n: int = 64, *, sizes: Sequence[int] = tuple(range(1, 65)),
    dtype: FormatName = "float32", operands: int = 2, orders: bool = True, seconds: float = SECONDS, seed: int = 0,
) -> Invariance:  # fmt: skip
    """Find the numbers of rows at which the bits of one row of a matrix product, or of a function of rows, change.

    The operands of row 0 are equal for every number of rows. Its results are compared on normal data and on data of
    which one half cancels the other exactly, so that the result consists of rounding errors.

    Parameters
    ----------
    function : callable
        Function of a matrix (M, k) and a matrix (n, k) that returns their product (M, n). Functions of torch,
        and those whose first parameter is annotated as ``torch.Tensor``, get tensors, all others arrays of NumPy.
    k, n : int
        Length of the sums, and number of outputs of a row.
    sizes : sequence of int
        Numbers of rows M, in the order in which they are compared.
    dtype : {"float16", "bfloat16", "float32", "float64"}
        Dtype of the operands.
    operands : {1, 2}
        1: `function` takes a matrix (M, k) alone and returns M numbers or arrays, as sums, norms and softmax do.
    orders : bool
        Whether to reveal the orders before and after each change, for one output.
    seconds : float
        Time limit for the search for one order, as in `lowprec.reveal`.
    seed : int
        Seed of the operands.

    Returns
    -------
    Invariance
        The changes; `sentence` describes them.

    Raises
    ------
    RevealError
        If the function raises, returns another shape, or returns different results for the same operands.
    ValueError
        If a parameter is out of range.
    TypeError
        If `function` cannot be called.

    Examples
    --------
    >>> import numpy as np
    >>> def product(a, b):
    ...     if len(a) < 4:
    ...         return np.cumsum(a[:, None] * b, axis=-1)[..., -1]
    ...     return np.cumsum(a[:, None, ::-1] * b[:, ::-1], axis=-1)[..., -1]
    >>> found = batch_invariance(product, 20, 8, sizes=range(1, 9))
    >>> [change.m for change in found.changes], str(found.changes[0].after)
    ([4], 'sum(x[19::-1])')
    """
    caller = "batch_invariance"
    check_callable(caller, function)
    k, n = check_int(caller, "k", k, 1, MOST), check_int(caller, "n", n, 1)
    seconds = check_positive(caller, "seconds", seconds)
    operands, seed = check_options(caller, dtype, operands, seed)
    ms = check_sizes(caller, sizes, 1)
    product = _Product(function, k, n, dtype, operands, max(ms), seed)
    inputs = _operands(k, n, DTYPES[dtype], operands, seed)
    changes, before, last = [], None, ms[0]
    for m in ms:
        found = np.array([product.row(m, *each) for each in inputs])
        if before is not None and (differ := bits(found) != bits(before)).any():
            column = int(differ.any(axis=0).argmax())
            pair = [product.order(column, size, seconds, seed) for size in (last, m)] if orders else [None, None]
            why = "; ".join(str(found) for found in pair if isinstance(found, RevealError))
            first, second = (None if isinstance(found, RevealError) else found for found in pair)
            changes.append(Change(m, float(differ.mean()), column, first, second, why))
        before, last = found, m
    return Invariance(product.name, ms, tuple(changes), found.size)


@with_default_fpenv
def find_changes(function: Callable[[int], Any], sizes: Sequence[int]) -> Invariance:
    """Find the sizes at which the bits of a function's outputs change.

    For each size, the function computes the same row with the kernel, tiles or parts that a library's rule chooses for
    that size. The size may also be another variable, such as the offset of a buffer in memory.

    Parameters
    ----------
    function : callable
        Function that takes a size and returns the outputs of the row as numbers of one shape and dtype. All their bits
        are compared, including those of NaN.
    sizes : sequence of int
        Sizes, in the order in which they are compared.

    Returns
    -------
    Invariance
        The changes, without orders.

    Raises
    ------
    RevealError
        If the function raises, or returns another shape or dtype.
    ValueError
        If there are no sizes, or one is not an integer.
    TypeError
        If `function` cannot be called.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> x = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    >>> def sums(size):
    ...     return lp.orders["halving" if size < 3 else "sequential"](64).sum(x)
    >>> [change.m for change in find_changes(sums, range(1, 5)).changes]
    [3]
    """
    caller, name = "find_changes", name_of(function)
    check_callable(caller, function)
    ms = check_sizes(caller, sizes, 0)
    changes: list[Change] = []
    first = last = None
    for m in ms:
        try:
            found = np.asarray(to_numpy(function(m)))
        except Exception as error:
            raise RevealError(f"{caller}: {name} must take {m}, got {type(error).__name__}: {error}") from error
        if found.dtype.kind not in "biufcV" or found.dtype.char in "gG" or found.dtype.names is not None:
            raise RevealError(f"{caller}: {name} must return numbers, none of extended precision, got {found.dtype}")
        kind = f"{found.dtype} {found.shape}"
        if first is not None and kind != first:
            raise RevealError(f"{caller}: {name} must return one dtype and shape, got {first} and {kind}")
        words = np.frombuffer(found.tobytes(), np.uint8).reshape(found.size, found.dtype.itemsize)
        if last is not None and (differ := (words != last).any(axis=1)).any():
            changes.append(Change(m, float(differ.mean()), int(differ.argmax())))
        first, last = kind, words
    return Invariance(name, ms, tuple(changes), found.size, "size")


def check_sizes(caller: str, sizes: Sequence[int], least: int) -> tuple[int, ...]:
    """Return sizes as a tuple of integers of at least `least`.

    Raises
    ------
    ValueError
        If there are no sizes, or one is not such an integer.
    """
    if np.ndim(sizes) != 1 or not len(sizes):
        raise ValueError(f"{caller}: sizes must be one or more numbers, got {brief_repr(sizes)}")
    return tuple(check_int(caller, "sizes", m, least) for m in sizes)


def _operands(k: int, n: int, dtype: np.dtype[Any], operands: int, seed: int) -> list[tuple[Array, ...]]:
    """Return rows, alone or each with a matrix: normal data, and data that cancel, where all columns are equal."""
    rng = np.random.default_rng(seed)
    a, *b = samples(k, KINDS * _DRAWS, operands, dtype, seed)
    if not b:
        return [(row,) for row in (*a[::KINDS], *a[2::KINDS], *rng.standard_normal((n, k)).astype(dtype))]
    normal = [(row, rng.standard_normal((n, k)).astype(dtype)) for row in a[::KINDS]]
    return normal + [(row, np.tile(column, (n, 1))) for row, column in zip(a[2::KINDS], b[0][2::KINDS], strict=True)]


class _Product:
    """Function of one or two matrices, called with the row that is tested and further rows."""

    def __init__(
        self, function: Callable[..., Any], k: int, n: int, dtype: FormatName, operands: int, most: int, seed: int
    ) -> None:  # fmt: skip
        self.call = Call(function, DTYPES[dtype], lambda found: np.asarray(to_numpy(found)))
        self.name, self.k, self.n = name_of(function), k, n
        self.fmt, self.dtype, self.operands = dtype, DTYPES[dtype], operands
        self.shape = (n,) if operands == 2 else None  # of the results of one row
        rng = np.random.default_rng(seed)
        self.others = rng.standard_normal((most, k)).astype(self.dtype)
        self.columns = [rng.standard_normal((n, k)).astype(self.dtype)] * (operands - 1)

    def __call__(self, *matrices: Array) -> Array:
        """Return the results [M, ...] as an array.

        Raises
        ------
        RevealError
            If the function raises, or returns anything but numbers of the shape of a product, or of the first results.
        """
        evidence = dict(zip("ab", matrices, strict=False))
        what = f"matrices {' and '.join(str(x.shape) for x in matrices)} of {self.dtype.name}"
        found: Array = self.call("batch_invariance", what, matrices, evidence)
        rows = len(matrices[0])
        if self.shape is None and found.shape[:1] == (rows,) and found.size:
            self.shape = found.shape[1:]
        shape = None if self.shape is None else (rows, *self.shape)
        if found.shape != shape or found.dtype.name not in FORMATS:
            raise RevealError(
                f"batch_invariance: {self.name} must return floating-point numbers of shape "
                f"{shape or f'({rows}, ...)'}, got {found.dtype} {found.shape}", evidence,
            )  # fmt: skip
        return found

    def row(self, m: int, a: Array, *others: Array) -> Array:
        """Return the results of row 0 of m rows, as float64.

        Raises
        ------
        RevealError
            If the function returns different bits for the same operands.
        """
        whole = np.concatenate([a[None], self.others[: m - 1]])
        first, second = (np.asarray(self(whole, *others)[0], np.float64).ravel() for _ in range(2))
        evidence = dict(zip("ab", (whole, *others), strict=False)) | {"got": np.array([first, second])}
        if np.isnan(first).all():
            raise RevealError(
                f"batch_invariance: {self.name} must return numbers for finite inputs, got NaN for row 0 of {m}",
                evidence,
            )
        if (bits(first) != bits(second)).any():
            raise RevealError(
                f"batch_invariance: {self.name} must have one answer to one input, got other bits the second time for "
                f"{m} rows", evidence,
            )  # fmt: skip
        return first

    def order(self, column: int, m: int, seconds: float, seed: int) -> Order | RevealError:
        """Return the order of an output of row 0 of m rows, or the error if none was found."""
        rows, matrices = self.others[:m].copy(), [matrix.copy() for matrix in self.columns]

        def output(a: Array, *b: Array) -> Any:
            rows[0] = a
            for matrix in matrices:
                matrix[column] = b[0]
            return self(rows, *matrices)[0].ravel()[column]

        output.__module__, output.__qualname__ = "", f"{self.name} of {m} rows"
        try:
            return reveal(output, self.k, dtype=self.fmt, operands=self.operands, seconds=seconds, seed=seed)
        except RevealError as error:  # the bits change all the same
            return error
