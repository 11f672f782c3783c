"""What GEMM libraries do around the tensor core, as data: when sums leave it, and where scales are multiplied in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from .._arrays import one_of, whole, whole_or_none
from .._values import Value, plain_fields
from ..registry import Registry

ScalesAt = Literal["promotion", "end"]
SCALES_AT: tuple[ScalesAt, ...] = get_args(ScalesAt)
KOrder = Literal["increasing", "interleaved"]
K_ORDERS: tuple[KOrder, ...] = get_args(KOrder)
SplitSum = Literal["float32", "out"]
SPLIT_SUMS: tuple[SplitSum, ...] = get_args(SplitSum)


@dataclass(frozen=True, eq=False, repr=False)
class GemmLibrary(Value):
    """What is done around an accumulator's chains, and in which order; see `lowprec.gemm` for its steps.

    Parameters
    ----------
    name : str
        How it is called in tables and messages.
    scales : {"promotion", "end"}
        ``promotion``: each chain's result is multiplied by its scales on the way into the float32 sum, ``D = fma(s,
        chain, D)``; ``end``: chains are added as they are, ``D = D + chain``, and scales, which must not change along
        K, are part of the epilogue's factor.
    promote_every : int or None
        Length in k of one chain where nothing else is asked for; None: one chain over all of K.
    fused : bool
        Whether a chain's result is multiplied by its scales and added with one rounding; False: with two.
    k_order : {"increasing", "interleaved"}
        ``interleaved``: of every two instructions the first takes the products with k % 4 in {0, 1}, the second the
        others, as some chips feed two narrower instructions.
    split_k : int
        Runs of whole tiles of 128 into which K is split, where nothing else is asked for.
    split_sum : {"float32", "out"}
        How runs are joined: as float32 sums, before the epilogue; or each after its own epilogue, C in the first's,
        rounded to the result's format, in which they are then added one after the other.
    source : str
        Where the order comes from.

    Examples
    --------
    >>> gemm_libraries["cublaslt_fast"].promote_every is None
    True
    >>> GemmLibrary("mine", scales="end", promote_every=64).name
    'mine'
    """

    name: str = dataclasses.field(compare=False)
    scales: ScalesAt = "promotion"
    promote_every: int | None = 128
    fused: bool = True
    k_order: KOrder = "increasing"
    split_k: int = 1
    split_sum: SplitSum = "float32"
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        plain_fields(self)
        who = f"Library {self.name}"
        one_of(who, "scales", self.scales, SCALES_AT)
        one_of(who, "k_order", self.k_order, K_ORDERS)
        one_of(who, "split_sum", self.split_sum, SPLIT_SUMS)
        whole_or_none(who, "promote_every", self.promote_every, 1)
        whole(who, "split_k", self.split_k, 1)


gemm_libraries: Registry[GemmLibrary] = Registry("library", GemmLibrary)
"""The catalogue."""
for _library in (
    GemmLibrary("deepgemm", source="DeepGEMM sm90 1D2D and 1D1D kernels: scales per 128 of k; wgrad adds onto float32"),
    GemmLibrary("cublaslt", scales="end", source="cuBLASLt on H100 without fast accumulation: mmaemu 0.1.0"),
    GemmLibrary(
        "cublaslt_fast", scales="end", promote_every=None, source="cuBLASLt with fast accumulation: mmaemu 0.1.0"
    ),
    GemmLibrary("cutlass_2xacc", scales="end", source="CUTLASS example 54: four instructions, then a float32 addition"),
):
    gemm_libraries.register(_library.name, _library)
gemm_libraries.seal()
