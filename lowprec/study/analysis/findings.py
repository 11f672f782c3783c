"""What became of expectations, and what makes a verdict void, in words: the same for all studies.

An expectation is judged by the whole 90 % interval of the measured number: inside a range, outside of it, or across one
of its ends. An interval across an end is not resolved: more samples would be needed.

A verdict is void where the runs that it is made of are incomplete, where the same runs came out otherwise when they
were done again (A/A), and where a positive control, a recipe known to hurt, was not detected: then nothing else would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..design.expectations import NOT_REGISTERED, Expectation, Range
from .estimates import Estimate, MetricTable

AS_EXPECTED = "as expected"
AS_PUBLISHED = "as published"
BOTH = "as published and expected"
NEITHER = "neither"
NOT_RESOLVED = "not resolved"
NO_RATIO = "no ratio: the denominator is not told from 0"
VOID = "void"


def verdict_or_void(verdict: str, reasons: Sequence[str]) -> str:
    """Return a verdict, or that it is void and why.

    Examples
    --------
    >>> verdict_or_void("equivalent", ()), verdict_or_void("equivalent", ("a broke", "b is cut off"))
    ('equivalent', 'void: a broke; b is cut off')
    """
    return f"{VOID}: {'; '.join(reasons)}" if reasons else verdict


def void_title(reasons: Sequence[str]) -> str:
    """Return the title of a figure whose study is void.

    Examples
    --------
    >>> void_title(["a broke"])
    'VOID: a broke'
    """
    return verdict_or_void("", reasons).replace(VOID, VOID.upper(), 1)


def not_identical(repeat: str, reference: str) -> str:
    """Return what is wrong if a repeat (A/A) has other bits."""
    return f"{repeat} is NOT bit-identical to {reference}: runs are not reproducible here"


def not_detected(control: str) -> str:
    """Return what is wrong if a positive control does not hurt."""
    return f"{control} (positive control) is NOT detected: a recipe that is known to hurt cannot be seen here"


def unique(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return reasons in order, each once."""
    return tuple(dict.fromkeys(reasons))


@dataclass(frozen=True)
class Finding:
    """An expectation, what was measured, and which of the two happened.

    Attributes
    ----------
    expectation : Expectation
        What was expected.
    found : Estimate
        What was measured, with its interval.
    outcome : str
        What `outcome_of` returns, "not registered", or "void: " and why; computed, never written by hand.
    """

    expectation: Expectation
    found: Estimate
    outcome: str

    @property
    def value(self) -> float:
        """What was measured."""
        return self.found.value


def outcome_of(found: Estimate, expected: Range, published: Range | None = None) -> str:
    """Return the outcome of an expectation, from the 90 % interval of the measured number.

    A number without an interval is not resolved; an infinite one, a divergence, is its own interval.

    Examples
    --------
    >>> [outcome_of(Estimate(1.0, ends), (0.9, 1.1)) for ends in ((0.95, 1.05), (0.8, 1.05), (1.2, 1.3))]
    ['as expected', 'not resolved', 'neither']
    >>> outcome_of(Estimate(1.0, (0.95, 1.05)), (0.9, 1.1), published=(1.0, 2.0))
    'as expected; published: not resolved'
    """
    if found.as_difference:
        return NO_RATIO
    low, high = (found.value, found.value) if math.isinf(found.value) else found.ci90
    if math.isnan(low) or math.isnan(high):
        return NOT_RESOLVED
    ranges = {AS_EXPECTED: expected, **({} if published is None else {AS_PUBLISHED: published})}
    inside = [name for name, (least, most) in ranges.items() if least <= low and high <= most]
    across = [
        name for name, (least, most) in ranges.items() if name not in inside and low <= most and least <= high
    ]  # fmt: skip
    if len(inside) == 2:
        return BOTH
    if not inside:
        return NOT_RESOLVED if across else NEITHER
    return inside[0] + "".join(f"; {name.removeprefix('as ')}: {NOT_RESOLVED}" for name in across)


def is_as_expected(outcome: str) -> bool:
    """Return whether an outcome means that the expected range holds the whole interval.

    Examples
    --------
    >>> [is_as_expected(outcome) for outcome in ("as published and expected", "as published; expected: not resolved")]
    [True, False]
    """
    return outcome.startswith((AS_EXPECTED, BOTH))


def judge(item: Expectation, table: MetricTable, void: Sequence[str] = (), *, registered: bool = True) -> Finding:
    """Say what became of an expectation; void for these reasons.

    A range that was not registered before is not judged: the number is all there is. Neither is a ratio whose
    denominator is not told from 0.

    Examples
    --------
    >>> from lowprec.study.analysis.estimates import ByVariance, ConstantMetrics
    >>> half = Expectation("E5M2 gradients are no better", "gradient_error", "hybrid", "e4m3", expected=(1.0, 1.5))
    >>> means = ConstantMetrics(lambda metric, arm, condition: {"hybrid": 0.106, "e4m3": 0.099}[arm])
    >>> judge(half, ByVariance(means)).outcome
    'as expected'
    """
    found = table.estimate(item.metric, item.arm, item.stress, over=item.over, minus=item.minus)
    outcome = outcome_of(found, item.expected, item.published) if registered else NOT_REGISTERED
    return Finding(item, found, verdict_or_void(outcome, void))
