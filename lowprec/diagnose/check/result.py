"""Result of a check: a sentence, and tables."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._markup import html_table
from ..._values import BitwiseEq
from ..deadline import SECONDS
from ..words import join_all, join_some
from .attribution import UNEXPLAINED
from .expected import Expected, Observed, values_of
from .search import Explanation

Cell = str | int | float | bool | None
Table = tuple[tuple[str, ...], list[list[Cell]]]
_TIES = 4  # largest number of equally good quantizers in a sentence


@dataclass(frozen=True)
class Counts:
    """Number of codes, block scales and tensor scales (0 or 1) that differ from a quantizer.

    `fits` is whether the scales have the quantizer's shape.
    """

    quantizer: str
    codes: int
    scales: int
    tensor: int
    fits: bool = True

    @property
    def total(self) -> int:
        """Number of all differences."""
        return self.codes + self.scales + self.tensor

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.total == 0 and self.fits


@dataclass(frozen=True, eq=False)
class Check(BitwiseEq):
    """Differences from a quantizer, and their causes. It is true if nothing differs.

    Attributes
    ----------
    made : Expected
        Result of the quantizer for the values: `codes`, `scale`, `tensor`, and `v`, the numbers that it casts.
    found : Observed
        Dump that was checked: `codes`, `scale`, `tensor`.
    counts : Counts
        Number of differences.
    explanations : tuple of Explanation
        Causes that give the bits found. If there are several, all give the same bits on this tensor. `left` of an
        explanation is the number of differences that it does not explain.
    codes : ndarray of str objects, shape (R, C)
        Cause of every code that differs, ``""`` where it does not.
    scales : ndarray of str objects, shape of the scales found
        Cause of every block scale that differs, ``""`` where it does not.
    tensor : str
        Cause if the tensor's scale differs, else ``""``.
    ranking : tuple of Counts
        If no quantizer was named: the number of differences from each, the nearest first.
    tied : tuple of str
        If no quantizer was named and something differs: names of other quantizers that fit equally well.
    complete : bool
        Whether all quantizers were compared, and all causes tried, within the time limit.
    seconds : float
        Time limit of the search.
    """

    made: Expected
    found: Observed
    counts: Counts
    explanations: tuple[Explanation, ...]
    codes: NDArray[Any]
    scales: NDArray[Any]
    tensor: str = ""
    ranking: tuple[Counts, ...] = ()
    tied: tuple[str, ...] = ()
    complete: bool = True
    seconds: float = SECONDS

    def __bool__(self) -> bool:
        return self.counts.same

    @property
    def quantizer(self) -> str:
        """Quantizer of the comparison: the one that was named, or the nearest."""
        return self.made.q.name or "the quantizer"

    @property
    def causes(self) -> tuple[str, ...]:
        """Explanations as text; several if this tensor cannot distinguish them."""
        return tuple(map(str, self.explanations))

    @property
    def agreeing(self) -> tuple[str, ...]:
        """Names of the quantizers that give the same codes and scales."""
        own = (self.quantizer,) if self.counts.same else ()
        return (*own, *(c.quantizer for c in self.ranking if c.same and c.quantizer != self.quantizer))

    def __repr__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """Summary in one line."""
        late = "" if self.complete else f"; the {self.seconds:g} s ended before all was tried"
        return f"{self._finding()}{late}"

    def _finding(self) -> str:
        if self:
            first, *others = self.agreeing
            more = f", nor from {join_some(others)}: these values do not distinguish them" if others else ""
            return f"nothing differs from {first}{more}"
        parts = []
        if self.counts.codes:
            parts.append(f"{self.counts.codes} of {self.made.codes.size} codes")
        if self.counts.scales or not self.counts.fits:
            shape = "" if self.counts.fits else f" {self.found.scale.shape} for {self.made.scale.shape}"
            parts.append(f"{self.counts.scales} of {max(self.made.scale.size, self.found.scale.size)} scales{shape}")
        if self.counts.tensor:
            parts.append("the tensor's scale")
        also = f" (and, as well, from {join_some(self.tied)})" if self.tied else ""
        text = f"{join_all(parts)} differ{'' if _many(parts) else 's'} from {self.quantizer}{also}"
        if not self.explanations:
            return f"{text}; no known cause explains most of it"
        words = " - or ".join(self.causes[:_TIES])
        tie = " (these values do not distinguish them)" if len(self.causes) > 1 else ""
        left = self.explanations[0].left
        return f"{text}; {'all fit' if not left else f'all but {left} fit'}: {words}{tie}"

    def mending(self) -> Table:
        """Return one row per cause: the cause, its stage and its fix."""
        seen: dict[str, list[Cell]] = {}
        for e in self.explanations:
            for step in e.steps:
                seen.setdefault(str(step), [str(step), step.cause.stage, step.cause.fix])
        return ("cause", "stage", "fix"), list(seen.values())

    def differing(self) -> Table:
        """Return one row per cause of differing codes, block scales or tensor scale, with the first position."""
        made, found = self.made, self.found
        rows: list[list[Cell]] = []
        if self.tensor:
            own = None if made.tensor is None else float(made.tensor)
            rows.append(
                ["tensor scale", self.tensor, 1, 1.0, "", None if found.tensor is None else float(found.tensor), own]
            )
        same_shape = found.scale.shape == made.scale.shape
        for part, names, theirs, ours in (
            ("scale", self.scales, found.scale, made.scale if same_shape else None),
            ("code", self.codes, found.codes, made.codes),
        ):
            for name, count in Counter(names[names != ""].tolist()).most_common():
                at = tuple(np.argwhere(names == name)[0])
                rows.append([part, name, count, count / names.size, f"[{', '.join(map(str, at))}]", theirs[at].item(),
                             None if ours is None else ours[at].item()])  # fmt: skip
        return ("part", "cause", "number", "share", "first index", "found", f"{self.quantizer}'s"), rows

    def first(self, most: int = 10) -> Table:
        """Return the first codes that differ, unexplained ones first: value, quotient that is cast, both codes."""
        made, found = self.made, self.found
        rows: list[list[Cell]] = []
        theirs, ours = (values_of(codes, made.format) for codes in (found.codes, made.codes))
        at = [np.argwhere(self.codes == UNEXPLAINED), np.argwhere((self.codes != "") & (self.codes != UNEXPLAINED))]
        for i, j in np.concatenate(at)[:most]:
            rows.append([
                f"[{i}, {j}]", float(made.x[i, j]), float(made.v[i, j]), f"0x{int(found.codes[i, j]):02X}",
                float(theirs[i, j]), f"0x{int(made.codes[i, j]):02X}", float(ours[i, j]), str(self.codes[i, j]),
            ])  # fmt: skip
        head = ("index", "x", "quotient", "code", "value", f"{self.quantizer}'s code", "its value", "cause")
        return head, rows

    def nearest(self) -> Table:
        """Return a row per quantizer: numbers of differing codes and scales, and whether the tensor's scale differs."""
        n, s = self.made.codes.size, self.found.scale.size
        words = {0: "same", 1: "differs"}
        rows: list[list[Cell]] = [
            [c.quantizer, c.codes, c.codes / n, c.scales if c.fits else None, c.scales / max(s, 1) if c.fits else None,
             words[c.tensor], "" if c.fits else "other shape"]
            for c in self.ranking or (self.counts,)
        ]  # fmt: skip
        head = ("quantizer", "codes that differ", "share", "scales that differ", "share of scales", "tensor scale")
        return (*head, "blocks"), rows

    def tables(self) -> list[tuple[str, Table]]:
        """Return the tables to show, with their titles, without empty ones."""
        if self:
            return []
        nearest = self.nearest()
        all_ = [
            ("Causes", self.mending()),
            (f"Differences from {self.quantizer}", self.differing()),
            ("First codes that differ", self.first()),
            ("Nearest quantizers", (nearest[0], nearest[1][:8]) if self.ranking else (nearest[0], [])),
        ]
        return [(title, table) for title, table in all_ if table[1]]

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self.sentence)}</b></p>"]
        parts += [html_table(rows, columns, title) for title, (columns, rows) in self.tables()]
        return f'<div class="lowprec-check">{"".join(parts)}</div>'


def _many(parts: Sequence[str]) -> bool:
    return len(parts) > 1 or not parts[0].startswith(("the ", "1 of"))
