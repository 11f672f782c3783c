"""Studies on a Dask cluster: a real one on this machine, whose worker is killed in the middle."""

import os
import signal
import threading
import time

import pytest
from contract import command
from fake_trainer import FAKE
from toys import SEARCH, make, results

from lowprec.study import run_study
from lowprec.study.run import executors
from lowprec.study.run.executors import cluster
from lowprec.study.run.store import StudyError

distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
pytestmark = pytest.mark.filterwarnings("default")  # Dask's own, of sockets that a killed worker left


def test_a_killed_worker_loses_nothing(tmp_path, monkeypatch):
    inline = run_study(make(tmp_path / "inline"), jobs=0)
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.02")
    planned = make(tmp_path / "dask")
    killed = []
    with cluster("local", connect_timeout=60.0) as executor:
        pids = list(executor._client.run(os.getpid).values())

        def kill_one():
            deadline = time.monotonic() + 600
            while time.monotonic() < deadline:
                if any(run["status"] == "running" for run, _ in results(planned.folder).values()):
                    os.kill(pids[0], signal.SIGKILL)
                    killed.append(pids[0])
                    return
                time.sleep(0.02)

        assassin = threading.Thread(target=kill_one)
        assassin.start()
        run_study(planned, executor=executor)
        assassin.join()
    assert killed
    assert results(planned.folder) == results(inline.folder)


def test_a_scheduler_that_cannot_be_reached_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("lowprec.study.run.backend.BACKEND", FAKE)
    monkeypatch.setattr(executors, "CONNECT_TIMEOUT", 0.3)
    nowhere = "tcp://127.0.0.1:9"
    result = command("ablate", "fp8_vs_bf16", "--quick", "--no-plot", "--scheduler", nowhere, "--out", tmp_path)
    assert result.exit_code == 2
    (message,) = result.stderr.strip().splitlines()
    assert message.startswith(f"error: scheduler '{nowhere}' cannot be reached")
    assert not list(tmp_path.iterdir())
    for nonsense in ("no address", "ftp://here"):
        with pytest.raises(StudyError, match="cannot be reached"), cluster(nonsense, connect_timeout=0.3):
            pass


def test_a_scheduler_without_workers_is_said_so():
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        pytest.raises(StudyError, match="has no workers; start one with `dask worker"),
        cluster(empty.scheduler_address, connect_timeout=0.5),
    ):
        pass
