"""The commands that run studies and report on them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import CommandError, emit, machine_readable, output_format, progress_bar

if TYPE_CHECKING:
    from ..study.design.registration import Registration
    from ..study.design.study import Study
    from ..study.report.results import Results
    from ..study.run.plan import Plan


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List the ablations by tier, then exit.")
@click.option(
    "--plan",
    "planning",
    is_flag=True,
    help="Print the estimated cost of trainings, then exit: at both sizes, or with --quick or --set at one.",
)
@click.option("--quick", is_flag=True, help="Use the small size: minutes instead of hours.")
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
    "--resume/--restart", default=True, help="Resume (default), or rename the folder of existing runs and start over."
)
@click.option("--data", default="stdlib", show_default=True, metavar="NAME|FILE", help="stdlib, bible, synthetic, ...")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the setting: branch_steps=80 ...")
@click.option("--no-plot", is_flag=True, help="No figures and no page (matplotlib is not needed then).")
@machine_readable
def ablate(
    names: tuple[str, ...],
    listing: bool,
    planning: bool,
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
) -> None:
    """Run ablations by name, or all of them.

    NAME is an ablation or a Python file. The same command resumes an interrupted ablation.

    Files of ablations are programs, which run with your rights: read one before you run it. TOML, npz and the folders
    of runs are data and never executed.

    Example: lowprec ablate fp8_vs_bf16 --quick
    """
    from rich.console import Console

    from ..study import catalogue
    from ..study.design.registration import registered_of
    from ..study.design.study import PlannedStudy
    from ..study.run.executors import cluster
    from ..study.run.progress import status

    found = {name: catalogue.load(name) for name in names or catalogue.names()}
    registered = {study.name: registered_of(name, study.name) for name, study in found.items()}
    studies = sorted(found.values(), key=lambda item: item.tier)
    if listing:
        _list(studies, registered)
        return
    wanted = _wanted(changes, seeds=seeds, checkpoints=checkpoints)
    if planning:
        _plan(studies, ("quick",) if quick else ("full",) if changes else ("quick", "full"), wanted, data, out)
        return
    if jobs is not None and scheduler is not None:
        raise CommandError("--jobs and --scheduler are mutually exclusive")
    if scheduler is not None and not any(isinstance(study, PlannedStudy) for study in studies):
        raise CommandError(f"--scheduler has no effect on {studies[0].name}, which trains nothing")
    sizes = _sizes(studies, quick, wanted)
    if not no_plot:
        from ..study.report.sheet import require_matplotlib

        require_matplotlib()
    folders = [out / f"{study.name}-{'quick' if quick else 'full'}" for study in studies]
    with status(Console(stderr=True), "reading the text"):
        plans = [
            study.plan(size, folder, data=data) if isinstance(study, PlannedStudy) else None
            for study, size, folder in zip(studies, sizes, folders, strict=True)
        ]
    broken = False
    with cluster(scheduler) if scheduler else contextlib.nullcontext() as executor:
        for study, size, folder, planned in zip(studies, sizes, folders, plans, strict=True):
            if planned is None:
                _announce(study, registered[study.name], folder)
                results = _measure(study, size, folder, f"lowprec ablate {study.name}{' --quick' * quick}")
            else:
                _run(planned, registered[study.name], jobs, executor, not resume, not no_plot)
                results = catalogue.results(planned.folder)
            broken |= _tell(results.write(not no_plot))
    if broken:
        sys.exit(1)


def _list(ablations: Sequence[Study], registered: Mapping[str, Registration]) -> None:
    rows = [
        (item.tier, item.name, registered[item.name].state(item), item.question,
         ", ".join(arm.name for arm in item.arms), str(item.quick), str(item.full))
        for item in sorted(ablations, key=lambda item: (item.tier, item.name))
    ]  # fmt: skip
    emit(("tier", "name", "registered", "question", "arms", "quick", "full"), rows, "Ablations")


def _announce(study: Study, found: Registration, folder: Path) -> None:
    """Store the registered ranges of a study with its runs, and report if they differ from its file."""
    from ..study.design.expectations import NOT_REGISTERED
    from ..study.design.registration import keep

    keep(folder, study, found)
    state = found.state(study)
    # A size may leave arms out, and with them their ranges: those of the other arms apply as registered.
    covered = found.versions and all(found.covers(item) for item in study.expectations)
    if state.endswith(NOT_REGISTERED) and not covered:
        click.echo(f"{study.name}: {state}; it runs, but its results are not judged (lowprec register)", err=True)


def _plan(studies: Sequence[Any], sizes: Sequence[str], wanted: Mapping[str, Any], data: str, out: Path) -> None:
    """Print the estimated cost of trainings at some sizes, "quick" or "full"."""
    from ..study.run.warm import Estimator

    branches = [study for study in studies if study.tier in ("T3", "T4")]
    if not branches:
        raise CommandError("--plan is for studies that train arms (T3, T4); the others take seconds to minutes")
    click.echo("timing a training step and a forward pass of every recipe: seconds of CPU for each model", err=True)
    rows: list[tuple[Any, ...]] = []
    for size in sizes:
        estimator = Estimator()  # the checkpoints of one size are shared
        settings = _sizes(branches, size == "quick", wanted)
        for study, setting in zip(branches, settings, strict=True):
            found = estimator.estimate(study.plan(setting, out / f"{study.name}-{size}", data=data))
            cells = getattr(setting, "cells", (setting,))
            models, before, steps = (
                ", ".join(dict.fromkeys(str(getattr(one, name)) for one in cells))
                for name in ("config", "checkpoint_steps", "branch_steps")
            )
            rows.append(
                (study.name, size, models, len(study.arms), setting.checkpoints, setting.seeds, before, steps,
                 found.runs, found.checkpoints, round(found.arm_minutes, 1), round(found.checkpoint_minutes, 1))
            )  # fmt: skip
    head = (
        "study", "size", "model", "arms", "checkpoints", "seeds", "checkpoint steps", "steps", "runs to do",
        "checkpoints to do", "arms (core min)", "checkpoints (core min)",
    )  # fmt: skip
    emit(head, rows, "Remaining work in minutes of one core; shared checkpoints count once")


def _measure(study: Any, size: Any, folder: Path, command: str) -> Results:
    """Run a study without trainings, with a progress bar."""
    with progress_bar(study.name) as progress:
        found: Results = study.measure(size, folder, command=command, progress=progress)
        return found


def _wanted(changes: Sequence[str], **numbers: int | None) -> dict[str, Any]:
    """Return the fields of sizes that the command changes."""
    wanted: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise CommandError(f"--set must be KEY=VALUE, as in --set branch_steps=80, got {change!r}")
        wanted[key.strip()] = value.strip()
    return wanted | {key: number for key, number in numbers.items() if number is not None}


def _sizes(studies: Sequence[Any], quick: bool, wanted: Mapping[str, Any]) -> list[Any]:
    """Return the studies' sizes with the changes of the command; a change applies to every size that has the field."""
    plain = [study.quick if quick else study.full for study in studies]
    for key in wanted:
        if plain and not any(hasattr(setting, key) for setting in plain):
            plain[-1].with_({key: wanted[key]})  # its error lists the fields
    return [setting.with_({key: value for key, value in wanted.items() if hasattr(setting, key)}) for setting in plain]


