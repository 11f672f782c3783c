"""The caller's floating-point mode changes no bit, and is the caller's again afterwards."""

import ctypes
import functools
import inspect
import platform
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from public_calls import OF_VALUES, bits

import lowprec as lp
from lowprec import _fpenv, _threads

#: Bits of the x86 control and status register, beside the masks of exceptions, which are set as it is: flags, and what
#: changes results: subnormal operands are zero, the direction of rounding, subnormal results are zero.
FLAGS, CHANGES_RESULTS = range(6), (6, 13, 14, 15)
MXCSR_OFFSET = 28  # in glibc's fenv_t

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc", reason="sets the register by glibc's fesetenv"
)


@contextmanager
def mode(bit: int) -> Iterator[None]:
    """Set one bit of this thread's register for the length of a block."""
    get, set_ = _fpenv._environment()
    before = ctypes.create_string_buffer(512)
    get(before)
    changed = ctypes.create_string_buffer(before.raw, 512)
    (register,) = struct.unpack_from("<I", before.raw, MXCSR_OFFSET)
    struct.pack_into("<I", changed, MXCSR_OFFSET, register | 1 << bit)
    set_(changed)
    try:
        yield
    finally:
        set_(before)


def small(shape: tuple[int, ...]) -> np.ndarray:
    """Values whose products, and some of which themselves, are subnormal."""
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-140, -100, shape))).astype(np.float32)


X = small((16, 128))
CHANGED = X * np.float32(1 + 2**-12)
#: No functions of `lp` itself: they compute in the caller's mode.
UNGUARDED = {"all_reduce", "measure_errors", "tile_range", "kurtosis"}


@functools.cache
def operands() -> tuple[lp.Quantized, lp.Quantized]:
    return lp.quantize(small((64, 256)), "e4m3fn 1x128"), lp.quantize(small((48, 256)), "e4m3fn 128x128")


@functools.cache
def codes() -> np.ndarray:
    return lp.encode(np.random.default_rng(1).standard_normal((32, 64)), "e5m2")


@functools.cache
def tokens() -> np.ndarray:
    return lp.round_to(small((4, 512)), "bfloat16")


CALLS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(call, X) for name, call in OF_VALUES.items() if name not in UNGUARDED},
    "decode": lambda: lp.decode(np.arange(1 << 16, dtype=np.uint16), "bfloat16"),
    "requantize": lambda: operands()[0].requantize("128x1").dequantize(),
    "gemm": lambda: lp.gemm(*operands()),
    "exact": lambda: lp.gemm(*operands(), accumulator="exact"),
    "mma": lambda: lp.mma(codes(), codes(), accumulator="hopper_fp8", a_format="e5m2", b_format="e5m2"),
    "deepep": lambda: lp.logfmt.encode(tokens(), variant="deepep").decode(),
    "compare": lambda: lp.compare(X, CHANGED),
    "train": lambda: lp.train("nano", "bf16", steps=1, evaluate=False).metrics["loss"].to_numpy(),
}


@pytest.mark.sampled(4, default=60)
@pytest.mark.parametrize("bit", [*FLAGS, *CHANGES_RESULTS])
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_the_same_in_every_mode(name: str, bit: int) -> None:
    if name == "train" and bit not in (6, 15):
        pytest.skip("one step in every mode would take a minute")
    expected = bits(CALLS[name]())
    with mode(bit):
        standard = _fpenv.has_default_fpenv()
        got = bits(CALLS[name]())
        assert _fpenv.has_default_fpenv() == standard == (bit in FLAGS), "the caller's mode is as it was"
    assert got == expected


def test_the_calls_above_would_notice() -> None:
    """The inputs hold what the modes change: without the guard, each of them gives other bits."""
    plain = X * np.float32(0.75)
    for bit in CHANGES_RESULTS:
        with mode(bit):
            changed = X * np.float32(0.75)
        assert changed.tobytes() != plain.tobytes(), bit


def test_our_threads_start_in_the_standard_mode(keep_threads: None) -> None:
    lp.set_num_threads(3)
    caller, modes = threading.get_ident(), []
    all_three = threading.Barrier(3)  # nobody takes a second piece while another thread has none

    def piece(start: int, stop: int) -> None:
        all_three.wait(timeout=120)
        modes.append((threading.get_ident() == caller, _fpenv.has_default_fpenv()))

    with mode(15):
        _threads._pool_owner = None  # so that the pool is made here, by a thread that flushes
        _threads.run_chunks(piece, 64, 1)
    assert sorted(modes) == [(False, True)] * 4 + [(True, False)] * 2, "the caller's own pieces alone are in its mode"


def test_every_public_function_that_computes_is_guarded() -> None:
    functions = {name: getattr(lp, name) for name in lp.__all__ if inspect.isfunction(getattr(lp, name))}
    assert {name for name, call in functions.items() if not getattr(call, "computes_in_standard_mode", False)} == {
        "get_num_threads", "set_num_threads", "use_kernel", "pack", "unpack",
    }  # fmt: skip
