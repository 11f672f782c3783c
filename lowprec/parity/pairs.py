"""Orders in which MKL adds products of bfloat16 with AVX512_BF16 and AMX, found by probes of PyTorch's attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..order.rules import OrderRule, Steps


def _swapped(elements: Iterable[int], n: int) -> list[int]:
    """Return elements with each even one and its successor exchanged, as VDPBF16PS adds a pair."""
    return [k ^ 1 if k ^ 1 < n else k for k in elements]


@dataclass(frozen=True, eq=False, repr=False)
class PairLanes(OrderRule):
    """Lanes of VDPBF16PS, which adds the odd element of a pair first; the upper lanes join the lower, then neighbours.

    Parameters
    ----------
    lanes : int
        Number of lanes.
    """

    lanes: int = 16

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        n, width = steps.n, 2 * self.lanes
        chains = [
            steps.running(_swapped((k for at in range(first, n, width) for k in range(at, min(at + 2, n))), n))
            for first in range(0, min(n, width), 2)
        ]
        half = self.lanes // 2
        steps.join([steps.join(chains[i::half], "pairwise") for i in range(min(half, len(chains)))], "pairwise")


@dataclass(frozen=True, eq=False, repr=False)
class PairBlocks(OrderRule):
    """Blocks that VDPBF16PS adds, the odd element of a pair first; the sums of blocks are added from left to right.

    Parameters
    ----------
    block : int
        Number of elements in a block, which is even.
    """

    block: int = 8

    def build(self, steps: Steps) -> None:
        """Add the steps."""
        n = steps.n
        steps.in_turn([steps.running(_swapped(range(k, min(k + self.block, n)), n)) for k in range(0, n, self.block)])
