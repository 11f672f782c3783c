"""Replays, as a kind of study: how one is planned and reported."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ...._files import plain
from ...measurements.gemms import MultiplyRecorded, MultiplySynthetic
from ...measurements.operands import FAMILIES, lengths
from ...report.results import Results
from ...run.backend import Backend
from ...run.plan import Plan, checkpoint_task, create_context
from ...run.tasks import Task
from ..kept import describe
from ..kind import TrainingKind
from .study import Replay, ReplaySetting, arm_data

#: Folders of the runs, before the number of the checkpoint, or of the draw.
RECORDED, SYNTHETIC = "recorded", "synthetic"


class ReplayKind(TrainingKind[Replay, ReplaySetting]):
    """Recorded operands of a frozen checkpoint, multiplied on many accumulators."""

    name: ClassVar[str] = "replay"
    study: ClassVar[type] = Replay

    def plan(
        self,
        study: Replay,
        setting: ReplaySetting,
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
            If a configuration, recipe or accumulator is not in its catalogue.
        ValueError
            If the data cannot be used.
        """
        context, folder = create_context(data, backend), folder.resolve()
        checkpoints = [checkpoint_task(setting, i, context, folder.parent) for i in range(setting.checkpoints)]
        described = context.backend.describe(setting.config, study.quantized_by)
        arms = plain([arm_data(arm) for arm in study.arms])
        size = {name: getattr(setting, name) for name in ("seeds", "tokens", "rows", "columns")}
        what = {**described, "arms": arms, "size": size, **context.fingerprint}
        per_batch = int(described["config"]["batch"]) * int(described["config"]["sequence"])
        steps = max(setting.seeds, lengths(setting.tokens, per_batch)[-1] // per_batch)
        runs = [
            Task(
                f"{RECORDED}/c{number}", folder, context, setting.config, study.quantized_by, number, steps,
                MultiplyRecorded(study.arms, setting), {**what, "seed": number, "checkpoint": checkpoint.fingerprint},
                checkpoint,
            )
            for number, checkpoint in enumerate(checkpoints)
        ]  # fmt: skip
        lines = [
            Task(
                f"{SYNTHETIC}/s{number}", folder, context, setting.config, study.quantized_by, number, len(FAMILIES),
                MultiplySynthetic(study.arms, setting), {**what, "seed": number},
            )
            for number in range(setting.seeds)
        ]  # fmt: skip
        description = {"kind": self.name, **describe(study, setting, arms=arms)}
        return Plan(study, setting, folder, description, tuple(checkpoints), (*runs, *lines))

    def results(self, folder: Path) -> Results:
        """Return what a finished study found."""
        from .report import results
        from .summary import summarize

        return results(summarize(folder), folder)
