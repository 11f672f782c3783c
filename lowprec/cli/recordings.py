"""The command that converts recordings of real GPUs, and the table of what our accumulators make of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from .output import Cell, emit


@click.command("recordings")
@click.argument("checkout", type=click.Path(exists=True, file_okay=False))
@click.option("--out", required=True, metavar="DIR", help="Folder for the 48 converted files (14 MB).")
def recordings_command(checkout: str, out: str) -> None:
    """Convert published recordings of eight GPUs for the tests.

    CHECKOUT is a clone of github.com/north-numerical-computing/MATLAB-tensor-core, published with "Accurate Models of
    NVIDIA Tensor Cores" (arXiv:2512.07004): 48 experiments of 5,000 dot products. The SHA-256 of each converted file is
    checked. Afterwards, `LOWPREC_HARDWARE_RECORDINGS=DIR pytest` runs all tests, and `lowprec verify --recordings DIR`
    compares every recorded accumulator.
    """
    from ..vectors.recordings import RECORDINGS, VARIABLE, write

    outputs = 0
    for recording, n in write(Path(checkout), Path(out)):
        outputs += n
        click.echo(f"{recording.file}: {n} outputs, as published", err=True)
    click.echo(f"{len(RECORDINGS)} files, {outputs} outputs in {out}; now: {VARIABLE}={out} pytest")


def verify_recordings(folder: str, as_json: bool, as_csv: bool) -> None:
    """Run every accumulator over its recordings and print what differs."""
    from ..vectors.recordings import RECORDINGS, differing

    rows: list[Sequence[Cell]] = []
    total = compared = 0
    for recording in RECORDINGS:
        start = time.perf_counter()
        outputs, wrong = differing(Path(folder), recording)
        total, compared = total + wrong, compared + outputs
        seconds = round(time.perf_counter() - start, 2)
        rows.append((recording.accumulator, f"recording of {recording.gpu}, {recording.file}", outputs, wrong, seconds))
    emit(
        ("accumulator", "against", "inputs", "differences", "seconds"), rows, "Recordings, bit for bit", as_json, as_csv
    )
    click.echo(f"{total} of {compared} recorded outputs differ", err=as_json or as_csv)
    if total:
        sys.exit(1)
