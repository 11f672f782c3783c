"""Markdown tables for the generators of pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]], right: int = 0) -> str:
    """Return a Markdown table; the last `right` columns are numbers."""
    rule = ["---"] * (len(header) - right) + ["---:"] * right
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)
