"""The kinds of accumulator, one class each."""

from .arm import RoundedGroupSum, RoundToOddSum, ScaledGroupSum
from .exact import ExactSum
from .exact_groups import ExactGroupSum
from .fused import FusedSum
from .fused_runs import GroupedFusedSum
from .halves import SplitF16Sum
from .pairwise import PairwiseSum
from .sequential import SequentialSum
from .two_floors import TruncateFloorSum
from .x86 import FlushedFmaSum, LaneChains, PairedLaneChains

#: All kinds of the catalogue, in the order in which `identify` tries them.
KINDS = (
    FusedSum, GroupedFusedSum, SplitF16Sum, TruncateFloorSum, PairwiseSum, ExactGroupSum, SequentialSum, ExactSum,
    FlushedFmaSum, LaneChains, PairedLaneChains, RoundToOddSum, RoundedGroupSum, ScaledGroupSum,
)  # fmt: skip
