"""Chains of fused multiply-adds in increasing k, in float32 and float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._threads import parallel_over_rows, run_chunks, scratch
from ...format.catalogue import Format
from ...kernels.tensorcore.chain import gemm as kernels
from ...kernels.tensorcore.chain.tile import COLUMNS
from ...kernels.tensorcore.reference.exact import sequential64
from ..accumulator import FLOAT32
from ..problem import Float32Matrix, GemmProblem, Joins, Matrix
from .engine import Engine, PartialResult, find_nonfinite, products_fit_float32
from .reference import begin_stack, join

_WORK = 1 << 25  # multiply-adds that justify a thread: some hundred microseconds, several times the cost of waking it
_ROWS_AT_ONCE = 512


def pack_f32(y: Float32Matrix) -> Float32Matrix:
    """Return y [N, K] in panels of columns, in memory of this thread that its next call overwrites."""
    panels = scratch("b32", -(-len(y) // COLUMNS) * COLUMNS * y.shape[1], np.float32)
    if y.flags.c_contiguous:
        kernels.pack_panels(y, panels)
    else:
        kernels.pack_panels_transposed(y.T, panels)
    return panels


def accumulate_f32(
    x: Float32Matrix, y: Float32Matrix, out: Float32Matrix, constants: tuple[np.uint32, ...] | None = None,
    joins: Joins | None = None, runs: NDArray[np.int64] | None = None, panels: Float32Matrix | None = None,
) -> None:  # fmt: skip
    """Add ``X @ Y.T`` to `out` [M, N] in the fixed order of `kernels.tensorcore.chain.gemm`.

    x [M, K] and y [N, K] are contiguous or transposed views of contiguous matrices. With `constants` from
    `cast_constants.round_constants`, the sums start from 0 and are rounded to that format; the contents of `out` are
    then ignored. With `joins`, the sums of its chains, which consist of `runs` of K, are joined onto its addend, and
    `out` is overwritten. `panels` is y packed by `pack_f32`, which is done here by default.
    """
    (m, k), n = x.shape, y.shape[0]
    if 0 in (m, n) or (k == 0 and constants is None and joins is None):
        return
    if joins is not None:
        runs = np.array([[0, 0, k]]) if runs is None else runs
        if joins.target is not None and not joins.word.any():
            at = np.concatenate([np.arange(first, first + length) for first, _, length in runs.tolist()])
            out[...] = _joined_one_by_one(x[:, at], y[:, at], joins)
            return
        out[...] = 0 if joins.addend is None else joins.addend
    panels = pack_f32(y) if panels is None else panels

    def some_rows(first: int, stop: int) -> None:
        quads = scratch("a32", -(-(stop - first) // 4) * 4 * k, np.float32)
        if x.flags.c_contiguous:
            kernels.pack_quads(x[first:stop], quads)
        else:
            kernels.pack_quads_transposed(x.T, first, stop, quads)
        if joins is not None:
            factors = joins.factors[first:stop]
            kernels.gemm_packed_joined(
                quads, panels, k, joins.plan, runs, joins.word, 1, factors, out[first:stop], 0, stop - first
            )
        elif constants is None:
            kernels.gemm_packed(quads, panels, k, out[first:stop], 0, stop - first)
        else:
            kernels.gemm_packed_rounded(quads, panels, k, constants, out[first:stop], 0, stop - first)

    parallel_over_rows(some_rows, m, n * k, _WORK, _ROWS_AT_ONCE)


def _joined_one_by_one(x: Float32Matrix, y: Float32Matrix, joins: Joins) -> Float32Matrix:
    """Return the joined sums of chains, each computed as a product."""
    stack, first = begin_stack(joins, len(x), len(y)), 0
    for end, top, _, operations, _ in joins.plan.tolist():
        stack[top - 1] = 0
        a, b = (np.ascontiguousarray(z[:, first:end]) for z in (x, y))
        accumulate_f32(a, b, stack[top - 1])
        join(stack, top, operations, joins)
        first = end
    found: Float32Matrix = stack[0]
    return found


def sequential_f64(x: NDArray[np.float64], y: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``X @ Y.T + C`` in float64, with fused multiply-adds in increasing k from C."""
    out, turned = np.array(c), np.ascontiguousarray(y.T)
    grain = max(1, (1 << 18) // max(y.size, 1))
    run_chunks(lambda i, j: sequential64(x, turned, out, i, j), x.shape[0], grain)
    out[np.isnan(out)] = np.nan
    return out


@dataclass(frozen=True)
class ScaledChain(Engine):
    """Engine with fused multiply-adds in float32; B's values include the power of two that multiplies the products."""

    @classmethod
    def find(cls, accumulator: Any, fa: Format, fb: Format, machine: str) -> ScaledChain | None:
        """Return the engine for groups of one product, if float32 represents B's values times the power of two."""
        factor = 2.0**accumulator.product_scale_log2
        stays = fb.smallest_subnormal * factor >= 2.0**-149 and fb.max * factor < 2.0**127
        plain = accumulator.group_size == 1 and accumulator.output_format == FLOAT32 and products_fit_float32(fa, fb)
        return cls(accumulator, fa, fb, "") if plain and stays else None

    def pack(self, b: Matrix, fmt: Format, inside: Matrix | None) -> Any:
        """Return the values of B times the power of two."""
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return self.accumulator.values(b, fmt) * np.float32(2.0**self.accumulator.product_scale_log2)

    def run(self, p: GemmProblem, parts: Any = None) -> PartialResult:
        """Run the kernel; non-finite results are outside its limits."""
        out = np.array(p.start)
        accumulate_f32(self.accumulator.values(p.a, p.fa), self.pack(p.b, p.fb, None) if parts is None else parts, out)
        return PartialResult(out, *find_nonfinite(out))
