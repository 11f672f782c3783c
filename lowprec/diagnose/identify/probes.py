"""Probes: operands for which candidates differ, to be computed on the hardware that made the dump."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format, formats
from ...oracle.values import Fields, fields, max_code
from ...tensorcore.accumulator import FLOAT64, heeded_fields
from ...vectors.family import Stream
from ...vectors.operands import ADDENDS, FAMILIES, Codes, Maker, addend, code_of, signed
from ..deadline import Deadline
from .candidate import Candidate
from .dump import GemmDump, word_of
from .inputs import dump_of

_LEVELS = (2, 1, 2, 1, 2, 0, 1, 0, 0, 1, 0, 2, 1, 2, 1, 2)  # exponents at k modulo 16: 0 low, 1 middle, 2 high
_SIDE = 8  # rows and columns of a family's operands
_LENGTHS = (1, 2)  # lengths in K of the operands, relative to the dump's
_HEAPS, _TIES, _PAIRS = 48, 24, 32  # numbers of operands with equal large products, with ties, and with pairs
_ALONE, _BESIDE = 4, 12  # numbers of operands with C only, and with one product and C


def _level(level: int, f: Fields) -> int:
    """Return the exponent of a level."""
    least = 1 - f.bias - f.mantissa_bits
    return (max(least, -12), min(0, 2 * f.bias), min((max_code(f) >> f.mantissa_bits) - f.bias, 8))[level]


def with_exponent(s: Stream, f: Fields, exponent: int) -> int:
    """Return a code of the binade nearest to an exponent, most often a power of two, with a random sign."""
    m, field = f.mantissa_bits, exponent + f.bias
    if field < 1:
        return signed(s, 1 << max(m + field - 1, 0), f)
    mantissa = s.bits(m) if s.chance(0.3) else 0
    return signed(s, min(field << m | mantissa, max_code(f)), f)


def _leveled(s: Stream, k: int, f: Fields) -> Codes:
    return [with_exponent(s, f, _level(_LEVELS[i % 16], f)) for i in range(k)]


def _tied(distances: tuple[int, ...], s: Stream, k: int, f: Fields) -> Codes:
    """Return codes that give, with `_leveled`, a large product, products at half an ulp of it, and smaller ones."""
    low, middle, high = (_level(level, f) for level in range(3))
    top = 2 * high - s.pick((0, 0, 1, 2, s.below(12)))
    half = s.pick((11, 12, 14, 24, 24, 25, s.below(30)))
    far = s.pick(distances) if s.chance(0.6) else half + 1 + s.below(24)
    exponents = {2: top - high, 1: top - half - middle, 0: top - far - low}
    codes, near, block = [0] * k, s.chance(0.5), 8 * s.below(max(k // 8, 1))
    in_a_row = s.chance(0.6) and block + 4 <= k  # of the second eight, in the order 1, 0, 2
    for level, exponent in exponents.items():
        everywhere = range(k) if not near else range(block, min(block + 8, k))
        if near and in_a_row and block % 16:
            everywhere = range(block + 1, block + 4)
        places = [i for i in everywhere if _LEVELS[i % 16] == level] or [0]
        for i in places if level == 2 and s.chance(0.15) else [s.pick(tuple(places))]:
            codes[i] = with_exponent(s, f, exponent)
    return codes


@dataclass(frozen=True)
class _Heap:
    """Positions along K in one turn: those of large numbers, then others with an alternating level in B."""

    large: tuple[int, ...]
    others: tuple[int, ...]
    run: int  # number of large products with one sign, before as many with the other
    below: int  # difference between the highest exponent and that of large numbers
    quarters: int  # quarters that are added to the power of two of B's large numbers
    ends: tuple[int, ...]  # numbers of large numbers in B's rows

    @classmethod
    def of(cls, turn: int, k: int, groups: tuple[int, ...]) -> _Heap:
        """Return the positions of a turn, which are the same in both operands."""
        s = Stream(turn, f"heap of {k}")
        if turn % 2 and groups:
            group = min(s.pick(groups), k)
            first = s.pick((0, (k - 1) // group * group))  # the sum of the last group is not truncated again
            n = max(min(group, k - first) - s.pick((1, 1, 2)), 1)
            rest = *range(first), *range(first + n, k)
            return cls(tuple(range(first, first + n)), rest, n, 0, s.below(4), (n,))
        first = s.pick((0, 0, 0, 8 * s.below(max(k // 16, 1)), s.below(max(k // 2, 1))))
        length = min(s.pick((1, 2, 4, 8, 16, 32, 64, 128, k // 2, 1 + s.below(k))), max(k - first - 2, 1))
        within = s.pick((range(4), range(4), range(2), range(2, 4), range(0, 4, 2)))
        large = [i for i in range(first, k) if i % 4 in within][:length] or [first]
        others = tuple(i for i in range(k) if i not in large)
        n = len(large)
        run = s.pick((n, n, n, 1, max(n // 2, 1)))
        ends = (n, n, n, max(n // 2, 1), *(1 + s.below(n) for _ in range(4)))
        return cls(tuple(large), others, run, s.pick((0, 0, 0, 1, s.below(9))), s.below(4), ends)

    def number(self, quarters: int, f: Fields) -> int:
        """Return the code of a large number."""
        field = max(_level(2, f) - self.below + f.bias, 0)
        return min(field << f.mantissa_bits | quarters << f.mantissa_bits >> 2, max_code(f))


def _heaped(
    distances: tuple[int, ...], groups: tuple[int, ...], turn: int, s: Stream, k: int, f: Fields
) -> Codes:  # fmt: skip
    """Return codes for equal large products, one product at half an ulp of their sum, and one or two smaller ones."""
    heap, codes = _Heap.of(turn, k, groups), [0] * k
    quarters, sign = s.below(4), s.bits(1)
    for n, i in enumerate(heap.large):
        negative = (sign + n // heap.run) % 2 and f.signed
        codes[i] = heap.number(quarters, f) | negative << f.width
    if not heap.others:
        return codes
    several = min(s.pick(heap.ends), heap.run)
    sixteenths = several * (4 + quarters) * (4 + heap.quarters)
    top = 2 * (_level(2, f) - heap.below) + sixteenths.bit_length() - 5
    half = s.pick((11, 12, 14, 23, 24, 24, 25, s.below(30)))
    far = s.pick(distances) if s.chance(0.6) else half + 1 + s.below(24)
    below = [(half, 0)] if s.chance(0.6 if heap.run > len(heap.large) // 2 else 0.3) else []
    below += [(far, 1), (far + s.below(4), 1)][: s.pick((1, 1, 2))]
    after = [n for n, i in enumerate(heap.others) if i > heap.large[0]] or [0]
    last = [n for n, i in enumerate(heap.others) if i > heap.large[-1]] or after
    start = s.pick((after[0], last[0], s.pick(after), s.below(len(heap.others))))
    for n, (distance, level) in enumerate(below):
        place = start + 2 * n + (start + level) % 2  # the levels take turns
        if place < len(heap.others):
            codes[heap.others[place]] = with_exponent(s, f, top - distance - _level(1 - level, f))
    return codes


def _under(groups: tuple[int, ...], turn: int, s: Stream, k: int, f: Fields) -> Codes:
    """Return the other operand of `_heaped`: large numbers at its large places, small ones elsewhere."""
    heap, codes = _Heap.of(turn, k, groups), [0] * k
    for i in heap.large[: s.pick(heap.ends)]:
        codes[i] = heap.number(heap.quarters, f)
    for n, i in enumerate(heap.others):
        codes[i] = with_exponent(s, f, _level(1 - n % 2, f))
    return codes


@functools.lru_cache(16)
def _nearly_powers(m: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of (m + 1)-bit significands with products above a power of two by less than 2^-m of the product.

    If there is no such pair, return that of two smallest significands.
    """
    some = range(1 << m, 2 << m)
    found = [(x, y) for x in some for y in some if 0 < x * y - (1 << (x * y).bit_length() - 1) < x * y >> m]
    return tuple(found) or ((1 << m, 1 << m),)


