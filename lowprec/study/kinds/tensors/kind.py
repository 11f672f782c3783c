"""Studies of single GEMMs, as a kind of study: how one is run, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...report.results import Block, Results
from ...run.store import check_writable
from ..kind import MeasuringKind
from ..measuring import Claimed, claims_csv, claims_json, claims_table, made_of, summary_json
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
        progress: Callable[[int, int], None] | None = None,
    ) -> Results:
        """Measure.

        Raises
        ------
        StudyError
            If the folder cannot be written.
        """
        began = time.process_time()
        check_writable(folder)
        errors = sweep(study, setting, progress)
        measured = tuple((claim, claim.measure()) for claim in study.claims)
        outcome = Outcome(study, errors, measured=measured, command=command)
        caption = (
            f"Figure: {setting}; largest error over the mean magnitude of the exact result, operands rounded first."
        )
        body: list[Block] = [figure(errors), claims_table(outcome, caption)]
        body.append(f"Written down before: {study.expected} ({study.source})")
        body += [f"Made by `{command}`."] * bool(command)
        shown = claims_table(outcome, study.title(errors), study.question)
        return Results(
            study, folder, outcome, body, {"claims.csv": claims_csv(outcome)}, summary_json(as_json(outcome), began),
            made_of(), [shown], holds=outcome.holds,
        )  # fmt: skip


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome in JSON's types."""
    errors, study = outcome.errors, outcome.study
    curves = [
        {"data": data.name, "arm": arm.name, "K": k, **{
            name: errors.of(data.name, arm.name, k, m).tolist() for m, name in enumerate(MEASURES)}}
        for data in study.data for arm in study.arms for k in errors.setting.lengths
    ]  # fmt: skip
    return {"setting": errors.setting, "claims": claims_json(outcome), "curves": curves}
