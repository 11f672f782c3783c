"""``lowprec bench``: speed and memory of the trainer on this machine, by phase and kind."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .output import Cell, emit, machine_readable, output_format


@click.group()
def bench() -> None:
    """Measure the trainer's speed and memory on this machine."""


def _chosen(names: Sequence[str], default: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names or default))


_CONFIG = click.option(
    "--config",
    default="tiny",
    show_default=True,
    metavar="NAME|FILE",
    help="Model: nano, pilot, tiny, small, or FILE.toml.",
)
_RECIPES = click.option(
    "--recipe", "names", multiple=True, metavar="NAME|FILE", help="Recipe; may be repeated.  [default: bf16, dsv3]"
)


@bench.command("train")
@_CONFIG
@_RECIPES
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Timed steps.")
@click.option("--warmup", type=click.IntRange(min=1), default=3, show_default=True, help="Untimed steps before them.")
@click.option("--data", default="stdlib", show_default=True, metavar="NAME|FILE", help="stdlib, bible, ...")
@machine_readable
def train_command(config: str, names: tuple[str, ...], steps: int, warmup: int, data: str) -> None:
    """Time training steps of several recipes in turn."""
    from ..moe.data.sources import load_corpus
    from ..moe.model.config_file import check_tiles, get_config
    from ..moe.run.profile import PHASES, training_speed
    from ..recipe import load_recipe

    shape, chosen = get_config(config), [load_recipe(name) for name in _chosen(names, ("bf16", "dsv3"))]
    for recipe in chosen:
        check_tiles(shape, recipe)
    speeds = training_speed(shape, chosen, load_corpus(data), steps=steps, warmup=warmup)
    first = speeds[0].seconds
    rows: list[Sequence[Cell]] = [
        (
            shape.name,
            speed.recipe,
            1e3 * speed.seconds,
            speed.tokens_per_second,
            speed.seconds / first,
            speed.peak_bytes / 2**20,
            speed.page_faults,
        )
        for speed in speeds
    ]
    columns = (
        "config",
        "recipe",
        "step (ms)",
        "tokens per second",
        "relative step time",
        "peak memory (MiB)",
        "page faults per step",
    )
    wide: list[Sequence[Cell]]
    if output_format():
        wide = [(*row, *(1e3 * speed.phases[name] for name in PHASES)) for row, speed in zip(rows, speeds, strict=True)]
        emit((*columns, *(f"{name} (ms)" for name in PHASES)), wide, "")
        return
    emit(columns, rows, f"Training, medians of {steps} steps")
    totals = [sum(speed.phases.values()) for speed in speeds]
    shares: list[Sequence[Cell]] = []
    for name in PHASES:
        parts = [
            (1e3 * speed.phases[name], 100 * speed.phases[name] / all_)
            for speed, all_ in zip(speeds, totals, strict=True)
        ]
        shares.append((name, *(number for part in parts for number in part)))
    heads = [head for speed in speeds for head in (f"{speed.recipe} (ms)", "%")]
    emit(("phase", *heads), shares, "Phases of a step, processor time on one thread")


@bench.command("memory")
@_CONFIG
@_RECIPES
@click.option(
    "--recompute", "policies", multiple=True, metavar="NAME", help="Recompute policy; may be repeated.  [default: all]"
)
@click.option(
    "--repeats", type=click.IntRange(min=0), default=3, show_default=True, help="Timed passes of each policy."
)
@click.option("--by-kind", is_flag=True, help="Also list the bytes by kind of tensor.")
@machine_readable
def memory_command(
    config: str,
    names: tuple[str, ...],
    policies: tuple[str, ...],
    repeats: int,
    by_kind: bool,
) -> None:
    """Measure saved activations by recipe and recompute policy."""
    from ..moe.model.config_file import check_tiles, get_config
    from ..moe.run.profile import activation_memory
    from ..recipe import load_recipe

    shape, chosen = get_config(config), [load_recipe(name) for name in _chosen(names, ("bf16", "dsv3"))]
    for recipe in chosen:
        check_tiles(shape, recipe)
    measured = activation_memory(shape, chosen, list(dict.fromkeys(policies)) or None, rounds=repeats)
    first = measured[0]
    found = list(dict.fromkeys(kind for one in measured for kind in one.kinds)) if by_kind else []
    rows: list[Sequence[Cell]] = [
        (
            one.recipe,
            one.policy,
            one.bytes_per_token,
            one.bytes_per_token / first.bytes_per_token,
            1e3 * one.seconds if repeats else None,
            *(one.kinds.get(kind, 0.0) for kind in found),
        )
        for one in measured
    ]
    columns = ("recipe", "policy", "bytes per token", "relative size", "CPU time (ms)", *found)
    emit(columns, rows, f"Saved activations of {shape.name}")
