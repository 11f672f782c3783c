"""Measurements of the same weights, as a kind of study: how one is planned and reported."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ...._files import plain
from ...run.backend import Backend
from ...run.plan import Common, Plan, checkpoint_task
from ..kind import Report, TrainingKind
from .measurement import Measurement
from .study import SameWeights, WeightsSetting, describe


class SameWeightsKind(TrainingKind[SameWeights, WeightsSetting]):
    """One batch forward and backward through the same weights in several precisions."""

    name: ClassVar[str] = "same_weights"
    study: ClassVar[type] = SameWeights

    def plan(
        self,
        study: SameWeights,
        setting: WeightsSetting,
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
        common, folder = Common.of(data, backend), folder.resolve()
        backend = common.backend
        checkpoints = [checkpoint_task(setting, number, common, folder.parent) for number in range(setting.checkpoints)]
        reference = backend.describe(setting.config, study.reference.precision)["recipe"]
        stresses = [{"kind": type(stress).__name__, **plain(stress)} for stress in study.stresses]
        arms = []
        for number, checkpoint in enumerate(checkpoints):
            for arm in study.arms:
                what = {
                    **backend.describe(setting.config, arm.precision), "reference": reference, "stresses": stresses,
                    "batches": setting.seeds, "seed": number, "checkpoint": checkpoint.fingerprint,
                }  # fmt: skip
                arms.append(
                    Measurement(
                        f"{arm.name}/c{number}", folder, backend, setting.config, arm.precision, common.data, number,
                        setting.seeds * len(study.stresses), {}, {**what, **common.fingerprint}, checkpoint.name, False,
                        checkpoint.study, study.reference.precision, study.stresses,
                    )
                )  # fmt: skip
        description = {"kind": self.name, **describe(study, setting)}
        return Plan(study, setting, folder, description, tuple(checkpoints), tuple(arms))

    def report(self, folder: Path, plot: bool) -> Report:
        """Write everything about a finished study into its folder."""
        from .report import report

        return report(folder, plot)
