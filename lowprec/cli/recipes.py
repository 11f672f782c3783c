"""The command that lists recipes and shows one as a table or as TOML."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .output import Cell, CommandError, emit, machine_readable


@click.command("recipes")
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@click.option("--toml", "as_toml", is_flag=True, help="Print the recipe as TOML, for --recipe FILE.toml.")
@machine_readable
def recipes_command(name: str | None, as_toml: bool, as_json: bool, as_csv: bool) -> None:
    """List recipes, or show the precision map of one."""
    if as_toml and (as_json or as_csv):
        raise CommandError("--toml and --json or --csv exclude each other")
    from ..recipe import load_recipe, recipes
    from ..recipe.table import rows

    if name is None:
        if as_toml:
            raise CommandError("--toml needs the name of a recipe")
        listed: list[Sequence[Cell]] = [(r, recipes[r].description, recipes[r].source) for r in recipes]
        emit(("recipe", "what it is", "source"), listed, "Training recipes", as_json, as_csv)
        return
    recipe = load_recipe(name)
    if as_toml:
        click.echo(recipe.to_toml(), nl=False)
        return
    table = [(row.part, row.what, row.precision) for row in rows(recipe)]
    emit(("part", "what", "precision"), table, f"{recipe.name}: {recipe.description}", as_json, as_csv)
