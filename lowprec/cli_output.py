"""How commands print: one line for an error, a table for people, JSON or CSV for machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Cell = str | int | float | bool | None


class CommandError(click.ClickException):
    """An error with one line for stderr and an exit code: 2 where the user can help it.

    Parameters
    ----------
    message : str
        The line.
    exit_code : int
        Exit code of the process.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it on the class

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"error: {' '.join(self.message.split())}", err=True)


def machine_readable(function: F) -> F:
    """Add `--json` and `--csv` to a command that prints a table."""
    function = click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")(function)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def emit(columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str, as_json: bool, as_csv: bool) -> None:
    """Print a table for people, or for machines with every digit."""
    rows = [list(row) for row in rows]
    if as_json and as_csv:
        raise CommandError("--json and --csv exclude each other")
    if as_json:
        import json

        from .study.store import plain

        click.echo(
            json.dumps([plain(dict(zip(columns, row, strict=True))) for row in rows], indent=1, ensure_ascii=False)
        )
    elif as_csv:
        import csv
        import io

        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(
            [columns, *([repr(cell) if isinstance(cell, float) else cell for cell in row] for row in rows)]
        )
        click.echo(text.getvalue(), nl=False)
    else:
        from rich import box
        from rich.console import Console
        from rich.table import Table

        screen = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(columns):
            numbers = any(isinstance(row[i], (int, float)) for row in rows)
            screen.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            screen.add_row(
                *(f"{cell:.5g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row)
            )
        console = Console()
        if not console.is_terminal:
            console.width = max(console.width, 160)  # a file or pipe has no edge to wrap at
        console.print(screen, markup=False)


def _short(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)
