"""Operands of GEMMs: recorded from a model, synthetic, or extended to a larger K."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .measurement import Proxy, intercept

if TYPE_CHECKING:
    from lowprec.moe.model.model import Model

Array = NDArray[Any]
Matrix = NDArray[np.float32]

#: Fractions of a study's tokens that Wgrad sums over.
PARTS = (32, 8, 2, 1)
#: Value of K for extended operands.
EXTRAPOLATED_K = 16384


def lengths(tokens: int, batch: int) -> tuple[int, ...]:
    """Return the numbers of tokens that Wgrad sums over: whole batches, in ascending order.

    Examples
    --------
    >>> lengths(65536, 2048), lengths(8192, 2048)
    ((2048, 8192, 32768, 65536), (2048, 4096, 8192))
    """
    return tuple(sorted({max(1, tokens // part // batch) * batch for part in PARTS}))


class Operands(NamedTuple):
    """Float32 operands of a layer with N outputs and K inputs, in one batch of T tokens; the last axis is summed over.

    Attributes
    ----------
    x : [rows, K]
        Fprop's operand for some tokens.
    w : [N, K]
        Weight.
    dy : [rows, N]
        Dgrad's operand for some tokens.
    dy_columns, x_columns : [columns, T]
        Wgrad's operands, all tokens of some outputs and inputs.
    """

    x: Matrix
    w: Matrix
    dy: Matrix
    dy_columns: Matrix
    x_columns: Matrix


class OperandRecorder:
    """Recorder of the operands of layers.

    Parameters
    ----------
    rows, columns : int
        Number of rows and columns to keep, see `Operands`.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._inputs: dict[str, tuple[Matrix, Matrix, Matrix]] = {}
        self.operands: dict[str, Operands] = {}

    def forward(self, layer: str, x: Array, w: Array) -> None:
        """Record Fprop's operands."""
        self._inputs[layer] = (sample_rows(x, self._rows), _copied(w), sample_rows(x.T, self._columns))

    def backward(self, layer: str, dy: Array) -> None:
        """Record the operands of the backward pass."""
        x, w, x_columns = self._inputs[layer]
        found = Operands(x, w, sample_rows(dy, self._rows), sample_rows(dy.T, self._columns), x_columns)
        self.operands[layer] = found


class _RecordedOps(Proxy):
    def __init__(self, layer: str, ops: Any, recorder: OperandRecorder) -> None:
        super().__init__(ops)
        self._layer, self._recorder = layer, recorder

    def fprop(self, x: Array, w: Array, **rest: Any) -> tuple[Array, Any]:
        self._recorder.forward(self._layer, x, w)
        result: tuple[Array, Any] = self._inner.fprop(x, w, **rest)
        return result

    def dgrad(self, dy: Array, saved: Any) -> Array:
        self._recorder.backward(self._layer, dy)
        result: Array = self._inner.dgrad(dy, saved)
        return result


def record_operands(
    model: Model, tokens: NDArray[np.uint8], wanted: Callable[[str], bool], rows: int, columns: int
) -> tuple[float, dict[str, Operands]]:
    """Run a batch uint8 [B, S + 1] through a model in BF16; return the loss and the operands of its layers."""
    from lowprec.recipe import recipes

    recorder = OperandRecorder(rows, columns)
    bound = intercept(
        recipes["bf16"].bind(0, layers=model.config.layers),
        lambda layer, ops: _RecordedOps(layer, ops, recorder) if wanted(layer) else ops,
    )
    loss, _ = model.with_bound(bound).loss_and_grads(tokens)
    return float(loss), {name: recorder.operands[name] for name in model.params if name in recorder.operands}


def sample_rows(x: Array, count: int) -> Matrix:
    """Return `count` random rows of a matrix, in order, or all rows if there are fewer.

    The choice is random but fixed. Equally spaced rows might all be the first of their sequences, where queries do not
    receive a gradient.

    Examples
    --------
    >>> sample_rows(np.arange(10.0).reshape(10, 1), 3).shape
    (3, 1)
    """
    size = len(x)
    return _copied(x if count >= size else x[np.sort(np.random.default_rng(size).permutation(size)[:count])])


def _copied(x: Array) -> Matrix:
    return np.array(x, dtype=np.float32, order="C")


# --- longer operands than were recorded ----------------------------------------------------------------------------


def tile_operands(
    a: Matrix, b: Matrix, length: int, growth: float, wanted: float, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Return operands of about `length` columns, composed of copies of shorter ones, with a given size of their sums.

    Every copy permutes the columns and has a random sign for each row of either operand. The more signs
    agree, the larger are the sums: with R copies, the ratio defined under `growth` becomes
    ``growth (1 + (R - 1) m^2)``, where m is the mean sign of the products.

    Parameters
    ----------
    a, b : [M, K], [N, K]
        Recorded operands.
    length : int
        Requested K.
    growth : float
        Ratio of the mean square of the recorded sums to that of sums of independent products.
    wanted : float
        Ratio that the returned operands should have.
    rng : Generator
        Generator of permutations and signs.
    """
    copies = max(2, round(length / a.shape[1]))
    square = min(1.0, max(0.0, (wanted / growth - 1.0) / (copies - 1)))
    agree = 0.5 + 0.5 * square**0.25  # signs of both operands, each with mean m^(1/2)
    orders = [rng.permutation(a.shape[1]) for _ in range(copies)]
    longer = []
    for operand in (a, b):
        signs = np.where(rng.random((copies, len(operand), 1)) < agree, np.float32(1), np.float32(-1))
        longer.append(
            np.concatenate([sign * operand[:, order] for sign, order in zip(signs, orders, strict=True)], axis=1)
        )
    return longer[0], longer[1]


# --- synthetic families: effects of length and coherence, without a model -------------------------------------------


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Draw both operands from the standard normal distribution."""
    return rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(shape, dtype=np.float32)


def channels(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Draw normal operands; one channel in a hundred of the first operand is 64 times as large."""
    a, b = normal(rng, shape)
    a[:, ::100] *= 64
    return a, b


def positive(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Draw both operands uniformly from 0 to 1."""
    return rng.random(shape, dtype=np.float32), rng.random(shape, dtype=np.float32)


def shared(coherence: float) -> Callable[[np.random.Generator, tuple[int, int]], tuple[Matrix, Matrix]]:
    """Return a family of normal operands; the products within a sum have the given correlation.

    Every row is the sum of a constant and noise: ``a[i, k] = sqrt(1 - s) g[i, k] + sqrt(s) h[i]``. Two products of one
    sum then have the correlation s^2, so s is the square root of `coherence`.
    """
    share = float(np.sqrt(coherence))
    noise, common = np.float32(np.sqrt(1 - share)), np.float32(np.sqrt(share))

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Matrix, Matrix]:
        a, b = normal(rng, shape)
        for operand in (a, b):
            operand *= noise
            operand += common * rng.standard_normal((shape[0], 1), dtype=np.float32)
        return a, b

    return draw


#: Correlations of products in the families with a shared direction.
COHERENCES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
#: The families by name.
FAMILIES = {
    "normal": normal, "channels": channels, "positive": positive,
    **{f"shared_{coherence:g}": shared(coherence) for coherence in COHERENCES},
}  # fmt: skip
