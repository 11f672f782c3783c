"""The command `verify`: a self-test of an installation."""

from __future__ import annotations

import sys
import time

import click

from .output import CommandError, emit, machine_readable
from .recordings import verify_recordings


@click.command()
@click.option("--exhaustive", is_flag=True, help="Test all 2^32 float32 inputs of each format (minutes).")
@click.option("--format", "names", multiple=True, metavar="NAME", help="Test this format only; may be repeated.")
@click.option("--recordings", metavar="DIR", help="Instead compare every accumulator with recordings of GPUs.")
@machine_readable
def verify(exhaustive: bool, names: tuple[str, ...], recordings: str | None, as_json: bool, as_csv: bool) -> None:
    """Test casts on this machine, bit for bit.

    Casts are compared with ml_dtypes on every bfloat16 value and every code (with --exhaustive on every float32
    value), and with exact arithmetic at all rounding boundaries. With --recordings, accumulators are compared with
    the recordings in a folder of `lowprec recordings`.
    """
    if recordings is not None:
        if exhaustive or names:
            raise CommandError("--recordings compares accumulators; --exhaustive and --format are for casts")
        verify_recordings(recordings, as_json, as_csv)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from ..measure.verify import checks

    chosen = checks(exhaustive, names)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    rows, total = [], 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        whole = shown.add_task("all checks", total=sum(check.inputs for check in chosen))
        for check in chosen:
            shown.update(whole, description=check.name)
            start = time.perf_counter()
            found = check.run(lambda n: shown.advance(whole, n))
            total += found
            seconds = round(time.perf_counter() - start, 2)
            rows.append((check.name, check.against, check.inputs, found, seconds))
    emit(("check", "against", "inputs", "differences", "seconds"), rows, "Casts, bit for bit", as_json, as_csv)
    if total:
        click.echo(f"error: {total} differences", err=True)
        sys.exit(1)
