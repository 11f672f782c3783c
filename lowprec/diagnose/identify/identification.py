"""Result of `identify`: a sentence, tables, lines of Python, and probes of open fields."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from ..._markup import html_table
from ...tensorcore.accumulator import ALIGNMENTS, FLOAT64, Accumulator
from ...tensorcore.library import GemmLibrary
from ..deadline import SECONDS, Deadline
from ..words import join_all, join_some
from .candidate import Candidate
from .dump import GemmDump
from .equivalents import Alike, pairs, spelled
from .normal_form import NormalForms
from .probes import Probes, probes_for
from .ranking import Counterexample, Ranked, counterexample
from .search import Search

#: Largest share of damaged outputs with which the arithmetic of a dump can still be found.
DAMAGED = 0.01
UNRELATED = 3  # number of kinds that explain a dump from which on it does not discriminate
ASKED = 16  # largest number of values of a field, or of candidates, to distinguish by probes


@dataclass(frozen=True, eq=False)
class Identification:
    """Arithmetic that explains a dump.

    Attributes
    ----------
    dumps : tuple of GemmDump
        Dumps that were searched.
    ranking : tuple of Ranked
        Entries of the catalogue, those with the fewest differing outputs first.
    candidates : tuple of Candidate
        Candidates that explain every output, or all but the few of `differing`; best known first.
    classes : tuple of tuple of Candidate
        `candidates`, and the first of them with each value of `open`, in sets. Members of a set are proven by normal
        forms (`NormalForms`) to give the same outputs for all operands of these formats and this K. Members of two
        sets may differ.
    twins : tuple of str
        Names of the catalogue's accumulators that explain the dumps, in the first candidate's library, if any.
    discriminates : bool
        Whether the dump distinguishes entries of the catalogue, and most kinds of accumulators.
    probed : Probes or None
        Operands that distinguish the first candidates, if the dump does not discriminate.
    open : dict of str to tuple
        Other values of fields of the first candidate that also explain the dumps, by field.
    same : dict of str to tuple
        Other values that are proven to give the same outputs for all operands of these formats and this K, by field.
    nearest : Candidate or None
        First of `candidates`; if `candidates` is empty, the candidate with the fewest unexplained outputs.
    left : int or None
        Number of outputs of all dumps that `nearest` does not give; None if unknown.
    tried : int
        Number of candidates that were computed.
    assumed : tuple of str
        Assumptions on layout and output format under which the dump was read, if they differ from the arguments.
    untried : tuple of str
        Search steps that were omitted at the time limit; empty if the search was complete.
    seconds : float
        Time limit of the search.
    """

    dumps: tuple[GemmDump, ...]
    ranking: tuple[Ranked, ...]
    candidates: tuple[Candidate, ...]
    classes: tuple[tuple[Candidate, ...], ...]
    twins: tuple[str, ...]
    discriminates: bool
    probed: Probes | None
    open: Alike
    same: Alike
    nearest: Candidate | None
    left: int | None
    tried: int
    assumed: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    seconds: float = SECONDS

    def __repr__(self) -> str:
        """Return the sentence and the first lines of Python."""
        return "\n".join((f"Identification: {self.sentence}", *(f"  {line}" for line in self.lines()[:4])))

    def _repr_html_(self) -> str:
        code = "".join(f"<pre>{escape(line)}</pre>" for line in self.lines()[:4])
        more = "".join(f"<li>{escape(line)}</li>" for line in self.alternatives())
        columns, rows = self.catalogue()
        table = html_table(rows[:8], columns, f"The catalogue, compared with {self.dumps[0].d.size} outputs")
        return f"<p><b>{escape(self.sentence)}</b></p>{code}<ul>{more}</ul>{table}"

    def alternatives(self) -> list[str]:
        """Return other values of fields that also explain the dumps, one line per field."""
        labelled = (("not distinguished by this dump", self.open), ("proven equal for any operands", self.same))
        return [f"{words}: {field} {spelled(others)}" for words, values in labelled for field, others in values.items()]

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

    @property
    def explaining(self) -> tuple[Candidate, ...]:
        """Return the candidates of all `classes`."""
        return tuple(itertools.chain(*self.classes))

    @property
    def library(self) -> GemmLibrary | None:
        """Order of operations of the first candidate; None for a plain chain of instructions, or if nothing fits."""
        return self.candidates[0].library if self.candidates else None

    @functools.cached_property
    def differing(self) -> tuple[tuple[int, ...], ...]:
        """Places of the first dump's outputs that `nearest` does not give."""
        dump, best = self.dumps[0], self.nearest
        if best is None:
            return tuple(dump.place(i) for i in range(dump.d.size))
        wrong = np.concatenate([best.differing(part) for part in dump.parts()])
        return tuple(dump.place(int(i)) for i in np.flatnonzero(wrong))

    def lines(self) -> tuple[str, ...]:
        """Return each candidate as a line of Python that gives the outputs."""
        return tuple(candidate.line(self.dumps[0]) for candidate in self.candidates)

    def probes(self, seed: int = 0, seconds: float = SECONDS) -> Probes:
        """Search for operands that distinguish the candidates that explain this dump.

        Some candidates that differ in two fields are included. If many values of a field explain the dump, 16 of them
        are compared. Run the probes on the hardware that made the dump, and pass the outputs to `identify` together
        with the dump. The search ends after `seconds`.
        """
        if not self.candidates:
            raise ValueError("identify: the dump must be explained before probes can distinguish candidates, got none")
        dump, deadline = self.dumps[0], Deadline(seconds)
        if dump.out == FLOAT64:
            return probes_for(dump, self.explaining, seed, deadline)
        forms = NormalForms(dump, deadline)
        search = Search(self.dumps, int(dump.d.size * DAMAGED), deadline)
        two = pairs(search, self.candidates[0], forms)
        some = one_of_each(self.candidates, self.open, dump, ASKED)
        classes = forms.classes((*some, *(c.known(dump) for c in two)))
        return probes_for(dump, [some[0] for some in classes], seed, deadline)

    def example(self) -> Counterexample | None:
        """Return the differing output with the fewest nonzero products, and the results of other rules for it."""
        if self.nearest is None:
            return None
        others = [r.candidate for r in self.ranking]
        for align in ALIGNMENTS:
            other = self.nearest.changed(align=align)
            others += [] if other is None or other == self.nearest else [other.known(self.dumps[0])]
        return counterexample(self.dumps[0], self.nearest, others)

    @property
    def kinds(self) -> int:
        """Number of kinds of accumulators that explain the dump, without those that are proven equal to the first."""
        return kinds_of(self.classes)

    @property
    def sentence(self) -> str:
        """Summary in one line: assumptions, the arithmetic that explains the dump, and whether it is the only one."""
        assumed = f"assuming that {', and '.join(self.assumed)}: " if self.assumed else ""
        late = f"; the {self.seconds:g} s ended before all was tried (`untried`)" if self.untried else ""
        return assumed + (self._found() if self.candidates else self._not_found()) + late

    def _found(self) -> str:
        n = sum(dump.d.size for dump in self.dumps)
        what = f"all but {self.left} of {self.dumps[0].d.size} outputs" if self.left else f"all {n} outputs"
        first, twins, several = self.candidates[0], self.twins, len(self.classes)
        if not self.discriminates:
            kinds = f" of {self.kinds} kinds" if self.kinds > 1 else ""
            named = join_some(twins or [str(first)])
            return (
                f"this dump does not discriminate: {several} accumulators{kinds} explain {what}, {named} among them"
                f"{self._probing()}"
            )
        within = "" if first.library is None else f" within {first.library}"
        lead = f"{first} explains" if len(twins) < 2 else f"{join_some(twins)}{within}, which are equal here, explain"
        if several == 1:
            proven = len(self.classes[0]) - 1
            return f"{lead} {what}" + (f", as do {proven} others that are proven equal" if proven else "")
        others = [str(some[0]) for some in self.classes if some[0] in self.candidates[1:]]
        also = [f"other values of {join_all(list(self.open))}"] * bool(self.open) + [join_some(others)] * bool(others)
        return f"{lead} {what}; {' and '.join(also)} also explain them"

    def _probing(self) -> str:
        if not self.probed:
            return ""
        sides = " x ".join(str(len(self.probed.arrays[name])) for name in ("a", "b"))
        n, others = len(self.probed.distinguished), len(self.probed.distinguished) + len(self.probed.together)
        return f"; probes of {sides} outputs distinguish {n} of the next {others} from the first"

    def _not_found(self) -> str:
        n, best = sum(dump.d.size for dump in self.dumps), self.nearest
        text = f"nothing explains the {n} outputs"
        if best is not None and self.left is not None:
            text += f"; nearest is {best}, which gives {n - self.left}"
            if self.left and self.left <= DAMAGED * n:
                text += ", and the others up to a rounding, which is not damage"
        near = [type(r.candidate.accumulator) for r in self.ranking if r.differing <= DAMAGED * self.dumps[0].d.size]
        if len(set(near)) >= UNRELATED:
            text += f"; {len(near)} accumulators of {len(set(near))} kinds give 99 %: this dump hardly discriminates"
        return text


def one_of_each(
    candidates: Sequence[Candidate], open_: Alike, dump: GemmDump, most: int | None = None
) -> tuple[Candidate, ...]:
    """Return the candidates, followed by the first one with up to `most` other values of each open field."""
    found = list(candidates)
    for name, values in open_.items():
        for i in np.unique(np.linspace(0, len(values) - 1, min(len(values), most or len(values))).astype(int)):
            other = candidates[0].changed(**{name: values[i]})
            if other is not None:
                found.append(other.known(dump))
    return tuple(dict.fromkeys(found))


def kinds_of(classes: Sequence[Sequence[Candidate]]) -> int:
    """Return the number of different kinds among the first accumulators of the classes."""
    return len({type(some[0].accumulator) for some in classes})
