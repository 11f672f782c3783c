"""Tables and sentences of a finished study: on screen, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .statistics import Paired
from .store import plain, write_json, write_text
from .summary import ArmSummary, StudySummary, interval, percent

COLUMNS = ("arm", "recipe", "pairs", "mean %", "SD %", "90 % interval", "BF16 eval %", "max train error %", "verdict")
_COLORS = {
    "equivalent": "green", "bit-identical": "green", "worse": "red", "diverged": "red", "NOT bit-identical": "red",
}  # fmt: skip


def rows(study: StudySummary) -> list[tuple[str, ...]]:
    """Return the table, one row per arm but the reference.

    Parameters
    ----------
    study : StudySummary
        The study.

    Returns
    -------
    list of tuple of str
        Cells in the order of `COLUMNS`.
    """
    return [
        (
            item.arm.name,
            item.arm.recipe_name,
            str(item.own.n),
            percent(item.own.mean),
            percent(item.own.sd, sign=False),
            interval(item.own.ci90),
            percent(item.in_bf16.mean),
            percent(item.train_error, sign=False),
            item.verdict,
        )
        for item in study.arms
    ]


def sentences(study: StudySummary) -> list[str]:
    """Return the verdicts, one sentence per arm, and what could not be trusted first."""
    return [*study.broken, *(study.sentence(item) for item in study.arms)]


def expectations(study: StudySummary) -> list[tuple[str, str, str, str]]:
    """Return arm, what was expected, its source and what was found, for arms with an expectation."""
    return [
        (item.arm.name, item.arm.expected, item.arm.source, _found(item)) for item in study.arms if item.arm.expected
    ]


def _found(item: ArmSummary) -> str:
    if item.arm.role == "repeat":
        return item.verdict
    if item.arm.role == "floor":
        return f"SD {percent(item.own.sd, sign=False)} %"
    return f"{item.verdict} ({percent(item.own.mean)} %)" if not item.own.diverged else item.verdict


def markdown(study: StudySummary, figure: str | None = None) -> str:
    """Return the report as Markdown.

    Parameters
    ----------
    study : StudySummary
        The study.
    figure : str, optional
        Name of the figure's PNG, relative to the report.
    """
    ablation = study.ablation
    losses = [run.loss for run in study.reference]
    lines = [f"# {ablation.name}", "", ablation.question, ""]
    if figure:
        lines += [f"![Loss and its relative difference to {ablation.reference.name}]({figure})", ""]
    lines += [*(f"- {sentence}" for sentence in sentences(study)), ""]
    lines += _table(COLUMNS, rows(study))
    lines += [
        "",
        f"Measured with: {study.size}. "
        f"r = (L - L_{ablation.reference.name}) / L_{ablation.reference.name} of the validation loss, paired by "
        f"checkpoint and data; {ablation.reference.name} ended between {min(losses):.4f} and {max(losses):.4f} nats a "
        "byte. mean, SD and interval (Student's t): validation in the arm's own precision; BF16 eval: the same weights "
        "evaluated in BF16; max train error: the largest difference of the smoothed (EMA 0.9) training losses. "
        f"Equivalent: the 90 % interval lies inside ±{100 * ablation.margin:g} % (two one-sided tests); worse: the "
        "95 % interval excludes 0; otherwise not resolved. Pairs of one checkpoint are not independent of it, and "
        "effects of larger models or longer training are out of reach.",
        "",
        *([ablation.notes, ""] if ablation.notes else []),
        "## Expected and found",
        "",
    ]
    if ablation.expected:
        lines += [f"Written down before: {ablation.expected} ({ablation.source})", ""]
    lines += _table(("arm", "expected", "source", "found"), expectations(study))
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in body]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in escaped),
    ]


def table_csv(study: StudySummary) -> str:
    """Return all numbers of the table as CSV, floats exact."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [
        "n",
        "diverged",
        "mean",
        "sd",
        "ci90_low",
        "ci90_high",
        "ci95_low",
        "ci95_high",
        "p_difference",
        "p_equivalence",
    ]
    head = ["arm", "role", "recipe", *names, *(f"bf16_eval_{name}" for name in names)]
    writer.writerow([*head, "p_holm", "max_train_error", "floor", "verdict"])
    for item in study.arms:
        about = (item.arm.name, item.arm.role, item.arm.recipe_name)
        rest = (item.p_holm, item.train_error, study.floor)
        writer.writerow([*about, *_numbers(item.own), *_numbers(item.in_bf16), *map(repr, rest), item.verdict])
    return text.getvalue()