def _run(planned: Plan, found: Registration, jobs: int | None, executor: Any, restart: bool, plot: bool) -> None:
    from rich.console import Console

    from ..study import catalogue
    from ..study.run.progress import display
    from ..study.run.runner import rename_existing_runs, run_study

    click.secho(planned.study.question, bold=True, err=True)
    runs = f"{len(planned.tasks)} runs ({planned.setting}) into {planned.folder}"
    click.echo(f"{runs}; Ctrl-C keeps what is finished", err=True)
    if restart and (kept := rename_existing_runs(planned.folder)):
        click.echo(f"starting over; the old runs are kept as {kept}", err=True)
    _announce(planned.study, found, planned.folder)
    printed = [""]

    def ended() -> None:
        line = catalogue.interim_results(planned.folder, plot)
        if line and line != printed[-1]:
            printed.append(line)
            shown.note(line)

    with display(Console(stderr=True)) as shown:
        run_study(planned, jobs=jobs, executor=executor, display=shown, ended=ended)


def _tell(found: Results) -> bool:
    """Print results; return whether some are invalid, or a published figure was not reproduced."""
    if output_format() == "json":
        click.echo(found.summary_file.read_text(encoding="utf-8"), nl=False)
    elif output_format() == "csv":
        click.echo(found.table_csv(), nl=False)
    else:
        for table in found.shown:
            emit(table.head, table.rows, table.title, right=table.right, below=[table.caption])
        for sentence in found.sentences:
            click.echo(f"• {sentence}")
    for path in found.files:
        click.echo(f"wrote {path}", err=True)
    for reason in found.invalid_reasons:
        click.echo(f"error: {reason}", err=True)
    return bool(found.invalid_reasons) or not found.holds


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--reason", default="", help="Reason for the change of registered ranges.")
@click.option("--prototype", is_flag=True, help="The new ranges were chosen after measurements of a prototype.")
def register(names: tuple[str, ...], reason: str, prototype: bool) -> None:
    """Register expected ranges before a run.

    NAME is an ablation or a Python file. Ranges that are not registered are not judged. An amendment requires a reason;
    registered.json, in the folder of the files, keeps the amended version too.

    Example: lowprec register my_ablation.py
    """
    from datetime import UTC, datetime

    from ..study import catalogue
    from ..study.design import registration

    for name in names:
        study, home = catalogue.load(name), registration.home(name)
        known = registration.read(home)
        before = known.get(study.name, registration.Registration())
        new = registration.Version.of(
            study, registration.commit_of(home), datetime.now(UTC).date().isoformat(), reason=reason,
            after_results=(home / "results" / f"{study.name}.json").exists(),
        )  # fmt: skip
        if prototype:
            new = before.marked(new)
        try:
            after = registration.register(before, new)
        except ValueError as error:
            raise CommandError(f"{study.name}: {error}") from None
        path = registration.write(home, {**known, study.name: after})
        click.echo(f"{study.name}: {len(new.ranges)} ranges registered in {path}")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS...")
