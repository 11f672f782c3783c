"""Reports of plain training runs: final losses, loss curves, and a note on the validity of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..._files import make_folder
from ...moe.run.files import SavedRun, is_run, read_run
from . import sheet
from .parts import Table, number, percent, warning
from .results import Results

#: Folder of the report, next to the runs.
FOLDER = "compared_runs"
_HEAD = (
    "run", "config", "recipe", "seed", "steps", "status", "last training loss", "validation loss", "against the first",
)  # fmt: skip
_ALIKE = ("config", "seed", "steps", "learning_rate", "corpus", "code")
_SMOOTHING = 0.9


def runs_in(folder: Path) -> list[Path]:
    """Return the training runs in a folder, or the folder itself if it is one.

    Folders renamed by `--restart` end in a number and are left out.
    """
    if is_run(folder):
        return [folder]
    return [path for path in sorted(folder.iterdir()) if is_run(path) and not path.suffix[1:].isdigit()]


@dataclass(frozen=True)
class _Comparison:
    """Substitute for a study in `Results`."""

    name: str = FOLDER
    question: str = "Where did these training runs end, and how much do they differ?"
    tier: str = "runs"


def compare_runs(folders: Sequence[Path], out: Path) -> Results:
    """Compare training runs with the first of them.

    Parameters
    ----------
    folders : sequence of Path
        Folders written by `lowprec train --out` or `lowprec.train`.
    out : Path
        Folder of the report, created if necessary.

    Returns
    -------
    Results
        Report; `Results.write` writes report.md, runs.csv, the figure of losses, and the page.

    Raises
    ------
    ValueError
        If a folder does not hold an intact training run.
    """
    runs = [read_run(folder) for folder in folders]
    make_folder(out)
    rows = _rows(runs)
    table = Table(_HEAD, [tuple(row.values()) for row in rows], title="Training runs")
    steps = f"{1 / (1 - _SMOOTHING):.0f} steps"
    losses = sheet.Figure(f"Training losses, a running mean of {steps}", "losses", rows, partial(_draw, folders),
                          height=4.6, csv="runs")  # fmt: skip
    return Results(_Comparison(), out, runs, [_verdict(runs), table, losses], shown=[table])


def _rows(runs: Sequence[SavedRun]) -> list[dict[str, str]]:
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


def _verdict(runs: Sequence[SavedRun]) -> str:
    """Return a note on the validity of the comparison: settings that differ in addition to the recipe."""
    first = runs[0].summary
    differ = {key for run in runs[1:] for key in _ALIKE if run.summary.get(key) != first.get(key)}
    if not runs[1:]:
        return "One run: nothing to compare it with."
    if differ:
        words = ", ".join(key.replace("_", " ") for key in _ALIKE if key in differ)
        return warning([f"These runs differ in more than their recipes: {words}. Losses cannot be compared."])
    return (
        "One pair of runs cannot show a difference below the noise floor: even two runs that differ in the last bit "
        "of one weight end with different losses. `lowprec ablate` makes pairs, a floor and intervals."
    )


def _draw(folders: Sequence[Path], canvas: Any, top: float) -> None:
    from ...plot.training import losses

    (axes,) = sheet.panels(canvas, top, foot=0.55, left=0.075)
    axes.grid(False)
    losses(*folders, smoothing=_SMOOTHING, axes=axes)
