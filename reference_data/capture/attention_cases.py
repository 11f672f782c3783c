"""Operands of the attention kernels that an H200 ran, from seeds with NumPy only, and digests of results.

The kernels are those of Dao-AILab/flash-attention at 0251105 with CUTLASS 7127592, compiled for sm_90a by nvcc 13.0
with the flags of the libraries' setup.py. `h200_attention.json` has, for each case, the SHA-256 of the operands, of the
outputs' bfloat16 words [batch, queries, heads, D] and of the log-sum-exps' float32 words [batch, heads, queries], with
one word for all NaN. FlashInfer's FP8 prefill, of flashinfer-ai/flashinfer at fb28d72 for head size 128, wrote float16.
Of FlashMLA's decoding, deepseek-ai/FlashMLA at 9241ae3, every request is one split; outputs are bfloat16.
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
_FIELD, _MANTISSA = np.divmod(np.arange(127), 8)
_E4M3 = np.where(_FIELD == 0, _MANTISSA / 8 * 2.0**-6, (1 + _MANTISSA / 8) * 2.0 ** (_FIELD - 7.0))
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
    out_format: str = "bfloat16"


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

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        return float(np.float32(self.kernel.size**-0.5))

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


@dataclass(frozen=True)
class FlashInferCase:
    """Operands of a call of FlashInfer; `rescaled` operands have one scale for each of `groups` key heads."""

    key: str
    kind: str
    queries: int
    keys: int
    heads: int
    groups: int
    seed: int
    causal: bool = False
    rescaled: bool = False
    scale: float = 128**-0.5
    splits: int = 1

    @property
    def kernel(self) -> Kernel:
        """Return the compiled kernel."""
        return Kernel("flashinfer_fp8_128", "flashinfer_fp8", True, 128, self.causal, out_format="float16")

    def operands(self) -> tuple[Words, Words, Words, NDArray[np.float32]]:
        """Return codes of q, k, v [1, tokens, heads, D], and the scales [3, 1, key heads] of q, k and v."""
        rng, codes, scales = (
            np.random.Generator(np.random.Philox(self.seed)),
            [],
            np.ones((3, 1, self.groups), np.float32),
        )
        sizes = (self.queries, self.heads), (self.keys, self.groups), (self.keys, self.groups)
        for i, (rows, heads) in enumerate(sizes):
            if self.kind == "codes":
                x = rng.integers(0, 256, (rows, heads, 128)).astype(np.uint8)
                x[(x & 127) == 127] = 0
                x[(x & 127) > 0x50] -= 0x30
                codes.append(x[None])
                continue
            numbers = rng.standard_normal((rows, heads, 128)).astype(np.float32)
            if self.kind == "outlier":
                numbers[..., rng.integers(0, 128, 3)] *= 8
                numbers[rng.integers(0, rows, max(rows // 50, 1))] *= 4
            if i == 0:
                numbers *= {"peaky": 6, "flat": 1 / 64, "zero": 0}.get(self.kind, 1)
            if self.rescaled:
                scales[i, 0] = np.abs(numbers).max((0, 2)).reshape(self.groups, -1).max(1) / np.float32(448)
                numbers = numbers / np.repeat(scales[i, 0], heads // self.groups)[None, :, None]
            codes.append(_to_e4m3(numbers.clip(-448, 448))[None])
        return (*codes, scales)


FLASHINFER = (
    FlashInferCase("f_small", "normal", 8, 64, 2, 1, 101), FlashInferCase("f_192", "normal", 16, 192, 2, 2, 102),
    FlashInferCase("f_odd", "normal", 33, 193, 2, 1, 103), FlashInferCase("f_448", "normal", 128, 448, 2, 1, 104),
    FlashInferCase("f_outlier", "outlier", 64, 600, 4, 2, 105), FlashInferCase("f_peaky", "peaky", 64, 600, 2, 2, 106),
    FlashInferCase("f_flat", "flat", 64, 1000, 2, 1, 107), FlashInferCase("f_codes", "codes", 32, 400, 2, 1, 108),
    FlashInferCase("f_scales", "normal", 64, 512, 4, 2, 109, rescaled=True),
    FlashInferCase("f_scale", "normal", 32, 384, 2, 1, 110, scale=0.1337),
    FlashInferCase("f_zero", "zero", 16, 300, 1, 1, 111),
    FlashInferCase("f_long", "normal", 64, 4096, 4, 1, 112, rescaled=True),
    FlashInferCase("f_causal", "normal", 128, 128, 2, 1, 121, True),
    FlashInferCase("f_causal_odd", "normal", 200, 321, 2, 2, 122, True),
    FlashInferCase("f_causal_tail", "normal", 7, 500, 4, 1, 123, True),
    FlashInferCase("f_causal_more", "normal", 150, 100, 2, 1, 124, True),
    FlashInferCase("f_causal_outlier", "outlier", 300, 700, 2, 1, 125, True),
    FlashInferCase("f_causal_scales", "normal", 256, 768, 4, 2, 126, True, rescaled=True),
    FlashInferCase("f_causal_peaky", "peaky", 129, 577, 2, 1, 127, True),
    FlashInferCase("f_causal_long", "normal", 513, 2048, 2, 1, 128, True, rescaled=True),
)  # fmt: skip


@dataclass(frozen=True)
class FlashMlaCase:
    """Operands of a call of FlashMLA; the words of every `step`-th head were recorded.

    `keys` has the lengths of the requests. With a `nope` part, keys are selected tokens of a cache in E4M3, with one
    scale for `tile` numbers, and a share of the indices is invalid; otherwise they are pages of a cache in bfloat16.
    """

    key: str
    kind: str
    queries: int
    heads: int
    keys: tuple[int, ...]
    seed: int
    step: int = 1
    nope: int = 0
    tile: int = 0
    invalid: float = 0.0
    causal: bool = False
    softmax_scale: float | None = None

    @property
    def head_dim(self) -> int:
        """Return the head size of Q and K; V has the first 512 numbers of K."""
        return 512 if self.nope == 448 else 576

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        return float(np.float32(self.softmax_scale or self.head_dim**-0.5))

    def operands(self) -> list[tuple[Words, Words, Words]]:
        """Return words of q [queries, heads, D] and keys [N, D] of each request, and which keys are valid [N]."""
        rng = np.random.Generator(np.random.Philox(self.seed))
        q = _to_bfloat16(self._draw(rng, (len(self.keys), self.queries, self.heads, self.head_dim), False))
        if self.nope:
            tokens = max(2 * self.keys[0], 128)
            cache = self._quantized(self._draw(rng, (tokens, self.head_dim), True))
            indices = rng.integers(0, tokens, (len(self.keys), self.keys[0]))
            valid = rng.random(indices.shape) >= self.invalid
            return list(zip(q, np.where(valid[..., None], cache[indices], 0), valid, strict=True))
        pages = [-(-n // 64) for n in self.keys]
        total = sum(pages) + 3
        k = _to_bfloat16(self._draw(rng, (total * 64, 576), True)).reshape(total, 64, 576)
        places = np.split(rng.permutation(total), np.cumsum(pages))
        keys = [k[place].reshape(-1, 576)[:n] for place, n in zip(places, self.keys, strict=False)]
        return [(x, y, np.ones(len(y), bool)) for x, y in zip(q, keys, strict=True)]

    def _draw(self, rng: np.random.Generator, shape: tuple[int, ...], is_key: bool) -> NDArray[np.float32]:
        x = rng.standard_normal(shape).astype(np.float32)
        if self.kind == "outlier":
            x[..., rng.integers(0, shape[-1] - 64, 5)] *= 12
            if is_key:
                x[rng.integers(0, shape[0], max(shape[0] // 50, 1))] *= 6
        return x * np.float32(5) if self.kind == "peaky" and not is_key else x

    def _quantized(self, x: NDArray[np.float32]) -> Words:
        part = x[:, : self.nope].reshape(len(x), -1, self.tile)
        scales = np.maximum(np.abs(part).max(2), np.float32(1e-4)) / np.float32(448)
        if self.kind != "fine scales":
            fraction, exponent = np.frexp(scales)
            scales = np.ldexp(np.float32(1), exponent - (fraction == 0.5))
        codes = _to_e4m3((part / scales[..., None]).clip(-448, 448))
        values = np.concatenate([_E4M3, -_E4M3])[(codes & 127) + (codes >> 7) * np.uint8(127)].astype(np.float32)
        rounded = (_to_bfloat16(scales).astype(np.uint32) << 16).view(np.float32)  # as the kernel does
        nope = (values * rounded[..., None]).reshape(len(x), self.nope)
        return _to_bfloat16(np.concatenate([nope, x[:, self.nope :]], 1))


_V32: dict[str, Any] = {"nope": 512, "tile": 128}
_MODEL1: dict[str, Any] = {"nope": 448, "tile": 64}
FLASHMLA = (
    FlashMlaCase("d_one", "normal", 1, 16, (64,), 61), FlashMlaCase("d_short", "normal", 1, 64, (1, 63, 65), 62, 3),
    FlashMlaCase("d_odd", "normal", 1, 64, (321, 200), 64, 3),
    FlashMlaCase("d_outlier", "outlier", 1, 64, (512, 500), 65, 3),
    FlashMlaCase("d_peaky", "peaky", 1, 64, (512, 333), 66, 3),
    FlashMlaCase("d_scale", "normal", 1, 64, (400,), 70, 3, softmax_scale=0.1337),
    FlashMlaCase("d_causal2", "normal", 2, 32, (130, 257), 74, causal=True),
    FlashMlaCase("d_causal4", "normal", 4, 64, (256, 66), 75, 4, causal=True),
    FlashMlaCase("d_causal_tail", "normal", 4, 32, (3, 65, 129), 76, 2, causal=True),
    FlashMlaCase("v_one", "normal", 1, 64, (64,), 1, 3, **_V32),
    FlashMlaCase("v_small", "normal", 1, 64, (256,) * 2, 2, 2, invalid=0.2, **_V32),
    FlashMlaCase("v_outlier", "outlier", 1, 64, (512,) * 2, 3, 2, **_V32),
    FlashMlaCase("v_nonpow2", "fine scales", 1, 64, (512,) * 2, 4, 3, invalid=0.1, **_V32),
    FlashMlaCase("v_peaky", "peaky", 1, 64, (512,) * 2, 7, 3, **_V32),
    FlashMlaCase("v_scale", "normal", 1, 64, (256,), 13, 3, softmax_scale=0.1337, **_V32),
    FlashMlaCase("m_one", "normal", 1, 64, (64,), 31, 3, **_MODEL1),
    FlashMlaCase("m_small", "normal", 1, 64, (256,) * 2, 32, 3, invalid=0.2, **_MODEL1),
    FlashMlaCase("m_outlier", "outlier", 1, 64, (512,) * 2, 33, 2, **_MODEL1),
    FlashMlaCase("m_peaky", "peaky", 1, 64, (512,) * 2, 35, 3, **_MODEL1),
)  # fmt: skip


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


def _to_e4m3(x: NDArray[Any]) -> Words:
    low, high = (np.searchsorted((_E4M3[1:] + _E4M3[:-1]) / 2, np.abs(x), side) for side in ("left", "right"))
    even = low + ((low != high) & (low & 1))  # of a tie
    return (even | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def _to_bfloat16(x: NDArray[np.float64]) -> Words:
    words = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
