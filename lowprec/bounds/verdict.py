"""Verdicts on a result, one class for each, and the arguments of ``allclose``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple


class AtolRtol(NamedTuple):
    """Arguments of ``allclose`` against the exact result.

    Attributes
    ----------
    atol, rtol : float
        Smallest pair: rtol is half an ulp of the result's format, and atol bounds the remaining error.
    probability : float
        Probability that a correct result of this shape is rejected; 0: the pair is proven to accept it.
    """

    atol: float
    rtol: float
    probability: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on a result: true if the result is accepted.

    Attributes
    ----------
    cause : str
        Fault that explains a rejected result, or "".
    """

    accepted: ClassVar[bool]
    cause: str = ""

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(frozen=True, kw_only=True)
class BitsEqual(Verdict):
    """Verdict that the result has the bits of the emulation."""

    accepted = True

    def __str__(self) -> str:
        return "bits equal"


@dataclass(frozen=True, kw_only=True)
class Measured(Verdict):
    """Verdict by the sizes of errors, with the output that has the largest error relative to the expected one.

    Attributes
    ----------
    worst : tuple of int
        Index of the output with the largest relative error.
    error, allowed : float
        Error of that output, and its proven bound.
    p : float
        Probability that the arithmetic has errors as large as those of all outputs, or larger.
    """

    worst: tuple[int, ...]
    error: float
    allowed: float
    p: float

    @property
    def place(self) -> str:
        """Index of the output as text."""
        return f"[{', '.join(map(str, self.worst))}]"

    @property
    def named(self) -> str:
        """Sentence with the fault, or ""."""
        return f" It is what this does: {self.cause}." if self.cause else ""


@dataclass(frozen=True, kw_only=True)
class Inside(Measured):
    """Verdict that no output exceeds its bound, and that the errors are probable for the arithmetic in some order."""

    accepted = True

    def __str__(self) -> str:
        return "inside what this arithmetic does in some order"


@dataclass(frozen=True, kw_only=True)
class Unlike(Measured):
    """Verdict that no output exceeds its bound, but that the errors are improbable for the arithmetic."""

    accepted = False

    def __str__(self) -> str:
        return (
            f"possible but unlike this arithmetic (p = {self.p:.1g}): at {self.place} off by {self.error:.3g}, "
            f"proven bound {self.allowed:.3g}.{self.named}"
        )


@dataclass(frozen=True, kw_only=True)
class Impossible(Measured):
    """Verdict that some outputs exceed the proven bound.

    Attributes
    ----------
    outside : int
        Number of outputs that exceed the bound, or that differ from the exact result in being NaN or Inf.
    """

    outside: int
    accepted = False

    def __str__(self) -> str:
        outputs = "1 output is" if self.outside == 1 else f"{self.outside} outputs are"
        head = f"impossible: {outputs} beyond what rounding can do; the worst, at {self.place}, "
        if math.isnan(self.allowed):
            return f"{head}is not the NaN or Inf that the operands give.{self.named}"
        if math.isnan(self.error):
            return f"{head}is NaN and should not be.{self.named}"
        return f"{head}is off by {self.error:.3g}, where at most {self.allowed:.3g} is possible.{self.named}"
