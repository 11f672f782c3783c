"""The command `check`: the quantizer that made codes and scales, and the causes of differences."""

from __future__ import annotations

import sys

import click

from .arrays import _load_array
from .output import emit, machine_readable, naming, output_format


@click.command("check")
@click.argument("file")
@click.option("--values", required=True, metavar="FILE", help="Matrix (.npy) that was quantized.")
@click.option("--quantizer", metavar="NAME", help="Compare with this quantizer only; see lowprec quantizers.")
@click.option("--granularity", metavar="BLOCK", help="Blocks, if they are not the quantizer's own.")
@click.option("--seconds", type=click.FloatRange(min=0), default=60, show_default=True, help="Time for the search.")
@click.option("--causes", is_flag=True, help="Print causes only; with --json or --csv, one row per cause.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if something differs.")
@machine_readable
def check(
    file: str,
    values: str,
    quantizer: str | None,
    granularity: str | None,
    seconds: float,
    causes: bool,
    exit_zero: bool,
) -> None:
    """Find the quantizer that made codes and scales.

    FILE is a file of `lowprec quantize --out` or `Quantized.save`, or an .npz with the arrays codes and scale, and
    tensor_scale for two levels (NVFP4). Without --quantizer, all quantizers are compared, the nearest first.

    Differences are explained by causes: scales from another formula, inverted, transposed or missing; another rounding,
    maximum, lower bound on amax or block; permuted rows; flipped bits, and more. All causes that give the same bits are
    listed. The exit code is 1 if anything differs.

    Example: lowprec check codes.npz --values x.npy
    """
    from ..diagnose.check.check import check as compare

    x = _load_array(values, dimensions=2)
    with naming(file, values):
        found = compare(file, x, quantizer, granularity=granularity, seconds=seconds)
    if output_format():
        columns, rows = found.differing() if causes else found.nearest()
        emit(columns, rows, "")
    else:
        click.echo(f"{file}: {found.sentence}" if not causes else found.sentence)
        for title, (columns, rows) in found.tables():
            emit(columns, rows, title)
        if not causes and found and found.ranking:
            columns, rows = found.nearest()
            emit(columns, rows[:8], "Nearest quantizers")
    if not (found or exit_zero):
        sys.exit(1)
