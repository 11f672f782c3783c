"""Recipes as plain data: rows of strings, and one table that defines the names in them.

In words ``"e4m3fn 1x128"`` is an operand and ``"hopper_fp8"`` an accumulator; `lowprec.definitions` records the
definition of every name when the data is written. A recipe that is read back therefore equals the written one, or is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from lowprec.attn.catalogue import attentions
from lowprec.attn.kernel import AttentionKernel
from lowprec.attn.scales import OperandScales
from lowprec.attn.sinks import Sink
from lowprec.attn.splits import Combine
from lowprec.attn.sums import LogSumExp, RowSum
from lowprec.attn.tiles import Schedule
from lowprec.codec.block import BlockCodec
from lowprec.codec.cast import CastCodec
from lowprec.codec.catalogue import codecs
from lowprec.codec.logarithmic import DeepEPCodec, LogFMTCodec
from lowprec.codec.paged import PagedCodec
from lowprec.codec.split import SplitCodec
from lowprec.collective.catalogue import collectives
from lowprec.collective.collective import Collective
from lowprec.collective.kinds import Choice
from lowprec.definitions import VERSION, DefinitionError, Reader, Writer, iter_differences, short_hash
from lowprec.format.catalogue import Format, formats
from lowprec.format.policy import Policy
from lowprec.format.rounding import Rounding
from lowprec.format.table import TableFormat
from lowprec.registry import Registry
from lowprec.scaling.granularity import Granularity
from lowprec.scaling.quantizer import Quantizer, quantizers
from lowprec.scaling.rules import AmaxRule, PythonRule
from lowprec.scaling.spec import TensorSpec, is_word
from lowprec.special.exp2 import Exp2
from lowprec.special.reciprocal import Reciprocal
from lowprec.special.tanh import Tanh
from lowprec.tensorcore.accumulator import FLOAT64
from lowprec.tensorcore.catalogue import accumulators
from lowprec.tensorcore.kinds import KINDS
from lowprec.tensorcore.library import GemmLibrary, gemm_libraries

from .attention import attention_of
from .description import CODECS, STATES, LayerRule, RecipeFields, State, StorageRule
from .injected_error import InjectedError
from .linears import AS_ACTIVATIONS, DEEPGEMM, NEVER, OPERANDS, GemmSpec, LinearSpec
from .reduction import NONE, GradientAllReduce

D = TypeVar("D", bound=RecipeFields)

#: Catalogues of the objects that a recipe names, by kind.
CATALOGUES: dict[str, Registry[Any]] = {
    "format": formats, "quantizer": quantizers, "accumulator": accumulators, "library": gemm_libraries, "codec": codecs,
    "all_reduce": collectives, "attention": attentions,
}  # fmt: skip


def subclasses(base: type[Any]) -> list[type[Any]]:
    """Return the subclasses of a class, and theirs, in an order that imports do not change."""
    own = [made for made in base.__subclasses__() if made.__module__.partition(".")[0] == __package__.partition(".")[0]]
    return [found for made in sorted(own, key=lambda made: made.__name__) for found in (made, *subclasses(made))]


#: Classes of the objects that a recipe holds.
CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Format, TableFormat, Rounding, Granularity, Quantizer, AmaxRule, PythonRule, GemmLibrary, *KINDS, BlockCodec,
        CastCodec, SplitCodec, PagedCodec, LogFMTCodec, DeepEPCodec, type(FLOAT64), AttentionKernel, Policy,
        Combine, Choice,
        *(made for base in (Collective, LogSumExp, RowSum, Exp2, OperandScales, Reciprocal, Sink, Schedule, Tanh)
          for made in subclasses(base)),
    )
}  # fmt: skip
_ABOUT = ("name", "description", "source")


# --- writing ---------------------------------------------------------------------------------------------------------


def writer(*, full: bool) -> Writer:
    """Return the writer of the objects that a recipe names."""
    return Writer(CATALOGUES, full=full, reserved=_is_reserved)


def _is_reserved(kind: str, word: str) -> bool:
    """Return whether a word in an operand means something other than an object of the given kind."""
    if (kind == "format" and word in quantizers) or (kind == "attention" and word == NONE):
        return True
    return is_word(word) or not word or word != "".join(word.split())


def gemm_row(gemm: GemmSpec, w: Writer) -> dict[str, Any]:
    """Return a multiplication as words."""
    row: dict[str, Any] = {side: getattr(gemm, side).words(w.name, w.names) for side in "ab"}
    row["accumulator"] = w.name("accumulator", gemm.accumulator)
    row["promote_every"] = NEVER if gemm.promote_every is None else gemm.promote_every
    row |= {} if gemm.library == DEEPGEMM else {"library": w.name("library", gemm.library)}
    return row if gemm.injected_error is None else {**row, "injected_error": str(gemm.injected_error)}


def linear_row(spec: LinearSpec, w: Writer) -> dict[str, Any]:
    """Return a linear layer as words, with a mapping for each multiplication."""
    row: dict[str, Any] = {name: gemm_row(getattr(spec, name), w) for name in OPERANDS}
    row["wgrad_input"] = spec.wgrad_input
    row |= {} if spec.dgrad_weight == "high_precision" else {"dgrad_weight": spec.dgrad_weight}
    return {**row, "out_format": AS_ACTIVATIONS if spec.out_format is None else w.name("format", spec.out_format)}


def rows(recipe: RecipeFields, w: Writer) -> dict[str, Any]:
    """Return a recipe as words: its fields, with a list of mappings for its rules and one for its storage."""
    found: dict[str, Any] = {"activations": recipe.activations, **_states(recipe, w, STATES)}
    found["weight_source"] = recipe.weight_source
    found |= {field: w.name("codec", getattr(recipe, field)) for field in CODECS}
    found["attention"] = NONE if recipe.attention is None else w.name("attention", recipe.attention)
    found["all_reduce"] = NONE if recipe.all_reduce is None else _reduction_words(recipe.all_reduce, w)
    found["linear"] = [{"layers": rule.pattern, **linear_row(rule.linear, w)} for rule in recipe.rules]
    found["storage"] = [{"tensors": rule.pattern, "codec": w.name("codec", rule.codec)} for rule in recipe.storage]
    return found


def _reduction_words(reduction: GradientAllReduce, w: Writer) -> str:
    return f"{reduction.ranks} {w.name('all_reduce', reduction.algorithm)} {w.name('codec', reduction.codec)}"


def as_dict(recipe: RecipeFields) -> dict[str, Any]:
    """Return a recipe as JSON types: name, hash of the fields that affect results, rows, and all definitions in full.

    Examples
    --------
    >>> import lowprec as lp
    >>> data = as_dict(lp.recipes["dsv3"])
    >>> data["linear"][0]["fprop"]["accumulator"], data["definitions"]["accumulator"]["hopper_fp8"]["fraction_bits"]
    ('hopper_fp8', 13)
    """
    w = writer(full=True)
    found = rows(recipe, w)
    about = {field: getattr(recipe, field) for field in _ABOUT}
    return {"about": about, "hash": short_hash(recipe), **found, "definitions": {"version": VERSION, **w.table}}


def differences(then: RecipeFields, now: RecipeFields) -> list[str]:
    """Return a line for every difference of two recipes, by their definitions, whatever the catalogues contain now.

    Examples
    --------
    >>> import lowprec as lp
    >>> differences(lp.recipes["bf16"], lp.recipes["bf16"].with_(moments="e5m2"))[0]
    'moment_m was bfloat16, is e5m2'
    """
    no_catalogues = {kind: Registry[Any](kind, entries.type) for kind, entries in CATALOGUES.items()}

    def define(recipe: RecipeFields) -> dict[str, Any]:
        w = Writer(no_catalogues, full=True, reserved=_is_reserved)
        return {**rows(recipe, w), "definitions": w.table}

    return [f"{path} was {old}, is {new}" for path, old, new in iter_differences(define(then), define(now))]


def moments_as_dict(recipe: RecipeFields) -> dict[str, Any]:
    """Return the storage of AdamW's moments in a recipe, as JSON types."""
    w = writer(full=True)
    return {**_states(recipe, w, STATES[:2]), "definitions": {"version": VERSION, **w.table}}


