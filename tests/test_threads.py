"""Work on threads ends with the same bits when there are fewer of them than asked for; their memory is used again."""

import functools
import hashlib
import itertools
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from public_calls import OF_VALUES, bits

import lowprec as lp
from lowprec import _threads
from lowprec._threads import aligned_empty, release_scratch, scratch

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
    done: list[int] = []
    _threads.run_chunks(lambda a, b: done.extend(range(a, b)), 100, 1)
    assert sorted(done) == list(range(100)), "the pool is as good as new"


@pytest.mark.slow
def test_the_number_of_threads_changes_while_others_compute(wanted: bytes) -> None:
    lp.set_num_threads(2)
    stop = threading.Event()

    def work() -> set[bytes]:
        found = {lp.encode(X, "e4m3fn").tobytes()}
        while not stop.is_set():
            found.add(lp.encode(X, "e4m3fn").tobytes())
        return found

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(work) for _ in range(2)]
        end = time.monotonic() + 1
        for i in itertools.count():
            lp.set_num_threads(2 + i % 2)
            lp.encode(X[:70_000], "e4m3fn")
            if time.monotonic() > end or any(other.done() for other in others):
                break
        stop.set()
        assert [other.result() for other in others] == [{wanted}] * 2


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
    code = AT_EXIT.format(before=before, thread=thread)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == hashlib.sha256(wanted).hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 5, 9, 64, 1000])
def test_chunks_cover_everything_once(threads: int, total: int, keep_threads: None) -> None:
    lp.set_num_threads(threads)
    seen = np.zeros(total, np.int64)

    def visit(start: int, stop: int) -> None:
        assert start % 8 == 0
        seen[start:stop] += 1

    _threads.run_chunks(visit, total, 8)
    assert (seen == 1).all()


def test_pieces_may_be_cut_again(keep_threads: None) -> None:
    lp.set_num_threads(3)
    seen = np.zeros((20, 20), np.int64)

    def count(row: int, start: int, stop: int) -> None:
        seen[row, start:stop] += 1

    def outer(start: int, stop: int) -> None:
        for row in range(start, stop):
            _threads.run_chunks(functools.partial(count, row), 20, 1)

    _threads.run_chunks(outer, 20, 1)
    assert (seen == 1).all()


#: Calls with enough work for several threads.
LARGE: dict[str, Callable[[np.ndarray], Any]] = {
    **{name: OF_VALUES[name] for name in (
        "encode", "round_to", "quantize", "quantize_dequantize", "quantize_with_transpose", "hadamard", "matmul_f32",
        "logfmt", "codec", "codec bf16")},
    **{f"quantize {block}": lambda x, block=block: lp.quantize(x, f"e4m3fn {block}").dequantize()
       for block in ("128x1", "128x128", "tensor")},
    **{f"{bits} bits": lambda x, fmt=fmt, bits=bits: lp.pack(lp.encode(x, fmt), bits)
       for fmt, bits in (("e2m1fn", 4), ("e3m2fn", 6), ("e5m6", 12), ("e4m3fn", 8))},
    "unpack": lambda x: lp.unpack(lp.encode(x, "e4m3fn").reshape(-1), 3, x.size * 8 // 3),
    "by chance": lambda x: lp.encode(x, "e4m3fn", rounding="stochastic", seed=11),
    "logfmt by chance": lambda x: lp.logfmt.encode(x, 7, rounding="stochastic", seed=3).to_bytes(),
    "logfmt falls back": lambda x: lp.logfmt.encode(x, 7, fallback="bf16", range_format="bf16").to_bytes(),
    "deepep": lambda x: lp.logfmt.encode(lp.round_to(x.reshape(-1, 512), "bfloat16"), variant="deepep").decode(),
    "column order": lambda x: lp.matmul_f32(np.asfortranarray(x), x[:64]),
    **{f"codec {name}": lambda x, name=name: lp.codecs[name].encode(x).to_bytes()
       for name in ("nvfp4", "logfmt10", "e5m6_1x128_ue8m0")},
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LARGE)
def test_threads_change_no_bit(name: str, keep_threads: None) -> None:
    x, found = X.reshape(-1, 128) / 4, set()
    for threads in (1, 2, 3):
        lp.set_num_threads(threads)
        found.add(bits(LARGE[name](x)))
    assert len(found) == 1


def product() -> bytes:
    lp.set_num_threads(2)
    x = np.random.default_rng(0).standard_normal((300, 256), dtype=np.float32)
    return lp.matmul_f32(x, x).tobytes()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, where another test has loaded it
def test_a_forked_child_makes_its_own_threads(keep_threads: None) -> None:
    expected = product()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(product).get(timeout=120) == expected


# --- memory that is used again ---------------------------------------------------------------------------------------


def held() -> int:
    return sum(buffer.size for buffer in _threads._buffers.by_name.values())


def test_the_same_memory_again_and_more_of_it_when_needed() -> None:
    release_scratch()
    small = scratch("test", 10, np.float32)
    assert scratch("test", 10, np.float32) is small
    assert scratch("test", 5, np.int64).ctypes.data == small.ctypes.data
    large = scratch("test", 1000, np.float32)
    again = scratch("test", 10, np.float32)
    assert large.ctypes.data == again.ctypes.data
    assert {large.ctypes.data % 64, aligned_empty("test", 3, np.int8).ctypes.data % 64} == {0}
    assert held() == 4000
    for size in range(1, 2000):
        assert scratch("test", size, np.uint8).size == size
    assert held() == 4000
    release_scratch()
    assert held() == 0


def test_a_training_loop_of_products_holds_what_its_largest_needs(keep_threads: None) -> None:
    lp.set_num_threads(1)
    rng = np.random.default_rng(1)
    shapes = [(96, 40, 256), (40, 96, 128), (33, 64, 512)]
    kinds = [("hopper_fp8", "e4m3fn", "1x128", "fp32"), ("blackwell_mxf8", "e4m3fn", "1x32", "ue8m0"),
             ("blackwell_mxf4", "e2m1fn", "1x32", "ue8m0")]  # fmt: skip
    pairs = []
    for (m, n, k), (machine, fmt, block, scale) in itertools.product(shapes, kinds):
        x, w = rng.standard_normal((m, k)), rng.standard_normal((n, k))
        pairs.append(
            (
                machine,
                *(lp.quantize(v, lp.Quantizer(format=fmt, granularity=block, scale_format=scale)) for v in (x, w)),
            )
        )
    release_scratch()
    after = []
    for _ in range(4):
        for machine, qa, qb in pairs:
            lp.gemm(qa, qb, accumulator=machine)
        after.append(held())
    assert after == after[:1] * 4
    assert 0 < after[0] < 8 << 20
