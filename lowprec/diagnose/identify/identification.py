"""`identify`: operands and outputs in, the arithmetic out."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._fpenv import with_default_fpenv
from ..._markup import html_table
from ...format.catalogue import Format
from ...registry import registry_cache
from ...tensorcore.accumulator import ALIGNMENTS, FLOAT64, Accumulator
from ...tensorcore.library import GemmLibrary
from .candidate import Candidate
from .dump import GemmDump
from .equivalents import Alike, Equivalents, equivalents, pairs, plainest, spelled
from .normal_form import NormalForms
from .probes import Probes, probes_for
from .ranking import Counterexample, Ranked, count, counterexample, explained_by_catalogue, rank, with_first_apart
from .readings import Reading, padded, readings
from .search import Score, Search
from .search_plan import find

#: Share of outputs that may be damaged in a dump whose arithmetic is found nevertheless.
DAMAGED = 0.01
#: Time after which a search ends.
SECONDS = 60.0
_REMEMBERED = 4  # answers
_FIRST = 0.75  # share of the time that the coarsest of several grids gets
_UNRELATED = 3  # kinds that explain a dump which does not discriminate
_ASKED = 16  # values of a field that probes are made for
_OPTIONS = ("a_format", "b_format", "d_format", "a_scale", "b_scale")


@dataclass(frozen=True, eq=False)
class Identification:
    """Arithmetic that explains a dump.

    Attributes
    ----------
    dumps : tuple of GemmDump
        Dumps that were searched.
    ranking : tuple of Ranked
        The catalogue, the fewest differing outputs first.
    candidates : tuple of Candidate
        Candidates that explain every output, or all but the few of `differing`; best known first.
    open : dict of str to tuple
        Fields of the first candidate, and their other values that explain the dumps as well.
    same : dict of str to tuple
        Their other values that provably give the same for all operands of these formats and this K.
    nearest : Candidate or None
        The first of `candidates`; if there are none, the one that leaves the fewest outputs.
    tried : int
        Number of candidates that were computed.
    assumed : tuple of str
        Layout and output format in which the dump was read, if not those of the arguments.
    untried : tuple of str
        Search steps that the time did not allow; empty if the search ended before.
    seconds : float
        Time that the search was given.
    """

    dumps: tuple[GemmDump, ...]
    ranking: tuple[Ranked, ...]
    candidates: tuple[Candidate, ...]
    open: Alike
    same: Alike
    nearest: Candidate | None
    tried: int
    assumed: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    seconds: float = SECONDS

    def __repr__(self) -> str:
        """Return the sentence and the first lines of Python."""
        return "\n".join((f"Identification: {self.sentence}", *(f"  {line}" for line in self.lines()[:4])))

    def _repr_html_(self) -> str:
        code = "".join(f"<pre>{escape(line)}</pre>" for line in self.lines()[:4])
        more = "".join(f"<li>{escape(line)}</li>" for line in self.alike())
        columns, rows = self.catalogue()
        beside = html_table(rows[:8], columns, f"The catalogue beside {self.dumps[0].d.size} outputs")
        return f"<p><b>{escape(self.sentence)}</b></p>{code}<ul>{more}</ul>{beside}"

    def alike(self) -> list[str]:
        """Return other values of fields that explain the dumps as well, one line per field."""
        said = (("as well, for all this dump shows", self.open), ("the same for any operands", self.same))
        return [f"{words}: {field} {spelled(others)}" for words, values in said for field, others in values.items()]

    def catalogue(self) -> tuple[tuple[str, ...], list[tuple[str | int | float | None, ...]]]:
        """Return `ranking` as a table: its columns and rows."""
        size = self.dumps[0].d.size
        rows: list[tuple[str | int | float | None, ...]] = [
            (
                ", ".join(r.names), ", ".join(r.libraries) or None, r.differing, r.differing / size,
                None if r.first_difference is None else f"{r.first_difference.start} to {r.first_difference.stop - 1}",
            )
            for r in self.ranking
        ]  # fmt: skip
        return ("accumulator", "library", "outputs that differ", "share", "first difference at k"), rows

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
        """Return `candidates`, then the first of them with up to `most` values of each field of `open`."""
        found = list(self.candidates)
        for name, values in self.open.items():
            for i in np.unique(np.linspace(0, len(values) - 1, min(len(values), most or len(values))).astype(int)):
                other = found[0].changed(**{name: values[i]})
                if other is not None:
                    found.append(other.known(self.dumps[0]))
        return tuple(dict.fromkeys(found))

    @property
    def library(self) -> GemmLibrary | None:
        """Order of operations of the first candidate; None for a plain chain of instructions, or if nothing fits."""
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
        """Search operands that distinguish the candidates that explain this dump, and some that differ in two fields.

        Of a field with many values that explain it, 16 are asked. Run them where the dump came from, and pass
        the outputs to `identify` with the dump.
        """
        if not self.explaining:
            raise ValueError("identify: the dump must be explained before probes can distinguish candidates, got none")
        dump = self.dumps[0]
        if dump.out == FLOAT64:
            return probes_for(dump, self.explaining, seed)
        forms = NormalForms(dump)
        search = Search(self.dumps, int(dump.d.size * DAMAGED), time.monotonic() + SECONDS)
        two = pairs(search, self.explaining[0], forms)
        classes = forms.classes((*self._with(_ASKED), *(c.known(dump) for c in two)))
        return probes_for(dump, [some[0] for some in classes], seed)

    def example(self) -> Counterexample | None:
        """Return the output with the fewest products that `nearest` does not give, and the results of other rules."""
        if self.nearest is None:
            return None
        others = [r.candidate for r in self.ranking]
        for align in ALIGNMENTS:
            other = self.nearest.changed(align=align)
            others += [] if other is None or other == self.nearest else [other.known(self.dumps[0])]
        return counterexample(self.dumps[0], self.nearest, others)

    @functools.cached_property
    def kinds(self) -> int:
        """Number of kinds of accumulators of which one explains the dump, those proven equal to the first left out."""
        return len({type(some[0].accumulator) for some in self.classes}) if self.candidates else 0

    @property
    def twins(self) -> tuple[str, ...]:
        """Names of the catalogue's accumulators that give as many outputs as the first candidate, without a library."""
        alone = self.library is None
        return tuple(dict.fromkeys(
            name for r in self.ranking if r.differing == len(self.differing) and alone == (not r.libraries)
            for name in r.names
        ))  # fmt: skip

    @property
    def sentence(self) -> str:
        """Summary in one line: what was assumed, what explains the dump, and whether the dump decides it."""
        assumed = f"assuming that {', and '.join(self.assumed)}: " if self.assumed else ""
        return assumed + (self._found() if self.candidates else self._not_found())

    def _found(self) -> str:
        left, n = len(self.differing), sum(dump.d.size for dump in self.dumps)
        what = f"all but {left} of {self.dumps[0].d.size} outputs" if left else f"all {n} outputs"
        first, twins, several = self.candidates[0], self.twins, len(self.classes)
        if self.kinds >= _UNRELATED:
            said = f"this dump does not discriminate: {several} accumulators of {self.kinds} kinds explain {what}, "
            return f"{said}{first} among them{self._probing}"
        within = "" if first.library is None else f" within {first.library}"
        lead = f"{first} explains" if len(twins) < 2 else f"{_few(twins)}{within}, which are equal here, explain"
        fields = " and ".join(self.open)
        if several == 1:
            proven = len(self.classes[0]) - 1
            return f"{lead} {what}" + (f", as do {proven} others that are proven equal" if proven else "")
        others = [str(some[0]) for some in self.classes if some[0] in self.candidates[1:]]
        also = [f"other values of {fields}"] * bool(fields) + ([_few(others)] if others else [])
        return f"{lead} {what}; {' and '.join(also)} explain them, too"

    @functools.cached_property
    def _probing(self) -> str:
        """How many probes distinguish the first candidates."""
        chosen = [some[0] for some in self.classes][:_ASKED]
        made = probes_for(self.dumps[0], chosen, 0)
        if not made:
            return ""
        sides = " x ".join(str(len(made.arrays[name])) for name in ("a", "b"))
        n = len(made.distinguished)
        return f"; probes of {sides} outputs distinguish {n} of the next {len(chosen) - 1} from it"

    def _not_found(self) -> str:
        n, best = sum(dump.d.size for dump in self.dumps), self.nearest
        said = f"nothing explains the {n} outputs"
        if best is not None:
            wrong = sum(count(best, dump.parts()) for dump in self.dumps)
            said += f"; nearest is {best}, which gives {n - wrong}"
            if wrong and wrong <= DAMAGED * n:
                said += ", and the others but for a rounding, which is not damage"
        near = [type(r.candidate.accumulator) for r in self.ranking if r.differing <= DAMAGED * self.dumps[0].d.size]
        if len(set(near)) >= _UNRELATED:
            said += f"; {len(near)} accumulators of {len(set(near))} kinds give 99 %: this dump hardly discriminates"
        if self.untried:
            said += f"; the {self.seconds:g} s ended before all was tried (`untried`)"
        return said


