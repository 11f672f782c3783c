"""The precision of one layer by itself, as a text: for layers that belong to a model of another framework."""

from __future__ import annotations

import functools
from typing import NamedTuple

from lowprec.codec.catalogue import codecs

from .description import Description
from .linears import LinearSpec
from .operations import LinearOps, TensorState, linear_ops


class Precision(NamedTuple):
    """What a recipe says of a layer.

    Attributes
    ----------
    spec : LinearSpec
        The multiplications.
    activations : str
        Format in which activations are stored.
    cache : str
        Codec of the input until Wgrad reads it; empty if there is none.
    weights : str
        What of a weight is multiplied, see `lowprec.Recipe`.

    Examples
    --------
    >>> import lowprec as lp
    >>> said = Precision.of(lp.recipes["dsv3"], "layers.0.attn.wo")
    >>> said.cache, Precision.from_key(said.key) == said
    ('e5m6_1x128_ue8m0', True)
    """

    spec: LinearSpec
    activations: str = "bfloat16"
    cache: str = ""
    weights: str = "bfloat16"

    @classmethod
    def of(cls, recipe: Description, layer: str, layers: int | None = None) -> Precision:
        """Return what a recipe says of a layer, in a model of so many blocks."""
        return cls(recipe.spec(layer, layers), recipe.activations, recipe.input_cache(layer), recipe.weights)

    @property
    def key(self) -> str:
        """A text: how activations are stored, weights, the codec or "-", and the multiplications."""
        return f"{self.activations} {self.weights} {self.cache or '-'} {self.spec.to_text()}"

    @classmethod
    def from_key(cls, key: str) -> Precision:
        """Return what a key says."""
        return _from_key(key)

    def ops(self, state: TensorState | None = None) -> LinearOps:
        """Return the multiplications."""
        cache = codecs[self.cache] if self.cache else None
        return linear_ops(self.spec, self.activations, cache, state, self.weights)


@functools.lru_cache(4096)
def _from_key(key: str) -> Precision:
    activations, weights, cache, text = key.split(" ", 3)
    return Precision(LinearSpec.from_text(text), activations, "" if cache == "-" else cache, weights)
