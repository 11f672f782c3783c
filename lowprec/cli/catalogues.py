"""Commands that list what other commands take by name: accumulators, quantizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import click

from .output import Cell, emit, machine_readable


@click.command("accumulators")
@click.argument("name", required=False)
@machine_readable
def accumulators_command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List accumulators, or show the details of one."""
    from .._values import deciding
    from ..tensorcore.catalogue import accumulators

    if name is not None:
        one = accumulators[name]
        _about(one, accumulators.aliases(one.name), as_json, as_csv, [("how it sums", one.words)])
        return
    rows: list[Sequence[Cell]] = [
        (
            key,
            ", ".join(f.name for f in a.input_formats) or "any",
            type(a).__name__,
            a.group if "group" in deciding(type(a)) else None,
            getattr(a, "fraction_bits", None),
            a.output_format.name,
            None if a.scale_format is None else f"{a.scale_format} per {a.scale_block}",
        )
        for key, a in ((key, accumulators[key]) for key in accumulators)
    ]
    columns = ("accumulator", "takes", "kind", "group", "fraction bits", "output", "scales inside")
    emit(columns, rows, "Accumulators", as_json, as_csv)


@click.command("quantizers")
@click.argument("name", required=False)
@machine_readable
def quantizers_command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List quantizers, or show the details of one."""
    from ..scaling.quantizer import quantizers

    if name is not None:
        _about(quantizers[name], quantizers.aliases(quantizers[name].name), as_json, as_csv)
        return
    rows: list[Sequence[Cell]] = [
        (
            key,
            q.format.name,
            str(q.granularity),
            q.scale_format.name,
            getattr(q.rule, "arithmetic", str(q.rule)),
            q.source,
        )
        for key, q in ((key, quantizers[key]) for key in quantizers)
    ]
    emit(("quantizer", "format", "block", "scales", "arithmetic", "source"), rows, "Quantizers", as_json, as_csv)


def _about(
    entry: object, aliases: Sequence[str], as_json: bool, as_csv: bool, more: Sequence[Sequence[Cell]] = ()
) -> None:
    """Print every field of a catalogue's entry, and more."""
    rows: list[Sequence[Cell]] = []
    for field in dataclasses.fields(entry):  # type: ignore[arg-type]  # entries are dataclasses
        value = getattr(entry, field.name)
        plain = value is None or isinstance(value, (str, int, float))
        rows.append(
            (field.name, value if plain else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
        )
    rows.insert(1, ("also called", ", ".join(aliases)))
    rows += more
    emit(("field", "value"), rows, str(rows[0][1]), as_json, as_csv)