@click.option("--no-plot", is_flag=True, help="No figures and no page (matplotlib is not needed then).")
@machine_readable
def report_command(runs: tuple[Path, ...], no_plot: bool) -> None:
    """Write reports and figures of studies.

    If RUNS is one folder of studies, writes a report, figures and a page for each of them. If RUNS are folders written
    by lowprec train, or folders that contain such folders, writes a comparison of these training runs.

    Example: lowprec report runs
    """
    for folder in runs:
        if not folder.is_dir():
            raise CommandError(f"RUNS must be folders, got {str(folder)!r}, which is not one")
    if not no_plot:
        from ..study.report.sheet import require_matplotlib

        require_matplotlib()
    from ..study.report.training import runs_in

    trained = [path for folder in runs for path in runs_in(folder)]
    if trained:
        _compare(trained, runs, not no_plot)
    if len(runs) == 1 and not trained:
        _report_studies(runs[0], no_plot)
    elif not trained:
        raise CommandError("RUNS must be one folder of studies, or several of training runs, got several without a run")


def _compare(trained: Sequence[Path], given: Sequence[Path], plot: bool) -> None:
    """Compare plain training runs, and write the report to their folder."""
    import os

    from ..study.report.training import FOLDER, compare_runs

    above = given[0] if given[0] not in trained and len(given) == 1 else Path(os.path.commonpath(trained))
    found = compare_runs(trained, (above.parent if above in trained else above) / FOLDER).write(plot)
    (table,) = found.shown
    emit(table.head, table.rows, table.title)
    for path in found.files:
        click.echo(f"wrote {path}", err=True)


def _report_studies(runs: Path, no_plot: bool) -> None:
    """Report every study in a folder, and write their page."""
    from ..study import catalogue
    from ..study.report import page
    from ..study.run.store import STUDY_FILE

    folders = catalogue.studies_in(runs)
    if len(folders) > 1 and output_format():
        names = ", ".join(path.name for path in folders)
        raise CommandError(f"RUNS must be one study with --json and --csv, got {runs} with {names}")
    broken = False
    for folder in folders:
        if (folder / STUDY_FILE).is_file():
            broken |= _tell(catalogue.report(folder, plot=not no_plot))
        else:
            click.echo(f"{folder / page.REPORT} is complete: only lowprec ablate measures that study again", err=True)
    if not no_plot and folders != [runs]:
        click.echo(f"wrote {page.write(folders, runs / page.PAGE, f'Studies in {runs.resolve().name}')}", err=True)
    if broken:
        sys.exit(1)
