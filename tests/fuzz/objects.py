"""Objects that are made of fields, and used at once: one that can be made has to work."""

import dataclasses
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from calls import Arguments, parameters_of
from draw import SPECIAL, VALUES, Draw

import lowprec as lp
from lowprec.parity.diverge import diverge
from lowprec.parity.recording import load_recording
from lowprec.parity.stack import Stack
from lowprec.tensorcore.engines.selection import kernel_in_use


def fields(catalogue: Any, cls: type, share: float = 0.15) -> Callable[[Draw], Arguments]:
    """Return the fields of an entry that is of a class, some of them of other entries."""

    def sound(draw: Draw) -> Arguments:
        entries = [entry for entry in map(catalogue.get, catalogue.names()) if isinstance(entry, cls)]
        first = draw.of(entries)
        names = [field.name for field in dataclasses.fields(cls) if field.init]
        return {name: getattr(draw.of(entries) if draw.chance(share) else first, name) for name in names}

    return sound


def used(function: Callable[..., Any], use: Callable[[Any], Any], names: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Return what calls a function and uses the result: what can be made has to work.

    `names` are the parameters that it takes, all if left out; options that it hands on are those of `lp.quantize` and
    `lp.gemm`.
    """

    def make(**given: Any) -> Any:
        return use(function(**given))

    known = {**parameters_of(lp.quantize), **parameters_of(lp.gemm), **parameters_of(function)}
    taken = (known[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in names or parameters_of(function))
    make.__signature__ = inspect.Signature(list(taken))  # type: ignore[attr-defined]
    make.__doc__, make.__module__ = function.__doc__, function.__module__
    make.bases = getattr(function, "__mro__", (function,))  # type: ignore[attr-defined]
    return make


def or_reason(call: Callable[[], Any]) -> Any:
    """Return a result, or why there is none: fields may not go together with the operands here."""
    try:
        return call()
    except ValueError as error:
        return str(error)


def use_format(f: Any) -> Any:
    codes = lp.encode(VALUES, f)
    return f, codes, lp.decode(codes, f), lp.round_to(VALUES, f), f.ulp(VALUES), f.max, f.min


def use_quantizer(q: Any) -> Any:
    x = np.outer(np.float32([1, -3, 0.01]), np.arange(64, dtype=np.float32))
    if q.amax_history_len is not None:
        return q
    made = or_reason(lambda: lp.quantize(x, q))
    return q, made if isinstance(made, str) else (made.codes, made.scale, lp.quantize_dequantize(x, q))


def use_order(order: Any) -> Any:
    """Return what an order prints, and its sums or why it has none."""
    x = np.ones((2, order.n))
    return str(order), repr(order), or_reason(lambda: (order.sum(x), order.dot(x, x))), or_reason(order.drawing)


def use_accumulator(accumulator: Any) -> Any:
    fmt = accumulator.default_format
    if accumulator.dtype == np.float64:
        return lp.mma(np.ones((1, 4)), np.ones((1, 4)), accumulator=accumulator)
    ones = np.full((2, 2 * accumulator.group_size), lp.encode(1.5, fmt), fmt.code_dtype)
    given = {"accumulator": accumulator, "a_format": fmt, "b_format": fmt}
    if accumulator.scale_format is not None:
        if ones.shape[1] % accumulator.scale_block:
            return accumulator
        scale = np.full((2, ones.shape[1] // accumulator.scale_block), 56, np.uint8)
        given |= {"a_scale": scale, "b_scale": scale}
    return accumulator, or_reason(lambda: lp.mma(ones, ones, **given))


def use_policy(policy: Any) -> Any:
    names = lp.formats.names()
    return policy, [or_reason(lambda name=name: lp.encode(SPECIAL, name, policy=policy).tolist()) for name in names]


def use_recipe(recipe: Any) -> Any:
    return recipe, recipe.as_dict(), lp.Recipe.from_toml(recipe.to_toml()) == recipe


def use_rounding(rounding: Any) -> Any:
    seed = 5 if rounding.is_stochastic else None
    return rounding, [lp.encode(VALUES, name, rounding=rounding, seed=seed).tolist() for name in ("e4m3fn", "bfloat16")]


def use_codec(codec: Any) -> Any:
    x = np.outer(np.float32([1, -3, 0.01]), np.arange(512, dtype=np.float32))
    x[2, 3] = np.inf
    wire = or_reason(lambda: codec.encode(x))
    if isinstance(wire, str):  # a format that is no element format
        return codec, wire
    data = codec.to_bytes(wire)
    back = codec.from_bytes(data, wire.shape)
    limits = codec.max_magnitudes(wire) if hasattr(codec, "max_magnitudes") else None
    return codec, data, codec.to_bytes(back) == data, codec.decode(back), codec.bits_per_value, limits


def use_library(library: Any) -> Any:
    q = lp.quantize(np.outer(np.float32([1, -3]), np.arange(256, dtype=np.float32)), "e4m3fn 1x128")
    return library, or_reason(lambda: lp.gemm(q, q, library=library))


def use_kernel(chosen: Any) -> Any:
    with chosen:
        return kernel_in_use()


def read_stack(**file: str) -> Any:
    """Read a stack, and write it again."""
    return Stack.from_toml(file["text"], lp.stacks).to_toml()


def read_recording(**files: bytes) -> Any:
    """Load a recording, and compare it with itself."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        try:
            found = load_recording(folder)
        except ValueError as error:
            raise ValueError(str(error).replace(folder, "folder")) from None
    return str(diverge(found, found)).replace(folder, "folder")
