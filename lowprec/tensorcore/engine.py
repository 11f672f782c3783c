"""What an engine is: it computes chains of products of raw codes, for one machine and two operand formats.

What scales and promotion add around the chains is the same for all of them (`Engine.scaled`), unless a kernel does it
on the way. How results are held follows from the machine: float32 (which holds FP22, too), float16 or float64 arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format.catalogue import Format
from ..kernels.tensorcore import promote as promotion
from .accumulator import Accumulator
from .reference_dots import BlockScales

Float32Matrix = NDArray[np.float32]
Matrix = NDArray[Any]


@dataclass(frozen=True)
class Plan:
    """How chains are scaled and promoted.

    Scales by block of K: block i spans ``k[i * length : (i + 1) * length]``.
    """

    length: int
    scale_a: Float32Matrix  # [blocks, M]
    scale_b: Float32Matrix  # [blocks, N]
    promote: bool

    @classmethod
    def one_chain(cls, m: int, n: int, k: int, group: int) -> Plan:
        """Return that of a single chain over all K, in whole groups, without scales."""
        return cls(-(-max(k, 1) // group) * group, np.ones((1, m), np.float32), np.ones((1, n), np.float32), False)

    def of_rows(self, rows: NDArray[np.intp]) -> Plan:
        """Return that of some rows of the result."""
        return replace(self, scale_a=np.ascontiguousarray(self.scale_a[:, rows]))

    def of_columns(self, columns: NDArray[np.intp]) -> Plan:
        """Return that of some columns of the result."""
        return replace(self, scale_b=np.ascontiguousarray(self.scale_b[:, columns]))


class Kept(NamedTuple):
    """What a kernel has made of B for a machine, to be used again."""

    machine: Accumulator
    kernel: Any
    parts: Any


class Engine:
    """One way to compute chains; the parts around them are the same for all."""

    kernel: Any = None

    def __init__(self, machine: Accumulator, fa: Format, fb: Format) -> None:
        self.machine, self.fa, self.fb = machine, fa, fb

    def keep(self, b: Matrix, scale: Matrix | None = None) -> Kept | None:
        """Lay out B for `chain` and `scaled`; None where there is nothing to be laid out. `scale` as in `chain`."""
        return None

    def kept_parts(self, kept: Kept | None) -> Any:
        """Return what was kept, None if it was for another machine or kernel."""
        usable = kept is not None and kept.kernel is self.kernel and kept.machine == self.machine
        return kept.parts if kept is not None and usable else None

    def chain(
        self, a: Matrix, b: Matrix, c: Matrix, scales: BlockScales | None = None, kept: Kept | None = None
    ) -> Matrix:
        """Return one chain over all K, starting from C; `scales` are those inside the instruction."""
        raise AssertionError("every engine has its own")

    def scaled(self, a: Matrix, b: Matrix, plan: Plan, kept: Kept | None = None) -> Float32Matrix:
        """Return the scaled sum of the blocks' chains, block by block."""
        result = np.zeros((a.shape[0], b.shape[0]), np.float32)
        state, keep = np.zeros(result.shape, self.machine.dtype), self.machine.output_bits
        for i, (sa, sb) in enumerate(zip(plan.scale_a, plan.scale_b, strict=True)):
            part = slice(i * plan.length, (i + 1) * plan.length)
            if plan.promote:
                state[...] = 0
            elif i:
                promotion.rescale(state, plan.scale_a[i - 1], plan.scale_b[i - 1], sa, sb, keep)
            state = self.chain(np.ascontiguousarray(a[:, part]), np.ascontiguousarray(b[:, part]), state)
            if plan.promote:
                promotion.promote(state.astype(np.float32, copy=False), sa, sb, result)
        if not plan.promote:
            promotion.promote(state.astype(np.float32, copy=False), plan.scale_a[-1], plan.scale_b[-1], result)
        promotion.canonical_nan(result)
        return result
