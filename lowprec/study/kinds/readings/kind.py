"""Readings of trained models, as a kind of study: how one is planned and reported."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ...._files import plain, safe_name
from ...run.backend import Backend
from ...run.plan import Common, Plan, checkpoint_task
from ...run.tasks import Task
from ..kind import Report, TrainingKind
from ..same_weights.kind import SHARED_CHECKPOINTS
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
        shared = folder.parent / SHARED_CHECKPOINTS
        config = common.backend.configuration(setting.config, study.config)
        checkpoints = [_checkpoint(setting, config, number, common, shared) for number in range(setting.checkpoints)]
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
                        setting.seeds, {}, {**what, **common.fingerprint}, checkpoint.name, False, shared,
                        reference=study.reference.precision, reading=study.reading,
                    )
                )  # fmt: skip
        description = {"kind": self.name, **describe(study, setting)}
        return Plan(study, setting, folder, description, tuple(checkpoints), tuple(arms))

    def report(self, folder: Path, plot: bool) -> Report:
        """Write everything about a finished study into its folder."""
        from .report import report

        return report(folder, plot)


def _checkpoint(setting: WeightsSetting, config: Any, number: int, common: Common, shared: Path) -> Task:
    """Return the run of a checkpoint of this configuration, named after everything that its numbers depend on."""
    task = checkpoint_task(setting, number, common, shared)
    fingerprint = {**task.fingerprint, **common.backend.describe(config, "bf16")}
    key = hashlib.sha256(json.dumps(plain(fingerprint), sort_keys=True).encode()).hexdigest()[:12]
    name = f"{safe_name('configuration', setting.config)}-{setting.checkpoint_steps}-c{number}-{key}"
    return replace(task, name=name, config=config, fingerprint=fingerprint)
