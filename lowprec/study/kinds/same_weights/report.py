"""What a study of the same weights found: on screen, as a document, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...._files import to_csv
from ...report.document import Bullets, Document, Figure, Heading, Part, Table
from ...report.parts import finding_sentence, number
from ...report.sheet import write_figures
from ..kind import Report
from ..measuring import show_table
from ..written import as_json, expected_parts, last_parts, made_of, show_sentences, written
from .figures import figures
from .study import METRICS
from .summary import WeightsSummary, summarize

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


def document(summary: WeightsSummary, folder: Path, figures: Sequence[tuple[str, str]]) -> Document:
    """Return the report: figures are pairs of title and stem."""
    study = summary.study
    parts: list[Part] = []
    if summary.broken:
        parts.append(Bullets(tuple(summary.broken), warning=True))
    parts += [Figure(title, stem) for title, stem in figures[:1]]
    parts += expected_parts(study, summary.findings)
    parts += [Heading("Measured"), table(summary)]
    parts += [Figure(title, stem) for title, stem in figures[1:]]
    parts += last_parts(study, summary.about, summary.recipes)
    return Document(study.name, study.question, study.tier, tuple(parts), made_of(summary.about), folder)


def table_csv(summary: WeightsSummary) -> str:
    """Return mean, spread and half of the 90 % interval of every metric as CSV, floats exact."""
    rows = [
        (arm.name, arm.role, arm.recipe_name, stress, metric,
         *(of(metric, arm.name, stress) for of in (summary.mean, summary.sd, summary.half)),
         len(summary.values[arm.name, stress]))
        for arm in summary.study.arms
        for stress in summary.stresses
        for metric in METRICS
    ]  # fmt: skip
    return to_csv(("arm", "role", "recipe", "stress", "metric", "mean", "sd", "half_interval", "batches"), rows)


def outcome(summary: WeightsSummary) -> dict[str, Any]:
    """Return the whole outcome in JSON's types; what is not finite becomes "nan" or "inf"."""
    study = summary.study
    arms = [
        {
            "arm": arm.name, "role": arm.role, "recipe": arm.recipe_name, "stress": stress,
            "expected": arm.expected, "source": arm.source, "batches": len(summary.values[arm.name, stress]),
            **{metric: summary.mean(metric, arm.name, stress) for metric in METRICS},
        }
        for arm in study.arms
        for stress in summary.stresses
    ]  # fmt: skip
    data = summary.about["fingerprint"]["data"]
    return as_json(summary, data_sha256=data, trustworthy=not summary.broken, reference=study.reference.name, arms=arms)


def report(folder: Path, plot: bool) -> Report:
    """Write everything about a finished study into its folder."""
    summary = summarize(folder)
    drawn, files = write_figures(figures(summary), folder, plot)
    found = document(summary, folder, [(figure.title, figure.stem) for figure in drawn])
    return written(summary, found, table_csv, outcome(summary), show, files, summary.broken)


def show(summary: WeightsSummary, console: Any) -> None:
    """Print the table and what became of the expectations."""
    found = table(summary)
    show_table(console, found.head, found.rows, summary.study.question, summary.size, right=found.head[1:])
    show_sentences(console, sentences(summary))
