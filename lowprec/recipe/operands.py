"""Operands of a recipe's multiplications: quantized by a `TensorSpec`, or cast if it has no scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowprec.cast.casts import encode, round_to
from lowprec.format.catalogue import Format, formats
from lowprec.scaling.granularity import Granularity
from lowprec.scaling.quantize import quantize
from lowprec.scaling.quantized import Quantized
from lowprec.scaling.spec import TensorSpec

Array = NDArray[Any]
Operand = Array | Quantized
_BF16, _FLOAT32 = formats["bfloat16"], formats["float32"]


def quantize_operand(spec: TensorSpec, x: Array, seed: int = 0, signs: int = 0) -> Quantized:
    """Quantize a matrix [rows, K] by a recipe's specification.

    Parameters
    ----------
    spec : TensorSpec
        Quantization. A format without blocks is a cast. Delayed scaling uses the amax of this matrix, because only a
        bound recipe has the history.
    x : ndarray of float32, shape (rows, K)
        Values to quantize.
    seed, signs : int
        Seeds of stochastic rounding, and of random signs.
    """
    if spec.plain:
        return as_quantized(round_to(x, spec.format, **spec.rounding(seed)), spec.format)
    q = replace(spec.without_history, hadamard_signs=signs) if spec.resample_signs else spec.without_history
    if spec.eden:
        return quantize(x, replace(spec, quantizer=q, resample_signs=False), seed=seed)
    return quantize(x, q, **spec.rounding(seed))


def as_quantized(values: Array, fmt: Format) -> Quantized:
    """Return values that a format can represent as its codes, with a single scale of 1."""
    whole = Granularity(None, None)
    ones = np.ones(whole.scale_shape((values.shape[0], values.shape[1])), np.float32)
    return Quantized(encode(values, fmt), ones, fmt, whole)


class TensorState(Protocol):
    """State of the operands of one layer's multiplications."""

    def seed(self, operand: str, frozen: bool = False) -> int:
        """Return the seed of an operand's random bits, such as ``"wgrad.dy"``, in this step or, if `frozen`, in all."""

    def delayed(self, role: str, spec: TensorSpec, x: Array, seed: int) -> Quantized:
        """Quantize a tensor, such as ``"dy"``, with the scale from earlier steps."""


class NoState:
    """State of a layer outside a run: all seeds are 0, and all scales follow from the values."""

    def seed(self, operand: str, frozen: bool = False) -> int:
        """Return 0."""
        return 0

    def delayed(self, role: str, spec: TensorSpec, x: Array, seed: int) -> Quantized:
        """Quantize x with the scale from its amax."""
        return quantize_operand(spec, x, seed)


class TensorOperand:
    """One operand of one multiplication of one layer.

    Parameters
    ----------
    spec : TensorSpec
        Specification of the operand.
    stored : Format
        Format in which layers pass the operand.
    name : str
        Name of the multiplication and the role, ``"wgrad.dy"``.
    state : TensorState
        Seeds and scales that do not follow from the values.
    """

    def __init__(self, spec: TensorSpec, stored: Format, name: str, state: TensorState) -> None:
        self.spec = spec
        self.stored = stored
        self.name = name
        self.state = state
        self.hadamard = 0 if spec.transform is None else spec.transform[0]
        self.delayed = spec.delayed
        self.float32, self.as_stored = (spec.format.same_codes(kept) for kept in (_FLOAT32, stored))

    def rows(self, x: Array) -> Operand:
        """Return the operand for x [rows, K]."""
        if not self.spec.plain:
            if self.hadamard and x.shape[1] % self.hadamard:  # as in `columns`
                x = np.pad(x, [(0, 0), (0, -x.shape[1] % self.hadamard)])
            return self.quantize(self.spec, x)
        # Layers pass values in the storage format, so a cast to it changes nothing.
        if self.float32 or self.as_stored:
            return x
        return round_to(x, self.spec.format, **self.spec.rounding(self.state.seed(self.name)))

    def columns(self, x: Array) -> Operand:
        """Return the operand x^T [columns, K] for x [K, columns]: the product sums over the rows of x."""
        if self.spec.plain:
            return self.rows(x).T
        if self.hadamard and len(x) % self.hadamard:  # the last block is padded with zeros
            x = np.pad(x, [(0, -len(x) % self.hadamard), (0, 0)])
        return self.quantize(self.spec.T, x).T

    def quantize(self, spec: TensorSpec, x: Array) -> Quantized:
        """Quantize x with the seeds of this operand, or with the scale from earlier steps."""
        seed = self.state.seed(self.name) if spec.stochastic or spec.eden else 0
        gemm, _, role = self.name.partition(".")
        if self.delayed:
            return self.state.delayed(role, spec, x, seed)
        return quantize_operand(spec, x, seed, self.state.seed(f"{gemm}.signs") if spec.resample_signs else 0)


class WeightOperand(TensorOperand):
    """A master weight; `source` computes the quantizer's input from it."""

    def __init__(
        self, spec: TensorSpec, stored: Format, name: str, state: TensorState, source: Callable[[Array], Array]
    ) -> None:
        super().__init__(spec, stored, name, state)
        self.source = source

    def rows(self, x: Array) -> Operand:
        """Return the weight [N, K]."""
        if self.spec.plain:
            seed = self.state.seed(self.name) if self.spec.stochastic else 0
            return x if self.float32 else round_to(x, self.spec.format, **self.spec.rounding(seed))
        return super().rows(self.source(x))

    def columns(self, x: Array) -> Operand:
        """Return the transposed weight [K, N]."""
        if self.spec.plain:
            return self.rows(x).T
        return super().columns(self.source(x))

    def again(self, row: Operand) -> Operand:
        """Return the operand along the columns, requantized from Fprop's operand."""
        if isinstance(row, np.ndarray):
            return self.columns(row)
        values = row.dequantize()
        return TensorOperand.rows(self, values).T if self.spec.plain else super().columns(values)


def master_copy(w: Array) -> Array:
    """Return a master weight unchanged."""
    return w


def bf16_copy(w: Array) -> Array:
    """Return a master weight rounded to BF16."""
    return round_to(w, _BF16)
