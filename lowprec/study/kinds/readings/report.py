"""What a study of readings found: tables and numbers of its report."""

from __future__ import annotations

import math
from pathlib import Path

from ...report.parts import Table, finding_sentence, number, warning
from ...report.results import Block, Results, expected_blocks, last_blocks, made_of, summary_json
from ...report.sheet import csv_of
from .figures import figures
from .summary import EVERYWHERE, ReadingSummary


def cell(summary: ReadingSummary, metric: str, arm: str, place: str = EVERYWHERE) -> str:
    """Return a mean with half the width of its 90 % interval."""
    mean, half = summary.mean(metric, arm, place), summary.half(metric, arm, place)
    return number(mean) if math.isnan(half) or half == 0 else f"{number(mean)} ± {half:.1g}"


def overview(summary: ReadingSummary) -> Table:
    """Return the table of arms and metrics over all places."""
    metrics = [*summary.study.reading.metrics]
    rows = tuple((arm, *(cell(summary, metric, arm) for metric in metrics)) for arm in summary.shown)
    words = "; ".join(f"{name}: {text}" for name, text in summary.study.reading.metrics.items())
    caption = f"{summary.size}. Means over everything measured, ± half of a 90 % interval. {words}."
    return Table(("arm", *(metric.replace("_", " ") for metric in metrics)), rows, caption)


def by_place(summary: ReadingSummary, metric: str) -> Table:
    """Return the table of one metric: places and arms."""
    head = (summary.study.reading.axis, *summary.shown)
    rows = tuple((place, *(cell(summary, metric, arm, place) for arm in summary.shown)) for place in summary.places)
    return Table(head, rows, summary.study.reading.metrics[metric])


def sentences(summary: ReadingSummary) -> list[str]:
    """Return what was found, most important first."""
    lines = [*summary.broken, *(finding_sentence(item) for item in summary.findings)]
    same = [arm.name for arm in summary.study.arms if arm.role == "repeat"]
    if same and not summary.broken:
        lines.append(f"{', '.join(same)} (A/A): every number bit-identical.")
    return lines


def results(summary: ReadingSummary, folder: Path) -> Results:
    """Return the report of a finished study."""
    study, found = summary.study, overview(summary)
    rows = [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "place": place, "metric": metric,
            "mean": summary.mean(metric, arm.name, place), "half90": summary.half(metric, arm.name, place),
            "count": len(summary.of(metric, arm.name, place)),
        }
        for arm in study.arms
        for place in (EVERYWHERE, *summary.places)
        for metric in study.reading.metrics
    ]  # fmt: skip
    body: list[Block] = [warning(summary.broken), *figures(summary), *expected_blocks(study, summary.findings)]
    body += ["## Measured", found]
    if len(summary.places) > 1:
        for metric in study.reading.panels:
            words = metric.replace("_", " ").capitalize()
            body += [f"## {words} by {study.reading.axis}", by_place(summary, metric)]
    body += last_blocks(study, summary.about, summary.recipes)
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], trustworthy=not summary.broken,
        reference=study.reference.name, readings=rows,
    )  # fmt: skip
    shown = Table(found.head, found.rows, summary.size, study.question)
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), [shown],
                   sentences(summary), summary.broken)  # fmt: skip
