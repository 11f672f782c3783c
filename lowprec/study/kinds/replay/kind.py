"""Replays, as a kind of study: how one is planned and reported."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ...._files import plain
from ...run.backend import Backend
from ...run.plan import Common, Plan, checkpoint_task
from ..kept import describe
from ..kind import Report, TrainingKind
from .measurement import Replayed, Synthetic
from .operands import FAMILIES, lengths
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
        common, folder = Common.of(data, backend), folder.resolve()
        checkpoints = [checkpoint_task(setting, i, common, folder.parent) for i in range(setting.checkpoints)]
        described = common.backend.describe(setting.config, study.quantized_by)
        arms = plain([arm_data(arm) for arm in study.arms])
        size = {name: getattr(setting, name) for name in ("seeds", "tokens", "rows", "columns")}
        what = {**described, "arms": arms, "size": size, **common.fingerprint}
        per_batch = int(described["config"]["batch"]) * int(described["config"]["sequence"])
        steps = max(setting.seeds, lengths(setting.tokens, per_batch)[-1] // per_batch)
        runs = [
            Replayed(
                f"{RECORDED}/c{number}", folder, common.backend, setting.config, study.quantized_by, common.data,
                number, steps, {}, {**what, "seed": number, "checkpoint": checkpoint.fingerprint}, checkpoint.name,
                False, checkpoint.study, arms=study.arms, setting=setting, quantized_by=study.quantized_by,
            )
            for number, checkpoint in enumerate(checkpoints)
        ]  # fmt: skip
        lines = [
            Synthetic(
                f"{SYNTHETIC}/s{number}", folder, common.backend, setting.config, study.quantized_by, common.data,
                number, len(FAMILIES), {}, {**what, "seed": number}, weights_seed=number,
                arms=study.arms, setting=setting,
            )
            for number in range(setting.seeds)
        ]  # fmt: skip
        description = {"kind": self.name, **describe(study, setting, arms=arms)}
        return Plan(study, setting, folder, description, tuple(checkpoints), (*runs, *lines))

    def report(self, folder: Path, plot: bool) -> Report:
        """Write everything about a finished study into its folder."""
        from .report import report

        return report(folder, plot)
