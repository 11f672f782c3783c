"""`identify`: operands and outputs in, the arithmetic out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._ieee import standard
from ..._show import table
from ...format.catalogue import Format
from ...registry import cached
from ...tensorcore.accumulator import ALIGNMENTS, FLOAT64, Accumulator
from ...tensorcore.library import GemmLibrary
from .candidate import Candidate
from .dump import GemmDump, dump_of
from .equivalents import Alike, Equivalents, equivalents, pairs, plainest, spelled
from .normal_form import NormalForms
from .probes import Probes, probes_for
from .ranking import Counterexample, Ranked, count, counterexample, rank, with_first_apart
from .search import Score, Search
from .search_plan import find

#: Of outputs that may be damaged in a dump whose arithmetic is known all the same.
DAMAGED = 0.01
#: Candidates that a search tries before it ends: a minute, or less.
LIMIT = 120_000
_ASKED = 16  # values of a field that probes are made for
_OPTIONS = ("a_format", "b_format", "d_format", "a_scale", "b_scale")


@dataclass(frozen=True, eq=False)
class Identification:
    """What made a dump.

    Attributes
    ----------
    dumps : tuple of GemmDump
        What was looked at.
    ranking : tuple of Ranked
        The catalogue, the fewest differing outputs first.
    candidates : tuple of Candidate
        What explains every output, or all but the few of `differing`; best known first.
    open : dict of str to tuple
        Fields of the first candidate, and their other values that explain the dumps as well.
    same : dict of str to tuple
        Their other values that give the same for all operands of these formats and this K, as is proven.
    nearest : Candidate or None
        The first of `candidates`; where nothing explains the dumps, what leaves the fewest outputs.
    tried : int
        Candidates that were computed.
    """

    dumps: tuple[GemmDump, ...]
    ranking: tuple[Ranked, ...]
    candidates: tuple[Candidate, ...]
    open: Alike
    same: Alike
    nearest: Candidate | None
    tried: int

    def __repr__(self) -> str:
        """Return what was found, and what gives the outputs as a line of Python: the rest has names of its own."""
        return "\n".join((f"Identification: {self.sentence}", *(f"  {line}" for line in self.lines()[:4])))

    def _repr_html_(self) -> str:
        code = "".join(f"<pre>{escape(line)}</pre>" for line in self.lines()[:4])
        more = "".join(f"<li>{escape(line)}</li>" for line in self.alike())
        columns, rows = self.catalogue()
        beside = table(rows[:8], columns, f"The catalogue beside {self.dumps[0].d.size} outputs")
        return f"<p><b>{escape(self.sentence)}</b></p>{code}<ul>{more}</ul>{beside}"

    def alike(self) -> list[str]:
        """Return which other values of fields explain the dumps as well, a line a field."""
        said = (("as well, for all this dump shows", self.open), ("the same for any operands", self.same))
        return [f"{words}: {field} {spelled(others)}" for words, values in said for field, others in values.items()]

    def catalogue(self) -> tuple[tuple[str, ...], list[tuple[str | int | float | None, ...]]]:
        """Return `ranking` as a table: its columns and rows."""
        size = self.dumps[0].d.size
        rows: list[tuple[str | int | float | None, ...]] = [
            (
                ", ".join(r.names), ", ".join(r.libraries) or None, r.differing, r.differing / size,
                None if r.apart is None else f"{r.apart.start} to {r.apart.stop - 1}",
            )
            for r in self.ranking
        ]  # fmt: skip
        return ("accumulator", "library", "outputs that differ", "share", "first apart at k"), rows

    @property
    def machines(self) -> tuple[Accumulator, ...]:
        """Accumulators that explain every output, or all but the few of `differing`; best known first."""
        return tuple(dict.fromkeys(candidate.accumulator for candidate in self.explaining))

    @functools.cached_property
    def classes(self) -> tuple[tuple[Candidate, ...], ...]:
        """Return `explaining` in sets: those of one set give the same for all operands of these formats and this K.

        That is proven by their forms (`NormalForms`); whether those of two sets ever differ is open.
        """
        return NormalForms(self.dumps[0]).classes(self.explaining)

    @functools.cached_property
    def explaining(self) -> tuple[Candidate, ...]:
        """Return `candidates`, then the first of them with each value of `open`."""
        return self._with(None)

    def _with(self, most: int | None) -> tuple[Candidate, ...]:
        """Return `candidates`, then the first of them with at most so many values of each field of `open`."""
        found = list(self.candidates)
        for name, values in self.open.items():
            for i in np.unique(np.linspace(0, len(values) - 1, min(len(values), most or len(values))).astype(int)):
                other = found[0].changed(**{name: values[i]})
                if other is not None:
                    found.append(other.known(self.dumps[0]))
        return tuple(dict.fromkeys(found))

    @property
    def library(self) -> GemmLibrary | None:
        """What is done around the first machine's chains; None: a plain chain of instructions, or nothing fits."""
        return self.candidates[0].library if self.candidates else None

    @functools.cached_property
    def differing(self) -> tuple[tuple[int, ...], ...]:
        """Places of the outputs, of the first dump, that `nearest` does not give."""
        dump, best = self.dumps[0], self.nearest
        if best is None:
            return tuple(dump.place(i) for i in range(dump.d.size))
        wrong = np.concatenate([best.differing(part) for part in dump.parts()])
        return tuple(dump.place(int(i)) for i in np.flatnonzero(wrong))

    def lines(self) -> tuple[str, ...]:
        """Return each candidate as a line of Python that gives the outputs."""
        return tuple(candidate.line(self.dumps[0]) for candidate in self.candidates)

    def probes(self, seed: int = 0) -> Probes:
        """Look for operands that tell apart what this dump does not: what explains it, and some with two other fields.

        Of a field with many values that explain it, 16 are asked. Run them where the dump came from, and give
        `identify` the outputs beside the dump's.
        """
        if not self.explaining:
            raise ValueError("identify: nothing explains the dump, so that there is nothing to tell apart")
        dump = self.dumps[0]
        if dump.out == FLOAT64:
            return probes_for(dump, self.explaining, seed)
        forms = NormalForms(dump)
        two = pairs(Search(self.dumps, int(dump.d.size * DAMAGED), LIMIT), self.explaining[0], forms)
        classes = forms.classes((*self._with(_ASKED), *(c.known(dump) for c in two)))
        return probes_for(dump, [some[0] for some in classes], seed)

    def example(self) -> Counterexample | None:
        """Return the output that `nearest` does not give with the fewest products, and what other rules give for it."""
        if self.nearest is None:
            return None
        others = [r.candidate for r in self.ranking]
        for align in ALIGNMENTS:
            other = self.nearest.changed(align=align)
            others += [] if other is None or other == self.nearest else [other.known(self.dumps[0])]
        return counterexample(self.dumps[0], self.nearest, others)

    @property
    def sentence(self) -> str:
        """What was found, in a line."""
        n = self.dumps[0].d.size
        if not self.candidates:
            best = self.nearest
            n = sum(dump.d.size for dump in self.dumps)
            said = f"nothing explains the {n} outputs"
            wrong = 0 if best is None else sum(count(best, dump.parts()) for dump in self.dumps)
            return said if best is None else f"{said}; nearest is {best}, which gives {n - wrong}"
        several, proven = len(self.classes), len(self.classes[0]) - 1
        left = len(self.differing)
        n = sum(dump.d.size for dump in self.dumps) if not left else n
        what = f"all {n} outputs" if not left else f"all but {left} of {n} outputs"
        first = self.candidates[0]
        if several == 1 and not proven:
            return f"{first} explains {what}"
        if several == 1:
            others = "another does that is" if proven == 1 else f"{proven} others do that are"
            return f"{first} explains {what}, as {others} proven to be the same for these formats and this K"
        return f"{several} explain {what}, which this dump cannot tell apart: {first} and others"


