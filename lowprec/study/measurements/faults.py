"""Single bit flips in a model's arithmetic: their effect on loss and gradients, and detection by checksums."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .measurement import Measurement, Proxy, Row, intercept, relative_error

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model
    from lowprec.recipe import BoundRecipe, Recipe
    from lowprec.recipe.linears import GemmSpec
    from lowprec.scaling.quantized import Quantized

Array = NDArray[Any]
#: Bits of a float32: sign, exponent bits from the highest, mantissa bits. An FP22 register has some of them.
FLOAT32_BITS = (31, 30, 29, 26, 23, 22, 18, 10)
#: Places, and the bits that are flipped there. Codes are E4M3, logits are BF16 in float32.
BITS: dict[str, tuple[int, ...]] = {
    "code of x": (7, 6, 5, 3, 2, 0),
    "code of w": (7, 6, 5, 3, 2, 0),
    "scale of x": FLOAT32_BITS,
    "FP22 register": FLOAT32_BITS,
    "float32 sum": FLOAT32_BITS,
    "router logit": (31, 30, 29, 26, 23, 22, 18),
    "master weight": FLOAT32_BITS,
}


@dataclass(frozen=True)
class Faults(Measurement):
    """Effect of single bit flips in the forward pass or in a weight on loss and gradients.

    Each flip is at a random position in a random linear layer: in an operand, a sum, a master weight, or a router's
    logits. If it is in a product, a checksum (`lowprec.checksum`) of the operands before the flip tests whether it is
    detected.

    Parameters
    ----------
    trials : int
        Number of flips of each bit at each place, per batch.
    sequences : int
        Number of sequences of each batch that are used.
    loss_threshold : float
        Smallest change of the loss, in percent, at which a flip counts as harmful.
    """

    trials: int = 2
    sequences: int = 4
    loss_threshold: float = 0.1
    metrics: ClassVar[Mapping[str, str]] = {
        "harmful": "share of flips that change the loss by more than 0.1 %, or make it no number, %",
        "detected": "share of flips that the checksum sees, %",
        "missed": "share of flips that are harmful and not seen, %",
        "no_number": "share of flips after which loss or gradient is not finite, %",
        "loss_percent": "change of the loss, absolute, of flips after which it is finite, %",
        "gradient_error": "|g - g_without| / |g_without|, of flips after which it is finite",
        "false_alarms": "share of products without a flip that the checksum takes for wrong, %",
    }
    axis: ClassVar[str] = "place and bit"
    panels: ClassVar[tuple[str, ...]] = ("harmful", "detected", "missed", "gradient_error")
    joined: ClassVar[bool] = False
    own_controls: ClassVar[bool] = True

    def measure(
        self, model: Model, recipe: Recipe, reference: Recipe, tokens: NDArray[np.uint8], seed: int
    ) -> Iterator[Row]:
        """Yield one row per flip."""
        batch = tokens[: self.sequences]
        bound = recipe.bind(0, layers=model.config.layers)
        layers = [
            name
            for name, shape in model.config.parameter_shapes().items()
            if len(shape) == 2 and name != "embed" and ".experts." not in name and bound.recipe.spec(name).quantized
        ]
        loss, gradients = model.with_bound(bound).loss_and_grads(batch)
        for at, (place, bits) in enumerate(BITS.items()):
            for bit in bits:
                for trial in range(self.trials):
                    rng = np.random.default_rng([seed, at, bit, trial])
                    found = list(model.biases) if place == "router logit" else layers
                    fault = Fault(place, bit, found[int(rng.integers(len(found)))], rng)
                    yield Row(f"{place}, bit {bit}", self._effect(model, recipe, batch, fault, loss, gradients))

    def _effect(
        self, model: Model, recipe: Recipe, batch: Array, fault: Fault, loss: float, gradients: Mapping[str, Array]
    ) -> dict[str, float]:
        faulty = copy.copy(model)
        faulty.params = fault.weights(model.params)
        bound = with_fault(recipe.bind(0, layers=model.config.layers), fault)
        with np.errstate(all="ignore"):
            got, ours = faulty.with_bound(bound).loss_and_grads(batch)
            error = relative_error((ours[name], gradient) for name, gradient in gradients.items())
        finite = math.isfinite(got) and math.isfinite(error)
        change = 100 * abs(got / loss - 1) if math.isfinite(got) else math.inf
        harmful = not change <= self.loss_threshold
        return {
            "harmful": 100.0 * harmful,
            "detected": 100.0 * fault.detected,
            "missed": 100.0 * (harmful and not fault.detected),
            "no_number": 100.0 * (not finite),
            "loss_percent": change if finite else math.nan,
            "gradient_error": error if finite else math.nan,
            "false_alarms": math.nan if fault.false_alarm is None else 100.0 * fault.false_alarm,
        }


# --- where a bit is flipped ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Fault:
    """One flip: place, bit, layer, and the generator that draws the rest of its position.

    Attributes
    ----------
    detected : bool
        Whether the checksum detected the flip; False for places outside of products.
    false_alarm : bool or None
        Whether the checksum reported an error in the same product without the flip; None if it was not tested.
    """

    place: str
    bit: int
    layer: str
    rng: np.random.Generator
    detected: bool = False
    false_alarm: bool | None = field(default=None)

    def weights(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """Return the weights, with the flip if it is in a weight."""
        if self.place != "master weight":
            return dict(params)
        faulty = params[self.layer].copy()
        flip(faulty, int(self.rng.integers(faulty.size)), self.bit)
        return {**params, self.layer: faulty}

    def result(self, y: Array) -> Array:
        """Return a router's logits, with the flip in one of them."""
        faulty = y.copy()
        flip(faulty, int(self.rng.integers(faulty.size)), self.bit)
        return faulty

    def product(self, a: Quantized, b: Quantized, spec: GemmSpec) -> tuple[Array, Array, NDArray[np.intp]]:
        """Return the part of ``A @ B.T`` that the flip affects, in float32, and its rows and columns."""
        rows, columns = np.arange(a.shape[0]), np.arange(b.shape[0])
        i, j = int(self.rng.integers(len(rows))), int(self.rng.integers(len(columns)))
        tile, k = int(self.rng.integers(-(-a.shape[1] // TILE))), int(self.rng.integers(a.shape[1]))
        left, right = [i] if self.place != "code of w" else rows, [j] if self.place != "code of x" else columns
        if self.place == "scale of x":
            right = columns
        x, y = OperandRows.of(a, left), OperandRows.of(b, right)
        if self.place == "code of x":
            flip(x.codes, k, self.bit)
        elif self.place == "code of w":
            flip(y.codes, k, self.bit)
        elif self.place == "scale of x":
            flip(x.scales, tile, self.bit)
        at = (tile, self.bit) if self.place in ("FP22 register", "float32 sum") else None
        step = (
            int(self.rng.integers(1, TILE // spec.accumulator.group_size + 1)) if self.place == "FP22 register" else 0
        )
        return emulated_product(x, y, spec, at, step), np.asarray(left), np.asarray(right)


#: Number of values along K that share a scale and a chain.
TILE = 128


@dataclass
class OperandRows:
    """Some rows of an operand: codes [R, K], scales [R, tiles], format."""

    codes: Array
    scales: NDArray[np.float32]
    format: Any

    @classmethod
    def of(cls, q: Quantized, rows: Any) -> OperandRows:
        """Copy some rows of a quantized operand."""
        each = q.granularity.block((q.shape[0], q.shape[1]))[0]
        at = np.asarray(rows)
        return cls(np.ascontiguousarray(q.codes[at]), np.ascontiguousarray(q.scale[at // each]), q.format)


def flip(array: Array, place: int, bit: int) -> None:
    """Flip a bit of one element, in place.

    Examples
    --------
    >>> x = np.array([1.0, 2.0], np.float32)
    >>> flip(x, 1, 31)
    >>> x
    array([ 1., -2.], dtype=float32)
    """
    words = array.reshape(-1).view(f"uint{8 * array.itemsize}")
    words[place] ^= words.dtype.type(1 << bit)


def emulated_product(
    a: OperandRows, b: OperandRows, spec: GemmSpec, fault: tuple[int, int] | None, step: int
) -> NDArray[np.float32]:
    """Return ``A @ B.T`` chain by chain, promoted as in `lowprec.gemm`; scales may have flipped bits.

    Parameters
    ----------
    a, b : OperandRows
        Rows of both operands.
    spec : GemmSpec
        Accumulator, with promotion every 128 products.
    fault : (int, int), optional
        Tile along K after which a bit of the running sum is flipped, and the index of that bit.
    step : int
        If positive, flip the bit in the accumulator instead, after this number of instructions in the tile's chain.
    """
    import lowprec as lp
    from lowprec.order.exact import fma

    options: dict[str, Any] = {"accumulator": spec.accumulator, "a_format": a.format, "b_format": b.format}
    total = np.zeros((len(a.codes), len(b.codes)), np.float32)
    for tile in range(a.scales.shape[1]):
        at, stop = tile * TILE, min((tile + 1) * TILE, a.codes.shape[1])
        here = fault is not None and fault[0] == tile
        middle = min(at + step * spec.accumulator.group_size, stop) if here and step else stop
        chain = lp.mma(a.codes[:, at:middle], b.codes[:, at:middle], **options)
        if here and step and fault is not None:
            flip(chain, 0, fault[1])
            if middle < stop:
                chain = lp.mma(a.codes[:, middle:stop], b.codes[:, middle:stop], chain, **options)
        with np.errstate(all="ignore"):
            total = fma(a.scales[:, tile, None] * b.scales[:, tile], chain, total)
        if here and not step and fault is not None:
            flip(total, 0, fault[1])
    return total


def with_fault(bound: BoundRecipe, fault: Fault) -> Any:
    """Return a bound recipe with one flip in the forward pass of its layer."""
    if fault.place == "master weight":
        return bound
    return intercept(bound, lambda layer, ops: _FaultyOps(ops, fault, bound) if layer == fault.layer else ops)


class _FaultyOps(Proxy):
    def __init__(self, ops: Any, fault: Fault, bound: BoundRecipe) -> None:
        super().__init__(ops)
        self._fault, self._bound = fault, bound

    def fprop(self, x: Array, w: Array, **rest: Any) -> tuple[Array, Any]:
        import lowprec as lp

        y, saved = self._inner.fprop(x, w, **rest)
        if self._fault.place == "router logit":
            return self._fault.result(y), saved
        spec = self._bound.recipe.spec(self._fault.layer, self._bound.layers).fprop
        a, b = saved.x.row, saved.w
        options: dict[str, Any] = {"accumulator": spec.accumulator, "promote_every": spec.promote_every}
        whole = lp.gemm(a, b, library=spec.library, **options)
        self._fault.false_alarm = lp.checksum(whole, a, b, **options).failed
        found, rows, columns = self._fault.product(a, b, spec)
        whole[np.ix_(rows, columns)] = found
        self._fault.detected = lp.checksum(whole, a, b, **options).failed
        return lp.round_to(whole, self._bound.recipe.activations), saved
