"""Measurements of the same weights, as a kind of study: how one is planned and reported."""

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
from .study import MeasurementStudy, describe


class MeasurementKind(TrainingKind[MeasurementStudy, CheckpointSize]):
    """One batch forward and backward through the same weights in several precisions."""

    name: ClassVar[str] = "measurement"
    study: ClassVar[type] = MeasurementStudy

    def plan(
        self,
        study: MeasurementStudy,
        setting: CheckpointSize,
        folder: Path,
        *,
        data: str = "stdlib",
        backend: Backend | None = None,
    ) -> Plan:
        """List the runs of a study; nothing is written.

        The BF16 checkpoints lie beside the study's folder and serve every study with the same code, data and sizes.

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
        checkpoints = [checkpoint_task(setting, i, context, folder.parent, config) for i in range(setting.checkpoints)]
        work = Measure(study.measurement, study.reference.precision)
        same = {
            "reference": backend.describe(config, study.reference.precision)["recipe"],
            "measurement": plain(study.measurement.describe()), "batches": setting.seeds,
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
