"""Layers with explicit forward and backward passes; no automatic differentiation.

Shapes: T tokens (batch times sequence, flat), C channels. Every layer follows one pattern::

    y, saved = layer.forward(params, x)          # params: every parameter of the model by name
    d_x = layer.backward(params, grads, d_y, saved)     # writes the layer's own gradients into `grads`

The arithmetic here does not depend on the precision. A `Linear` calls the three GEMMs that its recipe bound to its
name, and `recipe.store` rounds stored tensors to the recipe's storage format: the outputs of layers, the residual
stream and their gradients are BF16 values in float32 arrays, or unrounded float64 in gradient checks. Inside a layer
the arithmetic is float32 or better, in a fixed order, so that results do not depend on threads or machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowprec._threads import run_chunks
from lowprec.kernels.model import nn
from lowprec.moe.model.memory import SAVE_ALL, RecomputePolicy

if TYPE_CHECKING:
    from lowprec.codec import Codec
    from lowprec.recipe import BoundRecipe

Array = npt.NDArray[Any]
Params = Mapping[str, Array]
Grads = MutableMapping[str, Array]

# Fewer rows than this do not pay for a second thread; a multiple of nn.BLOCK, as sums over tokens require.
_GRAIN = 8 * nn.BLOCK


def run_rows(kernel: Callable[..., None], rows: int, *arguments: Any) -> None:
    """Call ``kernel(*arguments, start, stop)`` over pieces of `rows` rows, on the thread pool."""
    run_chunks(lambda start, stop: kernel(*arguments, start, stop), rows, _GRAIN)


class Linear:
    """y = x W^T. The recipe's rules select the precision of its three GEMMs by its name.

    Parameters
    ----------
    name : str
        Name of the layer and of its weight W [outputs, inputs].
    recipe : BoundRecipe
        Recipe that binds the GEMMs.
    """

    def __init__(self, name: str, recipe: BoundRecipe) -> None:
        self.name = name
        self.ops = recipe.linear(name)
        self.watch = recipe.watch

    def forward(self, params: Params, x: Array, shared_with: tuple[Linear, Any] | None = None) -> tuple[Array, Any]:
        """Return y [T, outputs] for x [T, inputs], and the data that the recipe saves for the backward GEMMs.

        `shared_with` is (layer, saved) of a layer with the same x. If both quantize x in the same way, x is quantized
        and saved once.
        """
        if shared_with is None:  # else the other layer has saved it
            self.watch(f"{self.name}/x", x)
        return self.ops.fprop(x, params[self.name], cached=self._shared(shared_with))

    def cached_input(self, saved: Any) -> Any:
        """Return x as decoded from the recipe's cache, which must exist."""
        return self.ops.cached_input(saved)

    def with_input(self, saved: Any, x: Array | None, shared_with: tuple[Linear, Any] | None = None) -> Any:
        """Return `saved` with its input recomputed from x, or without an input if x is None."""
        if x is None:
            return saved._replace(x=None)
        shared = self._shared(shared_with)
        return saved._replace(x=self.ops.input(x) if shared is None else shared)

    def _shared(self, shared_with: tuple[Linear, Any] | None) -> Any:
        if shared_with is None or self.ops.input_spec is None or shared_with[0].ops.input_spec != self.ops.input_spec:
            return None
        return shared_with[1].x

    def backward(self, grads: Grads, d_y: Array, saved: Any) -> Array:
        """Write the weight's gradient; return the gradient of x."""
        self.watch(f"{self.name}/dy", d_y)
        grads[self.name] = self.ops.wgrad(d_y, saved)
        return self.ops.dgrad(d_y, saved)


class _SavedNorm(NamedTuple):
    x: Array
    inverse_rms: Array


