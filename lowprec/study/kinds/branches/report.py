"""What branches found: tables and sentences, on screen, as a document, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...._files import plain, to_csv, write_json, write_text
from ...analysis.inference import infer
from ...analysis.statistics import Paired
from ...analysis.validity import VOID, said
from ...report.document import Bullets, Document, Figure, Heading, Part, Table, Text, markdown
from ...report.parts import environment, expected_table, finding_sentence, interval, percent, recipe_details
from ..kind import Report
from .cost_figure import costs, note
from .measured import ArmSummary
from .sentences import sentence
from .summary import StudySummary, summarize

COLUMNS = (
    "arm", "recipe", "pairs", "mean %", "SD %", "90 % interval", "BF16 eval %", "max train error %", "p (Holm)",
    "verdict",
)  # fmt: skip
_COLORS = {"equivalent": "green", "bit-identical": "green", "worse": "red", "NOT bit-identical": "red", VOID: "red"}


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
            "" if math.isnan(item.p_holm) else f"{item.p_holm:.2g}",
            verdict(item),
        )
        for item in study.arms
    ]


def verdict(item: ArmSummary) -> str:
    """Return the verdict of an arm with what must not be missed: a divergence, or a mean no larger than the floor."""
    if item.void:
        return item.word
    if item.own.diverged:
        return f"{item.verdict} (diverged)"
    return f"{item.verdict} (at the floor)" if item.at_floor and item.arm.role == "treatment" else item.verdict


def sentences(study: StudySummary) -> list[str]:
    """Return the verdicts, one sentence per arm, and what could not be trusted first."""
    found = (finding_sentence(item) for item in study.findings)
    return [*study.broken, *(sentence(study, item) for item in study.arms), *found]


def expectations(study: StudySummary) -> list[tuple[str, str, str, str]]:
    """Return arm, what was expected, its source and what was found, for arms with an expectation."""
    return [
        (item.arm.name, item.arm.expected, item.arm.source, _found(item)) for item in study.arms if item.arm.expected
    ]


def _found(item: ArmSummary) -> str:
    if item.arm.role == "repeat":
        return item.word
    if item.arm.role == "floor":
        return f"{percent(item.own.mean)} %, SD {percent(item.own.sd, sign=False)} %"
    return f"{item.word} ({percent(item.own.mean)} %)" if not item.own.diverged else f"{item.word} (diverged)"


def document(study: StudySummary, folder: Path = Path(), figures: Sequence[tuple[str, str]] = ()) -> Document:
    """Return the report; figures are pairs of title and stem."""
    ablation = study.ablation
    losses = [run.loss for run in study.reference]
    parts: list[Part] = []
    if study.broken:
        parts.append(Bullets(tuple(study.broken), warning=True))
    parts += [Figure(title, stem) for title, stem in figures[:1]]
    parts.append(Bullets(tuple(sentence(study, item) for item in study.arms)))
    caption = (
        f"Measured with: {study.size}. "
        f"r = (L - L_{ablation.reference.name}) / L_{ablation.reference.name} of the validation loss, paired by "
        f"checkpoint and data; {ablation.reference.name} ended between {min(losses):.4f} and {max(losses):.4f} nats a "
        "byte. mean, SD and interval (Student's t): validation in the arm's own precision; BF16 eval: the same weights "
        "evaluated in BF16; max train error: the largest difference of the smoothed (EMA 0.9) training losses. "
        f"Equivalent: the 90 % interval lies inside ±{100 * ablation.margin:g} % (two one-sided tests); worse: the "
        "95 % interval excludes 0, or a run diverged; otherwise not resolved. Intervals and verdicts are for the mean "
        f"over these {study.setting.checkpoints} checkpoints (spread within checkpoints); summary.json has those over "
        "other checkpoints, too. p: that there is no difference, adjusted by Holm over treatments and controls. "
        "Effects of larger models or longer training are out of reach."
    )
    parts.append(Table(COLUMNS, tuple(rows(study)), caption))
    parts += [Figure(title, stem) for title, stem in figures[1:]]
    if unseen := note(study):
        parts.append(Text(unseen))
    if ablation.notes:
        parts.append(Text(ablation.notes))
    parts.append(Heading("Expected and found"))
    if ablation.expected:
        parts.append(Text(f"Written down before: {ablation.expected} ({ablation.source})"))
    if study.findings:
        parts.append(expected_table(study.findings))
    parts.append(Table(("arm", "expected", "source", "found"), tuple(expectations(study))))
    if study.about:
        parts += [Heading("Recipes and environment"), *recipe_details(study.recipes), environment(study.about)]
    made_of = {key: study.about["fingerprint"].get(key) for key in ("code", "versions", "data")} if study.about else {}
    return Document(ablation.name, ablation.question, ablation.tier, tuple(parts), made_of, folder)


def table_csv(study: StudySummary) -> str:
    """Return all numbers of the table as CSV, floats exact."""
    if not study.arms:
        return to_csv(("arm", "role", "recipe"), [])
    names, more = list(_numbers(study.arms[0].own)), list(_more(study, study.arms[0]))
    head = ("arm", "role", "recipe", *names, *(f"bf16_eval_{name}" for name in names), *more, "verdict")
    rows = [
        (item.arm.name, item.arm.role, item.arm.recipe_name, *_numbers(item.own).values(),
         *_numbers(item.in_bf16).values(), *_more(study, item).values(), item.verdict)
        for item in study.arms
    ]  # fmt: skip
    return to_csv(head, rows)


def _numbers(own: Paired) -> dict[str, float]:
    here, over = own.here, own.over_checkpoints or infer(math.nan, math.nan, 0, own.margin)
    ends = dict(zip(("low", "high"), range(2), strict=True))
    return {
        "n": own.n, "checkpoints": own.checkpoints, "diverged": own.diverged, "mean": own.mean, "sd": own.sd,
        "error": here.error, "df": here.df,
        **{f"ci90_{end}": here.ci90[i] for end, i in ends.items()},
        **{f"ci95_{end}": here.ci95[i] for end, i in ends.items()},
        "p_difference": here.p_difference, "p_equivalence": here.p_equivalence,
        **{f"over_checkpoints_ci90_{end}": over.ci90[i] for end, i in ends.items()},
        **{f"over_checkpoints_ci95_{end}": over.ci95[i] for end, i in ends.items()},
        "p_checkpoints": own.p_checkpoints,
    }  # fmt: skip


def _more(study: StudySummary, item: ArmSummary) -> dict[str, float]:
    return {
        "bootstrap90_low": item.bootstrap90[0], "bootstrap90_high": item.bootstrap90[1], "p_holm": item.p_holm,
        "max_train_error": item.train_error, "floor": study.floor, "detectable_difference": item.power.detectable,
        "equivalence_power": item.power.equivalence, "pairs_needed": item.power.pairs,
        "max_violation": study.mean("max_violation", item.arm.name),
    }  # fmt: skip


def as_json(study: StudySummary) -> dict[str, Any]:
    """Return the whole outcome in JSON's types; what is not finite becomes "nan" or "inf"."""
    arms, spent = [], costs(study)
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
                "sentence": sentence(study, item),
                "expected": item.arm.expected,
                "source": item.arm.source,
                "own": _numbers(item.own),
                "bf16_eval": _numbers(item.in_bf16),
                "p_holm": item.p_holm,
                "bootstrap90": item.bootstrap90,
                "power": item.power,
                "at_floor": item.at_floor,
                "verdict_over_checkpoints": None
                if (over := item.own.over_checkpoints) is None
                else said(over.verdict, item.void),
                "max_train_error": item.train_error,
                "max_violation": study.mean("max_violation", item.arm.name),
                "bits": spent[item.arm.name],
                "tokens_per_second": _speed(study, item.runs),
                "pairs": pairs,
            }
        )
    reference = {
        "arm": study.ablation.reference.name,
        "losses": [run.loss for run in study.reference],
        "bits": spent[study.ablation.reference.name],
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
        "findings": [{"quantity": item.expectation.quantity, **vars(item)} for item in study.findings],
    }
    result: dict[str, Any] = plain(content)
    return result


