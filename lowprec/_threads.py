"""Threads and memory of large operations: chunks on a pool, rows of a product, reused buffers.

Kernels are serial loops that release the GIL; the threads are this module's, so that results never depend on their
number, forked children work, and BLAS threads do not compete for cores. Page faults of new memory for every call would
cost more than the operation itself, so each thread keeps its buffers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._checks import check_int
from ._fpenv import set_default_fpenv

_threads: int | None = None
_pool: ThreadPoolExecutor | None = None
_pool_owner: tuple[int, int] | None = None  # (process, threads) of `_pool`
_pool_lock = threading.Lock()
_inside = threading.local()  # .chunk is True while a thread runs a chunk


def get_num_threads() -> int:
    """Return the number of threads that large operations use.

    Returns
    -------
    int
        Last argument of `set_num_threads`, else LOWPREC_NUM_THREADS, else the number of cores this process may use.
    """
    global _threads
    if _threads is None:
        wanted = os.environ.get("LOWPREC_NUM_THREADS")
        if wanted is None:
            _threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        else:
            try:
                set_num_threads(int(wanted))
            except ValueError:
                raise ValueError(f"LOWPREC_NUM_THREADS must be an integer >= 1, got {wanted!r}") from None
    assert _threads is not None
    return _threads


def set_num_threads(n: int) -> None:
    """Set the number of threads that large operations use. Results do not depend on it.

    Parameters
    ----------
    n : int
        Number of threads, at least 1.

    Raises
    ------
    ValueError
        If `n` is not an integer >= 1.

    Examples
    --------
    >>> import lowprec as lp
    >>> before = lp.get_num_threads()
    >>> lp.set_num_threads(1)
    >>> lp.get_num_threads()
    1
    >>> lp.set_num_threads(before)
    """
    global _threads
    _threads = check_int("set_num_threads", "n", n, 1)


def _workers(n: int) -> ThreadPoolExecutor:
    """Return the shared pool, recreated after a fork or a change of the thread count."""
    global _pool, _pool_owner
    owner = (os.getpid(), n)
    with _pool_lock:
        if _pool is None or _pool_owner != owner:
            if _pool is not None and _pool_owner is not None and _pool_owner[0] == owner[0]:
                _pool.shutdown(wait=False)
            _pool, _pool_owner = (
                ThreadPoolExecutor(n, thread_name_prefix="lowprec", initializer=set_default_fpenv),
                owner,
            )
        return _pool


def run_chunks(function: Callable[[int, int], object], total: int, grain: int) -> None:
    """Call ``function(start, stop)`` over pieces that cover ``range(total)``, on the thread pool.

    Parameters
    ----------
    function : callable
        Function of one piece; pieces must write to disjoint memory, so that their order cannot matter.
    total : int
        Number of items.
    grain : int
        Granularity of the pieces: each starts at a multiple of this number of items. Up to this many items run serially
        in the caller.
    """
    n = get_num_threads()
    units = -(-total // grain)
    if n == 1 or units <= 1 or getattr(_inside, "chunk", False):  # nested pieces would wait for each other
        if total > 0:
            function(0, total)
        return
    pieces = min(units, n if units < 4 * n else 2 * n)
    edges = [min(total, units * i // pieces * grain) for i in range(pieces + 1)]
    queue = iter([(a, b) for a, b in itertools.pairwise(edges) if a < b])
    turn, done, taken = threading.Lock(), threading.Semaphore(0), 0

    def work() -> None:
        nonlocal taken
        _inside.chunk = True
        try:
            while True:
                with turn:
                    piece = next(queue, None)
                    taken += piece is not None
                if piece is None:
                    return
                try:
                    function(*piece)
                finally:
                    done.release()
        finally:
            _inside.chunk = False

    helpers: list[Future[None]] = []
    # A pool refuses work after another thread has set another number of threads or when the interpreter exits, and
    # starting a thread can fail. The caller works too (a thread that only waited would be woken late, and its core
    # taken by a worker meanwhile), so missing workers only cost time.
    with contextlib.suppress(RuntimeError):
        for _ in range(min(n, pieces) - 1):
            helpers.append(_workers(n - 1).submit(work))
    try:
        work()
    finally:
        with turn:
            queue = iter(())
        # Wait for all pieces, not only those of `helpers`: work whose thread did not start is left in the pool.
        for _ in range(taken):
            done.acquire()
        for helper in helpers:
            helper.result()


# --- rows of a product ------------------------------------------------------------------------------------------------

_QUAD = 4  # rows that a kernel processes together


def parallel_over_rows(work: Callable[[int, int], None], rows: int, per_row: int, worth: int, at_once: int) -> None:
    """Call ``work(first, stop)`` for parts of the rows of A until all are done.

    Rows are packed for a kernel in the memory of its thread (`scratch`), which `at_once` keeps small.

    Parameters
    ----------
    work : callable
        Function that computes some rows of the result.
    rows : int
        Number of rows.
    per_row : int
        Multiply-adds per row.
    worth : int
        Smallest number of multiply-adds that pays for a thread.
    at_once : int
        Largest number of rows of a part.
    """
    if 0 < rows <= at_once and rows * per_row <= worth:
        work(0, rows)
        return

    def piece(start: int, stop: int) -> None:
        for first in range(start, stop, at_once):
            work(first, min(first + at_once, stop))

    run_chunks(piece, rows, max(1, worth // max(per_row, 1) // _QUAD) * _QUAD)


# --- memory -----------------------------------------------------------------------------------------------------------

_MAX_ASKED = 256


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[str, NDArray[np.uint8]] = {}
        self.asked: dict[tuple[str, int, DTypeLike], NDArray[Any]] = {}  # results of the last calls


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
        _buffers.asked.clear()  # drops views of the smaller buffer
        aligned = _buffers.by_name[name] = aligned_empty(name, needed, np.uint8)
    if len(_buffers.asked) >= _MAX_ASKED:
        _buffers.asked.clear()
    found = _buffers.asked[name, size, dtype] = aligned[:needed].view(kind)
    return found


def release_scratch() -> None:
    """Free this thread's buffers."""
    _buffers.asked.clear()
    _buffers.by_name.clear()


def aligned_empty(name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return `size` uninitialised items on a 64-byte boundary, owned by the caller; `name` describes their use."""
    kind = np.dtype(dtype)
    raw = np.empty(size * kind.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size * kind.itemsize].view(kind)


Allocate = Callable[[str, int, DTypeLike], NDArray[Any]]  # `scratch` or `aligned_empty`


# Parameters of glibc's mallopt(3): memory freed at the top of the heap is kept; large arrays use the heap as well.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 1 << 25  # glibc refuses more


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees, so that the next step of a loop finds it without page faults.

    A training step allocates and frees the same arrays as the one before it. By default glibc returns their pages to
    the system and requests them again, zeroed, thousands per step. The process keeps its peak size; with
    ``LOWPREC_KEEP_MEMORY=0`` in the environment nothing is changed. The trainer calls it, not the import.

    Returns
    -------
    bool
        Whether the C library accepted the settings: glibc does, others have no such parameters.
    """
    if os.environ.get("LOWPREC_KEEP_MEMORY") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    options = {_TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 1 << 26, _MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD}
    return all([mallopt(option, value) == 1 for option, value in options.items()])
