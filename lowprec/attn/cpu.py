"""PyTorch's attention on CPUs: its blocks, its row sums in vectors and the order of MKL's matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._checks import check_int
from .._values import normalize_fields
from ..format.catalogue import Format
from ..kernels import cpu_math as kernels
from ..tensorcore.accumulator import Accumulator
from ..tensorcore.mma import mma
from .sums import RowSum
from .tiles import Call, KeyTile, SquareSchedule, Visit

Floats = NDArray[np.float32]
_LEAST_ROWS, _LEAST_COLUMNS = 4, 12  # smallest product in this order; MKL computes smaller ones in other orders
_LEAST_PRODUCTS = 400  # multiply-adds below which PyTorch computes the matrices of a batch without MKL


@dataclass(frozen=True, eq=False, repr=False)
class LaneSum(RowSum):
    """Sum of a row in vectors of 16 keys, which are added to the accumulators in turn.

    Then the accumulators are added, and the upper half of the lanes to the lower until one is left. A fused
    multiply-add multiplies the sum of earlier tiles by its scale and adds the sum of the tile.

    Parameters
    ----------
    vectors : int
        Number of accumulators: 1 for float32; 2 for BF16, with 32 numbers per vector.
    in_lanes : bool
        Whether keys after the last whole vector are added to the lanes, rather than to the tile's sum.
    """

    vectors: int = 1
    in_lanes: bool = False
    lanes = 1

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_int("LaneSum", "vectors", self.vectors, 1)

    def add(self, p: Floats, scales: Floats, flush: bool, sums: Floats) -> None:
        """Multiply the sum [M, 1] by a scale per row and add a tile P [M, keys], in place."""
        kernels.sum_by_lanes(p, scales, self.vectors, self.in_lanes, sums)

    def total(self, sums: Floats) -> Floats:
        """Return each row's sum [M]."""
        return sums[:, 0].copy()


@dataclass(frozen=True, eq=False, repr=False)
class TorchCpu(SquareSchedule):
    """Tiles of PyTorch's cpu_flash_attention: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp at 430c4e3.

    A block has 256 rows if there are at least 768 queries, 64 if there are at least 192, else 32. The last tile has
    the remaining keys.
    """

    library = "PyTorch's kernels"
    is_ragged = takes_masks = True

    def queries(self, call: Call, tile: KeyTile) -> int:
        """Return the rows of a block."""
        return 32 if call.queries < 192 else 64 if call.queries < 768 else 256

    def covers(self, rows: int, keys: int, head_dim: int, channels: int) -> bool:
        """Return whether both products of a tile are large enough that MKL adds them in blocks."""
        return rows >= _LEAST_ROWS and min(keys, channels) >= _LEAST_COLUMNS


@dataclass(frozen=True, eq=False, repr=False)
class TorchMath(TorchCpu):
    """Tiles of PyTorch's _scaled_dot_product_attention_math: aten/src/ATen/native/transformers/attention.cpp.

    One block has all queries, and one tile all keys. Masks are added to the scores.
    """

    def normalized(self, call: Call) -> Call:
        """Return the call with a causal mask replaced by the equivalent window: no keys to the right."""
        return call._replace(causal=False, right=0 if call.causal else call.right)

    def queries(self, call: Call, tile: KeyTile) -> int:
        """Return the number of all queries."""
        return call.queries

    def visits(self, call: Call, keys: int, first: int, stop: int) -> list[Visit]:
        """Return one tile, which has all keys."""
        return [Visit(0)]

    def covers(self, rows: int, keys: int, head_dim: int, channels: int) -> bool:
        """Return whether both products are large enough that PyTorch calls MKL, and MKL adds them in blocks."""
        return super().covers(rows, keys, head_dim, channels) and rows * keys * head_dim >= _LEAST_PRODUCTS


def block_length(depth: int, block: int) -> int:
    """Return the number of products in a block of a product with K = `depth`."""
    return block if depth > 2 * block or depth < 2 else depth if depth <= block else depth // 2


def blocked_product(
    a: Any, b: Any, c: Floats | None, block: int, accumulator: Accumulator, formats: tuple[Format, Format]
) -> Floats:
    """Return A B^T + C from the codes of A and B: blocks of K, each summed by one chain, are added in order.

    A block has `block` products. If K is above `block` and at most twice that, a block has K // 2 products, and an odd
    product is a third block.
    """
    depth, total = a.shape[1], c
    step = block_length(depth, block)
    for start in range(0, depth, step):
        pair = (np.ascontiguousarray(x[:, start : start + step]) for x in (a, b))
        chain = mma(*pair, accumulator=accumulator, a_format=formats[0], b_format=formats[1])
        total = chain if total is None else total + chain
    assert total is not None
    return total