def _numbers(own: Paired) -> list[str]:
    values = [own.n, own.diverged, own.mean, own.sd, *own.ci90, *own.ci95, own.p_difference, own.p_equivalence]
    return [repr(value) for value in values]


def as_json(study: StudySummary) -> dict[str, Any]:
    """Return the whole outcome in JSON's types; what is not finite becomes "nan" or "inf"."""
    arms = []
    for item in study.arms:
        pairs = [
            {
                "checkpoint": run.checkpoint,
                "seed": run.seed,
                "loss": run.loss,
                "loss_bf16": run.loss_bf16,
                "r": float(r),
            }
            for run, r in zip(item.runs, item.differences, strict=True)
        ]
        arms.append(
            {
                "arm": item.arm.name,
                "role": item.arm.role,
                "recipe": item.arm.recipe_name,
                "verdict": item.verdict,
                "sentence": study.sentence(item),
                "expected": item.arm.expected,
                "source": item.arm.source,
                "own": item.own,
                "bf16_eval": item.in_bf16,
                "p_holm": item.p_holm,
                "max_train_error": item.train_error,
                "tokens_per_second": _speed(study, item.runs),
                "pairs": pairs,
            }
        )
    reference = {
        "arm": study.ablation.reference.name,
        "losses": [run.loss for run in study.reference],
        "tokens_per_second": _speed(study, study.reference),
    }
    content = {
        "ablation": study.ablation.name,
        "question": study.ablation.question,
        "setting": study.setting,
        "size": study.size,
        "margin": study.ablation.margin,
        "floor": study.floor,
        "data_sha256": study.data,
        "trustworthy": not study.broken,
        "reference": reference,
        "arms": arms,
    }
    result: dict[str, Any] = plain(content)
    return result


def _speed(study: StudySummary, runs: Any) -> float:
    seconds = sorted(run.seconds_per_step for run in runs)
    middle = seconds[len(seconds) // 2]
    return study.tokens_per_step / middle if middle > 0 else float("nan")


def write(study: StudySummary, folder: Path, figure: str | None = None) -> list[Path]:
    """Write `report.md`, `table.csv` and `summary.json`.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / "report.md", folder / "table.csv", folder / "summary.json"]
    write_text(files[0], markdown(study, figure))
    write_text(files[1], table_csv(study))
    write_json(files[2], as_json(study))
    return files


def show(study: StudySummary, console: Any) -> None:
    """Print the table and the sentences.

    Parameters
    ----------
    study : StudySummary
        The study.
    console : rich.console.Console
        Where to.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=study.ablation.question, title_justify="left", title_style="bold", caption=study.size,
                  caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    # Next to the arm's name, the recipe is left to the files: the table fits a narrow screen without it.
    keep = [i for i, name in enumerate(COLUMNS) if name != "recipe"]
    for i in keep:
        table.add_column(COLUMNS[i], justify="left" if COLUMNS[i] in ("arm", "verdict") else "right", overflow="fold")
    for row in rows(study):
        color = _COLORS.get(row[-1], "yellow")
        cells = [escape(row[i]) for i in keep]
        table.add_row(*cells[:-1], f"[{color}]{cells[-1]}[/]")
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)
    for sentence in sentences(study):
        console.print(f"• {sentence}", markup=False, highlight=False, soft_wrap=not console.is_terminal)