def _large_and_small(side: int, s: Stream, k: int, f: Fields) -> Codes:
    """Return codes: for side 0, one large number at an even k and a small one after it; for side 1, such everywhere."""
    m, highest = f.mantissa_bits, (max_code(f) >> f.mantissa_bits) - f.bias
    significand = s.pick(_nearly_powers(min(m, 7)))[side] - (1 << min(m, 7))
    small = max(f.bias - 6 + s.pick((0, 0, 0, 1, 2, 3)), 1) << m | significand << (m - min(m, 7))
    large = max(min(highest, 8 - 2 * side) + f.bias - s.pick((0, 0, 0, 1, 2)), 0) << m
    large |= int(s.chance(0.5)) << m >> 1  # one and a half
    if side:
        return [small if i % 2 else large for i in range(k)]
    codes, at = [0] * k, 2 * s.below(max(k // 2, 1))
    for i, code in ((at, large), (at + 1, small)):
        if i < k:
            codes[i] = signed(s, code, f)
    return codes


Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Probes:
    """Operands of a matrix product, and the candidates that they distinguish.

    Attributes
    ----------
    arrays : dict
        a [M, K], b [N, K], and c [M, N] if the dump has one: codes, and numbers of d's type.
    labels : tuple of str
        Purpose of each group of `side` rows of A and of B.
    distinguished : tuple of Candidate
        Candidates with other outputs than the first candidate.
    together : tuple of Candidate
        Candidates with the outputs of the first candidate for all operands that were tried.
    tried : int
        Number of outputs that were computed in the search for differences.
    """

    arrays: dict[str, Array]
    labels: tuple[str, ...]
    distinguished: tuple[Candidate, ...]
    together: tuple[Candidate, ...]
    tried: int

    def __bool__(self) -> bool:
        """Return whether any candidate is distinguished."""
        return bool(self.distinguished)


def probes_for(
    dump: GemmDump, candidates: Sequence[Candidate], seed: int = 0, deadline: Deadline | None = None
) -> Probes:
    """Search, until the deadline, for operands that give different outputs for the candidates."""
    deadline = deadline or Deadline()
    first, left = candidates[0], list(candidates[1:])
    chosen: dict[int, list[tuple[str, dict[str, Array]]]] = {}
    distinguished: list[Candidate] = []
    tried = 0
    machines = [c.accumulator for c in candidates]
    bits = sorted({m.fraction_bits for m in machines if hasattr(m, "fraction_bits")})
    groups = sorted({m.group_size for m in machines if "group_size" in heeded_fields(type(m))})
    for label, arrays in deadline.limit(operands(dump, seed, tuple(bits), tuple(groups))):
        if not left:
            break
        part = _as_dump(dump, arrays).parts()[0]
        own = first.outputs(part)
        tried += own.size
        differ = [c for c in deadline.limit(left) if (c.outputs(part) != own).any()]
        if differ:
            chosen.setdefault(arrays["a"].shape[1], []).append((label, arrays))
            distinguished += differ
            left = [c for c in left if c not in differ]
    arrays = _joined(dump, chosen)
    if arrays:  # all operands are in one product, in which other operands must not hide a difference
        whole = [(part, first.outputs(part)) for part in _as_dump(dump, arrays).parts()]
        seen = [c for c in deadline.limit(distinguished) if any((c.outputs(part) != own).any() for part, own in whole)]
        distinguished, left = seen, [*left, *(c for c in distinguished if c not in seen)]
    labels = tuple(label for k in sorted(chosen) for label, _ in chosen[k])
    return Probes(arrays, labels, tuple(distinguished), tuple(left), tried)


def operands(
    dump: GemmDump, seed: int, bits: tuple[int, ...] = (), groups: tuple[int, ...] = ()
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield operands of every family, for the dump's K and longer, with every kind of addend if the dump has one.

    `bits` are numbers of fraction bits to distinguish, `groups` lengths of groups.
    """
    if FLOAT64 in (dump.fa, dump.fb) or dump.scaled:
        return
    fa, fb = dump.fa, dump.fb
    distances = (32, 33, 34, *(n + more for n in bits[:8] for more in (0, 1)))
    families: dict[str, tuple[Maker, Maker]] = dict(FAMILIES)
    turns = range(seed * _HEAPS, (seed + 1) * _HEAPS)
    families |= {
        f"a heap, and a bit far below, {turn}": (
            functools.partial(_heaped, distances, groups[:8], turn),
            functools.partial(_under, groups[:8], turn),
        )
        for turn in turns
    }
    families |= {
        f"a tie, and a bit far below, {turn}": (functools.partial(_tied, distances), _leveled) for turn in range(_TIES)
    }
    families |= {
        f"a pair, the smaller a tie, {turn}": (
            functools.partial(_large_and_small, 0),
            functools.partial(_large_and_small, 1),
        )
        for turn in range(_PAIRS)
    }
    if dump.c is not None:
        yield from _nothing_but_c(dump, seed)
        yield from _one_product_and_c(dump, seed)
    for times in _LENGTHS:
        for name, (make_a, make_b) in families.items():
            if "NaN" in name:
                continue
            s = Stream(seed, f"probes/{name}/{times}/{fa.name}/{fb.name}")
            k = dump.k * times
            a = [make_a(s, k, fields(fa)) for _ in range(_SIDE)]
            b = [make_b(s, k, fields(fb)) for _ in range(_SIDE)]
            arrays: dict[str, Array] = {"a": np.array(a, fa.code_dtype), "b": np.array(b, fb.code_dtype)}
            if dump.c is None:
                yield name, arrays
                continue
            dtype = dump.c.dtype
            out = formats["float16" if dtype == np.float16 else "float32"]
            for kind in ADDENDS:
                if kind not in ("any c", "c at an edge"):
                    yield f"{name}, {kind}", arrays | {"c": _addends(kind, s, a, b, (fa, fb), out).astype(dtype)}


def _nothing_but_c(dump: GemmDump, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield zero operands with C of every exponent, to reveal the effect of zero products on C."""
    assert dump.c is not None
    zeros = [np.zeros((_SIDE, dump.k), fmt.code_dtype) for fmt in (dump.fa, dump.fb)]
    out = formats["float16" if dump.c.dtype == np.float16 else "float32"]
    for turn in range(_ALONE):
        s = Stream(seed, f"probes/nothing but c/{turn}")
        codes = [[code_of(s, fields(out), s.below(out.emax - out.emin)) for _ in range(_SIDE)] for _ in range(_SIDE)]
        c = np.array(codes, out.code_dtype).view(np.dtype(out.name)).astype(dump.c.dtype)
        yield f"nothing but c, {turn}", {"a": zeros[0], "b": zeros[1], "c": c}


def _one_product_and_c(dump: GemmDump, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield one product per output, a power of two, and a C near half its ulp, with a bit far below."""
    assert dump.c is not None
    out = formats["float16" if dump.c.dtype == np.float16 else "float32"]
    for turn in range(_BESIDE):
        s = Stream(seed, f"probes/one product and c/{turn}")
        at = s.below(dump.k)
        sides, exponents = [], []
        for fmt in (dump.fa, dump.fb):
            codes = np.zeros((_SIDE, dump.k), fmt.code_dtype)
            some = [s.between(max(fmt.emin, -8), max(min(fmt.emax, 8), fmt.emin)) for _ in range(_SIDE)]
            codes[:, at] = [with_exponent(s, fields(fmt), e) for e in some]
            sides.append(codes)
            exponents.append(some)
        c = np.zeros((_SIDE, _SIDE), out.code_dtype)
        for i, j in np.ndindex(c.shape):
            distance = out.mantissa_bits + s.pick((1, 1, 2, 2, 2, 3, s.between(-4, 16)))
            field = exponents[0][i] + exponents[1][j] - distance + fields(out).bias
            low = s.pick((1, 1, 1, 0, (1 << out.mantissa_bits) - 1, 1 << s.below(out.mantissa_bits)))
            c[i, j] = signed(s, max(field, 0) << out.mantissa_bits | low, fields(out))
        addends = c.view(np.dtype(out.name)).astype(dump.c.dtype)
        yield f"one product and c, {turn}", {"a": sides[0], "b": sides[1], "c": addends}


def _addends(
    kind: str, s: Stream, a: list[list[int]], b: list[list[int]], pair: tuple[Format, Format], out: Format
) -> Array:
    own = fields(pair[0]), fields(pair[1])
    codes = [[addend(kind, s, x, y, own, 24, fields(out)) for y in b] for x in a]
    return np.array(codes, out.code_dtype).view(np.dtype(out.name))


def _as_dump(dump: GemmDump, arrays: dict[str, Array]) -> GemmDump:
    d = np.zeros((len(arrays["a"]), len(arrays["b"])), word_of(dump.out))
    return dump_of(
        arrays["a"], arrays["b"], arrays.get("c"), d, a_format=dump.fa, b_format=dump.fb, d_format=dump.out,
        a_scale=None, b_scale=None,
    )  # fmt: skip


def _joined(dump: GemmDump, chosen: dict[int, list[tuple[str, dict[str, Array]]]]) -> dict[str, Array]:
    """Return the chosen operands as one product: concatenated rows, padded with zeros to the longest K."""
    some = [arrays for k in sorted(chosen) for _, arrays in chosen[k]]
    if not some:
        return {}
    k = max(chosen)
    joined = {side: np.concatenate([_wide(x[side], k) for x in some]) for side in ("a", "b")}
    if dump.c is not None:
        c = np.zeros((len(joined["a"]), len(joined["b"])), dump.c.dtype)
        for i, x in enumerate(some):
            c[i * _SIDE : (i + 1) * _SIDE, i * _SIDE : (i + 1) * _SIDE] = x["c"]
        joined["c"] = c
    return joined


def _wide(codes: Array, k: int) -> Array:
    return np.pad(codes, [(0, 0), (0, k - codes.shape[1])])
