"""The command `diverge`: the first operation at which two recorded runs of a model differ."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .arrays import _writable_file
from .output import Cell, CommandError, count_progress, emit, machine_readable, output_format


@click.command("diverge")
@click.argument("folders", metavar="[A B]", nargs=-1)
@click.option(
    "--rename", multiple=True, metavar="OLD=NEW", help="Replace the beginning of names in B; may be repeated."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=20, show_default=True, help="Time for a product's arithmetic."
)
@click.option("--write-recorder", metavar="FILE", help="Write recorder.py, which records a run on any machine.")
@machine_readable
def diverge_command(
    folders: tuple[str, ...], rename: tuple[str, ...], seconds: float, write_recorder: str | None
) -> None:
    """Find the first operation at which two runs of a model differ.

    A and B are folders written by recorder.py, a file to copy to the machines of both runs; it needs only PyTorch.
    Prints what differs before any operation (weights, tokens, settings), the first operation whose outputs differ, the
    share of its rows, and the arithmetic of both sides where samples show it. The exit code is 1 if an operation
    differs.

    Example: lowprec diverge --write-recorder recorder.py
    """
    if write_recorder is not None:
        if folders:
            raise CommandError("diverge: --write-recorder must be given alone, got folders")
        from .._files import write_bytes

        _writable_file(write_recorder)
        write_bytes(write_recorder, (Path(__file__).parents[1] / "torch" / "recorder.py").read_bytes())
        click.echo(f"wrote {write_recorder}: its first lines say how to record", err=bool(output_format()))
        return
    if len(folders) != 2:
        raise CommandError(f"diverge: A and B must be two folders of recordings, got {len(folders)}")
    pairs = dict(text.partition("=")[::2] for text in rename)
    if wrong := [text for text in rename if not text.partition("=")[0] or "=" not in text]:
        raise CommandError(f"diverge: --rename must be OLD=NEW, got {wrong[0]!r}")
    from ..parity.diverge import diverge
    from ..parity.recording import load_recording

    found = diverge(load_recording(folders[0]), load_recording(folders[1], pairs), seconds=seconds,
                    progress=count_progress("diverge", "candidates tried"))  # fmt: skip
    if output_format():
        first = found.first
        rows: list[tuple[str, Cell]] = [
            ("unlike", "; ".join(found.unlike)), ("compared", found.compared), ("only in A", len(found.only_a)),
            ("only in B", len(found.only_b)), ("operation", "" if first is None else first.name),
            ("result", found.sentence), ("causes", "; ".join(found.causes)),
        ]  # fmt: skip
        emit(("name", "value"), rows, "Divergence")
    else:
        for line in found.lines():
            click.echo(line)
    if found.first is not None:
        sys.exit(1)
