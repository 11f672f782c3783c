"""The command `board`: released packages compared with lowprec, as a page and as JSON."""

from __future__ import annotations

from pathlib import Path

import click

from .output import emit, machine_readable


@click.command()
@click.argument("packages", nargs=-1, metavar="[PACKAGE ...]")
@click.option("--record", default="board.json", metavar="FILE", show_default=True, help="JSON file of all cells.")
@click.option("--page", default="board.md", metavar="FILE", show_default=True, help="Markdown page of all cells.")
@click.option("--cache", default="board-cache", metavar="DIR", show_default=True, help="Folder for environments.")
@click.option("--timeout", default=900.0, metavar="SECONDS", show_default=True, help="Limit for one package.")
@machine_readable
def board(packages: tuple[str, ...], record: str, page: str, cache: str, timeout: float) -> None:
    """Compare released packages with lowprec.

    Writes the conformance board. Each package is installed from the package index into an environment in the cache
    folder, and its operations run there. The cache folder keeps answers: a later call runs only packages that are new,
    changed or unfinished. Cells of other packages in the record stay. Without arguments, all packages are compared: 4
    minutes 19 seconds on two cores of an AMD EPYC, once installed. Cells of a package that cannot be installed,
    imported or run within the limit show the reason.

    Example: lowprec board ml_dtypes torch
    """
    from rich.console import Console

    from ..board.record import update

    with Console(stderr=True).status("") as status:
        found = update(packages, Path(record), Path(page), Path(cache), timeout, progress=status.update)
    rows = [
        (c["package"], c["operation"], c["entry"], *_numbers(c), c.get("error", "")) for c in found["cells"]
        if not packages or c["package"] in packages
    ]  # fmt: skip
    emit(("package", "operation", "lowprec", "compared", "differ", "zero signs", "could not run"), rows, "Board")


def _numbers(cell: dict[str, dict[str, int]]) -> tuple[int | None, int | None, int | None]:
    if "error" in cell:
        return None, None, None
    compared, differ = cell["compared"], cell["differ"]
    return sum(compared.values()), sum(differ[name] for name in compared), differ["zero_signs"]
