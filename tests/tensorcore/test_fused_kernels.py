"""The choice among kernels that emulate tensor cores: by CPU, by name, by self-test; and no rounding mode leaks."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec import _jit, _threads
from lowprec.tensorcore import fused_kernels
from lowprec.tensorcore.fused_kernels import FusedKernel, self_test

ROOT = Path(lp.__file__).parent.parent
RUNNABLE = [
    name for name in fused_kernels.fused_kernels if fused_kernels.fused_kernels[name].features <= _jit.cpu_features()
]


@pytest.fixture
def keep_kernel() -> Iterator[None]:
    before = fused_kernels._chosen
    yield
    fused_kernels._chosen = before


def nearest_even() -> bool:
    """Tell whether float32 arithmetic of this thread rounds to nearest even, both ways from a tie."""
    one, tie = np.float32(1), np.float32(2.0**-24)
    odd = np.nextafter(one, np.float32(2))
    return bool(one + tie == one and odd + tie == np.nextafter(odd, np.float32(2)) and -one - tie == -one)


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_runnable_kernel_passes_its_self_test(name: str) -> None:
    assert self_test(fused_kernels.fused_kernels[name])
    assert nearest_even()


def test_a_kernel_that_is_wrong_fails_its_self_test() -> None:
    right = fused_kernels.fused_kernels["portable"]

    def one_bit_off(*arguments: object) -> None:
        right.run(*arguments)
        out = arguments[-3]
        assert isinstance(out, np.ndarray)
        out.view(np.uint32)[3, 5] ^= 1 << 10

    assert not self_test(dataclasses.replace(right, name="wrong", run=one_bit_off))


@pytest.mark.parametrize("name", RUNNABLE)
def test_chosen_by_name(name: str, keep_kernel: None) -> None:
    lp.set_fused_kernel(name)
    assert lp.get_fused_kernel() == name
    x = np.random.default_rng(0).standard_normal((40, 256), dtype=np.float32)
    q = lp.quantize(x, "e4m3fn")
    chosen = lp.gemm(q, q).tobytes()
    lp.set_fused_kernel("portable")
    assert chosen == lp.gemm(q, q).tobytes()
    assert nearest_even()


@pytest.mark.parametrize("name", RUNNABLE)
def test_threads_are_left_in_the_default_rounding(name: str, keep_threads: None, keep_kernel: None) -> None:
    lp.set_fused_kernel(name)
    lp.set_num_threads(2)
    x = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
    q = lp.quantize(x, "e4m3fn")
    lp.gemm(q, q)
    modes: list[bool] = []
    _threads.run_chunks(lambda start, stop: modes.append(nearest_even()), 64, 1)
    assert modes
    assert all(modes)


def test_unknown_and_impossible_kernels(keep_kernel: None) -> None:
    with pytest.raises(ValueError, match=r"unknown fused kernel 'avx51'.*'avx512'"):
        lp.set_fused_kernel("avx51")
    impossible = FusedKernel("sve", frozenset({"sve9"}), 32, 13, 64, 1.0, False, lambda: None)
    scoped = fused_kernels.fused_kernels.scoped(sve=impossible)
    with scoped, pytest.raises(ValueError, match="fused kernel 'sve' needs sve9"):
        lp.set_fused_kernel("sve")


@pytest.mark.parametrize(("asked", "answer"), [("portable", "portable"), ("auto", RUNNABLE[0])])
def test_environment_variable(asked: str, answer: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LOWPREC_FUSED_KERNEL": asked}
    command = [sys.executable, "-c", "import lowprec as lp; print(lp.get_fused_kernel())"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split() == [answer]


def test_a_narrower_cpu_gets_what_it_has() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CPU_NAME": "generic"}
    command = [sys.executable, "-c", "from lowprec._jit import cpu_features as f; print(sorted(f()))"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip() == "[]"
