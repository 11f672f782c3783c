"""Products whose K is split, in fractions; each part is a chain of float32 fused multiply-adds.

Arguments named after a field of `lowprec.GemmLibrary` have its values. `wrong` is the name of a rule next to the right
one, which the tests must notice: see `WRONG`.
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


def split_sum(
    pairs: Pairs, reduction: str, *, split_k: int, split_tile: int, out: str, alpha: Exact = _ONE,
    c: Exact | None = None, slices: int = 1, slice_length: int = 32, wrong: str = "",
) -> int:  # fmt: skip
    """Return the code of ``alpha * sum of products + c`` in a format."""
    target, k = _FORMATS[out], len(pairs)

    def add(*terms: Exact, fmt: Fields = FLOAT32) -> Exact:
        return rounded(ieee_sum([(term, _ONE) for term in terms], exact(-0.0)), fmt)

    def finished(total: Exact, addend: Exact | None) -> Exact:
        if addend is None and alpha == _ONE:
            return total
        return rounded(ieee_sum([(alpha, total)], _ZERO if addend is None else addend), FLOAT32)

    def part(some: Pairs) -> Exact:
        count = min(slices, -(-len(some) // slice_length))
        pieces = [[p for i, p in enumerate(some) if i // slice_length % slices == s] for s in range(count)]
        if wrong == "slices are halves":
            half = len(some) // 2
            pieces = [list(some[:half]), list(some[half:])]
        if wrong == "slices in reverse":
            pieces = [list(some[::-1])[i::count] for i in range(count)]
        total = chain(pieces[0])
        for piece in pieces[1:]:
            total = add(total, chain(piece))
        return total

    if reduction == "tree" and out != "float32":

        def node(low: int, high: int) -> Exact:
            if high - low <= split_tile:
                found = part(pairs[low:high])
                return found if wrong == "parts not rounded" else rounded(found, target)
            middle = low + (high - low) // 2
            if wrong == "leaves of whole tiles":
                middle = low + -(-(middle - low) // split_tile) * split_tile
            if wrong == "pairs from the left":
                middle = high - split_tile
            return rounded(add(node(low, middle), node(middle, high)), target)

        return encode(finished(node(0, k), c), target, "nonsaturate")
    iterations = -(-k // split_tile)
    size = -(-iterations // split_k) * split_tile
    sums = [part(pairs[start : start + size]) for start in range(0, k, size)]
    if reduction == "tree":
        sums = [part(pairs)]
    if wrong == "last part first":
        sums.reverse()
    if reduction == "serial":
        result: Exact | None = c
        for i, total in enumerate(sums):
            value = rounded(total, target) if wrong == "part rounded first" else total
            result = rounded(finished(value, result), target)
            if wrong == "C in each part" and i and c is not None:
                result = rounded(add(result, c), target)
        assert result is not None
        return encode(result, target, "nonsaturate")
    if reduction == "workspace" and len(sums) > 1:
        sums = [_ZERO, *(s if wrong == "parts not rounded" else rounded(s, target) for s in sums)]
    total = sums[0]
    for one in sums[1:]:
        total = add(total, one)
        if wrong == "sum rounded each time":
            total = rounded(total, target)
    return encode(finished(total, c), target, "nonsaturate")


def stream_cuts(tiles: int, iterations: int, blocks: int) -> Iterator[list[int]]:
    """Yield the iterations at which each tile of the result is cut: blocks take equal numbers of units of work.

    Where each tile has the same number of blocks, these share that tile's iterations alone.
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
