"""Report of a branch study: tables, sentences and numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..analysis.findings import VOID
from ..analysis.paired import VERDICTS, Paired
from ..report.parts import (
    Table,
    bullets,
    environment,
    expected_table,
    finding_sentence,
    findings_json,
    interval,
    percent,
    plural,
    recipe_details,
    warning,
)
from ..report.results import Block, Results, made_of
from ..report.sheet import csv_of
from .arms import INSENSITIVE, ArmSummary
from .curves import curves
from .figures import cost, costs, forest, note
from .results import StudySummary
from .sentences import contrast_sentence, effect_cell, named, sentence, together_sentence
from .sizes import EFFECTS, LEAST_CHECKPOINTS

COLUMNS = (
    "arm", "recipe", "pairs", "forward %", "training %", "own training %", "total %", "SD %", "max train error %",
    "data %", "p (Holm)", "verdict",
)  # fmt: skip
CONTRAST_COLUMNS = (
    "arm", "against", "difference %", "90 % interval", "simultaneous 90 %", "95 % interval", "p (Holm)", "verdict",
)  # fmt: skip
#: Columns only written to files, so that the printed table fits a narrow screen.
FILES_ONLY = ("recipe", "p (Holm)", "own training %", "SD %")


def arms_table(study: StudySummary) -> Table:
    """Return the table, one row per arm except the reference."""
    rows = [
        (
            item.arm.name,
            item.arm.recipe_name,
            str(item.primary.n),
            *(effect_cell(item.effects[name]) for name in EFFECTS),
            percent(item.primary.sd, sign=False),
            percent(item.train_error, sign=False),
            "" if math.isnan(item.data_equivalent) else percent(item.data_equivalent, digits=1),
            "" if math.isnan(item.p_holm) else f"{item.p_holm:.2g}",
            verdict(item),
        )
        for item in study.arms
    ]
    return Table(COLUMNS, rows, caption(study))


def contrast_rows(study: StudySummary) -> list[tuple[str, ...]]:
    """Return the rows of arms relative to the baseline, with cells in the order of `CONTRAST_COLUMNS`."""
    found: list[tuple[str, ...]] = []
    for item in study.contrasts:
        word = "no difference shown"
        if item.found.resolved_difference:
            word = "worse" if item.found.mean > 0 else "better"
        word = "diverged" if item.found.diverged else word
        found.append(
            (item.arm, item.baseline, percent(item.found.mean), interval(item.found.ci90),
             interval(item.together90), interval(item.found.ci95),
             "" if math.isnan(item.p_holm) else f"{item.p_holm:.2g}", VOID if study.void else word)
        )  # fmt: skip
    return found


def verdict(item: ArmSummary) -> str:
    """Return the verdict of an arm, with a divergence or the position relative to the noise floor."""
    if item.void:
        return item.word
    if item.primary.diverged:
        return f"{item.verdict} (diverged)"
    shown = item.floor_position and item.arm.role == "treatment"
    return f"{item.verdict} ({item.floor_position})" if shown else item.verdict


def sentences(study: StudySummary) -> list[str]:
    """Return problems that affect trust in the study, then the verdicts, one sentence per arm."""
    found = (finding_sentence(item) for item in study.findings)
    return [
        *study.invalid_reasons, *(sentence(study, item) for item in study.arms), *against_baseline(study), *found
    ]  # fmt: skip


def against_baseline(study: StudySummary) -> list[str]:
    """Return the sentences on arms relative to the baseline: one per arm, and one on all of them."""
    found = [*(contrast_sentence(study, item) for item in study.contrasts), together_sentence(study)]
    return [line for line in found if line]


def expectations(study: StudySummary) -> list[tuple[str, str, str, str]]:
    """Return (arm, expected result, source, measured result) for arms with an expectation."""
    return [
        (item.arm.name, item.arm.expected, item.arm.source, _found(item)) for item in study.arms if item.arm.expected
    ]


def _found(item: ArmSummary) -> str:
    if item.arm.role == "repeat":
        return item.word
    if item.arm.role == "floor":
        return f"{percent(item.primary.mean)} %, SD {percent(item.primary.sd, sign=False)} %"
    return f"{item.word} ({percent(item.primary.mean)} %)" if not item.primary.diverged else f"{item.word} (diverged)"


def results(study: StudySummary, folder: Path = Path()) -> Results:
    """Return the report of a finished study."""
    ablation, table = study.ablation, arms_table(study)
    verdicts = bullets(sentence(study, item) for item in study.arms)
    body: list[Block] = [warning(study.invalid_reasons), curves(study), verdicts, table]
    if study.contrasts:
        body.append(bullets(against_baseline(study)))
        body.append(Table(CONTRAST_COLUMNS, contrast_rows(study), contrast_caption(study)))
    body += [forest(study), cost(study), note(study), ablation.notes, "## Expected and found"]
    if ablation.expected:
        body.append(f"Written down before: {ablation.expected} ({ablation.source})")
    if study.findings:
        body.append(expected_table(study.findings))
    body.append(Table(("arm", "expected", "source", "found"), expectations(study)))
    if study.about:
        body += ["## Recipes and environment", *recipe_details(study.recipes), environment(study.about)]
    keep = [i for i, name in enumerate(COLUMNS) if name not in FILES_ONLY]
    shown = Table(tuple(COLUMNS[i] for i in keep), [tuple(row[i] for i in keep) for row in table.rows], study.size,
                  ablation.question)  # fmt: skip
    rows = [arm_row(study, item) for item in study.arms]
    return Results(
        ablation, folder, study, body, {"table.csv": csv_of(rows)}, as_json(study), made_of(study.about), [shown],
        sentences(study), study.damaged,
    )  # fmt: skip


def caption(study: StudySummary) -> str:
    """Return the caption of the main table: meaning of its columns, and conditions of the measurement."""
    ablation, reference = study.ablation, study.ablation.reference.name
    losses = [run.loss for run in study.reference]
    worth = [item.data_exponent for item in study.arms if math.isfinite(item.data_exponent)]
    data = (
        f"data %: what the effect is worth, since here the loss goes as bytes to the power of {worth[0]:.2f}. "
    ) if worth else ""  # fmt: skip
    few = "" if study.setting.checkpoints >= LEAST_CHECKPOINTS else (
        f"{study.setting.checkpoints} checkpoints are few, which the wide intervals show. "
    )  # fmt: skip
    return (
        f"Measured with: {study.size}. With L[f](w) the validation loss of final weights w in the forward precision f, "
        f"paired by checkpoint and data: forward = L[arm](w_{reference}) / L[bf16](w_{reference}) - 1, rounding in the "
        f"forward pass of weights that {reference} trained; training = L[bf16](w_arm) / L[bf16](w_{reference}) - 1, "
        "what training did to the weights; own training, the same in the arm's forward precision; total = "
        f"L[arm](w_arm) / L[bf16](w_{reference}) - 1. {reference} ended between {min(losses):.4f} and "
        f"{max(losses):.4f} nats per byte. The verdict, SD, p and data % are on the {named(ablation.primary_effect)}. "
        "Brackets: 90 % intervals (Student's t) in which seeds, checkpoints and text are samples. max train error: the "
        f"largest difference of the smoothed (EMA 0.9) training losses. {data}{VERDICTS} Margin: "
        f"±{100 * ablation.margin:g} %. {few}{_assay(study)}Noise floor: {percent(study.floor, sign=False)} %, the "
        f"root mean square of a pair's difference where one weight is changed, and "
        f"{percent(study.mean_floor, sign=False)} % of a mean over {plural(study.setting.pairs, 'pair')}; an arm is at "
        "or above the floor if its whole interval is. p: of the hypothesis of no difference, adjusted by Holm over "
        "treatments and controls. Effects of larger models or longer training cannot be derived from this study."
    )


def contrast_caption(study: StudySummary) -> str:
    """Return the caption of the table of arms relative to the baseline."""
    return (
        f"Paired differences of the {named(study.ablation.primary_effect)} of two arms with the same checkpoints and "
        "seeds; p adjusted by Holm over this table. Simultaneous: all intervals of the column hold together with 90 % "
        "(Bonferroni)."
    )


def _assay(study: StudySummary) -> str:
    """Return the caption's sentence on the limit that a control sets for equivalence; empty without a control."""
    bound = next((item.sensitivity[item.primary_effect] for item in study.arms if item.sensitivity), math.inf)
    if not math.isfinite(bound):
        return ""
    return (
        f"An arm is equivalent only if its interval also ends below a quarter of the control's effect, "
        f"{percent(bound)} %; otherwise it is {INSENSITIVE}. "
    )


