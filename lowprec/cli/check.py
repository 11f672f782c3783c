"""The command `check`: which quantizer made these codes and scales, and where they are not a quantizer's."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .arrays import _load_array
from .output import Cell, CommandError, emit, machine_readable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_SAME = ("same", "none")
_NEEDED = "an .npz with the arrays codes and scale is needed, as lowprec quantize --out or Quantized.save writes it"


def _load_codes(path: str) -> tuple[NDArray[Any], NDArray[np.float32], float | None]:
    """Read codes, scale values and the tensor's scale from a file of `lowprec quantize --out` or `Quantized.save`."""
    import numpy as np

    from ..scaling.quantized import Quantized

    try:
        with open(path, "rb") as opened:
            held = np.load(opened, allow_pickle=False)
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise CommandError(f"{path}: a single array; {_NEEDED}")
            files = list(held.files)
            if "header" in files:
                q = Quantized.load(path)
                return q.codes, q.scale, None if q.tensor_scale is None else float(q.tensor_scale)
            if not {"codes", "scale"} <= set(files):
                raise CommandError(f"{path}: it holds {', '.join(files) or 'no array'}; {_NEEDED}")
            codes, scale = held["codes"], held["scale"]
            if not (isinstance(codes, np.ndarray) and isinstance(scale, np.ndarray)):
                raise CommandError(f"{path}: codes or scale is no array; {_NEEDED}")
            tensor = float(held["tensor_scale"]) if "tensor_scale" in files else None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        # NumPy takes what it does not know for a pickle and advises to load it unsafely.
        why = "neither .npz nor .npy" if "pickle" in str(error) or not str(error) else str(error)
        raise CommandError(f"{path}: {why}; {_NEEDED}") from None
    if codes.dtype not in (np.uint8, np.uint16):
        raise CommandError(f"{path}: codes are {codes.dtype}, uint8 (or uint16, beyond 8 bits) is needed")
    if scale.dtype.kind not in "fiu":
        raise CommandError(f"{path}: scale is {scale.dtype}, numbers are needed")
    return codes, np.asarray(scale, dtype=np.float32), tensor


