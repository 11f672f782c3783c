"""Slow, independent reference in exact arithmetic, against which every fast path of this package is tested.

All code here uses Python integers and :class:`fractions.Fraction`, follows the published rules, and shares no code with
the kernels. Bit patterns are plain ints; a *value* is a ``Fraction``, except for four values that a fraction cannot
represent and that are floats: ``nan``, ``inf``, ``-inf`` and ``-0.0``.

A format is any object with the fields of :class:`Fields`, including :class:`lowprec.Format`; the properties that a
format derives from them are not used.

Examples
--------
>>> from lowprec.oracle import E4M3FN, HOPPER_FP8, decode, encode, fused_dot
>>> decode(0x7E, E4M3FN), decode(0x7F, E4M3FN), decode(0x80, E4M3FN)
(Fraction(448, 1), nan, -0.0)
>>> hex(encode(464, E4M3FN)), hex(encode(465, E4M3FN, overflow="nonsaturate"))
('0x7e', '0x7f')
>>> one = encode(1, E4M3FN)
>>> hex(fused_dot([one] * 32, [one] * 32, 0, HOPPER_FP8, E4M3FN, E4M3FN))  # 32.0
'0x42000000'
"""

from . import casts as casts
from . import tables as tables
from .accumulators import ACCUMULATORS as ACCUMULATORS
from .accumulators import FORMATS as FORMATS
from .accumulators import Accumulator as Accumulator
from .accumulators import ExactSum as ExactSum
from .accumulators import Sequential as Sequential
from .accumulators import tf32_code as tf32_code
from .ieee import exact_dot as exact_dot
from .ieee import fma32 as fma32
from .ieee import sequential as sequential
from .ieee import sequential_f32 as sequential_f32
from .machines.amd import ExactGroups as ExactGroups
from .machines.amd import FlooredSum as FlooredSum
from .machines.amd import FlushedPairs as FlushedPairs
from .machines.base import DotRule as DotRule
from .machines.base import Scales as Scales
from .machines.cpu import FlushedFma as FlushedFma
from .machines.cpu import Lanes as Lanes
from .machines.cpu import Odd as Odd
from .machines.cpu import RoundedGroups as RoundedGroups
from .machines.cpu import ScaledGroups as ScaledGroups
from .machines.fused import ADA_FP8 as ADA_FP8
from .machines.fused import HOPPER_FP8 as HOPPER_FP8
from .machines.fused import Rule as Rule
from .machines.fused import fused_dot as fused_dot
from .machines.halves import Halves as Halves
from .machines.ibm import DL16 as DL16
from .machines.ibm import ChunkSums as ChunkSums
from .machines.rdna import FlooredPairs as FlooredPairs
from .machines.rdna import SignFrame as SignFrame
from .machines.riscv import BulkSums as BulkSums
from .machines.riscv import PartialSums as PartialSums
from .machines.tenstorrent import FidelityPhases as FidelityPhases
from .tiles import promoted_dot as promoted_dot
from .tiles import quantize_tile as quantize_tile
from .values import BFLOAT16 as BFLOAT16
from .values import DL8 as DL8
from .values import E2M1FN as E2M1FN
from .values import E2M3FN as E2M3FN
from .values import E3M2FN as E3M2FN
from .values import E4M3FN as E4M3FN
from .values import E4M3FNUZ as E4M3FNUZ
from .values import E5M2 as E5M2
from .values import E5M2FNUZ as E5M2FNUZ
from .values import E8M0FNU as E8M0FNU
from .values import FLOAT16 as FLOAT16
from .values import FLOAT32 as FLOAT32
from .values import FLOAT64 as FLOAT64
from .values import TF32 as TF32
from .values import UE4M3 as UE4M3
from .values import Exact as Exact
from .values import Fields as Fields
from .values import Overflow as Overflow
from .values import decode as decode
from .values import encode as encode
from .values import exact as exact
from .values import fields as fields
from .values import floor_log2 as floor_log2
from .values import max_code as max_code
from .values import nan_code as nan_code
