"""GEMM libraries as data: the promotion interval, and the order of operations outside the tensor core."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from .._checks import check_choice, check_int, check_optional_int
from .._values import Value, normalize_fields
from ..registry import Registry

ApplyScalesAt = Literal["promotion", "end"]
APPLY_SCALES_AT: tuple[ApplyScalesAt, ...] = get_args(ApplyScalesAt)
KOrder = Literal["increasing", "interleaved"]
K_ORDERS: tuple[KOrder, ...] = get_args(KOrder)
SplitKReduction = Literal["float32", "out"]
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
        Whether the result of a chain is multiplied by its scales and added with a single rounding, else with two.
    k_order : {"increasing", "interleaved"}
        ``interleaved``: in every pair of instructions, the first takes the products with k % 4 in {0, 1} and the second
        the others, as on chips that issue two narrower instructions.
    split_k : int
        Default number of parts into which K is split, in whole tiles of 128.
    split_k_reduction : {"float32", "out"}
        ``float32``: the parts are added in float32, before the epilogue; ``out``: each part has its own epilogue, with
        C in the first one, and the results are added sequentially, each sum rounded to the result's format.
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
    source: str = dataclasses.field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"GemmLibrary {self.name}"
        check_choice(caller, "apply_scales_at", self.apply_scales_at, APPLY_SCALES_AT)
        check_choice(caller, "k_order", self.k_order, K_ORDERS)
        check_choice(caller, "split_k_reduction", self.split_k_reduction, SPLIT_K_REDUCTIONS)
        check_optional_int(caller, "promote_every", self.promote_every, 1)
        check_int(caller, "split_k", self.split_k, 1)


gemm_libraries: Registry[GemmLibrary] = Registry("library", GemmLibrary)
"""Catalogue of GEMM libraries."""
for _library in (
    GemmLibrary("deepgemm", source="DeepGEMM sm90 1D2D and 1D1D kernels: scales per 128 of k; wgrad adds onto float32"),
    GemmLibrary("cublaslt", apply_scales_at="end", source="cuBLASLt on H100 without fast accumulation: mmaemu 0.1.0"),
    GemmLibrary(
        "cublaslt_fast",
        apply_scales_at="end",
        promote_every=None,
        source="cuBLASLt with fast accumulation: mmaemu 0.1.0",
    ),
    GemmLibrary(
        "cutlass_2xacc", apply_scales_at="end", source="CUTLASS example 54: four instructions, then a float32 addition"
    ),
):
    gemm_libraries.register(_library.name, _library)
gemm_libraries.seal()
