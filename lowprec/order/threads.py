"""Orders of GPU kernels: sums of threads, which are joined within warps and then over the warps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .._checks import check_int
from .rules import MOST, Join, OrderRule, Steps


@dataclass(frozen=True, eq=False, repr=False)
class Threads(OrderRule):
    """Sums of the threads of a GPU's block, which are joined within each warp, and then the sums of the warps.

    Threads read vectors of consecutive elements in turn: thread t adds those of vectors t, t + threads and so on. If a
    kernel starts another number of threads for another number of rows, that is another rule.

    Parameters
    ----------
    launches : tuple of (int, int, int, int, int)
        Smallest and largest number of elements, the step between them, threads of a block, and elements of a vector.
        The first launch that includes n is used.
    inside : {"in_turn", "pairwise", "by_place"}
        How a thread adds its elements: one by one; as a tree of neighbours, where the first product of each pair is
        fused if products are; or each place of the vector in its own running sum, where thread t also adds element t
        after the last whole vector, to the first sum.
    join, warps : {"in_turn", "pairwise", "halving", "butterfly"}
        How the sums of a warp's threads are added, and those of the warps.
    lanes : int
        Threads of a warp.
    block : int
        Number of elements whose sum is complete before the next elements are read.
    """

    launches: tuple[tuple[int, int, int, int, int], ...] = ((1, MOST, 1, 32, 1),)
    inside: Literal["in_turn", "pairwise", "by_place"] = "in_turn"
    join: Join = "butterfly"
    warps: Join = "in_turn"
    lanes: int = 32
    block: int = MOST

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in (value for launch in self.launches for value in launch):
            check_int(f"Threads {self.name}", "launches", value, 1)

    def is_defined_for(self, n: int) -> bool:
        """Return whether a launch includes n elements."""
        return any(n in range(first, last + 1, step) for first, last, step, *_ in self.launches)

    def build(self, steps: Steps) -> None:
        """Add the steps.

        Raises
        ------
        ValueError
            If no launch includes the number of elements.
        """
        n = steps.n
        for first, last, step, threads, vector in self.launches:
            if n in range(first, last + 1, step):
                blocks = [range(at, min(at + self.block, n)) for at in range(0, n, self.block)]
                steps.in_turn([self._block(steps, block, threads, vector) for block in blocks])
                return
        spans: list[tuple[int, int, int]] = []
        for first, last, step, *_ in self.launches:
            follows = spans and (spans[-1][1] + step, spans[-1][2]) == (first, step)
            spans.append((spans.pop()[0] if follows else first, last, step))
        sizes = " or ".join(f"from {first} to {last} in steps of {step}" for first, last, step in spans)
        raise ValueError(f"{self.name}: n must be {sizes}, got {n}")

    def _block(self, steps: Steps, block: range, threads: int, vector: int) -> int:
        """Return the sum of the elements of a block."""
        whole = len(block) - len(block) % vector if self.inside == "by_place" else len(block)
        sums = []
        for thread in range(min(threads, -(-whole // vector))):
            starts = range(thread * vector, whole, threads * vector)
            own = [i for start in starts for i in block[start : min(start + vector, whole)]]
            if self.inside == "pairwise":
                terms = [steps.running([i]) if at % 2 or at == len(own) - 1 else i for at, i in enumerate(own)]
                sums.append(steps.join(terms, "pairwise"))
                continue
            places = [own[place::vector] for place in range(vector)] if self.inside == "by_place" else [own]
            places[0] += block[whole + thread : whole + thread + 1]
            sums.append(steps.in_turn([steps.running(place) for place in places]))
        parts = [steps.join(sums[i : i + self.lanes], self.join) for i in range(0, len(sums), self.lanes)]
        return steps.join(parts, self.warps)


def torch_cuda_launches(rows: int) -> tuple[tuple[int, int, int, int, int], ...]:
    """Return the launches of PyTorch's reduction of contiguous float32 rows, of which up to 16 share a block."""
    most = 512 >> min(rows.bit_length() - 1, 4)
    few = [(1 << k, (2 << k) - 1, 1, min(1 << k, most), 1) for k in range(7)]
    return (*few, *((128 << k, min((256 << k) - 4, 8192 - most), 4, min(32 << k, most), 4) for k in range(6)))
