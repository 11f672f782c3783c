"""Calls of the public API: what can be called, and arguments for it from its signature."""

import dataclasses
import functools
import inspect
import operator
import re
import typing
from collections.abc import Callable
from typing import Any

import hostile
import numpy as np
from draw import Draw

import lowprec as lp
from lowprec._files import write_bytes

Arguments = dict[str, Any]


#: What calls take, measured over thousands of them, where it is much; a fixed number, so that calls are numbered.
MILLISECONDS = {
    "train": 500.0, "Recipe": 5.0, "gemm": 2.5, "mma": 2.5, "quantize": 2.0, "quantize_dequantize": 2.0,
    "grouped_wgrad": 1.8, "Recipe.from_toml": 1.7, "decode": 1.4, "grouped_gemm": 1.2, "hadamard": 1.2, "Policy": 1.1,
    "DelayedScaling.quantize": 1.0, "logfmt.from_bytes": 0.9, "logfmt.encode": 0.9,
    "codec": 1.5, "codec.from_bytes": 1.2, "prepack_b": 0.8, "Format": 0.7, "quantize_with_transpose": 0.7,
    "logfmt.unpack": 0.7, "checksum": 3.0, "Quantized.requantize": 0.6,
    "check": 600.0, "identify": 900.0, "identify_attention": 900.0,
    "Quantized.convert": 5.0, "TableFormat": 5.0, "GemmLibrary": 5.0, "stack": 20.0, "recording": 6.0,
}  # fmt: skip


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name != "self"
    }


@dataclasses.dataclass(frozen=True)
class Target:
    """Something public that can be called.

    Attributes
    ----------
    name : str
        As users write it, without "lp.".
    sound : dict or callable
        Arguments that suit each other, or what draws them; a function in a dict draws one. What it does not give is
        drawn from the signature.
    weight : float
        How much of the time is spent on it, compared with others.
    function : callable
        It; what `lp` has by that name if left out.
    always_hostile : bool
        Whether every call has something wrong with it.
    """

    name: str
    sound: Arguments | Callable[[Draw], Arguments]
    weight: float = 1.0
    function: Callable[..., Any] = None  # type: ignore[assignment]
    always_hostile: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", self.function or operator.attrgetter(self.name)(lp))

    @property
    def milliseconds(self) -> float:
        """What a call takes, with the calls that it has to be equal to."""
        return MILLISECONDS.get(self.name, 0.4)

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return parameters_of(self.function)

    def arguments(self, draw: Draw) -> Arguments:
        """Return sound arguments: those that are required, and some others."""
        given = self.sound(draw) if callable(self.sound) else self.sound
        found = {name: value(draw) if inspect.isfunction(value) else value for name, value in given.items()}
        for name, parameter in self.parameters.items():
            required = parameter.default is inspect.Parameter.empty
            if name not in found and name != "out" and (required or draw.chance(0.3)):
                found[name] = option_for(self, parameter, draw)
        return {name: value for name, value in found.items() if value is not inspect.Parameter.empty}


WHOLE = {
    "bits": (3, 16), "tile": (1, 200), "axis": (-2, 2), "clamp_octaves": (1, 32), "seed": (0, 2**64 - 1),
    "offset": (0, 2**40), "split_k": (1, 4), "size": (2, 64), "columns": (0, 300), "align": (1, 128), "count": (0, 50),
    "range_bits": (32, 64), "tokens": (1, 5000), "dim": (1, 9000), "layers": (1, 80), "header": (0, 64),
    "top_k": (1, 8), "experts": (1, 64), "nodes": (1, 8), "kept": (1, 8), "gpus": (1, 4096), "sequence": (1, 8192),
    "n": (1, 3), "code": (0, 300), "margin": (-3, 3), "magnitude": (0, 100), "random_bits": (0, 32),
}  # fmt: skip


def annotation_of(parameter: inspect.Parameter) -> str:
    return parameter.annotation if isinstance(parameter.annotation, str) else str(parameter.annotation)


def literals(target: Target, parameter: inspect.Parameter) -> tuple[Any, ...]:
    """Return the words that a parameter may be, empty if it is not one of some words."""
    text = annotation_of(parameter)
    word = text.split("|")[0].strip()
    found = re.findall(r"Literal\[([^]]*)\]", text)
    if found:
        return tuple(eval(f"({found[0]},)", {}))
    bases = getattr(target.function, "bases", (target.function,))  # a field is annotated in its own class's file
    modules = [inspect.getmodule(base) for base in bases]
    value = next((getattr(m, word) for m in modules if hasattr(m, word)), None)
    return typing.get_args(value) if typing.get_origin(value) is typing.Literal else ()