def arm_row(study: StudySummary, item: ArmSummary) -> dict[str, Any]:
    """Return the numbers of an arm: its row of `table.csv`, and its first entries in `summary.json`."""
    own = item.primary
    effects = {
        name: {"verdict": item.verdict_on(name), **effect_numbers(found)} for name, found in item.effects.items()
    }
    return {
        "arm": item.arm.name, "role": item.arm.role, "recipe": item.arm.recipe_name, "verdict": item.verdict,
        "to_floor": item.floor_position, "pairs": own.n, "checkpoints": own.checkpoints, "diverged": own.diverged,
        **{f"{name}_{key}": value for name, numbers in effects.items() for key, value in numbers.items()},
        "bootstrap90_low_percent": 100 * item.bootstrap90[0], "bootstrap90_high_percent": 100 * item.bootstrap90[1],
        "p_holm": item.p_holm, "max_train_error_percent": 100 * item.train_error, "floor_percent": 100 * study.floor,
        "mean_floor_percent": 100 * item.mean_floor, "data_exponent": item.data_exponent,
        "data_lost_percent": 100 * item.data_equivalent, "detectable_difference_percent": 100 * item.power.detectable,
        "equivalence_power": item.power.equivalence, "pairs_needed": item.power.pairs,
        "max_violation": study.mean("max_violation", item.arm.name),
    }  # fmt: skip


