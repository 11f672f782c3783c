"""GEMM libraries as data: the promotion interval, and the order of operations outside the tensor core."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from .._checks import check_choice, check_int, check_optional_int
from .._values import Value, normalize_fields
from ..registry import Registry

T = TypeVar("T")
ApplyScalesAt = Literal["promotion", "end"]
APPLY_SCALES_AT: tuple[ApplyScalesAt, ...] = get_args(ApplyScalesAt)
KOrder = Literal["increasing", "interleaved"]
K_ORDERS: tuple[KOrder, ...] = get_args(KOrder)
SplitKReduction = Literal["float32", "out", "serial", "workspace", "tree"]
SPLIT_K_REDUCTIONS: tuple[SplitKReduction, ...] = get_args(SplitKReduction)


@dataclass(frozen=True, eq=False, repr=False)
class GemmLibrary(Value):
    """Operations around an accumulator's chains, and their order; see `lowprec.gemm` for the steps.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    apply_scales_at : {"promotion", "end"}
        ``promotion``: each chain's result is multiplied by its scales when it is added to the float32 sum, ``D = fma(s,
        chain, D)``; ``end``: chains are added unscaled, ``D = D + chain``, and the scales, which must be constant along
        K, are part of the epilogue's factor.
    promote_every : int or None
        Default length in k of one chain; None: one chain over all of K.
    fma_promotion : bool
        Whether the result of a chain is multiplied by its scales and added with one rounding instead of two.
    scales_one_by_one : bool
        Whether the scales of A and B multiply one after the other: ``D = fma(chain * scale_a, scale_b, D)`` at
        promotion, and ``(D * scale_b) * scale_a`` at the end, there only if both operands have scales per row.
        Otherwise, their rounded product multiplies.
    k_order : {"increasing", "interleaved"}
        ``interleaved``: in every pair of instructions, the first takes the products with k % 4 in {0, 1} and the second
        the others, as on chips that issue two narrower instructions.
    split_k : int
        Default number of parts into which K is split, in whole tiles.
    split_k_reduction : {"float32", "out", "serial", "workspace", "tree"}
        ``float32``: the parts are added in float32, before the epilogue; ``out``: each part has its own epilogue, with
        C in the first one, and the results are added sequentially, each sum rounded to the result's format; ``serial``:
        the result of each part's epilogue, rounded to that format, is the next part's C, with beta = 1; ``workspace``:
        the parts are rounded to that format and added in float32 from +0, before one epilogue; ``tree``: K is halved
        until parts are not longer than a tile, and every part and every sum of two is rounded to that format, before
        one epilogue; `split_k` has no effect, and K is not split if the result is float32.
    split_tile : int
        Length in k of a tile, which is never split.
    slices, slice_length : int
        Each part is the float32 sum of `slices` chains, to which pieces of `slice_length` in k are assigned in turn.
    stream_k : tuple of int, optional
        Number of thread blocks, and rows and columns of a tile of the result: thread blocks take equal numbers of
        consecutive tiles of K, from one tile of the result to the next, and their parts are added in float32.
    round_through : {"float32", "float16"}
        Format to which results are rounded before they are rounded to a format of 16 bits or more.
    source : str
        Reference for the order.

    Examples
    --------
    >>> gemm_libraries["cublaslt_fast"].promote_every is None
    True
    >>> GemmLibrary("mine", apply_scales_at="end", promote_every=64).name
    'mine'
    """

    name: str = dataclasses.field(compare=False)
    apply_scales_at: ApplyScalesAt = "promotion"
    promote_every: int | None = 128
    fma_promotion: bool = True
    k_order: KOrder = "increasing"
    split_k: int = 1
    split_k_reduction: SplitKReduction = "float32"
    split_tile: int = 128
    slices: int = 1
    slice_length: int = 32
    stream_k: tuple[int, ...] = ()
    round_through: Literal["float32", "float16"] = "float32"
    scales_one_by_one: bool = False
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"GemmLibrary {self.name}"
        check_choice(caller, "apply_scales_at", self.apply_scales_at, APPLY_SCALES_AT)
        check_choice(caller, "k_order", self.k_order, K_ORDERS)
        check_choice(caller, "split_k_reduction", self.split_k_reduction, SPLIT_K_REDUCTIONS)
        check_optional_int(caller, "promote_every", self.promote_every, 1)
        check_choice(caller, "round_through", self.round_through, ("float32", "float16"))
        for field in ("split_k", "split_tile", "slices", "slice_length"):
            check_int(caller, field, getattr(self, field), 1)
        if self.scales_one_by_one and self.apply_scales_at == "end" and self.split_k_reduction in ("out", "serial"):
            raise ValueError(
                f"{caller}: scales_one_by_one must be False with apply_scales_at='end' and split_k_reduction="
                f"{self.split_k_reduction!r}, got True"
            )
        for number in self.stream_k:
            check_int(caller, "stream_k", number, 1)
        if self.stream_k and (len(self.stream_k), self.split_k_reduction, self.split_k) != (3, "float32", 1):
            raise ValueError(
                f"{caller}: stream_k must be numbers of blocks, rows and columns, with split_k_reduction='float32' and "
                f"split_k=1, got {self.stream_k} with {self.split_k_reduction!r} and {self.split_k}"
            )

    @property
    def has_usual_parts(self) -> bool:
        """Whether K is split into equal parts of whole tiles of 128, added in float32 or in the result's format."""
        usual = self.with_(split_tile=128, slices=1, slice_length=32, stream_k=(), round_through="float32")
        return self == usual and self.split_k_reduction in ("float32", "out")

    def parts(self, k: int, split_k: int) -> list[tuple[int, int]]:
        """Return the ranges of k of the parts into which K is split; for ``tree``, the leaves from left to right."""
        if self.split_k_reduction == "tree":
            return list(_halves(0, k, self.split_tile))
        tiles = -(-k // self.split_tile)
        step = max(-(-tiles // split_k), 1) * self.split_tile
        return [(start, min(start + step, k)) for start in range(0, max(k, 1), step)]

    def pieces(self, k: int) -> list[NDArray[np.bool_]]:
        """Return a mask of the products of each slice, for a part of length `k`."""
        piece = np.arange(k) // self.slice_length % self.slices
        return [piece == i for i in range(max(min(self.slices, -(-k // self.slice_length)), 1))]

    def streamed_parts(self, m: int, n: int, k: int) -> list[tuple[slice, slice, list[tuple[int, int]]]]:
        """Return rows, columns and ranges of k of each tile of a result [m, n] under stream-K.

        This follows CUTLASS's ThreadblockSwizzleStreamK with all tiles streamed: along the rows of tiles if there are
        at least as many rows as columns, else along the columns; the first blocks take one more tile of K. If each tile
        of the result has the same number of blocks, no block takes part in two.
        """
        return list(_streamed_parts(m, n, k, *self.stream_k, self.split_tile)) if m * n else []


@functools.lru_cache(maxsize=64)
def _streamed_parts(
    m: int, n: int, k: int, blocks: int, rows: int, columns: int, split_tile: int
) -> tuple[tuple[slice, slice, list[tuple[int, int]]], ...]:
    across, down, each = -(-n // columns), -(-m // rows), max(-(-k // split_tile), 1)
    work = across * down * each
    blocks = min(blocks, work)
    regions = across * down if blocks % (across * down) == 0 else 1
    length, longer = divmod(work // regions, blocks // regions)
    begins = [
        region * (work // regions) + block * length + min(block, longer)
        for region in range(regions) for block in range(blocks // regions)
    ]  # fmt: skip
    found = []
    for tile in range(across * down):
        i, j = divmod(tile, across) if down >= across else divmod(tile, down)[::-1]
        first = tile * each
        cuts = [0, *(x - first for x in begins if 0 < x - first < each), each]
        ks = [(p * split_tile, min(q * split_tile, k)) for p, q in itertools.pairwise(cuts)]
        found.append((slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns), ks))
    return tuple(found)


def sum_halves(leaves: Iterator[T], k: int, longest: int, add: Callable[[T, T], T]) -> T:
    """Return the sum over K by recursive halving, down to leaves of limited length, as in `GemmLibrary.parts`."""
    if k <= longest:
        return next(leaves)
    first = sum_halves(leaves, k // 2, longest, add)
    return add(first, sum_halves(leaves, k - k // 2, longest, add))


@functools.lru_cache(maxsize=1024)
def _halves(start: int, stop: int, longest: int) -> tuple[tuple[int, int], ...]:
    if stop - start <= longest:
        return ((start, stop),)
    middle = start + (stop - start) // 2
    return _halves(start, middle, longest) + _halves(middle, stop, longest)


_H200 = "results of an H200 differ (PyTorch 2.11, CUDA 13.0)"
_one_chain = functools.partial(GemmLibrary, apply_scales_at="end", promote_every=None)
gemm_libraries: Registry[GemmLibrary] = Registry("library", GemmLibrary)
"""Catalogue of GEMM libraries."""
for _library in (
    GemmLibrary(
        "deepgemm",
        source="DeepGEMM sm90 1D2D and 1D1D kernels: scales per 128 of k; wgrad adds onto float32; "
        f"cuBLASLt with scales per 1x128 and 128x128: 0 of 40,960 {_H200}",
    ),
    GemmLibrary(
        "cublaslt",
        apply_scales_at="end",
        scales_one_by_one=True,
        source="cuBLASLt on H100 without fast accumulation: mmaemu 0.1.0; scales per tensor: 0 of 418,304, and per row "
        f"0 of 418,304 {_H200}",
    ),
    GemmLibrary(
        "cublaslt_fast",
        apply_scales_at="end",
        promote_every=None,
        scales_one_by_one=True,
        source="cuBLASLt with fast accumulation: mmaemu 0.1.0; scales per tensor, split_k=2 for K = 7168: 0 of "
        f"418,304, and per row 0 of 418,304 {_H200}",
    ),
    GemmLibrary(
        "cublaslt_1x128",
        scales_one_by_one=True,
        source=f"cuBLASLt with scales per 1x128 in both operands, split_k=2 for K = 7168: 0 of 205,056 {_H200}",
    ),
    GemmLibrary(
        "cutlass_2xacc", apply_scales_at="end", source="CUTLASS example 54: four instructions, then a float32 addition"
    ),
    _one_chain(
        "cublas_sgemm",
        split_tile=8,
        slice_length=8,
        source="cuBLAS without TF32, accumulator float32: CUTLASS's kernels have split_k parts, xmma's assign tiles "
        f"of 8 in turn to 8, 33 or 40 slices; 0 of 213,384 {_H200}",
    ),
    _one_chain(
        "cutlass_serial",
        split_tile=64,
        split_k_reduction="serial",
        source="CUTLASS gemm/kernel/gemm.h with SplitKSerial: a semaphore orders the parts; tiles of 64",
    ),
    _one_chain(
        "cutlass_workspace",
        split_tile=64,
        split_k_reduction="workspace",
        source="CUTLASS reduction/kernel/reduce_split_k.h with a workspace of the result's type; tiles of 64",
    ),
    _one_chain(
        "cutlass_sliced",
        split_tile=64,
        slices=2,
        split_k_reduction="serial",
        source="CUTLASS with two warps along K, as in cuBLAS's sliced1x2 kernels: hardware_rounding_error_predictor",
    ),
    _one_chain(
        "cutlass_stream_k",
        split_tile=32,
        stream_k=(108, 128, 128),
        source="CUTLASS gemm_universal_streamk.h and threadblock_swizzle_streamk.h, all tiles streamed over 108 blocks",
    ),
    _one_chain(
        "det_gemm",
        split_tile=32,
        split_k_reduction="tree",
        source="RL-Kernel det_gemm.py: leaves of at most 32, nodes of the result's format; accumulator float32",
    ),
    _one_chain(
        "batch_invariant_ops",
        round_through="float16",
        source="batch_invariant_ops.py, matmul_kernel_persistent: results of all types but FP8 pass through float16; "
        "not in SGLang's of 2026: with round_through='float32', 0 of 427,280 results of an H200 differ (Triton 3.6)",
    ),
):
    gemm_libraries.register(_library.name, _library)
gemm_libraries.seal()
