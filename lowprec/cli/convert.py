"""The command `convert`: codes and scales in another block format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .arrays import _save, _writable_file
from .output import CommandError, emit, machine_readable, naming

if TYPE_CHECKING:
    from ..scaling.quantized import Quantized


def _load(path: str, source: str | None, granularity: str | None) -> Quantized:
    """Read a file of `lowprec quantize --out` or `Quantized.save`; options give the fields that a file lacks."""
    from .._files.npy import Archive
    from ..diagnose.check.inputs import read
    from ..format.catalogue import formats
    from ..scaling.granularity import Granularity
    from ..scaling.quantized import Quantized

    dump = read(path, None, None).dump
    with Archive(path) as held:
        if "header" in held.names:
            return Quantized.load(path)
        metadata = {key: str(held[key]) for key in ("format", "granularity", "scale_format") if key in held.names}
    fmt, block = source or metadata.get("format"), granularity or metadata.get("granularity")
    if fmt is None or block is None:
        raise CommandError(f"{path} does not name the format of its codes; give --from and --from-granularity")
    stored = metadata.get("scale_format", "float32")
    with naming(path):
        return Quantized(
            dump.codes, dump.scale, formats.get(fmt), Granularity.parse(block), formats.get(stored), dump.tensor
        )


@click.command("convert")
@click.argument("file")
@click.option("--to", "target", metavar="FORMAT", help="New element format.  [default: unchanged]")
@click.option("--granularity", metavar="BLOCK", help="New blocks.  [default: unchanged]")
@click.option("--scale-format", type=click.Choice(["e8m0fnu", "float32"]), default="e8m0fnu", show_default=True,
              help="Format of the new scales.")  # fmt: skip
@click.option("--from", "source", metavar="FORMAT", help="Format of the codes, if the file does not specify it.")
@click.option("--from-granularity", metavar="BLOCK", help="Blocks of the codes, if the file does not specify them.")
@click.option("--check", "check_only", is_flag=True, help="Report only; exit with 1 if values would change.")
@click.option("--out", metavar="FILE", help="Save the result as .npz, unless values would change.")
@machine_readable
def convert_command(
    file: str, target: str | None, granularity: str | None, scale_format: str, source: str | None,
    from_granularity: str | None, check_only: bool, out: str | None
) -> None:  # fmt: skip
    """Convert codes to other blocks and formats, exactly.

    FILE is a file of `lowprec quantize --out` or `Quantized.save`. Prints how many values and blocks would change,
    the first of them, and the range in binades of the old scales within a new block. MXFP4 converts to FP8 blocks
    exactly if this range is at most 14.

    Example: lowprec convert q.npz --to e4m3fn --granularity 1x128 --check
    """
    if not check_only:
        _writable_file(out, file)
    import numpy as np

    from ..format.catalogue import formats
    from ..scaling.quantizer import Quantizer

    q = _load(file, source, from_granularity)
    with naming(file):
        block = granularity or q.granularity
        target_format = formats.get(target or q.format)
        found = q.convert(Quantizer().with_(format=target_format, granularity=block, scale_format=scale_format))
    new, blocks = found.quantized, found.blocks
    first = np.argwhere(found.lost)[:1].tolist()
    row: dict[str, Any] = {
        "lossless": "yes" if found.is_lossless else "no", "values": found.lost.size,
        "changed values": int(found.lost.sum()), "blocks": blocks.size, "changed blocks": int(blocks.sum()),
        "max binades": int(found.binades.max(initial=0)), "first": ", ".join(map(str, first[0])) if first else "none",
    }  # fmt: skip
    title = f"{file}: {q.format}, {q.granularity} to {new.format}, {new.granularity}, {new.scale_format} scales"
    emit(tuple(row), [tuple(row.values())], title)
    if not found.is_lossless and (check_only or out is not None):
        if out is not None and not check_only:
            raise CommandError(f"{out} was not written, as {int(found.lost.sum())} values would change")
        raise SystemExit(1)
    if out is not None and not check_only:
        metadata = {field: str(getattr(new, field)) for field in ("format", "granularity", "scale_format")}
        _save(out, codes=new.codes, scale=new.scale, **metadata, quantizer="")
