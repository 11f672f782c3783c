"""The command `mma`: one matrix instruction on raw codes, compared with recorded outputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .arrays import _save, _writable_file
from .output import Cell, CommandError, emit, machine_readable, naming, output_format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SHOWN = 64
_NEEDED = "codes are a .npy of unsigned integers, a text file of hexadecimal words, or 0x38,0x3c/0x40,0x44 itself"


def _codes(given: str) -> NDArray[Any]:
    """Read a matrix of codes from a .npy file, from a text file of hexadecimal words, or from the argument itself."""
    from .._files.npy import is_npy, read_npy

    if given.startswith("0x"):
        return _words(given.replace(",", " ").split("/"), "the argument")
    try:
        if is_npy(given):
            return read_npy(given)
        text = Path(given).read_text(encoding="ascii")
    except OSError as error:
        raise CommandError(f"{given}: {error.strerror or error}; {_NEEDED}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{given} is not text; {_NEEDED}") from None
    return _words([line for line in text.splitlines() if line.strip()], given)


def _words(lines: Sequence[str], where: str) -> NDArray[Any]:
    """Read rows of hexadecimal words of one length; the number of digits gives their width."""
    import numpy as np

    try:
        rows = [[int(word, 16) for word in line.split()] for line in lines]
    except ValueError:
        raise CommandError(f"{where}: words must be hexadecimal, got others; {_NEEDED}") from None
    if not rows or len({len(row) for row in rows}) > 1 or not rows[0]:
        raise CommandError(
            f"{where}: rows must have the same number of words, got {sorted({len(row) for row in rows})}"
        )
    digits = max(len(word.removeprefix("0x")) for line in lines for word in line.split())
    if digits > 16 or min(min(row) for row in rows) < 0:
        raise CommandError(f"{where}: words must have 1 to 16 digits and no sign, got others")
    size = next(size for size in (1, 2, 4, 8) if 2 * size >= digits)
    return np.array(rows, dtype=f"u{size}")


def _members(path: str) -> dict[str, NDArray[Any]]:
    """Read a and b, and those of c, d, a_scale, b_scale that exist, from an archive."""
    from .._files.npy import Archive

    with Archive(path, "an .npz of arrays a, b and perhaps c, d, a_scale, b_scale") as held:
        lower = {name.lower(): name for name in held.names}
        names = ("a", "b", "c", "d", "a_scale", "b_scale")
        found = {key: held[lower[key]] for key in names if key in lower}
    if not {"a", "b"} <= set(found):
        raise CommandError(
            f"{path} must have arrays a and b, and may have c, d, a_scale and b_scale, got {', '.join(lower) or 'none'}"
        )
    return found


@click.command("mma")
@click.argument("a", metavar="A|DUMP")
@click.argument("b", metavar="[B]", required=False)
@click.argument("c", metavar="[C]", required=False)
@click.option(
    "--accumulator", default="hopper_fp8", show_default=True, metavar="NAME", help="See lowprec accumulators."
)
@click.option("--format", "target", metavar="NAME[,NAME]", help="Format of the codes: of both operands, or of A and B.")
@click.option("--a-scale", metavar="FILE", help="Codes of A's scales, for instructions that take scales.")
@click.option("--b-scale", metavar="FILE", help="Codes of B's scales.")
@click.option("--out", metavar="FILE", help="Save D as .npy.")
@machine_readable
def mma(
    a: str, b: str | None, c: str | None, accumulator: str, target: str | None, a_scale: str | None,
    b_scale: str | None, out: str | None
) -> None:  # fmt: skip
    """Emulate one matrix instruction on raw codes.

    D = A B^T + C, bit for bit.

    A is [M, K], B is [N, K], C is [M, N], in the format of the result or as its bits: .npy files, text files of
    hexadecimal words (one row per line), or the words themselves, 0x38,0x3c/0x40,0x44. DUMP is an .npz with the
    arrays a and b, and optionally c, a_scale, b_scale and d. Outputs that differ from d are counted and printed; the
    exit code is then 1.

    Example: lowprec mma 0x38,0x3c 0x40,0x44 --accumulator hopper_fp8 --format e4m3fn
    """
    import numpy as np

    from ..tensorcore.catalogue import accumulators
    from ..tensorcore.mma import mma as multiply

    _writable_file(out, a, b, c, a_scale, b_scale)
    machine = accumulators[accumulator]
    named = {"a": a, "b": b, "c": c, "a_scale": a_scale, "b_scale": b_scale}
    files = {name: a for name in named} if b is None else {n: text for n, text in named.items() if text is not None}
    given = _members(a) if b is None else {name: _codes(file) for name, file in files.items()}
    fa, _, fb = (target or "").partition(",")
    theirs = given.pop("d", None)
    for name, array in given.items():
        if array.ndim != 2:
            raise CommandError(f"{files[name]}: {name} must be a matrix, got shape {array.shape}")
    x, y, addend = given.pop("a"), given.pop("b"), given.pop("c", None)
    dtype = np.dtype(machine.dtype)
    if addend is not None and addend.dtype.kind == "u":
        if addend.dtype.itemsize > dtype.itemsize:
            raise CommandError(
                f"{files['c']}: c must be {dtype} with {accumulator}, got words of {8 * addend.dtype.itemsize} bits"
            )
        addend = addend.astype(f"u{dtype.itemsize}").view(dtype)
    scales: dict[str, Any] = given
    with naming(*dict.fromkeys(files.values())):
        d = multiply(x, y, addend, accumulator=machine, a_format=fa or None, b_format=fb or fa or None, **scales)
    if theirs is not None and (theirs.shape != d.shape or theirs.dtype.itemsize != d.itemsize):
        raise CommandError(
            f"{a}: d must be {d.dtype} {d.shape}, as results of {accumulator} are, got {theirs.dtype} {theirs.shape}"
        )
    if out is not None:
        _save(out, d)
    _report(d, theirs, accumulator)


def _report(d: NDArray[Any], theirs: NDArray[np.generic] | None, accumulator: str) -> None:
    """Print the outputs, or those that differ from given ones."""
    import numpy as np

    digits, word = 2 * d.itemsize, np.dtype(f"u{d.itemsize}")
    bits = d.view(word)
    places = np.argwhere(np.ones(d.shape, bool))
    columns: tuple[str, ...] = ("index", "bits", "value")
    other = bits
    if theirs is not None:
        other = np.ascontiguousarray(theirs).view(word)
        places = np.argwhere(other != bits)
        columns += ("expected bits", "expected value")
    rows: list[Sequence[Cell]] = []
    for i, j in places if output_format() else places[:_SHOWN]:
        row: list[Cell] = [f"[{i}, {j}]", f"0x{int(bits[i, j]):0{digits}x}", float(d[i, j])]
        if theirs is not None:
            row += [f"0x{int(other[i, j]):0{digits}x}", float(other[i, j : j + 1].view(d.dtype)[0])]
        rows.append(row)
    title = f"{accumulator}" if theirs is None else f"{accumulator}, where d differs"
    if rows or theirs is None or output_format():
        emit(columns, rows, title)
    if len(rows) < len(places):
        click.echo(f"and {len(places) - len(rows)} more: --json, --csv or --out FILE have all", err=True)
    if theirs is not None:
        click.echo(f"{len(places)} of {d.size} outputs differ", err=bool(output_format()))
        if len(places):
            sys.exit(1)
