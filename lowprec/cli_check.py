"""The command `check`: which quantizer made these codes and scales, and where they are not a recipe's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .cli_arrays import _load_array
from .cli_output import Cell, CommandError, emit, machine_readable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _load_codes(path: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Read codes and scale values from an .npz of `lowprec quantize --out` or of `Quantized.save`."""
    import numpy as np

    from .quantized import Quantized

    try:
        with open(path, "rb") as opened:
            names = np.load(opened, allow_pickle=False)
            files = list(names.files) if isinstance(names, np.lib.npyio.NpzFile) else []
            if "header" not in files and {"codes", "scale"} <= set(files):
                return names["codes"], np.asarray(names["scale"], dtype=np.float32)
        q = Quantized.load(path)
        return q.codes, q.scale
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except Exception as error:
        raise CommandError(
            f"{path}: codes and scales are needed, as lowprec quantize --out writes them: {error}"
        ) from None


@click.command("check")
@click.argument("file")
@click.option("--values", required=True, metavar="FILE", help="The matrix (.npy) that was quantized.")
@click.option("--recipe", metavar="NAME", help="Compare with this quantizer only, and show what differs.")
@click.option("--granularity", help="Blocks, if not the recipe's own.")
@machine_readable
def check(file: str, values: str, recipe: str | None, granularity: str | None, as_json: bool, as_csv: bool) -> None:
    """Tell which quantizer made the codes and scales in FILE (.npz).

    Every quantizer whose shapes fit is tried and what differs is counted; with --recipe the first elements that differ
    are shown, with the value before the cast.
    """
    import numpy as np

    from .quantizers import quantizers
    from .scaling import quantize

    codes, scale = _load_codes(file)
    x = _load_array(values, dimensions=2)
    if codes.shape != x.shape:
        raise CommandError(f"{file}: codes {codes.shape} for values {x.shape}")
    names = quantizers.names() if recipe is None else [recipe]
    rows: list[Sequence[Cell]] = []
    for name in names:
        if quantizers[name].history is not None:
            continue
        try:
            q = quantize(x, None, granularity, recipe=name)
        except ValueError:
            if recipe is not None:
                raise
            continue
        if q.scale.shape != scale.shape or q.codes.dtype != codes.dtype:
            if recipe is not None:
                raise CommandError(
                    f"{name}: scales {q.scale.shape} and {q.codes.dtype} codes, {file} has {scale.shape}"
                )
            continue
        wrong = q.codes != codes
        scales = ~((q.scale == scale) | (np.isnan(q.scale) & np.isnan(scale)))
        rows.append((name, int(wrong.sum()), float(wrong.mean()), int(scales.sum()), float(scales.mean())))
    rows.sort(key=lambda row: (row[1], row[3]))
    if not rows:
        raise CommandError(f"{file}: no quantizer has scales of shape {scale.shape} for values {x.shape}")
    columns = ("recipe", "codes that differ", "share", "scales that differ", "share of scales")
    emit(columns, rows, f"{file} against {values}", as_json, as_csv)
    if recipe is not None and rows[0][1] and not (as_json or as_csv):
        q = quantize(x, None, granularity, recipe=recipe)
        spread = _spread(q.scale, q)
        found: list[Sequence[Cell]] = [
            (f"[{i}, {j}]", float(x[i, j]), float(spread[i, j]), float(x[i, j] / spread[i, j]), int(codes[i, j]),
             int(q.codes[i, j]))
            for i, j in np.argwhere(q.codes != codes)[:10]
        ]  # fmt: skip
        emit(("at", "x", "scale", "x / scale", "code", f"{recipe}'s"), found, "First differences", False, False)


def _spread(scale: Any, q: Any) -> Any:
    """Return every element's scale, that of the tensor included."""
    import numpy as np

    rows, columns = q.granularity.block(q.shape)
    whole = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: q.shape[0], : q.shape[1]]
    return whole if q.tensor_scale is None else whole * q.tensor_scale
