"""Commands that list what other commands take by name: accumulators, quantizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import click

from .output import Cell, emit, machine_readable

_ALIGNED = ("fused", "fused_runs", "halves", "two_floors")  # kinds that cut terms at a number of fraction bits


@click.command("accumulators")
@click.argument("name", required=False)
@machine_readable
def accumulators_command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List the machines that sum products, or tell all about one."""
    from ..tensorcore.accumulator import accumulators

    if name is not None:
        _about(accumulators[name], accumulators.aliases(accumulators[name].name), as_json, as_csv)
        return
    rows: list[Sequence[Cell]] = [
        (
            key,
            ", ".join(a.inputs) or "any",
            a.kind,
            None if a.kind in ("exact", "sequential") else a.group,
            a.fraction_bits if a.kind in _ALIGNED else None,
            a.output,
            _scales(a.scale_format, a.scale_block),
        )
        for key, a in ((key, accumulators[key]) for key in accumulators)
    ]
    columns = ("accumulator", "takes", "kind", "group", "fraction bits", "output", "scales inside")
    emit(columns, rows, "Accumulators", as_json, as_csv)


def _scales(name: str | None, block: int) -> str | None:
    return None if name is None else f"{name} per {block}"


@click.command("quantizers")
@click.argument("name", required=False)
@machine_readable
def quantizers_command(name: str | None, as_json: bool, as_csv: bool) -> None:
    """List the block quantizers by name, or tell all about one."""
    from ..format.catalogue import formats
    from ..scaling.quantizer import quantizers

    if name is not None:
        _about(quantizers[name], quantizers.aliases(quantizers[name].name), as_json, as_csv)
        return
    rows: list[Sequence[Cell]] = [
        (key, formats.get(q.format).name, q.granularity, q.scale, q.arithmetic, q.source)
        for key, q in ((key, quantizers[key]) for key in quantizers)
    ]
    emit(("quantizer", "format", "block", "scales", "arithmetic", "source"), rows, "Quantizers", as_json, as_csv)


def _about(entry: object, aliases: Sequence[str], as_json: bool, as_csv: bool) -> None:
    """Print every field of a catalogue's entry."""
    rows: list[Sequence[Cell]] = []
    for field in dataclasses.fields(entry):  # type: ignore[arg-type]  # entries are dataclasses
        value = getattr(entry, field.name)
        plain = value is None or isinstance(value, (str, int, float))
        rows.append(
            (field.name, value if plain else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
        )
    rows.insert(1, ("also called", ", ".join(aliases)))
    emit(("field", "value"), rows, str(rows[0][1]), as_json, as_csv)
