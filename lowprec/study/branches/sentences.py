"""Sentences with the results of each arm of a branch study, worded no stronger than the data allow."""

from __future__ import annotations

import math

from ..analysis.findings import verdict_or_void
from ..analysis.paired import BETTER, BETTER_WITHIN, EQUIVALENT, NOT_RESOLVED, WORSE, WORSE_WITHIN, Paired
from ..report.parts import interval, percent, plural
from .arms import INSENSITIVE, ArmSummary
from .results import Contrast, StudySummary


def sentence(study: StudySummary, item: ArmSummary) -> str:
    """Return one sentence with an arm's verdict, the noise floor, Holm's correction and DeepSeek-V3's measure."""
    return _SENTENCES[item.arm.role](study, item)


def contrast_sentence(study: StudySummary, item: Contrast) -> str:
    """Return one sentence that compares an arm with another."""
    if study.void:
        return f"{item.arm} against {item.baseline}: {verdict_or_void('', study.void)}."
    own = item.found
    if own.diverged:
        return f"{item.arm} against {item.baseline}: {own.diverged} of {plural(own.n, 'pair')} diverged."
    shown = f"{percent(own.mean)} % (95 % interval {interval(own.ci95)} %)"  # two-sided test at 5 %
    if not own.resolved_difference:
        return f"{item.arm} against {item.baseline}: {shown}, no difference shown."
    word = "worse" if own.mean > 0 else "better"
    doubt = "" if item.p_holm < 0.05 else f", which does not survive Holm's correction (p = {item.p_holm:.2g})"
    return f"{item.arm} against {item.baseline}: {shown}, {word}{doubt}."


def together_sentence(study: StudySummary) -> str:
    """Return a sentence on all arms jointly, relative to the baseline; empty without valid contrasts."""
    items = study.contrasts
    if not items or study.void or any(item.found.diverged for item in items):
        return ""
    many = sum(item.p_holm < 0.05 for item in items) or "none"
    ends = min(item.together90[0] for item in items), max(item.together90[1] for item in items)
    return (
        f"All at once: {many} of {plural(len(items), 'arm')} differ from {items[0].baseline} after Holm's correction; "
        f"the simultaneous 90 % intervals of the differences are within {interval(ends)} %."
    )


def named(effect: str) -> str:
    """Return the name of an effect for text.

    Examples
    --------
    >>> named("training_own")
    'training effect in its own precision'
    """
    return NAMES[effect]


NAMES = {
    "forward": "forward effect",
    "training": "training effect",
    "training_own": "training effect in its own precision",
    "total": "total",
}


def effect_cell(found: Paired) -> str:
    """Format the mean and the 90 % interval of an effect."""
    if found.diverged:
        return "diverged"
    if math.isinf(found.ci90[0]):
        return percent(found.mean)
    return f"{percent(found.mean)} {interval(found.ci90)}"


def _measured(item: ArmSummary) -> str:
    own = item.primary
    pairs = plural(own.n, "pair")
    if own.diverged:
        return f"{own.diverged} of {pairs} diverged"
    if not math.isfinite(own.ci90[0]):
        return f"{named(item.primary_effect)} {percent(own.mean)} % ({pairs}, no interval)"
    return f"{named(item.primary_effect)} {percent(own.mean)} % (90 % interval {interval(own.ci90)} %, {pairs})"


def _effects(item: ArmSummary) -> str:
    """Return the other effects, DeepSeek-V3's measure, and the share of data equivalent to the effect, as text."""
    if item.primary.diverged:
        return ""
    facts = [
        f"{named(name)} {percent(item.effects[name].mean)} %"
        for name in ("forward", "training", "total")
        if name != item.primary_effect and math.isfinite(item.effects[name].mean)
    ]
    if math.isfinite(item.train_error):
        facts.append(f"largest difference of smoothed training losses {percent(item.train_error, sign=False)} %")
    if math.isfinite(item.data_equivalent):
        facts.append(f"worth {percent(item.data_equivalent, digits=1)} % of the data")
    return f"; {', '.join(facts)}" if facts else ""


