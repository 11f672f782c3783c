"""The command `format-errors`: quantization errors of formats."""

from __future__ import annotations

import click

from .arrays import _load_array
from .output import Cell, CommandError, emit, machine_readable

_SHOWN = (
    "bf16", "e5m6_1x128_ue8m0", "logfmt10", "int8_1x128", "logfmt8", "fp8_1x128", "fp8_1x128_ue8m0", "mxfp8",
    "e5m2_1x128", "mxfp6_e2m3_floor", "nvfp4", "mxfp4_floor",
)  # fmt: skip


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


_HELP = """Measure the quantization error of formats on data.

FILE is an array (.npy); tiles run along its last axis. --format takes codecs, quantizers, and element formats without
scales (see `lowprec codecs`, `lowprec quantizers`, `lowprec formats`). Columns are the fields of lowprec.compare, sqnr
in dB, the others as shares or relative errors, and

\b
gain_error  sum(result x) / sum(x x) - 1
saturated   share of values clamped to the largest number of their tile
octaves     log2 of the largest over the smallest magnitude in a tile of 128 (mean)

Example: lowprec format-errors --dist gauss,t3 --format mxfp8,nvfp4
"""


@click.command("format-errors", help=_HELP)
@click.argument("file", required=False)
@click.option("--dist", metavar="NAME,...", help="Draw from these instead of a file: gauss, laplace, t3 ..., all.")
@click.option(
    "--format", "formats", metavar="NAME,...", help="Codecs, quantizers or element formats.  [default: a selection]"
)
@click.option("--rows", type=click.IntRange(min=1), default=256, show_default=True, help="Rows to draw.")
@click.option("--columns", type=click.IntRange(min=1), default=1024, show_default=True, help="Values per row.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the drawn values.")
@machine_readable
def format_errors(
    file: str | None,
    dist: str | None,
    formats: str | None,
    rows: int,
    columns: int,
    seed: int,
) -> None:
    """Print the errors of every format on every array."""
    if (file is None) == (dist is None):
        raise CommandError("give either FILE or --dist gauss,laplace,...")
    from ..measure.atlas import errors_and_comparison, find_format
    from ..measure.distributions import distributions

    chosen = _names(formats) if formats is not None else list(_SHOWN)
    if not chosen:
        raise CommandError("--format must be one name at least, got none; see lowprec codecs")
    found = [find_format(name) for name in chosen]
    if file is not None:
        arrays = {file: _load_array(file)}
    else:
        assert dist is not None
        wanted = list(distributions) if dist == "all" else _names(dist)
        if not wanted:
            raise CommandError(f"--dist must be names among {', '.join(distributions)}, got none")
        arrays = {name: distributions[name].values((rows, columns), seed) for name in wanted}
    table: list[dict[str, Cell]] = []
    for name, values in arrays.items():
        for fmt in found:
            try:
                row, outcome = errors_and_comparison(values, fmt)
            except ValueError as wrong:
                raise CommandError(f"{name}: {wrong}") from None
            cells: dict[str, Cell] = {
                "data": name, "format": row.format, "bits per value": row.bits_per_value, **outcome.as_dict(),
                "gain_error": row.gain_error, "saturated": row.saturated, "octaves": row.tile_range_octaves,
            }  # fmt: skip
            table.append(cells)
    emit(tuple(table[0]), [tuple(row.values()) for row in table], "Errors")
