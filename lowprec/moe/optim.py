"""AdamW with float32 master weights and moments in the format that the recipe names.

As DeepSeek-V3 trains (arXiv 2412.19437, sections 3.3.3 and 4.2): beta 0.9 and 0.95, weight decay 0.1 on matrices, the
gradient clipped to norm 1, both moments stored in bfloat16, weights and gradients in float32. The paper does not state
epsilon; 1e-8 here. The step uses the fresh moments; rounding to storage comes after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import cast
from lowprec.kernels import adamw as kernels

Array = npt.NDArray[Any]

#: Storage type of moments; bfloat16 is kept as its codes.
_STORAGE = {"bfloat16": np.uint16, "float32": np.float32, "float64": np.float64}
_ALIASES = {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def moment_format(name: str) -> str:
    """Return the canonical name of a moment format.

    Raises
    ------
    ValueError
        If moments cannot be kept in it.

    Examples
    --------
    >>> moment_format("bf16")
    'bfloat16'
    """
    canonical = _ALIASES.get(name, name)
    if canonical not in _STORAGE:
        raise ValueError(f"moments in {name!r}: known are {', '.join(_STORAGE)}")
    return canonical


class AdamW:
    """AdamW over named arrays, which it changes in place.

    Parameters
    ----------
    params : mapping of str to array
        Float32 (or float64) C-contiguous arrays; those with two or more axes decay.
    moments : str
        Storage format of both moments: "bfloat16", "float32" or "float64".
    beta1, beta2, epsilon, weight_decay : float
        The usual numbers; `weight_decay` is multiplied by the rate of the step.
    clip : float
        Largest norm of the whole gradient; larger ones are scaled down to it.

    Attributes
    ----------
    steps : int
        Updates made so far.
    m, v : dict of str to array
        Moments as stored: uint16 codes for bfloat16, else floats.

    Raises
    ------
    ValueError
        For an unknown moment format, or float64 moments of float32 weights.

    Examples
    --------
    >>> weights = {"w": np.ones((2, 2), np.float32)}
    >>> optimizer = AdamW(weights, moments="float32", weight_decay=0.0)
    >>> optimizer.update({"w": np.full((2, 2), 0.25, np.float32)}, rate=0.125)
    0.5
    >>> weights["w"][0, 0]
    np.float32(0.875)
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        *,
        moments: str = "bfloat16",
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float = 0.1,
        clip: float = 1.0,
    ) -> None:
        self.params = params
        self.moments = moment_format(moments)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.weight_decay, self.clip = weight_decay, clip
        self.steps = 0
        storage = _STORAGE[self.moments]
        for name, weight in params.items():
            if not weight.flags.c_contiguous:
                raise ValueError(f"AdamW: weight {name!r} is not contiguous")
            if self.moments != "bfloat16" and weight.dtype != storage:
                raise ValueError(
                    f"AdamW: {self.moments} moments need {self.moments} weights; {name!r} is {weight.dtype}"
                )
        self.m = {name: np.zeros(weight.shape, storage) for name, weight in params.items()}
        self.v = {name: np.zeros(weight.shape, storage) for name, weight in params.items()}

    def norm(self, gradients: Mapping[str, Array]) -> float:
        """Return the Euclidean norm of a whole gradient, summed in float64 in the order of the weights."""
        total = 0.0
        for name in self.params:
            total += float(kernels.sum_of_squares(np.ascontiguousarray(gradients[name]).reshape(-1)))
        return math.sqrt(total)

    def update(self, gradients: Mapping[str, Array], rate: float) -> float:
        """Make one step.

        Parameters
        ----------
        gradients : mapping of str to array
            One per weight, of its shape and type.
        rate : float
            Learning rate of this step.

        Returns
        -------
        float
            Norm of the gradient before clipping.

        Raises
        ------
        FloatingPointError
            If that norm is NaN or infinite; then nothing was changed.
        """
        norm = self.norm(gradients)
        if not math.isfinite(norm):
            raise FloatingPointError(f"the norm of the gradient is {norm}")
        self.steps += 1
        scale = self.clip / norm if norm > self.clip else 1.0
        correction1 = 1.0 - _power(self.beta1, self.steps)
        correction2 = 1.0 - _power(self.beta2, self.steps)
        step = kernels.adamw_bf16 if self.moments == "bfloat16" else kernels.adamw
        for name, weight in self.params.items():
            numbers = (
                scale,
                self.beta1,
                1.0 - self.beta1,
                self.beta2,
                1.0 - self.beta2,
                rate / correction1,
                1.0 / math.sqrt(correction2),
                self.epsilon,
                rate * self.weight_decay if weight.ndim >= 2 else 0.0,
            )
            gradient = np.ascontiguousarray(gradients[name], dtype=weight.dtype).reshape(-1)
            step(
                weight.reshape(-1),
                gradient,
                self.m[name].reshape(-1),
                self.v[name].reshape(-1),
                kernels.Coefficients(*map(weight.dtype.type, numbers)),
            )
        return norm

    def set_moments(self, moments: str, m: Mapping[str, Array], v: Mapping[str, Array]) -> None:
        """Take over moments stored in any format, converted to this optimizer's (to nearest even).

        Parameters
        ----------
        moments : str
            The format they are stored in.
        m, v : mapping of str to array
            The moments as stored, one per weight.
        """
        moments = moment_format(moments)
        for own, given in ((self.m, m), (self.v, v)):
            for name in own:
                own[name][...] = given[name] if moments == self.moments else self._converted(given[name], moments)

    def _converted(self, stored: Array, moments: str) -> Array:
        values = cast.decode(stored, "bfloat16") if moments == "bfloat16" else stored
        if self.moments == "bfloat16":
            return cast.encode(values, "bfloat16")
        return values.astype(_STORAGE[self.moments])


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by squaring: the C library's `pow` need not give the same bits everywhere."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
