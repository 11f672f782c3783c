"""Tables of measured claims, as a separate study or as part of others: published, expected, measured."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..._files import to_csv
from ..analysis.estimates import SeedMeans, Values, estimate
from ..design.expectations import Claim, Measured
from ..design.registration import registered_in
from ..design.study import MeasuredStudy, Progress, Size, count
from ..report.parts import Table, expected_table, findings_json
from ..run.fingerprint import code_hash, host, versions

if TYPE_CHECKING:
    from ..report.results import Results
    from ..report.sheet import Figure

COLUMNS = ("claim", "source", "published", "ours", "agrees", "command")


@dataclass(frozen=True)
class ClaimSetting(Size):
    """Size of a table of claims: the number of seeds for its data."""

    seeds: int = count()

    def __str__(self) -> str:
        return f"data of {self.seeds} seeds"


@dataclass(frozen=True, kw_only=True)
class TableStudy(MeasuredStudy):
    """Base class of studies of tensors; it checks the output folder first, and records time, versions and host."""

    def measure(
        self, size: Any, folder: Path, *, command: str = "", progress: Progress = lambda done, total: None
    ) -> Results:
        """Measure and return the results; the caller writes them."""
        from ..run.store import check_writable

        began = time.process_time()
        check_writable(folder)
        found = self.measured(size, folder, command, progress)
        same = {"versions": versions(), "host": host()}
        json = {"setting": size, **found.json, "seconds": time.process_time() - began, **same}
        return replace(found, json=json, made_of={"code": code_hash(), "versions": versions()})

    @abstractmethod
    def measured(self, size: Any, folder: Path, command: str, progress: Progress) -> Results:
        """Return the results; their `json` has only the entries that are specific to this kind of study."""


@dataclass(frozen=True, kw_only=True)
class Claims(TableStudy):
    """A question about tensors, answered by a table of expected and measured numbers.

    Parameters
    ----------
    values : callable
        Function from the seeds of the data to the measured numbers.
    figure : callable, optional
        Function from the measured numbers and the size to a figure.
    """

    values: Callable[[int], Values]
    figure: Callable[[Values, ClaimSetting], Figure] | None = None
    quick: ClaimSetting = ClaimSetting(2)
    full: ClaimSetting = ClaimSetting(8)
    kind: ClassVar[str] = "claims"

    def measured(self, size: ClaimSetting, folder: Path, command: str, progress: Progress) -> Results:
        """Measure all numbers; no finding makes the study fail."""
        from ..analysis.findings import judge
        from ..report.results import Block, Results
        from ..report.sheet import csv_of

        values = self.values(size.seeds)
        progress(1, 1)
        known = registered_in(folder, self.name)
        means = SeedMeans(values)
        findings = tuple(
            judge(item, partial(estimate, means), registered=known.covers(item)) for item in self.expectations
        )
        rows = [
            {"metric": metric, "arm": arm, "value": one.value, "low": one.ci90[0], "high": one.ci90[1]}
            for (metric, arm) in values if (one := estimate(means, metric, arm))
        ]  # fmt: skip
        found, names = expected_table(findings), list(dict.fromkeys(metric for metric, _ in values))
        measured = [
            (arm.name, *(f"{means.mean(name, arm.name):.4g}" if (name, arm.name) in values else "" for name in names))
            for arm in self.arms
        ]
        body: list[Block] = [self.figure(values, size)] if self.figure else []
        body += [found, f"Published: {self.published} ({self.source})." if self.published else ""]
        body += [Table(("arm", *names), measured, f"{size}; {command}"), self.notes]
        json = {"values": rows, "findings": findings_json(findings)}
        return Results(
            self, folder, findings, body, {"table.csv": csv_of(rows)}, json, {},
            [Table(found.head, found.rows, title=self.question)], printed=to_csv(found.head, found.rows),
        )  # fmt: skip


# --- published figures and ours -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class ClaimResults:
    """Measurements of published figures.

    Attributes
    ----------
    measured : tuple of (Claim, Measured)
        Published figures, each with ours.
    command : str
        Command line of the study.
    """

    measured: tuple[tuple[Claim, Measured], ...] = ()
    command: str = ""

    @property
    def holds(self) -> bool:
        """Whether every claim is reproduced."""
        return all(ours.holds for _, ours in self.measured)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table of claims: description, source, published, ours, agreement, command."""
        return [
            (claim.claim, claim.source, claim.published, ours.words, "yes" if ours.holds else "NO", self.command)
            for claim, ours in self.measured
        ]


def claims_csv(outcome: ClaimResults) -> str:
    """Return the table of claims as CSV."""
    return to_csv(COLUMNS, outcome.rows())


def claims_table(outcome: ClaimResults, caption: str = "", title: str = "") -> Table:
    """Return the table of claims for a report, with each source once and without the command, which all rows share."""
    rows, above = [], ""
    for claim, source, *rest, _ in outcome.rows():
        rows.append((claim, "as above" if source == above else source, *rest))
        above = source
    return Table(COLUMNS[:-1], rows, caption, title)


def claims_json(outcome: ClaimResults) -> list[dict[str, Any]]:
    """Return the table of claims in JSON types, with the numbers."""
    return [
        {**dict(zip(COLUMNS, row, strict=True)), "value": ours.value}
        for row, (_, ours) in zip(outcome.rows(), outcome.measured, strict=True)
    ]
