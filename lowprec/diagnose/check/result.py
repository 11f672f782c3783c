"""What came of a check: a sentence, tables for people, rows for machines."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._show import table
from ..._values import ByBits
from .expected import Expected, Observed, values_of
from .search import UNEXPLAINED, Explanation

Cell = str | int | float | bool | None
Table = tuple[tuple[str, ...], list[list[Cell]]]
_TIES = 4  # that a sentence names


@dataclass(frozen=True)
class Counts:
    """How much differs from a quantizer: codes, scales of blocks, and the tensor's (0 or 1).

    `fits` tells whether there are as many scales, in the same shape.
    """

    quantizer: str
    codes: int
    scales: int
    tensor: int
    fits: bool = True

    @property
    def total(self) -> int:
        """All of it."""
        return self.codes + self.scales + self.tensor

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.total == 0 and self.fits


@dataclass(frozen=True, eq=False)
class Check(ByBits):
    """What differs from a quantizer, and why. It is true where nothing differs.

    Attributes
    ----------
    made : Expected
        What the quantizer makes of the values: `codes`, `scale`, `tensor`, and `v`, what it casts.
    found : Observed
        What came: `codes`, `scale`, `tensor`.
    counts : Counts
        How much differs.
    explanations : tuple of Explanation
        Causes that give what was found. Of several, each gives the same bits on this tensor. `left` says how much the
        nearest ones leave unexplained.
    codes : ndarray of str objects, shape (R, C)
        Cause of every code that differs, ``""`` where it does not.
    scales : ndarray of str objects, shape of the scales found
        The same for the scales of blocks.
    tensor : str
        The same for the tensor's scale.
    ranking : tuple of Counts
        Where no quantizer was named: how much differs from each, the nearest first.
    tied : tuple of str
        Where no quantizer was named and something differs: others that what was found fits as well.
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

    def __bool__(self) -> bool:
        return self.counts.same

    @property
    def quantizer(self) -> str:
        """The quantizer compared with: the one named, or the nearest."""
        return self.made.q.name or "the quantizer"

    @property
    def causes(self) -> tuple[str, ...]:
        """Every explanation in words; several if this tensor cannot tell them apart."""
        return tuple(map(str, self.explanations))

    @property
    def agreeing(self) -> tuple[str, ...]:
        """Quantizers from which nothing differs."""
        own = (self.quantizer,) if self.counts.same else ()
        return (*own, *(c.quantizer for c in self.ranking if c.same and c.quantizer != self.quantizer))

    def __repr__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """What was found, in a line."""
        if self:
            first, *others = self.agreeing
            more = f", nor from {_few(others)}: these values do not tell them apart" if others else ""
            return f"nothing differs from {first}{more}"
        parts = []
        if self.counts.codes:
            parts.append(f"{self.counts.codes} of {self.made.codes.size} codes")
        if self.counts.scales or not self.counts.fits:
            shape = "" if self.counts.fits else f" {self.found.scale.shape}, needed are {self.made.scale.shape},"
            parts.append(f"{self.counts.scales} of {max(self.made.scale.size, self.found.scale.size)} scales{shape}")
        if self.counts.tensor:
            parts.append("the tensor's scale")
        also = f" (and, as well, from {_few(self.tied)})" if self.tied else ""
        said = f"{_listed(parts)} differ{'' if _many(parts) else 's'} from {self.quantizer}{also}"
        if not self.explanations:
            return f"{said}; no known cause explains most of it"
        words = " - or ".join(self.causes[:_TIES])
        tie = " (these values do not tell them apart)" if len(self.causes) > 1 else ""
        left = self.explanations[0].left
        return f"{said}; {'all fit' if not left else f'all but {left} fit'}: {words}{tie}"

    def mending(self) -> Table:
        """Return a row for every cause: the cause, its stage and its fix."""
        seen: dict[str, list[Cell]] = {}
        for e in self.explanations:
            for step in e.steps:
                seen.setdefault(str(step), [str(step), step.cause.stage, step.cause.fix])
        return ("cause", "stage", "fix"), list(seen.values())

    def differing(self) -> Table:
        """Return a row for every cause of codes, of scales and of the tensor's scale, with the first place of each."""
        made, found = self.made, self.found
        rows: list[list[Cell]] = []
        if self.tensor:
            own = None if made.tensor is None else float(made.tensor)
            rows.append(
                ["tensor scale", self.tensor, 1, 1.0, "", None if found.tensor is None else float(found.tensor), own]
            )
        same_shape = found.scale.shape == made.scale.shape
        for what, names, theirs, ours in (
            ("scale", self.scales, found.scale, made.scale if same_shape else None),
            ("code", self.codes, found.codes, made.codes),
        ):
            for name, count in Counter(names[names != ""].tolist()).most_common():
                at = tuple(np.argwhere(names == name)[0])
                rows.append([what, name, count, count / names.size, f"[{', '.join(map(str, at))}]", theirs[at].item(),
                             None if ours is None else ours[at].item()])  # fmt: skip
        return ("what", "cause", "differ", "share", "first at", "found", f"{self.quantizer}'s"), rows

    def first(self, most: int = 10) -> Table:
        """Return the first codes that differ, those not explained first: value, what is cast, codes, their meaning."""
        made, found = self.made, self.found
        rows: list[list[Cell]] = []
        theirs, ours = (values_of(codes, made.format) for codes in (found.codes, made.codes))
        at = [np.argwhere(self.codes == UNEXPLAINED), np.argwhere((self.codes != "") & (self.codes != UNEXPLAINED))]
        for i, j in np.concatenate(at)[:most]:
            rows.append([
                f"[{i}, {j}]", float(made.x[i, j]), float(made.v[i, j]), f"0x{int(found.codes[i, j]):02X}",
                float(theirs[i, j]), f"0x{int(made.codes[i, j]):02X}", float(ours[i, j]), str(self.codes[i, j]),
            ])  # fmt: skip
        head = ("at", "x", "before the cast", "code", "means", f"{self.quantizer}'s", "which means", "cause")
        return head, rows

    def nearest(self) -> Table:
        """Return a row for each quantizer compared with: how many codes and scales differ, and the tensor's scale."""
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
        """Return what is to be shown, each table with its title; those without a row are left out."""
        if self:
            return []
        nearest = self.nearest()
        all_ = [
            ("Causes", self.mending()),
            (f"What differs from {self.quantizer}", self.differing()),
            ("First codes that differ", self.first()),
            ("Nearest quantizers", (nearest[0], nearest[1][:8]) if self.ranking else (nearest[0], [])),
        ]
        return [(title, table) for title, table in all_ if table[1]]

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self.sentence)}</b></p>"]
        parts += [table(rows, columns, title) for title, (columns, rows) in self.tables()]
        return f'<div class="lowprec-check">{"".join(parts)}</div>'


def _few(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _TIES} more" if len(names) > _TIES else ""
    return ", ".join(names[:_TIES]) + rest


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _many(parts: Sequence[str]) -> bool:
    return len(parts) > 1 or not parts[0].startswith(("the ", "1 of"))
