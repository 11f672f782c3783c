"""A cause of differences: what somebody did otherwise than the quantizer, as an object.

A cause predicts bits. Given what the quantizer makes, it yields what the mistake would have made in its place, once for
each of the forms it takes (every bound on amax, every format, every shift ...), each with a word for the form. The
search compares these predictions with what was found; no cause looks at another, and nothing asks for a cause's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ...registry import Registry
from .dump import Dump, Made

Stage = Literal["making", "codes", "scale", "tensor scale"]
Prediction = Callable[[Made, Dump], Iterator[tuple[str, Any]]]


@dataclass(frozen=True)
class Cause:
    """One thing that may have been done otherwise.

    Parameters
    ----------
    name : str
        What happened, in a few words.
    stage : {"making", "codes", "scale", "tensor scale"}
        What it changes. "making" yields a `Made`, all of a dump; the others yield codes, scales or the tensor's scale
        in place of those of any `Made`, so that a cause of making and one of each other stage are found together.
    predict : callable
        Of what is made and what was found; yields (form, prediction).
    mend : str
        What to do about it.
    weight : float
        How much it asks of one's belief; of causes that explain the same, the lightest are named. 1 for a plain
        mistake; more for what is read off the dump itself, as a factor or a flipped bit.
    pattern : bool
        Whether it is a mistake of all elements: that it fits a few of them alone says nothing.
    doubt : int
        How often what speaks against it counts. Near midpoints stochastic rounding looks like rounding twice half of
        the time.
    """

    name: str
    stage: Stage
    predict: Prediction
    mend: str
    weight: float = 1.0
    pattern: bool = True
    doubt: int = 1


causes: Registry[Cause] = Registry("cause", Cause)
"""All causes, in the order in which equals are named."""


def add(
    name: str, stage: Stage, mend: str, weight: float = 1.0, pattern: bool = True, doubt: int = 1
) -> Callable[[Prediction], Prediction]:
    """Register the cause that a function predicts."""

    def wrap(predict: Prediction) -> Prediction:
        causes.register(name, Cause(name, stage, predict, mend, weight, pattern, doubt))
        return predict

    return wrap
