"""From the cells of a study of scaling to a line through them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._files import write_json
from ..analysis.estimates import ByResamples, Resampled
from ..analysis.findings import Finding, judge, not_detected
from ..design.registration import Registration, registered_in
from ..report.parts import plural
from ..run.store import STUDY_FILE, RunFolder, StudyError
from .results import StudySummary
from .results import summarize as summarize_branches
from .sizes import AXES, Cell, ScalingSetting, pairs_of, run_name

Floats = NDArray[np.float64]
RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Fit:
    """A linear fit.

    Attributes
    ----------
    coefficients : float64 array [columns]
        By least squares.
    resampled : float64 array [resamples, columns]
        The same of other samples of checkpoints; empty where there is a single one anywhere.
    """

    coefficients: Floats
    resampled: Floats

    def at(self, row: Sequence[float]) -> tuple[float, float, float]:
        """Return the value at a row of the design, or of a coefficient by a unit row, and its 90 % interval."""
        found = self.read(row).estimate
        return found.value, *found.ci90

    def read(self, row: Sequence[float]) -> Resampled:
        """Return the same in every resample; those of two fits of the same clusters are of the same clusters."""
        place = np.array(row, dtype=np.float64)
        return Resampled(float(self.coefficients @ place), self.resampled @ place)


def fit(
    design: Floats, values: Floats, strata: Sequence[Hashable], clusters: Sequence[Hashable], *, seed: int = 0
) -> Fit:
    """Fit values by least squares; the interval counts clusters as the sample, drawn within strata.

    A checkpoint of 600 steps is one of 300 that went on, so both are of one cluster, and the checkpoints of one size
    and text are a stratum. One cluster less than there are is drawn of each stratum, with weights to match (Rao and
    Wu, Journal of the American Statistical Association 1988): as many as there are would spread too little.

    Parameters
    ----------
    design : float64 array [n, columns]
        Of full rank.
    values : float64 array [n]
        What is fitted.
    strata, clusters : sequence of length n
        What each value belongs to.
    seed : int
        Of the resampling; the same seed gives the same interval.

    Examples
    --------
    >>> design = np.column_stack([np.ones(8), np.repeat([0.0, 1.0], 4)])
    >>> found = fit(design, np.arange(8.0), np.repeat([0, 1], 4), range(8))
    >>> found.coefficients.round(9).tolist(), np.round(found.at([0, 1]), 1).tolist()
    ([1.5, 4.0], [4.0, 2.7, 5.3])
    """
    coefficients: Floats = np.linalg.lstsq(design, values, rcond=None)[0].astype(np.float64)
    members: dict[Hashable, list[Hashable]] = {}
    for stratum, cluster in zip(strata, clusters, strict=True):
        members.setdefault(stratum, [])
        if cluster not in members[stratum]:
            members[stratum].append(cluster)
    if min(map(len, members.values())) < 2:
        return Fit(coefficients, np.empty((0, design.shape[1])))
    rng = np.random.default_rng(seed)
    weights: dict[tuple[Hashable, Hashable], Floats] = {}
    for stratum, found in members.items():
        size = len(found)
        drawn: Floats = rng.multinomial(size - 1, [1 / size] * size, RESAMPLES) * np.float64(size / (size - 1))
        weights |= {(stratum, cluster): drawn[:, place] for place, cluster in enumerate(found)}
    table = np.stack([weights[key] for key in zip(strata, clusters, strict=True)], axis=1)
    squares = np.einsum("rn,ni,nj->rij", table, design, design)
    products = np.einsum("rn,ni,n->ri", table, design, values)
    resampled: Floats = np.linalg.solve(squares, products[..., None])[..., 0].astype(np.float64)
    return Fit(coefficients, resampled)


# --- the cells -------------------------------------------------------------------------------------------------------


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

    study: Any
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
        return (*self.faulty_runs, *map(not_detected, unseen))

    @functools.cached_property
    def faulty_runs(self) -> tuple[str, ...]:
        """Faults of cells: repeats that differ, incomplete runs."""
        return tuple(f"{cell.name}: {reason}" for cell, found in self.cells.items() for reason in found.damaged)

    @property
    def invalid_reasons(self) -> tuple[str, ...]:
        """Reasons why the study must not be trusted."""
        return self.void

    @property
    def size(self) -> str:
        """What was trained, in words."""
        configs = ", ".join(dict.fromkeys(cell.config for cell in self.cells))
        return (
            f"{configs}; {plural(len(self.cells), 'cell')} of {plural(self.setting.checkpoints, 'checkpoint')} x "
            f"{plural(self.setting.seeds, 'seed')}; branches of "
            f"{', '.join(str(steps) for steps in dict.fromkeys(cell.branch_steps for cell in self.cells))} steps"
        )

    @property
    def about(self) -> dict[str, Any]:
        """`run.json` of the first run."""
        return next(iter(self.cells.values())).about


def summarize(study: Any, setting: ScalingSetting, folder: Path) -> ScalingSummary:
    """Read the cells of a `Scaling`; those that are not finished are left out.

    Raises
    ------
    StudyError
        If no cell is finished, or runs cannot be compared.
    """
    cells: dict[Cell, StudySummary] = {}
    missing = []
    for cell in setting.cells:
        branches, size = study.branches(cell, setting), setting.of(cell)
        runs = [run_name(arm, *pair) for arm in branches.arms for pair in pairs_of(arm, size)]
        if not all(RunFolder(folder / cell.name / name).finished() for name in runs):
            missing.append(cell.name)
            continue
        # Each cell is a study of branches: its folder says so, and can be reported by itself.
        write_json(folder / cell.name / STUDY_FILE, branches.to_json(size))
        cells[cell] = summarize_branches(branches, size, folder / cell.name)
    if not cells:
        raise StudyError(f"{folder}: no cell is finished; resume the study first")
    return ScalingSummary(study, setting, cells, tuple(missing), registered_in(folder, study.name))