def _states(recipe: RecipeFields, w: Writer, states: Iterable[str]) -> dict[str, str]:
    kept = {state: getattr(recipe, state) for state in states}
    return {state: k if isinstance(k, str) else k.words(w.name, w.names) for state, k in kept.items()}


# --- reading ---------------------------------------------------------------------------------------------------------


def reader(table: Any, where: str, *, check: bool = True) -> Reader:
    """Return the reader of a recipe's objects; `table` has the definitions of names and may be empty."""
    return Reader(CATALOGUES, CLASSES, table, where, check=check)


def _parsers(r: Reader) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that parse the words of a field, by the field's name."""

    def tensor(words: Any) -> TensorSpec:
        return TensorSpec.parse(words, r.names)

    def state(words: Any) -> Any:
        return words if words == "float64" else tensor(words)

    def codec(word: Any) -> Any:
        return r.find("codec", word)

    return {
        **dict.fromkeys(("a", "b", "x", "w", "dy"), tensor),
        **dict.fromkeys((*STATES, "moments"), state),
        **dict.fromkeys((*CODECS, "codec"), codec),
        "accumulator": lambda word: r.find("accumulator", word),
        "library": lambda word: r.find("library", word),
        "promote_every": lambda number: None if number == NEVER else number,
        "injected_error": InjectedError.parse,
        "out_format": lambda word: None if word == AS_ACTIVATIONS else r.find("format", word),
        "attention": lambda words: attention_of(words, r.names),
        "all_reduce": lambda words: GradientAllReduce.parse(words, r.names),
    }