def _speed(study: StudySummary, runs: Any) -> float:
    seconds = sorted(run.seconds_per_step for run in runs)
    middle = seconds[len(seconds) // 2]
    return study.tokens_per_step / middle if middle > 0 else float("nan")


def report(folder: Path, plot: bool) -> Report:
    """Write everything about a finished study into its folder: figures, `report.md`, `table.csv`, `summary.json`."""
    study = summarize(folder)
    figures: list[tuple[str, str]] = []
    files: list[Path] = []
    if plot:
        from . import cost_figure, curves, forest

        for suffix, draw, title in (
            ("", curves.draw, curves.title),
            ("_pairs", forest.draw, forest.title),
            ("_cost", cost_figure.draw, cost_figure.title),
        ):
            stem = folder / f"{study.ablation.name}{suffix}"
            files += (drawn := draw(study, stem))
            if stem.with_suffix(".svg") in drawn:
                figures.append((title(study), stem.name))
    found = document(study, folder, figures)
    files += write(study, folder, found)
    return Report(study, found, files, partial(show, study), partial(table_csv, study), study.damaged)


def write(study: StudySummary, folder: Path, found: Document | None = None) -> list[Path]:
    """Write `report.md`, `table.csv` and `summary.json`.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / "report.md", folder / "table.csv", folder / "summary.json"]
    write_text(files[0], markdown(found or document(study, folder)))
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
    keep = [i for i, name in enumerate(COLUMNS) if name not in ("recipe", "p (Holm)")]
    for i in keep:
        table.add_column(COLUMNS[i], justify="left" if COLUMNS[i] in ("arm", "verdict") else "right", overflow="fold")
    for row in rows(study):
        color = _COLORS.get(row[-1].partition(" (")[0], "yellow")
        cells = [escape(row[i]) for i in keep]
        table.add_row(*cells[:-1], f"[{color}]{cells[-1]}[/]")
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(table)
    for line in sentences(study):
        console.print(f"• {line}", markup=False, highlight=False, soft_wrap=not console.is_terminal)
