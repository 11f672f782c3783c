"""Report of a measurement study: tables and numbers."""

from __future__ import annotations

import math
from pathlib import Path

from ..report.parts import Table, finding_sentence, number, warning
from ..report.results import Block, Results, expected_blocks, last_blocks, made_of, summary_json
from ..report.sheet import csv_of
from .figures import by_arm, by_condition, by_cost, by_layer
from .results import Samples

#: Metrics of the table, with the format of their numbers.
SHOWN = {
    "kl_percent": "KL, % of loss", "gradient_error": "gradient error", "token_error_median": "token error, median",
    "token_error_p99": "token error, p99", "routing_flips": "routing flips %", "flushed": "flushed %",
    "saturated": "saturated %", "tokens_flushed": "tokens flushed %",
}  # fmt: skip
_PERCENT = ("routing_flips", "flushed", "saturated", "tokens_flushed")


def _cell(mean: float, half: float) -> str:
    """Format a mean with half the width of its 90 % interval."""
    return number(mean) if math.isnan(half) or half == 0 else f"{number(mean)} ± {half:.1g}"


def cell(summary: Samples, metric: str, arm: str, condition: str = "") -> str:
    """Format a metric's mean with half the width of its 90 % interval."""
    return _cell(summary.mean(metric, arm, condition), summary.half(metric, arm, condition))


def scaled_cell(summary: Samples, metric: str, arm: str, stress: str) -> str:
    """Format a metric's mean, in the metric's unit, with half the width of its 90 % interval."""
    scale = 100.0 if metric in _PERCENT else 1.0
    return _cell(scale * summary.mean(metric, arm, stress), scale * summary.half(metric, arm, stress))


def metrics_shown(summary: Samples) -> list[str]:
    """Return the metrics that are not 0 everywhere."""
    keys = [(arm, stress) for arm in summary.shown for stress in summary.conditions]
    return [name for name in SHOWN if any(summary.mean(name, *key) not in (0.0,) for key in keys)]


def table(summary: Samples) -> Table:
    """Return the table of metrics by arm, one block per condition."""
    metrics, several = metrics_shown(summary), len(summary.conditions) > 1
    head = ("arm", *(["condition"] if several else []), *(SHOWN[name] for name in metrics))
    rows = tuple(
        (arm, *([stress] if several else []), *(scaled_cell(summary, metric, arm, stress) for metric in metrics))
        for stress in summary.conditions
        for arm in summary.shown
    )
    reference = summary.study.reference
    caption = (
        f"Against {reference.name} ({reference.recipe_name}). {summary.size}. Means over batches ± half of a 90 % "
        "interval, for which checkpoints and batches are samples. Gradient error: |g - g_ref| / |g_ref| over all "
        "linear layers; token error: the same of each token's dx; flushed, saturated: shares of non-zero values in "
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


def results(summary: Samples, folder: Path) -> Results:
    """Return the report of a finished study."""
    return _comparison(summary, folder) if summary.study.measurement.layer_metrics else _measurements(summary, folder)


def _comparison(summary: Samples, folder: Path) -> Results:
    """Return the report of a measurement with layer metrics."""
    study, found = summary.study, table(summary)
    rows = [
        {"arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "stress": stress, "metric": metric,
         "mean": summary.mean(metric, arm.name, stress), "sd": summary.sd(metric, arm.name, stress),
         "half_interval": summary.half(metric, arm.name, stress),
         "batches": len(summary.column(metric, arm.name, stress))}
        for arm in study.arms
        for stress in summary.conditions
        for metric in summary.study.metrics
    ]  # fmt: skip
    arms = [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "stress": stress,
            "expected": arm.expected, "source": arm.source,
            "batches": len(summary.column(study.first, arm.name, stress)),
            **{metric: summary.mean(metric, arm.name, stress) for metric in summary.study.metrics},
        }
        for arm in study.arms
        for stress in summary.conditions
    ]  # fmt: skip
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], trustworthy=not summary.invalid_reasons,
        reference=study.reference.name, arms=arms,
    )  # fmt: skip
    body = [
        warning(summary.invalid_reasons), by_arm(summary), *expected_blocks(study, summary.findings), "## Measured",
        found, by_layer(summary), by_cost(summary), *last_blocks(study, summary.about, summary.recipes),
    ]  # fmt: skip
    shown = Table(found.head, found.rows, summary.size, study.question)
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), [shown],
                   sentences(summary), summary.invalid_reasons)  # fmt: skip


# --- measurements without layers -------------------------------------------------------------------------------------


def overview(summary: Samples) -> Table:
    """Return the table of metrics by arm, over all conditions."""
    metrics = [*summary.study.measurement.metrics]
    rows = tuple((arm, *(cell(summary, metric, arm) for metric in metrics)) for arm in summary.shown)
    words = "; ".join(f"{name}: {text}" for name, text in summary.study.measurement.metrics.items())
    caption = f"{summary.size}. Means over everything measured, ± half of a 90 % interval. {words}."
    return Table(("arm", *(metric.replace("_", " ") for metric in metrics)), rows, caption)


def by_place(summary: Samples, metric: str) -> Table:
    """Return the table of one metric by condition and arm."""
    head = (summary.study.measurement.axis, *summary.shown)
    rows = tuple((place, *(cell(summary, metric, arm, place) for arm in summary.shown)) for place in summary.conditions)
    return Table(head, rows, summary.study.measurement.metrics[metric])


def _measurements(summary: Samples, folder: Path) -> Results:
    """Return the report of a measurement without layer metrics."""
    study, found = summary.study, overview(summary)
    rows = [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "place": place, "metric": metric,
            "mean": summary.mean(metric, arm.name, place), "half90": summary.half(metric, arm.name, place),
            "count": len(summary.of(metric, arm.name, place)),
        }
        for arm in study.arms
        for place in ("", *summary.conditions)
        for metric in study.measurement.metrics
    ]  # fmt: skip
    body: list[Block] = [
        warning(summary.invalid_reasons),
        *by_condition(summary),
        *expected_blocks(study, summary.findings),
    ]
    body += ["## Measured", found]
    if len(summary.conditions) > 1:
        for metric in study.measurement.panels:
            words = metric.replace("_", " ").capitalize()
            body += [f"## {words} by {study.measurement.axis}", by_place(summary, metric)]
    body += last_blocks(study, summary.about, summary.recipes)
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], trustworthy=not summary.invalid_reasons,
        reference=study.reference.name, readings=rows,
    )  # fmt: skip
    shown = Table(found.head, found.rows, summary.size, study.question)
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), [shown],
                   sentences(summary), summary.invalid_reasons)  # fmt: skip
