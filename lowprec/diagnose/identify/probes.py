"""Operands on which candidates differ that a dump does not tell apart: to be run where the dump came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...format.catalogue import Format, formats
from ...oracle.values import fields
from ...tensorcore.accumulator import FLOAT64, heeded_fields
from ...vectors.drawing import Stream
from ...vectors.operands import ADDENDS, FAMILIES, Maker, addend, code_of, signed
from .candidate import Candidate
from .dump import GemmDump, dump_of, word_of
from .probe_operands import deciding_ties, many_equal_terms, two_terms, with_exponent

Array = NDArray[Any]
_SIDE = 8  # rows and columns of a family's operands
_LENGTHS = (1, 2)  # times the dump's K
_HEAPS, _TIES, _PAIRS = 48, 24, 32  # lots of operands of heaps, ties and pairs
_ALONE, _BESIDE = 4, 12  # and of nothing but C, and of one product beside C


@dataclass(frozen=True, eq=False)
class Probes:
    """Operands of a matrix product, and which candidates they tell apart.

    Attributes
    ----------
    arrays : dict
        a [M, K], b [N, K], and c [M, N] if the dump has one: codes, and numbers of d's type.
    labels : tuple of str
        What the rows of A, and of B, were made to show, for each `side` of them.
    apart : tuple of Candidate
        Those whose outputs differ from the first candidate's.
    together : tuple of Candidate
        Those that give the first candidate's outputs on everything that was tried.
    tried : int
        Outputs that were computed in the search for a difference.
    """

    arrays: dict[str, Array]
    labels: tuple[str, ...]
    apart: tuple[Candidate, ...]
    together: tuple[Candidate, ...]
    tried: int

    def __bool__(self) -> bool:
        """Tell whether there is anything that tells candidates apart."""
        return bool(self.apart)


def probes_for(dump: GemmDump, candidates: Sequence[Candidate], seed: int = 0) -> Probes:
    """Look for operands on which candidates do not all give the same outputs."""
    first, left = candidates[0], list(candidates[1:])
    chosen: dict[int, list[tuple[str, dict[str, Array]]]] = {}
    apart: list[Candidate] = []
    tried = 0
    machines = [c.accumulator for c in candidates]
    bits = sorted({m.fraction_bits for m in machines if hasattr(m, "fraction_bits")})
    groups = sorted({m.group for m in machines if "group" in heeded_fields(type(m))})
    for label, arrays in operands(dump, seed, tuple(bits), tuple(groups)):
        if not left:
            break
        part = _as_dump(dump, arrays).parts()[0]
        own = first.outputs(part)
        tried += own.size
        differ = [c for c in left if (c.outputs(part) != own).any()]
        if differ:
            chosen.setdefault(arrays["a"].shape[1], []).append((label, arrays))
            apart += differ
            left = [c for c in left if c not in differ]
    arrays = _joined(dump, chosen)
    if arrays:  # one product has them all: what is beside them must not hide a difference
        whole = _as_dump(dump, arrays).parts()[0]
        own = first.outputs(whole)
        hidden = [c for c in apart if not (c.outputs(whole) != own).any()]
        apart, left = [c for c in apart if c not in hidden], [*left, *hidden]
    labels = tuple(label for k in sorted(chosen) for label, _ in chosen[k])
    return Probes(arrays, labels, tuple(apart), tuple(left), tried)


def operands(
    dump: GemmDump, seed: int, bits: tuple[int, ...] = (), groups: tuple[int, ...] = ()
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield operands of every family, for K as it is and longer, with every kind of addend if the dump has one.

    `bits` are numbers of fraction bits that are to be told apart, `groups` lengths of groups.
    """
    if FLOAT64 in (dump.fa, dump.fb) or dump.scaled:
        return
    fa, fb = dump.fa, dump.fb
    distances = (32, 33, 34, *(n + more for n in bits[:8] for more in (0, 1)))
    families: dict[str, tuple[Maker, Maker]] = dict(FAMILIES)
    turns = range(seed * _HEAPS, (seed + 1) * _HEAPS)
    families |= {
        f"a heap, and a bit far below, {turn}": many_equal_terms(distances, groups[:8], turn) for turn in turns
    }
    families |= {f"a tie, and a bit far below, {turn}": deciding_ties(distances) for turn in range(_TIES)}
    families |= {f"a pair, the smaller a tie, {turn}": two_terms() for turn in range(_PAIRS)}
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
    """Yield zeros with C of every exponent: what zeros do to it shows nowhere else."""
    assert dump.c is not None
    zeros = [np.zeros((_SIDE, dump.k), fmt.code_dtype) for fmt in (dump.fa, dump.fb)]
    out = formats["float16" if dump.c.dtype == np.float16 else "float32"]
    for turn in range(_ALONE):
        s = Stream(seed, f"probes/nothing but c/{turn}")
        codes = [[code_of(s, fields(out), s.below(out.emax - out.emin)) for _ in range(_SIDE)] for _ in range(_SIDE)]
        c = np.array(codes, out.code_dtype).view(np.dtype(out.name)).astype(dump.c.dtype)
        yield f"nothing but c, {turn}", {"a": zeros[0], "b": zeros[1], "c": c}


def _one_product_and_c(dump: GemmDump, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield one product an output, a power of two, and a C near half a unit in its last place, with a bit far below."""
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
    """Return the chosen operands as one product: rows below each other, filled up with zeros to the longest K."""
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