class RMSNorm:
    """y = gain * x / sqrt(mean(x**2) + eps), computed in float64.

    Parameters
    ----------
    name : str
        Name of the gain parameter [C].
    eps : float
        Constant that keeps a row of zeros finite.
    recipe : BoundRecipe
        Storage format of the output.
    """

    def __init__(self, name: str, eps: float, recipe: BoundRecipe) -> None:
        self.name = name
        self.eps = eps
        self.store = recipe.store
        self.store_output = recipe.storage(name)

    def forward(self, params: Params, x: Array) -> tuple[Array, _SavedNorm]:
        """Map x [T, C] to y [T, C]."""
        y = np.empty_like(x)
        inverse_rms = np.empty(len(x))
        run_rows(nn.rms_norm_forward, len(x), x, params[self.name], self.eps, y, inverse_rms)
        return self.store_output(y), _SavedNorm(x, inverse_rms)

    def again(self, params: Params, saved: _SavedNorm) -> Array:
        """Recompute y from the saved input."""
        return self.forward(params, saved.x)[0]

    def backward(self, params: Params, grads: Grads, d_y: Array, saved: _SavedNorm, d_x: Array) -> Array:
        """Write the gain's gradient; add that of x to `d_x` [T, C], which may hold the residual stream's gradient."""
        gain = params[self.name]
        partial = np.zeros((-(-len(d_y) // nn.BLOCK), gain.size))
        run_rows(nn.rms_norm_backward, len(d_y), d_y, saved.x, gain, saved.inverse_rms, d_x, partial)
        grads[self.name] = np.empty_like(gain)
        nn.sum_blocks(partial, grads[self.name])
        return self.store(d_x)


class _SavedFeedForward(NamedTuple):
    w1: Any
    w3: Any
    w2: Any
    a: Any
    b: Any


class FeedForward:
    """SwiGLU network y = W2 (silu(W1 x) * W3 x): the dense layer, the shared expert and each routed expert.

    Parameters
    ----------
    name : str
        Prefix of the linear layers `name`.w1, .w3 and .w2.
    recipe : BoundRecipe
        Precision of their GEMMs, and of stored activations.
    recompute : RecomputePolicy
        Activations that the backward pass recomputes.
    cache : Codec, optional
        Codec of the saved inputs of SwiGLU, from which the backward pass then recomputes its output.
    limit : float
        Upper limit of W1 x, and limit of the magnitude of W3 x; 0 for no limit. Saved inputs are not clipped.
    """

    def __init__(
        self, name: str, recipe: BoundRecipe, recompute: RecomputePolicy = SAVE_ALL, cache: Codec | None = None,
        limit: float = 0.0,
    ) -> None:  # fmt: skip
        self.w1, self.w3, self.w2 = (Linear(f"{name}.{w}", recipe) for w in ("w1", "w3", "w2"))
        self.store = recipe.store
        self.cache = cache
        self.limit = limit
        self.remake = recompute.swiglu or cache is not None

    def forward(self, params: Params, x: Array, *, keep_input: bool = True) -> tuple[Array, _SavedFeedForward]:
        """Map x [T, d] to y [T, d]; if x is not saved, pass it to `backward`."""
        a, saved1 = self.w1.forward(params, x)
        b, saved3 = self.w3.forward(params, x, shared_with=(self.w1, saved1))
        y, saved2 = self.w2.forward(params, self._hidden(a, b))
        if self.remake:
            saved2 = self.w2.with_input(saved2, None)
        if not keep_input:
            saved1, saved3 = self.w1.with_input(saved1, None), self.w3.with_input(saved3, None)
        if self.cache is not None:
            return y, _SavedFeedForward(saved1, saved3, saved2, self.cache.encode(a), self.cache.encode(b))
        return y, _SavedFeedForward(saved1, saved3, saved2, a, b)

    def backward(self, grads: Grads, d_y: Array, saved: _SavedFeedForward, x: Array | None = None) -> Array:
        """Return the gradient of x [T, d]."""
        a, b, saved2 = saved.a, saved.b, saved.w2
        if self.cache is not None:
            a, b = (self.store(self.cache.decode(kept)) for kept in (a, b))
        if self.remake:
            saved2 = self.w2.with_input(saved2, self._hidden(a, b))
        d_hidden = self.w2.backward(grads, d_y, saved2)
        d_a, d_b = np.empty_like(d_hidden), np.empty_like(d_hidden)
        run_rows(nn.swiglu_backward, len(d_hidden), d_hidden, *self._cut(a, b), d_a, d_b)
        if self.limit:
            d_a[a > self.limit] = 0
            d_b[np.abs(b) > self.limit] = 0
        saved1, saved3 = saved.w1, saved.w3
        if x is not None:
            saved1 = self.w1.with_input(saved1, x)
            saved3 = self.w3.with_input(saved3, x, shared_with=(self.w1, saved1))
        d_x = self.w1.backward(grads, self.store(d_a), saved1)
        d_x += self.w3.backward(grads, self.store(d_b), saved3)
        return self.store(d_x)

    def _hidden(self, a: Array, b: Array) -> Array:
        hidden = np.empty_like(a)
        run_rows(nn.swiglu_forward, len(a), *self._cut(a, b), hidden)
        return self.store(hidden)

    def _cut(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the clipped inputs of SwiGLU."""
        if not self.limit:
            return a, b
        limit = a.dtype.type(self.limit)
        return np.minimum(a, limit), np.clip(b, -limit, limit)


class Embedding:
    """Lookup of table rows by token; the table's gradient is summed in order of the tokens.

    Parameters
    ----------
    name : str
        Name of the table [V, d].
    recipe : BoundRecipe
        Storage format of the rows.
    """

    def __init__(self, name: str, recipe: BoundRecipe) -> None:
        self.name = name
        self.store = recipe.storage(name)

    def forward(self, params: Params, tokens: Array) -> Array:
        """Map tokens [T] to vectors [T, d]."""
        table = params[self.name]
        y = np.empty((len(tokens), table.shape[1]), dtype=table.dtype)
        run_rows(nn.embed_forward, len(tokens), tokens, table, y)
        return self.store(y)

    def backward(self, params: Params, grads: Grads, d_y: Sequence[Array], tokens: Sequence[Array]) -> None:
        """Write the gradient of the table, summed over all uses, given their tokens [T] and gradients [T, d]."""
        grads[self.name] = np.empty_like(params[self.name])
        whole = (d_y[0], tokens[0]) if len(d_y) == 1 else (np.concatenate(d_y), np.concatenate(tokens))
        nn.embed_backward(*whole, grads[self.name])


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    """Return the mean of -log softmax(logits)[target] in nats and its gradient with respect to the logits.

    Parameters
    ----------
    logits : float array [T, V]
        Logits, not rounded; exponentials and sums are float64.
    targets : integer array [T]
        Class of each row; a row with a negative target adds 0 to the sum and has zero gradient.

    Returns
    -------
    tuple of float and float array [T, V]
        Mean loss, summed in order of the tokens, and its gradient in the logits' dtype.

    Examples
    --------
    >>> loss, gradient = cross_entropy(np.zeros((1, 4), np.float32), np.array([2], np.uint8))
    >>> round(loss, 6), gradient
    (1.386294, array([[ 0.25,  0.25, -0.75,  0.25]], dtype=float32))
    """
    losses, d_logits = token_cross_entropy(logits, targets)
    return float(nn.mean(losses)), d_logits


def token_cross_entropy(logits: Array, targets: Array) -> tuple[npt.NDArray[np.float64], Array]:
    """Return -log softmax(logits)[target] of each token, float64 [T], and the gradient of their mean."""
    losses = np.empty(len(logits))
    d_logits = np.empty_like(logits)
    run_rows(nn.cross_entropy, len(logits), logits, np.asarray(targets, dtype=np.int64), losses, d_logits)
    return losses, d_logits
