"""What studies that train nothing have in common: a table of published claims, and what they were made with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..._files import to_csv
from ..design.expectations import Claim, Measured
from ..report.parts import Table
from ..run.fingerprint import code_hash, host, versions

COLUMNS = ("claim", "source", "published", "ours", "agrees", "command")


@dataclass(frozen=True, eq=False, kw_only=True)
class Claimed:
    """What a study found of published figures.

    Attributes
    ----------
    measured : tuple of (Claim, Measured)
        Each beside ours.
    command : str
        How the study was called.
    """

    measured: tuple[tuple[Claim, Measured], ...] = ()
    command: str = ""

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(ours.holds for _, ours in self.measured)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of claims: what, where it is published, published, ours, agreement, command."""
        return [
            (claim.claim, claim.source, claim.published, ours.words, "yes" if ours.holds else "NO", self.command)
            for claim, ours in self.measured
        ]


def claims_csv(outcome: Claimed) -> str:
    """Return the table of claims as CSV."""
    return to_csv(COLUMNS, outcome.rows())


def claims_table(outcome: Claimed, caption: str = "", title: str = "") -> Table:
    """Return the table of claims for a report: a source once, and the command, the same for all, elsewhere."""
    rows, above = [], ""
    for claim, source, *rest, _ in outcome.rows():
        rows.append((claim, "as above" if source == above else source, *rest))
        above = source
    return Table(COLUMNS[:-1], rows, caption, title)


def claims_json(outcome: Claimed) -> list[dict[str, Any]]:
    """Return the table of claims in JSON's types, with the numbers."""
    return [
        {**dict(zip(COLUMNS, row, strict=True)), "value": ours.value}
        for row, (_, ours) in zip(outcome.rows(), outcome.measured, strict=True)
    ]


def made_of() -> dict[str, Any]:
    """Return what all studies of one page must have in common."""
    return {"code": code_hash(), "versions": versions()}


def summary_json(content: Mapping[str, Any], began: float) -> dict[str, Any]:
    """Return an outcome for `summary.json`, with the CPU time since `began` and the host."""
    return {**content, "seconds": time.process_time() - began, "versions": versions(), "host": host()}
