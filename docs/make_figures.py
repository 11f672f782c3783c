"""Draw the figures of published studies of branches from their published numbers, with today's verdicts.

A report and its figures are drawn when a study runs. Verdicts can change later, when a rule of inference does; the
figures and their titles follow without a new run. A study at its quick size has no verdicts.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pages import RESULTS, read_rows, result

from lowprec.study import load
from lowprec.study.analysis.findings import not_detected
from lowprec.study.analysis.paired import EVERYTHING, Paired, root_mean_square
from lowprec.study.branches.arms import ArmSummary, Power, floor_of_mean
from lowprec.study.branches.curves import curves
from lowprec.study.branches.figures import forest
from lowprec.study.branches.pairs import ArmRun, EffectSamples
from lowprec.study.branches.results import StudySummary
from lowprec.study.report.sheet import Figure

QUICK = "A quick size, no verdicts"
#: Verdict in the sentence of an arm, between its interval and its other effects.
VERDICT = re.compile(r"(?<=pairs\)): [^;]*;")
_TEXT = re.compile(r"!\[[^\n]*\]\((\w+\.svg)\)")
_CONTRAST = re.compile(r"(^- \w+ against \w+: .*? interval \[[^]]*\] %\)), .*$")


@dataclass(frozen=True, eq=False)
class PublishedArm(ArmSummary):
    """Summary of an arm with its published verdict, "" for a quick size."""

    published: str = field(kw_only=True)

    @property
    def verdict(self) -> str:
        """The published verdict."""
        return self.published


@dataclass(frozen=True, eq=False)
class PublishedStudy(StudySummary):
    """Results of a study with the published description of its size."""

    published_size: str = field(kw_only=True)

    @property
    def size(self) -> str:
        """The published description."""
        return self.published_size


def is_quick(item: dict[str, Any]) -> bool:
    """Return whether a published study of training has run at its quick size alone."""
    return item["tier"] in ("T3", "T4") and "--quick" in item["command"]


def undetected_controls(item: dict[str, Any]) -> list[str]:
    """Return the reasons that void a published study's verdicts: controls that were not detected."""
    return [not_detected(arm["arm"]) for arm in item["arms"] if arm["role"] == "control" and not arm["detected"]]


def figures(name: str) -> Iterator[Figure]:
    """Yield the figures of a published study of branches; none for other studies."""
    if not (RESULTS / f"{name}_pairs.csv").exists():
        return
    item = result(name)
    study = published(item)
    effects = forest(study)
    yield curves(study, _curve_rows(name), f"{QUICK}. {effects.title}" if is_quick(item) and not study.void else "")
    yield effects


def draw(name: str) -> list[Path]:
    """Draw the figures of a published study again and give its report their titles; return the figures."""
    report = RESULTS / f"{name}.md"
    text, written = report.read_text(encoding="utf-8"), []
    for figure in figures(name):
        target = RESULTS / f"{figure.stem}.svg"
        with tempfile.TemporaryDirectory() as folder:
            figure.write(Path(folder))
            target.write_bytes((Path(folder) / target.name).read_bytes())
        text = _TEXT.sub(lambda old, figure=figure, target=target: (
            f"![{figure.title}]({target.name})" if old[1] == target.name else old[0]), text)  # fmt: skip
        written.append(target)
    report.write_text(text, encoding="utf-8")
    return written


def draw_all() -> Iterator[Path]:
    """Draw the figures of all published studies of branches again; yield them."""
    for file in sorted(RESULTS.glob("*_pairs.csv")):
        yield from draw(file.stem.removesuffix("_pairs"))


