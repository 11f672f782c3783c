"""e**x, log and GELU in float32 as PyTorch's CPU kernels compute them: public source code determines every bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice, check_int
from .._values import Value, normalize_fields
from ..kernels import cpu_gelu
from ..kernels import cpu_math as kernels
from .exp2 import Exp2

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class CpuExp(Exp2):
    """Base class of e**x, by a vector function or, in the columns beyond the last whole vector, by a scalar function.

    The factors by which rows are rescaled are computed by glibc's ``expf``.

    Parameters
    ----------
    width : int
        Lanes of a vector; 1: all columns use the vector function.
    rest : {"exp", "expf"}
        Scalar function: C's ``exp`` in float64 with its result rounded to float32, or glibc's ``expf``, which is
        implemented for numbers that are not positive.

    Notes
    -----
    `relative_error` was found by trying all float32 numbers that are not positive. It holds for results of at least
    2^-125; smaller ones may be zero.
    """

    width: int = 16
    rest: Literal["exp", "expf"] = "exp"

    is_natural = True
    #: Number of the vector function in `kernels.exp_tile`.
    function: ClassVar[int]

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_int(type(self).__name__, "width", self.width, 1)
        check_choice(type(self).__name__, "rest", self.rest, ("exp", "expf"))

    @property
    def is_published(self) -> bool:
        """True, because the sources of the vector function and of glibc are public."""
        return True

    def __call__(self, x: Floats) -> Floats:
        """Return e**x of a tile [rows, keys]."""
        out = np.empty_like(x)
        kernels.exp_tile(x, self.function, self.width, out)
        if self.rest == "expf" and x.shape[1] % self.width:
            columns = np.s_[:, x.shape[1] // self.width * self.width :]
            out[columns] = self.factors(x[columns].ravel()).reshape(len(x), -1)
        return out

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both the lower and the upper bound."""
        out = self(x)
        return out, out

    def factors(self, growth: Floats) -> Floats:
        """Return glibc's expf of numbers that are not positive."""
        out = np.empty_like(growth)
        kernels.exp_scalars(growth, out)
        return out

    def factor_bounds(self, growth: Floats) -> tuple[Floats, Floats]:
        """Return the factors as both the lower and the upper bound."""
        out = self.factors(growth)
        return out, out

    def log(self, x: Floats) -> Floats:
        """Return glibc's logf of sums [M]."""
        out = np.empty_like(x)
        kernels.log_scalars(x, out)
        return out


@dataclass(frozen=True, eq=False, repr=False)
class TorchExp(CpuExp):
    """PyTorch's ``exp_u20``, in the columns of whole vectors; its largest relative error is 3.24 * 2^-23."""

    function = 0
    relative_error = 3.8621e-07


@dataclass(frozen=True, eq=False, repr=False)
class TorchFastExp(CpuExp):
    """PyTorch's ``fexp_u20`` for 16-bit types in the columns of whole vectors; it returns -0 for NaN.

    Examples
    --------
    >>> import numpy as np
    >>> TorchFastExp(1)(np.zeros((1, 1), np.float32))
    array([[0.9999466]], dtype=float32)
    """

    function = 1
    relative_error = 1.1246e-04


@dataclass(frozen=True, eq=False, repr=False)
class SleefExp(CpuExp):
    """SLEEF's ``expf_u10``, of 1 ulp, in the columns of whole vectors."""

    function = 2
    relative_error = 8.2671e-08


@dataclass(frozen=True, eq=False, repr=False)
class CpuGelu(Value):
    """GELU in float32, by erf or by the approximation with tanh.

    Parameters
    ----------
    function : {"aten", "glibc", "onednn", "onednn_ftz", "sleef_tanh", "glibc_tanh"}
        Source of erf or tanh: ATen's vector function, glibc, or oneDNN with AVX-512; "onednn_ftz" has zeros instead of
        subnormal results, as oneDNN in bfloat16 on CPUs with AVX512_BF16.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([0.5, -4], np.float32)
    >>> CpuGelu("glibc")(x) == CpuGelu("onednn")(x)
    array([ True, False])
    """

    function: str

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice("CpuGelu", "function", self.function, tuple(cpu_gelu.FUNCTIONS))

    def __str__(self) -> str:
        return self.function

    def __call__(self, x: Floats) -> Floats:
        """Return GELU of an array of any shape."""
        x = np.ascontiguousarray(x)
        out = np.empty_like(x)
        cpu_gelu.FUNCTIONS[self.function](x.reshape(-1), out.reshape(-1))
        return out
