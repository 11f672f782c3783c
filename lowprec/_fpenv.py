"""Floating-point environment of the calling thread, and canonical bits of NaN: what IEEE 754 leaves to the hardware.

The environment has IEEE defaults while lowprec computes; afterwards the caller's is restored.

A library built with ``-ffast-math``, or ``torch.set_flush_denormal(True)``, makes a thread flush subnormals to zero;
others change the rounding direction. Without this module, results would depend on the thread. Every public function
that computes is decorated with `with_default_fpenv`; the package's threads start in the standard environment
(`_threads`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

_ENVIRONMENT_BYTES = 512  # more than any C library's fenv_t
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl: to nearest, no flushing

# Names, not literals: the compiler would fold an operation on two literals.
_ONE, _LEAST, _HALF_ULP, _HALF_ULP_BELOW = 1.0, 5e-324, 2.0**-53, 2.0**-54


def has_default_fpenv() -> bool:
    """Return whether this thread keeps subnormals and rounds to nearest even; the check takes about 0.1 us.

    Examples
    --------
    >>> has_default_fpenv()
    True
    """
    return _LEAST * _ONE != 0.0 and _ONE + _HALF_ULP == _ONE and _ONE - _HALF_ULP_BELOW == _ONE


@functools.cache
def _environment() -> tuple[Callable[..., int], Callable[..., int]]:
    """Return C's fegetenv and fesetenv."""
    library = ctypes.CDLL(None)
    get, set_ = library.fegetenv, library.fesetenv
    get.argtypes = set_.argtypes = [ctypes.c_void_p]
    return get, set_


def set_default_fpenv() -> None:
    """Set the standard environment in this thread.

    Raises
    ------
    RuntimeError
        If the environment differs and the C library cannot change it.
    """
    if has_default_fpenv():
        return
    with contextlib.suppress(OSError, AttributeError):
        _environment()[1](_DEFAULT)
    if not has_default_fpenv():
        raise RuntimeError(
            "this thread flushes subnormals to zero or does not round to nearest, and its mode cannot be changed from "
            "here: set it back before calling lowprec"
        )


def with_default_fpenv(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to compute in the standard environment, and to restore the caller's.

    Examples
    --------
    >>> @with_default_fpenv
    ... def half(x):
    ...     return x / 2
    >>> half(5e-324)
    0.0
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if has_default_fpenv():
            return function(*args, **kwargs)
        callers = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
        with contextlib.suppress(OSError, AttributeError):  # `set_default_fpenv` raises a clearer error
            _environment()[0](callers)
        set_default_fpenv()
        try:
            return function(*args, **kwargs)
        finally:
            _environment()[1](callers)

    call.computes_in_standard_mode = True  # type: ignore[attr-defined]  # a test asks the public functions for it
    return call


def quiet_nan(x: NDArray[Any]) -> NDArray[Any]:
    """Replace every NaN in an array of floats by the positive quiet NaN, in place, and return the array.

    The NaN that an operation returns, and its sign, depend on the order of operands in machine code: on the CPU, on
    the compiler, and on whether an element is in a vector loop or its remainder.

    Examples
    --------
    >>> quiet_nan(np.array([-np.nan, -1.0], np.float32)).view(np.uint32).tolist() == [0x7FC00000, 0xBF800000]
    True
    """
    missing = np.isnan(x)
    if missing.any():
        x[missing] = np.nan
    return x
