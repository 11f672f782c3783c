"""What reports of studies whose runs are trained have in common: their first facts, their files, the sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..._files import plain, write_json, write_text
from ..design.expectations import Finding
from ..report.document import Document, Heading, Part, Text, markdown
from ..report.parts import environment, expected_table, findings_json, recipe_details
from .kind import Report


def expected_parts(study: Any, findings: Sequence[Finding]) -> list[Part]:
    """Return what was expected and found, and what is published, where there is any."""
    parts: list[Part] = []
    if findings:
        parts += [Heading("Expected and found"), expected_table(findings)]
    if study.published:
        parts.append(Text(f"Published: {study.published} ({study.source})."))
    return parts


def last_parts(study: Any, about: Mapping[str, Any], recipes: Mapping[str, Any] | None = None) -> list[Part]:
    """Return what ends a report: limits, recipes in full if there are any, environment."""
    limits: list[Part] = [Heading("What this size cannot show"), Text(study.notes)] if study.notes else []
    title = "Environment" if recipes is None else "Recipes and environment"
    return [*limits, Heading(title), *recipe_details(recipes or {}), environment(about)]


def made_of(about: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return what all studies of one page must have in common."""
    return {key: about["fingerprint"].get(key) for key in keys or ("code", "versions", "data")}


def as_json(summary: Any, *, sentences: Sequence[str] | None = None, **found: Any) -> dict[str, Any]:
    """Return an outcome in JSON's types; what is not finite becomes "nan" or "inf"."""
    study = summary.study
    content = {
        "ablation": study.name, "question": study.question, "tier": study.tier, "setting": summary.setting,
        "size": summary.size, "published": study.published, "source": study.source, **found,
        "findings": findings_json(summary.findings), **({} if sentences is None else {"sentences": sentences}),
    }  # fmt: skip
    result: dict[str, Any] = plain(content)
    return result


def written(
    summary: Any,
    found: Document,
    table: Callable[[Any], str],
    content: Mapping[str, Any],
    show: Callable[[Any, Any], None],
    drawn: Sequence[Path],
    broken: Sequence[str] = (),
) -> Report:
    """Write a report's text, table and numbers beside the figures that are drawn, and return it."""
    folder = found.folder
    texts = {"report.md": markdown(found), "table.csv": table(summary)}
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / "summary.json", content)
    files = [*drawn, *(folder / name for name in texts), folder / "summary.json"]
    return Report(summary, found, files, partial(show, summary), partial(table, summary), broken)


def show_sentences(console: Any, sentences: Sequence[str]) -> None:
    """Print what was found on a rich console, a line a sentence."""
    for sentence in sentences:
        console.print(f"• {sentence}", markup=False, highlight=False, soft_wrap=not console.is_terminal)
