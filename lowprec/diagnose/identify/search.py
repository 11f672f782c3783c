"""Space of candidates for a dump, and their scores on its outputs.

A candidate is first computed on a small sample of outputs, which refutes most candidates, then on all outputs. Outputs
that refute it then are added to the sample.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format, formats
from ...registry import registry_cache
from ...tensorcore.accumulator import FLOAT16, FLOAT32, FLOAT64, TF32, Accumulator, heeded_fields
from ...tensorcore.catalogue import accumulators
from ...tensorcore.engines.selection import engine_for
from ...tensorcore.kinds import KINDS
from ...tensorcore.library import GemmLibrary
from ..deadline import Deadline
from .candidate import Candidate, MmaCandidate
from .dump import GemmDump, Part, values

Kind = type[Accumulator]
_TILE = 128  # products per tile; each part of a split K is a number of tiles
_TF32_READING = (FLOAT32, TF32)
_FEW = 5  # rows and columns of the sample from the first dump
_TOLD = 16  # rows and columns from further dumps: few outputs of probes distinguish candidates, so all are compared
_LEARNT = 5  # number of outputs that are added to the sample if it accepts a wrong candidate
_KEPT = 3  # number of sets of outputs in the sample: the first ones, and the last ones added
_ROUNDINGS = 2  # errors up to this number of ulps may be those of a wrong rule
_COUNTED = 500  # microseconds that count as one more candidate
_SLOW = (20, 12.0)  # a reference: microseconds per call, nanoseconds per product
_FAST = (60, 0.1)  # a fast kernel: the same
_SIMPLE = (180, 0.4)  # a fast kernel of a kind with a reference in Python: operands are laid out in NumPy
_WITHIN = (250, 40)  # additional microseconds of an order of operations: once, and for each of its calls
_FEW_PRODUCTS = 1 << 14  # number of products up to which fast kernels are not used

Values = tuple[Any, ...]
#: Values to try for each field of an accumulator, as functions of kind and dump; more likely values first.
FIELDS: dict[str, Callable[[Kind, GemmDump], Values]] = {
    "group_size": lambda kind, dump: tuple(sorted(range(1, _longest(dump) + 1), key=lambda n: (n & (n - 1) != 0, n))),
    "fraction_bits": lambda kind, dump: tuple(range(3, 41)),
    "leading_bits": lambda kind, dump: tuple(range(22, 31)),  # of RDNA's sums, whose last rounding keeps 24 bits
    "align": lambda kind, dump: tuple(kind.alignments),
    "partial_rounding": lambda kind, dump: ("odd", "nearest", "exact"),
    "sum_rounding": lambda kind, dump: ("nearest", "odd"),
    "rounded_sum": lambda kind, dump: ("chunk", "running"),
    "chunk_format": lambda kind, dump: tuple(formats[name] for name in ("dl16", "bfloat16", "tf32", "fp22")),
    "phases": lambda kind, dump: ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)),
    "phase_length": lambda kind, dump: (32, 16),
    "misplaces_minus_one": lambda kind, dump: (False, True),
    "output_format": lambda kind, dump: tuple(o for o in kind.output_formats if _fits(o, dump)),
    "zero_exponent": lambda kind, dump: (None, *range(least_exponent(dump) + 1, _largest_exponent(dump) + 1)),
    **dict.fromkeys(
        ("exact_group", "lanes"), lambda kind, dump: tuple(sorted(range(1, 33), key=lambda n: (n & (n - 1) != 0, n)))
    ),
    "promote_every": lambda kind, dump: (None, *range(1, dump.k + (256 if dump.c is not None else 0))),
    "daz_formats": lambda kind, dump: ((), tuple(dict.fromkeys((dump.fa, dump.fb)))),
    "product_scale_log2": lambda kind, dump: tuple(sorted(range(-127, 128), key=abs)),
    "saturate": lambda kind, dump: (False, True),
    "scale_format": lambda kind, dump: (None,) if dump.scales is None else (formats["e8m0fnu"], formats["e4m3fn"]),
    "scale_block": lambda kind, dump: (0,) if dump.scales is None else (dump.k // dump.scales.a.shape[1],),
    "group_order": lambda kind, dump: tuple(
        sorted({vars(accumulators[n])["group_order"] for n in accumulators if type(accumulators[n]) is kind}, key=len)
    ),
    "input_formats": lambda kind, dump: ((), _TF32_READING) if FLOAT32 in (dump.fa, dump.fb) else ((),),
}


@dataclass(frozen=True)
class Space:
    """Space of candidates for a dump.

    Attributes
    ----------
    orders : tuple of GemmLibrary or None
        Orders of operations that fit the dump, the simple ones first; None: a single instruction.
    fields : dict of kind to dict
        Fields of each kind of accumulator that affect outputs, with the values to try.
    starts : dict of kind to tuple of Candidate
        Accumulators of the catalogue of each kind, for any formats, without duplicates.
    """

    orders: tuple[GemmLibrary | None, ...]
    fields: dict[Kind, dict[str, Values]]
    starts: dict[Kind, tuple[MmaCandidate, ...]]

    @classmethod
    def of(cls, dump: GemmDump) -> Space:
        """Return the space of a dump."""
        kinds: list[Kind] = [kind for kind in KINDS if any(_fits(output, dump) for output in kind.output_formats)]
        fields = {
            kind: {name: FIELDS[name](kind, dump) for name in ("input_formats", *heeded_fields(kind))} for kind in kinds
        }
        return cls(_orders(dump), fields, {kind: _starts(kind, dump) for kind in kinds})


def _orders(dump: GemmDump) -> tuple[GemmLibrary | None, ...]:
    plain = () if dump.blocks is not None or dump.out not in (FLOAT32, FLOAT16, FLOAT64) else (None,)
    if dump.quantized is None:
        return plain
    found: list[GemmLibrary] = []
    tiles, rounds = -(-dump.k // _TILE), dump.out != FLOAT32 or dump.scaled or dump.c is not None
    splits = {-(-tiles // n): n for n in range(tiles, 0, -1)}  # each length of a run once
    by_row = all(q.granularity.rows is not None for q in dump.quantized)
    for scales, fused in (("promotion", True), ("promotion", False), ("end", True)):
        if dump.blocks is None and (scales, fused) != ("end", True):
            continue  # without scales nothing shows where they are applied
        if scales == "end" and dump.quantized[0].scale.shape[1] > 1:
            continue
        # Scales per tensor do not show whether they multiply one by one: then, the order is that of cuBLASLt.
        ways = (False,) if not fused else (False, True) if scales == "promotion" or by_row else (True,)
        for k_order, n, one_by_one in itertools.product(("increasing", "interleaved"), sorted(splits.values()), ways):
            for split_k_reduction in ("float32", "out") if n > 1 and rounds else ("float32",):
                own = one_by_one and (scales, split_k_reduction) != ("end", "out")
                found.append(
                    GemmLibrary("found", scales, None, fused, k_order, n, split_k_reduction, scales_one_by_one=own)  # type: ignore[arg-type]
                )
    first = GemmLibrary("found", "end", None, scales_one_by_one=True)
    if plain and dump.c is None:
        found = [library for library in found if library != first]  # the same as an instruction alone
    found.sort(key=lambda x: (_changes(x), x.split_k))
    return (*plain, *found)


def _changes(x: GemmLibrary) -> int:
    """Return the number of fields in which an order differs from the simplest one."""
    differs = x.split_k_reduction != "float32", x.split_k > 1, x.k_order != "increasing", not x.fma_promotion
    return sum(differs) + (x.scales_one_by_one and x.apply_scales_at == "promotion")


def _longest(dump: GemmDump) -> int:
    """Return the largest group size worth trying: the power of two that has all of K in one sum."""
    return min(256, 1 << (dump.k - 1).bit_length())


def _fits(output: Format, dump: GemmDump) -> bool:
    """Return whether results of a format can be the outputs of a dump."""
    if (output == FLOAT64) != (dump.out == FLOAT64):
        return False
    return output == FLOAT16 or dump.out != FLOAT16 or dump.quantized is not None


def _starts(kind: Kind, dump: GemmDump) -> tuple[MmaCandidate, ...]:
    found: dict[Any, MmaCandidate] = {}
    for name in accumulators:
        machine = accumulators[name]
        if type(machine) is kind and _fits(machine.output_format, dump):
            tf32 = machine.accepts(TF32) and FLOAT32 in (dump.fa, dump.fb)
            free = MmaCandidate(replace(machine, name="found", input_formats=_TF32_READING if tf32 else ()))
            found.setdefault(free.key(), free)
    return tuple(found.values())


def least_exponent(dump: GemmDump) -> int:
    """Return the smallest exponent of a nonzero term; zeros at or below it have no effect.

    A nonzero product has the sum of its operands' exponents; subnormals have that of the smallest normal number, and so
    does C in the result's format.
    """
    return min(dump.fa.emin + dump.fb.emin - _scale_range(dump), _stored(dump).emin)


def _largest_exponent(dump: GemmDump) -> int:
    """Return an exponent above all finite terms; zeros with a larger exponent would truncate every term to zero."""
    top = dump.fa.emax + dump.fb.emax + _scale_range(dump) + 2
    return min(max(top, 0), 128) + 40


def _unit(dump: GemmDump) -> int:
    """Return e such that all products, C, and their sums are multiples of 2^e."""
    fa, fb = dump.fa, dump.fb
    unit = fa.emin - fa.mantissa_bits + fb.emin - fb.mantissa_bits - _scale_range(dump)
    stored = _stored(dump)
    return unit if dump.c is None else min(unit, stored.emin - stored.mantissa_bits)


def _scale_range(dump: GemmDump) -> int:
    return 0 if dump.scales is None else 256


def _stored(dump: GemmDump) -> Format:
    return FLOAT16 if dump.out == FLOAT16 and dump.blocks is None else FLOAT32


def plain_fields_of(candidate: Candidate, dump: GemmDump) -> Mapping[str, Any]:
    """Return the fields that determine the bits for these formats and this K, equal for candidates proven equal.

    Zeros have no effect if their exponent is at most that of every nonzero term, or if they would truncate only bits
    below the unit of all terms. A promotion after all of K has no effect, unless it adds C in float32.
    """
    found = {field: candidate.value_of(field) for field in heeded_fields(type(candidate.accumulator))}
    zero, every = found.get("zero_exponent"), found.get("promote_every")
    bits = found.get("fraction_bits", 0)
    if zero is not None and (zero <= least_exponent(dump) or zero - bits <= _unit(dump)):
        found["zero_exponent"] = None
    if every is not None and every >= dump.k:
        found["promote_every"] = None if dump.c is None else dump.k
    return found


class Score(NamedTuple):
    """Distance of outputs from a dump's: the number that differ, and the mean of log2(1 + difference of the bits)."""

    wrong: int
    far: float