@standard
def identify(
    a: Any, b: Any, c: ArrayLike | None, d: ArrayLike, *, a_format: str | Format | None = None,
    b_format: str | Format | None = None, d_format: str | Format | None = None, a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None, also: Sequence[Mapping[str, Any]] = (), limit: int = LIMIT,
) -> Identification:  # fmt: skip
    """Tell which arithmetic made the outputs of a matrix product.

    Parameters
    ----------
    a : array_like, shape (M, K)
        Codes of `a_format`, an array of ml_dtypes, torch or JAX whose type says it, or `Quantized`.
    b : array_like, shape (N, K)
        The same of B: ``d = A @ B.T + C``.
    c : array_like or None, shape of d
        The addend: numbers, or their bits as unsigned integers.
    d : array_like, shape (M, N); or (M,), with M = N
        Outputs, or their bits. A vector holds the products of rows, ``d[i] = a[i] . b[i] + c[i]``.
    a_format, b_format, d_format : str or Format, optional
        What codes, or bits, mean where their type does not say it. Bits of 32, 16 and 64 are float32, float16 and
        float64 if nothing else is said.
    a_scale, b_scale : array_like, shapes (M, K / block) and (N, K / block), optional
        Scales: codes (uint8, or float8_e8m0fnu) go into the instruction, numbers around it, as `lowprec.gemm` has it.
    also : sequence of mappings
        Arguments of more dumps that the same arithmetic made, such as probes with their outputs: ``{"a": ..., "b": ...,
        "c": None, "d": ...}``, with formats where they are needed.
    limit : int
        Candidates to try before the search ends, about 3,000 a second: one that takes longer counts as several.

    Returns
    -------
    Identification
        Its `machines` explain every output.

    Raises
    ------
    ValueError
        If shapes do not fit together, something is empty, or a format is unknown.
    TypeError
        If an array does not hold what is needed.

    Examples
    --------
    >>> import numpy as np, lowprec as lp
    >>> rng = np.random.default_rng(0)
    >>> a, b = (lp.encode(rng.standard_normal((16, 96)), "e4m3fn") for _ in "ab")
    >>> d = lp.mma(a, b, accumulator="ada_fp8")
    >>> found = lp.identify(a, b, None, d, a_format="e4m3fn", b_format="e4m3fn")
    >>> found.machines[0].name, found.differing
    ('ada_fp8', ())
    """
    dump = dump_of(
        a, b, c, d, a_format=a_format, b_format=b_format, d_format=d_format, a_scale=a_scale, b_scale=b_scale
    )
    more = []
    for given in also:
        arguments = {**dict.fromkeys(("c", *_OPTIONS)), **given}
        if unknown := set(arguments) - {"a", "b", "c", "d", *_OPTIONS}:
            raise TypeError(f"identify: also has {', '.join(sorted(unknown))}; a, b, c, d and their formats are known")
        more.append(dump_of(**arguments))
    if any((x.fa, x.fb, x.out, x.scaled) != (dump.fa, dump.fb, dump.out, dump.scaled) for x in more):
        raise ValueError("identify: dumps of different formats; what one instruction makes of one pair is identified")
    return explain((dump, *more), limit)


