"""Expectations beside what was found, as a table of any report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..design.expectations import Finding, span
from .document import Table

EXPECTED_COLUMNS = ("expected", "quantity", "expected range", "published range", "found", "which happened")


def number(value: float) -> str:
    """Return a number with three significant digits.

    Examples
    --------
    >>> number(0.09743), number(12345.6), number(float("nan")), number(0.0), number(2.5e-7)
    ('0.0974', '12300', 'n/a', '0', '2.5e-07')
    """
    if math.isnan(value):
        return "n/a"
    return f"{float(f'{value:.3g}'):.10g}"


def expected_table(findings: Sequence[Finding]) -> Table:
    """Return expectations beside findings; the last column is computed."""
    rows = tuple(
        (
            item.expectation.words, item.expectation.quantity, span(item.expectation.expected),
            span(item.expectation.published), number(item.value), item.outcome,
        )
        for item in findings
    )  # fmt: skip
    return Table(EXPECTED_COLUMNS, rows)


def finding_sentence(item: Finding) -> str:
    """Return what was expected, found, and which of the two happened."""
    return f"{item.expectation.words}: {item.expectation.quantity} is {number(item.value)}, {item.outcome}."
