"""Reusable memory for packed operands: fresh memory for every call would cost more in page faults than it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[str, NDArray[np.uint8]] = {}


_buffers = _Buffers()


def scratch(name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return `size` uninitialised items on a 64-byte boundary, valid until this thread asks for `name` again.

    Examples
    --------
    >>> buffer = scratch("example", 5, np.float32)
    >>> buffer.shape, buffer.ctypes.data % 64
    ((5,), 0)
    """
    kind = np.dtype(dtype)
    needed = size * kind.itemsize
    aligned = _buffers.by_name.get(name)
    if aligned is None or aligned.size < needed:
        aligned = _buffers.by_name[name] = fresh(name, needed, np.uint8)
    return aligned[:needed].view(kind)


def fresh(name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return `size` uninitialised items on a 64-byte boundary that are the caller's to keep; `name` says what for."""
    kind = np.dtype(dtype)
    raw = np.empty(size * kind.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size * kind.itemsize].view(kind)


Allocate = Callable[[str, int, DTypeLike], NDArray[Any]]  # `scratch` or `fresh`
