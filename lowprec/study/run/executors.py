"""Executors of runs: single-threaded processes on this machine, this process, a Dask cluster, or a custom executor.

Several single-threaded processes finish more runs per hour than one process with several threads; results do not
depend on the choice. Processes are spawned, not forked, because a forked child of a process with threads may hang.

Workers of a Dask scheduler (extra `cluster`) must see the study's folder under the same path and have the same version
of lowprec; a worker with other code refuses its runs. If a worker dies, another one restarts its run; other runs are
not affected.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from importlib.util import find_spec
from typing import Any, TypeVar

from ..._checks import check_int
from .store import StudyError

R = TypeVar("R")

#: Environment for one thread per worker; libraries read it when they are imported.
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
#: Value of `--scheduler` that starts a cluster on this computer.
LOCAL = "local"
#: Seconds to wait for a scheduler's answer, and for its first worker.
CONNECT_TIMEOUT = 10.0


class InlineExecutor(ThreadPoolExecutor):
    """Executor that runs calls one after another in a thread of this process; the calling thread can show progress.

    Calls see the context variables of their caller, such as those that `lowprec.use_kernel` and `numpy.errstate` set.

    Examples
    --------
    >>> with InlineExecutor() as pool:
    ...     pool.submit(max, 1, 2).result()
    2
    """

    def __init__(self) -> None:
        super().__init__(1)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Call `fn` when the previous calls have ended."""
        return super().submit(copy_context().run, functools.partial(fn, *args, **kwargs))


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Context manager: set `SINGLE_THREAD` in the environment of processes started within it."""
    before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(SINGLE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def workers(jobs: int | None) -> Iterator[Executor]:
    """Context manager: an executor with the given number of worker processes.

    Parameters
    ----------
    jobs : int or None
        Number of processes; None means one per core, 0 runs calls one after another in this process.

    Raises
    ------
    ValueError
        If `jobs` is negative.
    """
    jobs = cores() if jobs is None else check_int("", "jobs", jobs, 0)
    if jobs == 0:
        with InlineExecutor() as inline:
            yield inline
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with _single_threaded():  # children start lazily
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_worker)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    # Ctrl-C reaches the whole process group; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """End this process when its parent has ended, even if it was killed."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# --- a cluster -------------------------------------------------------------------------------------------------------


@contextmanager
def cluster(address: str, *, connect_timeout: float | None = None) -> Iterator[Executor]:
    """Context manager: an executor on a Dask cluster.

    Parameters
    ----------
    address : str
        "tcp://host:8786" of a scheduler, or "local" for a cluster of one worker per core, which ends with the block.
    connect_timeout : float, optional
        Seconds to wait for an answer, `CONNECT_TIMEOUT` by default.

    Raises
    ------
    StudyError
        If Dask is missing, or the scheduler cannot be reached or is without workers.
    """
    if find_spec("distributed") is None:
        raise StudyError("--scheduler needs Dask; pip install 'lowprec[cluster]'")
    import distributed

    connect_timeout = CONNECT_TIMEOUT if connect_timeout is None else connect_timeout
    with _single_threaded(), contextlib.ExitStack() as stack:
        target: Any = address
        if address == LOCAL:
            target = distributed.LocalCluster(
                n_workers=cores(), threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=40
            )
            stack.callback(target.close)
        client = _connect(target, connect_timeout)
        stack.callback(client.close)
        _require_workers(client, address, connect_timeout)
        yield client.get_executor(pure=False)


def _connect(target: Any, connect_timeout: float) -> Any:
    import distributed

    try:
        return distributed.Client(target, timeout=connect_timeout, set_as_default=False)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError; a malformed address is a ValueError
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise StudyError(
            f"scheduler {target!r} cannot be reached ({reason}); start one with `dask scheduler`, or pass "
            "--scheduler local"
        ) from None


def _require_workers(client: Any, address: str, connect_timeout: float) -> None:
    try:
        client.wait_for_workers(1, timeout=connect_timeout)
    except TimeoutError:
        raise StudyError(
            f"scheduler {address!r} has no workers; start one with `dask worker {address} --nthreads 1`"
        ) from None
