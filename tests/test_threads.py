"""Work on threads ends with the same bits when there are fewer of them than asked for, or none but the caller's."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lowprec as lp
from lowprec import _threads

X = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)


@pytest.fixture
def wanted(keep_threads: None) -> bytes:
    lp.set_num_threads(1)
    return lp.encode(X, "e4m3fn").tobytes()


class Closed(ThreadPoolExecutor):
    """A pool that another caller shuts down after some submissions."""

    left = 0

    def submit(self, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            self.shutdown(wait=False)
        return super().submit(*args, **kwargs)


class Exhausted(ThreadPoolExecutor):
    """A pool whose threads cannot be started: what was submitted stays in its queue, until another call starts some."""

    def _adjust_thread_count(self) -> None:
        if threading.current_thread() is threading.main_thread() and self.refuse:
            self.refuse -= 1
            threading.Timer(0.0, super()._adjust_thread_count).start()
            raise RuntimeError("can't start new thread")
        super()._adjust_thread_count()

    refuse = 1


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_pool_that_is_shut_down_in_between(left: int, wanted: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Closed(3)
    pool.left = left
    monkeypatch.setattr(_threads, "_workers", lambda _: pool)
    lp.set_num_threads(4)
    assert lp.encode(X, "e4m3fn").tobytes() == wanted


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, keep_threads: None) -> None:
    """What was submitted may run later, on somebody's thread: the call waits for the pieces that it took."""
    for _ in range(5):
        pool = Exhausted(1)
        monkeypatch.setattr(_threads, "_workers", lambda _, pool=pool: pool)
        lp.set_num_threads(2)
        out = np.zeros(64, np.int64)

        def piece(a: int, b: int, out: np.ndarray = out) -> None:
            time.sleep(0.01)
            out[a:b] = 1

        _threads.run_chunks(piece, 64, 1)
        assert out.all()
        pool.shutdown()


def test_an_error_in_a_piece_ends_the_call_once(keep_threads: None) -> None:
    lp.set_num_threads(3)
    for wrong in range(6):

        def piece(a: int, b: int, wrong: int = wrong) -> None:
            if a <= wrong < b:
                raise KeyError(a)

        with pytest.raises(KeyError):
            _threads.run_chunks(piece, 6, 1)
    done = []
    _threads.run_chunks(lambda a, b: done.append(b - a), 100, 1)
    assert sum(done) == 100


def test_the_number_of_threads_changes_while_others_compute(wanted: bytes) -> None:
    lp.set_num_threads(2)
    found, errors, stop = set(), [], threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                found.add(lp.encode(X, "e4m3fn").tobytes())
        except RuntimeError as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1
    for i in range(100_000):
        if stop.is_set() or time.monotonic() > end:
            break
        lp.set_num_threads(2 + i % 2)
        lp.encode(X[:70_000], "e4m3fn")
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert found == {wanted}


AT_EXIT = """
import atexit, hashlib, threading
import numpy as np, lowprec as lp
x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
lp.set_num_threads(3)
if {before}:
    lp.encode(x, "e4m3fn")
say = lambda: print(hashlib.sha256(lp.encode(x, "e4m3fn").tobytes()).hexdigest())
if {thread}:
    wait = threading.Event()
    late = threading.Thread(target=lambda: (threading.main_thread().join(), say()))
    late.start()
else:
    atexit.register(say)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "thread"), [(False, False), (True, False), (True, True)])
def test_work_at_the_end_of_a_process(before: bool, thread: bool, wanted: bytes) -> None:
    import hashlib

    code = AT_EXIT.format(before=before, thread=thread)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == hashlib.sha256(wanted).hexdigest()
