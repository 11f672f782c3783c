"""Studies of single GEMMs, as a kind of study: how one is run, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...report.document import Document, Figure, Part, Text
from ...report.sheet import write_figures
from ...run.store import check_writable
from ..kind import MeasuringKind, Report
from ..measuring import Claimed, claims_csv, claims_json, claims_table, made_of, show_claims, write_reports
from .figures import figure
from .study import MEASURES, Errors, TensorSetting, TensorStudy, sweep


@dataclass(frozen=True, eq=False)
class Outcome(Claimed):
    """What a study found: errors, and what became of the claims."""

    study: TensorStudy
    errors: Errors


class TensorKind(MeasuringKind[TensorStudy, TensorSetting]):
    """Errors of accumulators against K, and published figures beside our own."""

    name: ClassVar[str] = "tensors"
    study: ClassVar[type] = TensorStudy

    def measure(
        self,
        study: TensorStudy,
        setting: TensorSetting,
        folder: Path,
        *,
        command: str = "",
        plot: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Measure, and write ``<name>.csv``, its figure and the reports.

        Raises
        ------
        StudyError
            If the folder cannot be written, or matplotlib is missing.
        """
        began = time.process_time()
        check_writable(folder)
        errors = sweep(study, setting, progress)
        measured = tuple((claim, claim.measure()) for claim in study.claims)
        outcome = Outcome(study, errors, measured=measured, command=command)
        drawn, files = write_figures([figure(errors)], folder, plot)
        found, tables = document(outcome, folder, study.name if drawn else None), {"claims.csv": claims_csv(outcome)}
        files += write_reports(found, as_json(outcome), folder, tables, plot, began)
        return Report(outcome, found, files, partial(show, outcome), partial(claims_csv, outcome), holds=outcome.holds)


def document(outcome: Outcome, folder: Path = Path(), figure: str | None = None) -> Document:
    """Return the report."""
    study = outcome.study
    parts: list[Part] = [Figure(study.title(outcome.errors), figure)] if figure else []
    caption = (
        f"Figure: {outcome.errors.setting}; largest error over the mean magnitude of the exact result, operands "
        "rounded first."
    )
    parts.append(claims_table(outcome, caption))
    parts += [Text(f"Written down before: {study.expected} ({study.source})")]
    parts += [Text(f"Made by `{outcome.command}`.")] * bool(outcome.command)
    return Document(study.name, study.question, study.tier, tuple(parts), made_of(), folder)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    errors, study = outcome.errors, outcome.study
    curves = [
        {"data": data.name, "arm": arm.name, "K": k, **{
            name: errors.of(data.name, arm.name, k, m).tolist() for m, name in enumerate(MEASURES)}}
        for data in study.data for arm in study.arms for k in errors.setting.lengths
    ]  # fmt: skip
    return {"setting": errors.setting, "claims": claims_json(outcome), "curves": curves}


def show(outcome: Outcome, console: Any) -> None:
    """Print the table of claims on a rich console."""
    show_claims(outcome, console, outcome.study.question, outcome.study.title(outcome.errors))