def _treatment(study: StudySummary, item: ArmSummary) -> str:
    if item.void:
        return f"{item.arm.name}: {_measured(item)}: {item.verdict}."
    reference, margin = study.ablation.reference.name, f"±{100 * study.ablation.margin:g} %"
    verdict = {
        EQUIVALENT: f"equivalent to {reference} within {margin}",
        INSENSITIVE: f"small, within {margin}, but the control is hardly larger: a quarter of its effect is "
        f"{percent(item.sensitivity.get(item.primary_effect, math.nan))} %",
        WORSE_WITHIN: f"worse than {reference}, but within the margin of {margin}",
        BETTER_WITHIN: f"better than {reference}, but within the margin of {margin}",
        WORSE: f"worse than {reference}"
        + (" (a divergence counts as worse)" if item.primary.diverged else f" by more than the margin of {margin}"),
        BETTER: f"better than {reference} by more than the margin of {margin}",
        NOT_RESOLVED: _open(study, item),
    }[item.verdict]
    return f"{item.arm.name}: {_measured(item)}: {verdict}{_nuance(study, item)}{_effects(item)}."


def _open(study: StudySummary, item: ArmSummary) -> str:
    reference, margin = study.ablation.reference.name, f"±{100 * study.ablation.margin:g} %"
    if item.primary.resolved_difference:
        word = "worse" if item.primary.mean > 0 else "better"
        return f"not resolved: {word} than {reference}, but whether by more than {margin} is open"
    return f"not resolved: neither equivalence within {margin} nor a difference from {reference} is shown"


def _nuance(study: StudySummary, item: ArmSummary) -> str:
    if item.void:
        return ""
    own = item.primary
    notes = []
    if own.resolved_difference and not own.diverged and not item.p_holm < 0.05:
        notes.append(f"which does not survive Holm's correction over the arms (p = {item.p_holm:.2g})")
    if item.floor_position:
        notes.append(f"{item.floor_position} of the mean, {percent(item.mean_floor, sign=False)} %")
    if own.verdict == NOT_RESOLVED and math.isfinite(item.power.detectable):
        notes.append(
            f"{own.n} pairs of this spread see differences of {percent(item.power.detectable, sign=False)} % and show "
            f"equivalence with probability {item.power.equivalence:.2f}, {item.power.pairs} pairs would with 0.8"
        )
    return "".join(f", {note}" for note in notes)


def _control(study: StudySummary, item: ArmSummary) -> str:
    if item.faulty_runs:
        return f"{item.arm.name} (positive control): {_measured(item)}: {item.verdict}."
    if item.detected:
        return f"{item.arm.name} (positive control): {_measured(item)}: detected{_nuance(study, item)}{_effects(item)}."
    return (
        f"{item.arm.name} (positive control): {_measured(item)}: NOT detected, so this study is too small "
        "to see even a recipe that is known to hurt."
    )


def _floor(study: StudySummary, item: ArmSummary) -> str:
    if item.faulty_runs:
        return f"{item.arm.name} (noise floor): {_measured(item)}: {item.verdict}."
    return (
        f"{item.arm.name} (noise floor): one weight times (1 + 2^-7) moves the loss by {_measured(item)}; "
        f"the root mean square, {percent(study.floor, sign=False)} %, is the floor of a pair, "
        f"{percent(study.mean_floor, sign=False)} % that of a mean over {plural(study.setting.pairs, 'pair')}."
    )


def _repeat(study: StudySummary, item: ArmSummary) -> str:
    if item.void:
        return f"{item.arm.name} (A/A): {item.verdict}."
    runs = "1 run" if len(item.runs) == 1 else f"{len(item.runs)} runs"
    same = "bit-identical" if item.identical else "NOT bit-identical"
    return f"{item.arm.name} (A/A): {runs} again, every step's metrics, all weights and the validation loss {same}."


_SENTENCES = {"treatment": _treatment, "control": _control, "floor": _floor, "repeat": _repeat}