CATALOGUES = {kind: catalogue for kind, catalogue in hostile.CATALOGUES.items() if kind != "codec"}
SORTS = {
    "path": r"PathLike", "granularity": r"Granularity",
    "array": r"ArrayLike|NDArray|Floats|Bytes|\bArray\b|Float32Matrix|Words", "bytes": r"^bytes",
    "whole": r"^(int|str \| int)", "number": r"^float", "flag": r"^bool", "text": r"^str",
}  # fmt: skip


def kind_of(target: Target, parameter: inspect.Parameter) -> str:
    """Return what sort of value a parameter takes."""
    text, name = annotation_of(parameter), parameter.name
    if literals(target, parameter):
        return "word"
    for kind in CATALOGUES:
        # A field is annotated by what it holds; a name is taken, too.
        if re.search(rf"\bstr \| {kind}\b|\b{kind} \| str\b|^{kind}( \| None)?$", text):
            return kind
    if text in ("Bits", "Codec"):
        return "codec"
    if name == "out" and "Quantized" not in text and "Format" not in text:
        return "out"
    return next((kind for kind, pattern in SORTS.items() if re.search(pattern, text)), "object")


HOSTILE = {
    "word": hostile.WORDS, "array": hostile.ARRAYS, "whole": hostile.WHOLES, "number": hostile.NUMBERS,
    "flag": hostile.FLAGS, "text": hostile.TEXTS, "object": hostile.OBJECTS, "bytes": hostile.OBJECTS,
    "granularity": [*hostile.NAMES, *hostile.OBJECTS, hostile.Hostile("1000000000000x1"), hostile.Hostile("0x0")],
}  # fmt: skip


def hostile_for(target: Target, parameter: inspect.Parameter, draw: Draw) -> hostile.Hostile:
    kind = kind_of(target, parameter)
    if kind == "out":
        return hostile.Hostile(Draw(f"{draw.random.random()}").out((2, 3), np.float32))
    if kind == "path":
        return draw.of(paths(draw.folder))
    return draw.of(HOSTILE[kind] if kind in HOSTILE else hostile.names(kind))


def option_for(target: Target, parameter: inspect.Parameter, draw: Draw) -> Any:
    """Return a sound value, or the default where none can be told from the signature."""
    kind = kind_of(target, parameter)
    if kind == "word":
        return draw.of(literals(target, parameter))
    if kind in CATALOGUES:
        return draw.entry(CATALOGUES[kind])
    if kind == "codec":
        return draw.one(draw.entry(lp.codecs), 8, 16.5)
    if kind == "array" and parameter.default is inspect.Parameter.empty:
        return draw.values()
    if kind == "whole" and parameter.name in WHOLE:
        return draw.random.randint(*WHOLE[parameter.name])
    if kind == "number":
        return draw.one(0.0, 1.0, 0.5, 3, -2.0, 1e-4, np.float32(3))
    if kind == "flag":
        return draw.chance(0.5)
    if kind == "granularity":
        return draw.one("1x128", "1x32", "128x128", "tensor", "row", "column", "7x3", "1x1", lp.Granularity(1, None))
    return parameter.default


def call_of(target: Target, draw: Draw) -> Arguments:
    """Return arguments: some sound, some with one thing wrong, or two."""
    arguments = target.arguments(draw)
    draw.sound = dict(arguments)
    bad = draw.one(1, 2) if target.always_hostile else draw.one(0, 0, 0, 0, 1, 1, 1, 1, 2)
    names = list(target.parameters)
    for name in draw.random.sample(names, min(bad, len(names))):
        found = hostile_for(target, target.parameters[name], draw)
        draw.hostile.append((name, found))
        arguments[name] = found.value
    return arguments


def paths(folder: Any) -> list[hostile.Hostile]:
    """Return files that are not what they should be; all stand in a folder of their own."""
    names = ("missing", "folder", "empty", "noise", "text", "cut.npz", "x.npy", "bad.toml", "deep.toml")
    return [hostile.Hostile(folder / name, (name,)) for name in names] + hostile.OBJECTS[:6]


def write_files(folder: Any) -> None:
    """Write what `paths` lists."""
    (folder / "folder").mkdir()
    q = lp.quantize(np.ones((4, 128), np.float32), "e4m3fn 1x128")
    q.save(folder / "good.npz")
    write_bytes(folder / "empty", b"")
    write_bytes(folder / "noise", np.random.default_rng(0).bytes(3000))
    write_bytes(folder / "text", b"name = 1\n" * 9)
    write_bytes(folder / "cut.npz", (folder / "good.npz").read_bytes()[:-90])
    np.save(folder / "x.npy", np.ones((3, 3)))
    write_bytes(folder / "bad.toml", b"dim = -1\nlayers = 'x'\n")
    write_bytes(folder / "deep.toml", b"a = " + b"[" * 5000)
