"""What studies that train nothing have in common: a table of published claims, their files, and the screen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import to_csv, write_json, write_text
from ..design.expectations import Claim, Measured
from ..report import html
from ..report.document import Document, Table, markdown
from ..run.fingerprint import code_hash, host, versions

COLUMNS = ("claim", "source", "published", "ours", "agrees", "command")


@dataclass(frozen=True, eq=False, kw_only=True)
class Claimed:
    """What a study found of published figures.

    Attributes
    ----------
    measured : tuple of (Claim, Measured)
        Each beside ours.
    command : str
        How the study was called.
    """

    measured: tuple[tuple[Claim, Measured], ...] = ()
    command: str = ""

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(ours.holds for _, ours in self.measured)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of claims: what, where it is published, published, ours, agreement, command."""
        return [
            (claim.claim, claim.source, claim.published, ours.words, "yes" if ours.holds else "NO", self.command)
            for claim, ours in self.measured
        ]


def claims_csv(outcome: Claimed) -> str:
    """Return the table of claims as CSV."""
    return to_csv(COLUMNS, outcome.rows())


def claims_table(outcome: Claimed, caption: str = "") -> Table:
    """Return the table of claims for a report: a source once, and the command, the same for all, elsewhere."""
    rows, above = [], ""
    for claim, source, *rest, _ in outcome.rows():
        rows.append((claim, "as above" if source == above else source, *rest))
        above = source
    return Table(COLUMNS[:-1], tuple(rows), caption)


def claims_json(outcome: Claimed) -> list[dict[str, Any]]:
    """Return the table of claims in JSON's types, with the numbers."""
    return [
        {**dict(zip(COLUMNS, row, strict=True)), "value": ours.value}
        for row, (_, ours) in zip(outcome.rows(), outcome.measured, strict=True)
    ]


def made_of() -> dict[str, Any]:
    """Return what all studies of one page must have in common."""
    return {"code": code_hash(), "versions": versions()}


def write_reports(
    found: Document, content: Mapping[str, Any], folder: Path, tables: Mapping[str, str], page: bool, began: float
) -> list[Path]:
    """Write what every such study writes, and return the paths, `summary.json` last.

    Parameters
    ----------
    found : Document
        The report, for `report.md`, `document.json` and, with `page`, `report.html`.
    content : mapping
        The outcome, for `summary.json`; name, question, versions and host are added.
    folder : Path
        Where to.
    tables : mapping of str to str
        Further texts by file name.
    page : bool
        Whether its figures were drawn, which a page needs.
    began : float
        `time.process_time()` when the study began: what it took is noted.
    """
    texts = {**tables, "report.md": markdown(found)}
    for name, text in texts.items():
        write_text(folder / name, text)
    files = [*(folder / name for name in texts), found.write(folder)]
    if page:
        files.append(html.write([found], folder / html.PAGE))
    about = {"study": found.name, "question": found.question}
    took = {"seconds": time.process_time() - began, "versions": versions(), "host": host()}
    write_json(folder / "summary.json", {**about, **content, **took})
    return [*files, folder / "summary.json"]


def show_claims(outcome: Claimed, console: Any, title: str, caption: str = "") -> None:
    """Print the table of claims, one row a claim, on a rich console."""
    found = claims_table(outcome)
    show_table(console, found.head, found.rows, title, caption, {"yes": "green", "NO": "red"})


def show_table(
    console: Any,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str,
    caption: str = "",
    colors: Mapping[str, str] | None = None,
    right: Sequence[str] = (),
) -> None:
    """Print a table on a rich console; cells of some words in color, some columns to the right."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Screen

    table = Screen(title=title, title_justify="left", title_style="bold", pad_edge=False, box=box.SIMPLE_HEAD,
                  caption=caption or None, caption_justify="left")  # fmt: skip
    for name in head:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*(f"[{colors[cell]}]{cell}[/]" if colors and cell in colors else escape(cell) for cell in row))
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)
