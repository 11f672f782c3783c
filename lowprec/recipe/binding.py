"""A recipe bound to one run: the operations that its layers hold, and the state of those that are not pure functions.

Nearly all of a recipe is stateless. All of its state is here: scales that follow from the amax of earlier steps, and
the step that determines random bits, together with the run's seed, the layer and the tensor. A checkpoint that stores
`state_dict` therefore resumes to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec.attn.kernel import AttentionKernel
from lowprec.cast.casts import round_in_place
from lowprec.codec.cast import is_cast, is_lossless_for
from lowprec.codec.wire import Codec
from lowprec.format.catalogue import formats
from lowprec.scaling.delayed import DelayedScaling
from lowprec.scaling.quantize import Quantized
from lowprec.scaling.spec import TensorSpec

from .description import DIRECTIONS, SAVED_ACTIVATIONS, RecipeFields
from .names import check_blocks, matches
from .operations import LinearOps, linear_ops
from .state import derive_seed, quantize_delayed

Array = NDArray[Any]
_BF16, _FLOAT32 = formats["bfloat16"], formats["float32"]


class BoundRecipe:
    """The precision of one run.

    Parameters
    ----------
    recipe : RecipeFields
        Recipe to bind; see `Recipe.bind`.
    seed : int
        Seed of the run.
    layers : int, optional
        Number of blocks of the model.

    Attributes
    ----------
    recipe : RecipeFields
        The bound recipe.
    step : int
        Number of the current step, from 0.
    observing : bool
        Whether amaxes are recorded for scales of later steps: from the first `begin_step` on, except in evaluations.
    nonfinite : set of str
        Operands of the step that held NaN or infinity, such as ``"layers.0.attn.wo/dy"``: see `watch`.

    Examples
    --------
    >>> import lowprec as lp
    >>> bound = lp.recipes["dsv3"].bind(seed=0)
    >>> y, saved = bound.linear("layers.0.attn.wo").fprop(np.ones((2, 128), np.float32), np.ones((3, 128), np.float32))
    >>> y.tolist()
    [[128.0, 128.0, 128.0], [128.0, 128.0, 128.0]]
    """

    def __init__(self, recipe: RecipeFields, seed: int = 0, layers: int | None = None) -> None:
        check_blocks([*(rule.pattern for rule in recipe.rules), *(rule.pattern for rule in recipe.storage)], layers)
        self.recipe = recipe
        self.seed = seed
        self.layers = layers
        self.step = 0
        self.observing = False
        self.nonfinite: set[str] = set()
        self._linears: dict[str, LinearOps] = {}
        self._delayed: dict[str, DelayedScaling] = {}

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.recipe.name

    def linear(self, layer: str) -> LinearOps:
        """Return the three multiplications of a linear layer; the same object on every call."""
        if layer not in self._linears:
            spec = self.recipe.spec(layer, self.layers)
            cache = self.recipe.input_cache(layer)
            state = _StateInRun(self, layer)
            self._linears[layer] = linear_ops(spec, self.recipe.activations, cache, state, self.recipe.weight_source)
        return self._linears[layer]

    def draw(self, tensor: str, frozen: bool = False) -> int:
        """Return the seed of a tensor's random bits in this step or, if `frozen`, in all; see `derive_seed`."""
        return derive_seed(self.seed, tensor, 0 if frozen else self.step)

    def watch(self, operand: str, x: Array) -> None:
        """Record the name of an operand if it holds NaN or infinity, which a saturating cast would hide."""
        if self.observing and not np.isfinite(x).all():
            self.nonfinite.add(operand)

    @property
    def attention(self) -> AttentionKernel | None:
        """Kernel of attention's forward pass; None for float32 products of the stored operands."""
        return None if self.recipe.activations == "float64" else self.recipe.attention

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the arrays that hold activations."""
        return np.dtype(np.float64 if self.recipe.activations == "float64" else np.float32)

    @property
    def store(self) -> Callable[[Array], Array]:
        """Function that rounds an array in place to the activations' storage format."""
        return _round_bf16 if self.recipe.activations == "bfloat16" else _keep

    def storage(self, name: str, *, passing: bool = False) -> Callable[[Array], Array]:
        """Return the in-place rounding that is applied when a named tensor is stored.

        With `passing=True`, for tensors that are consumed at once and never stored, a tensor is rounded only if a
        storage rule names it.
        """
        for rule in self.recipe.storage:
            if matches(name, rule.pattern, self.layers) and self.recipe.activations != "float64":
                return _Stored(rule.codec)
        return _keep if passing else self.store

    def codec(self, direction: str) -> Codec:
        """Return the codec of ``"dispatch"``, ``"combine"``, ``"dispatch_grad"`` or ``"combine_grad"``."""
        if direction not in DIRECTIONS:
            raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}")
        return self._codec(getattr(self.recipe, direction))

    def cache(self, role: str) -> Codec | None:
        """Return the codec of an activation saved for the backward pass, None if it is saved in the storage format.

        Parameters
        ----------
        role : {"attention_output", "swiglu_input"}
            Input of the linear layer after attention, or the two inputs of SwiGLU.
        """
        if role not in SAVED_ACTIVATIONS:
            raise ValueError(f"role must be one of {', '.join(SAVED_ACTIVATIONS)}, got {role!r}")
        if role == SAVED_ACTIVATIONS[0]:
            return self.recipe.input_cache("layers.0.attn.wo")
        codec = self._codec(getattr(self.recipe, f"saved_{role}"))
        stored = _BF16 if self.recipe.activations == "bfloat16" else _FLOAT32
        return None if codec is _LOSSLESS or is_lossless_for(codec, stored) else codec

    def changes(self, direction: str) -> bool:
        """Return whether a direction has a codec that can change values, see `codec`."""
        return self.codec(direction) is not _LOSSLESS

    def _codec(self, codec: Codec) -> Codec:
        return _LOSSLESS if self.recipe.activations != "bfloat16" and is_cast(codec, _BF16) else codec

    def delayed(self, tensor: str, spec: TensorSpec) -> DelayedScaling:
        """Return the `DelayedScaling` of a tensor, which holds its amax history; it is created on the first call."""
        if tensor not in self._delayed:
            self._delayed[tensor] = DelayedScaling(spec.resolved)
        return self._delayed[tensor]

    def begin_step(self, step: int) -> None:
        """Start a training step, counted from 0: amaxes of the previous step take effect."""
        if self.observing:
            for scaling in self._delayed.values():
                scaling.end_step()
        self.step, self.observing = step, True
        self.nonfinite.clear()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context manager for evaluations: no amax is recorded, so that evaluations do not affect later steps."""
        before, self.observing = self.observing, False
        try:
            yield
        finally:
            self.observing = before

    def state_dict(self) -> dict[str, Any]:
        """Return all state, as numbers, strings and arrays."""
        arrays = {
            f"{tensor}/{name}": array
            for tensor, scaling in sorted(self._delayed.items())
            for name, array in scaling.state_dict().items()
        }
        return {"step": self.step, "observing": self.observing, "delayed": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned, of the same recipe or another one.

        State of tensors without delayed scaling in this recipe is ignored; missing state is initialised as at step 0.

        Raises
        ------
        ValueError
            If a history has another length than this recipe's.
        """
        self.step, self.observing = int(state["step"]), bool(state["observing"])
        self._delayed.clear()
        found: dict[str, dict[str, Any]] = {}
        for key, array in state["delayed"].items():
            tensor, _, name = key.rpartition("/")
            found.setdefault(tensor, {})[name] = array
        for tensor, arrays in found.items():
            spec = self._delayed_spec(tensor)
            if spec is not None:
                self.delayed(tensor, spec).load_state_dict(arrays)

    def _delayed_spec(self, tensor: str) -> TensorSpec | None:
        """Return this recipe's specification of a tensor under delayed scaling, such as ``"head/dy.e5m2"``."""
        layer, _, which = tensor.rpartition("/")
        return self.recipe.spec(layer, self.layers).delayed_tensors().get(which)


class _StateInRun:
    """The state of one layer's operands, as part of the run's state."""

    def __init__(self, run: BoundRecipe, layer: str) -> None:
        self.run = run
        self.layer = layer

    def seed(self, operand: str, frozen: bool = False) -> int:
        return self.run.draw(f"{self.layer}/{operand}", frozen)

    def delayed(self, role: str, spec: TensorSpec, x: Array, seed: int) -> Quantized:
        scaling = self.run.delayed(f"{self.layer}/{role}.{spec.format.name}", spec)
        return quantize_delayed(scaling, spec, x, seed, self.run.observing)


def _keep(x: Array) -> Array:
    return x


def _round_bf16(x: Array) -> Array:
    return round_in_place(x, _BF16)


class _Stored:
    """In-place round trip of an array through a codec."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def __call__(self, x: Array) -> Array:
        x[...] = self.codec.round_trip(x)
        return x


class _Lossless:
    """Codec that changes no value, of any dtype."""

    def encode(self, x: Array) -> Array:
        return x

    def decode(self, wire: Array) -> Array:
        return wire

    def round_trip(self, x: Array) -> Array:
        return x


_LOSSLESS: Any = _Lossless()
