"""Random float32 numbers, and the bits of floats."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """Return the bits of floats as unsigned integers."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def normal(rng: np.random.Generator | int, *shape: int) -> NDArray[np.float32]:
    """Float32 numbers of the normal distribution, of a generator or a seed."""
    return np.random.default_rng(rng).standard_normal(shape).astype(np.float32)
