"""The protocol of codecs, their encoded tensors, and the packing of rows into bytes.

The bytes of an array are those of its rows, in order, after a prefix that some formats have. A row is the scales
(or grid limits) of its tiles and then its codes, least significant bit first, padded with zero bits to a whole byte.
The receiver knows the shape, as an expert knows the width of a token; only the values are sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lowprec._arrays import Array, Floats, as_real
from lowprec._checks import brief_repr, check_int
from lowprec._values import BitwiseEq
from lowprec.cast.packing import pack, packed_size, unpack

Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]


@runtime_checkable
class Codec(Protocol):
    """An encoder and decoder of values; rows are tokens, and tiles run along the rows.

    Attributes
    ----------
    name : str
        Name in the catalogue.
    """

    @property
    def name(self) -> str:
        """Name in the catalogue."""

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per bfloat16 value of a row of whole tiles, scales included."""

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes sent for a row of `columns` values."""

    def encode(self, x: Array) -> EncodedTensor:
        """Encode values [..., columns]."""

    def decode(self, wire: EncodedTensor) -> Floats:
        """Return the decoded values, float32."""

    def round_trip(self, x: Array) -> Floats:
        """Return ``decode(encode(x))``, a new array."""

    def to_bytes(self, wire: EncodedTensor) -> bytes:
        """Return the bytes to send, whose number is `nbytes`."""

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse the bytes of `to_bytes` for values of a shape; malformed bytes raise a ValueError."""


@dataclass(frozen=True, eq=False)
class EncodedTensor(BitwiseEq):
    """An encoded tensor, ready to send.

    Attributes
    ----------
    codec : Codec
        Codec that encoded the tensor.
    payload : object
        Codes and scales, in the codec's representation.
    shape : tuple of int
        Shape of the values.
    nbytes : int
        Number of bytes to send.
    """

    codec: Codec
    payload: Any = field(repr=False)
    shape: Shape
    nbytes: int

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value of this tensor."""
        return 8.0 * self.nbytes / max(1, math.prod(self.shape))

    def to_bytes(self) -> bytes:
        """Return the bytes to send."""
        return self.codec.to_bytes(self)

    def decode(self) -> Floats:
        """Return the decoded values."""
        return self.codec.decode(self)


class DecodeError(ValueError):
    """Error for bytes that no encoder writes: a wrong number of bytes, invalid scales or invalid padding."""


def checked_values(name: str, x: Any) -> Array:
    """Return an array of real numbers with at least one axis.

    Raises
    ------
    TypeError
        If `x` does not hold real numbers.
    ValueError
        If `x` is a single number.
    """
    array = as_real(f"codec {name}", x)
    if array.ndim < 1:
        raise ValueError(f"codec {name}: values must have one axis or more, got a single number")
    return array


def checked_shape(name: str, shape: Any) -> Shape:
    """Return a shape as a tuple of integers.

    Raises
    ------
    DecodeError
        If `shape` is not a sequence of integers >= 0, or is too large for an array.
    """
    try:
        sizes = tuple(check_int("", "size", size, 0) for size in shape)
    except (TypeError, ValueError):
        sizes = ()
    if not sizes:
        raise DecodeError(f"codec {name}: shape must be one or more integers >= 0, got {brief_repr(shape)}")
    if len(sizes) > 64 or math.prod(max(1, size) for size in sizes) >= 1 << 56:  # NumPy too does not count zeros
        raise DecodeError(
            f"codec {name}: shape must have at most 64 axes and fewer than 2^56 values, got {brief_repr(shape)}"
        )
    return sizes


def num_rows(shape: Shape) -> int:
    """Return the number of rows of an array with the given shape."""
    return math.prod(shape[:-1])


def as_bytes(name: str, data: Any, length: int | None, shape: Shape) -> Bytes:
    """Return `data` as uint8 after checking its length, unless `length` is None.

    Raises
    ------
    DecodeError
        If `data` has another length.
    TypeError
        If `data` is not a bytes-like object.
    """
    try:
        raw = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray, memoryview)) else np.asarray(data)
    except ValueError:  # raised for an empty buffer
        raw = np.empty(0, np.uint8)
    if raw.dtype != np.uint8:
        raise TypeError(f"codec {name}: data must be bytes, got {type(data).__name__} of {raw.dtype}")
    if length is not None and raw.size != length:
        raise DecodeError(f"codec {name}: data must have {length} bytes for shape {shape}, got {raw.size}")
    return raw.reshape(-1)


def pack_rows(codes: Array, bits: int) -> Bytes:
    """Pack codes [rows, columns] row by row, each padded to whole bytes: [rows, bytes]."""
    rows, columns = codes.shape
    per_row = packed_size(columns, bits)
    if bits * columns % 8 == 0:
        return pack(codes, bits).reshape(rows, per_row)
    padded = np.zeros((rows, -(-columns // 8) * 8), codes.dtype)  # eight codes fill whole bytes
    padded[:, :columns] = codes
    return pack(padded, bits).reshape(rows, packed_size(padded.shape[1], bits))[:, :per_row]


def unpack_rows(name: str, packed: Bytes, bits: int, columns: int) -> Array:
    """Undo `pack_rows`.

    Raises
    ------
    DecodeError
        If the bits after a row's last code are not zero.
    """
    rows = len(packed)
    if bits * columns % 8 == 0:
        return unpack(packed, bits, rows * columns).reshape(rows, columns)
    last = packed[:, -1] >> np.uint8(bits * columns % 8)
    if last.any():
        raise DecodeError(f"codec {name}: row {int(last.argmax())}: bits after its last code are not zero")
    wide = -(-columns // 8) * 8
    padded = np.zeros((rows, packed_size(wide, bits)), np.uint8)
    padded[:, : packed.shape[1]] = packed
    codes = unpack(padded, bits, rows * wide).reshape(rows, wide)
    return np.ascontiguousarray(codes[:, :columns])
