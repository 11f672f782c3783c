"""From the cells of a study of scaling to a line through them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...._files import plain, write_json
from ...analysis.estimates import ByResamples, Resampled
from ...analysis.findings import Finding, judge, not_detected
from ...catalogue import registered_in
from ...design.registration import Registration
from ...report.parts import several
from ...run.store import STUDY_FILE, RunFolder, StudyError
from ..branches.ablation import pairs_of, run_name
from ..branches.summary import StudySummary
from ..branches.summary import summarize as summarize_branches
from ..kept import describe
from .fit import Fit, fit
from .study import AXES, Cell, Scaling, ScalingSetting, read_study

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScalingSummary:
    """A study of scaling.

    Attributes
    ----------
    study, setting : Scaling, ScalingSetting
        What was asked, and at which size.
    cells : dict of Cell to StudySummary
        What each finished cell says by itself.
    missing : tuple of str
        Cells that are not finished.
    registered : Registration
        What was registered before.
    """

    study: Scaling
    setting: ScalingSetting
    cells: dict[Cell, StudySummary]
    missing: tuple[str, ...]
    registered: Registration

    @property
    def shown(self) -> list[str]:
        """Arms that are fitted: all but the reference and its repeat."""
        return [arm.name for arm in self.study.arms if arm.role not in ("reference", "repeat")]

    def at(self, cell: Cell) -> dict[str, float | str]:
        """Return where a cell lies: active parameters, bytes before the branch, corpus."""
        found = self.cells[cell]
        return {
            "parameters": float(found.active_parameters),
            "bytes": float(cell.checkpoint_steps * found.tokens_per_step), "corpus": Path(cell.corpus).stem,
        }  # fmt: skip

    @property
    def corpora(self) -> list[str]:
        """The corpora, in order of the cells."""
        return list(dict.fromkeys(str(self.at(cell)["corpus"]) for cell in self.cells))

    @property
    def axes(self) -> list[str]:
        """Those of `AXES` along which the cells differ."""
        return [axis for axis in AXES if len({self.at(cell)[axis] for cell in self.cells}) > 1]

    def row(self, parameters: float | None = None, size: float | None = None, corpus: str = "") -> list[float]:
        """Return the row of the design at a place; what is not given is at the cells' centre."""
        row = [1.0]
        for axis, value in (("parameters", parameters), ("bytes", size)):
            if axis in self.axes:
                row.append(0.0 if value is None else float(np.log10(value)) - self._center(axis))
        share = 1.0 / len(self.corpora)
        return row + [float(corpus == other) - share if corpus else 0.0 for other in self.corpora[1:]]

    def _center(self, axis: str) -> float:
        return float(np.mean([np.log10(float(self.at(cell)[axis])) for cell in self.cells]))

    def slope(self, axis: str) -> list[float]:
        """Return the row by which a fit's slope is read: per factor of 10, or of the second corpus."""
        row = [0.0] * len(self.row())
        row[1 + self.axes.index(axis)] = 1.0
        return row

    @functools.cached_property
    def _fits(self) -> dict[tuple[str, str], Fit]:
        return {}

    def fit(self, arm: str, effect: str) -> Fit:
        """Return the fit of one effect of an arm, in per cent of loss; each checkpoint's mean over seeds is a value.

        Raises
        ------
        StudyError
            If an arm diverged somewhere: then there is no line.
        """
        if (arm, effect) not in self._fits:
            rows, values, strata, clusters = [], [], [], []
            for cell in self.cells:
                place = self.at(cell)
                for checkpoint, value in self.by_checkpoint(cell, arm, effect).items():
                    rows.append(self.row(float(place["parameters"]), float(place["bytes"]), str(place["corpus"])))
                    values.append(value)
                    strata.append((cell.config, cell.corpus))
                    clusters.append(checkpoint)
            if not np.isfinite(values).all():
                raise StudyError(f"{arm} diverged in some cells, so that nothing can be fitted")
            self._fits[arm, effect] = fit(np.array(rows), np.array(values), strata, clusters)
        return self._fits[arm, effect]

    def by_checkpoint(self, cell: Cell, arm: str, effect: str) -> dict[int, float]:
        """Return an effect in per cent by checkpoint, means over seeds."""
        item = self.cells[cell].arm(arm)
        values = 100 * item.by_effect[effect].values
        numbers = [run.checkpoint for run in item.runs]
        return {one: float(np.mean(values[[other == one for other in numbers]])) for one in dict.fromkeys(numbers)}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What became of the expectations that this size can judge."""
        return tuple(
            judge(item, ByResamples(self._read), self.void, registered=self.registered.covers(item))
            for item in self.study.expectations
            if not item.stress or item.stress in self.axes
        )  # fmt: skip

    def _read(self, metric: str, axis: str, arm: str) -> Resampled:
        effect, _, what = metric.rpartition("_")
        return self.fit(arm, effect).read(self.slope(axis) if what == "slope" else self.row())

    @functools.cached_property
    def void(self) -> tuple[str, ...]:
        """Why nothing is concluded: a cell that is damaged, or a control that is not seen.

        A control is looked for in all cells together, at their centre: that is where the others are, too.
        """
        controls = [arm.name for arm in self.study.arms if arm.role == "control"]
        unseen = [name for name in controls if not self.fit(name, "training").at(self.row())[1] > 0]
        return (*self.damage, *map(not_detected, unseen))

    @functools.cached_property
    def damage(self) -> tuple[str, ...]:
        """Faults of cells: repeats that differ, incomplete runs."""
        return tuple(f"{cell.name}: {reason}" for cell, found in self.cells.items() for reason in found.damaged)

    @property
    def broken(self) -> tuple[str, ...]:
        """Reasons why the study must not be trusted."""
        return self.void

    @property
    def size(self) -> str:
        """What was trained, in words."""
        configs = ", ".join(dict.fromkeys(cell.config for cell in self.cells))
        return (
            f"{configs}; {several(len(self.cells), 'cell')} of {several(self.setting.checkpoints, 'checkpoint')} x "
            f"{several(self.setting.seeds, 'seed')}; branches of "
            f"{', '.join(str(steps) for steps in dict.fromkeys(cell.branch_steps for cell in self.cells))} steps"
        )

    @property
    def about(self) -> dict[str, Any]:
        """`run.json` of the first run."""
        return next(iter(self.cells.values())).about


def summarize(folder: Path) -> ScalingSummary:
    """Read a study of scaling; cells that are not finished are left out.

    Raises
    ------
    StudyError
        If there is no study, or no cell of it is finished, or runs cannot be compared.
    """
    study, setting = read_study(folder)
    cells: dict[Cell, StudySummary] = {}
    missing = []
    for cell in setting.cells:
        branches, size = study.branches(cell, setting), setting.of(cell)
        runs = [run_name(arm, *pair) for arm in branches.arms for pair in pairs_of(arm, size)]
        if not all(RunFolder(folder / cell.name / name).finished() for name in runs):
            missing.append(cell.name)
            continue
        # Each cell is a study of branches: its folder says so, and can be reported by itself.
        write_json(folder / cell.name / STUDY_FILE, {"kind": "ablation", **plain(describe(branches, size))})
        cells[cell] = summarize_branches(folder / cell.name)
    if not cells:
        raise StudyError(f"{folder}: no cell is finished; resume the study first")
    return ScalingSummary(study, setting, cells, tuple(missing), registered_in(folder, study.name))
