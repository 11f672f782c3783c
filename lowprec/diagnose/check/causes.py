"""Causes of differences as objects: each predicts the bits that one mistake makes.

Given the quantizer's codes and scales, a cause yields what the mistake makes in their place, once for each of its
forms (every bound on amax, every format, every shift), each with a word for the form. The search compares the
predictions with what was found. A cause looks at no other cause, and no code asks for the name of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...cast.casts import round_to
from ...registry import Registry
from .expected import Expected, Observed

Stage = Literal["making", "codes", "scale", "tensor scale"]
Prediction = Callable[[Expected, Observed], Iterator[tuple[str, Any]]]

MEMORY = "look at memory, transfers and races: no rule gives this"


@dataclass(frozen=True)
class Cause:
    """One thing that may have been done otherwise.

    Parameters
    ----------
    name : str
        The mistake, in a few words.
    stage : {"making", "codes", "scale", "tensor scale"}
        What it changes. "making" yields an `Expected`, all of a dump; the others yield codes, scales or the tensor's
        scale in place of those of any `Expected`, so that causes of several stages are found together.
    predict : callable
        Takes the expected and the found dump; yields (form, prediction).
    fix : str
        How to correct it.
    prior_cost : float
        Prior cost; of causes that explain the same, the cheapest are named. 1 for a plain mistake; more for a number
        that is read off the dump itself, as a factor or a flipped bit.
    needs_majority : bool
        Whether the mistake concerns all elements: a fit of a few of them alone shows nothing.
    penalty : int
        Factor of the evidence against it. Near midpoints stochastic rounding looks like rounding twice half of the
        time.
    """

    name: str
    stage: Stage
    predict: Prediction
    fix: str
    prior_cost: float = 1.0
    needs_majority: bool = True
    penalty: int = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name: what predicts may be a function that no name leads to."""
        return _cause_of_name, (self.name,)


def _cause_of_name(name: str) -> Cause:
    return causes[name]


causes: Registry[Cause] = Registry("cause", Cause)
"""All causes, in the order in which equals are named."""


def add(
    name: str, stage: Stage, fix: str, prior_cost: float = 1.0, needs_majority: bool = True, penalty: int = 1
) -> Callable[[Callable[[Expected, Observed], Mapping[str, Any] | Iterable[tuple[str, Any]]]], Any]:
    """Register the cause that a function predicts: it yields (form, prediction), or returns a dict of them."""

    def wrap(forms: Callable[[Expected, Observed], Mapping[str, Any] | Iterable[tuple[str, Any]]]) -> Any:
        def predict(made: Expected, found: Observed) -> Iterator[tuple[str, Any]]:
            predicted = forms(made, found)
            yield from predicted.items() if isinstance(predicted, Mapping) else predicted

        causes.register(name, Cause(name, stage, predict, fix, prior_cost, needs_majority, penalty))
        return forms

    return wrap


def describe_flips(differing: NDArray[Any], words: NDArray[Any], most: int) -> str | None:
    """Return where words differ in one bit each; None if there are none or too many, or one differs in several bits."""
    at = np.argwhere(differing)
    if not 1 <= len(at) <= most:
        return None
    flips = words[tuple(at.T)].astype(np.int64)
    if ((flips == 0) | (flips & (flips - 1) != 0)).any():
        return None
    where = f"bit {int(flips[0]).bit_length() - 1} at [{at[0][0]}, {at[0][1]}]"
    return where if len(at) == 1 else f"{len(at)} of them, the first {where}"


def in_16_bits(x: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return float32 values rounded to the two 16-bit formats, by format."""
    return {"bfloat16": round_to(x, "bfloat16"), "float16": x.astype(np.float16).astype(np.float32)}
