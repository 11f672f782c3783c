"""Special functions of NVIDIA Hopper's MUFU unit, bit for bit.

NVIDIA has not published how the unit computes. The tables are those that give the results of an H200 for all 2^32
inputs of six functions; `reference_data/capture` has the digests of the results. The scheme is that of S. Oberman and
M. Siu, "A high-performance area-efficient multifunction interpolator" (ARITH 2005): quadratic polynomials whose
coefficients have 26, 17 and 10 bits, but for tanh. Results of other GPUs have not been recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice
from .._values import Value, normalize_fields
from ..kernels import attn
from ..kernels import mufu as kernels
from .exp2 import Exp2, RoundedExp2
from .reciprocal import Reciprocal, RoundedReciprocal, flushed
from .tanh import Tanh

Floats = NDArray[np.float32]
#: Rounding constants, in units of 2^-17 of the last place, which every C0 of a function includes.
_BIAS = {"ex2": 24456, "lg2": 6696, "rcp": 8092, "rsqrt": 32766, "sqrt": 32766, "tanh": 0}
_KERNELS: dict[str, Callable[..., None]] = {
    "ex2": kernels.ex2, "lg2": kernels.lg2, "rcp": kernels.rcp, "rsqrt": kernels.rsqrt, "sqrt": kernels.sqrt,
    "tanh": kernels.tanh,
}  # fmt: skip


@functools.cache
def _table(function: str) -> NDArray[np.int64]:
    """Return C0, C1 and C2 of each segment, in units of 2^-17, 2^-17 and 2^-15 of the last place."""
    lines = Path(__file__).with_name("mufu.csv").read_text().splitlines()
    rows = (line.split(",") for line in lines)
    table = np.array([row[1:] for row in rows if row[0] == function], np.int64)
    table[:, 0] = (table[:, 0] << 15) + _BIAS[function]
    return table


@dataclass(frozen=True, eq=False, repr=False)
class MufuFunction(Value):
    """Special function of Hopper's MUFU unit.

    Parameters
    ----------
    function : {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh"}
        PTX instruction, as ``ex2.approx.ftz.f32``.
    flush : bool
        Whether subnormal numbers and results count as zero. If not, as in ``rsqrt.approx.f32``, subnormal x of "lg2",
        "rsqrt" and "sqrt" are multiplied by 2^24 first, and x < -126 of "ex2" by 1/2, which the result makes up for.
        The instruction for "tanh" keeps them in either case.

    Examples
    --------
    >>> MufuFunction("rsqrt")(np.array([0.25, 3.0], np.float32))
    array([2.        , 0.57735026], dtype=float32)
    """

    function: Literal["ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh"]
    flush: bool = True

    is_published = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice("MufuFunction", "function", self.function, tuple(_KERNELS))
        if not self.flush and self.function == "rcp":
            raise ValueError("MufuFunction: flush must be True for 'rcp', got False")

    def __call__(self, x: Floats) -> Floats:
        """Return the function of an array of any shape."""
        scaled = x < np.float32(-126) if self.function == "ex2" else np.abs(x) < np.float32(2.0**-126)
        if self.flush or self.function == "tanh" or not scaled.any():
            return self._of(x)
        y = self._of(np.where(scaled, x * np.float32(0.5 if self.function == "ex2" else 2.0**24), x))
        unscaled = {
            "ex2": y * y, "lg2": y - np.float32(24), "rsqrt": y * np.float32(2.0**12), "sqrt": y * np.float32(2.0**-12),
        }  # fmt: skip
        return np.where(scaled, unscaled[self.function], y)

    def _of(self, x: Floats) -> Floats:
        words = np.ascontiguousarray(x, np.float32).view(np.uint32)
        out = np.empty_like(words)
        _KERNELS[self.function](words.reshape(-1), _table(self.function), kernels.SQUARES, out.reshape(-1))
        return out.view(np.float32)

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds, because its bits are known."""
        out = self(x)
        return out, out


@dataclass(frozen=True, eq=False, repr=False)
class CudaFunction(Value):
    """Function of CUDA's library on Hopper, as nvcc 13.0 compiles it without ``--use_fast_math``.

    Parameters
    ----------
    function : {"exp", "log", "log2"}
        ``expf``, which is ``ex2.approx.ftz.f32`` of the fraction of x log2(e), ``logf`` or ``log2f``.

    Examples
    --------
    >>> CudaFunction("exp")(np.array([1.0, -104.0], np.float32))
    array([2.7182817, 0.       ], dtype=float32)
    """

    function: Literal["exp", "log", "log2"]

    is_published = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice("CudaFunction", "function", self.function, ("exp", "log", "log2"))

    def __call__(self, x: Floats) -> Floats:
        """Return the function of an array of any shape."""
        x = np.ascontiguousarray(x, np.float32)
        if self.function == "log2":
            return _log2f(x.reshape(-1)).reshape(x.shape)
        out, scales = np.empty_like(x), np.empty_like(x)
        if self.function == "log":
            kernels.logf(x.reshape(-1), out.reshape(-1))
            return out
        kernels.reduce_expf(x.reshape(-1), out.reshape(-1), scales.reshape(-1))
        return _EX2(out) * scales

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds, because its bits are known."""
        out = self(x)
        return out, out


_LOG2F = tuple(
    map(np.float32, (0.09702014178037643, -0.16845393180847168, 0.17168870568275452, -0.17900948226451874,
                     0.20512372255325317, -0.24046532809734344, 0.28857114911079407, -0.36067417263984680,
                     0.48089820146560669, -0.72134751081466675))
)  # fmt: skip


def _log2f(x: Floats) -> Floats:
    """Return log2 of a one-dimensional array as CUDA's log2f: a polynomial of f, for x = (1 + f) 2^exponent."""
    small = np.abs(x) < np.float32(2.0**-126)
    words = np.where(small, np.where(small, x, 0) * np.float32(2.0**23), x).view(np.int32)
    exponent = words - np.int32(0x3F3504F3) >> 23  # of 1 + f from sqrt(1/2) to sqrt(2)
    f = (words - (exponent << 23)).view(np.float32) - np.float32(1)

    def multiply_add(a: Floats, b: Floats, c: Floats | np.float32) -> Floats:
        out = np.empty_like(a)
        attn.multiply_add(a, b, np.full_like(a, c), True, out)
        return out

    y = np.full_like(f, _LOG2F[0])
    for coefficient in _LOG2F[1:]:
        y = multiply_add(y, f, coefficient)
    log = multiply_add(f, np.full_like(f, 1.4426950216293335), f * (f * y))
    log += (exponent - np.int32(23) * small).astype(np.float32)
    special = np.where(x == 0, np.float32(-np.inf), np.where(x == np.inf, x, np.float32(np.nan)))
    return np.where((x > 0) & (x < np.inf), log, special)


_EX2, _LG2, _RCP, _TANH = MufuFunction("ex2"), MufuFunction("lg2"), MufuFunction("rcp"), MufuFunction("tanh")


@dataclass(frozen=True, eq=False, repr=False)
class MufuExp2(Exp2):
    """2**x of ``ex2.approx.ftz.f32``, and log2, on Hopper.

    Parameters
    ----------
    library_log2 : bool
        Whether log2 is ``log2f`` of CUDA's library, in place of ``lg2.approx.ftz.f32``.

    Examples
    --------
    >>> MufuExp2()(np.array([[0.5, -126.5]], np.float32))
    array([[1.4142135, 0.       ]], dtype=float32)
    """

    library_log2: bool = False

    def __post_init__(self) -> None:
        normalize_fields(self)

    @property
    def is_published(self) -> bool:
        """True, because the results of all inputs are known."""
        return True

    @property
    def relative_error(self) -> float:
        """Bound that the documentation of the instruction implies."""
        return RoundedExp2().relative_error

    def __call__(self, x: Floats) -> Floats:
        """Return 2**x of an array of any shape."""
        return _EX2(x)

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds."""
        return _EX2.bounds(x)

    def log2(self, x: Floats) -> Floats:
        """Return log2 of sums [M]."""
        return CudaFunction("log2")(x) if self.library_log2 else _LG2(x)


@dataclass(frozen=True, eq=False, repr=False)
class MufuReciprocal(Reciprocal):
    """1/x of ``rcp.approx.ftz.f32`` on Hopper.

    Examples
    --------
    >>> MufuReciprocal()(np.array([3.0], np.float32))
    array([0.33333334], dtype=float32)
    """

    @property
    def is_published(self) -> bool:
        """True, because the results of all inputs are known."""
        return True

    def __call__(self, x: Floats) -> Floats:
        """Return 1/x of an array of any shape."""
        return _RCP(x)

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds."""
        return _RCP.bounds(x)

    @property
    def relative_error(self) -> float:
        """Bound that the documentation of the instruction implies."""
        return RoundedReciprocal(1).relative_error


@dataclass(frozen=True, eq=False, repr=False)
class MufuQuotient(MufuReciprocal):
    """Quotient of a factor and a sum by ``div.full.ftz.f32`` on Hopper: (a s) rcp(b s), s = 1/4 for b above 2^126.

    Parameters
    ----------
    flush : bool
        Whether subnormal operands and results count as zero. If not, as in ``div.full.f32``, s = 2^24 for subnormal b.

    Examples
    --------
    >>> x = np.array([3.0, 2.0**127], np.float32)
    >>> MufuQuotient().divide(np.float32(5), x), MufuReciprocal().divide(np.float32(5), x)
    (array([1.6666667e+00, 2.9387359e-38], dtype=float32), array([1.6666667, 0.       ], dtype=float32))
    """

    flush: bool = True

    def __post_init__(self) -> None:
        normalize_fields(self)

    def divide(self, factor: Floats | np.float32, x: Floats) -> Floats:
        """Return factor / x."""
        scales = np.where(np.abs(x) > np.float32(2.0**126), np.float32(0.25), np.float32(1))
        if self.flush:
            return flushed(flushed(factor * scales) * _RCP(x * scales))
        scales = np.where(np.abs(x) < np.float32(2.0**-126), np.float32(2.0**24), scales)
        return factor * scales * _RCP(x * scales)

    def divide_bounds(self, factor: Floats | np.float32, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds."""
        found = self.divide(factor, x)
        return found, found


@dataclass(frozen=True, eq=False, repr=False)
class MufuTanh(Tanh):
    """tanh of ``tanh.approx.f32`` on Hopper.

    Examples
    --------
    >>> MufuTanh()(np.array([0.5, -100.0], np.float32))
    array([ 0.4621148, -1.       ], dtype=float32)
    """

    @property
    def is_published(self) -> bool:
        """True, because the results of all inputs are known."""
        return True

    def __call__(self, x: Floats) -> Floats:
        """Return tanh of an array of any shape."""
        return _TANH(x)
