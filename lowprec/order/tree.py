"""Search for the tree of a sum by masks: M at one element, -M at another, small units elsewhere.

M absorbs every unit that is added to it before it is added to -M, so the units that remain are those outside the
smallest subtree with both elements: an idea of FPRev (Xie et al., arXiv:2411.00442). The sizes of these subtrees for
one element, paired with each of the others, split the others into sibling subtrees; the search then repeats in each of
these. The element is drawn at random, so that a chain costs about 2 n calls in either direction, and a balanced tree
n log2(n). A bfloat16 result counts only 128 units exactly, so that each of these calls is replaced by n / 128 calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from .order import Steps
from .probed import Probed, RevealError


class _Mask(NamedTuple):
    large: float  # M
    unit: float


# Masks for sums in float32 or wider, and in float16: its largest power of two, and units of which 2,048 are exact and
# far enough below half an ulp of M in float32.
_MASKS = (_Mask(2.0**100, 1.0), _Mask(2.0**15, 2.0**-24))
_CAPACITIES = (1 << 23, 1 << 10, 1 << 7)  # numbers of units that float32, float16 and bfloat16 count exactly
_COUNTED = 8  # numbers of units that must be counted correctly before a capacity is accepted


class TreeSearch:
    """Search for the tree of a callable, in the form of an `Order`'s steps.

    Parameters
    ----------
    probed : Probed
        The callable.
    seed : int
        Seed of the elements that are compared with all others.
    """

    def __init__(self, probed: Probed, seed: int) -> None:
        self.probed, self.n = probed, probed.n
        self.rng = np.random.default_rng(seed)
        self.steps: list[tuple[int, ...]] = []
        self.is_exact = False
        self._check_sums()
        masks = _MASKS if probed.dtype != np.float16 else _MASKS[1:]
        found = [c for c in ((mask, self._capacity(mask)) for mask in masks) if c[1]]
        if not found:
            self._check_ones()
        self.mask, self.capacity = found[0]

    def find(self) -> Steps:
        """Return the steps; for a sum without rounding, set `is_exact` and return one step with all terms.

        Raises
        ------
        RevealError
            If results contradict each other.
        """
        if self.n > 1:
            first = int(self.rng.integers(self.n))
            others = [j for j in range(self.n) if j != first]
            sizes = self._sizes(first, others)
            if self.n > 2 and set(sizes.values()) == {2}:  # M absorbs no unit
                self._check_products()
                self.is_exact = True
                return (tuple(range(self.n)),)
            self._subtree(first, sizes)
        return tuple(self.steps)

    def _subtree(self, element: int, sizes: dict[int, int]) -> int:
        """Add the steps of a subtree, given the sizes for one of its elements and all others; return the last step."""
        node, leaves = element, 1
        for size in sorted(set(sizes.values())):
            group = [j for j, of in sizes.items() if of == size]
            leaves += len(group)
            if size != leaves:
                self._contradicted(element, group[0], size, leaves)
            self.steps.append((node, *self._siblings(group, size)))
            node = self.n + len(self.steps) - 1
        return node

    def _siblings(self, group: list[int], size: int) -> list[int]:
        """Return the terms that a node adds to the subtree found so far: several if the node has more than two terms.

        `group` are the elements below these terms, `size` is the number of elements below the node.
        """
        found = []
        while group:
            element = group[int(self.rng.integers(len(group)))]
            sizes = self._sizes(element, [j for j in group if j != element])
            inside = {j: of for j, of in sizes.items() if of < size}
            group = [j for j, of in sizes.items() if of >= size]
            for j in group:
                if sizes[j] > size:
                    self._contradicted(element, j, sizes[j], size)
            found.append(self._subtree(element, inside))
        return found

    def _sizes(self, element: int, others: Sequence[int]) -> dict[int, int]:
        return {other: self._size(element, other) for other in others}

    def _size(self, i: int, j: int) -> int:
        """Return the number of elements in the smallest subtree that contains elements i and j."""
        survivors = 0.0
        for start in range(0, self.n, self.capacity):
            x = np.zeros(self.n)
            x[start : start + self.capacity] = self.mask.unit
            x[i], x[j] = self.mask.large, -self.mask.large
            got, units = self.probed(x) / self.mask.unit, np.count_nonzero(x == self.mask.unit)
            if not (0 <= got <= units and got == int(got)):
                raise RevealError(
                    f"reveal: {self.probed.name} must add its inputs, got {got * self.mask.unit:g} for "
                    f"{self.mask.large:g} at {i}, {-self.mask.large:g} at {j} and {self.mask.unit:g} at {units} others",
                    self.probed.evidence(x, got=got * self.mask.unit),
                )
            survivors += got
        return self.n - int(survivors)

    def _contradicted(self, i: int, j: int, size: int, expected: int) -> NoReturn:
        x = np.full(self.n, self.mask.unit)
        x[i], x[j] = self.mask.large, -self.mask.large
        answers = [self.probed(x) for _ in range(5)]
        why = "one order of additions for all data"
        if len(set(answers)) > 1:
            why = "one answer to one input"
        raise RevealError(
            f"reveal: {self.probed.name} must have {why}, got answers that no tree explains: elements {i} and {j} are "
            f"first together in a sum of {size} elements, by other answers of {expected}; the same input again gave "
            f"{', '.join(f'{a:g}' for a in answers)}",
            self.probed.evidence(x, got=np.array(answers)),
        )

    def _check_sums(self) -> None:
        """Check the sums of zeros, and of zeros and a single 1."""
        for place, expected in ((None, 0), (int(self.rng.integers(self.n)), 1)):
            x = np.zeros(self.n)
            if place is not None:
                x[place] = 1
            got = self.probed(x)
            if got != expected:
                what = "zeros" if place is None else f"a 1 at {place} and zeros"
                hint = "; subtract what it adds" if place is None else "; divide out a factor, as that of a mean"
                raise RevealError(
                    f"reveal: {self.probed.name} must return {expected} for {what}, got {got:g}"
                    + hint * bool(np.isfinite(got)),
                    self.probed.evidence(x, got=got),
                )

    def _check_products(self) -> None:
        """Check that float16 products are summed exactly: a search in float16 does not detect a sum in float64."""
        if self.probed.operands == 1 or self.probed.dtype != np.float16:
            return
        for small in range(3):
            a, b = np.zeros((2, self.n))
            a[:3], b[:3] = 2.0**15, 2.0**15
            a[[small, (small + 1) % 3]], b[small] = (2.0**-12, -(2.0**15)), 2.0**-12
            if (got := self.probed(a, b)) != 2.0**-24:
                raise RevealError(
                    f"reveal: {self.probed.name} must add products of float16 exactly or in a format that masks show, "
                    f"got {got:g} for 2^30, -2^30 and 2^-24; its sums may be float64: take dtype float32",
                    self.probed.evidence(a, b, got=got),
                )

    def _check_ones(self) -> NoReturn:
        x = np.zeros(self.n)
        x[: _CAPACITIES[-1]] = 1
        got, more = self.probed(x), ""
        if got == x.sum():  # numbers that cancel are not added
            x[:2] = _MASKS[0].large, -_MASKS[0].large
            got, more = self.probed(x), f", {x[0]:g} and {x[1]:g}"
        raise RevealError(
            f"reveal: {self.probed.name} must add its inputs, got {got:g} for {int((x == 1).sum())} ones, "
            f"{int((x == 0).sum())} zeros{more}",
            self.probed.evidence(x, got=got),
        )

    def _capacity(self, mask: _Mask) -> int:
        """Return the largest format capacity up to which the callable counts units exactly, or 0."""
        for capacity in _CAPACITIES:
            places = min(capacity, self.n)
            for count in range(places, max(places - _COUNTED, 0), -1):
                x = np.zeros(self.n)
                x[:count] = mask.unit
                if self.probed(x) != count * mask.unit:
                    break
            else:
                x[:2] = (mask.large, -mask.large)[: self.n]
                if np.isfinite(self.probed(x)):
                    return capacity
        return 0
