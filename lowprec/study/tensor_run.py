"""Run a study of single GEMMs, and write what it found."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import html
from .document import Document, Figure, Part, Table, Text, markdown
from .reports import PAGE
from .store import check_writable, code_hash, machine, versions, write_json, write_text
from .tensor_study import MEASURES, Errors, Measured, TensorSetting, TensorStudy, sweep


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a study found."""

    study: TensorStudy
    errors: Errors
    measured: tuple[Measured, ...]
    command: str

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(item.holds for item in self.measured)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of claims: what, where it is published, published, ours, agreement, command."""
        pairs = zip(self.study.claims, self.measured, strict=True)
        return [
            (claim.claim, claim.source, claim.published, ours.words, "yes" if ours.holds else "NO", self.command)
            for claim, ours in pairs
        ]


COLUMNS = ("claim", "source", "published", "ours", "agrees", "command")


def run(
    study: TensorStudy,
    setting: TensorSetting,
    folder: Path,
    *,
    command: str = "",
    plot: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, list[Path]]:
    """Measure, and write the files.

    Parameters
    ----------
    study : TensorStudy
        The study.
    setting : TensorSetting
        Its size.
    folder : Path
        Where `<name>.csv`, `.png`, `.svg`, `claims.csv`, `report.md` and `summary.json` go.
    command : str
        How it was called, for the table.
    plot : bool
        Whether to draw.
    progress : callable, optional
        Called with what is done and what there is.

    Returns
    -------
    Outcome, list of Path
        What was found, and the files.

    Raises
    ------
    StudyError
        If the folder cannot be written, or matplotlib is missing.
    """
    check_writable(folder)
    errors = sweep(study, setting, progress)
    outcome = Outcome(study, errors, tuple(claim.measure() for claim in study.claims), command)
    stem = folder / study.name
    files = [stem.with_suffix(".csv")]
    write_text(files[0], errors_csv(errors))
    if plot:
        from .tensor_plots import draw

        files += draw(errors, stem)
    found = document(outcome, folder, study.name if plot else None)
    texts = {"claims.csv": claims_csv(outcome), "report.md": markdown(found)}
    for name, text in texts.items():
        files.append(folder / name)
        write_text(files[-1], text)
    files.append(found.write(folder))
    if plot:
        files.append(html.write([found], folder / PAGE))
    files.append(folder / "summary.json")
    write_json(files[-1], as_json(outcome))
    return outcome, files


def errors_csv(errors: Errors) -> str:
    """Return all errors as a tidy table, floats exact."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["data", "arm", "K", "seed", *MEASURES])
    for d, data in enumerate(errors.study.data):
        for i, arm in enumerate(errors.study.arms):
            for j, k in enumerate(errors.setting.lengths):
                for seed in range(errors.setting.seeds):
                    cells = map(repr, errors.values[:, d, i, j, seed].tolist())
                    writer.writerow([data.name, arm.name, k, seed, *cells])
    return text.getvalue()


def claims_csv(outcome: Outcome) -> str:
    """Return the table of claims as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *outcome.rows()])
    return text.getvalue()


def document(outcome: Outcome, folder: Path = Path(), figure: str | None = None) -> Document:
    """Return the report."""
    study = outcome.study
    parts: list[Part] = [Figure(study.title(outcome.errors), figure)] if figure else []
    caption = (
        f"Figure: {outcome.errors.setting}; largest error over the mean magnitude of the exact result, operands "
        "rounded first."
    )
    parts += [Table(COLUMNS, tuple(outcome.rows()), caption)]
    parts += [Text(f"Written down before: {study.expected} ({study.source})")]
    made_of = {"code": code_hash(), "versions": versions()}
    return Document(study.name, study.question, study.tier, tuple(parts), made_of, folder)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    errors, study = outcome.errors, outcome.study
    curves = [
        {"data": data.name, "arm": arm.name, "K": k, **{
            name: errors.of(data.name, arm.name, k, m).tolist() for m, name in enumerate(MEASURES)}}
        for data in study.data for arm in study.arms for k in errors.setting.lengths
    ]  # fmt: skip
    claims = [
        {**dict(zip(COLUMNS, row, strict=True)), "value": ours.value}
        for row, ours in zip(outcome.rows(), outcome.measured, strict=True)
    ]
    return {
        "study": study.name, "question": study.question, "setting": errors.setting, "claims": claims,
        "curves": curves, "versions": versions(), "machine": machine(),
    }  # fmt: skip


def show(outcome: Outcome, console: Any) -> None:
    """Print the table of claims, one row a claim, on a rich console."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=outcome.study.question, title_justify="left", title_style="bold", pad_edge=False,
                  caption=outcome.study.title(outcome.errors), caption_justify="left", box=box.SIMPLE_HEAD)  # fmt: skip
    for name in COLUMNS[:-1]:
        table.add_column(name, overflow="fold")
    for row in outcome.rows():
        color = "green" if row[4] == "yes" else "red"
        table.add_row(*map(escape, row[:4]), f"[{color}]{row[4]}[/]")
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)


def sized(study: TensorStudy, quick: bool, seeds: int | None) -> TensorSetting:
    """Return the setting that a command asks for."""
    setting = study.quick if quick else study.full
    return setting if seeds is None else replace(setting, seeds=seeds)
