"""The commands `selftest`, of an installation, and `import-recordings`, which imports data for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from .output import Cell, CommandError, emit, machine_readable, output_format


@click.command()
@click.option("--exhaustive", is_flag=True, help="Test all 2^32 float32 inputs of each format (minutes).")
@click.option("--format", "names", multiple=True, metavar="NAME", help="Test this format only; may be repeated.")
@click.option("--recordings", metavar="DIR", help="Instead compare every accumulator with recordings of GPUs.")
@machine_readable
def selftest(exhaustive: bool, names: tuple[str, ...], recordings: str | None) -> None:
    """Test casts on this machine, bit for bit.

    Casts are compared with ml_dtypes on every bfloat16 value and every code (with --exhaustive on every float32
    value), and with exact arithmetic at all rounding boundaries. With --recordings, accumulators are compared with
    the recordings in a folder of `lowprec import-recordings`.

    Example: lowprec selftest --format e4m3fn --exhaustive
    """
    if recordings is not None:
        if exhaustive or names:
            raise CommandError("--recordings cannot be combined with --exhaustive and --format, which are for casts")
        _compare_recordings(recordings)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from ..measure.selftest import self_tests

    chosen = self_tests(exhaustive, names)
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
            rows.append((check.name, check.reference, check.inputs, found, seconds))
    emit(("check", "reference", "inputs", "differences", "seconds"), rows, "Casts, bit for bit")
    if total:
        click.echo(f"error: {total} differences", err=True)
        sys.exit(1)


@click.command("import-recordings")
@click.argument("checkout", type=click.Path(exists=True, file_okay=False))
@click.option("--out", required=True, metavar="DIR", help="Folder for the 48 converted files (14 MB).")
def recordings_command(checkout: str, out: str) -> None:
    """Convert published recordings of GPU outputs.

    CHECKOUT is a clone of github.com/north-numerical-computing/MATLAB-tensor-core, published with "Accurate Models of
    NVIDIA Tensor Cores" (arXiv:2512.07004): 48 experiments of 5,000 dot products on eight GPUs. The SHA-256 of each
    converted file is checked. Afterwards, `LOWPREC_HARDWARE_RECORDINGS=DIR pytest` runs all tests, and `lowprec
    selftest --recordings DIR` compares every recorded accumulator.

    Example: lowprec import-recordings MATLAB-tensor-core --out converted
    """
    from ..vectors.recordings import RECORDINGS, VARIABLE, write

    outputs = 0
    for recording, n in write(Path(checkout), Path(out)):
        outputs += n
        click.echo(f"{recording.file}: {n} outputs, as published", err=True)
    click.echo(f"{len(RECORDINGS)} files, {outputs} outputs in {out}; now: {VARIABLE}={out} pytest")


def _compare_recordings(folder: str) -> None:
    """Run every accumulator on its recordings and print the differences."""
    from ..vectors.recordings import RECORDINGS, differing

    rows: list[Sequence[Cell]] = []
    total = compared = 0
    for recording in RECORDINGS:
        start = time.perf_counter()
        outputs, wrong = differing(Path(folder), recording)
        total, compared = total + wrong, compared + outputs
        seconds = round(time.perf_counter() - start, 2)
        rows.append((recording.accumulator, f"recording of {recording.gpu}, {recording.file}", outputs, wrong, seconds))
    emit(("accumulator", "reference", "inputs", "differences", "seconds"), rows, "Recordings, bit for bit")
    click.echo(f"{total} of {compared} recorded outputs differ", err=bool(output_format()))
    if total:
        sys.exit(1)
