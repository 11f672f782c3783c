"""The command `check`: which quantizer made these codes and scales, and what was done otherwise."""

from __future__ import annotations

import sys

import click

from .arrays import _load_array
from .output import emit, machine_readable, naming


@click.command("check")
@click.argument("file")
@click.option("--values", required=True, metavar="FILE", help="The matrix (.npy) that was quantized.")
@click.option("--quantizer", metavar="NAME", help="Compare with this quantizer only; see lowprec quantizers.")
@click.option("--granularity", metavar="BLOCK", help="Blocks, if not the quantizer's own.")
@click.option("--causes", is_flag=True, help="Only what differs and why: with --json or --csv, a row for each cause.")
@click.option("--exit-zero", is_flag=True, help="Exit code 0 even if something differs.")
@machine_readable
def check(
    file: str,
    values: str,
    quantizer: str | None,
    granularity: str | None,
    causes: bool,
    exit_zero: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Tell which quantizer made codes and what went wrong.

    FILE is what `lowprec quantize --out` or `Quantized.save` wrote, or an .npz with the arrays `codes` and `scale`, and
    `tensor_scale` for two levels (NVFP4). Without --quantizer it is compared with all of them, the nearest first.

    Where something differs the cause is named: scales by another arithmetic, inverted, transposed or missing; another
    rounding, maximum, bound on amax or block; rows in another order; flipped bits, and more. Causes that give the same
    bits are all named. The exit code is 1 where something differs.
    """
    from ..diagnose.check.check import check as compare

    x = _load_array(values, dimensions=2)
    with naming(file, values):
        found = compare(file, x, quantizer, granularity=granularity)
    if as_json or as_csv:
        columns, rows = found.differing() if causes else found.nearest()
        emit(columns, rows, "", as_json, as_csv)
    else:
        click.echo(f"{file}: {found.sentence}" if not causes else found.sentence)
        for title, (columns, rows) in found.tables():
            emit(columns, rows, title, False, False)
        if not causes and found and found.ranking:
            columns, rows = found.nearest()
            emit(columns, rows[:8], "Nearest quantizers", False, False)
    if not (found or exit_zero):
        sys.exit(1)
