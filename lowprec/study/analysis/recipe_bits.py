"""Bits per value in a recipe: GEMM operands, traffic to and from experts, saved activations, and optimizer state.

Nothing is measured or estimated. The recipe names its formats, a format with its block scales has a fixed number of
bits, and the shape of the model gives the weight of each layer. Numbers of bits are not times, but they bound times and
memory. Bits of operands bound the time of GEMMs, if the hardware has instructions of that width (Hopper's FP8 has twice
the rate of BF16 with half the bits). Bits of traffic bound the time of the exchange between experts (`lowprec.costs`).
Bits of activations and of optimizer state bound the memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from lowprec.moe.model.config import MoEConfig
from lowprec.recipe import LinearSpec, Recipe, TensorSpec
from lowprec.recipe.description import CODECS, DIRECTIONS, STATES, State
from lowprec.recipe.linears import OPERANDS
from lowprec.scaling.quantize import Granularity

#: Counted quantities, with their axis labels.
COSTS = {
    "operands": "bits of a multiplied operand",
    "wires": "bits per value to the experts and back",
    "kept": "bits per value saved before wo and SwiGLU",
    "states": "bits a parameter: master weight and moments",
}
#: Linear layers that recipes quantize, by the last part of their names.
_NARROW = {"wq_a", "wq_b", "wkv_a", "wkv_b", "wo", "w1", "w2", "w3", "projection"}


def bits_of(recipe: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean number of bits per value, scales included.

    Parameters
    ----------
    recipe, config : mapping
        Recipe and configuration of the model, as stored in `run.json`.

    Returns
    -------
    dict
        "operands": mean over both operands of all multiplications of linear layers, weighted by multiply-adds per
        token. "wires": mean over dispatch, combine and their gradients. "kept": mean over the two activations that a
        codec keeps for the backward pass, weighted by their number of values per token. "states": total for AdamW's
        state per parameter, which is the master weight and both moments.

    Raises
    ------
    KeyError
        If an entry is missing, as in runs of other trainers.
    ValueError
        If the recipe refers to an unknown name without its definition.

    Examples
    --------
    >>> from dataclasses import asdict
    >>> import lowprec as lp
    >>> from lowprec.moe.model.config import configs
    >>> bits = bits_of(lp.recipes["dsv3"].as_dict(), asdict(configs["nano"]))
    >>> {name: round(value, 2) for name, value in bits.items()}
    {'operands': 8.5, 'wires': 12.03, 'kept': 8.79, 'states': 64.0}
    """
    shape = _shape(config)
    if odd := [field for field in ("linear", *CODECS, *STATES) if field not in recipe]:
        raise KeyError(odd[0])
    found = Recipe.from_dict(recipe, "a run's recipe", check=False)
    wires = [getattr(found, wire).bits_per_value for wire in DIRECTIONS]
    return {
        "operands": _operands(found, shape),
        "wires": sum(wires) / len(wires),
        "kept": _kept(found, shape),
        "states": sum(_state_bits(getattr(found, state)) for state in STATES),
    }


def _shape(config: Mapping[str, Any]) -> MoEConfig:
    needed = [field.name for field in fields(MoEConfig) if field.name in config or field.default is MISSING]
    return MoEConfig(**{name: config[name] for name in needed})


def short_k_note(config: Mapping[str, Any], tile: int = 128) -> str:
    """Return a note for a model in which most forward sums have a K of at most `tile`; empty for other models.

    The note is appended to the description of the model's size. If K equals the tile, each row has one scale and each
    sum is promoted once, at its end. Such a model cannot show the effect of finer scales along K or of more frequent
    promotion. The gate and the head are not counted: they stay in BF16.

    Examples
    --------
    >>> from dataclasses import asdict
    >>> from lowprec.moe.model.config import configs
    >>> short_k_note(asdict(configs["nano"])), short_k_note(asdict(configs["pilot"]))
    (' (94 % of forward multiply-adds have K = 128: there a tile of 128 is a whole row)', '')
    """
    try:
        shape = _shape(config)
    except KeyError:  # from another trainer
        return ""
    sizes = shape.parameter_shapes()
    work = {name: amount for name, amount in multiply_adds(shape).items() if name.rpartition(".")[2] in _NARROW}
    short = sum(amount for name, amount in work.items() if sizes[name][1] <= tile) / sum(work.values())
    if short <= 0.5:
        return ""
    return f" ({100 * short:.0f} % of forward multiply-adds have K = {tile}: there a tile of {tile} is a whole row)"


def with_tail(bits: Mapping[str, float], tail: Mapping[str, float], share: float) -> dict[str, float]:
    """Return the mean numbers of bits of a run that uses another recipe in the last fraction `share` of its steps.

    Examples
    --------
    >>> with_tail({"operands": 4.0}, {"operands": 16.0}, 0.25)
    {'operands': 7.0}
    """
    return {name: (1.0 - share) * value + share * tail[name] for name, value in bits.items()}


def tensor_bits(spec: TensorSpec) -> float:
    """Return the number of bits per value, including its share of the block's scale but no scales per row or tensor.

    Examples
    --------
    >>> tensor_bits(TensorSpec.parse("e4m3fn 1x128 ue8m0")), tensor_bits(TensorSpec("bfloat16"))
    (8.0625, 16.0)
    """
    bits = float(spec.format.bits)
    if spec.plain:
        return bits
    block = Granularity.parse(spec.granularity)
    if block.rows is None or block.columns is None:
        return bits
    return bits + float(spec.resolved.scale_format.bits) / (block.rows * block.columns)


def multiply_adds(shape: MoEConfig) -> dict[str, float]:
    """Return the number of multiply-adds per token in one product of each linear layer, with experts at mean load.

    Examples
    --------
    >>> from lowprec.moe.model.config import configs
    >>> nano = configs["nano"]
    >>> sum(multiply_adds(nano).values()) == nano.parameter_counts().active_linear + nano.dim * (nano.vocabulary + 16)
    True
    """
    found = {}
    for name, size in shape.parameter_shapes().items():
        if len(size) == 2 and name != "embed":
            # Two losses use one head; a token is processed by top_k of the experts.
            times = 1.0 + shape.mtp_depth if name == "head" else 1.0
            found[name] = math.prod(size) * (shape.top_k / shape.experts if ".experts." in name else times)
    return found


def _operands(recipe: Recipe, shape: MoEConfig) -> float:
    work, bits = multiply_adds(shape), dict[LinearSpec, float]()
    total = 0.0
    for layer, amount in work.items():
        spec = recipe.spec(layer, shape.layers)
        if spec not in bits:
            bits[spec] = _linear_bits(spec)
        total += amount * bits[spec]
    return total / sum(work.values())


def _linear_bits(spec: LinearSpec) -> float:
    bits = [tensor_bits(tensor) for gemm in OPERANDS for tensor in spec.tensors(gemm)]
    return sum(bits) / len(bits)


def _kept(recipe: Recipe, shape: MoEConfig) -> float:
    blocks = shape.layers + shape.mtp_depth
    attention = blocks * shape.heads * shape.value_dim
    used = (shape.top_k + shape.shared_experts) * shape.expert_width
    swiglu = 2 * (shape.dense_layers * shape.dense_width + (blocks - shape.dense_layers) * used)
    bits = recipe.saved_attention_output.bits_per_value, recipe.saved_swiglu_input.bits_per_value
    return (attention * bits[0] + swiglu * bits[1]) / (attention + swiglu)


def _state_bits(state: State) -> float:
    return 64.0 if isinstance(state, str) else tensor_bits(state)
