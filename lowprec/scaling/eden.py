"""MS-EDEN: NVFP4 codes to nearest of rotated values, and stochastic block scales that undo the bias of that.

Quartet II (arXiv:2601.22813; IST-DASLab/Quartet-II 8776a90, ``quartet_2.py``) quantizes the operands of its backward
multiplications so. Rounding to nearest errs less than stochastic rounding, but shrinks what it rounds; EDEN's factor
``c = sum(y^2) / sum(y q)`` of each rotated group makes the codes as long as the values along their own direction. It is
taken into the block scales, and these are rounded stochastically, so that E4M3 does not bring the bias back. Elements
are deterministic: the only random things are the signs of the rotation and one rounding for each 16 values.

What is theirs and what is ours: the arithmetic is the Triton definition's. Its order of the two sums is the compiler's;
here they are float64 sums in increasing order. Its random numbers are Triton's; here they are the project's words of
(seed, index of the block). Their CUDA kernels differ from their own definition and are not reproduced.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode, round_to
from ..format.catalogue import formats
from .hadamard import transformed
from .quantized import Quantized
from .quantizer import Quantizer
from .rules import E4M3

#: (17/16) 0.93: the room that block scales need to grow, and what it costs.
ROOM = 17 / 16 * 0.93
LARGEST = 6 / ROOM  # of a block, in units of its scale
BOUND = 255.99  # largest block scale that a tensor's own aims at: c takes it up to E4M3's 448
BLOCK = 16
E2M1 = formats["e2m1fn"]


def quantize_eden(x: NDArray[np.float32], q: Quantizer, seed: int) -> Quantized:
    """Quantize a matrix by MS-EDEN along the blocks of a quantizer, 1x16 or 16x1, rotated by its Hadamard transform.

    What comes is not refused: a group with NaN or Inf has scales of NaN and counts for no other.
    """
    along_rows = q.granularity.columns == 1
    values = x.T if along_rows else x
    assert q.hadamard is not None
    if values.shape[1] % q.hadamard:
        raise ValueError(f"quantize: x must have multiples of {q.hadamard} values along its blocks, got {x.shape}")
    z = transformed(values, q, axis=1)
    groups = z.reshape(len(z), z.shape[1] // q.hadamard, q.hadamard)
    lost: NDArray[np.bool_] = ~np.all(np.isfinite(groups), axis=2)
    codes, wanted, tensor = _wanted(np.where(lost[..., None], np.float32(0), groups).reshape(z.shape), q.hadamard)
    wanted[np.repeat(lost, q.hadamard // BLOCK, axis=1)] = np.nan
    if along_rows:
        codes, wanted = np.ascontiguousarray(codes.T), np.ascontiguousarray(wanted.T)
    scale = round_to(wanted, E4M3, rounding="stochastic", seed=seed)
    return Quantized(codes, scale, E2M1, q.granularity, E4M3, tensor)


def _wanted(z: NDArray[np.float32], size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], np.float32]:
    """Return codes, what block scales should be, and the tensor's scale."""
    codes, scale, factor, tensor = parts(z, size)
    return codes, (scale * np.repeat(factor, size // BLOCK, axis=1)).astype(np.float32), tensor


def parts(
    z: NDArray[np.float32], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32], np.float32]:
    """Return codes, block scales to nearest, each group's factor and the tensor's scale."""
    rows, columns = z.shape
    amax = np.abs(z).max(initial=0)
    tensor = np.float32(np.float32(amax / np.float32(BOUND)) / np.float32(LARGEST)) if amax else np.float32(1)
    tensor = max(tensor, np.float32(2.0**-149))
    blocks = z.reshape(rows, columns // BLOCK, BLOCK)
    with np.errstate(under="ignore"):
        scale = round_to(np.abs(blocks).max(axis=2, initial=0) / np.float32(LARGEST) / tensor, "e4m3fn")
        scale = np.where(scale == 0, np.float32(1), scale)
        y = blocks / np.maximum(scale * tensor, np.float32(2.0**-149))[..., None]
    codes = encode(y, "e2m1fn", rounding="nearest_away")
    groups = rows, columns // size, size
    y64, q64 = (a.astype(np.float64).reshape(groups) for a in (y, decode(codes, "e2m1fn")))
    above, below = (np.cumsum(terms, axis=2)[..., -1] for terms in (y64 * y64, y64 * q64))
    factor = np.where(below > 0, above / np.where(below > 0, below, 1), 1).astype(np.float32)
    return codes.reshape(z.shape), scale, factor, tensor