FAILED = Score(1 << 30, np.inf)


@dataclass
class Search:
    """Search for the arithmetic that made one or more dumps.

    Attributes
    ----------
    dumps : tuple of GemmDump
    allowed : int
        Number of outputs of the first dump that may be damaged, and so differ.
    deadline : Deadline
        Time limit; after it, nothing is computed and every candidate fails.
    report : callable, optional
        Function that is called with the number of candidates tried.
    tried : int
        Number of candidates tried; a slow one counts as several, by its `cost`.
    """

    dumps: tuple[GemmDump, ...]
    allowed: int
    deadline: Deadline
    report: Callable[[int], object] | None = None
    tried: int = 0

    def __post_init__(self) -> None:
        self._few = [dump.sample(_TOLD if i else _FEW) for i, dump in enumerate(self.dumps)]
        self._all = [dump.parts() for dump in self.dumps]
        self._damage: dict[Any, bool] = {}
        self._known: dict[Any, tuple[Score, ...]] = {}

    @property
    def dump(self) -> GemmDump:
        """First dump; its formats determine the space of candidates."""
        return self.dumps[0]

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline.passed

    @functools.cached_property
    def space(self) -> Space:
        """Space of candidates for the first dump."""
        return Space.of(self.dump)

    def score_sample(self, candidate: Candidate, most: int | None = None) -> Score:
        """Score a candidate on the sample; stop if more than `most` outputs differ."""
        return self._score(candidate, self._few, most)

    def cost_of_sample(self, candidate: Candidate) -> int:
        """Return the number of candidates that one candidate, scored on the sample, counts as."""
        return 1 + sum(cost(candidate, part) for part in self._few) // _COUNTED

    def score_all(self, candidate: Candidate) -> Score:
        """Score a candidate on all outputs; a wrong output of a further dump counts as `allowed` + 1 wrong ones."""
        if not (scores := self.score_dumps(candidate)):
            return FAILED
        more = sum(score.wrong for score in scores[1:])
        return Score(scores[0].wrong + (self.allowed + 1) * more, sum(score.far for score in scores))

    def score_dumps(self, candidate: Candidate) -> tuple[Score, ...]:
        """Score a candidate on all outputs of each dump; the result is empty if it fails or the deadline has passed."""
        if (key := candidate.key()) not in self._known:
            scores = tuple(self._score(candidate, parts) for parts in self._all)
            if FAILED in scores:
                return ()
            self._known[key] = scores
        return self._known[key]

    def _score(self, candidate: Candidate, parts: Sequence[Part], most: int | None = None) -> Score:
        """Score a candidate on some parts; after more than `most` wrong outputs, no further part is computed."""
        wrong, far, n, spent = 0, 0.0, 0, 0
        try:
            for part in parts:
                if self.late:
                    return FAILED
                spent += cost(candidate, part)
                one = score(candidate.outputs(part), part.wanted)
                wrong, far, n = wrong + one.wrong, far + one.far * len(part.wanted), n + len(part.wanted)
                if most is not None and wrong > most:
                    break
        except (ValueError, TypeError):  # what cannot be computed takes no time
            return FAILED
        self.tried += 1 + spent // _COUNTED
        if self.report is not None:
            self.report(self.tried)
        return Score(wrong, far / n)

    def passes(self, own: Score) -> bool:
        """Return whether a score on the sample, of which some outputs may be damaged, is good enough."""
        return own.wrong <= max(1, sum(len(part.wanted) for part in self._few) // 12)

    def explains(self, candidate: Candidate, whole: Score) -> bool:
        """Return whether a candidate gives every output, or all but a few that look damaged.

        A wrong rule with outputs of few bits differs by single roundings; damage is usually larger.
        """
        if whole.wrong == 0 or whole.wrong > self.allowed:
            return whole.wrong == 0
        if (key := candidate.key()) not in self._damage:
            far = [_roundings(candidate.outputs(part), part) for part in self.deadline.limit(self._all[0])]
            errors = np.concatenate([np.zeros(0), *far])
            self._damage[key] = bool(2 * np.count_nonzero(errors > _ROUNDINGS) > errors.size)
        return self._damage[key]

    def accepts(self, candidate: Candidate, most: int) -> bool:
        """Return whether at most `most` outputs differ from a candidate's; if not, add differing ones to the sample."""
        whole = self.score_all(candidate)
        if whole.wrong > most and whole != FAILED:
            self.add_counterexamples(candidate)
        return whole.wrong <= most

    def may_accept(self, candidate: Candidate, most: int) -> bool:
        """Return whether, by the sample, at most `most` outputs may differ from a candidate's."""
        most *= len(self._few)  # of which some may be in several parts
        own = self.score_sample(candidate, most)
        return own.wrong <= most and self.passes(own)

    def is_as_good(self, candidate: Candidate, most: int) -> bool:
        """Return whether at most `most` outputs differ from a candidate's; the sample is checked first."""
        return self.may_accept(candidate, most) and self.accepts(candidate, most)

    def add_counterexamples(self, candidate: Candidate) -> None:
        """Add outputs that a candidate does not give to the sample."""
        for dump in self.dumps:
            wrong = [candidate.differing(part) for part in self.deadline.limit(dump.parts())]
            at = np.flatnonzero(np.concatenate([np.zeros(0, np.bool_), *wrong]))
            if at.size:
                chosen = at[np.linspace(0, at.size - 1, min(_LEARNT, at.size)).astype(np.intp)]
                places = np.array([dump.place(int(i)) for i in chosen])
                self._few.append(dump.part(np.unique(places[:, 0]), np.unique(places[:, -1])))
        first = len(self.dumps)
        self._few = self._few[:first] + self._few[first:][-_KEPT + 1 :]


def _roundings(ours: NDArray[Any], part: Part) -> NDArray[np.float64]:
    """Return the errors of differing outputs, in ulps of the output or of the median output, whichever is larger."""
    if part.out == FLOAT64:
        return np.full(np.count_nonzero(ours != part.wanted), np.inf)
    x, y = (values(codes, part.out) for codes in (ours, part.wanted))
    differing = ours != part.wanted
    typical = float(np.nanmedian(np.abs(y)))
    unit = np.maximum(np.maximum(np.abs(x), np.abs(y)), typical) * 2.0**-part.out.mantissa_bits
    far = np.where(np.isfinite(x) == np.isfinite(y), np.abs(x - y) / unit, np.inf)
    overflow = np.isinf(x) & (np.abs(y) == float(part.out.max)) | np.isinf(y) & (np.abs(x) == float(part.out.max))
    errors: NDArray[np.float64] = np.where(overflow, 1.0, np.nan_to_num(far, nan=np.inf))[differing]
    return errors


def cost(candidate: Candidate, part: Part) -> int:
    """Estimate the microseconds of one core for a part, from shapes and kinds only, so that the estimate is repeatable.

    A promoted chain has one call per interval. Small products, and kinds without a fast kernel for these formats, are
    computed by a reference.
    """
    m, (rows, k), columns = candidate.accumulator, part.a.shape, len(part.b)
    every = min(int(candidate.promote_every or k), k)
    calls = -(-k // every)
    products = rows * columns * calls * max(every, m.step())
    few = m.reference_is_compiled and rows * columns * k <= _FEW_PRODUCTS
    fast = not few and _has_kernel(m, part.fa, part.fb)
    call, product = (_FAST if m.reference_is_compiled else _SIMPLE) if fast else _SLOW
    more = _WITHIN[0] + _WITHIN[1] * calls if candidate.library is not None else 0
    return int(more + call * calls + products * product / 1000)


@registry_cache(1024)
def _has_kernel(machine: Accumulator, fa: Format, fb: Format) -> bool:
    return engine_for(machine, machine.multiplied(fa), machine.multiplied(fb)) is not None


def score(ours: NDArray[Any], theirs: NDArray[Any]) -> Score:
    """Return the score of output bits."""
    size = 8 * ours.itemsize
    half = np.int64(1) << (size - 1) if size < 64 else None
    if half is None:  # float64: distances are not computed
        return Score(int(np.count_nonzero(ours != theirs)), float(np.mean(ours != theirs)))
    x, y = (np.where(u >= half, half - u, u) for u in (ours.astype(np.int64), theirs.astype(np.int64)))
    return Score(int(np.count_nonzero(ours != theirs)), float(np.mean(np.log2(1.0 + np.abs(x - y)))))
