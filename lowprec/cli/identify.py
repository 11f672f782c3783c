"""The command `identify`: which arithmetic made the outputs of a dump."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .mma import _members
from .output import Cell, CommandError, emit, machine_readable

if TYPE_CHECKING:
    from ..conformance.identify.identification import Identification

_SHOWN = 10


@click.command("identify")
@click.argument("dump")
@click.option("--format", "target", metavar="NAME[,NAME]", help="What codes mean: of both, or of A and of B.")
@click.option("--d-format", metavar="NAME", help="What the words of d are: bfloat16, for example.")
@click.option(
    "--shown", type=click.IntRange(min=0), default=_SHOWN, show_default=True, help="Entries, and differences, to show."
)
@machine_readable
def identify_command(
    dump: str, target: str | None, d_format: str | None, shown: int, as_json: bool, as_csv: bool
) -> None:
    """Tell which arithmetic made the outputs of a dump.

    DUMP is an .npz with a [M, K], b [N, K] and d [M, N] of d = A B^T + C, as codes or as numbers of a type that NumPy
    has; c, a_scale and b_scale if there are any. With d [M], d[i] is the product of the rows a[i] and b[i].

    The catalogue is ranked by how many outputs differ; what explains all of them is printed as a line of Python. Exit
    code 1 if nothing does.
    """
    from ..conformance.identify.identification import identify

    given = _members(dump)
    if "d" not in given:
        raise CommandError(f"{dump}: no array d; the outputs are what is looked at")
    fa, _, fb = (target or "").partition(",")
    scales = {name: given[name] for name in ("a_scale", "b_scale") if name in given}
    found = identify(
        given["a"], given["b"], given.get("c"), given["d"], a_format=fa or None, b_format=fb or fa or None,
        d_format=d_format, **scales,
    )  # fmt: skip
    _report(found, shown, as_json, as_csv)
    if not found.candidates:
        sys.exit(1)


def _report(found: Identification, shown: int, as_json: bool, as_csv: bool) -> None:
    """Print the ranking, what explains the dump, and what it leaves."""
    machines = as_json or as_csv
    size = found.dumps[0].d.size
    rows: list[Sequence[Cell]] = [
        (
            ", ".join(r.names), ", ".join(r.libraries) or None, r.differing,
            r.differing / size, None if r.apart is None else f"{r.apart.start} to {r.apart.stop - 1}",
        )
        for r in (found.ranking if machines else found.ranking[:shown])
    ]  # fmt: skip
    columns = ("accumulator", "library", "outputs that differ", "share", "first apart at k")
    emit(columns, rows, f"The catalogue beside {size} outputs", as_json, as_csv)
    click.echo(found.sentence(), err=machines)
    for line in found.lines():
        click.echo(f"  {line}", err=machines)
    if found.candidates and found.differing:
        places = ", ".join(str(list(place)) for place in found.differing[:shown])
        more = len(found.differing) - shown
        click.echo(f"outputs that differ: {places}{f' and {more} more' if more > 0 else ''}", err=machines)
