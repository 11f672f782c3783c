"""`Engine`: base of the fast ways to compute a product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...format.catalogue import Format
from ..accumulator import Accumulator
from ..problem import GemmProblem, Matrix, Places

NONE = np.empty(0, np.intp)


class Computed(NamedTuple):
    """A result, with the rows and columns outside an engine's limits: the reference computes those again."""

    out: Matrix
    rows: Places = NONE
    columns: Places = NONE


class Trial(NamedTuple):
    """A fixed accumulator and two formats on which an engine's machine code is checked before its first use."""

    fields: dict[str, Any]
    fa: Format
    fb: Format


@dataclass(frozen=True)
class Engine(ABC):
    """A fast way to compute products of two formats on one accumulator; equal ones share packed operands.

    `find` holds all conditions on the accumulator, the formats and the CPU; `run` returns the rows and columns whose
    data are outside the limits. No decision about a row or column reads another one, and every NaN is canonical.

    Parameters
    ----------
    accumulator : Accumulator
    fa, fb : Format
        Formats of A and B as they are multiplied.
    machine : str
        Instruction set, a key of `selection.MACHINES`.
    """

    accumulator: Accumulator
    fa: Format
    fb: Format
    machine: str

    #: Whether it computes scaled sums of chains; else it is given their chains one by one.
    whole: ClassVar[bool] = False
    #: None for engines that are plain vector code, the same on every instruction set.
    trial: ClassVar[Trial | None] = None

    @classmethod
    @abstractmethod
    def find(cls, accumulator: Any, fa: Format, fb: Format, machine: str) -> Engine | None:
        """Return the engine if it is exact for an accumulator and two formats; else None."""

    @abstractmethod
    def run(self, p: GemmProblem, parts: Any = None) -> Computed:
        """Compute a product with at least one k; `parts` is B as `pack` returned it."""

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None) -> Any:
        """Lay out B for several products; None if the engine keeps nothing."""
        return None

    def on_trial(self) -> Engine:
        """Return the same machine code for the accumulator and formats of its trial."""
        assert self.trial is not None
        fields, fa, fb = self.trial
        accumulator: Any = type(self.accumulator)
        return replace(self, accumulator=accumulator("trial", align=self.accumulator.align, **fields), fa=fa, fb=fb)


class Packed(NamedTuple):
    """B as one engine laid it out."""

    engine: Engine
    parts: Any


def not_finite(x: Matrix) -> tuple[Places, Places]:
    """Return the rows, or else the columns, that hold everything that is not finite: whichever are fewer."""
    finite = np.isfinite(x)
    if finite.all():
        return NONE, NONE
    rows, columns = np.flatnonzero(~finite.all(axis=1)), np.flatnonzero(~finite.all(axis=0))
    return (rows, NONE) if rows.size * x.shape[1] <= columns.size * x.shape[0] else (NONE, columns)


def joined(one: tuple[Places, Places], other: tuple[Places, Places]) -> tuple[Places, Places]:
    """Return the rows and columns of both."""
    return np.union1d(one[0], other[0]), np.union1d(one[1], other[1])


def short(*operands: Format) -> bool:
    """Return whether products of the formats have at most 24 bits: exact in float32, exponents aside."""
    return all(f.mantissa_bits <= 11 and f.signed and f.has_zero for f in operands)
