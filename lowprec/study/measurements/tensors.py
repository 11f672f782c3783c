"""Statistics of the operands of linear layers: the range of each tensor, and the effects of quantization on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .measurement import Proxy, intercept

if TYPE_CHECKING:
    from lowprec.recipe import TensorSpec

Array = NDArray[Any]
#: Operands of a linear layer: input, weight and gradient of the output.
ROLES = ("x", "w", "dy")
#: Number of values in a tile for tile ranges.
TILE = 128


@dataclass(frozen=True)
class TensorRecord:
    """Statistics of one operand of a GEMM.

    Attributes
    ----------
    values : int
        Number of values.
    nonzero : int
        Number of values that are not 0.
    flushed, saturated : int
        Number of nonzero values that became 0, and of values that were clipped to the format's largest magnitude.
    rows, rows_flushed : int
        Number of rows with a nonzero value, and of those in which all values became 0.
    kurtosis : float
        Fourth standardised moment; nan if all values are equal.
    tile_range : float
        Median over tiles of log2(largest / smallest non-zero magnitude), in octaves; nan if all values are 0.
    """

    values: int
    nonzero: int
    flushed: int
    saturated: int
    rows: int
    rows_flushed: int
    kurtosis: float
    tile_range: float


@dataclass
class LinearRecord:
    """Operands and results of one linear layer.

    Attributes
    ----------
    tensors : dict of str to TensorRecord
        Statistics by role: "x" and "w" of the forward pass, "dy" of the backward pass.
    y, dx : array or None
        Output [T, N] and gradient of the input [T, K], if requested.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    y: Array | None = None
    dx: Array | None = None


def observed(bound: Any, records: dict[str, LinearRecord], factors: Array | None = None) -> Any:
    """Return a bound recipe that records the operands of its linear layers in `records`, by layer name.

    Experts compute in parallel, so the order of records has no meaning. `factors` [T] multiply the gradient of each
    token's logits. The result is that of a loss in which the tokens have these weights, because the gradient is linear
    in the weights, and powers of two commute with its rounding to bfloat16.

    Examples
    --------
    >>> import lowprec as lp
    >>> records = {}
    >>> head = observed(lp.recipes["bf16"].bind(), records).linear("head")
    >>> y, saved = head.fprop(np.ones((2, 128), np.float32), np.ones((3, 128), np.float32))
    >>> records["head"].y.shape, records["head"].tensors["x"].nonzero
    ((2, 3), 256)
    """

    def watch(layer: str, ops: Any) -> Any:
        spec = bound.recipe.spec(layer, bound.layers)
        # After a Hadamard transform, quantized values do not correspond to values of the tensor and cannot be counted.
        specs = {
            role: None if (tensor := getattr(spec, role)).plain or tensor.resolved.hadamard_size else tensor
            for role in ROLES
        }
        if layer == "head" and factors is not None:
            ops = _WeightedOps(ops, factors[:, None])
        return _ObservedOps(layer, ops, specs, records)

    return intercept(bound, watch)


class _WeightedOps(Proxy):
    def __init__(self, ops: Any, factors: Array) -> None:
        super().__init__(ops)
        self._factors = factors

    def dgrad(self, dy: Array, saved: Any) -> Array:
        found: Array = self._inner.dgrad(dy * self._factors, saved)
        return found

    def wgrad(self, dy: Array, saved: Any) -> Array:
        found: Array = self._inner.wgrad(dy * self._factors, saved)
        return found


class _ObservedOps(Proxy):
    def __init__(
        self, layer: str, ops: Any, specs: dict[str, TensorSpec | None], records: dict[str, LinearRecord]
    ) -> None:
        super().__init__(ops)
        self.layer, self.specs, self.records = layer, specs, records

    def fprop(self, x: Array, w: Array, **rest: Any) -> tuple[Array, Any]:
        record = self.records.setdefault(self.layer, LinearRecord())
        record.tensors |= {"x": describe(x, self.specs["x"]), "w": describe(w, self.specs["w"])}
        y, saved = self._inner.fprop(x, w, **rest)
        if keeps_rows(self.layer):
            record.y = y.copy()
        return y, saved

    def dgrad(self, dy: Array, saved: Any) -> Array:
        record = self.records.setdefault(self.layer, LinearRecord())
        record.tensors["dy"] = describe(dy, self.specs["dy"])
        dx: Array = self._inner.dgrad(dy, saved)
        if keeps_rows(self.layer):
            record.dx = dx.copy()
        return dx


def keeps_rows(layer: str) -> bool:
    """Return whether row t of a layer's tensors is token t in every precision; False after the router."""
    return ".experts." not in layer


def describe(x: Array, spec: TensorSpec | None) -> TensorRecord:
    """Return statistics of a tensor [rows, K] and of its quantization.

    Parameters
    ----------
    x : float array [rows, K]
        Values before quantization.
    spec : TensorSpec or None
        Quantization; None if the tensor is not quantized.

    Examples
    --------
    >>> from lowprec.recipe import TensorSpec
    >>> x = np.array([[1.0, 0.0, 2.0**-30, 2.0]], np.float32)
    >>> record = describe(x, TensorSpec.parse("e4m3fn 1x128"))
    >>> record.nonzero, record.flushed, round(record.tile_range, 9)
    (3, 1, 31.0)
    """
    from lowprec.measure.spread import kurtosis, tile_range
    from lowprec.recipe.operands import quantize_operand

    wide = np.ascontiguousarray(x, dtype=np.float64)
    used = wide != 0
    nonzero, rows = int(np.count_nonzero(used)), used.any(axis=1)
    flushed = saturated = rows_flushed = 0
    if spec is not None and nonzero:
        quantized = quantize_operand(spec, x)
        got = quantized.dequantize()
        gone = got == 0
        flushed = int(np.count_nonzero(gone & used))
        rows_flushed = int(np.count_nonzero(gone.all(axis=1) & rows))
        saturated = _saturated(wide, got, quantized)
    ranges = tile_range(wide, TILE)
    seen = ranges[~np.isnan(ranges)]
    return TensorRecord(
        wide.size, nonzero, flushed, saturated, int(np.count_nonzero(rows)), rows_flushed, kurtosis(wide),
        float(np.median(seen)) if seen.size else float("nan"),
    )  # fmt: skip


def _saturated(x: NDArray[np.float64], got: Array, quantized: Any) -> int:
    """Count values that have the largest code and exceed its value by more than rounding allows, half an ulp."""
    form = quantized.format
    if form.is_table:
        largest = np.isin(quantized.codes, (form.max_code, form.min_code))
    else:
        magnitude = np.array(form.sign_mask ^ ((1 << form.bits) - 1), quantized.codes.dtype)
        largest = quantized.codes & magnitude == form.max_code
    half = (form.max - form.nextafter(form.max, 0.0)) / 2 / form.max
    return int(np.count_nonzero(largest & (np.abs(x) > np.abs(got.astype(np.float64)) * (1 + 1.001 * half))))
