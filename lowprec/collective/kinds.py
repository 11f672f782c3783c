"""Kinds of collectives: rings, trees of pairs, double binary trees, one-shot sums, two levels, and choices by size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .._checks import brief_repr, check_choice, check_int
from .._values import Value
from ..order.rules import Steps
from .collective import Collective, Part, Tree


def _chain(ranks: int) -> Tree:
    """Return the tree of a running sum that is sent from leaf to leaf."""
    steps = Steps(ranks, "float32")
    steps.in_turn(range(ranks))
    return Tree.of(steps, (0, *range(ranks, 2 * ranks - 2)) if ranks > 1 else ())


@dataclass(frozen=True, eq=False, repr=False)
class Ring(Collective):
    """Running sums that are sent around a ring: each rank adds its elements, and each rank completes one chunk.

    Parameters
    ----------
    first : int
        Rank at which chunk 0 starts; chunk c starts c ranks further.
    direction : {1, -1}
        Direction of the messages: 1 to the next rank, -1 to the previous one.
    segments : int
        If 0, chunk sizes differ by at most one element, with larger chunks first. Otherwise, the smallest number of
        segments per rank: elements are cut into equal segments, whose number is a multiple of the number of ranks, so
        that only the last chunks may be smaller.
    segment_bytes : int
        Largest size of a segment in bytes.
    """

    first: int = 1
    direction: Literal[1, -1] = 1
    segments: int = 0
    segment_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        super().__post_init__()
        caller = f"Ring {self.name}"
        check_int(caller, "first", self.first)
        check_choice(caller, "direction", self.direction, (1, -1))
        check_int(caller, "segments", self.segments, 0)
        check_int(caller, "segment_bytes", self.segment_bytes, 1)

    def least(self, ranks: int) -> int:
        """Return the number of ranks: each rank has a chunk."""
        return ranks

    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield one part for each chunk."""
        tree, start = _chain(ranks), 0
        small, larger = divmod(count, ranks)
        if self.segments:
            most = itemsize * max(1, self.segment_bytes // itemsize)
            total = count * itemsize
            rounds = -(-max(-(-total // most), self.segments * ranks) // ranks)
            small, larger = rounds * -(-total // (rounds * ranks) // itemsize), 0
        for chunk in range(ranks):
            stop = min(start + small + (chunk < larger), count)
            if stop > start:
                at = (chunk + self.first) % ranks
                yield Part(start, stop, [(at + self.direction * hop) % ranks for hop in range(ranks)], tree)
            start = stop


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Collective):
    """Sums of pairs of ranks, then of pairs of sums; both partners of a pair compute the sum, from encoded messages.

    Exchanging halves of the elements (recursive halving, Rabenseifner) and exchanging all of them (recursive doubling)
    give the same bits, because addition commutes.

    Parameters
    ----------
    join : {"pairwise", "halving"}
        ``pairwise``: ranks 0 and 1, 2 and 3, then their sums; ``halving``: ranks 0 and R/2, 1 and R/2 + 1, ...
    folds : bool
        Whether R ranks are first reduced to a power of two, 2^k, by adding the first 2 (R - 2^k) in pairs of
        neighbours. Otherwise, if a level has an odd number of sums, the last one moves to the next level.
    halves : bool
        Whether each rank reduces a part of the elements; there must then be at least 2^k elements.
    """

    join: Literal["pairwise", "halving"] = "pairwise"
    folds: bool = True
    halves: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"Pairs {self.name}", "join", self.join, ("pairwise", "halving"))

    def least(self, ranks: int) -> int:
        """Return the largest power of two up to the number of ranks if each rank reduces a part, else 1."""
        return 1 << ranks.bit_length() - 1 if self.halves else 1

    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield one part."""
        steps = Steps(ranks, "float32")
        extra = ranks - (1 << ranks.bit_length() - 1) if self.folds else 0
        level = [steps.add(2 * i, 2 * i + 1) for i in range(extra)] + list(range(2 * extra, ranks))
        steps.join(level, self.join)
        if count:
            yield Part(0, count, range(ranks), Tree.of(steps, range(ranks + len(steps.found) - 1)))


@dataclass(frozen=True, eq=False, repr=False)
class OneShot(Collective):
    """Sums on every rank, which receives the elements of all ranks and adds them one by one.

    Parameters
    ----------
    from_zero : bool
        Whether the sum starts at +0 instead of the first rank's elements.
    descending : bool
        Whether the last rank is the first term.
    scattered : bool
        Whether each rank adds one part of the elements and sends the sums to the others.
    """

    from_zero: bool = False
    descending: bool = False
    scattered: bool = False

    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield one part."""
        steps = Steps(ranks, "float32")
        first = steps.running([0]) if self.from_zero else 0
        last = steps.in_turn([first, *range(1, ranks)])
        sent = (*range(ranks), *([last] if self.scattered else []))
        if count:
            yield Part(0, count, range(ranks)[::-1] if self.descending else range(ranks), Tree.of(steps, sent))


@dataclass(frozen=True, eq=False, repr=False)
class TwoLevel(Collective):
    """Sums within each node, starting from +0 and without a codec; a `Ring` of nodes then adds these sums.

    The ring has default parameters, and its messages are encoded.

    Parameters
    ----------
    node : int
        Ranks per node.
    """

    node: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(f"TwoLevel {self.name}", "node", self.node, 1)

    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield one part for each node."""
        nodes = [range(at, min(at + self.node, ranks)) for at in range(0, ranks, self.node)]
        for start, stop, ring, _ in Ring("nodes").parts(len(nodes), count, itemsize):
            steps, leaf, sums = Steps(ranks, "float32"), 0, []
            for node in ring:
                size = len(nodes[node])
                sums.append(steps.in_turn([steps.running([leaf]), *range(leaf + 1, leaf + size)]))
                leaf += size
            totals = sums[:1]
            for one in sums[1:]:
                totals.append(steps.add(totals[-1], one))
            yield Part(start, stop, [rank for node in ring for rank in nodes[node]], Tree.of(steps, totals[:-1]))


@dataclass(frozen=True, eq=False, repr=False)
class DoubleBinaryTree(Collective):
    """Sums along two binary trees: a rank adds the sums of its children to its elements and sends them to its parent.

    Rank 0 is the root of the first tree, which sums the first half of the elements; the second tree is the first one
    mirrored, or moved by one rank if the number of ranks is odd.
    """

    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield one part for each tree."""
        steps = Steps(ranks, "float32")
        last = _binary_tree(steps, 0, 1 << (ranks - 1).bit_length(), ranks)
        tree = Tree.of(steps, [])
        own = {0}
        for terms in steps.found:  # the first term of a step is a rank's own sum
            own.add(terms[0])
        tree = tree._replace(sent=frozenset(range(last)) - own if ranks > 1 else frozenset())
        half = (count + 1) // 2
        other = [(rank + 1) % ranks for rank in range(ranks)] if ranks % 2 else list(range(ranks))[::-1]
        for start, stop, seats in ((0, half, range(ranks)), (half, count, other)):
            if stop > start:
                yield Part(start, stop, seats, tree)


def _binary_tree(steps: Steps, rank: int, bit: int, ranks: int) -> int:
    """Add the steps of the subtree of a rank with lowest set bit `bit`; return the index of its sum."""
    low = bit >> 1
    children = []
    if rank and low:
        children.append(rank - low)
    while low and rank + low >= ranks:
        low >>= 1
    if low:
        children.append(rank + low)
    total = rank
    for child in children:
        total = steps.add(total, _binary_tree(steps, child, child & -child, ranks))
    return total


@dataclass(frozen=True, eq=False, repr=False)
class Choice(Value):
    """Row of `Chosen`: an algorithm, and the numbers of ranks and bytes below which it is used.

    Parameters
    ----------
    ranks, nbytes : int
        Numbers below which the row applies.
    algorithm : Collective or None
        Algorithm; None if the library's algorithm is not implemented here.
    few : Collective, optional
        Algorithm for arrays with fewer elements than `algorithm` requires.
    """

    ranks: int
    nbytes: int
    algorithm: Collective | None
    few: Collective | None = None

    def __post_init__(self) -> None:
        for field in ("ranks", "nbytes"):
            object.__setattr__(self, field, check_int("Choice", field, getattr(self, field), 1))
        for field in ("algorithm", "few"):
            if not isinstance(given := getattr(self, field), Collective | None):
                raise TypeError(f"Choice: {field} must be a Collective or None, got {brief_repr(given)}")


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(Collective):
    """Table by which a library chooses an algorithm from the numbers of ranks and bytes.

    Parameters
    ----------
    choices : tuple of Choice
        Rows of the table; the first row that applies determines the algorithm.
    """

    choices: tuple[Choice, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(row, Choice) for row in self.choices):
            raise TypeError(f"Chosen {self.name}: choices must be a sequence of Choice, got {brief_repr(self.choices)}")

    def choose(self, ranks: int, count: int, itemsize: int) -> Collective:
        """Return the algorithm for a number of ranks and an array of `count` elements of `itemsize` bytes.

        Raises
        ------
        ValueError
            If no row applies, or the algorithm of the row is None.
        """
        for row in self.choices:
            if ranks < row.ranks and count * itemsize < row.nbytes:
                few = row.few if row.algorithm and count < row.algorithm.least(ranks) else None
                if found := few or row.algorithm:
                    return found
                break
        raise ValueError(
            f"{self.name}: ranks and bytes must be a case that is described, got {ranks} ranks and {count * itemsize} "
            "bytes"
        )

    def parts(self, ranks: int, count: int, itemsize: int) -> Iterator[Part]:
        """Yield the parts of the algorithm that the table chooses."""
        yield from self.choose(ranks, count, itemsize).parts(ranks, count, itemsize)

    def noise_gain(self, ranks: int) -> float:
        """Raise ValueError: the noise depends on the algorithm that is chosen."""
        raise ValueError(
            f"noise_gain: collective must be one algorithm, such as {self.name}.choose(ranks, count, itemsize), got "
            f"{self.name}, which chooses by the number of bytes"
        )
