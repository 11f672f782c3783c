"""AdamW with master weights and moments in the storage formats of the recipe.

Settings of DeepSeek-V3 (arXiv 2412.19437, sections 3.3.3 and 4.2): beta 0.9 and 0.95, weight decay 0.1 on matrices, the
gradient clipped to norm 1, both moments stored in bfloat16, weights and gradients in float32. The paper does not state
epsilon; here it is 1e-8. The step uses the updated moments and weights; rounding to storage comes after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec._threads import run_chunks
from lowprec.kernels.model import adamw as kernels
from lowprec.moe.run.optimizer_state import StateFormat
from lowprec.recipe.description import State, state_of

Array = npt.NDArray[Any]


class AdamW:
    """AdamW over named arrays, updated in place.

    Parameters
    ----------
    params : mapping of str to array
        C-contiguous arrays of float32 (or float64); weight decay applies to those with two or more axes.
    moment_m, moment_v : TensorSpec or "float64" or str
        Storage of the moments, see `StateFormat`.
    master : TensorSpec or "float64" or str
        Storage of the weights themselves; they are rounded to it when the optimizer is created and after every step.
    beta1, beta2, epsilon, weight_decay : float
        Coefficients of AdamW; `weight_decay` is multiplied by the rate of the step.
    clip : float
        Largest norm of the whole gradient; a gradient with a larger norm is scaled down to it.

    Attributes
    ----------
    steps : int
        Number of updates made.
    m, v : dict of str to array
        Moments in storage: uint16 codes for bfloat16, otherwise values.

    Raises
    ------
    ValueError
        If a storage is unknown, or moments of float32 weights are float64.

    Examples
    --------
    >>> weights = {"w": np.ones((2, 2), np.float32)}
    >>> optimizer = AdamW(weights, moment_m="float32", moment_v="float32", weight_decay=0.0)
    >>> optimizer.update({"w": np.full((2, 2), 0.25, np.float32)}, rate=0.125)
    0.5
    >>> weights["w"][0, 0]
    np.float32(0.875)
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        *,
        moment_m: State | str = "bfloat16",
        moment_v: State | str = "bfloat16",
        master: State | str = "float32",
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float = 0.1,
        clip: float = 1.0,
    ) -> None:
        self.params = params
        self.kept_m, self.kept_v, self.master = (StateFormat(state_of(kept)) for kept in (moment_m, moment_v, master))
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.weight_decay, self.clip = weight_decay, clip
        self.steps = 0
        for name, weight in params.items():
            if not weight.flags.c_contiguous:
                raise ValueError(f"AdamW: weight {name!r} must be C-contiguous, got strides {weight.strides}")
        self.round_weights()
        self.m = {name: self.kept_m.empty(weight) for name, weight in params.items()}
        self.v = {name: self.kept_v.empty(weight) for name, weight in params.items()}

    def round_weights(self) -> None:
        """Round all weights in place to their storage, after something other than a step has changed them."""
        for weight in self.params.values():
            self.master.round(weight)

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
            One gradient per weight, of its shape and dtype.
        rate : float
            Learning rate of this step.

        Returns
        -------
        float
            Norm of the gradient before clipping.

        Raises
        ------
        FloatingPointError
            If that norm or a weight is NaN or infinite. The state is then unchanged, unless the step itself exceeded
            the range of the weight's storage.
        """
        norm = self.norm(gradients)
        if not math.isfinite(norm):
            raise FloatingPointError(f"the norm of the gradient is {norm}")
        self._check_weights()
        self.steps += 1
        scale = self.clip / norm if norm > self.clip else 1.0
        correction1 = 1.0 - _power(self.beta1, self.steps)
        correction2 = 1.0 - _power(self.beta2, self.steps)
        numbers = (
            scale,
            self.beta1,
            1.0 - self.beta1,
            self.beta2,
            1.0 - self.beta2,
            rate / correction1,
            1.0 / math.sqrt(correction2),
            self.epsilon,
        )
        names = list(self.params)

        # Most weights are too small to be split over threads, but many run in parallel.
        def step(start: int, stop: int) -> None:
            for name in names[start:stop]:
                weight = self.params[name]
                decay = rate * self.weight_decay if weight.ndim >= 2 else 0.0
                gradient = np.ascontiguousarray(gradients[name], dtype=weight.dtype)
                self._step(name, weight, gradient, kernels.Coefficients(*map(weight.dtype.type, (*numbers, decay))))

        run_chunks(step, len(names), 1)
        self._check_weights()
        return norm

    def nonfinite(self) -> list[str]:
        """Return the names of the weights that hold NaN or infinity."""
        return [name for name, weight in self.params.items() if not np.isfinite(weight).all()]

    def _check_weights(self) -> None:
        if names := self.nonfinite():
            raise FloatingPointError(f"weight {names[0]!r} is not finite")

    def _step(self, name: str, weight: Array, gradient: Array, numbers: kernels.Coefficients) -> None:
        """Update one weight."""
        kept = ((self.kept_m, self.m[name]), (self.kept_v, self.v[name]))
        codes = all(form.as_codes for form, _ in kept)
        kernel = kernels.adamw_bf16 if codes else kernels.adamw
        m, v = (stored if codes else form.load(stored) for form, stored in kept)
        w, g, m, v = (array.reshape(-1) for array in (weight, gradient, m, v))
        run_chunks(lambda a, b: kernel(w[a:b], g[a:b], m[a:b], v[a:b], numbers), weight.size, 1 << 15)
        if not codes:
            for (form, stored), fresh in zip(kept, (m, v), strict=True):
                form.store(fresh.reshape(stored.shape), stored)
        self.master.round(weight)

    def set_moments(self, kept: tuple[State, State], m: Mapping[str, Array], v: Mapping[str, Array]) -> None:
        """Set the moments from another storage, converted to this optimizer's.

        Parameters
        ----------
        kept : tuple of TensorSpec or "float64" or str
            Storage of m and v.
        m, v : mapping of str to array
            Stored moments, one per weight.
        """
        for own, form, given, stored in ((self.m, self.kept_m, m, kept[0]), (self.v, self.kept_v, v, kept[1])):
            source = StateFormat(stored)
            for name in own:
                if source == form:
                    own[name][...] = given[name]
                else:
                    form.store(source.load(given[name]).astype(self.params[name].dtype), own[name])


def _power(base: float, exponent: int) -> float:
    """Return base ** exponent by squaring: the C library's `pow` may give different bits on other machines."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
