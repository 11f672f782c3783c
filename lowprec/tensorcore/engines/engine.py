"""`Engine`: base class of the fast implementations of a product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...format.catalogue import Format
from ..accumulator import Accumulator
from ..problem import GemmProblem, Matrix, Places

NO_PLACES = np.empty(0, np.intp)


class PartialResult(NamedTuple):
    """A result, with the rows and columns outside an engine's limits, which the reference recomputes."""

    out: Matrix
    rows: Places = NO_PLACES
    columns: Places = NO_PLACES


class Trial(NamedTuple):
    """A fixed accumulator and two formats with which an engine's machine code is verified before its first use."""

    fields: dict[str, Any]
    fa: Format
    fb: Format


@dataclass(frozen=True)
class Engine(ABC):
    """A fast implementation of products of two formats on one accumulator; equal engines share packed operands.

    `find` checks all conditions on the accumulator, the formats and the CPU. `run` returns the result, in which every
    NaN is canonical, and the rows and columns whose data exceed the engine's limits, which the reference recomputes.

    Parameters
    ----------
    accumulator : Accumulator
        Accumulator of the products.
    fa, fb : Format
        Formats in which A and B are multiplied.
    machine : str
        Instruction set, a key of `selection.INSTRUCTION_SETS`, or "" for code that is the same on all of them.
    """

    accumulator: Accumulator
    fa: Format
    fb: Format
    machine: str

    #: Whether `run` computes scaled sums of chains; otherwise it receives their chains one by one.
    whole: ClassVar[bool] = False
    #: Trial of the engine; None for engines in plain vector code, which is identical on every instruction set.
    trial: ClassVar[Trial | None] = None

    @classmethod
    @abstractmethod
    def find(cls, accumulator: Any, fa: Format, fb: Format, machine: str) -> Engine | None:
        """Return the engine if it is exact for an accumulator and two formats, else None."""

    @abstractmethod
    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Compute a product with K >= 1; `parts` is the result of `pack` for B."""

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None) -> Any:
        """Pack B for several products, or return None if the engine does not pack."""
        return None

    def on_trial(self) -> Engine:
        """Return the engine with the same machine code for the accumulator and formats of its trial."""
        assert self.trial is not None
        fields, fa, fb = self.trial
        accumulator: Any = type(self.accumulator)
        return replace(self, accumulator=accumulator("trial", align=self.accumulator.align, **fields), fa=fa, fb=fb)


class Packed(NamedTuple):
    """B as packed by one engine."""

    engine: Engine
    parts: Any


def find_nonfinite(x: Matrix) -> tuple[Places, Places]:
    """Return rows or columns that together contain all non-finite elements, whichever are fewer."""
    finite = np.isfinite(x)
    if finite.all():
        return NO_PLACES, NO_PLACES
    rows, columns = np.flatnonzero(~finite.all(axis=1)), np.flatnonzero(~finite.all(axis=0))
    return (rows, NO_PLACES) if rows.size * x.shape[1] <= columns.size * x.shape[0] else (NO_PLACES, columns)


def union(one: tuple[Places, Places], other: tuple[Places, Places]) -> tuple[Places, Places]:
    """Return the union of two sets of rows and columns."""
    return np.union1d(one[0], other[0]), np.union1d(one[1], other[1])


def products_fit_float32(*operands: Format) -> bool:
    """Return whether products have at most 24 significant bits, so that float32 represents them within its range."""
    return all(f.mantissa_bits <= 11 and f.signed and f.has_subnormals for f in operands)
