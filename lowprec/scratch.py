"""Reusable memory for packed operands: fresh memory for every call would cost more in page faults than it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MAX_ASKED = 256


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[str, NDArray[np.uint8]] = {}
        self.asked: dict[tuple[str, int, DTypeLike], NDArray[Any]] = {}  # what the last calls returned, as it was


_buffers = _Buffers()


def scratch(name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return `size` uninitialised items on a 64-byte boundary, valid until this thread asks for `name` again.

    Examples
    --------
    >>> buffer = scratch("example", 5, np.float32)
    >>> buffer.shape, buffer.ctypes.data % 64
    ((5,), 0)
    """
    found = _buffers.asked.get((name, size, dtype))
    if found is not None:
        return found
    kind = np.dtype(dtype)
    needed = size * kind.itemsize
    aligned = _buffers.by_name.get(name)
    if aligned is None or aligned.size < needed:
        _buffers.asked.clear()  # nothing may hold on to the smaller one
        aligned = _buffers.by_name[name] = fresh(name, needed, np.uint8)
    if len(_buffers.asked) >= _MAX_ASKED:
        _buffers.asked.clear()
    found = _buffers.asked[name, size, dtype] = aligned[:needed].view(kind)
    return found


def forget() -> None:
    """Let go of this thread's buffers."""
    _buffers.asked.clear()
    _buffers.by_name.clear()


def fresh(name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return `size` uninitialised items on a 64-byte boundary that are the caller's to keep; `name` says what for."""
    kind = np.dtype(dtype)
    raw = np.empty(size * kind.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size * kind.itemsize].view(kind)


Allocate = Callable[[str, int, DTypeLike], NDArray[Any]]  # `scratch` or `fresh`