def effect_numbers(found: Paired) -> dict[str, float]:
    """Return the numbers of one effect for `summary.json`."""
    return {
        "percent": 100 * found.mean, "sd_percent": 100 * found.sd, "error_percent": 100 * found.error,
        "pairs_error_percent": 100 * found.pairs_error, "text_error_percent": 100 * found.text_error,
        "df": found.df,
        "ci90_low_percent": 100 * found.ci90[0], "ci90_high_percent": 100 * found.ci90[1],
        "ci95_low_percent": 100 * found.ci95[0], "ci95_high_percent": 100 * found.ci95[1],
        "p_difference": found.p_difference, "p_equivalence": found.p_equivalence,
        "p_checkpoints": found.p_checkpoints,
    }  # fmt: skip


def as_json(study: StudySummary) -> dict[str, Any]:
    """Return the complete result for `summary.json`."""
    spent, name = costs(study), study.ablation.reference.name
    contrasts = [
        {"arm": item.arm, "against": item.baseline, "p_holm": item.p_holm,
         "together90": item.together90, "sentence": contrast_sentence(study, item), **effect_numbers(item.found)}
        for item in study.contrasts
    ]  # fmt: skip
    reference = {
        "arm": name, "losses": [run.loss for run in study.reference], "bits": spent[name],
        "tokens_per_second": _speed(study, study.reference),
    }  # fmt: skip
    return {
        "ablation": study.ablation.name, "setting": study.setting, "size": study.size,
        "primary_effect": study.ablation.primary_effect, "margin": study.ablation.margin, "floor": study.floor,
        "data_sha256": study.data,
        "trustworthy": not study.invalid_reasons, "reference": reference, "contrasts": contrasts,
        "arms": [{**_arm_json(study, item), "bits": spent[item.arm.name]} for item in study.arms],
        "findings": findings_json(study.findings),
    }  # fmt: skip


def _arm_json(study: StudySummary, item: ArmSummary) -> dict[str, Any]:
    runs = [
        {"checkpoint": run.checkpoint, "seed": run.seed, "loss": run.loss, "loss_bf16": run.loss_bf16,
         **{f"{name}_percent": 100 * float(found.values[i]) for name, found in item.by_effect.items()}}
        for i, run in enumerate(item.runs)
    ]  # fmt: skip
    return {
        **arm_row(study, item), "detected": item.detected, "sentence": sentence(study, item),
        "expected": item.arm.expected, "source": item.arm.source, "tokens_per_second": _speed(study, item.runs),
        "runs": runs,
    }  # fmt: skip


def _speed(study: StudySummary, runs: Any) -> float:
    seconds = sorted(run.seconds_per_step for run in runs)
    middle = seconds[len(seconds) // 2]
    return study.tokens_per_step / middle if middle > 0 else float("nan")
