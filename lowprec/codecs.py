"""What a tensor goes through on its way to another place: the wire to the experts and back, or a cache.

A codec turns rows of values into what would be sent and back. The catalogue has the ones of DeepSeek-V3 and its
proposals: FP8 tiles for dispatch, bfloat16 or LogFMT for combine (arXiv 2412.19437, section 3.3; arXiv 2505.09343,
section 3.2). Anything with the same four members is a codec too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lowprec import logfmt
from lowprec.cast import decode, encode, round_to
from lowprec.formats import Format, formats
from lowprec.registry import Registry
from lowprec.scaling import Quantized, quantize

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@runtime_checkable
class Codec(Protocol):
    """Something that values pass through; rows are tokens, tiles run along them.

    Attributes
    ----------
    name : str
        What it is listed under.
    """

    @property
    def name(self) -> str:
        """What it is listed under."""

    @property
    def bits_per_value(self) -> float:
        """Bits sent for a value of a row of whole tiles, scales included, when the values are bfloat16 numbers."""

    def row_bytes(self, columns: int) -> int:
        """Return the bytes sent for a row of that many values."""

    def encode(self, x: Array) -> Any:
        """Return what is sent for values [..., columns]; it has `nbytes` and `bits_per_value` of its own."""

    def decode(self, wire: Any) -> Floats:
        """Return the float32 values that arrive."""

    def round_trip(self, x: Array) -> Floats:
        """Return ``decode(encode(x))``, a new array."""


@dataclass(frozen=True, eq=False)
class Cast:
    """Codes of one format without any scale: what `CastCodec` sends."""

    codes: Array
    format: Format

    @property
    def nbytes(self) -> int:
        """Bytes that the codes take, packed to their bits."""
        return -(-self.codes.size * self.format.bits // 8)

    @property
    def bits_per_value(self) -> float:
        """Bits for one value."""
        return float(self.format.bits)


@dataclass(frozen=True)
class CastCodec:
    """Each value in a format of its own, without scales.

    Parameters
    ----------
    name : str
        What it is listed under.
    format : str
        The format.
    """

    name: str
    format: str

    @property
    def bits_per_value(self) -> float:
        """Bits sent for a value."""
        return float(formats[self.format].bits)

    def row_bytes(self, columns: int) -> int:
        """Return the bytes sent for a row."""
        return -(-columns * formats[self.format].bits // 8)

    def encode(self, x: Array) -> Cast:
        """Return the codes."""
        return Cast(encode(x, self.format), formats[self.format])

    def decode(self, wire: Cast) -> Floats:
        """Return the values of the codes."""
        return decode(wire.codes, wire.format)

    def round_trip(self, x: Array) -> Floats:
        """Return the values on the format's grid."""
        return round_to(np.asarray(x, dtype=np.float32), self.format)


@dataclass(frozen=True)
class BlockCodec:
    """Tiles of a narrow format that share a scale.

    Parameters
    ----------
    name : str
        What it is listed under.
    format : str
        Element format.
    tile : int
        Values of a row that share a scale.
    scale : {"fp32", "ue8m0"}
        float32 scales or powers of two.
    """

    name: str
    format: str
    tile: int = 128
    scale: Literal["fp32", "ue8m0"] = "fp32"

    @property
    def bits_per_value(self) -> float:
        """Bits sent for a value of whole tiles."""
        return formats[self.format].bits + (8 if self.scale == "ue8m0" else 32) / self.tile

    def row_bytes(self, columns: int) -> int:
        """Return the bytes sent for a row: a scale for each tile, and the codes."""
        scales = -(-columns // self.tile) * (1 if self.scale == "ue8m0" else 4)
        return scales + -(-columns * formats[self.format].bits // 8)

    def encode(self, x: Array) -> Quantized:
        """Return codes and scales; a tile with NaN or infinity arrives as NaN."""
        return quantize(x, self.format, f"1x{self.tile}", scale=self.scale)

    def decode(self, wire: Quantized) -> Floats:
        """Return scale times code."""
        return wire.dequantize()

    def round_trip(self, x: Array) -> Floats:
        """Return what arrives of `x`."""
        return self.encode(x).dequantize()


@dataclass(frozen=True)
class LogFMTCodec:
    """LogFMT tiles (`lowprec.logfmt`).

    Parameters
    ----------
    name : str
        What it is listed under.
    bits : int
        Bits per value, sign included.
    tile : int
        Values of a row that share a grid.
    """

    name: str
    bits: int
    tile: int = 128

    @property
    def bits_per_value(self) -> float:
        """Bits sent for a value of whole tiles, each with a pair of bfloat16 numbers."""
        return -(-self.tile * self.bits // 8) * 8 / self.tile + 32 / self.tile

    def row_bytes(self, columns: int) -> int:
        """Return the bytes sent for a row of bfloat16 numbers."""
        whole, rest = divmod(columns, self.tile)
        return (whole + (rest > 0)) * 4 + whole * -(-self.tile * self.bits // 8) + -(-rest * self.bits // 8)

    def encode(self, x: Array) -> logfmt.LogFMT:
        """Return codes and ends; a tile with NaN or infinity arrives as NaN."""
        return logfmt.encode(x, self.bits, self.tile, nonfinite="poison")

    def decode(self, wire: logfmt.LogFMT) -> Floats:
        """Return the grid values."""
        return wire.decode()

    def round_trip(self, x: Array) -> Floats:
        """Return what arrives of `x`."""
        return self.encode(x).decode()


codecs: Registry[Codec] = Registry("codec", Codec)  # type: ignore[type-abstract]
"""The codecs by name.

Examples
--------
>>> x = np.array([[1.0, 0.3, -0.004]], np.float32)
>>> codecs["fp8_1x128"].round_trip(x)
array([[ 1.        ,  0.29464287, -0.00390625]], dtype=float32)
"""
_catalogue: list[Codec] = [
    CastCodec("bf16", "bfloat16"),
    CastCodec("float32", "float32"),
    BlockCodec("fp8_1x128", "e4m3fn"),
    BlockCodec("fp8_1x128_ue8m0", "e4m3fn", scale="ue8m0"),
    BlockCodec("e5m2_1x128", "e5m2"),
    BlockCodec("e5m6_1x128_ue8m0", "e5m6", scale="ue8m0"),
    LogFMTCodec("logfmt8", 8),
    LogFMTCodec("logfmt10", 10),
]
for _codec in _catalogue:
    codecs.register(_codec.name, _codec)
