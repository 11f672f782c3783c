"""Codecs of pages: in each page of a KV cache, the values of all tokens come first, then all scales."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lowprec._arrays import Array, Floats
from lowprec._checks import check_int
from lowprec._fpenv import with_default_fpenv
from lowprec._values import Value, normalize_fields

from .split import SplitCodec
from .wire import Bytes, DecodeError, EncodedTensor, Shape, as_bytes, checked_shape, checked_values, num_rows


@dataclass(frozen=True, eq=False, repr=False)
class PagedCodec(Value):
    """Codec of pages of tokens. A page has the values of all its tokens, then their scales, then zeros.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    token : SplitCodec
        Codec of a token; its bytes begin with the scales.
    scale_bytes : int
        Number of bytes of a token's scales.
    scale_stride : int
        Number of bytes from the scales of a token to those of the next; bytes after the scales are zero.
    tokens : int
        Number of tokens per page.
    alignment : int
        Alignment of a page in bytes: pages are padded with zeros to a multiple of it.
    description : str
        Description and use.

    Raises
    ------
    ValueError
        If a size is out of range.

    Examples
    --------
    >>> import lowprec as lp
    >>> c = lp.codecs["flashmla_model1"]
    >>> c.columns_multiple // c.tokens, c.row_bytes(c.columns_multiple), c.tokens * (448 + 128 + 8)
    (512, 37440, 37376)
    """

    name: str = field(compare=False)
    token: SplitCodec
    scale_bytes: int
    scale_stride: int = 8
    tokens: int = 64
    alignment: int = 576
    description: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"codec {self.name}"
        if not isinstance(self.token, SplitCodec):
            raise TypeError(f"{caller}: token must be a SplitCodec, got {self.token!r}")
        check_int(caller, "scale_bytes", self.scale_bytes, 1, self._token_bytes)
        check_int(caller, "scale_stride", self.scale_stride, self.scale_bytes)
        check_int(caller, "tokens", self.tokens, 1)
        check_int(caller, "alignment", self.alignment, 1)

    @property
    def _token_bytes(self) -> int:
        return self.token.row_bytes(self.token.columns_multiple)

    @property
    def _page_bytes(self) -> int:
        used = self.tokens * (self._token_bytes - self.scale_bytes + self.scale_stride)
        return -(-used // self.alignment) * self.alignment

    @property
    def columns_multiple(self) -> int:
        """Number of values in a page: rows hold whole pages."""
        return self.tokens * self.token.columns_multiple

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value of a page."""
        return 8 * self._page_bytes / self.columns_multiple

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes sent for a row."""
        if columns % self.columns_multiple:
            raise ValueError(f"codec {self.name}: columns must be a multiple of {self.columns_multiple}, got {columns}")
        return columns // self.columns_multiple * self._page_bytes

    def _wire(self, content: EncodedTensor, shape: Shape) -> EncodedTensor:
        return EncodedTensor(self, content, shape, num_rows(shape) * self.row_bytes(shape[-1]))

    @with_default_fpenv
    def encode(self, x: Array) -> EncodedTensor:
        """Return the encoded tokens."""
        values = checked_values(self.name, x)
        self.row_bytes(values.shape[-1])
        return self._wire(self.token.encode(values), values.shape)

    @with_default_fpenv
    def decode(self, wire: EncodedTensor) -> Floats:
        """Return the decoded values."""
        values: Floats = wire.payload.decode()
        return values

    def round_trip(self, x: Array) -> Floats:
        """Return the decoded values of `x`."""
        return self.decode(self.encode(x))

    def to_bytes(self, wire: EncodedTensor) -> bytes:
        """Return the bytes of every page."""
        pages = wire.nbytes // self._page_bytes
        tokens = np.frombuffer(wire.payload.to_bytes(), np.uint8).reshape(pages, self.tokens, self._token_bytes)
        out = np.zeros((pages, self._page_bytes), np.uint8)
        values, scales = self._parts(out)
        values[...], scales[..., : self.scale_bytes] = np.split(tokens, [self.scale_bytes], axis=2)[::-1]
        return out.tobytes()

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse the bytes of `to_bytes`.

        Raises
        ------
        DecodeError
            If there are too few or too many bytes, those of a token are malformed, bytes between scales or after them
            are not zero, or rows of the shape are not whole pages.
        """
        shape = checked_shape(self.name, shape)
        try:
            length = num_rows(shape) * self.row_bytes(shape[-1])
        except ValueError as error:
            raise DecodeError(str(error)) from None
        raw = as_bytes(self.name, data, length, shape).reshape(-1, self._page_bytes)
        values, scales = self._parts(raw)
        used = values.shape[1] * values.shape[2] + scales.shape[1] * scales.shape[2]
        padding = max(int(part.max(initial=0)) for part in (raw[:, used:], scales[..., self.scale_bytes :]))
        if padding:
            raise DecodeError(f"codec {self.name}: bytes after scales must be 0, got {padding:#x}")
        tokens = np.concatenate([scales[..., : self.scale_bytes], values], axis=2)
        return self._wire(self.token.from_bytes(tokens.tobytes(), shape), shape)

    def _parts(self, pages: Bytes) -> tuple[Bytes, Bytes]:
        """Return views of the values [pages, tokens, bytes] and of the scales [pages, tokens, stride]."""
        width = self._token_bytes - self.scale_bytes
        values, rest = pages[:, : self.tokens * width], pages[:, self.tokens * width :]
        scales = rest[:, : self.tokens * self.scale_stride]
        return values.reshape(-1, self.tokens, width), scales.reshape(-1, self.tokens, self.scale_stride)
