"""What was measured of each arm of branches, in a sentence that says no more than that."""

from __future__ import annotations

import math

from ...analysis.inference import BETTER, EQUIVALENT, NOT_RESOLVED, WORSE
from ...report.parts import interval, percent, several
from .measured import ArmSummary
from .summary import StudySummary


def sentence(study: StudySummary, item: ArmSummary) -> str:
    """Return the verdict on one arm in one sentence, with floor, Holm's correction and the other level beside it."""
    return _SENTENCES[item.arm.role](study, item)


def _measured(item: ArmSummary) -> str:
    pairs = several(item.own.n, "pair")
    if item.own.diverged:
        return f"{item.own.diverged} of {pairs} diverged"
    if item.own.n == 1:
        return f"{percent(item.own.mean)} % (one pair, no interval)"
    return f"{percent(item.own.mean)} % (90 % interval {interval(item.own.ci90)} %, {pairs})"


def _treatment(study: StudySummary, item: ArmSummary) -> str:
    if item.void:
        return f"{item.arm.name}: {_measured(item)}: {item.verdict}."
    reference, margin = study.ablation.reference.name, f"±{100 * study.ablation.margin:g} %"
    verdict = {
        EQUIVALENT: f"equivalent to {reference} within {margin}",
        WORSE: f"worse than {reference}" + (" (a divergence counts as worse)" if item.own.diverged else ""),
        BETTER: f"better than {reference}",
        NOT_RESOLVED: f"not resolved: neither equivalence within {margin} nor a difference from {reference} is shown",
    }[item.verdict]
    return f"{item.arm.name}: {_measured(item)}: {verdict}{_nuance(study, item)}."


def _nuance(study: StudySummary, item: ArmSummary) -> str:
    if item.void:
        return ""
    own = item.own
    notes = []
    if own.verdict == EQUIVALENT and own.resolved_difference:
        notes.append("though the 95 % interval excludes 0")
    if own.resolved_difference and not own.diverged and not item.p_holm < 0.05:
        notes.append(f"which does not survive Holm's correction over the arms (p = {item.p_holm:.2g})")
    if math.isfinite(study.floor) and not own.diverged:
        notes.append(f"{'at' if item.at_floor else 'above'} the noise floor of {percent(study.floor, sign=False)} %")
    over = own.over_checkpoints
    if over is not None and over.df != own.here.df and over.verdict != own.verdict:
        notes.append(f"over other checkpoints than these {own.checkpoints} it is {over.verdict}")
    if own.verdict == NOT_RESOLVED and math.isfinite(item.power.detectable):
        notes.append(
            f"{own.n} pairs of this spread see differences of {percent(item.power.detectable, sign=False)} % and show "
            f"equivalence with probability {item.power.equivalence:.2f}, {item.power.pairs} pairs would with 0.8"
        )
    return "".join(f", {note}" for note in notes)


def _control(study: StudySummary, item: ArmSummary) -> str:
    if item.damage:
        return f"{item.arm.name} (positive control): {_measured(item)}: {item.verdict}."
    if item.detected:
        return f"{item.arm.name} (positive control): {_measured(item)}: detected{_nuance(study, item)}."
    return (
        f"{item.arm.name} (positive control): {_measured(item)}: NOT detected, so this study is too small "
        "to see even a recipe that is known to hurt."
    )


def _floor(study: StudySummary, item: ArmSummary) -> str:
    if item.damage:
        return f"{item.arm.name} (noise floor): {_measured(item)}: {item.verdict}."
    return (
        f"{item.arm.name} (noise floor): one weight times (1 + 2^-7) moves the loss by {_measured(item)}; "
        f"the root mean square, {percent(study.floor, sign=False)} %, is the floor."
    )


def _repeat(study: StudySummary, item: ArmSummary) -> str:
    if item.void:
        return f"{item.arm.name} (A/A): {item.verdict}."
    runs = "1 run" if len(item.runs) == 1 else f"{len(item.runs)} runs"
    same = "bit-identical" if item.identical else "NOT bit-identical"
    return f"{item.arm.name} (A/A): {runs} again, every step's metrics, all weights and the validation loss {same}."


_SENTENCES = {"treatment": _treatment, "control": _control, "floor": _floor, "repeat": _repeat}
