"""Kinds of orders: rules that give the steps of any number of elements."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from .._checks import check_choice, check_int
from .._values import Value, normalize_fields
from .order import DTYPES, FORMATS, FormatName, Order, SumFormat

Join = Literal["in_turn", "pairwise", "halving", "butterfly"]
MOST = 1 << 22  # largest number of elements of an order


class Steps:
    """Builder of the steps of an order of n elements of a dtype."""

    def __init__(self, n: int, dtype: FormatName) -> None:
        self.n, self.dtype = n, dtype
        self.found: list[tuple[int, ...]] = []

    def add(self, *terms: int) -> int:
        """Add a step and return the index of its sum; for a single term, return the term without a step."""
        if len(terms) == 1:
            return terms[0]
        self.found.append(terms)
        return self.n + len(self.found) - 1

    def in_turn(self, terms: Sequence[int]) -> int:
        """Add terms one by one and return the last sum."""
        total = terms[0]
        for term in terms[1:]:
            total = self.add(total, term)
        return total

    def running(self, elements: Sequence[int]) -> int:
        """Add elements one by one and return the last sum; for a single element, add a step that rounds its product."""
        if len(elements) > 1 or elements[0] >= self.n:
            return self.in_turn(elements)
        self.found.append((elements[0],))
        return self.n + len(self.found) - 1

    def in_lanes(self, terms: Sequence[int], lanes: int, join: Join, whole: int) -> int:
        """Add every `lanes`-th of the first `whole` terms, join these sums and add the other terms one by one."""
        sums = [self.running(terms[lane:whole:lanes]) for lane in range(min(lanes, whole))]
        head = [self.join(sums, join)] if sums else []
        return self.in_turn([*head, *terms[whole:]])

    def join(self, terms: Sequence[int], how: Join) -> int:
        """Add terms one by one, or as a tree (see `Tree`), and return the sum."""
        level = list(terms)
        if how == "in_turn":
            return self.in_turn(level)
        if how == "butterfly":
            return self.add(*(self.join(level[i::2], how) for i in range(2))) if len(level) > 1 else level[0]
        while len(level) > 1:
            half = (len(level) + 1) // 2
            if how == "pairwise":
                level = [self.add(*level[i : i + 2]) for i in range(0, len(level), 2)]
            else:
                level = [self.add(*level[i::half]) for i in range(half)]
        return level[0]


@dataclass(frozen=True, eq=False, repr=False)
class OrderRule(Value):
    """Base of rules that give the order of any number of elements.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    from_zero : bool
        Whether running sums start at +0 instead of their first terms.
    fma : bool
        Whether products are added by fused multiply-adds.
    flush : bool
        Whether subnormal elements, products and sums become zeros.
    sum_formats : tuple of (str, str)
        Dtypes for which the rule holds, each with the format of its sums; empty: any dtype, with sums in that dtype.
    source : str
        Reference for the rule.
    """

    name: str = dataclasses.field(compare=False)
    from_zero: bool = dataclasses.field(default=False, kw_only=True)
    fma: bool = dataclasses.field(default=False, kw_only=True)
    flush: bool = dataclasses.field(default=False, kw_only=True)
    sum_formats: tuple[tuple[FormatName, FormatName], ...] = dataclasses.field(default=(), kw_only=True)
    source: str = dataclasses.field(default="user-defined", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"{type(self).__name__} {self.name}"
        for field, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                check_choice(caller, field, getattr(self, field), get_args(kind))
            elif kind is int:
                check_int(caller, field, getattr(self, field), 1)

    @abstractmethod
    def build(self, steps: Steps) -> None:
        """Add the steps of `steps.n` elements, at least two."""

    def is_defined_for(self, n: int) -> bool:
        """Return whether the rule orders n elements."""
        return True

    def rule_of(self, n: int) -> OrderRule:
        """Return the rule that orders n elements: this one, unless the rule has another for few elements."""
        return self

    def __call__(
        self, n: int, *, dtype: FormatName = "float32", sum_format: SumFormat | None = None,
        out_format: FormatName | None = None, fma: bool | None = None,
    ) -> Order:  # fmt: skip
        """Return the order of n elements.

        Parameters
        ----------
        n : int
            Number of elements, at least 1.
        dtype, sum_format, out_format : str, optional
            Formats of the elements, the sums and the result; by default, `sum_format` is the rule's for the dtype, and
            `out_format` is the dtype.
        fma : bool, optional
            Whether products are added by fused multiply-adds; by default, the rule's `fma`.

        Returns
        -------
        Order
            Its name is that of the rule.

        Raises
        ------
        ValueError
            If n is out of range, or the rule does not hold for the dtype.

        Examples
        --------
        >>> import lowprec as lp
        >>> print(lp.orders["halving"](4))
        (x[0] + x[2]) + (x[1] + x[3])
        """
        n = check_int(self.name, "n", n, 1, MOST)
        held = dict(self.sum_formats) or {fmt: fmt for fmt in FORMATS}
        check_choice(self.name, "dtype", dtype, tuple(held))
        steps, rule = Steps(n, dtype), self.rule_of(n)
        if n > 1:
            rule.build(steps)
        return Order(
            self.name, tuple(steps.found), dtype=dtype, sum_format=sum_format or held[dtype],
            out_format=out_format or dtype, fma=rule.fma if fma is None else fma, from_zero=rule.from_zero,
            flush=rule.flush, source=self.source,
        )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Chain(OrderRule):
    """Addition of elements one by one, from left to right.

    Parameters
    ----------
    swaps_pairs : bool
        Whether the second element of each pair is added first, as by VDPBF16PS.
    """

    swaps_pairs: bool = False

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        steps.in_turn([i ^ 1 if self.swaps_pairs and i ^ 1 < steps.n else i for i in range(steps.n)])


@dataclass(frozen=True, eq=False, repr=False)
class Tree(OrderRule):
    """Balanced tree of additions, which adds neighbours in pairs or the second half to the first.

    Parameters
    ----------
    join : {"pairwise", "halving", "butterfly"}
        ``pairwise``: x[0] + x[1], x[2] + x[3] and so on, then these sums in the same way; ``halving``: the second half
        is added to the first; ``butterfly``: the same after padding to a power of two, as with shuffles of 16, 8, 4, 2
        and 1 lanes.
    """

    join: Join = "pairwise"

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        steps.join([steps.running([i]) for i in range(steps.n)], self.join)


@dataclass(frozen=True, eq=False, repr=False)
class Lanes(OrderRule):
    """Running sums of every `lanes`-th element, then their sum, to which the remaining elements are added.

    Parameters
    ----------
    lanes : int
        Number of running sums.
    join : {"in_turn", "pairwise", "halving", "butterfly"}
        How the running sums are added.
    rest_in_lanes : bool
        Whether elements of the last, incomplete group are added to the running sums.
    least : int
        Smallest number of elements that are added in lanes.
    few : OrderRule, optional
        Rule for fewer elements, with its own `from_zero`, `fma` and `flush`; by default, they are added one by one.
    rounds_whole : bool
        Whether a product in a complete group is rounded, and only those of the last, incomplete one are fused.
    """

    lanes: int = 8
    join: Join = "pairwise"
    rest_in_lanes: bool = False
    least: int = 1
    few: OrderRule | None = None
    rounds_whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.few, OrderRule | None):
            raise TypeError(f"Lanes {self.name}: few must be of class OrderRule or None, got {self.few!r}")

    def rule_of(self, n: int) -> OrderRule:
        """Return `few` for fewer than `least` elements."""
        return self.few.rule_of(n) if self.few and n < self.least else self

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        n, lanes = steps.n, self.lanes if steps.n >= self.least else 1
        terms = list(range(n))
        if self.rounds_whole:
            terms[: n - n % lanes] = [steps.running([i]) for i in range(n - n % lanes)]
        steps.in_lanes(terms, lanes, self.join, n if self.rest_in_lanes else n - n % lanes)


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(OrderRule):
    """Sums of consecutive elements, which are added one by one.

    Parameters
    ----------
    block : int
        Number of elements in a block.
    halves : bool
        Whether n elements are divided into two halves if n is above `block` and at most twice that.
    join : {"in_turn", "pairwise", "halving", "butterfly"}
        How the elements of a block are added. Unless they are a running sum, elements of the last, incomplete block are
        added one by one.
    """

    block: int = 128
    halves: bool = False
    join: Join = "in_turn"

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        n, block = steps.n, self.block
        if self.halves and block < n <= 2 * block:
            block = n // 2
        chains = self.join == "in_turn"
        whole = n if chains else n - n % block
        blocks = [range(at, min(at + block, whole)) for at in range(0, whole, block)]
        sums = [steps.running(terms) if chains else steps.join(terms, self.join) for terms in blocks]
        steps.in_turn([*sums, *range(whole, n)])


@dataclass(frozen=True, eq=False, repr=False)
class Tiles(OrderRule):
    """Tiles of AMX's TDPBF16PS: in each, the sum of its even elements and that of its odd ones, which are added first.

    A chain of tiles covers all elements: tiles of `block` elements and a rest or, if `equal` and n can be divided so,
    as few tiles as possible of one even size.

    Parameters
    ----------
    block : int
        Largest number of elements in a tile.
    equal : bool
        Whether tiles have one size if possible.
    """

    block: int = 32
    equal: bool = True

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        n, count = steps.n, -(-steps.n // self.block)
        block = n // count if self.equal and n % count == 0 and n // count % 2 == 0 else self.block
        tiles = [range(at, min(at + block, n)) for at in range(0, n, block)]
        steps.in_turn([steps.in_lanes(tile, 2, "pairwise", len(tile)) for tile in tiles])


@dataclass(frozen=True, eq=False, repr=False)
class NumpyPairwise(OrderRule):
    """NumPy's pairwise sum: elements are halved down to blocks of 128, each added in eight running sums.

    Parameters
    ----------
    lanes, block : int
        Number of running sums, and size of the largest block that is not halved.
    """

    lanes: int = 8
    block: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(f"NumpyPairwise {self.name}", "block", self.block, self.lanes)

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        self._sum(steps, 0, steps.n)

    def _sum(self, steps: Steps, start: int, count: int) -> int:
        lanes = self.lanes
        if count > self.block:
            half = count // 2
            half -= half % lanes
            return steps.add(self._sum(steps, start, half), self._sum(steps, start + half, count - half))
        return steps.in_lanes(range(start, start + count), lanes, "pairwise", count - count % lanes)


@dataclass(frozen=True, eq=False, repr=False)
class TorchCascade(OrderRule):
    """PyTorch's sum on CPUs along contiguous memory: running sums of vectors, on up to four levels.

    16-bit elements are converted to float32: one vector of them becomes two float32 vectors, which are added first.

    Parameters
    ----------
    vector_bytes : int
        Size of a vector: 32, the width of AVX2, which ATen's sums use on all x86 CPUs; 4 for a column in a sum over
        rows.
    sums : int
        Number of running sums.
    """

    vector_bytes: int = 32
    sums: int = 4

    _LEVELS, _LEAST_POWER = 4, 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(f"TorchCascade {self.name}", "vector_bytes", self.vector_bytes, 4)

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        n, itemsize = steps.n, DTYPES[steps.dtype].itemsize
        width = max(1, self.vector_bytes // itemsize)
        lanes = min(width, self.vector_bytes // 4)
        if n < width:
            self._vector_sum(steps, range(n))
            return
        whole = n - n % width
        sums = []
        for lane in range(lanes):
            terms = [steps.add(*range(start + lane, start + width, lanes)) for start in range(0, whole, width)]
            sums.append(self._vector_sum(steps, terms))
        steps.in_turn([*range(whole, n), *sums])

    def _vector_sum(self, steps: Steps, terms: Sequence[int]) -> int:
        """Return the sum of one lane of all vectors."""
        whole = len(terms) - len(terms) % self.sums
        sums = [self._cascade(steps, terms[k : whole : self.sums]) for k in range(self.sums)] if whole else []
        return steps.in_turn([*sums[:1], *terms[whole:], *sums[1:]])

    def _cascade(self, steps: Steps, terms: Sequence[int]) -> int:
        """Return the sum of running sums on several levels: after 2^power terms, a level's sum is added to the next."""
        power = max(self._LEAST_POWER, (len(terms) - 1).bit_length() // self._LEVELS)
        levels: list[list[int]] = [[] for _ in range(self._LEVELS)]  # each holds at most one running sum

        def put(level: int, term: int) -> None:
            levels[level] = [steps.in_turn([*levels[level], term])]

        for i, term in enumerate(terms, 1):
            put(0, term)
            for level in range(1, self._LEVELS):
                if i % (1 << power * level):
                    break
                if levels[level - 1]:
                    put(level, levels[level - 1].pop())
        for level in range(1, self._LEVELS):
            if levels[level]:
                put(0, levels[level][0])
        return levels[0][0]
