"""Precision of a single layer, serialized to a string: for layers of models in another framework."""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

from lowprec.codec import Codec

from . import data
from .description import RecipeFields
from .linears import LinearSpec
from .names import LINEARS, check_pattern
from .operands import TensorState
from .operations import LinearOps, linear_ops


class LayerPrecision(NamedTuple):
    """The part of a recipe that applies to one layer.

    Attributes
    ----------
    spec : LinearSpec
        Multiplications of the layer.
    activations : str
        Storage format of activations.
    cache : Codec or None
        Codec of the input that is saved for Wgrad.
    weight_source : str
        Source of quantized weights, see `lowprec.Recipe`.

    Examples
    --------
    >>> import lowprec as lp
    >>> p = LayerPrecision.of(lp.recipes["dsv3"], "layers.0.attn.wo")
    >>> p.cache.name, LayerPrecision.from_key(p.key) == p
    ('e5m6_1x128_ue8m0', True)
    """

    spec: LinearSpec
    activations: str = "bfloat16"
    cache: Codec | None = None
    weight_source: str = "bfloat16"

    @classmethod
    def of(cls, recipe: RecipeFields, layer: str, layers: int | None = None) -> LayerPrecision:
        """Return the precision of a layer under a recipe, in a model with `layers` blocks.

        Raises
        ------
        UnknownNameError
            If no model has such a layer.
        """
        check_pattern(layer, LINEARS)
        return cls(recipe.spec(layer, layers), recipe.activations, recipe.input_cache(layer), recipe.weight_source)

    @property
    def key(self) -> str:
        """The precision as a string: storage format of activations, and JSON of the rest with all definitions."""
        w = data.writer(full=True)
        row, cache = data.linear_row(self.spec, w), None if self.cache is None else w.name("codec", self.cache)
        fields = {"linear": row, "weight_source": self.weight_source, "cache": cache, "definitions": w.table}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return f"{self.activations} {text}"

    @classmethod
    def from_key(cls, key: str) -> LayerPrecision:
        """Restore the precision from a key, with all objects as they were defined when the key was made."""
        return _from_key(key)

    def ops(self, state: TensorState | None = None) -> LinearOps:
        """Return the multiplications of a layer."""
        return linear_ops(self.spec, self.activations, self.cache, state, self.weight_source)


@functools.lru_cache(4096)
def _from_key(key: str) -> LayerPrecision:
    activations, _, text = key.partition(" ")
    fields = json.loads(text)
    r = data.reader(fields["definitions"], "a layer's precision", check=False)
    cache = None if fields["cache"] is None else r.find("codec", fields["cache"])
    return LayerPrecision(data.linear_of(fields["linear"], r), activations, cache, fields["weight_source"])