def _few(names: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


@with_default_fpenv
def identify(
    a: Any, b: Any, c: ArrayLike | None, d: ArrayLike, *, a_format: str | Format | None = None,
    b_format: str | Format | None = None, d_format: str | Format | None = None, a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None, also: Sequence[Mapping[str, Any]] = (), seconds: float = SECONDS,
    progress: Callable[[int], object] | None = None,
) -> Identification:  # fmt: skip
    """Find the accumulator that reproduces recorded outputs of a matrix product.

    Parameters
    ----------
    a : array_like, shape (M, K)
        Codes of `a_format`, an array of ml_dtypes, torch or JAX whose dtype is a format, or `Quantized`.
    b : array_like, shape (N, K)
        Operand B, as `a`: ``d = A @ B.T + C``.
    c : array_like or None, shape of d
        The addend: numbers, or their bits as unsigned integers.
    d : array_like, shape (M, N); or (M,), with M = N
        Outputs, or their bits. A vector holds the products of rows, ``d[i] = a[i] . b[i] + c[i]``.
    a_format, b_format, d_format : str or Format, optional
        Formats of codes or bits, if the dtype does not imply them. Words of 32, 16 and 64 bits are float32, float16 and
        float64 by default.
    a_scale, b_scale : array_like, shapes (M, K / block) and (N, K / block), optional
        Scales: codes (uint8, or float8_e8m0fnu) go into the instruction, numbers around it, as `lowprec.gemm` has it.
    also : sequence of mappings
        Arguments of more dumps that the same arithmetic made, such as probes with their outputs: ``{"a": ..., "b": ...,
        "c": None, "d": ...}``, with formats as above.
    seconds : float
        Time after which the search ends; `Identification.untried` then lists the remaining steps.
    progress : callable, optional
        Function that is called with the number of candidates tried so far, after each of them.

    Returns
    -------
    Identification
        Its `machines` explain every output.

    Raises
    ------
    ValueError
        If shapes do not fit together, something is empty, or a format is unknown.
    TypeError
        If an array has another dtype than its format.

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
    start = time.monotonic()
    given = {"a": a, "b": b, "c": c, "d": d, "a_format": a_format, "b_format": b_format, "d_format": d_format,
             "a_scale": a_scale, "b_scale": b_scale}  # fmt: skip
    more: list[dict[str, Any]] = []
    for other in also:
        more.append({**dict.fromkeys(("c", *_OPTIONS)), **other})
        if unknown := set(more[-1]) - set(given):
            raise TypeError(f"identify: also must have a, b, c, d and their formats, got {', '.join(sorted(unknown))}")
    found: list[tuple[Reading, Identification]] = []
    for reading, share in _shares(readings(given)):
        dumps = (reading.dump, *(Reading.of(x, (), reading.changes).dump for x in more))
        if len({(x.fa, x.fb, x.out, x.scaled) for x in dumps}) > 1:
            raise ValueError("identify: also must have dumps of the first one's formats, got others")
        spent = time.monotonic() - start
        found.append((reading, explain(dumps, max(seconds - spent, 0) * share, progress)))
        if found[-1][1].candidates:
            break
    reading, best = found[-1] if found[-1][1].candidates else found[0]
    return replace(best, assumed=reading.assumed, seconds=seconds)


def _shares(some: list[Reading]) -> Iterator[tuple[Reading, float]]:
    """Yield readings with the share of the time that is left for each.

    The finest reading that the catalogue explains comes first: a coarser grid would be explained by more. Otherwise the
    coarsest grid is searched first, then the others.
    """
    known = [reading for reading in some if explained_by_catalogue(reading.dump)]
    if not known:
        known = list(itertools.islice((other for reading in some for other in padded(reading)), 1))
    if known:
        yield known[0], 1.0
        return
    for left, reading in reversed(list(enumerate(some, 1))):
        yield reading, 1.0 if left == 1 else _FIRST


def explain(
    dumps: tuple[GemmDump, ...], seconds: float = SECONDS, progress: Callable[[int], object] | None = None
) -> Identification:
    """Identify what made some dumps, all by one arithmetic.

    The last answers are cached: a call with the outputs of further probes repeats the same dumps, and its search starts
    from their explanations.
    """
    known = _answers()
    if dumps not in known or not known[dumps].candidates:
        known[dumps] = _explained(dumps, time.monotonic() + seconds, progress)
        while len(known) > _REMEMBERED:
            del known[next(iter(known))]
    return known[dumps]


@registry_cache(1)
def _answers() -> dict[tuple[GemmDump, ...], Identification]:
    """Return the last answers; an entry that is registered or removed empties them."""
    return {}


def _explained(
    dumps: tuple[GemmDump, ...], deadline: float, progress: Callable[[int], object] | None
) -> Identification:  # fmt: skip
    dump = dumps[0]
    search = Search(dumps, int(dump.d.size * DAMAGED), deadline, progress)
    ranking = rank(dump)
    scores = {r.candidate: Score(r.differing, 0) if len(dumps) == 1 else search.score_all(r.candidate) for r in ranking}
    ranked = sorted(scores, key=lambda c: scores[c])  # the first dump alone may not distinguish kinds
    least = scores[ranked[0]].wrong if ranked else search.allowed + 1
    fit = [r.candidate for r in ranking if scores[r.candidate].wrong == least]
    untried: tuple[str, ...] = ()
    damaged = bool(fit) and len(dumps) == 1 and search.explains(fit[0], Score(least, 0))
    if least and not damaged and dump.out != FLOAT64:
        earlier: tuple[Candidate, ...] = ()
        for some in (dumps[:-1], dumps[:1]) if len(dumps) > 1 else ():
            if not earlier:
                earlier = explain(some, max(deadline - time.monotonic(), 0) / 2, progress).explaining
        found, untried = find(search, ranked, earlier)
        if found and (left := search.score_all(found[0]).wrong) < least:
            least, fit = left, found
    if not fit or not search.explains(fit[0], Score(least, 0)):
        nearest = next((c if c in scores else c.known(dump) for c in fit), None)
        return Identification(dumps, tuple(ranking), (), {}, {}, nearest, search.tried, untried=untried)
    ranking = [with_first_apart(r, fit[0], dump) if scores[r.candidate].wrong > least else r for r in ranking]
    more = Equivalents({}, {}, [])
    if dump.out != FLOAT64:
        if fit[0] not in scores:
            fit[0] = plainest(search, fit[0], least)
        more = equivalents(search, fit[0], least)
    candidates = tuple(dict.fromkeys(c.known(dump) for c in (*fit, *more.others)))
    untried = ("other candidates that explain the dump as well",) if search.late else ()
    return Identification(dumps, tuple(ranking), candidates, more.open, more.proven, candidates[0], search.tried,
                          untried=untried)  # fmt: skip
