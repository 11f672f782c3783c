"""The precision of one layer by itself, as a text: for layers that belong to a model of another framework."""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

from lowprec.codec import Codec

from . import data
from .description import Description
from .linears import LinearSpec
from .operands import TensorState
from .operations import LinearOps, linear_ops


class Precision(NamedTuple):
    """What a recipe says of a layer.

    Attributes
    ----------
    spec : LinearSpec
        The multiplications.
    activations : str
        Format in which activations are stored.
    cache : Codec or None
        Codec of the input until Wgrad reads it.
    weights : str
        What of a weight is multiplied, see `lowprec.Recipe`.

    Examples
    --------
    >>> import lowprec as lp
    >>> said = Precision.of(lp.recipes["dsv3"], "layers.0.attn.wo")
    >>> said.cache.name, Precision.from_key(said.key) == said
    ('e5m6_1x128_ue8m0', True)
    """

    spec: LinearSpec
    activations: str = "bfloat16"
    cache: Codec | None = None
    weights: str = "bfloat16"

    @classmethod
    def of(cls, recipe: Description, layer: str, layers: int | None = None) -> Precision:
        """Return what a recipe says of a layer, in a model of so many blocks."""
        return cls(recipe.spec(layer, layers), recipe.activations, recipe.input_cache(layer), recipe.weights)

    @property
    def key(self) -> str:
        """A text: how activations are stored, and JSON of the rest with what all names stand for."""
        w = data.writer(full=True)
        row, cache = data.linear_row(self.spec, w), None if self.cache is None else w.name("codec", self.cache)
        said = {"linear": row, "weights": self.weights, "cache": cache, "definitions": w.table}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return f"{self.activations} {text}"

    @classmethod
    def from_key(cls, key: str) -> Precision:
        """Return what a key says: objects as they were when it was made, in another process too."""
        return _from_key(key)

    def ops(self, state: TensorState | None = None) -> LinearOps:
        """Return the multiplications."""
        return linear_ops(self.spec, self.activations, self.cache, state, self.weights)


@functools.lru_cache(4096)
def _from_key(key: str) -> Precision:
    activations, _, text = key.partition(" ")
    said = json.loads(text)
    r = data.reader(said["definitions"], "a layer's precision", check=False)
    cache = None if said["cache"] is None else r.find("codec", said["cache"])
    return Precision(data.linear_of(said["linear"], r), activations, cache, said["weights"])
