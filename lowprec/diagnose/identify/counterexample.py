"""The smallest output that no rule gives, term by term, with what each rule gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...format.catalogue import Format
from ...tensorcore.accumulator import FLOAT64
from .candidate import Candidate
from .dump import GemmDump, values, word_of


@dataclass(frozen=True)
class Term:
    """A product that is not zero: its place in K, both codes and values, and what it is worth."""

    k: int
    a_code: int
    a: float
    b_code: int
    b: float

    @property
    def product(self) -> float:
        """Its value; exact for operands of up to 24 bits."""
        return self.a * self.b

    @property
    def exponent(self) -> int:
        """Exponent of the normalised product."""
        return int(np.frexp(self.product)[1]) - 1


@dataclass(frozen=True)
class Counterexample:
    """One output that the nearest rule does not give.

    Attributes
    ----------
    place : tuple of int
        Where it is in d.
    terms : tuple of Term
        Its products other than zero.
    c : float or None
        Its addend.
    theirs : tuple of int and float
        Its bits and value in the dump.
    rules : tuple of (name, bits, value)
        What each rule gives, the nearest of all outputs first.
    """

    place: tuple[int, ...]
    terms: tuple[Term, ...]
    c: float | None
    theirs: tuple[int, float]
    rules: tuple[tuple[str, int, float], ...]


def counterexample(dump: GemmDump, nearest: Candidate, others: Sequence[Candidate]) -> Counterexample | None:
    """Return the differing output with the fewest products other than zero; None if nothing differs."""
    wrong = np.concatenate([nearest.differing(part) for part in dump.parts()])
    if not wrong.any():
        return None
    a, b = values(dump.a, dump.fa) != 0, values(dump.b, dump.fb) != 0
    if dump.by_row:
        products = np.count_nonzero(a & b, axis=1)
    else:  # whole numbers below 2^24: the same on every CPU
        products = (a.astype(np.float32) @ b.astype(np.float32).T).reshape(-1).astype(np.int64)
    at = int(np.flatnonzero(wrong)[np.argmin(products[wrong])])
    place = dump.place(at)
    part = dump.single(place)
    rules = []
    for candidate in (nearest, *others):
        try:
            bits = int(candidate.outputs(part)[0])
        except (ValueError, TypeError):
            continue
        around = "" if candidate.library is None else f" within {candidate.library}"
        rules.append((f"{candidate.accumulator}{around}", bits, value(bits, dump.out)))
    theirs = int(part.wanted[0])
    return Counterexample(
        place, terms(dump, place), None if part.c is None else float(part.c[0, 0]), (theirs, value(theirs, dump.out)),
        tuple(dict.fromkeys(rules)),
    )  # fmt: skip


def terms(dump: GemmDump, place: tuple[int, ...]) -> tuple[Term, ...]:
    """Return the products of an output that are not zero."""
    part = dump.single(place)
    x, y = values(part.a, part.fa)[0], values(part.b, part.fb)[0]
    codes = [codes.view(np.uint64)[0] if codes.dtype == np.float64 else codes[0] for codes in (part.a, part.b)]
    with np.errstate(invalid="ignore"):
        kept = np.flatnonzero((x * y != 0) | np.isnan(x * y))
    return tuple(Term(int(k), int(codes[0][k]), float(x[k]), int(codes[1][k]), float(y[k])) for k in kept)


def value(bits: int, fmt: Format) -> float:
    """Return what an output's bits mean."""
    word = np.array([bits], word_of(fmt))
    return float(values(word.view(np.float64) if fmt == FLOAT64 else word, fmt)[0])
