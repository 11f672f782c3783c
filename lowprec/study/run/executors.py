"""Where runs are executed: single-threaded processes side by side, the calling process, or anyone's executor.

Several single-threaded processes finish more runs an hour than one process with several threads, and no result depends
on the choice. Processes are spawned, never forked: a forked child of a process with threads may hang.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

R = TypeVar("R")

#: Each worker runs on one thread; read by the libraries when they are imported.
SINGLE_THREAD = {
    name: "1"
    for name in (
        "LOWPREC_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
    )
}


class InlineExecutor(Executor):
    """Runs every call at once, in the calling thread: for tests and debuggers.

    Examples
    --------
    >>> InlineExecutor().submit(max, 1, 2).result()
    2
    """

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Call `fn` now and return its outcome as a finished future."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@contextmanager
def pool(jobs: int | None, scheduler: str | None = None) -> Iterator[Executor | None]:
    """Provide the executor of a command: a Dask cluster's, or None where every study makes workers of its own.

    Raises
    ------
    StudyError
        If the scheduler cannot be reached or Dask is missing.
    """
    if scheduler is None:
        yield None
        return
    from .cluster import cluster

    with cluster(scheduler) as executor:
        yield executor


@contextmanager
def workers(jobs: int | None) -> Iterator[Executor]:
    """Provide an executor with so many worker processes.

    Parameters
    ----------
    jobs : int or None
        Processes; None means one per core, 0 runs everything in the calling process.

    Raises
    ------
    ValueError
        If `jobs` is negative.
    """
    if jobs is None:
        jobs = cores()
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 0:
        raise ValueError(f"jobs must be a whole number of at least 0, not {jobs!r}")
    if jobs == 0:
        yield InlineExecutor()
        return
    import multiprocessing

    before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(SINGLE_THREAD)  # inherited by the children, which start lazily
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _begin_worker() -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """End this process when the parent is gone, even if it was killed: nobody would ever collect the result."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
