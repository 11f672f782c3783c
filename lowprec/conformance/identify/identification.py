"""`identify`: operands and outputs in, the arithmetic out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...format.catalogue import Format
from ...tensorcore.accumulator import Accumulator
from ...tensorcore.library import Library
from .candidate import Candidate, known
from .dump import Dump, dump_of
from .ranking import Ranked, first_apart, rank

#: Of outputs that may be damaged in a dump whose arithmetic is known all the same.
DAMAGED = 0.01


@dataclass(frozen=True, eq=False)
class Identification:
    """What made a dump.

    Attributes
    ----------
    dumps : tuple of Dump
        What was looked at.
    ranking : tuple of Ranked
        The catalogue, the fewest differing outputs first.
    candidates : tuple of Candidate
        What explains every output, or all but the few of `differing`; best known first.
    """

    dumps: tuple[Dump, ...]
    ranking: tuple[Ranked, ...]
    candidates: tuple[Candidate, ...]

    @property
    def machines(self) -> tuple[Accumulator, ...]:
        """Accumulators that explain every output, or all but the few of `differing`; best known first."""
        return tuple(dict.fromkeys(candidate.accumulator for candidate in self.candidates))

    @property
    def library(self) -> Library | None:
        """What is done around the first machine's chains; None: a plain chain of instructions, or nothing fits."""
        return self.candidates[0].library if self.candidates else None

    @property
    def nearest(self) -> Candidate | None:
        """The first of `candidates`; where nothing explains the dump, what differs on the fewest outputs."""
        if self.candidates:
            return self.candidates[0]
        return self.ranking[0].candidate if self.ranking else None

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

    def sentence(self) -> str:
        """Return what was found in a line."""
        n = self.dumps[0].d.size
        if not self.candidates:
            best = self.nearest
            said = f"nothing explains the {n} outputs"
            return said if best is None else f"{said}; nearest is {_name(best)}, which gives {n - len(self.differing)}"
        several = len(self.candidates)
        left = len(self.differing)
        what = f"all {n} outputs" if not left else f"all but {left} of {n} outputs"
        if several == 1:
            return f"{_name(self.candidates[0])} explains {what}"
        return f"{several} explain {what}, which this dump cannot tell apart: {_name(self.candidates[0])} and others"


def _name(candidate: Candidate) -> str:
    around = "" if candidate.library is None else f" within {candidate.library}"
    return f"{candidate.accumulator}{around}"


def identify(
    a: Any, b: Any, c: ArrayLike | None, d: ArrayLike, *, a_format: str | Format | None = None,
    b_format: str | Format | None = None, d_format: str | Format | None = None, a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
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
    return explain((dump,))


def explain(dumps: Sequence[Dump]) -> Identification:
    """Identify what made some dumps, all by one arithmetic."""
    dump = dumps[0]
    ranking = rank(dump)
    allowed = int(dump.d.size * DAMAGED)
    least = ranking[0].differing if ranking else dump.d.size
    fit = [r for r in ranking if r.differing == least] if least <= allowed else []
    if fit:
        ranking = [_with_place(r, fit[0].candidate, dump) if r.differing > least else r for r in ranking]
    candidates = tuple(Candidate(known(r.candidate.accumulator, dump), r.candidate.library) for r in fit)
    return Identification(tuple(dumps), tuple(ranking), candidates)


def _with_place(r: Ranked, right: Candidate, dump: Dump) -> Ranked:
    """Add from which k on a candidate differs, in the first output that does."""
    start = 0
    for part in dump.parts():
        wrong = np.flatnonzero(r.candidate.outputs(part) != right.outputs(part))
        if wrong.size:
            return replace(r, apart=first_apart(r.candidate, right, dump, dump.place(start + int(wrong[0]))))
        start += len(part.wanted)
    return r