@click.command("check")
@click.argument("file")
@click.option("--values", required=True, metavar="FILE", help="The matrix (.npy) that was quantized.")
@click.option("--quantizer", metavar="NAME", help="Compare with this quantizer only; see lowprec quantizers.")
@click.option("--granularity", metavar="BLOCK", help="Blocks, if not the quantizer's own.")
@click.option("--causes", is_flag=True, help="Only the causes, of the quantizer or of the nearest one.")
@machine_readable
def check(
    file: str,
    values: str,
    quantizer: str | None,
    granularity: str | None,
    causes: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Tell which quantizer made codes and scales.

    FILE is what `lowprec quantize --out` or `Quantized.save` wrote, or an .npz with the arrays `codes` and `scale`.
    Every quantizer whose shapes fit is tried and what differs is counted: codes, scales, and the scale of the whole
    tensor (NVFP4's second level, the array tensor_scale). Where something differs from --quantizer, or from the
    nearest one, causes are named: ties broken the other way, reciprocals instead of division, scales by another
    arithmetic, inverted or multiplied, overflow that is not saturated, values rounded twice. The exit code is 0
    whatever differs.
    """
    codes, scale, tensor = _load_codes(file)
    x = _load_array(values, dimensions=2)
    if codes.shape != x.shape:
        raise CommandError(f"{file}: codes {codes.shape} for values {x.shape}")
    if scale.ndim != 2:
        raise CommandError(f"{file}: scale has shape {scale.shape}, a matrix of one scale a block is needed")
    rows = _ranked(codes, scale, tensor, x, quantizer, granularity, file)
    if not causes:
        columns = (
            "quantizer", "codes that differ", "share", "scales that differ", "share of scales", "tensor scale",
        )  # fmt: skip
        emit(columns, rows, f"{file} against {values}", as_json, as_csv)
    nearest = rows[0]
    same = not (nearest[1] or nearest[3]) and nearest[5] in _SAME
    if causes or not (same or as_json or as_csv):
        _emit_causes(codes, scale, tensor, x, str(nearest[0]), granularity, as_json, as_csv)


def _ranked(
    codes: NDArray[Any],
    scale: NDArray[np.float32],
    tensor: float | None,
    x: NDArray[Any],
    quantizer: str | None,
    granularity: str | None,
    file: str,
) -> list[tuple[str, int, float, int, float, str]]:
    """Count what differs from each quantizer that fits, nearest first."""
    import numpy as np

    from ..scaling.quantize import quantize
    from ..scaling.quantizer import quantizers

    rows: list[tuple[str, int, float, int, float, str]] = []
    for name in quantizers.names() if quantizer is None else [quantizer]:
        if quantizers[name].history is not None and quantizer is None:
            continue
        try:
            q = quantize(x, None, granularity, quantizer=name)
        except ValueError:
            if quantizer is not None:
                raise
            continue
        if q.scale.shape != scale.shape or q.codes.dtype != codes.dtype:
            if quantizer is not None:
                raise CommandError(
                    f"{name}: scales {q.scale.shape} and {q.codes.dtype} codes, {file} has {scale.shape}"
                )
            continue
        wrong = q.codes != codes
        scales = ~((q.scale == scale) | (np.isnan(q.scale) & np.isnan(scale)))
        share = (float(wrong.mean()), float(scales.mean())) if wrong.size else (0.0, 0.0)
        rows.append((name, int(wrong.sum()), share[0], int(scales.sum()), share[1], _tensor(q.tensor_scale, tensor)))
    if not rows:
        raise CommandError(f"{file}: no quantizer has scales of shape {scale.shape} for values {x.shape}")
    return sorted(rows, key=lambda row: (row[1], row[3], row[5] not in _SAME))


def _tensor(own: np.float32 | None, found: float | None) -> str:
    """Compare the scales of the whole tensor."""
    if own is None:
        return "none" if found is None or found == 1 else "not the quantizer's"
    if found is None:
        return "missing"
    return "same" if found == own or (found != found and own != own) else "differs"


def _emit_causes(
    codes: NDArray[Any],
    scale: NDArray[np.float32],
    tensor: float | None,
    x: NDArray[Any],
    quantizer: str,
    granularity: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Print how many scales and codes differ for which cause, and for people the first of them."""
    import numpy as np

    from ..scaling.explain import explain

    e = explain(codes, scale, x, quantizer, granularity, tensor_scale=tensor)
    rows: list[Sequence[Cell]] = []
    if e.tensor:
        own = None if e.expected.tensor_scale is None else float(e.expected.tensor_scale)
        rows.append(("tensor scale", e.tensor, 1, 1.0, "", tensor, own))
    for what, names, found, expected in (
        ("scale", e.scales, scale, e.expected.scale),
        ("code", e.codes, codes, e.expected.codes),
    ):
        some = names[names != ""]
        for name, count in sorted(Counter(some.tolist()).items(), key=lambda item: -item[1]):
            i, j = np.argwhere(names == name)[0]
            rows.append((what, name, count, count / names.size, f"[{i}, {j}]", found[i, j].item(),
                         expected[i, j].item()))  # fmt: skip
    if not rows and not (as_json or as_csv):
        click.echo(f"nothing differs from {quantizer}")
        return
    columns = ("what", "cause", "differ", "share", "first at", "found", f"{quantizer}'s")
    emit(columns, rows, f"Why they are not {quantizer}'s", as_json, as_csv)
    at = np.argwhere(e.codes != "")[:10]
    if not at.size or as_json or as_csv:
        return
    first: list[Sequence[Cell]] = [
        (f"[{i}, {j}]", float(x[i, j]), float(e.before[i, j]), int(codes[i, j]), int(e.expected.codes[i, j]),
         str(e.codes[i, j]))
        for i, j in at
    ]  # fmt: skip
    emit(("at", "x", "before the cast", "code", f"{quantizer}'s", "cause"), first, "First differences", False, False)
