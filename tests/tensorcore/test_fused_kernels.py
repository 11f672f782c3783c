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

import lowprec as lp
from lowprec import _jit, _threads
from lowprec.tensorcore.chains import chains_of
from lowprec.tensorcore.fused_kernels import FusedKernel, Limits, fused_kernels, self_test

ROOT = Path(lp.__file__).parent.parent
RUNNABLE = [name for name in fused_kernels if fused_kernels[name].features <= _jit.cpu_features()]


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
        unit = lp.accumulators["hopper_fp8"].with_(group=group, inputs=(), fraction_bits=fraction_bits, align=align)
        options = {"accumulator": unit, "a_format": fa, "b_format": fb}
        with lp.using(kernel="reference"):
            want = lp.mma(a, b, c, **options)
        for name in RUNNABLE:
            with lp.using(kernel=name):
                fast = chains_of(unit, fa, fb).kernel is not None
                got = lp.mma(a, b, c, **options)
            assert got.tobytes() == want.tobytes(), (name, fraction_bits)
            assert fast or (name, align) == ("portable", "floor")


def test_unknown_and_impossible_kernels(keep_kernel: None) -> None:
    with pytest.raises(ValueError, match=r"unknown fused kernel 'avx51'.*'avx512'"):
        lp.set_fused_kernel("avx51")
    impossible = FusedKernel("sve", frozenset({"sve9"}), Limits(), {})
    with fused_kernels.scoped(sve=impossible), pytest.raises(ValueError, match="fused kernel 'sve' needs sve9"):
        lp.set_fused_kernel("sve")
    with fused_kernels.scoped(sve=impossible), pytest.raises(ValueError, match="fused kernel 'sve' needs sve9"):
        lp.using(kernel="sve").__enter__()
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


@pytest.mark.parametrize("name", ["hopper_fp8", "hopper_bf16", "blackwell_nvfp4", "hopper_fp8_mma", "exact", "float32"])
def test_the_reference_gives_the_same_bits(name: str) -> None:
    """Specials too, whose rows and columns the fast kernels leave to it."""
    unit = lp.accumulators[name]
    rng = np.random.default_rng(7)
    fmt = lp.formats[unit.default_format]
    a, b = (rng.integers(0, fmt.max_code + 1, (rows, 128)).astype(fmt.code_dtype) for rows in (9, 33))
    a[rng.random(a.shape) < 0.9] &= fmt.max_code >> 2  # small ones, so that not all overflows
    if fmt.nan_code is not None:
        a[3, 7] = b[5, 100] = fmt.nan_code
    scales = {}
    if unit.scale_format is not None:
        codes = [np.full((rows, 128 // unit.scale_block), 0x38, np.uint8) for rows in (9, 33)]
        scales = {"a_scale": codes[0], "b_scale": codes[1]}
    options = {"accumulator": name, "a_format": fmt, "b_format": fmt, **scales}
    with lp.using(kernel="reference"):
        want = lp.mma(a, b, **options)
    assert lp.mma(a, b, **options).tobytes() == want.tobytes()
    assert np.isfinite(want).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "answer"), [("portable", "portable"), ("auto", RUNNABLE[0]), ("reference", "reference")]
)
def test_environment_variable(asked: str, answer: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LOWPREC_FUSED_KERNEL": asked}
    command = [sys.executable, "-c", "import lowprec as lp; print(lp.get_fused_kernel())"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split() == [answer]


@pytest.mark.slow
def test_a_narrower_cpu_gets_what_it_has() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CPU_NAME": "generic"}
    command = [sys.executable, "-c", "from lowprec._jit import cpu_features as f; print(sorted(f()))"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip() == "[]"