def objects(row: Mapping[str, Any], r: Reader) -> dict[str, Any]:
    """Return a mapping in which objects replace the words of fields, also of those in nested mappings."""
    parsers = _parsers(r)

    def read(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: read(name, item) for name, item in value.items()}
        return parsers[key](value) if key in parsers else value

    return {key: read(key, value) for key, value in row.items()}


def linear_of(row: Mapping[str, Any], r: Reader) -> LinearSpec:
    """Return the layer that `linear_row` wrote; missing fields get their defaults."""
    found = objects(row, r)
    return LinearSpec(**found | {name: GemmSpec(**found[name]) for name in OPERANDS if name in found})


def rule_of(row: Mapping[str, Any], r: Reader) -> LayerRule:
    """Return the rule of a row."""
    return LayerRule(row["layers"], linear_of({key: value for key, value in row.items() if key != "layers"}, r))


def storage_of(row: Mapping[str, Any], r: Reader) -> StorageRule:
    """Return the storage rule of a row."""
    return StorageRule(row["tensors"], r.find("codec", row["codec"]))


def moments_of(data: Mapping[str, Any], where: str) -> tuple[State, State]:
    """Return the storage of AdamW's moments that `moments_as_dict` wrote."""
    kept = {state: data[state] for state in STATES[:2]}
    found = objects(kept, reader(data["definitions"], where, check=False))
    return found["moment_m"], found["moment_v"]


def fields_of(data: Mapping[str, Any], r: Reader) -> dict[str, Any]:
    """Return the fields of a recipe from its rows."""
    found = objects({key: value for key, value in data.items() if key not in ("linear", "storage")}, r)
    rules = tuple(rule_of(row, r) for row in data.get("linear", ()))
    return found | {"rules": rules, "storage": tuple(storage_of(row, r) for row in data.get("storage", ()))}


def from_dict(data: Mapping[str, Any], kind: type[D], where: str, *, check: bool = True) -> D:
    """Return the recipe that `as_dict` wrote.

    Parameters
    ----------
    data : mapping
        Data of a recipe. Data of earlier versions has names without definitions, which are looked up.
    kind : type
        Class of the recipe.
    where : str
        Name of the source, for messages.
    check : bool
        Whether catalogue entries must have their recorded definitions; otherwise the recipe uses the recorded ones.

    Raises
    ------
    DefinitionError
        If a name has another definition here.
    ValueError
        If the data is not that of a recipe.
    """
    r = reader(data.get("definitions", {}), where, check=check)
    flat = {**data.get("about", {}), **data}
    try:
        made = kind(**fields_of({k: v for k, v in flat.items() if k not in ("about", "hash", "definitions")}, r))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{where} is not a recipe: {error}") from None
    if "definitions" not in data:
        _check_shipped(r, where)
    return made


def _check_shipped(r: Reader, where: str) -> None:
    """Raise a DefinitionError unless names without a definition are the package's own."""
    for kind, word in r.found():
        if not CATALOGUES[kind].is_shipped(word):
            raise DefinitionError(
                f"{where} names {kind} {word!r} without its definition, as earlier versions wrote it, and the "
                "registered "
                "one is not the package's and may differ"
            )
