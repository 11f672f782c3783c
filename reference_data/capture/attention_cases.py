"""Operands of the attention kernels that an H200 ran, from seeds with NumPy only, and digests of results.

The kernels are those of Dao-AILab/flash-attention at 0251105 with CUTLASS 7127592, compiled for sm_90a by nvcc 13.0
with the flags of the libraries' setup.py. `h200_attention.json` has, for each case, the SHA-256 of the operands, of the
outputs' bfloat16 words [batch, queries, heads, D] and of the log-sum-exps' float32 words [batch, heads, queries], with
one word for all NaN.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[Any]
HEADS, KEY_HEADS = 4, 2
#: Kind of operands, batch size, number of queries and of keys.
SIZES = (
    ("normal", 2, 1, 1), ("normal", 2, 17, 17), ("normal", 2, 64, 64), ("normal", 2, 129, 129),
    ("normal", 2, 300, 300), ("normal", 1, 512, 512), ("normal", 2, 64, 1000), ("outlier", 2, 129, 129),
    ("outlier", 1, 300, 300), ("outlier", 2, 64, 1000), ("small", 2, 64, 64), ("small", 1, 300, 300),
    ("small", 2, 64, 1000), ("peaked", 2, 129, 300), ("mean", 1, 64, 2048), ("mean", 1, 300, 300),
    ("normal", 1, 200, 64), ("nonfinite", 1, 129, 300),
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel, and the entry of `lowprec.attentions` that emulates it."""

    name: str
    entry: str
    is_fp8: bool
    size: int
    causal: bool = False
    splits: bool = False


KERNELS = (
    Kernel("fa3_fp8_128_0", "fa3_fp8", True, 128), Kernel("fa3_fp8_128_1", "fa3_fp8", True, 128, causal=True),
    Kernel("fa3_fp8_64_0", "fa3_fp8", True, 64), Kernel("fa3_bf16_128_0", "fa3_bf16", False, 128),
    Kernel("fa2_bf16_128_0", "flash2_hopper", False, 128),
    Kernel("fa2_split_128", "flash2_splitkv_hopper", False, 128, splits=True),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Operands of one call and the number of splits."""

    kernel: Kernel
    key: str
    kind: str
    batch: int
    queries: int
    keys: int
    splits: int = 1

    def operands(self) -> tuple[Words, Words, Words, NDArray[np.float32]]:
        """Return codes of q, k, v [batch, tokens, heads, D], and the scales [3, batch, key heads] of q, k and v."""
        rng, d, fp8 = np.random.default_rng(zlib.crc32(self.key.encode())), self.kernel.size, self.kernel.is_fp8
        shapes = (self.queries, HEADS), (self.keys, KEY_HEADS), (self.keys, KEY_HEADS)
        q, k, v = (rng.standard_normal((self.batch, tokens, heads, d)) for tokens, heads in shapes)
        scales = np.ones((3, self.batch, KEY_HEADS), np.float32)
        if fp8:
            scales = np.float32(0.3 + rng.random(scales.shape))
        if self.kind == "outlier":
            for x in (q, k, v):
                x[..., rng.integers(0, d, 3)] *= 20
        elif self.kind == "small":
            q, k, v = q * 0.02, k * 0.02, v * 0.02
            if fp8:
                scales = np.float32(scales * np.array([0.011, 0.013, 0.0017])[:, None, None])
        elif self.kind == "peaked":
            q = q * 6
        elif self.kind == "mean":
            v, q = v + 1, q * 0.5
        q, k, v = (_to_e4m3(x) if fp8 else _to_bfloat16(x) for x in (q, k, v))
        if self.kind == "nonfinite":  # NaN in one key head; in bfloat16, infinity in the other
            k[0, 5, 0, 3] = 0x7F if fp8 else 0x7FC0
            if not fp8:
                k[0, 9, 1, 3] = 0x7F80
        return q, k, v, scales


def cases(kernel: Kernel) -> Iterator[Case]:
    """Yield the cases of a kernel."""
    for i, (kind, batch, queries, keys) in enumerate(SIZES):
        m, n = (2, 2) if queries == 1 and kernel.causal else (queries, keys)
        key = f"{kernel.name}/{i:02d}_{kind}_{m}x{n}"
        if not kernel.splits:
            yield Case(kernel, key, kind, batch, m, n)
        elif n >= 300 and m <= 300:
            yield from (Case(kernel, f"{key}_s{s}", kind, batch, m, n, s) for s in (2, 3, 4, 8) if -(-n // 128) >= s)


def digest_of(*words: Words) -> str:
    """Return the SHA-256 of arrays of words; of 16 or 32 bits, those of NaN count as one."""
    digest = hashlib.sha256()
    for x in words:
        if x.dtype.kind == "u" and x.dtype.itemsize > 1:
            infinity = 0x7F80 if x.dtype.itemsize == 2 else 0x7F800000
            x = np.where(
                x & x.dtype.type((1 << 8 * x.dtype.itemsize - 1) - 1) > infinity,
                x.dtype.type((1 << 8 * x.dtype.itemsize) - 1),
                x,
            )
        digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def _to_e4m3(x: NDArray[np.float64]) -> Words:
    code = np.arange(127)
    field, mantissa = code >> 3, code & 7
    values = np.where(field == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (field - 7.0))
    return (np.searchsorted((values[1:] + values[:-1]) / 2, np.abs(x)) | np.where(x < 0, 128, 0)).astype(np.uint8)


def _to_bfloat16(x: NDArray[np.float64]) -> Words:
    words = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
