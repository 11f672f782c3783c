"""Markdown tables and the published results of studies, for the generators of pages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "ablations" / "results"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], right: int = 0) -> str:
    """Return a Markdown table; the last `right` columns are numbers."""
    rule = ["---"] * (len(header) - right) + ["---:"] * right
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def result(name: str) -> dict[str, Any]:
    """Return a published study."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def results() -> dict[str, dict[str, Any]]:
    """Return the published studies by name."""
    return {file.stem: result(file.stem) for file in sorted(RESULTS.glob("*.json"))}


def read_rows(file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV of the published results."""
    with open(RESULTS / file, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
