"""Arrays as LogFMT's kernels want them: float32 numbers, rows of tiles, options that make sense."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Option = TypeVar("Option")


def as_float32(x: npt.ArrayLike) -> Floats:
    """Return a float32 array with exactly the same numbers; the array itself if it is one.

    Raises
    ------
    TypeError
        If `x` does not hold real numbers.
    ValueError
        If it is a single number, or holds one that float32 cannot.
    """
    given = np.asarray(x)
    if given.ndim < 1:
        raise ValueError("logfmt: a single number has no tiles; an array of one or more axes is needed")
    # 'V' is how NumPy sees the types of ml_dtypes, bfloat16 among them.
    if given.dtype.kind not in "fiuV" or given.dtype.names is not None:
        raise TypeError(f"logfmt: values of type {given.dtype}; real numbers are needed")
    if given.dtype.name == "bfloat16":
        return (given.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        values = np.asarray(given, dtype=np.float32)
    if given.dtype.kind in "fiu" and not np.can_cast(given.dtype, np.float32):
        different = (values.astype(given.dtype) != given) & (given == given)
        if different.any():
            raise ValueError(
                f"logfmt: {given.dtype} value {given[different][0]!r} is no float32 number;"
                " round the array first, with .astype(np.float32)"
            )
    return values


def as_rows(array: Array, axis: int) -> Array:
    """Return a contiguous array [rows, columns] whose columns run along an axis; a view where that is possible."""
    moved = np.ascontiguousarray(np.moveaxis(array, axis, -1))
    return moved.reshape(int(np.prod(moved.shape[:-1], dtype=np.int64)), moved.shape[-1])


def from_rows(rows: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return rows [rows, n] as a view in the shape of an array whose `axis` has n elements now."""
    moved = [*shape[:axis], *shape[axis + 1 :], rows.shape[1]]
    return np.moveaxis(rows.reshape(moved), -1, axis)


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return a whole number within limits.

    Raises
    ------
    TypeError, ValueError
        If it is none, or outside.
    """
    limits = f"from {low} to {high}" if high is not None else f">= {low}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"logfmt: {name} {value!r}: a whole number {limits} is needed") from None
    if isinstance(value, bool) or number < low or (high is not None and number > high):
        raise ValueError(f"logfmt: {name} {value!r}: a whole number {limits} is needed")
    return number


def one_of(name: str, value: Option, allowed: tuple[Option, ...]) -> Option:
    """Return an option if it is among those allowed.

    Raises
    ------
    ValueError
        If not.
    """
    if not any(value is option or value == option for option in allowed):
        choices = " or ".join(map(repr, allowed)) if len(allowed) < 3 else ", ".join(map(repr, allowed))
        raise ValueError(f"logfmt: {name} {value!r}: {choices} is needed")
    return value
