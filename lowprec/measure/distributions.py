"""Distributions of values to be rounded, by name: smooth and heavy-tailed densities, and models of activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.registry import Registry

Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]
_INNER = 256  # hidden width of the expert that computes the outputs


@dataclass(frozen=True)
class Distribution:
    """A distribution of matrices.

    Attributes
    ----------
    name : str
        Name in the catalogue.
    draw : callable
        Function that draws values: ``draw(rng, (rows, columns))``.
    description : str
        Description of the distribution.
    """

    name: str
    draw: Draw
    description: str

    def values(self, shape: tuple[int, int], seed: int = 0) -> NDArray[np.float32]:
        """Return values [rows, columns] in float32, determined by the seed and the shape.

        Examples
        --------
        >>> distributions["gauss"].values((2, 2), seed=1).shape
        (2, 2)
        """
        return np.ascontiguousarray(self.draw(np.random.default_rng(seed), shape), dtype=np.float32)


def _swiglu(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
    gate, up = rng.standard_normal(shape), rng.standard_normal(shape)
    product: NDArray[Any] = gate / (1 + np.exp(-gate)) * up
    return product


def _expert(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
    """Return down-projections of a SwiGLU, with tokens of different scale; not rounded to bfloat16."""
    from lowprec.tensorcore.matmul import matmul_f32

    hidden = _swiglu(rng, (shape[0], _INNER)) * np.exp(rng.standard_normal((shape[0], 1)) / 2)
    weights = rng.standard_normal((shape[1], _INNER)) / np.sqrt(_INNER)
    return matmul_f32(hidden.astype(np.float32), weights.astype(np.float32))


def _outlier(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
    x = rng.standard_normal(shape)
    x[:, ::128] *= 50
    return x


def _zeros(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
    return rng.standard_normal(shape) * (rng.random(shape) >= 0.1)


def _lognormal(sigma: float) -> Draw:
    return lambda rng, shape: np.exp(sigma * rng.standard_normal(shape)) * rng.choice((-1.0, 1.0), shape)


distributions: Registry[Distribution] = Registry("distribution", Distribution)
"""Distributions by name."""

for _entry in (
    Distribution("gauss", lambda rng, shape: rng.standard_normal(shape), "standard normal"),
    Distribution("laplace", lambda rng, shape: rng.laplace(size=shape), "exponential tails"),
    Distribution("t5", lambda rng, shape: rng.standard_t(5, shape), "Student's t, 5 degrees of freedom"),
    Distribution("t3", lambda rng, shape: rng.standard_t(3, shape), "Student's t, 3 degrees of freedom"),
    Distribution("logn1", _lognormal(1.0), "log-normal magnitudes, sigma 1"),
    Distribution("logn2", _lognormal(2.0), "log-normal magnitudes, sigma 2"),
    Distribution("swiglu", _swiglu, "silu(a) * b of two normal numbers: input of the down-projection"),
    Distribution("expert", _expert, "output of a SwiGLU expert, tokens of different scale"),
    Distribution("outlier", _outlier, "normal, one channel of 128 times 50"),
    Distribution("zeros", _zeros, "normal, one value of ten exactly 0"),
    Distribution("uniform", lambda rng, shape: rng.uniform(-1, 1, shape), "uniform from -1 to 1"),
):
    distributions.register(_entry.name, _entry)
