"""What a study of the same weights found: tables and numbers of its report."""

from __future__ import annotations

import math
from pathlib import Path

from ...report.parts import Table, finding_sentence, number, warning
from ...report.results import Results, expected_blocks, last_blocks, made_of, summary_json
from ...report.sheet import csv_of
from .figures import by_arm, by_cost, by_layer
from .study import METRICS
from .summary import WeightsSummary

#: Metrics of the table, and how a number of each is written.
SHOWN = {
    "kl_percent": "KL, % of loss", "gradient_error": "gradient error", "token_error_median": "token error, median",
    "token_error_p99": "token error, p99", "routing_flips": "routing flips %", "flushed": "flushed %",
    "saturated": "saturated %", "tokens_flushed": "tokens flushed %",
}  # fmt: skip
_PERCENT = ("routing_flips", "flushed", "saturated", "tokens_flushed")


def cell(summary: WeightsSummary, metric: str, arm: str, stress: str) -> str:
    """Return a metric's mean with half the width of its 90 % interval."""
    scale = 100.0 if metric in _PERCENT else 1.0
    mean, half = (scale * of(metric, arm, stress) for of in (summary.mean, summary.half))
    return number(mean) if math.isnan(half) or half == 0 else f"{number(mean)} ± {half:.1g}"


def metrics_shown(summary: WeightsSummary) -> list[str]:
    """Return the metrics that differ from 0 somewhere; a column of zeros says nothing."""
    keys = [(arm, stress) for arm in summary.shown for stress in summary.stresses]
    return [name for name in SHOWN if any(summary.mean(name, *key) not in (0.0,) for key in keys)]


def table(summary: WeightsSummary) -> Table:
    """Return the table of arms and metrics, one block per condition."""
    metrics, several = metrics_shown(summary), len(summary.stresses) > 1
    head = ("arm", *(["condition"] if several else []), *(SHOWN[name] for name in metrics))
    rows = tuple(
        (arm, *([stress] if several else []), *(cell(summary, metric, arm, stress) for metric in metrics))
        for stress in summary.stresses
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


def sentences(summary: WeightsSummary) -> list[str]:
    """Return what was found, most important first."""
    lines = list(summary.broken)
    lines += [finding_sentence(item) for item in summary.findings]
    same = [arm.name for arm in summary.study.arms if arm.role == "repeat"]
    if same and not summary.broken:
        lines.append(f"{', '.join(same)} (A/A): every metric of every layer bit-identical.")
    return lines


def results(summary: WeightsSummary, folder: Path) -> Results:
    """Return the report of a finished study."""
    study, found = summary.study, table(summary)
    rows = [
        {"arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "stress": stress, "metric": metric,
         "mean": summary.mean(metric, arm.name, stress), "sd": summary.sd(metric, arm.name, stress),
         "half_interval": summary.half(metric, arm.name, stress), "batches": len(summary.values[arm.name, stress])}
        for arm in study.arms
        for stress in summary.stresses
        for metric in METRICS
    ]  # fmt: skip
    arms = [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "stress": stress,
            "expected": arm.expected, "source": arm.source, "batches": len(summary.values[arm.name, stress]),
            **{metric: summary.mean(metric, arm.name, stress) for metric in METRICS},
        }
        for arm in study.arms
        for stress in summary.stresses
    ]  # fmt: skip
    json = summary_json(
        summary, data_sha256=summary.about["fingerprint"]["data"], trustworthy=not summary.broken,
        reference=study.reference.name, arms=arms,
    )  # fmt: skip
    body = [
        warning(summary.broken), by_arm(summary), *expected_blocks(study, summary.findings), "## Measured", found,
        by_layer(summary), by_cost(summary), *last_blocks(study, summary.about, summary.recipes),
    ]  # fmt: skip
    shown = Table(found.head, found.rows, summary.size, study.question)
    return Results(study, folder, summary, body, {"table.csv": csv_of(rows)}, json, made_of(summary.about), [shown],
                   sentences(summary), summary.broken)  # fmt: skip
