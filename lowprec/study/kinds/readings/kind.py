"""Readings of trained models, as a kind of study: how one is planned and reported."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ...._files import plain
from ...run.backend import Backend
from ...run.plan import Common, Plan, checkpoint_task
from ..kind import Report, TrainingKind
from ..same_weights.study import WeightsSetting
from .measurement import Read
from .study import Readings, describe


class ReadingKind(TrainingKind[Readings, WeightsSetting]):
    """One thing measured of the same weights in several precisions, at named places."""

    name: ClassVar[str] = "readings"
    study: ClassVar[type] = Readings

    def plan(
        self,
        study: Readings,
        setting: WeightsSetting,
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
        common, folder = Common.of(data, backend), folder.resolve()
        config = common.backend.configuration(setting.config, study.config)
        checkpoints = [
            checkpoint_task(setting, number, common, folder.parent, config) for number in range(setting.checkpoints)
        ]
        reference = common.backend.describe(config, study.reference.precision)["recipe"]
        arms = []
        for number, checkpoint in enumerate(checkpoints):
            for arm in study.arms:
                what = {
                    **common.backend.describe(config, arm.precision), "reference": reference,
                    "reading": plain(study.reading.describe()), "batches": setting.seeds, "seed": number,
                    "checkpoint": checkpoint.fingerprint,
                }  # fmt: skip
                arms.append(
                    Read(
                        f"{arm.name}/c{number}", folder, common.backend, config, arm.precision, common.data, number,
                        setting.seeds, {}, {**what, **common.fingerprint}, checkpoint.name, False, checkpoint.study,
                        reference=study.reference.precision, reading=study.reading,
                    )
                )  # fmt: skip
        description = {"kind": self.name, **describe(study, setting)}
        return Plan(study, setting, folder, description, tuple(checkpoints), tuple(arms))

    def report(self, folder: Path, plot: bool) -> Report:
        """Write everything about a finished study into its folder."""
        from .report import report

        return report(folder, plot)
