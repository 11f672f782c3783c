"""LogFMT codecs: logarithmic codes in tiles, each with its own grid."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from lowprec import logfmt
from lowprec._arrays import Array, Floats, repeat_tiles
from lowprec._checks import MAX_TILE, check_choice, check_int
from lowprec._fpenv import with_default_fpenv
from lowprec._values import Value, normalize_fields
from lowprec.cast.casts import round_to
from lowprec.logfmt import deepep

from .wire import DecodeError, EncodedTensor, Shape, as_bytes, checked_shape, checked_values, num_rows


class _Logarithmic(Value):
    """Base class of both codecs, whose payload has methods to decode and to pack itself."""

    def encode(self, x: Array) -> EncodedTensor:
        raise AssertionError("subclasses define it")

    def decode(self, wire: EncodedTensor) -> Floats:
        """Return the decoded values as float32; the receiver of a combine weights and adds them."""
        values: Floats = wire.payload.decode()
        return values

    def round_trip(self, x: Array) -> Floats:
        """Return the decoded values of `x`."""
        return self.decode(self.encode(x))

    def to_bytes(self, wire: EncodedTensor) -> bytes:
        """Return the rows one after another, as `LogFMT.pack` and `DeepEPMessage.pack` write them."""
        packed: bytes = wire.payload.pack().tobytes()
        return packed


@dataclass(frozen=True, eq=False, repr=False)
class LogFMTCodec(_Logarithmic):
    """LogFMT tiles as the paper defines them (`lowprec.logfmt`).

    Parameters
    ----------
    name : str
        Name in the catalogue.
    bits : int
        Bits per value, sign included.
    tile : int
        Number of values of a row that share a grid.
    rounding : {"linear", "log", "logmean"}
        Thresholds between grid values.
    clamp_octaves : int
        Largest range of a tile.
    description : str
        Description and use.

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    name: str = field(compare=False)
    bits: int
    tile: int = 128
    rounding: Literal["linear", "log", "logmean"] = "linear"
    clamp_octaves: int = 32
    description: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"codec {self.name}"
        for name, low, high in (("bits", 3, 16), ("tile", 1, MAX_TILE), ("clamp_octaves", 1, 32)):
            check_int(caller, name, getattr(self, name), low, high)
        check_choice(caller, "rounding", self.rounding, ("linear", "log", "logmean"))

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value in whole tiles, each with a pair of bfloat16 numbers."""
        return 8 * self.row_bytes(self.tile) / self.tile

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes sent for a row of bfloat16 numbers; a tile of other numbers takes 4 bytes more."""
        tiles, rest = divmod(columns, self.tile)
        return (tiles + (rest > 0)) * 4 + tiles * -(-self.tile * self.bits // 8) + -(-rest * self.bits // 8)

    @with_default_fpenv
    def encode(self, x: Array) -> EncodedTensor:
        """Return codes and each tile's (amin, amax) pair; a tile with NaN or infinity decodes to NaN."""
        values = checked_values(self.name, x)
        content = logfmt.encode(
            values, self.bits, self.tile, rounding=self.rounding, clamp_octaves=self.clamp_octaves, nonfinite="poison"
        )
        return EncodedTensor(self, content, values.shape, content.nbytes)

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse (amin, amax) pairs and codes; the number of bytes determines whether the pairs are bfloat16 or float32.

        Raises
        ------
        DecodeError
            If there are too few or too many bytes, a tile's pair is invalid, or padding bits are not zero.
        """
        shape = checked_shape(self.name, shape)
        rows, columns = num_rows(shape), shape[-1]
        narrow = rows * self.row_bytes(columns)
        wide = narrow + rows * -(-columns // self.tile) * 4
        size = len(data) if hasattr(data, "__len__") else -1
        raw = as_bytes(self.name, data, wide if size == wide else narrow, shape)
        if not raw.size:
            return self.encode(np.empty(shape, np.float32))
        try:
            with np.errstate(invalid="ignore"):  # signalling NaNs in the pairs
                content = logfmt.unpack(
                    raw.reshape(*shape[:-1], raw.size // rows), columns, self.bits, self.tile,
                    range_bits=64 if size == wide else 32, clamp_octaves=self.clamp_octaves,
                )  # fmt: skip
        except ValueError as error:
            raise DecodeError(f"codec {self.name}: {error}") from None
        if content.nbytes != raw.size or content.pack().tobytes() != raw.tobytes():
            raise DecodeError(
                f"codec {self.name}: bytes must be as encoded, got another pattern of NaN "
                "or wide ranges where narrow ones suffice"
            )
        return EncodedTensor(self, content, shape, content.nbytes)

    def max_magnitudes(self, wire: EncodedTensor) -> Floats:
        """Return for each value the largest magnitude of its tile, in the shape of the values."""
        return np.ascontiguousarray(repeat_tiles(wire.payload.amax, self.tile, wire.shape[-1]))


@dataclass(frozen=True, eq=False, repr=False)
class DeepEPCodec(_Logarithmic):
    """LogFMT-10 as DeepEP's low-latency combine sends it (`lowprec.logfmt.deepep`), its hazards included.

    Values are rounded to bfloat16 first; the length of rows is a multiple of 512. A chunk of 1024 (or 512) with a tile
    that reaches 1 or is constant is sent as bfloat16, so the length of messages varies. In an encoded chunk, NaN
    becomes 0.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    description : str
        Description and use.
    """

    name: str = field(compare=False)
    description: str = field(default="user-defined", compare=False)

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value if no chunk falls back to bfloat16."""
        return 10.25

    @property
    def columns_multiple(self) -> int:
        """Number that must divide the length of a row."""
        return 512

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes of a row without fallback; a chunk of 1024 in bfloat16 takes 768 bytes more."""
        self._checked((columns,))
        return columns * 10 // 8 + columns // 128 * 4

    def _checked(self, shape: Shape) -> None:
        if shape[-1] % 512:
            raise ValueError(
                f"codec {self.name}: shape must have a multiple of 512 values along its last axis, got {shape}"
            )

    @with_default_fpenv
    def encode(self, x: Array) -> EncodedTensor:
        """Return the messages of rows."""
        values = checked_values(self.name, x)
        self._checked(values.shape)
        content: Any = logfmt.encode(round_to(values, "bfloat16").astype(np.float32), 10, variant="deepep")
        return EncodedTensor(self, content, values.shape, content.nbytes)

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse messages; amin and amax of their tiles determine which chunks are encoded.

        Raises
        ------
        DecodeError
            If the bytes end within a row, there are more or fewer rows than the shape has, or the length of its rows is
            not a multiple of 512.
        """
        shape = checked_shape(self.name, shape)
        try:
            self._checked(shape)
        except ValueError as error:
            raise DecodeError(str(error)) from None
        raw = as_bytes(self.name, data, None, shape)
        if not raw.size and 0 in shape:
            return self.encode(np.empty(shape, np.float32))
        try:
            with np.errstate(invalid="ignore"):
                content = deepep.unpack(raw, shape[-1])
        except ValueError as error:
            raise DecodeError(f"codec {self.name}: {error}") from None
        if len(content.codes) != num_rows(shape):
            raise DecodeError(
                f"codec {self.name}: data must have {num_rows(shape)} rows for shape {shape}, got {len(content.codes)}"
            )
        ends = (*shape[:-1], shape[-1] // 128)
        content = replace(content, codes=content.codes.reshape(shape), amin=content.amin.reshape(ends),
                          amax=content.amax.reshape(ends))  # fmt: skip
        return EncodedTensor(self, content, shape, content.nbytes)
