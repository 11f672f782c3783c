"""Delayed scaling: a tensor is quantized with a scale from the amax of earlier steps.

Source: TransformerEngine, ``common/recipe/delayed_scaling.cu``; Micikevicius et al., arXiv:2209.05433, section 3.2.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32
from .._checks import check_choice, check_int
from .._fpenv import with_default_fpenv
from .job import largest_magnitude
from .quantize import quantize
from .quantized import Quantized
from .quantizer import Quantizer, quantizers

_LARGEST = np.finfo(np.float32).max


class DelayedScaling:
    """The state of one tensor under delayed scaling.

    Within a step, any number of tensors is quantized with the scale from the step's start, and the largest amax is
    recorded. `end_step` appends it to the history and computes the next multiplier of values, which is the inverse of
    the scale: ``max / amax * 2^-margin`` for the history's largest (or most recent) amax, or FLT_MAX if that overflows.
    If the amax is zero or not finite, the multiplier stays the same. The first multiplier is 1.

    Parameters
    ----------
    quantizer : str or Quantizer
        Quantizer with an `amax_history_len`, such as ``"te_delayed"``.
    margin : int
        Binades of headroom.
    algorithm : {"max", "most_recent"}
        Which amax of the history determines the scale: the largest, or the most recent.

    Raises
    ------
    ValueError
        If the quantizer has no history, or the algorithm is unknown.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> state = lp.DelayedScaling()
    >>> x = np.full((2, 2), 3.0, np.float32)
    >>> for step in range(2):
    ...     q = state.quantize(x)
    ...     state.end_step()
    ...     print(float(q.scale[0, 0]), q.codes[0, 0])
    1.0 68
    0.0066964286379516125 126
    """

    def __init__(
        self,
        quantizer: str | Quantizer = "te_delayed",
        *,
        margin: int = 0,
        algorithm: Literal["max", "most_recent"] = "max",
    ) -> None:
        self.quantizer = quantizers.get(quantizer)
        if self.quantizer.amax_history_len is None:
            raise ValueError(
                f"DelayedScaling: quantizer must have a history, as 'te_delayed' has, got {self.quantizer.name!r}"
            )
        algorithm = check_choice("DelayedScaling", "algorithm", algorithm, ("max", "most_recent"))
        self.margin, self.algorithm = check_int("DelayedScaling", "margin", margin, -126, 126), algorithm
        self.history: NDArray[np.float32] = np.zeros(self.quantizer.amax_history_len, np.float32)
        self.multiplier = np.float32(1)

    def __copy__(self) -> DelayedScaling:
        """Return an independent copy, so that two states never share a history."""
        return copy.deepcopy(self)

    @with_default_fpenv
    def quantize(self, x: ArrayLike, **options: Any) -> Quantized:
        """Quantize with the step's scale and record the amax; the options are those of `lowprec.quantize`."""
        values = as_float32("DelayedScaling", x)
        if values.size:
            self.history[0] = max(self.history[0], largest_magnitude(values))
        plain = replace(self.quantizer, amax_history_len=None)
        return quantize(values, plain, inverse_scale=float(self.multiplier), **options)

    def end_step(self) -> None:
        """Compute the scale of the next step and advance the history by one step."""
        amax = self.history.max() if self.algorithm == "max" else self.history[0]
        if np.isfinite(amax) and amax > 0:
            largest = np.float32(self.quantizer.format.max)
            with np.errstate(over="ignore"):
                m = np.float32(np.float32(largest * np.float32(2.0**-self.margin)) / np.float32(amax))
            self.multiplier = np.float32(min(m, _LARGEST))
        self.history[1:] = self.history[:-1].copy()
        self.history[0] = 0

    def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """Return the history, most recent first, and the multiplier, as arrays."""
        return {"history": self.history.copy(), "multiplier": np.array(self.multiplier)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Raises
        ------
        ValueError
            If the state does not fit this quantizer.
        """
        history = np.asarray(state.get("history"), dtype=np.float32)
        if history.shape != self.history.shape or "multiplier" not in state:
            raise ValueError(
                f"DelayedScaling: state must have a multiplier and a history of shape {self.history.shape}, "
                f"got {sorted(state)} with a history of shape {history.shape}"
            )
        self.history = history.copy()
        self.multiplier = np.float32(state["multiplier"])
