"""What the generators of pages share: Markdown tables, and writing the pages beside this file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent


def table(header: Sequence[str], rows: Iterable[Sequence[object]], right: int = 0) -> str:
    """Return a Markdown table, of which the last `right` columns are numbers."""
    rule = ["---"] * (len(header) - right) + ["---:"] * right
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def write(pages: Mapping[str, Callable[[], str]]) -> None:
    """Write pages by their file names."""
    for name, page in pages.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"wrote {FOLDER / name}\n")
