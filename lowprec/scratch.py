"""Reusable memory: fresh memory for every call would cost more in page faults than it holds."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
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


# Parameters of glibc's mallopt(3): what is freed at the top of the heap stays; large arrays come from the heap, too.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 1 << 25  # glibc refuses more


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees, so that the next step of a loop finds it without page faults.

    A training step makes and frees the same arrays as the one before it. Without this, glibc hands their pages back to
    the system and gets them again, zeroed, thousands a step. The process stays as large as it once was; with
    ``LOWPREC_KEEP_MEMORY=0`` in the environment nothing is changed. Called by the trainer, not on import.

    Returns
    -------
    bool
        Whether the C library took it: glibc does, others have no such parameters.
    """
    if os.environ.get("LOWPREC_KEEP_MEMORY") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    options = {_TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 1 << 26, _MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD}
    return all([mallopt(option, value) == 1 for option, value in options.items()])
