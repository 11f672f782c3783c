"""lowprec's answer and the numbers from which it is computed; rules turn it into the answer of another package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import encode
from ..format.catalogue import Format
from ..scaling.quantizer import Quantizer

F32 = NDArray[np.float32]
f32 = np.float32


@dataclass(frozen=True)
class Prediction:
    """Predicted codes and scales of blocks, or codes of values, which are blocks of one.

    Attributes
    ----------
    x : float32 [n, values]
        Values in blocks.
    codes : int [n, values]
        Codes of the values.
    format : Format
        Format of the codes.
    quantizer : Quantizer, optional
        Entry, for blocks.
    scale, amax, tensor_amax : float32 [n]
        Scale, and largest magnitudes of the block and of its tensor.
    quotient : float32 [n]
        amax divided by the largest number of the format.
    exponent : float32 [n]
        Exponent of a power-of-two scale, before it is limited to the range of the scale format.
    tensors : tuple of float32 arrays
        Tensors that the blocks are part of.
    source : int [n]
        Index of the tensor of each block.
    places : int [n, values]
        Index in the tensor of every value.
    """

    x: F32
    codes: NDArray[Any]
    format: Format
    quantizer: Quantizer | None = None
    scale: Any = None
    amax: Any = None
    tensor_amax: Any = None
    quotient: Any = None
    exponent: Any = None
    tensors: tuple[F32, ...] = ()
    source: Any = None
    places: Any = None

    def take(self, at: NDArray[np.int64]) -> Prediction:
        """Return the prediction of some blocks."""
        arrays: dict[str, Any] = {name: a[at] for name, a in vars(self).items() if isinstance(a, np.ndarray)}
        return replace(self, **arrays)


Rule = Callable[[Prediction], Prediction]


def predict(x: F32, codes: NDArray[Any], q: Quantizer, scale: F32, tensor_amax: F32) -> Prediction:
    """Return lowprec's answer for blocks as a `Prediction`."""
    amax = np.abs(x).max(1)
    how = getattr(q.rule, "scale_calculation", "")
    quotient = amax * f32(1 / q.format.max) if how == "amax*(1/max)" else amax / f32(q.format.max)
    p = Prediction(x, codes, q.format, q, scale, amax, tensor_amax, quotient)
    with np.errstate(divide="ignore", invalid="ignore"):
        return replace(p, exponent=exponents(p, exact_log2))


def exact_log2(v: F32) -> NDArray[np.float64]:
    """Return the base-2 logarithm in float64, which is an integer only for powers of two."""
    return np.asarray(np.log2(v.astype(np.float64)))


def exponents(p: Prediction, log2: Callable[[F32], Any]) -> F32:
    """Return the exponents of scales computed by a given logarithm, not limited to E8M0's range."""
    assert p.quantizer is not None
    how, f = getattr(p.quantizer.rule, "scale_calculation", ""), p.format
    base = p.amax
    if how.startswith("even"):
        bits = 1 if how == "even_1bit" else f.mantissa_bits
        mask = np.uint32(0xFF800000)
        base = ((base.view(np.uint32) + np.uint32(1 << (22 - bits))) & mask).view(f32)
    if how in ("floor", "even", "even_1bit"):
        return np.asarray(np.floor(log2(base)) - f.emax, f32)
    return np.asarray(np.ceil(log2(base)) - f.emax if how == "ceil" else np.ceil(log2(p.quotient)), f32)


def power(exponent: Any) -> F32:
    """Return 2^exponent as float32: 0 or Inf outside of float32's range."""
    return np.exp2(np.asarray(exponent, np.float64)).astype(f32)


def _cast(p: Prediction, y: F32, nan: int | None = None) -> NDArray[Any]:
    """Return the codes of quotients; `nan` is the code of NaN."""
    q = p.quantizer
    assert q is not None
    codes = encode(y, p.format, rounding=q.rounding, policy="ocp_sat")
    if q.negative_zero == "positive":
        codes = np.where(codes == p.format.sign_mask, 0, codes)
    return codes if nan is None else np.where(np.isnan(y), nan, codes)


def with_scales(p: Prediction, rows: Any, scale: Any, y: Any = None, nan: int | None = None, **more: Any) -> Prediction:
    """Return a prediction with new scales in some rows, and codes of x / scale, or of the quotients `y` if given."""
    at = np.flatnonzero(rows)
    scales, codes = p.scale.copy(), p.codes.copy()
    scales[at] = np.broadcast_to(np.asarray(scale, f32), p.scale.shape)[at]
    codes[at] = _cast(p, p.x[at] / scales[at, None] if y is None else y[at], nan).astype(codes.dtype)
    return replace(p, scale=scales, codes=codes, **more)
