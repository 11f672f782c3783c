"""Kinds of accumulators, one class each."""

from .amd import ExactGroupSum, FlooredPairSum, OnesComplementSum, PairwiseSum, TruncateFloorSum
from .arm import RoundedGroupSum, RoundToOddSum, ScaledGroupSum
from .exact import ExactSum
from .ibm import ChunkedSum
from .nvidia import FusedSum, GroupedFusedSum, SplitF16Sum
from .riscv import BulkNormalizedSum, PartialSum
from .sequential import SequentialSum
from .tenstorrent import FidelityPhaseSum
from .x86 import FlushedFmaSum, LaneChains, PairedLaneChains

#: All kinds of the catalogue, in the search order of `identify`.
KINDS = (
    FusedSum, GroupedFusedSum, SplitF16Sum, TruncateFloorSum, PairwiseSum, ExactGroupSum, SequentialSum, ExactSum,
    FlushedFmaSum, LaneChains, PairedLaneChains, RoundToOddSum, RoundedGroupSum, ScaledGroupSum, OnesComplementSum,
    FlooredPairSum, PartialSum, BulkNormalizedSum, FidelityPhaseSum, ChunkedSum,
)  # fmt: skip
