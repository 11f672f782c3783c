"""What became of expectations, and what makes a verdict void, in words: the same for all studies.

A verdict is void where the runs that it is made of are incomplete, where the same runs came out otherwise when they
were done again (A/A), and where a positive control, a recipe known to hurt, was not detected: then nothing else would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..design.expectations import NOT_REGISTERED, Expectation
from .estimates import Estimate, MetricTable

AS_EXPECTED = "as expected"
AS_PUBLISHED = "as published"
BOTH = "as published and expected"
NEITHER = "neither"
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
        "as expected", "as published", "as published and expected", "neither", "not registered", "no ratio: the
        denominator is not told from 0", or "void: " and why; computed, never written by hand.
    """

    expectation: Expectation
    found: Estimate
    outcome: str

    @property
    def value(self) -> float:
        """What was measured."""
        return self.found.value


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
    expected = item.expected[0] <= found.value <= item.expected[1]
    published = item.published is not None and item.published[0] <= found.value <= item.published[1]
    outcome = {(True, True): BOTH, (True, False): AS_EXPECTED, (False, True): AS_PUBLISHED}
    judged = NO_RATIO if found.as_difference else outcome.get((expected, published), NEITHER)
    return Finding(item, found, verdict_or_void(judged if registered else NOT_REGISTERED, void))
