"""Causes of differences, and the rules by which the board tests whether a package has them, from causes.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from importlib.resources import files
from typing import Any

from . import rules
from .prediction import Rule


@dataclass(frozen=True)
class Cause:
    """A cause of differences: title, description of the rule, and a calculation by hand for one input.

    `links` has public reports of the cause by package, and `documents` quotes of a package's own documentation.
    """

    title: str
    rule: str
    calculation: str
    links: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)


def _value(text: str) -> Any:
    """Parse an argument: return a number, or the text itself if it is not one."""
    if text.startswith("2^"):
        return 2.0 ** int(text[2:])
    for read in (partial(int, base=0), float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def _rule(text: str) -> tuple[str, Rule]:
    """Return the letter and the function of a rule such as "D replaced by=0"."""
    letter, name, *arguments = text.split()
    pairs = (argument.split("=") for argument in arguments)
    return letter, partial(getattr(rules, name), **{key: _value(value) for key, value in pairs})


_DATA = tomllib.loads(files(__package__).joinpath("causes.toml").read_text(encoding="utf-8"))
CAUSES = {letter: Cause(**fields) for letter, fields in _DATA["causes"].items()}
RULES: dict[str, dict[str, Sequence[tuple[str, Rule]]]] = {
    package: {pattern: [_rule(text) for text in texts] for pattern, texts in patterns.items()}
    for package, patterns in _DATA["rules"].items()
}


def rules_of(package: str, operation: str) -> Sequence[tuple[str, Rule]]:
    """Return the rules that may explain a package's differences in an operation, with the letters of their causes."""
    return next((found for pattern, found in RULES.get(package, {}).items() if fnmatch(operation, pattern)), ())
