"""The command `identify`: the arithmetic that made the outputs of a dump."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .arrays import _writable_file
from .mma import _members
from .output import Cell, CommandError, count_progress, emit, machine_readable, naming, output_format

if TYPE_CHECKING:
    from ..diagnose.identify.identification import Identification

_MAX_ROWS = 10


@click.command("identify")
@click.argument("dump")
@click.option("--format", "target", metavar="NAME[,NAME]", help="Format of the codes: of both operands, or of A and B.")
@click.option("--d-format", metavar="NAME", help="Format of the words of d, such as bfloat16.")
@click.option("--seconds", type=click.FloatRange(min=0), default=60, show_default=True, help="Time for the search.")
@click.option("--write-probes", metavar="FILE", help="Write operands that distinguish the remaining candidates.")
@click.option("--answers", "also", multiple=True, metavar="FILE", help="Probes with their outputs d; may be repeated.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=0),
    default=_MAX_ROWS,
    show_default=True,
    help="Entries and differences to print.",
)
@click.option("--attention", is_flag=True, help="Find the attention kernel of q, k, v and o.")
@machine_readable
def identify_command(
    dump: str, target: str | None, d_format: str | None, seconds: float, write_probes: str | None,
    also: tuple[str, ...], max_rows: int, attention: bool,
) -> None:  # fmt: skip
    """Find the accumulator that made recorded outputs.

    DUMP is an .npz with a [M, K], b [N, K] and d [M, N], where d = A B^T + C, as codes or NumPy numbers; c, a_scale and
    b_scale are optional. If d is [M], d[i] is the dot product of rows a[i] and b[i].

    Ranks the catalogue by the number of outputs that differ, and prints the accumulator that reproduces all of them
    as a line of Python. If no entry does, accumulators and orders of operations are searched. If several do,
    --write-probes writes operands on which they differ: run these on the same hardware, add the outputs to the file as
    d, and pass it with --answers. If nothing reproduces the dump, the exit code is 1 and the smallest mismatch is
    printed.

    With --attention, DUMP has q, k, v, o and perhaps lse, as numbers or as codes of bfloat16 and e4m3fn, and perhaps
    causal, window, scale, descale, softcap, sinks, splits and page_size, which are those of lowprec.attention.

    Example: lowprec identify dump.npz --format e4m3fn --write-probes probes.npz
    """
    if attention:
        if given := [name for name, value in (("--format", target), ("--d-format", d_format),
                     ("--write-probes", write_probes), ("--answers", also)) if value]:  # fmt: skip
            raise CommandError(f"{given[0]} must not be given with --attention, got both")
        _identify_attention(dump, seconds, max_rows)
        return
    from ..diagnose.identify.identify import identify

    _writable_file(write_probes, dump, *also)
    fa, _, fb = (target or "").partition(",")
    formats: dict[str, Any] = {"a_format": fa or None, "b_format": fb or fa or None, "d_format": d_format}
    dumps = [_arguments(path) for path in (dump, *also)]
    with naming(dump, *also):
        others = tuple((arguments | formats) for arguments in dumps[1:])
        found = identify(
            **dumps[0], **formats, also=others, seconds=seconds, progress=count_progress("identify", "candidates tried")
        )
    _report(found, max_rows)
    if write_probes is not None:
        _write_probes(found, write_probes)
    if not found.candidates:
        if not output_format():
            _show_example(found)
        sys.exit(1)


def _identify_attention(path: str, seconds: float, max_rows: int) -> None:
    """Print the attention kernels that explain a dump, and the ranking."""
    from .._files.npy import Archive
    from ..diagnose.identify.attention import identify_attention
    from ..diagnose.words import join_some
    from ..registry import suggest

    needed = ("q", "k", "v", "o")
    known = (*needed, "lse", "causal", "window", "scale", "descale", "softcap", "sinks", "splits", "page_size")
    with Archive(path, "an .npz of arrays q, k, v, o and perhaps lse") as held:
        if unknown := [name for name in held.names if name not in known]:
            raise CommandError(f"{path} has an unknown array {unknown[0]!r}: {suggest(unknown[0], known)}")
        given = {name: held[name] for name in held.names}
    if missing := [name for name in needed if name not in given]:
        raise CommandError(
            f"{path} must have arrays {', '.join(needed)}, got none named {', '.join(missing)} among "
            f"{', '.join(given) or 'none'}"
        )
    options: dict[str, Any] = {
        name: x.tolist() if x.ndim < 2 else x for name, x in given.items() if name not in (*needed, "lse")
    }
    with naming(path):
        found = identify_attention(
            given["q"], given["k"], given["v"], given["o"], given.get("lse"), seconds=seconds, **options
        )
    machines = bool(output_format())
    click.echo(found.sentence, err=machines)
    assumed = [f"assumed: {', '.join(found.assumed)}"] if found.assumed else []
    untried = [f"not tried: {join_some(found.untried)}"] if found.untried else []
    for line in (*found.lines()[:max_rows], *assumed, *untried):
        click.echo(f"  {line}", err=machines)
    columns, rows = found.table()
    emit(columns, rows if machines else rows[:max_rows], "Attention kernels compared with the outputs")
    if not found.explaining:
        sys.exit(1)


def _arguments(path: str) -> dict[str, Any]:
    given = _members(path)
    if "d" not in given:
        raise CommandError(f"{path} must have an array d, the outputs to explain, got none")
    return {"c": None, **given}


def _report(found: Identification, max_rows: int) -> None:
    """Print the accumulator that reproduces the dump, the remaining differences, and the ranking."""
    machines = bool(output_format())
    click.echo(found.sentence, err=machines)
    for line in (*found.lines(), *found.alternatives()):
        click.echo(f"  {line}", err=machines)
    for line in found.untried:
        click.echo(f"  not tried: {line}", err=machines)
    if found.candidates and found.differing:
        places = ", ".join(str(list(place)) for place in found.differing[:max_rows])
        more = len(found.differing) - max_rows
        click.echo(f"outputs that differ: {places}{f' and {more} more' if more > 0 else ''}", err=machines)
    columns, rows = found.catalogue()
    title = f"The catalogue compared with {found.dumps[0].d.size} outputs"
    emit(columns, rows if machines else rows[:max_rows], title)


def _write_probes(found: Identification, path: str) -> None:
    """Write the probes, and print which accumulators they distinguish."""
    from .._files import write_bytes
    from .._files.npy import npz_bytes

    probes = found.probes()
    compared = f"{probes.tried} outputs of operands made for it"
    if not probes:
        several = f"all {len(found.classes)} that are not proven equal"
        click.echo(f"no probes written: {compared} are the same for {several}", err=True)
        return
    write_bytes(path, npz_bytes(probes.arrays))
    (m, k), n = probes.arrays["a"].shape, len(probes.arrays["b"])
    together = f", {len(probes.together)} stay together with it on {compared}" if probes.together else ""
    click.echo(
        f"wrote {path}: {m}x{n}x{k}, which distinguishes {len(probes.distinguished)} from the first{together}", err=True
    )


def _show_example(found: Identification) -> None:
    """Print the smallest output that nothing explains, term by term."""
    example = found.example()
    if example is None:
        return
    dump = found.dumps[0]
    digits = 2 * dump.d.itemsize
    rows: list[Sequence[Cell]] = [
        (t.k, f"0x{t.a_code:02x}", t.a, f"0x{t.b_code:02x}", t.b, float(t.product), t.exponent) for t in example.terms
    ]
    columns = ("k", "a", "value of a", "b", "value of b", "product", "exponent")
    emit(columns, rows, f"Output {list(example.place)}, sum of {len(rows)} nonzero products")
    if example.c is not None:
        click.echo(f"c = {example.c!r}")
    given: list[Sequence[Cell]] = [("the dump", f"0x{example.theirs[0]:0{digits}x}", example.theirs[1])]
    given += [(name, f"0x{bits:0{digits}x}", value) for name, bits, value in example.rules]
    emit(("rule", "bits", "value"), given, "Exact sum, and result of each rule")
