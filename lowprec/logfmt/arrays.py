"""Conversion of arrays for LogFMT's kernels: exact float32 numbers, in rows of tiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowprec._arrays import Array, Floats, as_real


def exact_float32(x: npt.ArrayLike) -> Floats:
    """Return the array as float32 with exactly the same values, without a copy if it is float32.

    Raises
    ------
    TypeError
        If the values of `x` are not real numbers.
    ValueError
        If `x` is a scalar, or float32 cannot represent a value exactly.
    """
    given = as_real("logfmt", x)
    if given.ndim < 1:
        raise ValueError("logfmt: x must have one axis or more, got a single number")
    if given.dtype.name == "bfloat16":
        return (given.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        values = np.asarray(given, dtype=np.float32)
    if given.dtype.kind in "fiu" and not np.can_cast(given.dtype, np.float32):
        different = (values.astype(given.dtype) != given) & (given == given)
        if different.any():
            raise ValueError(
                f"logfmt: x must hold float32 numbers, got {given[different][0].item()!r} in {given.dtype};"
                " x.astype(np.float32) rounds them"
            )
    return values


def as_rows(array: Array, axis: int) -> Array:
    """Return a contiguous array [rows, columns] with the axis as columns, as a view where possible."""
    moved = np.ascontiguousarray(np.moveaxis(array, axis, -1))
    return moved.reshape(int(np.prod(moved.shape[:-1], dtype=np.int64)), moved.shape[-1])


def from_rows(rows: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return rows [rows, n] as a view in the shape of an array, with n elements along `axis`."""
    moved = [*shape[:axis], *shape[axis + 1 :], rows.shape[1]]
    return np.moveaxis(rows.reshape(moved), -1, axis)
