"""Formats of whole blocks, in which elements depend on data that the block shares: HiF4, block floating point.

They differ from a `Quantizer` in that their elements are not codes of a `Format`: HiF4 has three levels of scale, and
block floating point has integers below one exponent. Blocks run along the last axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._arrays import as_float32
from .._checks import check_choice, check_int
from .._fpenv import with_default_fpenv
from .._values import normalize_fields
from ..cast.casts import round_to
from ..registry import Registry

Floats = NDArray[np.float32]


class BlockCodes(NamedTuple):
    """Codes of a matrix of blocks.

    Attributes
    ----------
    elements : ndarray of uint8, shape (..., K padded to whole blocks)
        Codes of the elements: the sign bit above the magnitude bits.
    shared : ndarray of uint8, shape (..., blocks)
        Codes of the scales, or exponents.
    levels : ndarray of uint8, shape (..., blocks, n)
        Bits of further levels, one per entry; n is 0 for a format without them.
    """

    elements: NDArray[np.uint8]
    shared: NDArray[np.uint8]
    levels: NDArray[np.uint8]


@dataclass(frozen=True)
class BlockFormat(ABC):
    """A format of blocks along the last axis; the last block is padded with zeros.

    Parameters
    ----------
    name : str
        Name shown in messages; it does not affect the codes.
    block : int
        Elements per block.
    magnitude_bits : int
        Bits of an element without its sign.
    source : str
        Publication of the definition.
    """

    name: str
    block: int
    magnitude_bits: int
    source: str = field(default="user-defined", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        normalize_fields(self)
        check_int(f"{type(self).__name__} {self.name}", "magnitude_bits", self.magnitude_bits, 1, 7)

    @with_default_fpenv
    def encode(self, x: ArrayLike) -> BlockCodes:
        """Return the codes of real numbers, shape (..., K), taken as float32."""
        values = as_float32(self.name, x)
        if values.ndim == 0:
            raise ValueError(f"{self.name}: x must have shape (..., K), got a single number")
        missing = -values.shape[-1] % self.block
        padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        with np.errstate(all="ignore"):
            codes = self._encode(padded.reshape(*padded.shape[:-1], padded.shape[-1] // self.block, self.block))
        return codes._replace(elements=codes.elements.reshape(padded.shape))

    @with_default_fpenv
    def decode(self, codes: BlockCodes) -> Floats:
        """Return the values of codes, the padding included."""
        shape = codes.elements.shape
        blocks = codes.elements.reshape(*shape[:-1], shape[-1] // self.block, self.block)
        negative, magnitude = blocks >> self.magnitude_bits, blocks & ((1 << self.magnitude_bits) - 1)
        with np.errstate(all="ignore"):
            values = self._values(magnitude.astype(np.float64), codes)
            return np.where(negative == 1, -values, values).astype(np.float32).reshape(shape)

    def round_to(self, x: ArrayLike) -> Floats:
        """Return real numbers rounded to the format, in the shape of `x`."""
        return self.decode(self.encode(x))[..., : np.shape(x)[-1] if np.ndim(x) else 0]

    @abstractmethod
    def _encode(self, x: Floats) -> BlockCodes:
        """Return the codes of blocks, shape (..., blocks, block)."""

    @abstractmethod
    def _values(self, magnitude: NDArray[np.float64], codes: BlockCodes) -> NDArray[np.float64]:
        """Return the values of magnitudes, shape (..., blocks, block)."""


@dataclass(frozen=True)
class HiFx(BlockFormat):
    """HiF4 and its variants: 64 elements, a scale in E6M2, a doubling bit for every 8 elements and one for every 4.

    All steps are in float32; roundings to bf16 are to nearest even, those of elements to nearest with ties away,
    saturating. How NaN and Inf are encoded is not published; here it follows from these steps.

    Examples
    --------
    >>> block_formats["hif4"].round_to([7.0, 3.4, -1.7, 0.26]).tolist()
    [7.0, 3.0, -2.0, 0.0]
    """

    def _encode(self, x: Floats) -> BlockCodes:
        f32, top = np.float32, (1 << self.magnitude_bits) - 1
        size = np.abs(x)
        m3 = size.reshape(*x.shape[:-1], 16, 4).max(axis=-1)
        m2 = m3.reshape(*x.shape[:-1], 8, 2).max(axis=-1)
        scale = round_to(m2.max(axis=-1) * f32(0.142578125), "bfloat16")
        word = np.clip(scale, f32(2.0**-48), f32(49152)).view(np.uint32)
        word = (word + np.uint32(0xFFFFF) + (word >> np.uint32(21) & np.uint32(1))) >> np.uint32(21)
        shared = (word - np.uint32(127 - 48 << 2)).astype(np.uint8)
        scale = (word << np.uint32(21)).view(f32)
        inverse = round_to(f32(1) / scale, "bfloat16")[..., None]
        e2 = m2 * inverse >= 4
        e3 = m3 * inverse * np.where(np.repeat(e2, 2, axis=-1), f32(0.5), f32(1)) >= 2
        steps = np.repeat(e2, 8, axis=-1).astype(np.int32) + np.repeat(e3, 4, axis=-1)
        quanta = np.ldexp(size, -steps).astype(f32) * inverse * f32(1 << self.magnitude_bits - 1)
        rounded = np.minimum(np.floor(quanta + f32(0.5)), f32(top))
        magnitude = np.where(np.isnan(rounded), f32(0), rounded).astype(np.uint8)  # C leaves the cast of a NaN open
        elements = magnitude | (x < 0).astype(np.uint8) << np.uint8(self.magnitude_bits)
        return BlockCodes(elements, shared, np.concatenate([e2, e3], axis=-1).astype(np.uint8))

    def _values(self, magnitude: NDArray[np.float64], codes: BlockCodes) -> NDArray[np.float64]:
        code = codes.shared.astype(np.int32)
        scale = np.ldexp(1 + (code & 3) / 4, (code >> 2) - 48)
        scale = np.where(code == 0xFF, np.nan, scale)[..., None]
        steps = np.repeat(codes.levels[..., :8], 8, axis=-1) + np.repeat(codes.levels[..., 8:], 4, axis=-1)
        return np.asarray(np.ldexp(magnitude * scale, steps.astype(np.int32) - (self.magnitude_bits - 1)))


@dataclass(frozen=True)
class BlockFloat(BlockFormat):
    """Block floating point: sign-magnitude integers that share an exponent, as in Tenstorrent's bfp8_b and in MSFP.

    A value is ``m * 2^(E - 127 - (magnitude_bits - 1))``, where E is the largest float32 exponent field in the block.
    Significands have 24 bits, of which the leading one is always set, so that float32 subnormals count as
    ``1.f * 2^-127``; significands are truncated to the shared exponent. -0 does not exist. NaN and Inf count as numbers
    of exponent 255.

    Parameters
    ----------
    first_bits : int
        0: one saturating rounding to nearest even, as on Tenstorrent's host. Otherwise the device's roundings: to
        bfloat16, then to nearest in `first_bits` magnitude bits by `ties`, then truncation.
    ties : {"even", "away"}
        Rounding of ties; the device's is "away" according to its manual.

    Examples
    --------
    >>> block_formats["bfp4_b_host"].round_to([8.0, 3.875, 1.0, 0.5, -0.25, 7.96875, 0.03125, -3.0]).tolist()
    [8.0, 4.0, 0.0, 0.0, 0.0, 8.0, 0.0, -4.0]
    """

    first_bits: int = 0
    ties: Literal["even", "away"] = "even"

    def __post_init__(self) -> None:
        super().__post_init__()
        first_bits = check_int(f"BlockFloat {self.name}", "first_bits", self.first_bits, 0, 7)
        object.__setattr__(self, "first_bits", first_bits)
        check_choice(f"BlockFloat {self.name}", "ties", self.ties, ("even", "away"))

    def _encode(self, x: Floats) -> BlockCodes:
        word = (round_to(x, "bfloat16") if self.first_bits else x).view(np.uint32).astype(np.int64)
        field_ = word >> 23 & 0xFF
        significand = np.where(word & 0x7FFFFFFF == 0, 0, word & 0x7FFFFF | 0x800000)
        shared = field_.max(axis=-1)
        aligned = significand >> np.minimum(shared[..., None] - field_, 63)
        bits = self.first_bits or self.magnitude_bits
        cut = 24 - bits
        odd = aligned >> cut & 1
        half = (1 << cut - 1) - (0 if self.ties == "away" else 1 - odd)
        magnitude = np.minimum(aligned + half >> cut, (1 << bits) - 1) >> bits - self.magnitude_bits
        negative = (word >> 31) & (magnitude > 0)
        elements = (magnitude | negative << self.magnitude_bits).astype(np.uint8)
        return BlockCodes(elements, shared.astype(np.uint8), np.zeros((*shared.shape, 0), np.uint8))

    def _values(self, magnitude: NDArray[np.float64], codes: BlockCodes) -> NDArray[np.float64]:
        power = codes.shared.astype(np.int32)[..., None] - 127 - (self.magnitude_bits - 1)
        return np.asarray(np.ldexp(magnitude, power))


block_formats: Registry[BlockFormat] = Registry("block format", BlockFormat)  # type: ignore[type-abstract]
"""The catalogue of block formats."""


def _add(entry: BlockFormat) -> None:
    block_formats.register(entry.name, entry)


_HOST = "tt-metal, blockfloat_common.cpp"
_DEVICE = "tt-isa-documentation; ties as specified; its emulator's comment specifies even"
_MSFP = "Microsoft, NeurIPS 2020; rounding not published: nearest even, saturating is our choice"
_add(HiFx("hif4", 64, 3, source="arXiv:2602.11287 (Huawei HiFloat4), hifx.py"))
_add(HiFx("hif3", 64, 2, source="hifx.py of the HiFloat4 repository"))
for _name, _bits in (("bfp8_b", 7), ("bfp4_b", 3), ("bfp2_b", 1)):
    _add(BlockFloat(f"{_name}_host", 16, _bits, source=_HOST))
    _options: dict[str, Any] = {"first_bits": 7, "ties": "away"}
    _add(BlockFloat(f"{_name}_device", 16, _bits, source=_DEVICE, **_options))
_add(BlockFloat("msfp12", 16, 3, source=_MSFP))
_add(BlockFloat("msfp16", 16, 7, source=_MSFP))
