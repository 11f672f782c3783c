"""Products whose K is split, in fractions; each part is a chain of float32 fused multiply-adds.

Arguments named after a field of `lowprec.GemmLibrary` take its values. `wrong` names a rule close to the correct one,
which the tests must detect: see `WRONG`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .ieee import ieee_sum
from .values import BFLOAT16, FLOAT16, FLOAT32, Exact, Fields, decode, encode, exact

Pairs = Sequence[tuple[Exact, Exact]]
_FORMATS = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32}
_ONE, _ZERO = exact(1), exact(0.0)
#: Wrong rules by the reduction that has them.
WRONG = {
    "serial": ("part rounded first", "last part first", "C in each part"),
    "workspace": ("parts not rounded", "sum rounded each time"),
    "tree": ("parts not rounded", "pairs from the left", "leaves of whole tiles"),
    "float32": ("slices are halves", "slices in reverse"),
}


def rounded(value: Exact, fmt: Fields) -> Exact:
    """Return a value rounded to nearest even."""
    return decode(encode(value, fmt, "nonsaturate"), fmt)


def chain(pairs: Pairs) -> Exact:
    """Return the sum of products by fused multiply-adds from +0."""
    total = _ZERO
    for pair in pairs:
        total = rounded(ieee_sum([pair], total), FLOAT32)
    return total


def _add(*terms: Exact) -> Exact:
    return rounded(ieee_sum([(term, _ONE) for term in terms], exact(-0.0)), FLOAT32)


def _finished(total: Exact, alpha: Exact, addend: Exact | None) -> Exact:
    """Return ``alpha * total + addend``, rounded to float32."""
    if addend is None and alpha == _ONE:
        return total
    return rounded(ieee_sum([(alpha, total)], _ZERO if addend is None else addend), FLOAT32)


def _part(some: Pairs, slices: int, slice_length: int, wrong: str) -> Exact:
    """Return the sum of a part, which is that of the chains of its slices."""
    count = min(slices, -(-len(some) // slice_length))
    pieces = [[p for i, p in enumerate(some) if i // slice_length % slices == s] for s in range(count)]
    if wrong == "slices are halves":
        half = len(some) // 2
        pieces = [list(some[:half]), list(some[half:])]
    if wrong == "slices in reverse":
        pieces = [list(some[::-1])[i::count] for i in range(count)]
    total = chain(pieces[0])
    for piece in pieces[1:]:
        total = _add(total, chain(piece))
    return total


def _tree(pairs: Pairs, tile: int, target: Fields, wrong: str) -> Exact:
    """Return the rounded sum of a leaf, or of two halves, each computed in the same way."""
    k = len(pairs)
    if k <= tile:
        return chain(pairs) if wrong == "parts not rounded" else rounded(chain(pairs), target)
    middle = k // 2
    if wrong == "leaves of whole tiles":
        middle = -(-middle // tile) * tile
    if wrong == "pairs from the left":
        middle = k - tile
    return rounded(_add(_tree(pairs[:middle], tile, target, wrong), _tree(pairs[middle:], tile, target, wrong)), target)


def split_sum(
    pairs: Pairs, reduction: str, *, split_k: int, split_tile: int, out: str, alpha: Exact = _ONE,
    c: Exact | None = None, slices: int = 1, slice_length: int = 32, wrong: str = "",
) -> int:  # fmt: skip
    """Return the code of ``alpha * sum of products + c`` in a format."""
    target, k = _FORMATS[out], len(pairs)
    if reduction == "tree" and out != "float32":
        return encode(_finished(_tree(pairs, split_tile, target, wrong), alpha, c), target, "nonsaturate")
    iterations = -(-k // split_tile)
    size = k if reduction == "tree" else -(-iterations // split_k) * split_tile
    sums = [_part(pairs[start : start + size], slices, slice_length, wrong) for start in range(0, k, size)]
    if wrong == "last part first":
        sums.reverse()
    if reduction == "serial":
        result: Exact | None = c
        for i, total in enumerate(sums):
            value = rounded(total, target) if wrong == "part rounded first" else total
            result = rounded(_finished(value, alpha, result), target)
            if wrong == "C in each part" and i and c is not None:
                result = rounded(_add(result, c), target)
        assert result is not None
        return encode(result, target, "nonsaturate")
    if reduction == "workspace" and len(sums) > 1:
        sums = [_ZERO, *(s if wrong == "parts not rounded" else rounded(s, target) for s in sums)]
    total = sums[0]
    for one in sums[1:]:
        total = _add(total, one)
        if wrong == "sum rounded each time":
            total = rounded(total, target)
    return encode(_finished(total, alpha, c), target, "nonsaturate")


def stream_cuts(tiles: int, iterations: int, blocks: int) -> Iterator[list[int]]:
    """Yield for each tile of the result the iterations at which it is cut; blocks take equal shares of all iterations.

    If each tile has the same number of blocks, a block takes iterations of one tile only.
    """
    blocks = min(blocks, tiles * iterations)
    alone = blocks % tiles == 0
    groups = [[(t, i) for i in range(iterations)] for t in range(tiles)]
    if not alone:
        groups = [[unit for group in groups for unit in group]]
    owner: dict[tuple[int, int], tuple[int, int]] = {}
    for g, units in enumerate(groups):
        count = blocks // len(groups)
        sizes = [len(units) // count + (b < len(units) % count) for b in range(count)]
        owners = [b for b, size in enumerate(sizes) for _ in range(size)]
        owner |= {unit: (g, b) for unit, b in zip(units, owners, strict=True)}
    for t in range(tiles):
        yield [i for i in range(1, iterations) if owner[t, i] != owner[t, i - 1]]
