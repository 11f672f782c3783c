"""Scaling, as a kind of study: the plan of every cell in one, and their report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from ...report.results import Results
from ...run.backend import Backend
from ...run.plan import SHARED_CHECKPOINTS, Plan
from ...run.tasks import Task
from ..branches.kind import BranchKind
from ..kept import describe
from ..kind import TrainingKind
from .study import Scaling, ScalingSetting


class ScalingKind(TrainingKind[Scaling, ScalingSetting]):
    """Branches in several cells of size, length and text."""

    name: ClassVar[str] = "scaling"
    study: ClassVar[type] = Scaling

    def plan(
        self, study: Scaling, setting: ScalingSetting, folder: Path, *, data: str = "stdlib",
        backend: Backend | None = None,
    ) -> Plan:  # fmt: skip
        """List the runs of a study; nothing is written.

        A cell names its own corpus; `data` takes the place of "stdlib" in those that have it.

        Raises
        ------
        UnknownNameError
            If a configuration or recipe is not in its catalogue.
        ValueError
            If the data cannot be used, or a cell's setting makes no sense.
        """
        folder = folder.resolve()
        cells = tuple(replace(cell, corpus=data) if cell.corpus == "stdlib" else cell for cell in setting.cells)
        setting = replace(setting, cells=cells)
        checkpoints: list[Task] = []
        arms: list[Task] = []
        for cell in setting.cells:
            planned = BranchKind().plan(
                study.branches(cell, setting), setting.of(cell), folder / cell.name, data=cell.corpus, backend=backend
            )
            # Checkpoints lie beside the study's folder, where other studies find them; a run's name says its cell.
            shared = folder.parent / SHARED_CHECKPOINTS
            moved = {task.name: replace(task, study=shared) for task in planned.checkpoints}
            checkpoints += moved.values()
            arms += [
                replace(task, name=f"{cell.name}/{task.name}", study=folder, start=moved[task.start_name])
                for task in planned.arms
            ]  # fmt: skip
        arms.sort(key=lambda task: task.name.rpartition("-s")[2].zfill(4))  # every cell's first pairs before the second
        description = {"kind": self.name, **describe(study, setting)}
        return Plan(study, setting, folder, description, tuple(checkpoints), tuple(arms))

    def results(self, folder: Path) -> Results:
        """Return what a finished study found."""
        from .report import results
        from .summary import summarize

        return results(summarize(folder), folder)
