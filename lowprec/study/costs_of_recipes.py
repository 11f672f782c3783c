"""How many bits a recipe spends on a value: in multiplications, and on the way to the experts and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowprec.codecs import codecs
from lowprec.formats import formats
from lowprec.quantizers import SCALE_BITS
from lowprec.recipe import TensorSpec
from lowprec.scaling import Granularity


def bits_of(recipe: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean bits of a value, scales included.

    Parameters
    ----------
    recipe : mapping
        A recipe as `run.json` keeps it.

    Returns
    -------
    dict
        "operands": mean over input, weight and gradient of most linear layers; "wires": mean over dispatch, combine
        and their gradients.
    """
    wires = [codecs[recipe[wire]].bits_per_value for wire in ("dispatch", "combine", "dispatch_grad", "combine_grad")]
    return {"operands": _operands(recipe), "wires": sum(wires) / len(wires)}


def _operands(recipe: Mapping[str, Any]) -> float:
    specs = _main_linear(recipe)
    return sum(map(tensor_bits, specs)) / len(specs) if specs else 16.0


def tensor_bits(spec: TensorSpec) -> float:
    """Return the bits of a value with its share of the block's scale.

    Examples
    --------
    >>> tensor_bits(TensorSpec("e4m3fn", "1x128", scale="ue8m0")), tensor_bits(TensorSpec("bfloat16", "none"))
    (8.0625, 16.0)
    """
    bits = float(formats[spec.format].bits)
    if spec.plain:
        return bits
    block = Granularity.parse(spec.granularity)
    if block.rows is None or block.columns is None:
        return bits
    return bits + float(SCALE_BITS[spec.resolved.scale]) / (block.rows * block.columns)


def _main_linear(recipe: Mapping[str, Any]) -> list[TensorSpec]:
    """Return input, weight and gradient of the rule that most linear layers follow."""
    rules = recipe.get("linear") or []
    rule = next((rule for rule in rules if rule["layers"] == "layers.*.attn.w*"), rules[-1] if rules else None)
    if rule is None:
        return []
    return [TensorSpec.parse(text) for text in (rule["fprop"]["a"], rule["fprop"]["b"], rule["dgrad"]["a"])]
