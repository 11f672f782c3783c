"""The commands that run studies and report on them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import CommandError, emit, machine_readable

if TYPE_CHECKING:
    from ..study.catalogue import Study


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List the ablations by tier and stop.")
@click.option("--quick", is_flag=True, help="The small setting: minutes instead of hours.")
@click.option("--seeds", type=click.IntRange(min=1), help="Data seeds, or batches, per checkpoint.")
@click.option("--checkpoints", type=click.IntRange(min=1), help="Independent BF16 checkpoints.")
@click.option("--jobs", type=click.IntRange(min=0), help="Worker processes; one per core by default, 0: none.")
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Run on the workers of a Dask scheduler; 'local' starts one (needs lowprec[cluster]).",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder for results."
)
@click.option(
    "--resume/--fresh", default=True, help="Go on with what is there (default), or move it aside and start over."
)
@click.option("--data", default="stdlib", show_default=True, metavar="NAME|FILE", help="stdlib, bible, synthetic, ...")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the setting: branch_steps=80 ...")
@click.option("--no-plot", is_flag=True, help="No figures and no page (matplotlib is not needed then).")
@machine_readable
def ablate(
    names: tuple[str, ...],
    listing: bool,
    quick: bool,
    seeds: int | None,
    checkpoints: int | None,
    jobs: int | None,
    scheduler: str | None,
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
    from ..study import catalogue

    known = catalogue.names()
    if listing:
        _list([catalogue.load(name) for name in names or known], as_json, as_csv)
        return
    loaded = sorted((catalogue.load(name) for name in names or known), key=lambda item: item.tier)
    planned_kinds = [item for item in loaded if hasattr(item, "planner")]
    if (changes or checkpoints or scheduler) and not planned_kinds:
        raise CommandError(f"{loaded[0].name} trains nothing: only --quick and --seeds change its size")
    if jobs is not None and scheduler is not None:
        raise CommandError("--jobs and --scheduler exclude each other")
    settings = _settings(planned_kinds, quick, seeds, checkpoints, changes)
    if not no_plot:
        from ..study.report.style import require_matplotlib

        require_matplotlib()
    size = "quick" if quick else "full"
    plans = [
        importlib.import_module(item.planner).plan(item, setting, out / f"{item.name}-{size}", data=data)
        for item, setting in zip(planned_kinds, settings, strict=True)
    ]
    broken = False
    for study in loaded:
        if study not in planned_kinds:
            broken |= _measure(study, quick, seeds, out, no_plot, as_json, as_csv)
    if plans:
        from ..study.run.executors import pool

        with pool(jobs, scheduler) as executor:
            for planned in plans:
                _run(planned, jobs, executor, not resume)
                broken |= _report(planned.folder, no_plot, as_json, as_csv)
    if broken:
        sys.exit(1)


def _list(ablations: Sequence[Study], as_json: bool, as_csv: bool) -> None:
    rows = [
        (item.tier, item.name, item.question, ", ".join(arm.name for arm in item.arms), str(item.quick), str(item.full))
        for item in sorted(ablations, key=lambda item: (item.tier, item.name))
    ]
    emit(("tier", "name", "question", "arms", "quick", "full"), rows, "Ablations", as_json, as_csv)


def _measure(
    study: Study, quick: bool, seeds: int | None, out: Path, no_plot: bool, as_json: bool, as_csv: bool
) -> bool:
    """Run a study that trains nothing and print its table; return whether a published figure did not come out."""
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


def _settings(
    studies: Sequence[Any], quick: bool, seeds: int | None, checkpoints: int | None, changes: Sequence[str]
) -> list[Any]:
    """Return the studies' settings with what the command changes; a change that only some can have is theirs alone."""
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
    plain = [study.quick if quick else study.full for study in studies]
    for key in wanted:
        if plain and not any(hasattr(setting, key) for setting in plain):
            plain[-1].with_({key: wanted[key]})  # says what there is
    return [setting.with_({key: value for key, value in wanted.items() if hasattr(setting, key)}) for setting in plain]


def _run(planned: Any, jobs: int | None, executor: Any, fresh: bool) -> None:
    from rich.console import Console

    from ..study.run.progress import display
    from ..study.run.runner import run_study

    console = Console(stderr=True)
    console.print(planned.ablation.question, markup=False, highlight=False, soft_wrap=True, style="bold")
    console.print(
        f"{len(planned.tasks)} runs ({planned.setting}) into {planned.folder}; Ctrl-C keeps what is finished",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    with display(console) as shown:
        run_study(planned, jobs=jobs, executor=executor, fresh=fresh, display=shown)


def _report(folder: Path, no_plot: bool, as_json: bool, as_csv: bool) -> bool:
    """Write and print the report of a study; return whether it must not be trusted."""
    from rich.console import Console

    from ..study.report import reports

    written = reports.report(folder, plot=not no_plot)
    if as_json:
        click.echo((folder / "summary.json").read_text(encoding="utf-8"), nl=False)
    elif as_csv:
        click.echo(written.module.table_csv(written.summary), nl=False)
    else:
        written.module.show(written.summary, Console())
    for path in written.files:
        click.echo(f"wrote {path}", err=True)
    for reason in written.broken:
        click.echo(f"error: {reason}", err=True)
    return bool(written.broken)


@click.command("report")
@click.argument("runs", type=click.Path(path_type=Path))
@click.option("--no-plot", is_flag=True, help="No figures and no page (matplotlib is not needed then).")
@machine_readable
def report_command(runs: Path, no_plot: bool, as_json: bool, as_csv: bool) -> None:
    """Write reports, figures and a page of the studies in RUNS."""
    if not runs.is_dir():
        raise CommandError(f"{runs}: no such folder")
    if not no_plot:
        from ..study.report.style import require_matplotlib

        require_matplotlib()
    from ..study.report import reports
    from ..study.report.document import Document
    from ..study.run.plans import STUDY_FILE

    folders = reports.studies_in(runs)
    if len(folders) > 1 and (as_json or as_csv):
        names = ", ".join(path.name for path in folders)
        raise CommandError(f"{runs} holds several studies, --json and --csv need one of them: {names}")
    broken, documents = False, []
    for folder in folders:
        if (folder / STUDY_FILE).is_file():
            broken |= _report(folder, no_plot, as_json, as_csv)
        documents.append(Document.read(folder))
    if not no_plot and folders != [runs]:
        click.echo(f"wrote {reports.page(documents, runs)}", err=True)
    if broken:
        sys.exit(1)
