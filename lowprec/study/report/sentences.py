"""What was measured, in words that say no more than that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..analysis.inference import BETTER, EQUIVALENT, NOT_RESOLVED, WORSE

if TYPE_CHECKING:
    from ..analysis.summary import ArmSummary, StudySummary


def percent(value: float, *, sign: bool = True) -> str:
    """Return a relative difference as a percentage with three decimals, without the percent sign.

    Examples
    --------
    >>> percent(0.00062), percent(float("nan")), percent(0.0025, sign=False)
    ('+0.062', 'n/a', '0.250')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{100 * value:+.3f}" if sign else f"{100 * value:.3f}"


def interval(bounds: tuple[float, float]) -> str:
    """Return an interval in per cent.

    Examples
    --------
    >>> interval((-0.001, 0.002))
    '[-0.100, +0.200]'
    """
    return "n/a" if math.isinf(bounds[0]) else f"[{percent(bounds[0])}, {percent(bounds[1])}]"


def count(number: float) -> str:
    """Return a large number in short.

    Examples
    --------
    >>> count(843_392), count(81_920), count(1_433_216)
    ('0.84M', '82k', '1.43M')
    """
    if number >= 500_000:
        return f"{number / 1e6:.3g}M" if number >= 1e7 else f"{number / 1e6:.2f}M"
    return f"{number / 1e3:.0f}k" if number >= 1000 else f"{number:.0f}"


def several(number: int, one: str, more: str = "") -> str:
    """Return a number of things.

    Examples
    --------
    >>> several(1, "pair"), several(2, "pair")
    ('1 pair', '2 pairs')
    """
    return f"{number} {one if number == 1 else more or one + 's'}"


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
    reference, margin = study.ablation.reference.name, f"±{100 * study.ablation.margin:g} %"
    verdict = {
        EQUIVALENT: f"equivalent to {reference} within {margin}",
        WORSE: f"worse than {reference}" + (" (a divergence counts as worse)" if item.own.diverged else ""),
        BETTER: f"better than {reference}",
        NOT_RESOLVED: f"not resolved: neither equivalence within {margin} nor a difference from {reference} is shown",
    }[item.own.verdict]
    return f"{item.arm.name}: {_measured(item)}: {verdict}{_nuance(study, item)}."


def _nuance(study: StudySummary, item: ArmSummary) -> str:
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
    detected = item.own.diverged > 0 or item.own.ci95[0] > 0.0
    if detected:
        return f"{item.arm.name} (positive control): {_measured(item)}: detected{_nuance(study, item)}."
    return (
        f"{item.arm.name} (positive control): {_measured(item)}: NOT detected, so this study is too small "
        "to see even a recipe that is known to hurt."
    )


def _floor(study: StudySummary, item: ArmSummary) -> str:
    return (
        f"{item.arm.name} (noise floor): one weight times (1 + 2^-7) moves the loss by {_measured(item)}; "
        f"the root mean square, {percent(study.floor, sign=False)} %, is the floor."
    )


def _repeat(study: StudySummary, item: ArmSummary) -> str:
    runs = "1 run" if len(item.runs) == 1 else f"{len(item.runs)} runs"
    same = "bit-identical" if item.identical else "NOT bit-identical"
    return f"{item.arm.name} (A/A): {runs} again, every step's metrics, all weights and the validation loss {same}."


_SENTENCES = {"treatment": _treatment, "control": _control, "floor": _floor, "repeat": _repeat}
