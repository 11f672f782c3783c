"""Which kernels emulate tensor cores: `using`, for a while and one thread, and `set_fused_kernel`, for the process.

All give the same bits. ``auto`` is the default: the fastest that this CPU has and that proves itself. The environment
variable LOWPREC_FUSED_KERNEL names another one for the whole process.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar

from .. import _jit
from ..registry import cached
from .fused_kernels import FusedKernel, fused_kernels, self_test

#: The slow kernels that define the bits: each kind's own, in integers where it has one.
REFERENCE = "reference"
AUTO = "auto"

_for_process: str | None = None
_for_context: ContextVar[str | None] = ContextVar("lowprec kernel", default=None)


@contextlib.contextmanager
def using(*, kernel: str) -> Iterator[None]:
    """Select, within a ``with`` block, the kernel that emulates tensor cores; the bits stay the same.

    It holds for what the block's own thread (or asyncio task) computes, on however many threads of lowprec's; other
    threads go on with theirs.

    Parameters
    ----------
    kernel : {"auto", "reference", "avx512", "fma", "portable"}
        ``auto`` takes the fastest that this CPU has and that passes its self-test. ``reference`` takes each
        accumulator's definition in integers, a hundred times slower: what the fast kernels are compared with.

    Raises
    ------
    ValueError
        If the name is unknown, or this CPU cannot run the kernel.

    Examples
    --------
    >>> import lowprec as lp
    >>> with lp.using(kernel="portable"):
    ...     lp.get_fused_kernel()
    'portable'
    """
    before = _for_context.set(_checked(kernel))
    try:
        yield
    finally:
        _for_context.reset(before)


def set_fused_kernel(name: str) -> None:
    """Select the kernel that emulates tensor cores for the whole process; the bits stay the same.

    Parameters
    ----------
    name : {"auto", "reference", "avx512", "fma", "portable"}
        As for `lowprec.using`, which goes before it where it is in force.

    Raises
    ------
    ValueError
        If the name is unknown, or this CPU cannot run the kernel.

    Examples
    --------
    >>> import lowprec as lp
    >>> lp.set_fused_kernel("portable")
    >>> lp.get_fused_kernel()
    'portable'
    >>> lp.set_fused_kernel("auto")
    """
    global _for_process
    _for_process = _checked(name)


def get_fused_kernel() -> str:
    """Return the name of the kernel in use."""
    return selected_name()


def selected_name() -> str:
    """Return the name of the kernel in use: a fused kernel's, or ``reference``."""
    name = _asked()
    return _fastest().name if name == AUTO else name


def selected_kernel() -> FusedKernel:
    """Return the fused kernel in use; where the reference is, the one that would be used otherwise."""
    name = _asked()
    return fused_kernels[name] if name in fused_kernels else _fastest()


def _asked() -> str:
    name = _for_context.get() or _for_process
    if name is None:
        set_fused_kernel(os.environ.get("LOWPREC_FUSED_KERNEL") or AUTO)
        return _asked()
    return name


def _checked(name: str) -> str:
    if name not in (AUTO, REFERENCE):
        missing = fused_kernels[name].features - _features()
        if missing:
            raise ValueError(f"fused kernel {name!r} needs {', '.join(sorted(missing))}, which this CPU lacks")
    return name


@functools.cache
def _features() -> frozenset[str]:
    """Return what the CPU has; to ask takes longer than a small product."""
    return frozenset(_jit.cpu_features())


@cached(None)
def _fastest() -> FusedKernel:
    features = _features()
    for name in fused_kernels:
        candidate = fused_kernels[name]
        if candidate.features <= features and (name == "portable" or self_test(candidate)):
            return candidate
    raise AssertionError("the portable kernel needs nothing")
