"""`identify`: the arithmetic of a matrix product from its operands and outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._checks import check_positive
from ..._fpenv import with_default_fpenv
from ...format.catalogue import Format
from ...registry import registry_cache
from ...tensorcore.accumulator import FLOAT64
from ..deadline import SECONDS, Deadline
from .candidate import Candidate
from .dump import GemmDump
from .equivalents import Equivalents, equivalents, plainest
from .identification import ASKED, DAMAGED, UNRELATED, Identification, kinds_of, one_of_each
from .normal_form import NormalForms
from .probes import probes_for
from .ranking import explained_by_catalogue, rank, with_first_apart
from .readings import Reading, padded, readings
from .search import FAILED, Search
from .search_plan import find

_REMEMBERED = 4  # number of cached answers
_FIRST = 0.75  # share of the time for the coarsest of several output formats
_OPTIONS = ("a_format", "b_format", "d_format", "a_scale", "b_scale")
Progress = Callable[[int], object]


@with_default_fpenv
def identify(
    a: Any, b: Any, c: ArrayLike | None, d: ArrayLike, *, a_format: str | Format | None = None,
    b_format: str | Format | None = None, d_format: str | Format | None = None, a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None, also: Sequence[Mapping[str, Any]] = (), seconds: float = SECONDS,
    progress: Progress | None = None,
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
        Scales. Codes (uint8, or float8_e8m0fnu) are operands of the instruction; numbers multiply its results, as in
        `lowprec.gemm`.
    also : sequence of mappings
        Arguments of more dumps of the same arithmetic, such as probes with their outputs: ``{"a": ..., "b": ...,
        "c": None, "d": ...}``, with formats as above.
    seconds : float
        Time after which the search ends; `Identification.untried` then lists the remaining steps.
    progress : callable, optional
        Function that is called with the number of candidates tried so far, after each of them.

    Returns
    -------
    Identification
        Result; its `machines` explain every output.

    Raises
    ------
    ValueError
        If shapes do not match, an array is empty, a format is unknown, or `seconds` is negative.
    TypeError
        If an array has another dtype than its format, or `also` lacks arrays or has others.

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
    deadline = Deadline(check_positive("identify", "seconds", seconds, zero=True))
    given = {"a": a, "b": b, "c": c, "d": d, "a_format": a_format, "b_format": b_format, "d_format": d_format,
             "a_scale": a_scale, "b_scale": b_scale}  # fmt: skip
    more: list[dict[str, Any]] = []
    for other in also:
        names = set(other) if isinstance(other, Mapping) else {type(other).__name__}
        if not {"a", "b", "d"} <= names <= set(given):
            raise TypeError(
                f"identify: also must be mappings with a, b, d, and perhaps c, formats and scales, got {sorted(names)}"
            )
        more.append({**dict.fromkeys(("c", *_OPTIONS)), **other})
    found: list[tuple[Reading, Identification]] = []
    for reading, share in _shares(readings(given, deadline), deadline):
        dumps = (reading.dump, *(Reading.of(x, (), reading.changes).dump for x in more))
        if len({(x.fa, x.fb, x.out, x.scaled) for x in dumps}) > 1:
            raise ValueError("identify: also must have dumps of the first one's formats, got others")
        found.append((reading, explain(dumps, deadline.share(share), progress)))
        if found[-1][1].candidates:
            break
    # Where nothing explains the dumps, the nearest answer, on the finest of equal grids.
    reading, best = found[-1]
    if not best.candidates:
        reading, best = min(reversed(found), key=lambda one: np.inf if one[1].left is None else one[1].left)
    return replace(best, assumed=reading.assumed, seconds=seconds)


def _shares(some: list[Reading], deadline: Deadline) -> Iterator[tuple[Reading, float]]:
    """Yield readings, each with its share of the remaining time.

    The finest reading that an entry of the catalogue explains comes first, because more candidates explain a coarser
    grid. If no entry explains any, the coarsest grid is searched first, then the others.
    """
    known = [reading for reading in some if explained_by_catalogue(reading.dump, deadline)]
    if not known:
        known = list(itertools.islice((other for reading in some for other in padded(reading, deadline)), 1))
    if known:
        yield known[0], 1.0
        return
    for left, reading in reversed(list(enumerate(some, 1))):
        yield reading, 1.0 if left == 1 else _FIRST


def explain(
    dumps: tuple[GemmDump, ...], deadline: Deadline | None = None, progress: Progress | None = None
) -> Identification:
    """Identify the one arithmetic that made all of the given dumps.

    The last answers are cached. A call with the outputs of further probes contains the same dumps, and its search
    starts from their explanations. An answer of a search that ended at its time limit is not reused.
    """
    known = _answers()
    if dumps not in known or known[dumps].untried:
        known[dumps] = _explained(dumps, deadline or Deadline(), progress)
        while len(known) > _REMEMBERED:
            del known[next(iter(known))]
    return known[dumps]


@registry_cache(1)
def _answers() -> dict[tuple[GemmDump, ...], Identification]:
    """Return the cache of the last answers; it is emptied when an entry is registered or removed."""
    return {}


def _explained(dumps: tuple[GemmDump, ...], deadline: Deadline, progress: Progress | None) -> Identification:
    dump = dumps[0]
    search = Search(dumps, int(dump.d.size * DAMAGED), deadline, progress)
    ranking = rank(search)
    untried: tuple[str, ...] = ("entries of the catalogue",) if search.late else ()
    scores = {r.candidate: search.score_all(r.candidate) for r in ranking}
    fit = sorted(scores, key=lambda c: scores[c].wrong)  # the first dump alone may not distinguish kinds
    least = scores[fit[0]] if fit else FAILED
    if least.wrong and not (fit and len(dumps) == 1 and search.explains(fit[0], least)) and dump.out != FLOAT64:
        earlier: tuple[Candidate, ...] = ()
        for some in (dumps[:-1], dumps[:1]) if len(dumps) > 1 else ():
            if not earlier:
                earlier = explain(some, deadline.share(0.5), progress).explaining
        found, more = find(search, fit, earlier)
        untried += more
        if found and (own := search.score_all(found[0])).wrong < least.wrong:
            least, fit = own, found
    fit = [c for c in fit if c not in scores or scores[c].wrong == least.wrong]
    if not fit or not search.explains(fit[0], least):
        nearest = next((c if c in scores else c.known(dump) for c in fit), None)
        left = sum(score.wrong for score in search.score_dumps(fit[0])) if fit and least != FAILED else None
        return Identification(
            dumps, tuple(ranking), (), (), (), False, None, {}, {}, nearest, left, search.tried, untried=untried
        )  # fmt: skip
    ranking = [with_first_apart(r, fit[0], search) if scores[r.candidate].wrong > least.wrong else r for r in ranking]
    others = Equivalents({}, {}, [])
    if dump.out != FLOAT64:
        if fit[0] not in scores:
            fit[0] = plainest(search, fit[0], least.wrong)
        others = equivalents(search, fit[0], least.wrong)
    candidates = tuple(dict.fromkeys(c.known(dump) for c in (*fit, *others.others)))
    forms = NormalForms(dump, deadline)
    classes = forms.classes(one_of_each(candidates, others.open, dump))
    equal = [r for r in ranking if scores[r.candidate].wrong == least.wrong]
    alone = candidates[0].library is None
    twins = dict.fromkeys(name for r in equal if alone == (not r.libraries) for name in r.names)
    discriminates = kinds_of(classes) < UNRELATED and len(forms.classes(r.candidate for r in equal)) < 2
    probed = None if discriminates else probes_for(dump, [some[0] for some in classes][:ASKED], 0, deadline)
    if search.late:
        untried = (*untried, "other candidates that explain the dump as well")
    return Identification(
        dumps, tuple(ranking), candidates, classes, tuple(twins), discriminates, probed, others.open, others.proven,
        candidates[0], least.wrong, search.tried, untried=untried,
    )  # fmt: skip
