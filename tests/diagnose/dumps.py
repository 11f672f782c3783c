"""Dumps of matrix products, and their parts, as tests of `identify` make them; a clock that counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import lowprec as lp
from lowprec.diagnose.identify.candidate import Candidate, MmaCandidate
from lowprec.diagnose.identify.dump import GemmDump
from lowprec.diagnose.identify.inputs import dump_of

E4M3 = {"a_format": "e4m3fn", "b_format": "e4m3fn"}


def mma(machine: str | lp.Accumulator, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
    """Return a product of E4M3 codes."""
    return lp.mma(a, b, c, accumulator=machine, **E4M3)


def plain_dump(a: np.ndarray, b: np.ndarray, c: np.ndarray | None, d: np.ndarray, fmt: str = "e4m3fn") -> GemmDump:
    """Return a dump without scales."""
    return dump_of(a, b, c, d, a_format=fmt, b_format=fmt, d_format=None, a_scale=None, b_scale=None)


def candidate(name: str, **changes: Any) -> Candidate:
    """Return a machine of the catalogue that takes any format, with other fields."""
    return MmaCandidate(lp.accumulators[name].with_(input_formats=(), **changes))


@dataclass
class Clock:
    """Time that passes by a second with every step."""

    seconds: int = 0

    def monotonic(self) -> int:
        return self.seconds

    def counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            self.seconds += 1
            return step(*args, **options)

        return run
