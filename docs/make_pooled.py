"""Generate pooled effects of recipes over all branch studies, as blocks of pages and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import registrations
from make_figures import is_quick
from pages import RESULTS, read_rows, result, results, table
from scipy import stats

from lowprec.study import load, names
from lowprec.study.analysis.variance import RandomEffects, random_effects
from lowprec.study.design.arms import Arm, same_precision

ROOT = Path(__file__).parents[1]
#: Recipes, each with an arm of a study that uses it; arms of other studies in the same precision are included.
RECIPES = {
    "FP8, DeepSeek-V3's recipe (`dsv3`)": ("fp8_vs_bf16", "dsv3"),
    "MXFP8": ("fp4_training", "mxfp8"),
    "NVFP4, the published recipe": ("fp4_training", "nvfp4"),
    "MXFP4 in every product": ("fp4_training", "mxfp4"),
    "plain FP4 (`fp4_naive`)": ("fp8_vs_bf16", "fp4_naive"),
}
EFFECTS = ("forward", "training")
BLOCK = "<!-- {name}: made by docs/refresh.py -->\n{text}\n<!-- end of {name} -->"
NOTE = (
    "A group is one model on one corpus; the table has the random-effects mean over groups, with its 90 % interval, "
    "and for two groups the interval of each. All pairs of one checkpoint are averaged first, so a checkpoint that "
    "several studies share counts once. The primary outcome is the training effect, with both models evaluated in "
    "BF16. The outcome registered first, with the rounding of the forward pass, is {total} for `dsv3`; `scaling` does "
    "not have it. Lengths of branches differ: {quick} of the {studies} studies of `dsv3` are quick sizes. In {blind} "
    "of the {cells} cells of `scaling`, the control is not detected. Training from scratch is not included. The runs "
    "of `nvfp4` used its earlier version, whose Hadamard transform was not rounded to bfloat16."
)


class Part(NamedTuple):
    """Result of one study, or of one of its cells, for a recipe on a model and a corpus."""

    study: str
    group: tuple[str, str]
    mean: float
    error: float
    pairs: int


def parts(arm: Arm, effect: str) -> list[Part]:
    """Return the results of branch studies for a precision, in percent; pairs of one checkpoint are averaged."""
    cells: list[Part] = []
    by_checkpoint: dict[tuple[str, str], dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for study, group, row in _rows(arm, effect):
        if "percent" in row:  # a cell of a scaling study: four checkpoints with one pair each, already averaged
            half = (float(row["high"]) - float(row["low"])) / 2
            cells.append(Part(study, group, float(row["percent"]), half / float(stats.t.ppf(0.95, 3)), 4))
        else:
            by_checkpoint[group][row["checkpoint"]].append((study, 100 * float(row["r"])))
    for group, checkpoints in by_checkpoint.items():
        means = np.array([np.mean([r for _, r in pairs]) for pairs in checkpoints.values()])
        studies = " ".join(sorted({study for pairs in checkpoints.values() for study, _ in pairs}))
        error = float(np.std(means, ddof=1)) / len(means) ** 0.5
        cells.append(Part(studies, group, float(np.mean(means)), error, sum(map(len, checkpoints.values()))))
    return cells


def _rows(arm: Arm, effect: str) -> Iterator[tuple[str, tuple[str, str], dict[str, str]]]:
    """Yield the published rows of a precision: pairs, and cells of scaling studies."""
    for name in names():
        if not (RESULTS / f"{name}.json").exists() or (study := load(name)).tier != "T3":
            continue
        same = [item.name for item in study.arms_of("treatment", "control") if _is_same(item, arm)]
        command = result(name)["command"]
        size = study.quick if "--quick" in command else study.full
        scaling = hasattr(size, "cells")
        for row in read_rows(f"{name}.csv" if scaling else f"{name}_pairs.csv"):
            if row["arm"] not in same or row["effect"] != effect:
                continue
            if not scaling:
                corpus = (*re.findall(r"--data (\w+)", command), "stdlib")[0]  # the default of the command
                yield name, (size.config, corpus), row
            elif row["axis"] == "parameters" and row["what"] != "line":
                model, _, corpus = row["what"].split("-")
                yield name, (model, corpus), row


def _is_same(item: Arm, arm: Arm) -> bool:
    return not item.config and not item.calibration and same_precision(item, arm)


def groups(found: list[Part]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return mean and standard error for every model and corpus.

    Checkpoints of one model and corpus have the same seeds, so the errors of its parts are added.
    """
    together: dict[tuple[str, str], tuple[float, float]] = {}
    for group in sorted({part.group for part in found}):
        mine = [part for part in found if part.group == group]
        pairs = sum(part.pairs for part in mine)
        # Exact sums: those of a BLAS differ between CPUs, and the CSV is compared by its bytes.
        together[group] = (
            math.fsum(part.pairs * part.mean for part in mine) / pairs,
            math.fsum(part.pairs * part.error for part in mine) / pairs,
        )
    return together


def pooled() -> dict[str, dict[str, tuple[RandomEffects, list[Part]]]]:
    """Return the pooled effects of every recipe, with the results that they combine."""
    found: dict[str, dict[str, tuple[RandomEffects, list[Part]]]] = {}
    for recipe, (study, name) in RECIPES.items():
        arm = next(item for item in load(study).arms if item.name == name)
        found[recipe] = {}
        for effect in EFFECTS:
            made_of = parts(arm, effect)
            means, errors = zip(*groups(made_of).values(), strict=True)
            found[recipe][effect] = random_effects(means, errors, df=3), made_of
    return found


