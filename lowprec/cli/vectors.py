"""Commands on test vectors: vectors list, vectors write, vectors compare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .output import Cell, CommandError, emit, machine_readable, output_format


@click.group("vectors")
def vectors_command() -> None:
    """List, write and compare test vectors."""


_LEVEL = click.option(
    "--level",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="1: boundary values; 2: also pairs and random values.",
)
_SEED = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of random values.")


@vectors_command.command("list")
@click.argument("names", nargs=-1)
@machine_readable
def list_command(names: tuple[str, ...]) -> None:
    """List families of sets, or sets by the beginning of their names."""
    from ..vectors.catalogue import families, listed

    if not names:
        rows: list[Sequence[Cell]] = [
            (f"{name}/{families[name].pattern}", len(families[name].listed()), families[name].about)
            for name in families
        ]
        emit(("sets", "listed", "description"), rows, "Families of vector sets")
        return
    found = [name for name in listed() if name.startswith(tuple(names))]
    if not found:
        raise CommandError(f"unknown set {' or '.join(names)}...; lowprec vectors list shows the families")
    emit(("set",), [(name,) for name in found], "Vector sets")


@vectors_command.command("write")
@click.argument("names", nargs=-1, required=True, metavar="SET...")
@click.option(
    "--encoding", default="json", show_default=True, metavar="NAME", help="json, npz, hex, testfloat, c or mlir."
)
@click.option("--out", metavar="DIR", help="Folder for the files.  [default: standard output]")
@_LEVEL
@_SEED
def write_command(names: tuple[str, ...], encoding: str, out: str | None, level: int, seed: int) -> None:
    """Write test vectors.

    SET is a name of `lowprec vectors list`, or a prefix that ends with a slash and a star: `decode/*`.

    Example: lowprec vectors write cast/e4m3fn --encoding json --out vectors
    """
    from .._files import make_folder, write_bytes
    from ..vectors.catalogue import listed, vectors
    from ..vectors.encodings import encodings

    how = encodings[encoding]
    chosen: list[str] = []
    for name in names:
        some = [other for other in listed() if other.startswith(name[:-1])] if name.endswith("*") else [name]
        if not some:
            raise CommandError(f"unknown set {name}; lowprec vectors list shows the families")
        chosen += some
    if out is not None:
        make_folder(Path(out))
    elif len(chosen) > 1:
        raise CommandError(f"missing option --out DIR for more than one set, got {len(chosen)} sets")
    for name in chosen:
        s = vectors(name, level, seed)
        content = how.write(s)
        if out is None:
            sys.stdout.buffer.write(content)
            continue
        path = Path(out) / f"{s.stem}{how.suffix}"
        write_bytes(path, content)
        click.echo(f"wrote {path}: {len(s)} vectors, sha256 {s.sha256}", err=True)


@vectors_command.command("compare")
@click.argument("name", metavar="SET")
@click.option("--command", metavar="'PROG ARGS'", help="Program from input lines to output lines of hexadecimal words.")
@click.option("--results", metavar="FILE", help="File of outputs, one line per vector.")
@click.option("--max-rows", type=click.IntRange(min=0), default=10, show_default=True, help="Differences to print.")
@_LEVEL
@_SEED
@machine_readable
def compare_command(name: str, command: str | None, results: str | None, max_rows: int, level: int, seed: int) -> None:
    """Compare an implementation with a set of test vectors.

    Differences are explained by rules close to the right one. A line of input holds the hexadecimal words of one
    vector's inputs, a line of output those of its results; `lowprec vectors write SET --encoding testfloat` prints
    both. The exit code is 1 if anything differs.

    Example: lowprec vectors compare cast/e4m3fn --command ./encode
    """
    if (command is None) == (results is None):
        raise CommandError("give either --command 'PROG ARGS' or --results FILE")
    from ..vectors.catalogue import vectors
    from ..vectors.compare import ask, compare, parse, row

    s = vectors(name, level, seed)
    if results is not None:
        try:
            text = Path(results).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CommandError(f"{results} must be lines of hexadecimal words, got bytes that are not UTF-8") from None
        answers = parse(s, text.splitlines(), results)
    else:
        assert command is not None
        answers = ask(s, command)
    found = compare(s, answers)
    rows = [row(s, difference) for difference in found.differences[: None if output_format() else max_rows]]
    columns = ("vector", "input", "theirs", "ours", "exercises")
    if rows or output_format():
        emit(columns, [[r[column] for column in columns] for r in rows], "First differences")
    click.echo(found.sentence, err=bool(output_format()))
    if not found:
        sys.exit(1)
