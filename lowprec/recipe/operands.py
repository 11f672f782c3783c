"""Operands of a recipe's multiplications: quantized as a `TensorSpec` says, or cast where it has no scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.cast.casts import encode, round_to
from lowprec.format.catalogue import Format
from lowprec.scaling.granularity import Granularity
from lowprec.scaling.quantize import quantize
from lowprec.scaling.quantized import Quantized
from lowprec.scaling.spec import TensorSpec

Array = NDArray[Any]


def quantize_operand(spec: TensorSpec, x: Array, seed: int = 0, signs: int = 0) -> Quantized:
    """Quantize a matrix [rows, K] as a recipe does.

    Parameters
    ----------
    spec : TensorSpec
        How. A format without blocks casts. Delayed scaling, whose state a bound recipe has, takes the matrix's own
        amax.
    x : ndarray of float32, shape (rows, K)
        The values.
    seed, signs : int
        What decides stochastic rounding, and signs that are drawn.
    """
    if spec.plain:
        return as_quantized(round_to(x, spec.format, **spec.rounding(seed)), spec.format)
    q = replace(spec.without_history, signs=signs) if spec.fresh else spec.without_history
    if spec.eden:
        return quantize(x, replace(spec, quantizer=q, fresh=False), seed=seed)
    return quantize(x, q, **spec.rounding(seed))


def as_quantized(values: Array, fmt: Format) -> Quantized:
    """Return values that a format can hold as its codes, with a single scale of 1."""
    whole = Granularity(None, None)
    ones = np.ones(whole.scale_shape((values.shape[0], values.shape[1])), np.float32)
    return Quantized(encode(values, fmt), ones, fmt, whole)
