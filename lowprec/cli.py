"""The command line. Every command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__, cli_arrays, cli_check, cli_costs, cli_error, cli_recipes, cli_train, cli_verify
from .cli_output import Cell, CommandError, emit, machine_readable

if TYPE_CHECKING:
    from .study import Ablation, Setting
    from .study.ablation import Study


class _Commands(click.Group):
    """A group that turns the library's errors into one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        from .registry import UnknownNameError

        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo("stopped; what was finished is kept", err=True)
            ctx.exit(130)
        except Exception as error:
            if ctx.params.get("traceback"):
                raise
            from .study.store import RunFailed, StudyError

            expected = (ValueError, TypeError, OSError, ArithmeticError, UnknownNameError, StudyError)
            if not isinstance(error, expected):
                raise
            raise CommandError(_words(error), 1 if isinstance(error, RunFailed) else 2) from error


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.version_option(__version__, message="%(version)s")
def cli(traceback: bool) -> None:
    """Low-precision training numerics on a CPU, bit for bit."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Parameters
    ----------
    args : sequence of str, optional
        Arguments; those of the process by default.
    """
    cli(args=None if args is None else list(args), prog_name="lowprec")


# --- ablations -------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List the ablations and stop.")
@click.option("--quick", is_flag=True, help="The small setting: minutes instead of hours.")
@click.option("--seeds", type=click.IntRange(min=1), help="Data seeds per checkpoint.")
@click.option("--checkpoints", type=click.IntRange(min=1), help="Independent BF16 checkpoints.")
@click.option("--jobs", type=click.IntRange(min=0), help="Worker processes; one per core by default, 0: none.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder for results."
)
@click.option(
    "--resume/--fresh", default=True, help="Go on with what is there (default), or move it aside and start over."
)
@click.option("--data", default="stdlib", show_default=True, metavar="FILE", help="Text to train on.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the setting: branch_steps=80 ...")
@click.option("--no-plot", is_flag=True, help="No figure (matplotlib is not needed then).")
@machine_readable
def ablate(
    names: tuple[str, ...],
    listing: bool,
    quick: bool,
    seeds: int | None,
    checkpoints: int | None,
    jobs: int | None,
    out: Path,
    resume: bool,
    data: str,
    changes: tuple[str, ...],
    no_plot: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Run ablations: those NAMEd, or in a Python file, or all.

    An interrupted ablation goes on where it stopped when the same command is given again.
    """
    from .study import ablation as catalogue

    known = catalogue.names()
    if listing:
        ablations = [catalogue.load(name) for name in names or known]
        rows = [
            (item.tier, item.name, item.question, ", ".join(arm.name for arm in item.arms), str(item.quick),
             str(item.full))
            for item in sorted(ablations, key=lambda item: (item.tier, item.name))
        ]  # fmt: skip
        emit(("tier", "name", "question", "arms", "quick", "full"), rows, "Ablations", as_json, as_csv)
        return
    loaded = [catalogue.load(name) for name in names or known]
    chosen = [item for item in loaded if isinstance(item, catalogue.Ablation)]
    measured = [item for item in loaded if not isinstance(item, catalogue.Ablation)]
    if (changes or checkpoints) and not chosen:
        raise CommandError(f"{measured[0].name} trains nothing: only --quick and --seeds change its size")
    settings = [_setting(item, quick, seeds, checkpoints, changes) for item in chosen]
    if not no_plot:
        from .study.plots import require_matplotlib

        require_matplotlib()
    from .study.study import plan

    plans = [
        plan(item, setting, out / f"{item.name}-{'quick' if quick else 'full'}", data=data)
        for item, setting in zip(chosen, settings, strict=True)
    ]
    broken = False
    for planned in plans:
        _run(planned, jobs, not resume)
        broken |= _report(planned.folder, no_plot, as_json, as_csv)
    for study in measured:
        broken |= _measure(study, quick, seeds, out, no_plot, as_json, as_csv)
    if broken:
        sys.exit(1)


def _measure(
    study: Study, quick: bool, seeds: int | None, out: Path, no_plot: bool, as_json: bool, as_csv: bool
) -> bool:
    """Run a study that trains nothing and print its table; return whether a published figure did not come out."""
    import importlib

    from rich.console import Console
    from rich.progress import Progress

    runner: Any = importlib.import_module(study.runner)  # type: ignore[attr-defined]
    size = "quick" if quick else "full"
    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(study.name, total=None)
        outcome, files = runner.run(
            study, runner.sized(study, quick, seeds), out / f"{study.name}-{size}",
            command=f"lowprec ablate {study.name}{' --quick' * quick}", plot=not no_plot,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
    if as_json:
        click.echo(files[-1].read_text(encoding="utf-8"), nl=False)
    elif as_csv:
        click.echo(runner.claims_csv(outcome), nl=False)
    else:
        runner.show(outcome, Console())
    for path in files:
        click.echo(f"wrote {path}", err=True)
    return not outcome.holds


def _setting(
    ablation: Ablation, quick: bool, seeds: int | None, checkpoints: int | None, changes: Sequence[str]
) -> Setting:
    wanted: dict[str, str | int | float] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise CommandError(f"--set {change}: KEY=VALUE is needed, as in --set branch_steps=80")
        wanted[key.strip()] = value.strip()
    if seeds is not None:
        wanted["seeds"] = seeds
    if checkpoints is not None:
        wanted["checkpoints"] = checkpoints
    return (ablation.quick if quick else ablation.full).with_(wanted)


def _run(planned: Any, jobs: int | None, fresh: bool) -> None:
    from rich.console import Console

    from .study.progress import display
    from .study.study import run_study

    console = Console(stderr=True)
    console.print(planned.ablation.question, markup=False, highlight=False, soft_wrap=True, style="bold")
    console.print(
        f"{len(planned.tasks)} runs ({planned.setting}) into {planned.folder}; Ctrl-C keeps what is finished",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    with display(console) as shown:
        run_study(planned, jobs=jobs, fresh=fresh, display=shown)


def _report(folder: Path, no_plot: bool, as_json: bool, as_csv: bool) -> bool:
    """Write and print the report of a study; return whether it must not be trusted."""
    from rich.console import Console

    from .study import plots, report
    from .study.summary import summarize

    study = summarize(folder)
    stem = folder / study.ablation.name
    figures = [] if no_plot else plots.draw(study, stem)
    files = report.write(study, folder, None if no_plot else f"{stem.name}.png")
    if as_json:
        click.echo((folder / "summary.json").read_text(encoding="utf-8"), nl=False)
    elif as_csv:
        click.echo(report.table_csv(study), nl=False)
    else:
        report.show(study, Console())
    for path in [*figures, *files]:
        click.echo(f"wrote {path}", err=True)
    for reason in study.broken:
        click.echo(f"error: {reason}", err=True)
    return bool(study.broken)


@cli.command("report")
@click.argument("runs", type=click.Path(path_type=Path))
@click.option("--no-plot", is_flag=True, help="No figure (matplotlib is not needed then).")
@machine_readable
def report_command(runs: Path, no_plot: bool, as_json: bool, as_csv: bool) -> None:
    """Write report and figure of the study in RUNS again."""
    if not runs.is_dir():
        raise CommandError(f"{runs}: no such folder")
    if not no_plot:
        from .study.plots import require_matplotlib

        require_matplotlib()
    if not (runs / "study.json").is_file():
        inside = sorted(path.parent for path in runs.glob("*/study.json"))
        if len(inside) > 1:
            names = ", ".join(path.name for path in inside)
            raise CommandError(f"{runs} holds several studies, name one of them: {names}")
        runs = inside[0] if inside else runs
    if _report(runs, no_plot, as_json, as_csv):
        sys.exit(1)


@cli.command()
@machine_readable
def info(as_json: bool, as_csv: bool) -> None:
    """Tell versions, machine, threads and folders."""
    from . import _jit
    from .study import ablation, store

    machine = store.machine()
    rows: list[Sequence[Cell]] = [
        *store.versions().items(),
        ("code", store.code_hash()),
        *((key, ", ".join(value) if isinstance(value, list) else value) for key, value in machine.items()),
        ("threads", _jit.get_num_threads()),
        ("kernel cache", str(_jit.cache_folder or "none: no folder can be written")),
        ("ablations", str(ablation.folder())),
        ("package", str(Path(__file__).parent)),
    ]
    emit(("", "value") if not (as_json or as_csv) else ("name", "value"), rows, "lowprec", as_json, as_csv)


for _command in (
    cli_arrays.formats_command,
    cli_arrays.cast,
    cli_arrays.quantize,
    cli_check.check,
    cli_arrays.gemm,
    cli_arrays.logfmt,
    cli_costs.codecs_command,
    cli_costs.costs,
    cli_error.error,
    cli_recipes.recipes_command,
    cli_train.train,
    cli_verify.verify,
):
    cli.add_command(_command)
