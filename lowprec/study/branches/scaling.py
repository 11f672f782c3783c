"""Scaling studies: the same arms branch from checkpoints of several model sizes, training lengths and corpora.

One cell is one branch study. The forward effect and the training effect of its arms are fitted separately, linearly in
the logarithms of parameters and training bytes, with an offset for every further corpus. The sign of a slope is what
matters: models of practical interest are orders of magnitude larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..design.arms import Arm
from ..design.study import PlannedStudy, Size
from ..run.plan import SHARED_CHECKPOINTS, Plan
from .sizes import AXES, FITTED, Cell, ScalingSetting
from .study import Ablation

if TYPE_CHECKING:
    from ..report.results import Results
    from ..run.backend import Backend
    from ..run.tasks import Task

#: Metrics for expectations: means over all cells, and slopes along the axis in `Expectation.condition`.
SCALING_METRICS = {
    **{f"{effect}_percent": f"{effect} effect, per cent of loss, at the centre of all cells" for effect in FITTED},
    **{f"{effect}_slope": "its change, per cent of loss per factor of 10 (per corpus)" for effect in FITTED},
}


@dataclass(frozen=True, kw_only=True)
class Scaling(PlannedStudy):
    """A question that is answered at several model sizes.

    Parameters
    ----------
    arms : tuple of Arm
        Arms, including reference, floor and control.
    quick, full : ScalingSetting
        Size for a quick result, and size for a published one.
    expectations : tuple of Expectation
        Expected ranges of `SCALING_METRICS`. For a slope, `condition` is one of `AXES`; axes along which a size does
        not vary are not judged.
    margin : float
        Equivalence margin for the verdicts of cells.
    seed_block : int
        Block of data seeds, as in `Ablation`.
    """

    arms: tuple[Arm, ...]
    quick: ScalingSetting
    full: ScalingSetting
    margin: float = 0.0025
    seed_block: int = 0
    kind: ClassVar[str] = "scaling"
    size_type: ClassVar[type[Size]] = ScalingSetting

    def __post_init__(self) -> None:
        self.branches(self.quick.cells[0], self.quick)  # raises errors about the arms
        super().__post_init__()

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metrics that expectations may refer to."""
        return SCALING_METRICS

    def conditions(self, metric: str) -> Sequence[str]:
        """Return the axes that an expectation of a slope may refer to."""
        return AXES if metric.endswith("_slope") else ("",)

    @property
    def tier(self) -> str:
        """Use of the trainer: always "T3"."""
        return "T3"

    def branches(self, cell: Cell, setting: ScalingSetting) -> Ablation:
        """Return the branch study of one cell."""
        return Ablation(
            name=f"{self.name}-{cell.name}", question=self.question, arms=self.arms, quick=setting.of(cell),
            full=setting.of(cell), source=self.source, margin=self.margin, seed_block=self.seed_block,
        )  # fmt: skip

    def plan(self, size: ScalingSetting, folder: Path, *, data: str = "stdlib", backend: Backend | None = None) -> Plan:
        """Return the plan of the runs of all cells, without writing anything.

        A cell defines its corpus; `data` replaces "stdlib" in the cells that use it.
        """
        folder = folder.resolve()
        cells = tuple(replace(cell, corpus=data) if cell.corpus == "stdlib" else cell for cell in size.cells)
        size = replace(size, cells=cells)
        checkpoints: list[Task] = []
        arms: list[Task] = []
        for cell in size.cells:
            planned = self.branches(cell, size).plan(
                size.of(cell), folder / cell.name, data=cell.corpus, backend=backend
            )
            # Checkpoints are next to the study's folder, shared with other studies. A run's name includes its cell.
            shared = folder.parent / SHARED_CHECKPOINTS
            moved = {task.name: replace(task, study=shared) for task in planned.checkpoints}
            checkpoints += moved.values()
            arms += [
                replace(task, name=f"{cell.name}/{task.name}", study=folder, start=moved[task.start_name])
                for task in planned.arms
            ]  # fmt: skip
        arms.sort(key=lambda task: task.name.rpartition("-s")[2].zfill(4))  # first pairs of all cells first
        return Plan(self, size, folder, self.to_json(size), tuple(checkpoints), tuple(arms))

    def results(self, size: ScalingSetting, folder: Path) -> Results:
        """Return the results of the finished cells."""
        from .scaling_report import results
        from .scaling_results import summarize

        return results(summarize(self, size, folder), folder)