def without_verdicts(report: str) -> str:
    """Return a report of a quick size without verdicts: numbers and intervals alone."""
    lines, cut, last = [], False, False
    for line in report.split("\n"):
        if line.startswith("|"):
            cut, last = cut or line.endswith("| verdict |"), last or line == "| arm | expected | source | found |"
            if cut:
                line = line[: line.rindex("|", 0, -1) + 1]
            elif last:
                line = re.sub(r"\| [^|(]* \((\S+ %)\) \|$", r"| \1 |", line)
        else:
            cut = last = False
            line = _CONTRAST.sub(r"\1.", VERDICT.sub(";", line) if line.startswith("- ") else line)
        lines.append(line)
    head, question, *rest = "\n".join(lines).split("\n\n")
    return "\n\n".join([head, question, *([] if rest[0] == f"*{QUICK}.*" else [f"*{QUICK}.*"]), *rest])


# --- published numbers -----------------------------------------------------------------------------------------------


def published(item: dict[str, Any]) -> PublishedStudy:
    """Return the summary of a published study of branches, given its JSON."""
    ablation, quick = load(item["name"]), is_quick(item)
    checkpoints, seeds = re.findall(r"\((\d+) [^()]* x (\d+) data seeds?\)", item["size"])[-1]
    setting = replace(ablation.quick if quick else ablation.full, checkpoints=int(checkpoints), seeds=int(seeds))
    pairs = _pairs(item["name"])
    arms = []
    for told in item["arms"]:
        if told["role"] == "repeat":
            continue
        runs, by_effect = pairs[told["arm"]]
        effects = {
            effect: _paired(samples, told["effects"][effect], ablation.margin) for effect, samples in by_effect.items()
        }
        arms.append(PublishedArm(
            next(arm for arm in ablation.arms if arm.name == told["arm"]), runs, by_effect, effects,
            ablation.primary_effect, math.nan, math.nan, math.nan, None, EVERYTHING, Power(math.nan, math.nan, 0),
            published="" if quick else told["verdict"],
        ))  # fmt: skip
    floors = [arm.differences for arm in arms if arm.arm.role == "floor"]
    floor = root_mean_square(np.concatenate(floors)) if floors else math.nan
    references = 2 if ablation.second_reference else 1
    arms = [replace(arm, mean_floor=floor_of_mean(floor, arm.primary.n, references)) for arm in arms]
    return PublishedStudy(
        ablation, setting, tuple(arms), (), (), floor, 0, 0, 0, "", published_size=item["size"],
        undetected_controls=tuple(undetected_controls(item)),
    )  # fmt: skip


def _paired(samples: EffectSamples, told: list[Any], margin: float) -> Paired:
    mean, *ends = (float(value) / 100 for value in told)
    return Paired(
        mean, math.nan, math.nan, (ends[0], ends[1]), EVERYTHING, math.nan, math.nan, margin, len(samples.values),
        len(set(samples.checkpoints)), int(np.isinf(samples.values).sum()),
    )  # fmt: skip


def _pairs(name: str) -> dict[str, tuple[tuple[ArmRun, ...], dict[str, EffectSamples]]]:
    """Return the runs of every arm, without losses, and the relative differences of every effect."""
    found: dict[str, dict[str, list[tuple[int, int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in read_rows(f"{name}_pairs.csv"):
        found[row["arm"]][row["effect"]].append((int(row["checkpoint"]), int(row["seed"]), float(row["r"])))
    nothing = np.empty((0, 0))
    return {
        arm: (
            tuple(
                ArmRun(checkpoint, seed, "", {}, nothing, math.nan, (b"", "", math.nan, math.nan))
                for checkpoint, seed, _ in next(iter(effects.values()))
            ),
            {
                effect: EffectSamples(np.array([r for _, _, r in rows]), nothing, tuple(c for c, _, _ in rows))
                for effect, rows in effects.items()
            },
        )
        for arm, effects in found.items()
    }


def _curve_rows(name: str) -> list[dict[str, Any]]:
    numbers, counts = ("bytes", "mean", "low", "high"), ("pairs", "diverged")
    return [
        row | {key: float(row[key]) for key in numbers} | {key: int(row[key]) for key in counts}
        for row in read_rows(f"{name}.csv")
    ]
