"""Conversion and validation of arrays: inputs, codes, destination arrays and shapes.

Arrays hold real numbers: NumPy's floats and integers, the dtypes of ml_dtypes, and tensors of torch and JAX of such
dtypes.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._checks import brief_repr, parameter

Array = NDArray[Any]
Floats = NDArray[np.float32]


# --- arrays of other packages -----------------------------------------------------------------------------------------


def to_numpy(x: Any) -> Any:
    """View a torch tensor as an array with a dtype of NumPy or ml_dtypes; return other objects unchanged.

    NumPy converts JAX arrays itself. torch is not imported here: a caller with a tensor has imported it.

    Examples
    --------
    >>> to_numpy([1.0])
    [1.0]
    """
    if type(x).__module__.partition(".")[0] != "torch" or not hasattr(x, "detach"):
        return x
    tensor, name = x.detach().cpu().contiguous(), str(x.dtype).rpartition(".")[2]
    if name != "bfloat16" and not name.startswith("float8"):
        return np.from_dlpack(tensor)
    import ml_dtypes

    words = sys.modules["torch"].uint16 if name == "bfloat16" else sys.modules["torch"].uint8
    return np.from_dlpack(tensor.view(words)).view(getattr(ml_dtypes, name))


def to_like(caller: str, array: Array, like: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """Return a result as an array of another package, sharing the result's memory where possible.

    Parameters
    ----------
    caller : str
        Name of the calling function, for messages.
    array : ndarray
        Result to return.
    like : array or str
        Array of NumPy, torch or JAX, or the name of one of these packages.
    dtype : dtype, optional
        Dtype of codes, in packages that have it; in others, codes are unsigned integers.

    Raises
    ------
    TypeError
        If `like` is neither such an array nor a name.

    Examples
    --------
    >>> import ml_dtypes
    >>> to_like("encode", np.array([56], np.uint8), "numpy", np.dtype(ml_dtypes.float8_e4m3fn)).dtype.name
    'float8_e4m3fn'
    """
    package = like if isinstance(like, str) else type(like).__module__.partition(".")[0]
    typed = array if dtype is None else array.view(dtype)
    if package in ("numpy", "ml_dtypes"):
        return typed
    if package in ("jax", "jaxlib"):
        import jax.numpy

        return jax.numpy.asarray(typed)
    if package != "torch":
        raise TypeError(
            f"{caller}: like must be an array of NumPy, torch or JAX or 'numpy', 'torch' or 'jax', got "
            f"{brief_repr(like)}"
        )
    import torch

    known = None if dtype is None or dtype.kind != "V" else getattr(torch, dtype.name, None)
    if known is None:
        return torch.from_numpy(typed if dtype is not None and dtype.kind != "V" else array)
    return torch.from_numpy(array.view(f"int{8 * array.itemsize}")).view(known)


# --- values ----------------------------------------------------------------------------------------------------------


def as_array(caller: str, name: str, x: Any) -> Array:
    """Convert an array, a nested sequence or a scalar to a NumPy array.

    Raises
    ------
    ValueError
        If nested sequences differ in length.
    """
    try:
        return np.asarray(to_numpy(x))
    except ValueError:
        raise ValueError(f"{parameter(caller, name)} must be rectangular, got sequences of different lengths") from None


def as_real(caller: str, x: ArrayLike) -> Array:
    """Return an array of real numbers, with its dtype.

    Raises
    ------
    TypeError
        If `x` holds other objects, or has a mask, which would be lost.
    """
    if isinstance(x, np.ndarray) and type(x) is not np.ndarray and hasattr(x, "filled"):  # numpy.ma may not be loaded
        raise TypeError(
            f"{caller}: values must be real numbers without a mask, got {type(x).__name__}; see x.filled(...)"
        )
    array = as_array(caller, "values", x)
    kind = array.dtype.kind
    # NumPy gives the dtypes of ml_dtypes, among others, the kind 'V'.
    if kind not in "fiu" and (kind != "V" or array.dtype.names is not None or array.dtype.name.startswith("void")):
        raise TypeError(
            f"{caller}: values must be real numbers, got {type(x).__name__ if kind == 'O' else array.dtype}"
        )
    return array


def as_float32(caller: str, x: ArrayLike) -> Floats:
    """Convert real numbers to contiguous float32, without a copy if possible; values that overflow become Inf.

    Raises
    ------
    TypeError
        If `x` does not hold real numbers.
    """
    array = as_real(caller, x)
    if array.dtype == np.float32 and array.flags.c_contiguous:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)


# --- codes -----------------------------------------------------------------------------------------------------------


def as_unsigned(
    name: str,
    codes: ArrayLike,
    bits: int,
    dtype: np.dtype[Any],
    *,
    check: bool = True,
    hint: str = "; see lowprec.encode",
) -> Array:
    """Return contiguous codes of `bits` bits in the given dtype; `name` and `hint` begin and end an error message.

    Codes that have the dtype already are not checked if `check` is False.

    Raises
    ------
    TypeError
        If `codes` are not integers.
    ValueError
        If a code has more bits.
    """
    c = as_array("", name, codes)
    if c.dtype.kind not in "iu":
        if c.size == 0:
            return np.zeros(c.shape, dtype)
        raise TypeError(f"{name} must be unsigned integers, got {c.dtype}{hint}")
    if not (c.dtype == dtype and (bits == 8 * c.dtype.itemsize or not check)):
        check_codes(name, c, bits)
    return np.ascontiguousarray(c, dtype=dtype).reshape(c.shape)


def check_codes(name: str, codes: Array, bits: int) -> None:
    """Raise a ValueError if an integer is not a code of `bits` bits."""
    if codes.size == 0:
        return
    low, high = int(codes.min()), int(codes.max())
    if low < 0 or high >> bits:
        raise code_range_error(name, high if high >> bits else low, bits)


def code_range_error(name: str, code: int, bits: int) -> ValueError:
    """Return the error to raise for a code that has more than `bits` bits."""
    return ValueError(f"{name} must be from 0 to {(1 << bits) - 1}, got {code}")


# --- destination arrays -----------------------------------------------------------------------------------------------


def prepare_out(
    caller: str, out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any] | type[np.generic]
) -> Array:
    """Return `out` if it fits the result, or a new array for None.

    Raises
    ------
    ValueError
        If `out` does not fit, is not C-contiguous or cannot be written.
    """
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or hasattr(out, "filled") or isinstance(out, np.matrix):
        found = type(out).__name__
    elif out.shape != shape or out.dtype != dtype:
        found = f"{out.dtype} {out.shape}"
    elif not out.flags.c_contiguous:
        found = "one that is not contiguous"
    elif not out.flags.writeable:
        found = "a read-only one"
    else:
        return out
    raise ValueError(f"{caller}: out must be a C-contiguous {np.dtype(dtype)} array of shape {shape}, got {found}")


def copy_if_overlapping(values: Array, out: Array, *, in_place: bool = False) -> Array:
    """Return `values`, copied if they overlap `out` in memory.

    With `in_place`, values are not copied if `out` is exactly `values`, which suits loops that read each element before
    they write it.
    """
    if not np.may_share_memory(values, out):
        return values
    if in_place and (values.dtype, values.shape) == (out.dtype, out.shape) and _start(values) == _start(out):
        return values
    return values.copy()


def _start(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# --- shapes ----------------------------------------------------------------------------------------------------------


def as_matrix(a: Array) -> Array:
    """View a contiguous array as a matrix: leading axes become rows, and a vector becomes one row."""
    return a.reshape(matrix_shape(a.shape))


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of an array as a matrix: leading axes are rows, and a vector is one row."""
    *rows, columns = shape or (1,)
    return math.prod(rows), columns


def check_shape(caller: str, name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless an array has the given shape."""
    if array.shape != shape:
        raise ValueError(f"{caller}: {name} must have shape {shape}, got {array.shape}")


def check_matmul(caller: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise a ValueError unless a and b are the shapes of matrices [M, K] and [N, K]."""
    if len(a) != 2 or len(b) != 2:
        raise ValueError(f"{caller}: a and b must be matrices [M, K] and [N, K], got shapes {a} and {b}")
    if a[1] != b[1]:
        raise ValueError(
            f"{caller}: a [M, K] and b [N, K] must have the same K, got shapes {a} and {b}; b is not transposed"
        )


def repeat_tiles(a: Array, times: int, length: int, axis: int = -1) -> Array:
    """Repeat each value `times` times along an axis, and truncate the result to `length`.

    Examples
    --------
    >>> repeat_tiles(np.array([1, 2]), 3, 5).tolist(), repeat_tiles(np.array([7]), 1 << 60, 2).tolist()
    ([1, 1, 1, 2, 2], [7, 7])
    """
    tiled = np.repeat(a, min(times, max(length, 1)), axis)
    return tiled[(*[slice(None)] * (axis % a.ndim), slice(length))]
