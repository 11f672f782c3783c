"""Output of commands: one line for an error, a table on screen, JSON or CSV for programs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_FORMAT = "lowprec.output"  # key of the output format in click's context
Cell = str | int | float | bool | None


class CommandError(click.ClickException):
    """An error with one line for stderr and an exit code: 2 for errors that the user can correct.

    Parameters
    ----------
    message : str
        Line to print.
    exit_code : int
        Exit code of the process.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it on the class

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"error: {' '.join(self.message.split())}", err=True)


@contextmanager
def naming(*files: str) -> Iterator[None]:
    """Context manager: add the names of the files that a block reads to errors that name no file."""
    from ..registry import UnknownNameError

    try:
        yield
    except UnknownNameError:  # the value of an option
        raise
    except (ValueError, TypeError) as error:
        named = any(file in str(error) for file in files)
        raise CommandError(str(error) if named else f"{', '.join(files)}: {error}") from error


def machine_readable(function: F) -> F:
    """Add the options `--json` and `--csv`, which exclude one another, to a command that prints a table."""

    @wraps(function)
    def checked(*args: Any, as_json: bool, as_csv: bool, **kwargs: Any) -> Any:
        if as_json and as_csv:
            raise CommandError("--json and --csv are mutually exclusive")
        click.get_current_context().meta[_FORMAT] = "json" if as_json else "csv" if as_csv else ""
        return function(*args, **kwargs)

    command: Any = click.option("--csv", "as_csv", is_flag=True, help="Print CSV with every digit.")(checked)
    command = click.option("--json", "as_json", is_flag=True, help='Print JSON; NaN is "nan", infinity "inf".')(command)
    return command  # type: ignore[no-any-return]


def output_format() -> str:
    """Return the output format of the running command: "json", "csv", or "" for a table on screen."""
    found: str = click.get_current_context().meta[_FORMAT]
    return found


def emit(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str, *, right: Sequence[bool] = (),
    below: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a table on screen, or with every digit as JSON or CSV, by the options of the command.

    Columns of numbers, or those in `right`, are aligned right; `below` are lines printed after the table on screen. A
    heading has its unit in parentheses; in JSON and CSV, `key_of` of the heading replaces it.
    """
    rows, keys = [list(row) for row in rows], [key_of(column) for column in columns]
    if output_format() == "json":
        from .._files import to_json

        click.echo(to_json([dict(zip(keys, row, strict=True)) for row in rows]), nl=False)
    elif output_format() == "csv":
        from .._files import to_csv

        click.echo(to_csv(keys, rows), nl=False)
    else:
        _print_table(columns, rows, title, right)
        for line in filter(None, below):
            click.echo(line)


def key_of(heading: str) -> str:
    """Return the key of a column in JSON and CSV: lower case, words joined by underscores.

    Examples
    --------
    >>> key_of("bits per value"), key_of("all-to-all (us)"), key_of("flips (%)")
    ('bits_per_value', 'all_to_all_us', 'flips_percent')
    """
    return re.sub(r"[^a-z0-9+]+", "_", heading.lower().replace("%", "percent")).strip("_")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager: show a progress bar on stderr if it is a terminal; yield the function that updates it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def count_progress(command: str, what: str) -> Callable[[int], None] | None:
    """Return a function that prints a count on stderr, every few seconds, or None without a terminal."""
    start = last = time.monotonic()

    def show(count: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _SHOW_EVERY:
            last = now
            click.echo(f"{command}: {count:,} {what} in {now - start:.0f} s", err=True)

    return show if sys.stderr.isatty() else None


_SHOW_EVERY = 5.0  # seconds
_WORD = 40  # a longer word may be broken


def _print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str, right: Sequence[bool] = ()
) -> None:
    """Print a table without breaking numbers and names: columns beyond the width follow in further parts.

    Every part repeats the leading columns of text, which identify the row.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    texts = [[_text(cell) for cell in row] for row in rows]
    numbers = [*right] or [
        any(row[i] is not None for row in rows)
        and all(cell is None or isinstance(cell, (int, float)) for cell in (row[i] for row in rows))
        for i in range(len(columns))
    ]
    full = [max(len(text) for text in (name, *(row[i] for row in texts))) for i, name in enumerate(columns)]
    least = [
        max(min(len(word), _WORD) for text in (name, *(row[i] for row in texts)) for word in (text.split() or [""]))
        for i, name in enumerate(columns)
    ]
    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = max(console.width, 160, _table_width(least))  # a file or pipe has no width to wrap at
    for number, part in enumerate(_parts(least, numbers, console.width)):
        widths = _widths([least[i] for i in part], [full[i] for i in part], console.width)
        screen = Table(
            title=title if number == 0 else None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
            pad_edge=False,
        )  # fmt: skip
        for i, width in zip(part, widths, strict=True):
            screen.add_column(columns[i], justify="right" if numbers[i] else "left", overflow="fold", width=width)
        for row in texts:
            screen.add_row(*(row[i] for i in part))
        console.print(screen, markup=False)


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + 3 * (len(widths) - 1) + 2


def _parts(least: Sequence[int], numbers: Sequence[bool], width: int) -> list[list[int]]:
    """Split the columns of a table into parts that fit the width."""
    if _table_width(least) <= width or len(least) < 2:
        return [list(range(len(least)))]
    heads = 1
    while heads < len(least) - 1 and not numbers[heads] and _table_width(least[: heads + 1]) <= width // 2:
        heads += 1
    parts: list[list[int]] = [list(range(heads))]
    for i in range(heads, len(least)):
        if len(parts[-1]) > heads and _table_width([least[j] for j in [*parts[-1], i]]) > width:
            parts.append(list(range(heads)))
        parts[-1].append(i)
    return parts


def _widths(least: Sequence[int], full: Sequence[int], width: int) -> list[int]:
    """Distribute the width over the columns: the minimum for each, then the rest one by one to the narrowest."""
    widths = list(least)
    for _ in range(width - _table_width(least)):
        short = [i for i, (now, most) in enumerate(zip(widths, full, strict=True)) if now < most]
        if not short:
            break
        widths[min(short, key=lambda i: widths[i])] += 1
    return widths
