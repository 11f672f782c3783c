"""tanh in float32 as attention kernels compute it to cap scores."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._values import Value

Floats = NDArray[np.float32]


class Tanh(Value):
    """Base class of functions that compute tanh of scores."""

    @property
    @abstractmethod
    def is_published(self) -> bool:
        """Whether the bits are known; if not, a substitute computes them."""

    @abstractmethod
    def __call__(self, x: Floats) -> Floats:
        """Return tanh of an array of any shape."""


@dataclass(frozen=True, eq=False, repr=False)
class RoundedTanh(Tanh):
    """tanh, computed in float64 and rounded to nearest even, in place of ``tanh.approx.f32``.

    Examples
    --------
    >>> import numpy as np
    >>> RoundedTanh()(np.array([0.5, -100.0], np.float32))
    array([ 0.46211717, -1.        ], dtype=float32)
    """

    @property
    def is_published(self) -> bool:
        """False, because the results of the hardware instruction are not published bit for bit."""
        return False

    def __call__(self, x: Floats) -> Floats:
        """Return tanh of an array of any shape."""
        found: Floats = np.tanh(x, dtype=np.float64).astype(np.float32)
        return found
