"""The choice among kernels: by CPU, by name, by trial; the path of a product; and no rounding mode leaks."""

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_kernels import KERNELS as RUNNABLE
from floats import normal

import lowprec as lp
from lowprec import _threads
from lowprec.tensorcore.engines.float32_lanes import Float32Lanes
from lowprec.tensorcore.engines.selection import INSTRUCTION_SETS, kernel_in_use, passes_trial, plan_for

ROOT = Path(lp.__file__).parent.parent
HOPPER, E4M3 = lp.accumulators["hopper_fp8"], lp.formats["e4m3fn"]


def nearest_even() -> bool:
    """Tell whether float32 arithmetic of this thread rounds to nearest even, both ways from a tie."""
    one, tie = np.float32(1), np.float32(2.0**-24)
    odd = np.nextafter(one, np.float32(2))
    return bool(one + tie == one and odd + tie == np.nextafter(odd, np.float32(2)) and -one - tie == -one)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_trial_is_passed_by_every_kernel_and_failed_by_a_wrong_one(name: str) -> None:
    engine = Float32Lanes.find(HOPPER, E4M3, E4M3, name)
    assert engine is not None
    assert passes_trial(engine)
    assert nearest_even()
    form = engine.form

    def one_bit_off(*arguments: Any) -> Any:
        largest = form.run(*arguments)
        arguments[-1].view(np.uint32)[3, 5] ^= 1 << 10
        return largest

    assert not passes_trial(dataclasses.replace(engine, form=form._replace(run=one_bit_off)))


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("unit", ["hopper_fp8", "hopper_bf16", "blackwell_nvfp4", "hopper_fp8_mma"])
def test_every_engine_takes_the_named_kernel(unit: str, name: str) -> None:
    accumulator = lp.accumulators[unit]
    fmt = accumulator.default_format
    with lp.use_kernel(name):
        engine = plan_for(accumulator, fmt, fmt).engine
    assert engine is not None
    assert engine.machine == name
    with lp.use_kernel("reference"):
        assert plan_for(accumulator, fmt, fmt).engine is None


@pytest.mark.parametrize("name", RUNNABLE)
def test_chosen_by_name(name: str, keep_threads: None) -> None:
    """It gives the bits that others give, and leaves threads in the default rounding."""
    q = lp.quantize(normal(0, 512, 512), "e4m3fn 1x128")
    lp.set_num_threads(2)
    answers = set()
    for kernel in ("portable", name):
        with lp.use_kernel(kernel):
            answers.add(lp.gemm(q, q).tobytes())
    assert len(answers) == 1
    modes: list[bool] = []
    _threads.run_chunks(lambda start, stop: modes.append(nearest_even()), 64, 1)
    assert nearest_even()
    assert modes
    assert all(modes)


def path_of(call: Any) -> tuple[set[str], int]:
    """Files of lowprec that a call goes through, and how deep calls are nested in it."""
    root, files, depth, deepest = str(ROOT / "lowprec"), set(), 0, 0

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal depth, deepest
        if event == "call":
            depth += 1
            if frame.f_code.co_filename.startswith(root):
                files.add(frame.f_code.co_filename.removeprefix(root))
                deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    call()  # what is made once is made
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files, deepest


def test_the_path_of_a_product_is_short() -> None:
    x, w = (lp.quantize(normal(0, 64, 256), f"e4m3fn {granularity}") for granularity in ("1x128", "128x128"))
    files, depth = path_of(lambda: lp.gemm(x, w))
    assert len(files) <= 11, sorted(files)
    assert depth <= 11


def test_unknown_and_impossible_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"use_kernel: name must be one of auto, .*, got 'avx51'"):
        lp.use_kernel("avx51").__enter__()
    monkeypatch.setitem(INSTRUCTION_SETS, "sve", frozenset({"sve9"}))
    with pytest.raises(
        ValueError, match="use_kernel: name must be one of auto, reference here, got 'sve': this CPU lacks sve9"
    ):
        lp.use_kernel("sve").__enter__()
    assert kernel_in_use() == "auto"


def test_a_choice_holds_within_its_block_and_its_thread() -> None:
    """Blocks nest, and an error within one leaves nothing behind."""
    found: list[str] = []
    with lp.use_kernel("portable"):
        assert kernel_in_use() == "portable"
        with lp.use_kernel("reference"):
            assert kernel_in_use() == "reference"
            assert plan_for(HOPPER, E4M3, E4M3).engine is None
        with lp.use_kernel("auto"):
            engine = plan_for(HOPPER, E4M3, E4M3).engine
            assert engine is not None
            assert engine.machine == RUNNABLE[0]
        assert kernel_in_use() == "portable"
        other = threading.Thread(target=lambda: found.append(kernel_in_use()))
        other.start()
        other.join()
    with pytest.raises(KeyError, match="why not"), lp.use_kernel("portable"):
        raise KeyError("why not")
    assert [*found, kernel_in_use()] == ["auto", "auto"]


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "expression", "answer"), [
    *(({"LOWPREC_KERNEL": name}, "lowprec.tensorcore.engines.selection.kernel_in_use()", name)
      for name in ("portable", "auto", "reference")),
    ({"NUMBA_CPU_NAME": "generic"}, "sorted(lowprec._jit.cpu_features())", "[]"),
], ids=str)  # fmt: skip
def test_environment(environment: dict[str, str], expression: str, answer: str) -> None:
    """A kernel is chosen by a variable, and a narrower CPU gets what it has."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    code = f"import lowprec._jit, lowprec.tensorcore.engines.selection; print({expression})"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split() == [answer]
