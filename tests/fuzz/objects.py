"""Objects that are made of fields, and used at once: one that can be made has to work."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from calls import Arguments
from draw import SPECIAL, VALUES, Draw

import lowprec as lp


def fields(catalogue: Any, cls: type, share: float = 0.15) -> Callable[[Draw], Arguments]:
    """Return the fields of an entry, some of them of other entries."""

    def sound(draw: Draw) -> Arguments:
        entries = [catalogue[name] for name in catalogue.names()]
        first = draw.of(entries)
        names = [field.name for field in dataclasses.fields(cls) if field.init]
        return {name: getattr(draw.of(entries) if draw.chance(share) else first, name) for name in names}

    return sound


def used(cls: type, use: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return what makes an object and uses it: one that can be made has to work."""

    def make(**fields: Any) -> Any:
        made = cls(**fields)
        return made, use(made)

    make.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]
    make.__doc__, make.__module__ = cls.__doc__, cls.__module__
    return make


def use_format(f: Any) -> Any:
    codes = lp.encode(VALUES, f)
    return codes, lp.decode(codes, f), lp.round_to(VALUES, f), lp.ulp(VALUES, f), f.max, f.min


def use_quantizer(q: Any) -> Any:
    x = np.outer(np.float32([1, -3, 0.01]), np.arange(64, dtype=np.float32))
    if q.history is not None:
        return None
    try:
        made = lp.quantize(x, quantizer=q)
    except ValueError as error:  # a transform of another size, a format without such a scale
        return str(error)
    return made.codes, made.scale, lp.quantize_dequantize(x, quantizer=q)


def use_accumulator(accumulator: Any) -> Any:
    fmt = next(iter(accumulator.inputs), "e4m3fn")
    if fmt == "float64":
        return lp.mma(np.ones((1, 4)), np.ones((1, 4)), accumulator=accumulator)
    ones = np.full((2, 2 * accumulator.group), lp.encode(1.5, fmt), lp.formats[fmt].code_dtype)
    scales = {}
    if accumulator.scale_format is not None:
        if ones.shape[1] % accumulator.scale_block:
            return None
        scale = np.full((2, ones.shape[1] // accumulator.scale_block), 56, np.uint8)
        scales = {"a_scale": scale, "b_scale": scale}
    try:
        return lp.mma(ones, ones, accumulator=accumulator, a_format=fmt, b_format=fmt, **scales)
    except ValueError as error:
        return str(error)


def use_policy(policy: Any) -> Any:
    results = []
    for name in lp.formats.names():
        try:
            results.append(lp.encode(SPECIAL, name, policy=policy).tolist())
        except ValueError as error:
            results.append(str(error))
    return results


def use_recipe(recipe: Any) -> Any:
    again = lp.Recipe.from_toml(recipe.to_toml())
    return recipe.as_dict(), again == recipe


def use_rounding(rounding: Any) -> Any:
    seed = 5 if rounding.is_stochastic else None
    return [lp.encode(VALUES, name, rounding=rounding, seed=seed).tolist() for name in ("e4m3fn", "bfloat16")]


def use_codec(codec: Any) -> Any:
    x = np.outer(np.float32([1, -3, 0.01]), np.arange(512, dtype=np.float32))
    x[2, 3] = np.inf
    try:
        wire = codec.encode(x)
    except ValueError as error:  # a format that is no element format
        return str(error)
    data = codec.to_bytes(wire)
    back = codec.from_bytes(data, wire.shape)
    limits = codec.limits(wire) if hasattr(codec, "limits") else None
    return data, codec.to_bytes(back) == data, codec.decode(back), codec.bits_per_value, limits