# --- generated text --------------------------------------------------------------------------------------------------


def data() -> str:
    """Return `ablations/results/pooled.csv`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("recipe", "effect", "model", "text", "percent", "low", "high", "error", "pairs", "studies"))
    for recipe, effects in pooled().items():
        for effect, (mean, made_of) in effects.items():
            for part in made_of:
                rows.writerow((recipe, effect, *part.group, part.mean, "", "", part.error, part.pairs, part.study))
            pairs, studies = sum(part.pairs for part in made_of), _studies(made_of)
            rows.writerow((recipe, effect, "all", "all", mean.mean, *mean.ci90, mean.error, pairs, " ".join(studies)))
    return text.getvalue()


def _studies(made_of: list[Part]) -> list[str]:
    return sorted({name for part in made_of for name in part.study.split()})


def _percent(found: RandomEffects) -> str:
    low, high = found.ci90
    return f"{found.mean:+.3f} % [{low:+.3f}, {high:+.3f}]"


def _rows_shown(found: Any) -> Iterator[tuple[str, ...]]:
    for recipe, effects in found.items():
        made_of = effects["training"][1]
        size = f"{sum(part.pairs for part in made_of)} pairs, {len(_studies(made_of))} studies"
        yield recipe, *(_cell(*effects[effect]) for effect in ("training", "forward")), size


def _cell(found: RandomEffects, made_of: list[Part]) -> str:
    """Format a mean with its interval; for two models only, format both, since no interval follows from them."""
    return f"{_percent(found)}, {found.groups} groups" if found.groups > 2 else _by_group(made_of)


def _by_group(made_of: list[Part]) -> str:
    """Format the mean of every group with its interval: Student's, from four checkpoints."""
    return ", ".join(
        f"{mean:+.3f} % [{mean - half:+.3f}, {mean + half:+.3f}] ({' on '.join(group)})"
        for group, (mean, error) in groups(made_of).items() for half in [float(stats.t.ppf(0.95, 3)) * error]
    )  # fmt: skip


def headline() -> str:
    """Return the sentence with the main estimate and its interval."""
    training, made_of = pooled()["FP8, DeepSeek-V3's recipe (`dsv3`)"]["training"]
    pairs, studies = sum(part.pairs for part in made_of), len(_studies(made_of))
    return (
        "In runs that continue from BF16 checkpoints, training with DeepSeek-V3's FP8 recipe raises the loss, "
        f"evaluated in BF16, by **{_percent(training)}** (90 % interval; {pairs} pairs from {studies} studies, "
        f"{training.groups} combinations of model and text)."
    )


def block() -> str:
    """Return the headline and the table of all recipes."""
    head = ("pooled over all studies", "training", "rounding in the forward pass", "data")
    return "\n\n".join(
        (textwrap.fill(headline(), 120), table(head, _rows_shown(pooled())), textwrap.fill(_note(), 120))
    )


def _note() -> str:
    """Return the note below the table, with its counts and totals."""
    study, name = RECIPES["FP8, DeepSeek-V3's recipe (`dsv3`)"]
    arm = next(item for item in load(study).arms if item.name == name)
    studies = _studies(parts(arm, "training"))
    quick = sum(is_quick(result(name)) for name in studies)
    blind, cells = re.findall(r"(\d+) cells of (\d+) alone would be void", " ".join(result("scaling")["told"]))[0]
    return NOTE.format(
        total=_by_group(parts(arm, "total")), quick=quick, studies=len(studies), blind=blind, cells=cells
    )


def neither() -> str:
    """Return every outcome outside of both ranges, with its explanation."""
    sentences = registrations.explained()
    lines = [
        f'- [{name}](ablations.md#{name}), "{words}": {sentences[name][words]}'
        for name, item in results().items() for words in registrations.unexpected(item)
    ]  # fmt: skip
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ") for line in lines)


def _with(text: str, name: str, block: str) -> str:
    """Return a page in which a made block is as it is today."""
    new = BLOCK.format(name=name, text=block)
    begin, end = new.split("\n")[0], new.split("\n")[-1]
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    assert found, f"a page has no line {begin!r}"
    assert ended, f"a page has no line {end!r}"
    return before + new + after


def findings() -> str:
    """Return docs/findings.md."""
    old = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    return _with(_with(old, "pooled", block()), "neither", neither())


def normal() -> str:
    """Return docs/normal.md."""
    return _with((ROOT / "docs" / "normal.md").read_text(encoding="utf-8"), "pooled", block())


def readme() -> str:
    """Return README.md with the headline updated, between the line with the same beginning and a link."""
    old = (ROOT / "README.md").read_text(encoding="utf-8")
    opening, link = headline().partition(",")[0], "[Findings](docs/findings.md)."
    pattern = rf"^{re.escape(opening)},.*?{re.escape(link)}$"
    new = textwrap.fill(f"{headline()} {link}".replace(" %", "%"), 120)
    text, found = re.subn(pattern, new, old, flags=re.DOTALL | re.MULTILINE)
    assert found == 1, f"README.md has {found} sentences that begin with {opening!r}"
    return text
