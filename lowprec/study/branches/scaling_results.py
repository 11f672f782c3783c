"""Evaluation of a scaling study: linear fits over its cells."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._files import write_json
from ..analysis.estimates import Resampled, resampled_estimate
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
    """A linear fit with resamples.

    Attributes
    ----------
    coefficients : float64 array [columns]
        Least-squares coefficients.
    resampled : float64 array [resamples, columns]
        Coefficients in resamples of the checkpoints; empty if a stratum has only one checkpoint.
    """

    coefficients: Floats
    resampled: Floats

    def at(self, row: Sequence[float]) -> tuple[float, float, float]:
        """Return the value at a row of the design matrix and its 90 % interval; a unit row gives a coefficient."""
        found = self.read(row).estimate
        return found.value, *found.ci90

    def read(self, row: Sequence[float]) -> Resampled:
        """Return the value at a row in every resample; fits over the same clusters share their resamples."""
        place = np.array(row, dtype=np.float64)
        return Resampled(float(self.coefficients @ place), self.resampled @ place)


def fit(
    design: Floats, values: Floats, strata: Sequence[Hashable], clusters: Sequence[Hashable], *, seed: int = 0
) -> Fit:
    """Fit values by least squares, with an interval from resampling clusters within strata.

    A checkpoint of 600 steps continues one of 300 steps, so both belong to one cluster. The checkpoints of one size and
    text are a stratum. From a stratum with n clusters, n - 1 are drawn, with weights to match (Rao and Wu, Journal of
    the American Statistical Association 1988); drawing n would underestimate the variance.

    Parameters
    ----------
    design : float64 array [n, columns]
        Design matrix of full rank.
    values : float64 array [n]
        Values to fit.
    strata, clusters : sequence of length n
        Stratum and cluster of each value.
    seed : int
        Seed of the resampling; equal seeds give equal intervals.

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
    """Results of a scaling study.

    Attributes
    ----------
    study, setting : Scaling, ScalingSetting
        The study and its size.
    cells : dict of Cell to StudySummary
        Results of each finished cell.
    missing : tuple of str
        Unfinished cells.
    registered : Registration
        Expectations registered before the study.
    """

    study: Any
    setting: ScalingSetting
    cells: dict[Cell, StudySummary]
    missing: tuple[str, ...]
    registered: Registration

    @property
    def shown(self) -> list[str]:
        """Names of the fitted arms: all except the reference and its repeat."""
        return [arm.name for arm in self.study.arms if arm.role not in ("reference", "repeat")]

    def at(self, cell: Cell) -> dict[str, float | str]:
        """Return the position of a cell: active parameters, bytes before the branch, corpus."""
        found = self.cells[cell]
        return {
            "parameters": float(found.active_parameters),
            "bytes": float(cell.checkpoint_steps * found.tokens_per_step), "corpus": Path(cell.corpus).stem,
        }  # fmt: skip

    @property
    def corpora(self) -> list[str]:
        """Corpora, in order of the cells."""
        return list(dict.fromkeys(str(self.at(cell)["corpus"]) for cell in self.cells))

    @property
    def axes(self) -> list[str]:
        """Axes, from `AXES`, along which the cells differ."""
        return [axis for axis in AXES if len({self.at(cell)[axis] for cell in self.cells}) > 1]

    def row(self, parameters: float | None = None, size: float | None = None, corpus: str = "") -> list[float]:
        """Return the row of the design matrix for a position; omitted coordinates are at the centre of the cells."""
        row = [1.0]
        for axis, value in (("parameters", parameters), ("bytes", size)):
            if axis in self.axes:
                row.append(0.0 if value is None else float(np.log10(value)) - self._center(axis))
        share = 1.0 / len(self.corpora)
        return row + [float(corpus == other) - share if corpus else 0.0 for other in self.corpora[1:]]

    def _center(self, axis: str) -> float:
        return float(np.mean([np.log10(float(self.at(cell)[axis])) for cell in self.cells]))

    def slope(self, axis: str) -> list[float]:
        """Return the row that gives a fit's slope: per factor of 10, or from the first corpus to the second."""
        row = [0.0] * len(self.row())
        row[1 + self.axes.index(axis)] = 1.0
        return row

    @functools.cached_property
    def _fits(self) -> dict[tuple[str, str], Fit]:
        return {}

    def fit(self, arm: str, effect: str) -> Fit:
        """Return the fit of one effect of an arm, in percent of the loss, over the checkpoints' means.

        Raises
        ------
        StudyError
            If the arm diverged in a cell.
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
                raise StudyError(f"{arm} diverged in some cells, so its effect cannot be fitted")
            self._fits[arm, effect] = fit(np.array(rows), np.array(values), strata, clusters)
        return self._fits[arm, effect]

    def by_checkpoint(self, cell: Cell, arm: str, effect: str) -> dict[int, float]:
        """Return an effect in percent by checkpoint, averaged over seeds."""
        item = self.cells[cell].arm(arm)
        values = 100 * item.by_effect[effect].values
        numbers = [run.checkpoint for run in item.runs]
        return {one: float(np.mean(values[[other == one for other in numbers]])) for one in dict.fromkeys(numbers)}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Outcomes of the expectations that this size can judge."""
        measured = functools.partial(resampled_estimate, self._read)
        return tuple(
            judge(item, measured, self.void, registered=self.registered.covers(item))
            for item in self.study.expectations
            if not item.condition or item.condition in self.axes
        )  # fmt: skip

    def _read(self, metric: str, axis: str, arm: str) -> Resampled:
        effect, _, what = metric.rpartition("_")
        return self.fit(arm, effect).read(self.slope(axis) if what == "slope" else self.row())

    @functools.cached_property
    def void(self) -> tuple[str, ...]:
        """Reasons that void all conclusions: a faulty cell, or an undetected control.

        Controls are tested at the centre of all cells, as are the other arms.
        """
        controls = [arm.name for arm in self.study.arms if arm.role == "control"]
        unseen = [name for name in controls if not self.fit(name, "training").at(self.row())[1] > 0]
        return (*self.faulty_runs, *map(not_detected, unseen))

    @functools.cached_property
    def faulty_runs(self) -> tuple[str, ...]:
        """Faults of cells: repeats that differ, incomplete runs."""
        return tuple(f"{cell.name}: {reason}" for cell, found in self.cells.items() for reason in found.damaged)

    @property
    def size(self) -> str:
        """Description of the trained models and their data."""
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
    """Read the finished cells of a scaling study.

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
        # Each cell is a branch study with a complete folder, which can be reported separately.
        write_json(folder / cell.name / STUDY_FILE, branches.to_json(size))
        cells[cell] = summarize_branches(branches, size, folder / cell.name)
    if not cells:
        raise StudyError(f"{folder} has no finished cell; resume the study first")
    return ScalingSummary(study, setting, cells, tuple(missing), registered_in(folder, study.name))
