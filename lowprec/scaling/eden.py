"""MS-EDEN: codes of rotated values in NVFP4, rounded to nearest, and stochastic block scales that correct the bias.

Quartet II (arXiv:2601.22813; IST-DASLab/Quartet-II 8776a90, ``quartet_2.py``) quantizes the operands of its backward
multiplications in this way. Rounding to nearest has a smaller error than stochastic rounding, but shrinks values;
EDEN's factor ``c = sum(y^2) / sum(y q)`` of each rotated group restores the length of the codes along the values'
direction. Block scales are multiplied by it and rounded stochastically, so that E4M3 does not bring the bias back.
Elements are deterministic: only the signs of the rotation and one rounding for each 16 values are random.

The arithmetic is that of the Triton definition, with two differences. The order of its two sums is left to the
compiler; here they are float64 sums in increasing order. Its random numbers are Triton's; here they are lowprec's words
of (seed, index of the block). The CUDA kernels of Quartet II differ from its definition and are not reproduced.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cast.casts import decode, encode, round_to
from ..format.catalogue import formats
from .hadamard import transform
from .quantized import Quantized
from .quantizer import Quantizer
from .rules import E4M3

#: (17/16) 0.93: headroom for block scales to grow, and its cost.
ROOM = 17 / 16 * 0.93
LARGEST = 6 / ROOM  # largest magnitude of a block, in units of its scale
BOUND = 255.99  # largest block scale that the tensor scale aims at: c can raise it up to E4M3's 448
BLOCK = 16
E2M1 = formats["e2m1fn"]


def quantize_eden(x: NDArray[np.float32], q: Quantizer, seed: int) -> Quantized:
    """Quantize a matrix by MS-EDEN along the blocks of a quantizer, 1x16 or 16x1, rotated by its Hadamard transform.

    NaN and Inf are accepted: a group that contains one gets scales of NaN, and does not affect the other groups.
    """
    along_rows = q.granularity.columns == 1
    values = x.T if along_rows else x
    assert q.hadamard_size is not None
    if values.shape[1] % q.hadamard_size:
        raise ValueError(
            f"quantize: x must have a multiple of {q.hadamard_size} values along its blocks, got {x.shape}"
        )
    z = transform(values, q, axis=1)
    groups = z.reshape(len(z), z.shape[1] // q.hadamard_size, q.hadamard_size)
    lost: NDArray[np.bool_] = ~np.all(np.isfinite(groups), axis=2)
    codes, wanted, tensor = _ideal_scales(
        np.where(lost[..., None], np.float32(0), groups).reshape(z.shape), q.hadamard_size
    )
    wanted[np.repeat(lost, q.hadamard_size // BLOCK, axis=1)] = np.nan
    if along_rows:
        codes, wanted = np.ascontiguousarray(codes.T), np.ascontiguousarray(wanted.T)
    scale = round_to(wanted, E4M3, rounding="stochastic", seed=seed)
    return Quantized(codes, scale, E2M1, q.granularity, E4M3, tensor)


def _ideal_scales(z: NDArray[np.float32], size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], np.float32]:
    """Return codes, unrounded block scales, and the tensor scale."""
    codes, scale, factor, tensor = stages(z, size)
    return codes, (scale * np.repeat(factor, size // BLOCK, axis=1)).astype(np.float32), tensor


def stages(
    z: NDArray[np.float32], size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32], np.float32]:
    """Return codes, block scales rounded to nearest, the factor of each group, and the tensor scale."""
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
