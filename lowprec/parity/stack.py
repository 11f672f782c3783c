"""`Stack`: the arithmetic of every operation of a model's forward pass, as data and as TOML.

A file names a stack of the catalogue and changes to it. A rule with a class (``is``) replaces the operation's rule; any
other rule changes fields of the operation's rule::

    base = "torch_cpu"
    name = "mine"

    [rules.rsqrt]
    once = true

    [rules.tanh]
    is = "Bounded"
    function = "tanh"
    ulps = 2.0
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._values import Value, normalize_fields
from ..attn.catalogue import attentions
from ..definitions import VERSION, DefinitionError, Reader, Writer, to_mapping
from ..norm.catalogue import norms
from ..norm.norm import Norm
from ..norm.sums import ColumnSum, Moments
from ..order.catalogue import orders
from ..order.rules import OrderRule
from ..recipe.data import CLASSES, subclasses
from ..recipe.toml import toml_key, toml_value
from ..registry import Registry, UnknownNameError, suggest
from ..special.cpu import CpuGelu
from ..special.portable import RoundedFunction
from .operations import Elements, Rule, Stepped
from .sums import Ordered

_CATALOGUES: dict[str, Registry[Any]] = {"order": orders, "attention": attentions, "norm": norms}
#: Fields of rules that hold catalogue entries, with the kind of each.
_NAMED = {"orders": "order", "kernels": "attention", "norms": "norm"}


@dataclass(frozen=True, eq=False, repr=False)
class Stack(Value):
    """The arithmetic of every operation of a model's forward pass.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    rules : tuple of (str, Rule)
        Rule of each operation, by PyTorch's name of it without overload, such as ``("mm", Product())``.
    capability : str
        CPU capability that the rules are for, by PyTorch's name of it, such as ``"AVX512"``; empty: any.
    source : str
        Reference for the stack.

    Examples
    --------
    >>> import lowprec as lp
    >>> stack = lp.stacks["torch_cpu"]
    >>> stack.rule("rsqrt").once, stack.rule("tanh").mark
    (False, 'decided')
    """

    name: str = dataclasses.field(compare=False)
    rules: tuple[tuple[str, Rule], ...] = ()
    capability: str = ""
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        for operation, rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"Stack {self.name}: rules must be of class Rule, got {rule!r} for {operation!r}")

    def rule(self, operation: str) -> Rule:
        """Return the rule of an operation.

        Raises
        ------
        UnknownNameError
            If the stack has no rule for the operation.
        """
        known = dict(self.rules)
        if operation not in known:
            hint = suggest(operation, known)
            raise UnknownNameError(f"stack {self.name!r}: unknown operation {operation!r}: {hint}")
        return known[operation]

    def with_rules(self, name: str, rules: Mapping[str, Rule]) -> Stack:
        """Return a stack in which the rules of some operations are replaced."""
        made = tuple({**dict(self.rules), **rules}.items())
        return Stack(name, made, self.capability, source=f"what-if of {self.name}")

    def to_toml(self) -> str:
        """Return the stack as TOML: all rules, and hashes of the catalogue entries that they name."""
        w = Writer(_CATALOGUES, full=False)
        lines = [f"{key} = {toml_value(getattr(self, key))}" for key in ("name", "capability", "source")]
        for operation, rule in self.rules:
            row = {**to_mapping(rule), "source": rule.source}
            for field, kind in _NAMED.items():
                row |= {field: _names(getattr(rule, field), kind, w)} if field in row else {}
            lines += [
                "",
                f"[rules.{toml_key(operation)}]",
                *(f"{key} = {toml_value(value)}" for key, value in row.items()),
            ]
        lines += ["", "[definitions]", f"version = {VERSION}"]
        for kind, words in w.table.items():
            lines += ["", f"[definitions.{kind}]"]
            lines += [f"{toml_value(word)} = {toml_value(definition)}" for word, definition in words.items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str, bases: Registry[Stack]) -> Stack:
        """Read a stack from TOML.

        Parameters
        ----------
        text : str
            Stack as TOML.
        bases : Registry
            Stacks that `base` may name.

        Raises
        ------
        ValueError
            If the text is not TOML, a rule cannot be made, or a name has another definition here.
        """
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"stack: file must be TOML, got another text: {error}") from None
        known = ("base", "name", "capability", "source", "rules", "definitions")
        if odd := [key for key in content if key not in known]:
            raise ValueError(f"stack must have the keys {', '.join(known)}, got {odd[0]!r}")
        for key in ("base", "name", "capability", "source"):
            if not isinstance(content.get(key, ""), str):
                raise ValueError(f"stack: {key} must be a string, got {content[key]!r}")
        if not isinstance(content.get("rules", {}), Mapping):
            raise ValueError(f"stack: rules must be tables, got {content['rules']!r}")
        parts = (
            *subclasses(OrderRule),
            Norm,
            RoundedFunction,
            CpuGelu,
            *subclasses(Moments),
            ColumnSum,
            *subclasses(ColumnSum),
        )
        classes = {c.__name__: c for c in (*_rule_classes(), *parts)}
        r = Reader(_CATALOGUES, {**CLASSES, **classes}, content.get("definitions", {}), "stack")
        base = bases[content["base"]] if "base" in content else cls("empty")
        rules = {key: _rule(key, row, base, r) for key, row in content.get("rules", {}).items()}
        made = base.with_rules(content.get("name", "unnamed"), rules)
        return dataclasses.replace(made, **{key: content[key] for key in ("capability", "source") if key in content})


def _names(value: Any, kind: str, w: Writer) -> Any:
    """Return a field of a rule with its objects replaced by words."""
    if isinstance(value, tuple):
        return [_names(item, kind, w) for item in value]
    return value if isinstance(value, str) else w.name(kind, value)


def _objects(value: Any, kind: str, r: Reader) -> Any:
    """Return a field of a rule with its words replaced by objects; the first word of a pair is a dtype."""
    if isinstance(value, list):
        if odd := [item for item in value if isinstance(item, list) and len(item) != 2]:
            raise DefinitionError(f"stack: {kind}s must be names, or pairs of a dtype and a name, got {odd[0]!r}")
        return tuple(
            (item[0], r.find(kind, item[-1])) if isinstance(item, list) else r.find(kind, item) for item in value
        )
    raise DefinitionError(f"stack: {kind}s must be a list of names, got {value!r}")


def _rule_classes() -> list[type[Rule]]:
    return [cls for cls in subclasses(Rule) if cls not in (Elements, Stepped, Ordered)]


def _rule(operation: str, row: Any, base: Stack, r: Reader) -> Rule:
    where = f"stack: rules.{operation}"
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} must be a table, got {row!r}")
    named = {field: _objects(row[field], kind, r) for field, kind in _NAMED.items() if field in row}
    plain = {field: value for field, value in row.items() if field not in named}
    if "is" not in plain:
        if not base.rules:
            raise ValueError(f"{where} must have a class ('is') in a file without a base, got {sorted(row)}")
        old = base.rule(operation)
        plain = {**{key: value for key, value in to_mapping(old).items() if key not in _NAMED}, "mark": "own", **plain}
        if "orders" in named and "probed" not in row:
            plain.pop("probed", None)
        named = {field: getattr(old, field) for field in _NAMED if hasattr(old, field)} | named
    elif plain["is"] not in (known := [cls.__name__ for cls in _rule_classes()]):
        raise ValueError(f"{where}: unknown rule {plain['is']!r}: {suggest(str(plain['is']), known)}")
    made: Rule = r.made({**plain, **named})
    return made


def load_stack(stack: str | Stack, bases: Registry[Stack]) -> Stack:
    """Return a stack, given as an object, by name, or as a ``.toml`` file."""
    if not (isinstance(stack, str) and stack.endswith(".toml")):
        return bases.get(stack)
    try:
        return Stack.from_toml(Path(stack).read_text(), bases)
    except ValueError as error:
        raise ValueError(f"{stack!r}: {error}") from None
