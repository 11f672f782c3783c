"""Scaling: the same arms branch off from checkpoints of models of several sizes, trained for longer, on other texts.

One cell is one study of branches. What its arms do, apart by forward effect and training effect, is fitted by a line
in the logarithms of parameters and of bytes trained on, beside a step for every other corpus. What matters is the sign
of a slope: the models of this field lie orders of magnitude further on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..design.arms import Arm
from ..design.study import PlannedStudy
from .sizes import AXES, FITTED, Cell, ScalingSetting
from .study import Ablation

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend
    from ..run.plan import Plan
    from ..run.tasks import Task

#: What may be expected of an arm: means over all cells, and slopes along what `Expectation.stress` says.
SCALING_METRICS = {
    **{f"{effect}_percent": f"{effect} effect, per cent of loss, at the centre of all cells" for effect in FITTED},
    **{f"{effect}_slope": "its change, per cent of loss per factor of 10 (per corpus)" for effect in FITTED},
}


@dataclass(frozen=True, kw_only=True)
class Scaling(PlannedStudy):
    """One question put to several sizes.

    Parameters
    ----------
    arms : tuple of Arm
        The precisions, with reference, floor and control.
    quick, full : ScalingSetting
        Two sizes.
    expectations : tuple of Expectation
        Numbers that were expected, over `SCALING_METRICS`; of a slope, `stress` is one of `AXES`. One along which a
        size does not vary is not judged.
    margin : float
        Equivalence margin of a cell's verdicts.
    series : int
        As in `Ablation`.
    """

    arms: tuple[Arm, ...]
    quick: ScalingSetting
    full: ScalingSetting
    margin: float = 0.0025
    series: int = 0
    kind: ClassVar[str] = "scaling"

    def __post_init__(self) -> None:
        self.branches(self.quick.cells[0], self.quick)  # what is wrong with the arms is said here
        super().__post_init__()

    @property
    def metrics(self) -> Mapping[str, str]:
        """What is fitted."""
        return SCALING_METRICS

    def conditions(self, metric: str) -> Sequence[str]:
        """Return the axes of a slope."""
        return AXES if metric.endswith("_slope") else ("",)

    @property
    def tier(self) -> str:
        """T3."""
        return "T3"

    def branches(self, cell: Cell, setting: ScalingSetting) -> Ablation:
        """Return the study of branches that one cell is."""
        return Ablation(
            name=f"{self.name}-{cell.name}", question=self.question, arms=self.arms, quick=setting.of(cell),
            full=setting.of(cell), source=self.source, margin=self.margin, series=self.series,
        )  # fmt: skip

    def plan(self, size: ScalingSetting, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """List the runs of every cell; nothing is written.

        A cell names its own corpus; `data` takes the place of "stdlib" in those that have it.
        """
        from ..run.plan import SHARED_CHECKPOINTS, Plan

        folder = folder.resolve()
        cells = tuple(replace(cell, corpus=data) if cell.corpus == "stdlib" else cell for cell in size.cells)
        size = replace(size, cells=cells)
        checkpoints: list[Task] = []
        arms: list[Task] = []
        for cell in size.cells:
            planned = self.branches(cell, size).plan(
                size.of(cell), folder / cell.name, data=cell.corpus, backend=backend
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
        return Plan(self, size, folder, self.to_json(size), tuple(checkpoints), tuple(arms))

    def results(self, size: ScalingSetting, folder: Path) -> Results:
        """Return the results of the finished cells."""
        from .scaling_report import results
        from .scaling_results import summarize

        return results(summarize(self, size, folder), folder)

    @classmethod
    def size_from_json(cls, content: Mapping[str, Any]) -> ScalingSetting:
        """Return a size."""
        return ScalingSetting(**{**content, "cells": tuple(Cell(**cell) for cell in content["cells"])})
