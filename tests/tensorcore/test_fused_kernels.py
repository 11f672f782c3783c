"""The choice among kernels that emulate tensor cores: by CPU, by name, by self-test; and no rounding mode leaks."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_kernels import KERNELS as RUNNABLE
from fast_kernels import agree
from gemms import normal

import lowprec as lp
from lowprec import _threads
from lowprec.tensorcore.chains import chains_of
from lowprec.tensorcore.fused_kernels import FusedKernel, Limits, fused_kernels, self_test

ROOT = Path(lp.__file__).parent.parent


@pytest.fixture
def keep_kernel() -> Iterator[None]:
    yield
    lp.set_fused_kernel("auto")


def nearest_even() -> bool:
    """Tell whether float32 arithmetic of this thread rounds to nearest even, both ways from a tie."""
    one, tie = np.float32(1), np.float32(2.0**-24)
    odd = np.nextafter(one, np.float32(2))
    return bool(one + tie == one and odd + tie == np.nextafter(odd, np.float32(2)) and -one - tie == -one)


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_runnable_kernel_passes_its_self_test(name: str) -> None:
    assert self_test(fused_kernels[name])
    assert nearest_even()


def test_a_kernel_that_is_wrong_fails_its_self_test() -> None:
    right = fused_kernels["portable"]
    form = right.forms["truncate"]

    def one_bit_off(*arguments: object) -> None:
        form.run(*arguments)
        out = arguments[-1]
        assert isinstance(out, np.ndarray)
        out.view(np.uint32)[3, 5] ^= 1 << 10

    assert not self_test(dataclasses.replace(right, name="wrong", forms={"truncate": form._replace(run=one_bit_off)}))


@pytest.mark.parametrize("name", RUNNABLE)
def test_chosen_by_name(name: str, keep_threads: None, keep_kernel: None) -> None:
    """It gives the bits that others give, and leaves threads in the default rounding."""
    q = lp.quantize(normal(0, 512, 512), "e4m3fn")
    lp.set_num_threads(2)
    answers = set()
    for kernel in ("portable", name):
        lp.set_fused_kernel(kernel)
        assert lp.get_fused_kernel() == kernel
        answers.add(lp.gemm(q, q).tobytes())
    assert len(answers) == 1
    modes: list[bool] = []
    _threads.run_chunks(lambda start, stop: modes.append(nearest_even()), 64, 1)
    assert nearest_even()
    assert modes
    assert all(modes)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("align", ["truncate", "floor", "nearest"])
@pytest.mark.parametrize("operands", [("e4m3fn", "e5m2"), ("e4m3fn", "e4m3fn"), ("e2m1fn", "e3m2fn")])
@pytest.mark.parametrize("group", [32, 16, 12])
def test_every_alignment_in_float32_lanes(group: int, operands: tuple[str, str], align: Any) -> None:
    """All codes, zeros of both signs, a row and a column of nothing else, and C of any exponent that is usual."""
    fa, fb = (lp.formats[name] for name in operands)
    rng = np.random.default_rng(group)
    a, b = (
        (rng.integers(0, f.max_code + 1, (rows, 77)) | rng.integers(0, 2, (rows, 77)) * f.sign_mask).astype(np.uint8)
        for f, rows in ((fa, 9), (fb, 70))
    )
    a[rng.random(a.shape) < 0.3] &= fa.sign_mask
    a[0] &= fa.sign_mask
    b[3] &= fb.sign_mask
    c = np.ldexp(rng.uniform(1, 2, (9, 70)) * rng.choice([-1, 1], (9, 70)), rng.integers(-95, 30, (9, 70)))
    c = c.astype(np.float32)
    c[1] = 0
    for fraction_bits in (5, 13):
        unit = lp.accumulators["hopper_fp8"].with_(
            group=group, input_formats=(), fraction_bits=fraction_bits, align=align
        )
        agree(lambda unit=unit: lp.mma(a, b, c, accumulator=unit, a_format=fa, b_format=fb), fraction_bits)
        for name in RUNNABLE:
            with lp.using(kernel=name):
                assert chains_of(unit, fa, fb).kernel is not None or (name, align) == ("portable", "floor")


def test_unknown_and_impossible_kernels(keep_kernel: None) -> None:
    with pytest.raises(ValueError, match=r"unknown fused kernel 'avx51'.*'avx512'"):
        lp.set_fused_kernel("avx51")
    impossible = FusedKernel("sve", frozenset({"sve9"}), Limits(), {})
    for choose in (lp.set_fused_kernel, lambda name: lp.using(kernel=name).__enter__()):
        with fused_kernels.scoped(sve=impossible), pytest.raises(ValueError, match="fused kernel 'sve' needs sve9"):
            choose("sve")
    assert lp.get_fused_kernel() == RUNNABLE[0]


def test_using_holds_within_its_block() -> None:
    """Blocks nest, and an error within one leaves nothing behind."""
    before = lp.get_fused_kernel()
    with lp.using(kernel="portable"):
        assert lp.get_fused_kernel() == "portable"
        with lp.using(kernel="reference"):
            assert lp.get_fused_kernel() == "reference"
        with lp.using(kernel="auto"):
            assert lp.get_fused_kernel() == RUNNABLE[0]
        assert lp.get_fused_kernel() == "portable"
    assert lp.get_fused_kernel() == before
    with pytest.raises(KeyError, match="why not"), lp.using(kernel="portable"):
        raise KeyError("why not")
    assert lp.get_fused_kernel() == before


def test_using_goes_before_the_process_and_stays_in_its_thread(keep_kernel: None) -> None:
    lp.set_fused_kernel("portable")
    found: list[str] = []
    with lp.using(kernel="reference"):
        lp.set_fused_kernel("auto")
        assert lp.get_fused_kernel() == "reference"
        other = threading.Thread(target=lambda: found.append(lp.get_fused_kernel()))
        other.start()
        other.join()
    assert found == [RUNNABLE[0]]


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "expression", "answer"), [
    *(({"LOWPREC_FUSED_KERNEL": asked}, "lowprec.get_fused_kernel()", answer)
      for asked, answer in (("portable", "portable"), ("auto", RUNNABLE[0]), ("reference", "reference"))),
    ({"NUMBA_CPU_NAME": "generic"}, "sorted(lowprec._jit.cpu_features())", "[]"),
], ids=str)  # fmt: skip
def test_environment(environment: dict[str, str], expression: str, answer: str) -> None:
    """A kernel is chosen by a variable, and a narrower CPU gets what it has."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", f"import lowprec._jit; print({expression})"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split() == [answer]
