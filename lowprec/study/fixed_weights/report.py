"""Report of a measurement study: tables and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from ..report.parts import Table, finding_sentence, number, warning
from ..report.results import Block, Results, expected_blocks, last_blocks, made_of, summary_json
from ..report.sheet import Figure, csv_of
from .figures import by_arm, by_condition, by_cost, by_layer
from .results import Samples

#: Metrics of the table, with the format of their numbers.
SHOWN = {
    "kl_percent": "KL, % of loss", "gradient_error": "gradient error", "token_error_median": "token error, median",
    "token_error_p99": "token error, p99", "routing_flips": "routing flips %", "flushed": "flushed %",
    "saturated": "saturated %", "tokens_flushed": "tokens flushed %",
}  # fmt: skip
_PERCENT = ("routing_flips", "flushed", "saturated", "tokens_flushed")


def cell(summary: Samples, metric: str, arm: str, condition: str = "", scale: float = 1.0) -> str:
    """Format a metric's mean with half the width of its 90 % interval, both multiplied by `scale`."""
    mean, half = (scale * value(metric, arm, condition) for value in (summary.mean, summary.half))
    return number(mean) if math.isnan(half) or half == 0 else f"{number(mean)} ± {half:.1g}"


def metrics_shown(summary: Samples) -> list[str]:
    """Return the metrics that are not 0 everywhere."""
    keys = [(arm, condition) for arm in summary.shown for condition in summary.conditions]
    return [name for name in SHOWN if any(summary.mean(name, *key) not in (0.0,) for key in keys)]


def table(summary: Samples) -> Table:
    """Return the table of metrics by arm, one block per condition."""
    metrics, several = metrics_shown(summary), len(summary.conditions) > 1
    head = ("arm", *(["condition"] if several else []), *(SHOWN[name] for name in metrics))
    rows = tuple(
        (arm, *([condition] if several else []),
         *(cell(summary, metric, arm, condition, 100.0 if metric in _PERCENT else 1.0) for metric in metrics))
        for condition in summary.conditions
        for arm in summary.shown
    )  # fmt: skip
    reference = summary.study.reference
    caption = (
        f"Against {reference.name} ({reference.recipe_name}). {summary.size}. Means over batches ± half of a 90 % "
        "interval, for which checkpoints and batches are samples. Gradient error: |g - g_ref| / |g_ref| over all "
        "linear layers; token error: that of each token's dx; flushed, saturated: shares of non-zero values in "
        "quantized operands."
    )
    return Table(head, rows, caption)


def sentences(summary: Samples) -> list[str]:
    """Return the findings as sentences, most important first."""
    lines = [*summary.invalid_reasons, *(finding_sentence(item) for item in summary.findings)]
    same = [arm.name for arm in summary.study.arms_of("repeat")]
    if same and not summary.invalid_reasons:
        every = "metric of every layer" if summary.study.measurement.layer_metrics else "number"
        lines.append(f"{', '.join(same)} (A/A): every {every} bit-identical.")
    return lines


def overview(summary: Samples) -> Table:
    """Return the table of metrics by arm, over all conditions."""
    metrics = [*summary.study.measurement.metrics]
    rows = tuple((arm, *(cell(summary, metric, arm) for metric in metrics)) for arm in summary.shown)
    words = "; ".join(f"{name}: {text}" for name, text in summary.study.measurement.metrics.items())
    caption = f"{summary.size}. Means over everything measured, ± half of a 90 % interval. {words}."
    return Table(("arm", *(metric.replace("_", " ") for metric in metrics)), rows, caption)


def conditions_in_full(summary: Samples) -> Iterator[Block]:
    """Yield a heading and a table by condition and arm for each drawn metric; nothing if there is one condition."""
    measurement = summary.study.measurement
    for metric in measurement.panels if len(summary.conditions) > 1 else ():
        rows = tuple(
            (condition, *(cell(summary, metric, arm, condition) for arm in summary.shown))
            for condition in summary.conditions
        )
        yield f"## {metric.replace('_', ' ').capitalize()} by {measurement.axis}"
        yield Table((measurement.axis, *summary.shown), rows, measurement.metrics[metric])


def results(summary: Samples, folder: Path) -> Results:
    """Return the report of a finished study; rows of its `table.csv` are means by arm, condition and metric."""
    study, measurement = summary.study, summary.study.measurement
    rows = [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "condition": condition, "metric": metric,
            "mean": summary.mean(metric, arm.name, condition), "sd": summary.sd(metric, arm.name, condition),
            "half90": summary.half(metric, arm.name, condition), "count": len(summary.of(metric, arm.name, condition)),
        }
        for arm in study.arms
        for condition in (*([] if measurement.first_alone else [""]), *summary.conditions)
        for metric in study.metrics
    ]  # fmt: skip
    first: list[Figure]
    more: list[Block]
    if measurement.layer_metrics:
        found, first, more = table(summary), [by_arm(summary)], [by_layer(summary), by_cost(summary)]
    else:
        found, first, more = overview(summary), by_condition(summary), [*conditions_in_full(summary)]
    body: list[Block] = [
        warning(summary.invalid_reasons), *first, *expected_blocks(study, summary.findings), "## Measured", found,
        *more, *last_blocks(study, summary.about, summary.recipes),
    ]  # fmt: skip
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], trustworthy=not summary.invalid_reasons,
        reference=study.reference.name, measured=rows,
    )  # fmt: skip
    shown = Table(found.head, found.rows, summary.size, study.question)
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), [shown],
                   sentences(summary), summary.invalid_reasons)  # fmt: skip
