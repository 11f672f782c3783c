"""A report of plain training runs: what each ended at, their losses as a figure, and what a comparison may say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..._files import make_folder, write_text
from ...moe.run.files import KeptRun, is_run, read_run
from . import html, sheet
from .document import Bullets, Document, Figure, Part, Table, Text, markdown
from .parts import number, percent

#: The folder, beside the runs, that the report is written into.
FOLDER = "compared_runs"
_HEAD = (
    "run", "config", "recipe", "seed", "steps", "status", "last training loss", "validation loss", "against the first",
)  # fmt: skip
_ALIKE = ("config", "seed", "steps", "learning_rate", "corpus", "code")
_SMOOTHING = 0.9


def runs_in(folder: Path) -> list[Path]:
    """Return the training runs in a folder, or the folder itself if it is one.

    What was moved aside by `--fresh` ends in a number, and is left out.
    """
    if is_run(folder):
        return [folder]
    return [path for path in sorted(folder.iterdir()) if is_run(path) and not path.suffix[1:].isdigit()]


def compare_runs(folders: Sequence[Path], out: Path, plot: bool = True) -> tuple[Document, list[Path]]:
    """Compare runs with the first of them, and write the report.

    Parameters
    ----------
    folders : sequence of Path
        Folders that `lowprec train --out` or `lowprec.train` wrote.
    out : Path
        Where to: report.md, document.json, runs.csv, and with `plot` the figure and report.html.
    plot : bool
        Whether to draw the losses.

    Returns
    -------
    Document, list of Path
        The report, and everything that was written.

    Raises
    ------
    ValueError
        If a folder holds no training run, or a damaged one.
    """
    runs = [read_run(folder) for folder in folders]
    make_folder(out)
    rows = _rows(runs)
    parts: list[Part] = [_verdict(runs), Table(_HEAD, tuple(tuple(row.values()) for row in rows))]
    steps = f"{1 / (1 - _SMOOTHING):.0f} steps"
    found = sheet.Figure("Training losses", "losses", rows, partial(_draw, folders), f"running means of {steps}", 4.6,
                         csv="runs")  # fmt: skip
    files = found.write(out, plot)
    if plot:
        parts.append(Figure(f"Training losses, a running mean of {steps}", "losses"))
    question = "Where did these training runs end, and how far apart?"
    document = Document(FOLDER, question, "runs", tuple(parts), folder=out)
    write_text(out / "report.md", markdown(document))
    files += [out / "report.md", document.write(out)]
    if plot:
        files.append(html.write([document], out / html.PAGE, "Training runs"))
    return document, files


def table(document: Document) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the head and the rows of a report's table."""
    found = next(part for part in document.parts if isinstance(part, Table))
    return found.head, found.rows


def _rows(runs: Sequence[KeptRun]) -> list[dict[str, str]]:
    first: Any = runs[0].summary.get("validation_loss")
    table = []
    for run in runs:
        kept, losses = run.summary, run.metrics["loss"]
        validation: Any = kept.get("validation_loss")
        missing = "n/a" if kept.get("evaluated", True) else "not evaluated"
        cells = [
            run.name, *(str(kept[key]) for key in ("config", "recipe", "seed", "steps", "status")),
            number(float(losses.iloc[-1])) if len(losses) else "n/a",
            missing if validation is None else f"{validation:.6g}",
            "" if run is runs[0] or None in (first, validation) else f"{percent(validation / first - 1)} %",
        ]  # fmt: skip
        table.append(dict(zip(_HEAD, cells, strict=True)))
    return table


def _verdict(runs: Sequence[KeptRun]) -> Part:
    """Return what the comparison is worth: which choices differ beside the recipe."""
    first = runs[0].summary
    differ = {key for run in runs[1:] for key in _ALIKE if run.summary.get(key) != first.get(key)}
    if not runs[1:]:
        return Text("One run: nothing to compare it with.")
    if differ:
        words = ", ".join(key.replace("_", " ") for key in _ALIKE if key in differ)
        return Bullets((f"These runs differ in more than their recipes: {words}. Losses cannot be compared.",), True)
    return Text(
        "One pair of runs shows no difference below the noise floor: two runs that differ in the last bit of one "
        "weight end apart, too. `lowprec ablate` makes pairs, a floor and intervals."
    )


def _draw(folders: Sequence[Path], canvas: Any, top: float) -> None:
    from ...plot.training import losses

    (axes,) = sheet.panels(canvas, top, foot=0.55, left=0.075)
    axes.grid(False)
    losses(*folders, smoothing=_SMOOTHING, axes=axes)
