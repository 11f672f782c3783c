"""Named collectives: those of libraries, and textbook algorithms for studies."""

from __future__ import annotations

from ..registry import Registry
from .collective import Collective
from .kinds import Choice, Chosen, DoubleBinaryTree, OneShot, Pairs, Ring, TwoLevel

collectives: Registry[Collective] = Registry("collective", Collective)  # type: ignore[type-abstract]
"""Catalogue of collectives: ``collectives[name].all_reduce(shards)``."""

_OPENMPI = "Open MPI 4.1.4, ompi/mca/coll"
_MANY = 1 << 62

_doubling = Pairs("openmpi_recursive_doubling", source=f"{_OPENMPI}/base/coll_base_allreduce.c")
_ring = Ring("openmpi_ring", first=0, source=_doubling.source)
_linear = OneShot("openmpi_linear", descending=True, source=f"{_OPENMPI}/base/coll_base_reduce.c")
_rabenseifner = Pairs("openmpi_rabenseifner", halves=True, source=_doubling.source)


def _rows(ranks: int, *limits: tuple[int, Collective]) -> list[Choice]:
    few = {_ring.name: _doubling, _rabenseifner.name: _linear}
    return [Choice(ranks, nbytes, algorithm, few.get(algorithm.name)) for nbytes, algorithm in limits]


_openmpi = Chosen(
    "openmpi",
    choices=(
        *_rows(4, (8, _ring), (4096, _doubling), (8192, _ring), (16384, _doubling), (262144, _ring),
               (_MANY, _rabenseifner)),
        *_rows(8, (16, _ring), (8192, _doubling), (_MANY, _rabenseifner)),
        *_rows(16, (8192, _doubling), (_MANY, _rabenseifner)),
        *_rows(32, (64, _ring), (4096, _doubling), (_MANY, _rabenseifner)),
        *_rows(64, (128, _ring), (_MANY, _rabenseifner)),
        *_rows(128, (262144, _doubling), (_MANY, _rabenseifner)),
    ),
    source=f"{_OPENMPI}/tuned/coll_tuned_decision_fixed.c, for fewer than 128 ranks",
    validated_against="Open MPI 4.1.4: 2 to 5 and 8 ranks, float32 and float64",
)  # fmt: skip

for _entry in (
    Ring("gloo", first=-1, direction=-1, segments=2, segment_bytes=1 << 20,
         source="pytorch/gloo, gloo/allreduce.cc: ring",
         validated_against="PyTorch 2.13: 2 to 5 and 8 ranks, float32, float64, float16 and bfloat16"),
    _openmpi, _ring, _doubling, _rabenseifner, _linear,
    Ring("nccl_ring", fp8_sums="float16", source="NVIDIA/nccl, src/device/all_reduce.h: runRing"),
    DoubleBinaryTree("nccl_tree", fp8_sums="float16",
                     source="NVIDIA/nccl, src/graph/trees.cc, src/device/all_reduce.h: one GPU per node"),
    OneShot("nccl_nvls", wide_sums=True, fp8_sums="float16", scattered=True,
            source="NVIDIA/nccl, src/device/reduce_kernel.h: multimem.ld_reduce, with acc::f32 for 16 bits and "
                   "acc::f16 for FP8; the order within the switch is not public"),
    Ring("ring", source="reduce-scatter of a ring, as NCCL's"),
    Pairs("tree", folds=False, source="pairwise halving; both partners of a pair round, so that they agree"),
    TwoLevel("two_level",
             source="float32 within nodes of 4, a ring between them: hierarchical, as NCCL's trees and ZeRO++'s qgZ"),
    OneShot("one_shot", from_zero=True, wide_sums=True,
            source="all-to-all, then one sum: ZeRO++ (arXiv 2306.10209)"),
    OneShot("two_step", from_zero=True, wide_sums=True, scattered=True,
            source="all-to-all, sum, all-gather: FlashCommunication (arXiv 2412.04964), qgZ of ZeRO++"),
):  # fmt: skip
    collectives.register(_entry.name, _entry)
collectives.seal()
