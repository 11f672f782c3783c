"""Studies of counted successes: how many trials of each arm succeed, by condition, with binomial intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ...measure.pairs import binomial_interval
from ...plot.style import NEUTRAL, PALETTE
from ..analysis.estimates import Estimate
from ..design.study import Progress, check_names
from ..report.parts import Table, expected_table, findings_json
from .claims import ClaimSetting, TableStudy

if TYPE_CHECKING:
    from ..report.results import Block, Results
    from ..report.sheet import Figure

METRIC = "success_percent"
#: Successes of the trials of one seed, by (condition, arm).
Trials = Mapping[tuple[str, str], ArrayLike]


@dataclass(frozen=True, kw_only=True)
class CountStudy(TableStudy):
    """A question about events, answered by the share of trials that succeed.

    The metric of its expectations is ``success_percent``. Intervals are those of Clopper and Pearson. If
    shares vary more between seeds than independent trials would, the numbers of successes and of trials are divided by
    the ratio of the two variances, the dispersion. If all trials succeed or all fail, it cannot be estimated, and the
    interval is that of independent trials. Differences (`Expectation.minus`) have Newcombe's interval.

    Parameters
    ----------
    trials : callable
        Function from a seed to the successes of its trials, by (condition, arm).
    points : tuple of str
        Conditions, in the order of the figure.
    axis, success : str
        Words for the conditions and for a success, in table and figure.
    control : str
        Arm in which all trials must succeed; otherwise all verdicts are void.
    """

    trials: Callable[[int], Trials]
    points: tuple[str, ...]
    axis: str
    success: str
    control: str
    quick: ClaimSetting
    full: ClaimSetting
    kind: ClassVar[str] = "counts"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.name, "condition", self.points)
        if self.control not in [arm.name for arm in self.arms]:
            raise ValueError(f"study {self.name!r}: control must be an arm, got {self.control!r}")
        for item in self.expectations:
            if item.over:
                raise ValueError(
                    f"study {self.name!r}: over of expectation {item.words!r} must be empty, got {item.over!r}"
                )

    @property
    def metrics(self) -> Mapping[str, str]:
        """Metrics that expectations may refer to."""
        return {METRIC: f"trials with success ({self.success}), %"}

    def conditions(self, metric: str) -> Sequence[str]:
        """Return the conditions that an expectation may refer to."""
        return self.points

    def measured(self, size: ClaimSetting, folder: Path, command: str, progress: Progress) -> Results:
        """Count the successes seed by seed."""
        from ..analysis.findings import judge, void_title
        from ..design.registration import registered_in
        from ..report.results import Results
        from ..report.sheet import csv_of

        counts: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for seed in range(size.seeds):
            outcomes = self.trials(seed)
            if {*outcomes} != {(p, arm.name) for p in self.points for arm in self.arms}:
                raise ValueError(
                    f"study {self.name!r}: trials must return outcomes for each condition and arm, got "
                    f"{sorted(outcomes)}"
                )
            for key, hits in outcomes.items():
                found = np.asarray(hits, bool)
                if not found.size:
                    raise ValueError(f"study {self.name!r}: trials must return one or more outcomes of {key}, got none")
                counts.setdefault(key, []).append((int(found.sum()), found.size))
            progress(seed + 1, size.seeds)
        shares = {key: Share.of(rows) for key, rows in counts.items()}

        def estimate(metric: str, arm: str, condition: str, *, over: str = "", minus: str = "") -> Estimate:
            one = shares[condition, arm]
            return shares[condition, minus].subtracted_from(one) if minus else one.estimate

        void = tuple(
            f"{self.control} (control) has {share.successes} successes in {share.trials} trials at {condition}"
            for (condition, arm), share in shares.items() if arm == self.control and share.successes < share.trials
        )  # fmt: skip
        known = registered_in(folder, self.name)
        findings = tuple(judge(item, estimate, void, registered=known.covers(item)) for item in self.expectations)
        rows = [
            {"condition": condition, "arm": arm, "successes": share.successes, "trials": share.trials,
             METRIC: share.estimate.value, "low": share.estimate.ci90[0], "high": share.estimate.ci90[1],
             "dispersion": share.dispersion}
            for (condition, arm), share in shares.items()
        ]  # fmt: skip
        table = Table(
            (self.axis, *(arm.label or arm.name for arm in self.arms)),
            [(point, *(str(shares[point, arm.name]) for arm in self.arms)) for point in self.points],
            f"{self.success}, % with 90 % intervals; {size}; {command}",
        )
        expected = expected_table(findings)
        title = void_title(void) if void else self.question
        body: list[Block] = [self.figure(shares, title, str(size)), expected]
        body += [f"Published: {self.published} ({self.source})."] if self.published else []
        body += [table, self.notes]
        return Results(
            self, folder, findings, body, {"table.csv": csv_of(rows)},
            {"values": rows, "findings": findings_json(findings)}, {},
            [Table(table.head, table.rows, title=self.question), expected], invalid_reasons=void,
        )  # fmt: skip

    def figure(self, shares: Mapping[tuple[str, str], Share], title: str, small: str) -> Figure:
        """Return the figure of shares by condition, one line with intervals for each arm."""
        from ..report.sheet import Figure, label_ends, panels

        colors = {arm.name: PALETTE[i % len(PALETTE)] for i, arm in enumerate(self.arms)} | {self.control: NEUTRAL}
        rows = [
            {"condition": point, "arm": arm.name, METRIC: shares[point, arm.name].estimate.value,
             "low": shares[point, arm.name].estimate.ci90[0], "high": shares[point, arm.name].estimate.ci90[1]}
            for arm in self.arms for point in self.points
        ]  # fmt: skip

        def draw(sheet: Any, top: float) -> None:
            (axes,) = panels(sheet, top, head=0.2, foot=0.56, right=0.84)
            axes.set_xlim(-0.2, len(self.points) - 0.8)
            axes.set_ylim(-3, 103)
            ends = []
            for i, arm in enumerate(self.arms):
                found = [shares[point, arm.name].estimate for point in self.points]
                value, x = np.array([one.value for one in found]), np.arange(len(found)) + 0.02 * i
                bars = np.abs(np.array([one.ci90 for one in found]).T - value)
                axes.errorbar(
                    x, value, bars, color=colors[arm.name], linewidth=1.8, marker="o", markersize=4, capsize=3
                )
                ends.append((float(value[-1]), arm.label or arm.name, colors[arm.name]))
            axes.set_xticks(range(len(self.points)), self.points)
            axes.set_xlabel(self.axis)
            axes.set_ylabel(f"{self.success}, %")
            label_ends(axes, ends)

        return Figure(title, self.name, rows, draw, f"{small}; bars: 90 % intervals")


@dataclass(frozen=True)
class Share:
    """Numbers of successes and of trials, and the variance between seeds relative to that of independent trials.

    Examples
    --------
    >>> print(Share(90, 100, 1.0))
    90.0 [83.6, 94.5]
    >>> Share(0, 40, 1.0).subtracted_from(Share(40, 40, 1.0)).value
    100.0
    """

    successes: int
    trials: int
    dispersion: float

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]]) -> Share:
        """Return the share over all seeds, given (successes, trials) of each.

        Examples
        --------
        >>> Share.of([(5, 10), (5, 10)]).dispersion, Share.of([(10, 10), (0, 10)]).dispersion
        (1.0, 20.0)
        """
        hits, sizes = np.array(rows, np.float64).T
        share = hits.sum() / sizes.sum()
        expected = sizes * share * (1 - share)
        is_known = len(rows) > 1 and 0 < share < 1
        ratio = float(((hits - sizes * share) ** 2 / expected).sum() / (len(rows) - 1)) if is_known else 1.0
        return cls(int(hits.sum()), int(sizes.sum()), max(1.0, ratio))

    def __str__(self) -> str:
        low, high = self.estimate.ci90
        return f"{self.estimate.value:.1f} [{low:.1f}, {high:.1f}]"

    @property
    def estimate(self) -> Estimate:
        """Share in percent with its 90 % interval (Clopper and Pearson)."""
        low, high = binomial_interval(self.successes / self.dispersion, self.trials / self.dispersion, 0.05)
        return Estimate(100 * self.successes / self.trials, (100 * low, 100 * high))

    def subtracted_from(self, other: Share) -> Estimate:
        """Return another share minus this one, with an interval that combines theirs by Newcombe's method."""
        (a, (low_a, high_a)), (b, (low_b, high_b)) = ((x.value, x.ci90) for x in (other.estimate, self.estimate))
        low, high = math.hypot(a - low_a, high_b - b), math.hypot(high_a - a, b - low_b)
        return Estimate(a - b, (a - b - low, a - b + high))
