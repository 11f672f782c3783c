"""Runs on the workers of a Dask scheduler (extra `cluster`): the same tasks, the same folders, the same bits.

Workers must see the study's folder under the same path and have the same lowprec; a worker with other code refuses its
runs. A run whose worker dies is given to another one and begins again: nothing but that run is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from .executors import SINGLE_THREAD, cores
from .store import StudyError

#: What `--scheduler` takes for a cluster of its own on this machine.
LOCAL = "local"
#: Seconds to wait for a scheduler's answer, and for its first worker.
PATIENCE = 10.0


@contextmanager
def cluster(address: str, *, patience: float | None = None) -> Iterator[Executor]:
    """Provide an executor on a Dask cluster.

    Parameters
    ----------
    address : str
        "tcp://host:8786" of a scheduler, or "local" for a cluster of one worker per core, which ends with the block.
    patience : float, optional
        Seconds to wait for an answer, `PATIENCE` by default.

    Raises
    ------
    StudyError
        If Dask is missing, the scheduler cannot be reached, or it has no workers.
    """
    if find_spec("distributed") is None:
        raise StudyError("--scheduler needs Dask: pip install 'lowprec[cluster]'")
    import distributed

    patience = PATIENCE if patience is None else patience
    before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(SINGLE_THREAD)  # inherited by the workers of a local cluster
    own: Any = None
    try:
        if address == LOCAL:
            own = distributed.LocalCluster(
                n_workers=cores(), threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=40
            )
        client = _connect(own or address, patience)
        try:
            _require_workers(client, address, patience)
            yield client.get_executor(pure=False)
        finally:
            client.close()
    finally:
        if own is not None:
            own.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _connect(target: Any, patience: float) -> Any:
    import distributed

    try:
        return distributed.Client(target, timeout=patience, set_as_default=False)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError; an address without sense is a ValueError
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise StudyError(
            f"scheduler {target!r} cannot be reached ({reason}); start one with `dask scheduler`, or pass "
            "--scheduler local"
        ) from None


def _require_workers(client: Any, address: str, patience: float) -> None:
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError:
        raise StudyError(
            f"scheduler {address!r} has no workers; start one with `dask worker {address} --nthreads 1`"
        ) from None
