"""The kinds of accumulator, one file each: its reference, its fast kernels and when they hold, its checks and words.

A new kind is a file here and its line below.
"""

from ..accumulator import kinds
from .arm import Odd, RoundedGroups, ScaledGroups
from .exact import Exact
from .exact_groups import ExactGroups
from .fused import Fused
from .fused_runs import FusedRuns
from .halves import Halves
from .pairwise import Pairwise
from .sequential import Sequential
from .two_floors import TwoFloors
from .x86 import FlushedFma, Lanes, PairLanes

for _kind in (
    Fused(), FusedRuns(), Halves(), TwoFloors(), Pairwise(), ExactGroups(), Sequential(), Exact(),
    FlushedFma(), Lanes(), PairLanes(), Odd(), RoundedGroups(), ScaledGroups(),
):  # fmt: skip
    kinds.register(_kind.name, _kind)
