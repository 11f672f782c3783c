"""Codecs that encode parts of a row differently, such as a KV cache whose RoPE dimensions stay in BF16."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from lowprec._arrays import Array, Floats
from lowprec._checks import check_int
from lowprec._fpenv import with_default_fpenv
from lowprec._values import Value, normalize_fields

from .wire import Codec, DecodeError, EncodedTensor, Shape, as_bytes, checked_shape, checked_values, num_rows


@dataclass(frozen=True, eq=False, repr=False)
class SplitCodec(Value):
    """Rows of one or more tokens, each cut into parts with different codecs.

    The bytes of a token are those of its parts, in order.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    parts : tuple of (int, Codec)
        Width and codec of each part, in order.
    description : str
        Description and use.

    Raises
    ------
    ValueError
        If `parts` is empty, or a part's codec sends bytes before the first row.

    Examples
    --------
    >>> import lowprec as lp
    >>> c = lp.codecs["dsv4_kv_cache"]
    >>> c.columns_multiple, c.row_bytes(512), c.bits_per_value
    (512, 583, 9.109375)
    """

    name: str = field(compare=False)
    parts: tuple[tuple[int, Codec], ...]
    description: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        object.__setattr__(self, "parts", tuple((width, codec) for width, codec in self.parts))
        if not self.parts:
            raise ValueError(
                f"codec {self.name}: parts must be one or more pairs of width and codec, got {self.parts!r}"
            )
        for width, codec in self.parts:
            check_int(f"codec {self.name}", "width", width, 1)
            if getattr(codec, "prefix_bytes", 0) or width % getattr(codec, "columns_multiple", 1):
                raise ValueError(
                    f"codec {self.name}: parts must be codecs without tensor scale, of a width that they take, got "
                    f"{codec.name!r} for {width} values"
                )

    @property
    def columns_multiple(self) -> int:
        """Number of values in a token: rows hold whole tokens."""
        return sum(width for width, _ in self.parts)

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value of a token."""
        return 8 * self.row_bytes(self.columns_multiple) / self.columns_multiple

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes sent for a row."""
        return self._tokens(columns) * sum(codec.row_bytes(width) for width, codec in self.parts)

    def _tokens(self, columns: int) -> int:
        if columns % self.columns_multiple:
            raise ValueError(f"codec {self.name}: columns must be a multiple of {self.columns_multiple}, got {columns}")
        return columns // self.columns_multiple

    def _split(self, shape: Shape) -> int:
        return num_rows(shape) * self._tokens(shape[-1])

    def _cuts(self) -> list[int]:
        return list(itertools.accumulate(width for width, _ in self.parts))[:-1]

    def _wire(self, content: tuple[EncodedTensor, ...], shape: Shape) -> EncodedTensor:
        return EncodedTensor(self, content, shape, num_rows(shape) * self.row_bytes(shape[-1]))

    @with_default_fpenv
    def encode(self, x: Array) -> EncodedTensor:
        """Return the encoded parts."""
        values = checked_values(self.name, x)
        tokens = values.reshape(self._split(values.shape), self.columns_multiple)
        pieces = np.split(tokens, self._cuts(), axis=1)
        sent = (codec.encode(np.ascontiguousarray(p)) for p, (_, codec) in zip(pieces, self.parts, strict=True))
        return self._wire(tuple(sent), values.shape)

    @with_default_fpenv
    def decode(self, wire: EncodedTensor) -> Floats:
        """Return the decoded values."""
        return np.concatenate([part.decode() for part in wire.payload], axis=1).reshape(wire.shape)

    def round_trip(self, x: Array) -> Floats:
        """Return the decoded values of `x`."""
        return self.decode(self.encode(x))

    def to_bytes(self, wire: EncodedTensor) -> bytes:
        """Return the bytes of every token, part by part."""
        count = self._split(wire.shape)
        parts = [np.frombuffer(part.to_bytes(), np.uint8).reshape(count, -1) for part in wire.payload if count]
        return np.concatenate(parts, axis=1).tobytes() if parts else b""

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse the bytes of `to_bytes`.

        Raises
        ------
        DecodeError
            If there are too few or too many bytes, those of a part are malformed, or rows of the shape are not whole
            tokens.
        """
        shape = checked_shape(self.name, shape)
        try:
            count = self._split(shape)
        except ValueError as error:
            raise DecodeError(str(error)) from None
        sizes = [codec.row_bytes(width) for width, codec in self.parts]
        raw = as_bytes(self.name, data, count * sum(sizes), shape).reshape(count, sum(sizes))
        pieces = np.split(raw, np.cumsum(sizes)[:-1].tolist(), axis=1)
        read = (
            codec.from_bytes(p.tobytes(), (count, width))
            for p, (width, codec) in zip(pieces, self.parts, strict=True)
        )  # fmt: skip
        return self._wire(tuple(read), shape)
