"""The group of all commands. Every command imports its modules when it runs, so that `--help` is fast."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from . import arrays as cli_arrays
from . import bench as cli_bench
from . import board as cli_board
from . import catalogues as cli_catalogues
from . import check as cli_check
from . import convert as cli_convert
from . import costs as cli_costs
from . import diverge as cli_diverge
from . import expect as cli_expect
from . import format_errors as cli_format_errors
from . import formats as cli_formats
from . import golden as cli_golden
from . import identify as cli_identify
from . import mma as cli_mma
from . import models as cli_models
from . import reveal as cli_reveal
from . import selftest as cli_selftest
from . import studies as cli_studies
from . import tolerance as cli_tolerance
from . import train as cli_train
from . import vectors as cli_vectors
from . import warm as cli_warm
from .output import Cell, CommandError, emit, machine_readable, output_format


class _Commands(click.Group):
    """A group that lists its commands by section and prints every error as one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(command.name), command.get_short_help_str(limit)) for command in commands])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise _one_line(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        from ..registry import UnknownNameError

        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _one_line(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo("stopped; what was finished is kept", err=True)
            ctx.exit(130)
        except Exception as error:
            if ctx.params.get("traceback"):
                raise
            from ..study.run.store import RunFailed, StudyError

            # MemoryError: from the size of a file or an option.
            expected = (ValueError, TypeError, OSError, ArithmeticError, MemoryError, UnknownNameError, StudyError)
            if not isinstance(error, expected):
                raise
            raise CommandError(_error_text(error), 1 if isinstance(error, RunFailed) else 2) from error


def _one_line(error: click.UsageError) -> click.ClickException:
    """Return a usage error of click as one line; a command without arguments still prints its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    command, text = error.ctx.command_path if error.ctx is not None else "lowprec", error.format_message().rstrip(".")
    for form, ours in _USAGE:
        if found := re.fullmatch(form, text, re.DOTALL):
            text = found.expand(ours)
            break
    return CommandError(f"{text[0].lower()}{text[1:]} (see {command} --help)")


#: click's messages, and the same in the form of ours.
_USAGE = (
    (r"Invalid value for '?(.+?)'?: (.+) is not in the range x([<>]=?.+)", r"\1 must be \3, got \2"),
    (r"Invalid value for '?(.+?)'?: (.+) is not in the range (.+)", r"\1 must be in the range \3, got \2"),
    (r"Invalid value for '?(.+?)'?: (.+) is not (one of|a valid) (.+?)(?: range)?", r"\1 must be \3 \4, got \2"),
    (
        r"No such (command|option):? ('.+?')\.? \(?Did you mean (?:one of: )?(.+?)\??\)?",
        r"unknown \1 \2: did you mean \3?",
    ),
    (r"No such (command|option):? ('.+?')", r"unknown \1 \2"),
    (r"Invalid value for '?(.+?)'?: (.+)", r"\1: \2"),
    (r"Got unexpected extra arguments? \((.+)\)", r"unexpected argument '\1'"),
)


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    return str(error) or type(error).__name__


@click.group(
    "lowprec", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.version_option(__version__, message="%(version)s")
def cli(traceback: bool) -> None:
    """Bit-exact emulation of FP8 and FP4 training arithmetic on a CPU."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Parameters
    ----------
    args : sequence of str, optional
        Arguments; those of the process by default.
    """
    cli(args=None if args is None else list(args), prog_name="lowprec")


@cli.command()
@machine_readable
def info() -> None:
    """Show versions, CPU, number of threads and folders."""
    from .. import _jit, _threads
    from ..study.design import registration
    from ..study.run import fingerprint

    rows: list[Sequence[Cell]] = [
        *fingerprint.versions().items(),
        ("code", fingerprint.code_hash()),
        *((key, ", ".join(value) if isinstance(value, list) else value) for key, value in fingerprint.host().items()),
        ("threads", _threads.get_num_threads()),
        ("kernel cache", str(_jit.cache_folder or "none: no folder can be written")),
        ("ablations", str(registration.folder())),
        ("package", str(Path(__file__).parents[1])),
    ]
    emit(("", "value") if not output_format() else ("name", "value"), rows, "lowprec")


SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Formats and data": (
        cli_formats.formats_command,
        cli_formats.cast,
        cli_catalogues.quantizers_command,
        cli_arrays.quantize,
        cli_convert.convert_command,
        cli_format_errors.format_errors,
        cli_costs.codecs_command,
        cli_arrays.logfmt,
    ),
    "Matrix products and hardware": (
        cli_catalogues.accumulators_command,
        cli_arrays.gemm,
        cli_catalogues.attentions_command,
        cli_arrays.attention,
        cli_mma.mma,
        cli_identify.identify_command,
        cli_reveal.reveal_command,
        cli_reveal.invariance_command,
        cli_diverge.diverge_command,
        cli_catalogues.stacks_command,
        cli_check.check,
        cli_vectors.vectors_command,
        cli_golden.golden,
        cli_selftest.recordings_command,
        cli_board.board,
        cli_tolerance.tolerance_command,
        cli_tolerance.criterion_command,
        cli_tolerance.mutate_command,
    ),
    "Training and studies": (
        cli_catalogues.recipes_command,
        cli_train.train,
        cli_studies.ablate,
        cli_studies.report_command,
        cli_studies.register,
        cli_models.eval_command,
        cli_expect.expect_command,
        cli_models.mismatch_command,
        cli_models.parity_command,
        cli_models.export_command,
        cli_costs.costs,
    ),
    "Maintenance": (cli_selftest.selftest, cli_warm.warm, cli_bench.bench, info),
}
for _command in (command for section in SECTIONS.values() for command in section):
    cli.add_command(_command)
