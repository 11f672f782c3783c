"""Readings of trained models, as a kind of study: how one is planned and reported."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ...._files import plain
from ...design.study import CheckpointSize
from ...measurements.measurement import Measure
from ...report.results import Results
from ...run.backend import Backend
from ...run.plan import Plan, checkpoint_task, create_context
from ...run.tasks import Task
from ..kind import TrainingKind
from .study import Readings, describe


class ReadingKind(TrainingKind[Readings, CheckpointSize]):
    """One thing measured of the same weights in several precisions, at named places."""

    name: ClassVar[str] = "readings"
    study: ClassVar[type] = Readings

    def plan(
        self,
        study: Readings,
        setting: CheckpointSize,
        folder: Path,
        *,
        data: str = "stdlib",
        backend: Backend | None = None,
    ) -> Plan:
        """List the runs of a study; nothing is written.

        Raises
        ------
        UnknownNameError
            If a configuration or recipe is not in its catalogue.
        ValueError
            If the data cannot be used.
        """
        context, folder = create_context(data, backend), folder.resolve()
        backend = context.backend
        config = backend.configuration(setting.config, study.config)
        checkpoints = [
            checkpoint_task(setting, number, context, folder.parent, config) for number in range(setting.checkpoints)
        ]
        work = Measure(study.reading, study.reference.precision)
        same = {
            "reference": backend.describe(config, study.reference.precision)["recipe"],
            "measurement": plain(study.reading.describe()), "batches": setting.seeds,
        }  # fmt: skip
        arms = [
            Task(
                f"{arm.name}/c{number}", folder, context, config, arm.precision, number, setting.seeds, work,
                {**backend.describe(config, arm.precision), **same, "seed": number,
                 "checkpoint": checkpoint.fingerprint, **context.fingerprint},
                checkpoint,
            )
            for number, checkpoint in enumerate(checkpoints)
            for arm in study.arms
        ]  # fmt: skip
        description = {"kind": self.name, **describe(study, setting)}
        return Plan(study, setting, folder, description, tuple(checkpoints), tuple(arms))

    def results(self, folder: Path) -> Results:
        """Return what a finished study found."""
        from .report import results
        from .summary import summarize

        return results(summarize(folder), folder)
