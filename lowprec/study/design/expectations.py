"""What was expected before a measurement, or published, as data, and what came out, computed from the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.estimate import Estimate, Means, Resampled, estimate
from ..analysis.validity import said

AS_EXPECTED = "as expected"
AS_PUBLISHED = "as published"
BOTH = "as published and expected"
NEITHER = "neither"
NOT_REGISTERED = "not registered"
NO_RATIO = "no ratio: the denominator is not told from 0"

Range = tuple[float, float]


@dataclass(frozen=True)
class Expectation:
    """A number that will be measured, and where it was expected to lie.

    Parameters
    ----------
    words : str
        What this miniature is expected to show, written before the first run.
    metric : str
        Name of the measured quantity.
    arm : str
        Of which arm.
    over : str
        If given, the number is that arm's metric divided by this one's.
    minus : str
        If given, the number is that arm's metric less this one's: for effects that may be 0, of which a ratio says
        nothing.
    expected : (float, float)
        Where the number is expected to lie, ends included.
    published : (float, float), optional
        Where it would lie if the published finding showed at this size; None where nothing was published about it.
    stress : str
        Under which condition, the study's first by default.

    Examples
    --------
    >>> half = Expectation("E5M2 gradients are no better", "gradient_error", "hybrid", "e4m3", expected=(1.0, 1.5))
    >>> from lowprec.study.analysis.estimate import Values
    >>> half.judge(Values(lambda metric, arm, stress: {"hybrid": 0.106, "e4m3": 0.099}[arm])).outcome
    'as expected'
    >>> apart = Expectation("blocks train as tiles do", "training_percent", "block", minus="tile", expected=(-0.1, 0.1))
    >>> apart.quantity
    'training_percent of block minus tile'
    """

    words: str
    metric: str
    arm: str
    over: str = ""
    expected: Range = (-math.inf, math.inf)
    published: Range | None = None
    stress: str = ""
    minus: str = ""

    def __post_init__(self) -> None:
        if self.over and self.minus:
            raise ValueError(f"expectation {self.words!r}: over {self.over!r} or minus {self.minus!r}, not both")
        for name, ends in (("expected", self.expected), ("published", self.published)):
            if ends is not None and not ends[0] <= ends[1]:
                raise ValueError(f"expectation {self.words!r}: {name} must be (low, high), not {ends}")

    def judge(self, means: Means, void: Sequence[str] = (), *, registered: bool = True) -> Finding:
        """Measure, and say which of the two happened; void for these reasons.

        A range that was not registered before is not judged: the number is all there is. Neither is a ratio whose
        denominator is not told from 0.
        """
        found = estimate(means, self.metric, self.arm, self.stress, over=self.over, minus=self.minus)
        return self.became(found, void, registered=registered)

    def judge_resampled(
        self, of: Callable[[str], Resampled], void: Sequence[str] = (), *, registered: bool = True
    ) -> Finding:
        """Measure and say, as `judge`, where `of` gives the metric of an arm in resamples of the data."""
        found = of(self.arm)
        if self.over:
            return self.became(found.over(of(self.over)), void, registered=registered)
        apart = found.minus(of(self.minus)) if self.minus else found
        return self.became(apart.estimate, void, registered=registered)

    def became(self, found: Estimate, void: Sequence[str] = (), *, registered: bool = True) -> Finding:
        """Say which of the two happened, as `judge`, of a number that was measured."""
        expected = self.expected[0] <= found.value <= self.expected[1]
        published = self.published is not None and self.published[0] <= found.value <= self.published[1]
        outcome = {(True, True): BOTH, (True, False): AS_EXPECTED, (False, True): AS_PUBLISHED}
        judged = NO_RATIO if found.instead else outcome.get((expected, published), NEITHER)
        return Finding(self, found, said(judged if registered else NOT_REGISTERED, void))

    @classmethod
    def of(cls, content: dict[str, Any]) -> Expectation:
        """Return the expectation that was written as JSON."""
        ranges = {
            key: None if content[key] is None else (float(content[key][0]), float(content[key][1]))
            for key in ("expected", "published")
        }
        return cls(**{**content, **ranges})

    @property
    def other(self) -> str:
        """The arm that this one is held against; empty for a number of one arm."""
        return self.over or self.minus

    @property
    def quantity(self) -> str:
        """What the number is, in words."""
        under = f" under {self.stress}" if self.stress else ""
        against = f" over {self.over}" if self.over else f" minus {self.minus}" if self.minus else ""
        return f"{self.metric} of {self.arm}{against}{under}"


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


def span(ends: Range | None) -> str:
    """Return a range in words.

    Examples
    --------
    >>> span((1.0, 1.25)), span((2.0, math.inf)), span((-math.inf, 0.01)), span(None)
    ('1 to 1.25', 'at least 2', 'at most 0.01', '')
    """
    if ends is None:
        return ""
    low, high = ends
    if math.isinf(high):
        return f"at least {low:g}"
    return f"at most {high:g}" if math.isinf(low) else f"{low:g} to {high:g}"


@dataclass(frozen=True)
class Measured:
    """Our side of a claim: the number in words, the number, and whether the claim holds."""

    words: str
    value: float
    holds: bool


@dataclass(frozen=True)
class Claim:
    """A published figure, and the function that measures it here."""

    claim: str
    source: str
    published: str
    measure: Callable[[], Measured]
