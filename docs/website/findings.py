"""Findings as short articles: the question of a study, its figure, its answer, and its limitations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import make_ablations

from .links import ROOT, links

_LIMITS = re.compile(r"^## What this size cannot show\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"^!\[[^\n]*$", re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    """Yield an article for every study with a stored result, by question, and an index."""
    lines = [
        "# Findings", "",
        "One article per study: question, answer, figure and limits. [A summary in two tables](/findings.md); [what is "
        "still not known](/open.md); [all studies on one page](/ablations.md), including those that have not run; [how "
        "to write a study](/generated/repository/ablations/README.md).", "",
    ]  # fmt: skip
    names = []
    for question, studies in make_ablations.QUESTIONS.items():
        done = [name for name in studies if (make_ablations.RESULTS / f"{name}.json").exists()]
        names += done
        lines += [f"- {question}: " + ", ".join(f"[{name}](/generated/findings/{name}.md)" for name in done)] * bool(
            done
        )
        for name in done:
            yield f"generated/findings/{name}.md", links(_article(name), f"docs/{name}.md")
    reports = sorted(path.stem for path in make_ablations.RESULTS.glob("*.md"))
    lines += ["", *_toctree([f"/generated/findings/{name}" for name in names])]
    others = [
        "/findings",
        "/open",
        "/ablations",
        "/generated/findings/reports",
        "/generated/repository/ablations/README",
    ]
    lines += _toctree(others)
    whole = [f"- [{name}](/generated/repository/ablations/results/{name}.md)" for name in reports]
    places = [f"/generated/repository/ablations/results/{name}" for name in reports]
    yield "generated/findings/reports.md", "\n".join(["# Whole reports", "", *whole, "", *_toctree(places)])
    yield "generated/findings/index.md", "\n".join(lines)


def _toctree(names: list[str]) -> list[str]:
    return ["```{toctree}", ":hidden:", "", *names, "```", ""]


def _article(name: str) -> str:
    """Return the article on one study: its section of the page of ablations, with figure and limitations."""
    item = json.loads((make_ablations.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    report = (ROOT / "ablations" / "results" / f"{name}.md").read_text(encoding="utf-8")
    _, _, body = make_ablations.section(item).partition("\n\n")
    question, answer, measured = body.split("\n\n", 2)
    figure = _FIGURE.search(report)
    shown = figure.group().replace("](", "](../ablations/results/") if figure else ""
    limits = _LIMITS.search(report)
    parts = [f"# {name}", question, answer, shown, "## Expected and measured", measured.strip()]
    if limits:
        parts += ["## Limits", limits.group(1).strip()]
    return "\n\n".join(part for part in parts if part) + "\n"
