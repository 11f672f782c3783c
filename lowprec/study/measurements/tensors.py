"""What the linear layers of a model compute with: the range of each tensor, and what quantization loses of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .measurement import Passing, intercept

if TYPE_CHECKING:
    from lowprec.recipe import TensorSpec

Array = NDArray[Any]
#: A linear layer's operands: its input, its weight and the gradient of its output.
ROLES = ("x", "w", "dy")
#: Values of a row that one tile range is of.
TILE = 128


@dataclass(frozen=True)
class TensorRecord:
    """What one tensor looked like on its way into a GEMM.

    Attributes
    ----------
    values : int
        How many values it has.
    nonzero : int
        How many of them are not 0.
    flushed, saturated : int
        How many of those became 0, or were cut to the largest magnitude of the format.
    rows, rows_flushed : int
        Rows with a value that is not 0, and how many of them became all 0.
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
    """What one linear layer computed with.

    Attributes
    ----------
    tensors : dict of str to TensorRecord
        By role: "x" and "w" of the forward pass, "dy" of the backward pass.
    y, dx : array or None
        Output [T, N] and gradient of the input [T, K], where they were asked for.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    y: Array | None = None
    dx: Array | None = None


def observed(bound: Any, records: dict[str, LinearRecord], factors: Array | None = None) -> Any:
    """Return a bound recipe that notes in `records` what its linear layers compute with, by their names.

    Experts compute side by side, so the order means nothing. `factors` [T] multiply the gradient of each token's
    logits: the loss's gradient is linear in the weights of the tokens, so it is that of the weighted loss, and powers
    of two commute with its rounding to bfloat16.

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
        # Behind a Hadamard transform no quantized value belongs to one of the tensor, so none can be counted.
        specs = {
            role: None if (tensor := getattr(spec, role)).plain or tensor.resolved.hadamard else tensor
            for role in ROLES
        }
        if layer == "head" and factors is not None:
            ops = _Weighted(ops, factors[:, None])
        return _Watched(layer, ops, specs, records)

    return intercept(bound, watch)


class _Weighted(Passing):
    def __init__(self, ops: Any, factors: Array) -> None:
        super().__init__(ops)
        self._factors = factors

    def dgrad(self, dy: Array, saved: Any) -> Array:
        found: Array = self._inner.dgrad(dy * self._factors, saved)
        return found

    def wgrad(self, dy: Array, saved: Any) -> Array:
        found: Array = self._inner.wgrad(dy * self._factors, saved)
        return found


class _Watched(Passing):
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
    """Tell whether row t of a layer's tensors is token t, whatever the precision: not so behind the router."""
    return ".experts." not in layer


def describe(x: Array, spec: TensorSpec | None) -> TensorRecord:
    """Return what a tensor [rows, K] looks like and what quantization does to it.

    Parameters
    ----------
    x : float array [rows, K]
        Before quantization.
    spec : TensorSpec or None
        How it is quantized; None: it is not.

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
    """Count values with the largest code that were larger than rounding to it explains: by more than half an ulp."""
    form = quantized.format
    if form.is_table:
        largest = np.isin(quantized.codes, (form.max_code, form.lowest_code))
    else:
        magnitude = np.array(form.sign_mask ^ ((1 << form.bits) - 1), quantized.codes.dtype)
        largest = quantized.codes & magnitude == form.max_code
    half = (form.max - form.nextafter(form.max, 0.0)) / 2 / form.max
    return int(np.count_nonzero(largest & (np.abs(x) > np.abs(got.astype(np.float64)) * (1 + 1.001 * half))))