@cached(4)
def explain(dumps: tuple[GemmDump, ...], limit: int = LIMIT) -> Identification:
    """Identify what made some dumps, all by one arithmetic.

    The last answers are kept: with the outputs of further probes the same dumps come again, and what explained them is
    where the search goes on from.
    """
    dump = dumps[0]
    ranking = rank(dump)
    search = Search(dumps, int(dump.d.size * DAMAGED), limit)
    scores = {r.candidate: Score(r.differing, 0) if len(dumps) == 1 else search.score_all(r.candidate) for r in ranking}
    ranked = sorted(scores, key=lambda c: scores[c])  # the first dump alone may not distinguish kinds
    least = scores[ranked[0]].wrong if ranked else search.allowed + 1
    fit = [r.candidate for r in ranking if scores[r.candidate].wrong == least]
    if least and dump.out != FLOAT64:
        before = explain(dumps[:-1], limit) if len(dumps) > 1 else None
        earlier = () if before is None else before.explaining or explain(dumps[:1], limit).explaining
        found = find(search, ranked, earlier)
        if found and (left := search.score_all(found[0]).wrong) < least:
            least, fit = left, found
    if not fit or least > search.allowed:
        nearest = next((c if c in scores else c.known(dump) for c in fit), None)
        return Identification(dumps, tuple(ranking), (), {}, {}, nearest, search.tried)
    ranking = [with_first_apart(r, fit[0], dump) if scores[r.candidate].wrong > least else r for r in ranking]
    more = Equivalents({}, {}, [])
    if dump.out != FLOAT64:
        if fit[0] not in scores:
            fit[0] = plainest(search, fit[0], least)
        more = equivalents(search, fit[0], least)
    candidates = tuple(dict.fromkeys(c.known(dump) for c in (*fit, *more.others)))
    return Identification(dumps, tuple(ranking), candidates, more.open, more.proven, candidates[0], search.tried)
