"""Blocks of reports in Markdown: tables, lists, formatted numbers, findings, recipes, the environment."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.estimates import Estimate
from ..analysis.findings import Finding
from ..design.expectations import span

_NUMBER = re.compile(r"[+\-]?[\d.,]+(e[+\-]?\d+)?( ?[±x%] ?[\d.]*(e[+\-]?\d+)?)?|n/a|inf|nan|\[.*\]|")
EXPECTED_COLUMNS = ("expected", "quantity", "expected range", "published range", "found", "which happened")


@dataclass(frozen=True)
class Table:
    r"""A table of strings.

    Examples
    --------
    >>> print(Table(("x", "|y|"), (("a|b", "1"),)).markdown())
    | x | \|y\| |
    |---|---:|
    | a\|b | 1 |
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""
    title: str = ""

    @property
    def right(self) -> list[bool]:
        """Whether each column contains only numbers, which are then aligned to the right."""
        return [all(_NUMBER.fullmatch(row[i]) for row in self.rows) for i in range(len(self.head))]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rules = ("---:" if right else "---" for right in self.right)
        head, *rows = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in (self.head, *self.rows))
        return "\n".join([f"| {head} |", f"|{'|'.join(rules)}|", *(f"| {row} |" for row in rows)])


def bullets(lines: Iterable[str]) -> str:
    """Return a bulleted list."""
    return "\n".join(f"- {line}" for line in lines)


def warning(lines: Iterable[str]) -> str:
    """Return a highlighted list; empty without lines."""
    return "\n".join(f"> - {line}" for line in lines)


def details(title: str, text: str) -> str:
    """Return text as a fixed-width block, which pages show folded."""
    return f"{title}:\n\n```\n{text.rstrip()}\n```"


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return expectations and their outcomes, for `summary.json`."""
    return [
        {
            "expected": item.expectation.words, "quantity": item.expectation.quantity,
            "expected_range": item.expectation.expected, "published_range": item.expectation.published,
            "value": item.value, "interval": item.found.ci90, "instead": item.found.as_difference,
            "outcome": item.outcome,
        }
        for item in findings
    ]  # fmt: skip


# --- formatted numbers -----------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Format a number with three significant digits.

    Examples
    --------
    >>> number(0.09743), number(12345.6), number(float("nan")), number(0.0), number(2.5e-7)
    ('0.0974', '12300', 'n/a', '0', '2.5e-07')
    """
    if math.isnan(value):
        return "n/a"
    return f"{float(f'{value:.3g}'):.10g}"


def percent(value: float, *, sign: bool = True, digits: int = 3) -> str:
    """Format a relative difference in percent with `digits` decimals, without a percent sign or a negative zero.

    Examples
    --------
    >>> percent(0.00062), percent(float("nan")), percent(0.0025, sign=False)
    ('+0.062', 'n/a', '0.250')
    >>> percent(-1e-7), percent(-0.0004, digits=1)
    ('+0.000', '+0.0')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    rounded = round(100 * value, digits) + 0.0
    return f"{rounded:+.{digits}f}" if sign else f"{rounded:.{digits}f}"


def interval(bounds: tuple[float, float]) -> str:
    """Format an interval in percent.

    Examples
    --------
    >>> interval((-0.001, 0.002))
    '[-0.100, +0.200]'
    """
    return "n/a" if math.isinf(bounds[0]) else f"[{percent(bounds[0])}, {percent(bounds[1])}]"


def short_count(number: float) -> str:
    """Format a large number with a suffix.

    Examples
    --------
    >>> short_count(843_392), short_count(81_920), short_count(1_433_216)
    ('0.84M', '82k', '1.43M')
    """
    if number >= 500_000:
        return f"{number / 1e6:.3g}M" if number >= 1e7 else f"{number / 1e6:.2f}M"
    return f"{number / 1e3:.0f}k" if number >= 1000 else f"{number:.0f}"


def plural(number: int, one: str, more: str = "") -> str:
    """Format a count with its noun.

    Examples
    --------
    >>> plural(1, "pair"), plural(2, "pair")
    ('1 pair', '2 pairs')
    """
    return f"{number} {one if number == 1 else more or one + 's'}"


# --- expectations ----------------------------------------------------------------------------------------------------


def expected_table(findings: Sequence[Finding]) -> Table:
    """Return the table of expectations and findings; the outcomes in the last column are computed."""
    rows = tuple(
        (
            item.expectation.words, item.expectation.quantity, span(item.expectation.expected),
            span(item.expectation.published), found_cell(item.found), item.outcome,
        )
        for item in findings
    )  # fmt: skip
    return Table(EXPECTED_COLUMNS, rows)


def found_cell(found: Estimate) -> str:
    """Format a measured number with its 90 % interval; for a meaningless ratio, the difference.

    Examples
    --------
    >>> found_cell(Estimate(1.16, (1.01, 1.32))), found_cell(Estimate(0.5))
    ('1.16 [1.01, 1.32]', '0.5')
    >>> found_cell(Estimate(7.3, as_difference=(0.02, -0.01, 0.05)))
    'difference 0.02 [-0.01, 0.05]'
    """
    difference = found.as_difference
    value, ends = (difference[0], difference[1:]) if difference else (found.value, found.ci90)
    text = number(value) if math.isnan(ends[0]) or ends[0] == ends[1] else f"{number(value)} [{_ends(ends)}]"
    return f"difference {text}" if difference else text


def _ends(ends: Sequence[float]) -> str:
    return ", ".join(map(number, ends))


def finding_sentence(item: Finding) -> str:
    """Return a sentence with the expectation, the measurement and the outcome."""
    return f"{item.expectation.words}: {item.expectation.quantity} is {found_cell(item.found)}, {item.outcome}."


# --- recipes and environment -----------------------------------------------------------------------------------------


def recipe_details(recipes: Mapping[str, Any]) -> list[str]:
    """Return one folded block per distinct recipe, named by its arms."""
    arms: dict[str, list[str]] = {}
    for arm, recipe in recipes.items():
        arms.setdefault(_text(recipe), []).append(arm)
    return [details(f"Recipe of {', '.join(names)}", text) for text, names in arms.items()]


def _text(recipe: Any) -> str:
    """Return a recipe as JSON with one line per rule."""
    if not isinstance(recipe, dict):
        return str(recipe)
    lines = []
    for key, value in _shown(recipe).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{key}:", *(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)]
        else:
            lines.append(f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _shown(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without the definitions of catalogue entries, which its rows name."""
    kept = {key: value for key, value in recipe.items() if key not in ("about", "definitions")}
    own = [
        {"kind": kind, "word": word, **definition}
        for kind, words in recipe.get("definitions", {}).items()
        if isinstance(words, dict)
        for word, definition in words.items()
        if "name" in definition
    ]
    return {**recipe.get("about", {}), **kept} | ({"definitions": own} if own else {})


def environment(record: Mapping[str, Any]) -> str:
    """Return code, versions, data and host of a run as a folded block."""
    fingerprint, host = record["fingerprint"], record.get("host", {})
    lines = [f"code: {fingerprint.get('code')}", f"data sha256: {fingerprint.get('data')}"]
    versions = fingerprint.get("versions")
    lines += [f"{name}: {value}" for name, value in versions.items()] if isinstance(versions, dict) else []
    lines += [
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in host.items()
        if name != "executable"
    ]
    return details("Environment of the first run", "\n".join(lines))
