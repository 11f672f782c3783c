"""Functions with the same float32 results, bit for bit, on every computer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice
from .._values import Value, normalize_fields
from ..kernels.portable import FUNCTIONS

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class RoundedFunction(Value):
    """Function that is computed in float64 by IEEE operations alone, and rounded once to float32.

    Results are correctly rounded, unless the exact value is within a few units in the last place of float64 of the
    middle between two float32 numbers.

    Parameters
    ----------
    function : {"exp", "log", "sin", "cos", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "rsqrt"}
        The function; "gelu_tanh" is the approximation of GELU by tanh.

    Examples
    --------
    >>> RoundedFunction("cos")(np.array([0.0, 1e30], np.float32))
    array([ 1.       , -0.6116048], dtype=float32)
    """

    function: str

    is_published = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_choice("RoundedFunction", "function", self.function, tuple(FUNCTIONS))

    def __call__(self, x: Floats) -> Floats:
        """Return the function of an array of any shape."""
        x = np.ascontiguousarray(x)
        out = np.empty_like(x)
        FUNCTIONS[self.function](x.reshape(-1), out.reshape(-1))
        return out

    def bounds(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the result as both bounds, because its bits are known."""
        out = self(x)
        return out, out
