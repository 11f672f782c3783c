"""Commands that list the entries of catalogues: accumulators, attention kernels, quantizers, recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .output import Cell, CommandError, emit, machine_readable, output_format

if TYPE_CHECKING:
    from ..tensorcore.accumulator import Accumulator


@click.command("accumulators")
@click.argument("name", required=False)
@click.option("--disclosure", metavar="FILE.toml", help="Write the entry as a disclosure, with test vectors beside it.")
@machine_readable
def accumulators_command(name: str | None, disclosure: str | None) -> None:
    """List accumulators, or show the details of one, or write it as a disclosure.

    A disclosure is a TOML file in which a vendor publishes how an instruction sums; lowprec.accumulators.load reads it.
    """
    from .._values import compared_fields
    from ..tensorcore.catalogue import accumulators

    if disclosure is not None:
        if name is None:
            raise CommandError("accumulators: NAME must be given with --disclosure, got none")
        _write_disclosure(accumulators[name], Path(disclosure))
        return
    if name is not None:
        one = accumulators[name]
        _about(one, accumulators.aliases(one.name), [("how it sums", one.summary)])
        return
    rows: list[Sequence[Cell]] = [
        (
            key,
            ", ".join(f.name for f in a.input_formats) or "any",
            type(a).__name__,
            a.group_size if "group_size" in compared_fields(type(a)) else None,
            getattr(a, "fraction_bits", None),
            a.output_format.name,
            None if a.scale_format is None else f"{a.scale_format} per {a.scale_block}",
        )
        for key, a in ((key, accumulators[key]) for key in accumulators)
    ]
    columns = ("accumulator", "inputs", "kind", "group size", "fraction bits", "output", "block scales")
    emit(columns, rows, "Accumulators")


def _write_disclosure(entry: Accumulator, path: Path) -> None:
    """Write an entry as a disclosure, with a vector set where the oracle has its rule."""
    import hashlib

    from .._files import write_bytes, write_text
    from ..oracle import ACCUMULATORS
    from ..tensorcore.disclosure import write_disclosure
    from ..vectors.catalogue import vectors
    from ..vectors.encodings import encodings

    evidence = []
    if entry.name in ACCUMULATORS:
        found = vectors(f"mma/{entry.name}")
        data, file = encodings["npz"].write(found), path.with_suffix(".npz")
        write_bytes(file, data)
        click.echo(str(file))
        digest = hashlib.sha256(data).hexdigest()
        evidence = [{"kind": "vectors", "file": file.name, "sha256": digest, "outputs": len(found)}]
    write_text(path, write_disclosure(entry, evidence))
    click.echo(str(path))


@click.command("attentions")
@click.argument("name", required=False)
@machine_readable
def attentions_command(name: str | None) -> None:
    """List attention kernels, or show the details of one."""
    from ..attn.catalogue import attentions
    from ..attn.tiles import list_tiles

    if name is not None:
        one = attentions[name]
        _about(one, attentions.aliases(one.name), [])
        return
    rows: list[Sequence[Cell]] = [
        (
            key,
            a.operands.name,
            a.scores.name,
            ", ".join(list_tiles(a.key_tiles)),
            a.p_format.name,
            a.p_offset,
            a.rescale_threshold,
            "never" if a.promote_every is None else a.promote_every,
        )
        for key, a in ((key, attentions[key]) for key in attentions)
    ]
    columns = ("kernel", "operands", "accumulator", "keys per tile", "P", "offset", "threshold", "promoted every")
    emit(columns, rows, "Attention kernels")


@click.command("quantizers")
@click.argument("name", required=False)
@machine_readable
def quantizers_command(name: str | None) -> None:
    """List quantizers, or show the details of one."""
    from ..scaling.quantizer import quantizers

    if name is not None:
        _about(quantizers[name], quantizers.aliases(quantizers[name].name))
        return
    rows: list[Sequence[Cell]] = [
        (
            key,
            q.format.name,
            str(q.granularity),
            q.scale_format.name,
            getattr(q.rule, "scale_calculation", str(q.rule)),
            q.source,
        )
        for key, q in ((key, quantizers[key]) for key in quantizers)
    ]
    emit(("quantizer", "format", "block", "scales", "scale calculation", "source"), rows, "Quantizers")


@click.command("recipes")
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@click.option("--toml", "as_toml", is_flag=True, help="Print the recipe as TOML, for --recipe FILE.toml.")
@machine_readable
def recipes_command(name: str | None, as_toml: bool) -> None:
    """List recipes, or show the precision map of one."""
    if as_toml and output_format():
        raise CommandError("--toml and --json or --csv are mutually exclusive")
    from ..recipe import load_recipe, recipes
    from ..recipe.table import precision_rows

    if name is None:
        if as_toml:
            raise CommandError("missing NAME of a recipe for --toml")
        listed: list[Sequence[Cell]] = [(r, recipes[r].description, recipes[r].source) for r in recipes]
        emit(("recipe", "description", "source"), listed, "Training recipes")
        return
    recipe = load_recipe(name)
    if as_toml:
        click.echo(recipe.to_toml(), nl=False)
        return
    table = [(row.part, row.what, row.precision) for row in precision_rows(recipe)]
    emit(("part", "name", "precision"), table, f"{recipe.name}: {recipe.description}")


@click.command("stacks")
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@click.option("--toml", "as_toml", is_flag=True, help="Print the stack as TOML.")
@machine_readable
def stacks_command(name: str | None, as_toml: bool) -> None:
    """List stacks, or the rules of one: the arithmetic of each operation of a model's forward pass."""
    from ..parity.catalogue import stacks
    from ..parity.stack import load_stack

    if name is None:
        if as_toml:
            raise CommandError("stacks: NAME must be given with --toml, got none")
        emit(("stack", "operations", "source"), [(s, len(stacks[s].rules), stacks[s].source) for s in stacks], "Stacks")
        return
    stack = load_stack(name, stacks)
    if as_toml:
        click.echo(stack.to_toml(), nl=False)
        return
    rows = [(operation, type(rule).__name__, rule.mark, rule.source) for operation, rule in stack.rules]
    emit(("operation", "rule", "mark", "source"), rows, f"{stack.name}: {stack.source}")


def _about(entry: object, aliases: Sequence[str], more: Sequence[Sequence[Cell]] = ()) -> None:
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
    emit(("field", "value"), rows, str(rows[0][1]))
