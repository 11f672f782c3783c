"""Tidy tables as text: what every figure and report writes its numbers as."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def to_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Return rows as CSV, floats with every digit.

    Examples
    --------
    >>> to_csv(("arm", "mean"), [("a, b", 0.1 + 0.2), ("c", float("inf"))])
    'arm,mean\n"a, b",0.30000000000000004\nc,inf\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([[repr(float(cell)) if isinstance(cell, float) else cell for cell in row] for row in rows])
    return text.getvalue()
