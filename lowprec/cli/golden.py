"""The command `golden`: an accumulator or a cast as C or SystemVerilog source."""

from __future__ import annotations

from pathlib import Path

import click

from .output import CommandError


@click.command("golden")
@click.argument("name")
@click.option(
    "--language", type=click.Choice(["c", "cpp", "sv-dpi"]), default="c", show_default=True,
    help="A C99 header, a C++ header, or the C99 header with a DPI-C package for SystemVerilog.",
)  # fmt: skip
@click.option("--a-format", metavar="FORMAT", help="Format of the left operand.  [default: the accumulator's first]")
@click.option("--b-format", metavar="FORMAT", help="Format of the right operand.  [default: that of the left]")
@click.option("--policy", help="Overflow, Inf and NaN of a cast.  [default: that of lowprec cast]")
@click.option("--out", metavar="DIR", help="Folder for the files.  [default: standard output]")
def golden(
    name: str, language: str, a_format: str | None, b_format: str | None, policy: str | None, out: str | None
) -> None:
    """Write an accumulator, a quantizer or a cast as C or SystemVerilog.

    NAME is an accumulator (`lowprec accumulators`), a quantizer or, for the casts from and to float32, a format. The
    source is readable, has no dependencies, and is generated from the entry's fields; that of an accumulator embeds
    test vectors of the exact oracle.

    Example: lowprec golden hopper_fp8 --language sv-dpi --out rtl
    """
    from .._files import make_folder, write_text
    from ..format.catalogue import formats
    from ..golden.export import c_cast, c_header, c_quantizer, sv_dpi
    from ..scaling.quantizer import quantizers
    from ..tensorcore.catalogue import accumulators

    is_quantizer = name in quantizers and name not in accumulators
    is_cast = name in formats and name not in accumulators and not is_quantizer
    if (is_cast or is_quantizer) and (a_format or b_format or language == "sv-dpi"):
        raise CommandError(f"NAME must be an accumulator with --a-format, --b-format and --language sv-dpi, got {name}")
    if policy and not is_cast:
        raise CommandError(f"NAME must be a format with --policy, got {name}")
    if is_quantizer:
        header = c_quantizer(name)
    else:
        header = c_cast(name, policy) if is_cast else c_header(name, a_format, b_format)
    texts = {f"{header.name}.h{'pp' if language == 'cpp' else ''}": header.text}
    if language == "sv-dpi":
        texts[f"{header.name}_pkg.sv"], texts[f"{header.name}_dpi.c"] = sv_dpi(header, name)
    if out is None and len(texts) > 1:
        raise CommandError(f"golden: --out must be a folder for {', '.join(texts)}, got none")
    for file, text in texts.items():
        if out is None:
            click.echo(text, nl=False)
            continue
        path = make_folder(Path(out)) / file
        write_text(path, text)
        click.echo(str(path))
