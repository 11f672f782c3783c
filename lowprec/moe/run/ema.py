"""Exponential moving average of the weights, used for evaluation only; training does not read it.

DeepSeek-V3 keeps one to estimate early how good the model will be after learning rate decay (arXiv 2412.19437, 3.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


class ParameterEMA:
    """Exponential moving average of named arrays: ``mean += (1 - decay) * (weight - mean)``, with three roundings.

    Parameters
    ----------
    params : mapping of str to array
        Weights, the initial value of the mean.
    decay : float
        Decay in [0, 1); with 0, the mean equals the weights.

    Raises
    ------
    ValueError
        If the decay is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> weights = {"w": np.zeros(1, np.float32)}
    >>> mean = ParameterEMA(weights, 0.75)
    >>> weights["w"][0] = 1
    >>> mean.update(weights)
    >>> mean.params["w"]
    array([0.25], dtype=float32)
    """

    def __init__(self, params: Mapping[str, Array], decay: float) -> None:
        if not (isinstance(decay, (int, float)) and 0 <= decay < 1):
            raise ValueError(f"ema must be a decay in [0, 1), got {decay!r}")
        self.decay = float(decay)
        self.params: dict[str, Array] = {name: weight.copy() for name, weight in params.items()}

    def update(self, params: Mapping[str, Array]) -> None:
        """Update the mean with the weights after a step."""
        for name, mean in self.params.items():
            difference = params[name] - mean
            difference *= mean.dtype.type(1.0 - self.decay)
            mean += difference
