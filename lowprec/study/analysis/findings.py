"""Outcomes of expectations, and reasons that void a verdict, as text common to all studies.

An expectation is judged by the whole 90 % interval of the measured number: inside the range, outside, or across one of
its ends. An interval across an end is "not resolved": more samples would be required.

A verdict is void if its runs are incomplete, if repeated runs gave other results (A/A), or if a positive control, a
recipe known to hurt, was not detected: smaller effects would then not be detected either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..design.expectations import NOT_REGISTERED, Expectation, Range
from .estimates import Estimate

AS_EXPECTED = "as expected"
AS_PUBLISHED = "as published"
BOTH = "as published and expected"
NEITHER = "neither"
NOT_RESOLVED = "not resolved"
NO_RATIO = "no ratio: the denominator is not told from 0"
VOID = "void"


def verdict_or_void(verdict: str, reasons: Sequence[str]) -> str:
    """Return the verdict, or "void: " with the reasons if there are any.

    Examples
    --------
    >>> verdict_or_void("equivalent", ()), verdict_or_void("equivalent", ("a broke", "b is cut off"))
    ('equivalent', 'void: a broke; b is cut off')
    """
    return f"{VOID}: {'; '.join(reasons)}" if reasons else verdict


def void_title(reasons: Sequence[str]) -> str:
    """Return the title of a figure for a void study.

    Examples
    --------
    >>> void_title(["a broke"])
    'VOID: a broke'
    """
    return verdict_or_void("", reasons).replace(VOID, VOID.upper(), 1)


def not_identical(repeat: str, reference: str) -> str:
    """Return the reason that voids a study if its repeat (A/A) differs from the reference in some bits."""
    return f"{repeat} is NOT bit-identical to {reference}: runs are not reproducible here"


def not_detected(control: str) -> str:
    """Return the reason that voids a study if its positive control is not worse than the reference."""
    return f"{control} (positive control) is NOT detected: a recipe that is known to hurt cannot be seen here"


def unique(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct reasons, in order of first appearance."""
    return tuple(dict.fromkeys(reasons))


@dataclass(frozen=True)
class Finding:
    """An expectation, the measured number, and the outcome.

    Attributes
    ----------
    expectation : Expectation
        The expectation.
    found : Estimate
        The measured number and its interval.
    outcome : str
        Result of `outcome_of`, "not registered", or "void: " and the reasons. It is computed, never written by hand.
    """

    expectation: Expectation
    found: Estimate
    outcome: str

    @property
    def value(self) -> float:
        """Measured number."""
        return self.found.value


def outcome_of(found: Estimate, expected: Range, published: Range | None = None) -> str:
    """Return the outcome of an expectation, from the 90 % interval of the measured number.

    A number without an interval is not resolved. If the number is infinite (a divergence), both ends of its interval
    are infinite.

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
    """Return whether an outcome means that the whole interval is inside the expected range.

    Examples
    --------
    >>> [is_as_expected(outcome) for outcome in ("as published and expected", "as published; expected: not resolved")]
    [True, False]
    """
    return outcome.startswith((AS_EXPECTED, BOTH))


def judge(
    item: Expectation, measured: Callable[..., Estimate], void: Sequence[str] = (), *, registered: bool = True
) -> Finding:
    """Return the outcome of an expectation, void if reasons are given.

    A range that was not registered in advance is not judged, nor is a ratio whose denominator is not distinguishable
    from 0; then only the number is reported. The number is ``measured(metric, arm, condition, over=..., minus=...)``:
    `estimate` or `resampled_estimate` with its first argument bound.

    Examples
    --------
    >>> from functools import partial
    >>> from lowprec.study.analysis.estimates import SeedMeans, estimate
    >>> half = Expectation("E5M2 gradients are no better", "gradient_error", "hybrid", "e4m3", expected=(1.0, 1.5))
    >>> means = SeedMeans({("gradient_error", "hybrid"): 0.106, ("gradient_error", "e4m3"): 0.099})
    >>> judge(half, partial(estimate, means)).outcome
    'as expected'
    """
    found = measured(item.metric, item.arm, item.condition, over=item.over, minus=item.minus)
    outcome = outcome_of(found, item.expected, item.published) if registered else NOT_REGISTERED
    return Finding(item, found, verdict_or_void(outcome, void))
