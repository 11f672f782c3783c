"""State that determines an operand's bits in addition to its values: seeds, and scales from earlier steps.

A run stores it for all its layers (`lowprec.recipe.binding`); a layer outside a run, in a model of another framework,
has a separate state and counts its steps (`LayerState`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.scaling.delayed import DelayedScaling
from lowprec.scaling.quantize import Quantized, quantize
from lowprec.scaling.spec import TensorSpec

Array = NDArray[Any]


def derive_seed(seed: int, tensor: str, step: int) -> int:
    """Return the seed of a tensor's random bits in a step, from 0 to 2**64 - 1.

    It depends only on a run's seed, the tensor's name and the step: resuming, threads and the order of layers cannot
    change it.

    Parameters
    ----------
    seed : int
        Seed of the run.
    tensor : str
        Name of the tensor, such as ``"layers.0.attn.wo/wgrad.dy"``.
    step : int
        Step, counted from 0.

    Examples
    --------
    >>> derive_seed(0, "head/dgrad.dy", 0) == derive_seed(0, "head/dgrad.dy", 0) != derive_seed(0, "head/dgrad.dy", 1)
    True
    """
    return _mixed(_key(seed, tensor) + step * 0x9E3779B97F4A7C15)


def rounding_seed(seed: int, data_seed: int) -> int:
    """Return the seed of a run's random bits: the run's seed, mixed with the data's seed if that differs.

    Branches of one checkpoint with different data draw different bits, and recipes that are compared on the same data
    draw the same ones.

    Examples
    --------
    >>> rounding_seed(3, 3), rounding_seed(3, 4) != rounding_seed(3, 5), rounding_seed(3, 4) != rounding_seed(4, 3)
    (3, True, True)
    """
    return seed if data_seed == seed else _key(seed, f"data {data_seed}")


@functools.lru_cache(1 << 16)
def _key(seed: int, tensor: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {tensor}".encode()).digest()[:8], "little")


def _mixed(word: int) -> int:
    """Return the 64 bits of a number, mixed as splitmix64's output is (Steele, Lea and Flood, OOPSLA 2014)."""
    word &= 2**64 - 1
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & 2**64 - 1
    return word ^ (word >> 31)


def quantize_delayed(scaling: DelayedScaling, spec: TensorSpec, x: Array, seed: int, observing: bool) -> Quantized:
    """Quantize x with the scale from earlier steps; its amax is recorded for later ones if `observing`."""
    if observing:
        return scaling.quantize(x, **spec.rounding(seed))
    return quantize(x, spec.without_history, inverse_scale=float(scaling.multiplier), **spec.rounding(seed))


class LayerState:
    """State of one layer outside a run, which counts its steps itself.

    A step begins with the layer's first forward pass for training after a backward pass. So several forward passes
    before their backward passes, evaluations, and forward passes that a backward pass recomputes all belong to the
    current step, and no call has to mark the start of a step.

    Parameters
    ----------
    layer : str
        Name of the layer: with seed and step it determines all random bits.
    seed : int
        Seed of the run.

    Attributes
    ----------
    step : int
        Number of the current step, from 0.

    Examples
    --------
    >>> state = LayerState("layers.0.attn.wo")
    >>> for _ in range(2):
    ...     state.begin_forward(training=True)
    ...     state.begin_backward()
    >>> state.begin_forward(training=False), state.step
    (None, 1)
    """

    def __init__(self, layer: str, seed: int = 0) -> None:
        self.layer = layer
        self.run_seed = seed
        self.step = 0
        self._observing = False
        self._ended = False  # whether a backward pass has run since the step began
        self._scales: dict[str, DelayedScaling] = {}

    def begin_forward(self, training: bool, again: bool = False) -> None:
        """Record the start of a forward pass.

        Parameters
        ----------
        training : bool
            Whether amaxes are recorded for later steps.
        again : bool
            Whether the backward pass recomputes this pass.
        """
        if training and self._ended and not again:
            for scaling in self._scales.values():
                scaling.end_step()
            self.step += 1
            self._ended = False
        self._observing = training

    def begin_backward(self) -> None:
        """Record the start of a backward pass: the next forward pass for training begins the next step."""
        self._ended = self._observing = True

    def seed(self, operand: str, frozen: bool = False) -> int:
        """Return the seed of an operand's random bits in this step or, if `frozen`, in all steps."""
        return derive_seed(self.run_seed, f"{self.layer}/{operand}", 0 if frozen else self.step)

    def delayed(self, role: str, spec: TensorSpec, x: Array, seed: int) -> Quantized:
        """Quantize x with the scale from earlier steps."""
        name = f"{role}.{spec.format.name}"
        if name not in self._scales:
            self._scales[name] = DelayedScaling(spec.resolved)
        return quantize_delayed(self._scales[name], spec, x, seed, self._observing)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as numbers and arrays."""
        scales = {name: scaling.state_dict() for name, scaling in sorted(self._scales.items())}
        return {"step": self.step, "ended": self._ended, "scales": scales}

    def load_state_dict(self, state: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> None:
        """Restore the state that `state_dict` returned.

        Parameters
        ----------
        state : mapping
            State of the layer.
        specs : mapping of str to TensorSpec
            The layer's tensors under delayed scaling, by role and format: ``"dy.e5m2"``.

        Raises
        ------
        ValueError
            If a scale belongs to another tensor, or a history has another length.
        """
        scales = {}
        for name, kept in state["scales"].items():
            if name not in specs:
                raise ValueError(f"{self.layer}: unknown scale {name!r}: expected one of {', '.join(specs) or 'none'}")
            scales[name] = DelayedScaling(specs[name].resolved)
            scales[name].load_state_dict({key: np.asarray(value) for key, value in kept.items()})
        self.step, self._ended, self._scales = int(state["step"]), bool(state["ended"]), scales
