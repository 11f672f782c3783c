"""Codecs without scales: every value is cast to one format."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lowprec._arrays import Array, Floats
from lowprec._fpenv import with_default_fpenv
from lowprec._values import BitwiseEq, Value
from lowprec.cast.casts import decode, encode, round_to
from lowprec.format.catalogue import Format, formats

from .wire import (
    Codec,
    EncodedTensor,
    Shape,
    as_bytes,
    checked_shape,
    checked_values,
    num_rows,
    pack_rows,
    unpack_rows,
)


@dataclass(frozen=True, eq=False)
class CastPayload(BitwiseEq):
    """Payload of `CastCodec`: codes of one format, without scales."""

    codes: Array
    format: Format


@dataclass(frozen=True, eq=False, repr=False)
class CastCodec(Value):
    """Cast of each value to a format, without scales.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    format : Format or str
        Format of at most 16 bits, or of 32.
    description : str
        Description and use.

    Raises
    ------
    ValueError
        If the format is unknown, or its codes have 17 to 31 bits.
    """

    name: str = field(compare=False)
    format: Format
    description: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", formats.get(self.format))
        bits = self.format.bits
        if not (bits <= 16 or bits == 32):
            raise ValueError(
                f"CastCodec: format must have at most 16 bits, or 32, got {self.format.name!r} with {bits}"
            )

    @property
    def bits_per_value(self) -> float:
        """Bits sent per value."""
        return float(self.format.bits)

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes sent for a row."""
        return -(-columns * self.format.bits // 8)

    @with_default_fpenv
    def encode(self, x: Array) -> EncodedTensor:
        """Return the codes; infinities and NaN are preserved if the format has them."""
        values = checked_values(self.name, x)
        nbytes = num_rows(values.shape) * self.row_bytes(values.shape[-1])
        return EncodedTensor(self, CastPayload(encode(values, self.format), self.format), values.shape, nbytes)

    @with_default_fpenv
    def decode(self, wire: EncodedTensor) -> Floats:
        """Return the values of the codes."""
        values: Floats = decode(wire.payload.codes, wire.payload.format)
        return values

    @with_default_fpenv
    def round_trip(self, x: Array) -> Floats:
        """Return the values rounded to the format."""
        values = checked_values(self.name, x)
        return round_to(values, self.format) if values.dtype == np.float32 else self.decode(self.encode(values))

    def to_bytes(self, wire: EncodedTensor) -> bytes:
        """Return the codes, packed row by row."""
        codes, bits = wire.payload.codes, wire.payload.format.bits
        if bits == 32:
            return codes.astype("<u4").tobytes()  # type: ignore[no-any-return]
        return pack_rows(codes.reshape(num_rows(wire.shape), wire.shape[-1]), bits).tobytes()

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse codes; every bit pattern is valid.

        Raises
        ------
        DecodeError
            If there are too few or too many bytes, or padding bits are not zero.
        """
        shape, f = checked_shape(self.name, shape), self.format
        rows = num_rows(shape)
        nbytes = rows * self.row_bytes(shape[-1])
        raw = as_bytes(self.name, data, nbytes, shape)
        if f.bits == 32:
            codes = np.ascontiguousarray(raw).view("<u4").astype(np.uint32)
        else:
            codes = unpack_rows(self.name, raw.reshape(rows, self.row_bytes(shape[-1])), f.bits, shape[-1])
        return EncodedTensor(self, CastPayload(codes.reshape(shape).astype(f.code_dtype), f), shape, nbytes)

    def max_magnitudes(self, wire: EncodedTensor) -> Floats:
        """Return the largest finite magnitude of the format, as an array of shape ().

        Values that overflow become Inf or NaN; in a format without either, they saturate.
        """
        return np.asarray(wire.payload.format.max, np.float32)


def is_cast(codec: Codec, fmt: Format) -> bool:
    """Return whether a codec is a plain cast to the given format, regardless of names."""
    return isinstance(codec, CastCodec) and codec.format.same_codes(fmt)


def is_lossless_for(codec: Codec, fmt: Format) -> bool:
    """Return whether a codec is a plain cast that represents all values of a format."""
    return isinstance(codec, CastCodec) and codec.format.can_represent_all(fmt)
