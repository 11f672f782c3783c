"""Views of codes as arrays of ml_dtypes and torch, and the reverse, without copies.

Only the dtype changes, not the bits. torch is imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .format.catalogue import Format, formats
from .format.dtypes import dtype_of

_TORCH = {
    "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0fnu": "float8_e8m0fnu", "bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "int8": "int8",
}  # fmt: skip


def ml_dtype(fmt: str | Format) -> np.dtype[Any]:
    """Return the NumPy dtype of a format's codes.

    Parameters
    ----------
    fmt : str or Format
        Name in ``lowprec.formats``, or a format with the same codes.

    Returns
    -------
    numpy.dtype
        Dtype of ml_dtypes, or NumPy's float16, float32 or int8.

    Raises
    ------
    ValueError
        If neither NumPy nor ml_dtypes has such a dtype.

    Examples
    --------
    >>> ml_dtype("e5m2")
    dtype(float8_e5m2)
    """
    f = formats.get(fmt)
    if (found := dtype_of(f)) is None:
        known = ", ".join(name for name in formats if dtype_of(formats[name]) is not None)
        raise ValueError(f"ml_dtype: fmt must be one of {known}, which have a NumPy dtype, got {f}")
    return found


def to_ml_dtypes(codes: ArrayLike, fmt: str | Format) -> NDArray[Any]:
    """View codes as an array of ml_dtypes (or NumPy's float16, float32, int8).

    Parameters
    ----------
    codes : ndarray of the format's ``code_dtype``
        Bit patterns.
    fmt : str or Format
        Format of the codes.

    Returns
    -------
    ndarray
        View of the same memory.

    Raises
    ------
    ValueError
        If ml_dtypes lacks the format.
    TypeError
        If the codes have another dtype.

    Examples
    --------
    >>> import lowprec as lp
    >>> from lowprec.interop import from_ml_dtypes, to_ml_dtypes
    >>> x = to_ml_dtypes(lp.encode([1.0, 300.0], "e4m3fn"), "e4m3fn")
    >>> x.dtype.name, x.astype(float).tolist()
    ('float8_e4m3fn', [1.0, 288.0])
    >>> from_ml_dtypes(x)[0].tolist(), from_ml_dtypes(x)[1].name
    ([56, 121], 'e4m3fn')
    """
    f = formats.get(fmt)
    c = np.asarray(codes)
    if c.dtype != f.code_dtype:
        raise TypeError(f"codes of {f} must be {f.code_dtype}, got {c.dtype}")
    return c.view(ml_dtype(f))


def from_ml_dtypes(x: NDArray[Any]) -> tuple[NDArray[Any], Format]:
    """View an array of ml_dtypes as codes, and return their format.

    Parameters
    ----------
    x : ndarray
        Array of a dtype of ml_dtypes, or of float16, float32 or int8.

    Returns
    -------
    codes : ndarray of the format's ``code_dtype``, same shape
        View of the same memory.
    fmt : Format
        Format of the codes.

    Raises
    ------
    TypeError
        If `x` is not an array.
    ValueError
        If the catalogue has no format for the dtype.

    Examples
    --------
    >>> import ml_dtypes
    >>> codes, fmt = from_ml_dtypes(np.ones(2, ml_dtypes.bfloat16))
    >>> codes, fmt.name
    (array([16256, 16256], dtype=uint16), 'bfloat16')
    """
    if not isinstance(x, np.ndarray):
        raise TypeError(f"from_ml_dtypes: x must be an ndarray, got {type(x).__name__}")
    for name in formats:
        if dtype_of(formats[name]) == x.dtype:
            return x.view(formats[name].code_dtype), formats[name]
    known = ", ".join(found.name for name in formats if (found := dtype_of(formats[name])) is not None)
    raise ValueError(f"from_ml_dtypes: dtype must be that of {known}, got {x.dtype}")


def to_torch(codes: NDArray[Any], fmt: str | Format) -> Any:
    """View codes as a torch tensor.

    Parameters
    ----------
    codes : ndarray of the format's ``code_dtype``, writeable
        Bit patterns.
    fmt : str or Format
        Format of the codes.

    Returns
    -------
    torch.Tensor
        Tensor on the same memory.

    Raises
    ------
    ValueError
        If torch has no such dtype.
    TypeError
        If the codes have another dtype.
    ImportError
        If torch is missing.
    """
    torch = _torch()
    f = formats.get(fmt)
    dtype = next((dtype for name, dtype in _TORCH.items() if formats[name].same_codes(f)), None)
    if dtype is None:
        raise ValueError(f"to_torch: fmt must be one of {', '.join(_TORCH)}, which have a torch dtype, got {f}")
    c = np.asarray(codes)
    if c.dtype != f.code_dtype:
        raise TypeError(f"codes of {f} must be {f.code_dtype}, got {c.dtype}")
    return torch.from_numpy(c.view(f"int{8 * c.dtype.itemsize}")).view(getattr(torch, dtype))


def from_torch(x: Any) -> tuple[NDArray[Any], Format]:
    """View a torch tensor on the CPU as codes, and return their format.

    Parameters
    ----------
    x : torch.Tensor
        Tensor of a floating-point dtype of at most 32 bits, or int8.

    Returns
    -------
    codes : ndarray of the format's ``code_dtype``, same shape
        View of the same memory.
    fmt : Format
        Format of the codes.

    Raises
    ------
    TypeError
        If `x` is not a tensor.
    ValueError
        If the catalogue has no format for the dtype.
    ImportError
        If torch is missing.
    """
    torch = _torch()
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"from_torch: x must be a torch.Tensor, got {type(x).__name__}")
    for name, dtype in _TORCH.items():
        if x.dtype == getattr(torch, dtype):
            f = formats[name]
            words = getattr(torch, f"int{8 * f.code_dtype.itemsize}")
            return x.detach().view(words).numpy().view(f.code_dtype), f
    raise ValueError(f"from_torch: dtype must be one of {', '.join(_TORCH.values())}, got {x.dtype}")


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError("torch is not installed; pip install torch") from None
    return torch
