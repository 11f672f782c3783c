"""Expected and published results of measurements, as data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NOT_REGISTERED = "not registered"

Range = tuple[float, float]


@dataclass(frozen=True)
class Expectation:
    """Expected range of a number that a study measures.

    Parameters
    ----------
    words : str
        Expected finding in prose, written before the first run.
    metric : str
        Name of the measured quantity.
    arm : str
        Name of the arm.
    over : str
        Name of a second arm; the metric of `arm` is divided by that of the second. Empty for no division.
    minus : str
        Name of a second arm, with a metric that is subtracted from that of `arm`; empty for no difference. Differences
        are for effects that may be 0, of which a ratio has no meaning.
    expected : (float, float)
        Expected range, both ends included.
    published : (float, float), optional
        Range of the number if the published finding holds at this size; None if nothing was published.
    condition : str
        Condition of the measurement; the study's first condition by default.

    Examples
    --------
    >>> e = Expectation("blocks train as tiles do", "training_percent", "block", minus="tile", expected=(-0.1, 0.1))
    >>> e.quantity
    'training_percent of block minus tile'
    """

    words: str
    metric: str
    arm: str
    over: str = ""
    expected: Range = (-math.inf, math.inf)
    published: Range | None = None
    condition: str = ""
    minus: str = ""

    def __post_init__(self) -> None:
        if self.over and self.minus:
            raise ValueError(
                f"expectation {self.words!r}: one of over and minus must be empty, got {self.over!r} and {self.minus!r}"
            )
        for name, ends in (("expected", self.expected), ("published", self.published)):
            if ends is not None and not ends[0] <= ends[1]:
                raise ValueError(f"expectation {self.words!r}: {name} must be (low, high), got {ends}")

    @classmethod
    def of(cls, content: dict[str, Any]) -> Expectation:
        """Return an expectation from its JSON form."""
        ranges = {
            key: None if content[key] is None else (float(content[key][0]), float(content[key][1]))
            for key in ("expected", "published")
        }
        return cls(**{**content, **ranges})

    @property
    def other(self) -> str:
        """Name of the arm with which `arm` is compared; empty if the number is that of `arm` alone."""
        return self.over or self.minus

    @property
    def quantity(self) -> str:
        """Description of the number: metric and arms."""
        under = f" under {self.condition}" if self.condition else ""
        against = f" over {self.over}" if self.over else f" minus {self.minus}" if self.minus else ""
        return f"{self.metric} of {self.arm}{against}{under}"


def span(ends: Range | None) -> str:
    """Format a range as text.

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
    """Our measurement of a claim: a description of the number, its value, and whether the claim holds."""

    words: str
    value: float
    holds: bool


@dataclass(frozen=True)
class Claim:
    """A published figure, and a function that measures it here."""

    claim: str
    source: str
    published: str
    measure: Callable[[], Measured]
