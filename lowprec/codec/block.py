"""Codecs of block formats: narrow codes in tiles that share a scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from lowprec._arrays import Array, Floats, as_float32, repeat_tiles
from lowprec._checks import MAX_TILE, check_int
from lowprec._fpenv import with_default_fpenv
from lowprec._values import Value, normalize_fields
from lowprec.cast.casts import decode, encode, round_to
from lowprec.format.catalogue import Format, formats
from lowprec.scaling.quantize import Granularity, Quantized, quantize
from lowprec.scaling.quantizer import Quantizer, quantizers
from lowprec.scaling.rules import FLOAT32

from .wire import (
    Bytes,
    DecodeError,
    EncodedTensor,
    Shape,
    as_bytes,
    checked_shape,
    checked_values,
    num_rows,
    pack_rows,
    unpack_rows,
)


@dataclass(frozen=True, eq=False, repr=False)
class BlockCodec(Value):
    """Tiles of codes of a narrow format that share a scale.

    Parameters
    ----------
    name : str
        Name in the catalogue.
    format : Format or str
        Element format.
    tile : int
        Number of values of a row that share a scale.
    scale_format : Format or str
        Format in which a scale is sent.
    quantizer : Quantizer or str, optional
        Quantizer that computes the scales; by default ``amax / max``, rounded up for powers of two. Its scale format
        may be narrower: powers of two that are sent as float32.
    tensor_scale : bool
        Whether the quantizer has a tensor scale too (NVFP4's does): 4 bytes before the first row, which
        `bits_per_value` does not count.
    scales_last : bool
        Whether a row's scales follow its codes.
    description : str
        Description and use.

    Raises
    ------
    ValueError
        If a field is out of range, or the format or quantizer is unknown.
    """

    name: str = field(compare=False)
    format: Format
    tile: int = 128
    scale_format: Format = FLOAT32
    quantizer: Quantizer | None = None
    tensor_scale: bool = False
    scales_last: bool = False
    description: str = field(default="user-defined", compare=False)

    def __post_init__(self) -> None:
        normalize_fields(self)
        object.__setattr__(self, "format", formats.get(self.format))
        object.__setattr__(self, "scale_format", formats.get(self.scale_format))
        if self.quantizer is not None:
            object.__setattr__(self, "quantizer", quantizers.get(self.quantizer))
        caller = f"codec {self.name}"
        check_int(caller, "tile", self.tile, 1, MAX_TILE)
        made = self._resolved
        if made.has_row_scales:
            raise ValueError(f"{caller}: quantizer must have one tensor scale or none, got {made} with a scale per row")
        fits = made.scale_format == self.scale_format or (
            self.scale_format == FLOAT32 and self.scale_format.can_represent_all(made.scale_format)
        )
        if not fits or made.has_tensor_scale != self.tensor_scale:
            raise ValueError(
                f"{caller}: scale_format and tensor_scale must be those of its quantizer, {made.scale_format} and "
                f"{made.has_tensor_scale}, got {self.scale_format} and {self.tensor_scale}"
            )

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value in whole tiles."""
        return self.format.bits + self.scale_format.bits / self.tile

    @property
    def prefix_bytes(self) -> int:
        """Number of bytes before the first row."""
        return 4 if self.tensor_scale else 0

    def row_bytes(self, columns: int) -> int:
        """Return the number of bytes sent for a row: a scale for each tile, and the codes."""
        return self._scale_bytes(columns) + -(-columns * self.format.bits // 8)

    def _scale_bytes(self, columns: int) -> int:
        return -(-columns // self.tile) * self.scale_format.bits // 8

    def _wire(self, content: Quantized) -> EncodedTensor:
        top = content.tensor_scale
        if (top is not None) != self.tensor_scale or isinstance(top, np.ndarray):
            raise ValueError(
                f"codec {self.name}: quantizer must have one tensor scale with tensor_scale=True, else none, "
                f"got {content!r} with tensor_scale={self.tensor_scale}"
            )
        shape = content.shape
        return EncodedTensor(self, content, shape, self.prefix_bytes + num_rows(shape) * self.row_bytes(shape[-1]))

    @with_default_fpenv
    def encode(self, x: Array) -> EncodedTensor:
        """Return codes and scales; a tile with NaN or infinity decodes to NaN."""
        values = checked_values(self.name, x)
        if values.size == 0:
            blocks = Granularity.parse(f"1x{self.tile}")
            scale = np.ones(blocks.scale_shape((num_rows(values.shape), values.shape[-1])), np.float32)
            f = self.format
            one = np.float32(1) if self.tensor_scale else None
            return self._wire(
                Quantized(
                    np.empty(values.shape, f.code_dtype), scale, f, blocks, self._resolved.scale_format, one,
                    self._resolved,
                )
            )  # fmt: skip
        if self.quantizer is None:
            return self._wire(quantize(values, self._resolved))
        return self._wire(self._quantize_finite(values))

    @property
    def _resolved(self) -> Quantizer:
        """The quantizer, ``amax / max`` by default, with this codec's format and tiles."""
        own = Quantizer(scale_format=self.scale_format) if self.quantizer is None else self.quantizer
        return replace(own, format=self.format, granularity=Granularity(1, self.tile))

    def _quantize_finite(self, values: Array) -> Quantized:
        """Quantize with any quantizer; a tile with NaN or infinity decodes to NaN."""
        x = as_float32(f"codec {self.name}", values)
        finite = np.isfinite(x)
        if finite.all():
            return quantize(x, self._resolved)
        rows, columns = num_rows(x.shape), x.shape[-1]
        bad = np.logical_or.reduceat(~finite.reshape(rows, columns), np.arange(0, columns, self.tile), axis=1)
        spoilt = repeat_tiles(bad, self.tile, columns).reshape(x.shape)
        q = quantize(np.where(spoilt, np.float32(0), x), self._resolved)
        q.scale[bad] = np.nan
        return q

    @with_default_fpenv
    def decode(self, wire: EncodedTensor) -> Floats:
        """Return the decoded values: scales times the values of the codes."""
        values: Floats = wire.payload.dequantize()
        return values

    @with_default_fpenv
    def round_trip(self, x: Array) -> Floats:
        """Return the decoded values of `x`."""
        return self.decode(self.encode(x))

    def to_bytes(self, wire: EncodedTensor) -> bytes:
        """Return the tensor scale if there is one, and for each row its scales and its codes."""
        q: Quantized = wire.payload
        rows, columns = num_rows(wire.shape), wire.shape[-1]
        scales = encode(q.scale, self.scale_format)
        little = np.ascontiguousarray(scales.astype(scales.dtype.newbyteorder("<"))).view(np.uint8)
        codes = pack_rows(q.codes.reshape(rows, columns), q.format.bits)
        parts = [little.reshape(rows, self._scale_bytes(columns)), codes]
        body = np.concatenate(parts[::-1] if self.scales_last else parts, axis=1).tobytes()
        if not self.tensor_scale:
            return body
        assert q.tensor_scale is not None
        return np.asarray(q.tensor_scale, "<f4").tobytes() + body

    def from_bytes(self, data: bytes, shape: Shape) -> EncodedTensor:
        """Parse scales and codes.

        Raises
        ------
        DecodeError
            If there are too few or too many bytes, a scale is negative or infinite, a code is not finite where its
            scale is, or padding bits are not zero.
        """
        shape, f = checked_shape(self.name, shape), self.format
        rows, columns = num_rows(shape), shape[-1]
        per_row, scale_bytes = self.row_bytes(columns), self._scale_bytes(columns)
        raw = as_bytes(self.name, data, self.prefix_bytes + rows * per_row, shape)
        top = self._read_tensor_scale(raw)
        body = raw[self.prefix_bytes :].reshape(rows, per_row)
        parts = np.split(body, [per_row - scale_bytes if self.scales_last else scale_bytes], axis=1)
        packed, scales = parts if self.scales_last else parts[::-1]
        scale = self._read_scales(np.ascontiguousarray(scales))
        codes = unpack_rows(self.name, packed, f.bits, columns)
        bad = ~np.isfinite(decode(codes, f)) & np.isfinite(repeat_tiles(scale, self.tile, columns))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise DecodeError(
                f"codec {self.name}: row {row}, value {column}: code {codes[row, column]:#x} is not finite"
            )
        blocks = Granularity.parse(f"1x{self.tile}")
        made = self._resolved
        return self._wire(Quantized(codes.reshape(shape), scale, f, blocks, made.scale_format, top, made))

    def _read_tensor_scale(self, raw: Bytes) -> np.float32 | None:
        if not self.tensor_scale:
            return None
        top = np.float32(np.frombuffer(raw[:4].tobytes(), "<f4")[0])
        if np.signbit(top) or np.isinf(top):
            raise DecodeError(f"codec {self.name}: tensor scale must be finite and >= 0, or NaN, got {top}")
        return top

    def _read_scales(self, raw: Bytes) -> Floats:
        f = self.scale_format
        codes = raw.view(np.dtype(f.code_dtype).newbyteorder("<")).astype(f.code_dtype)
        scale: Floats = np.ascontiguousarray(decode(codes, f), dtype=np.float32)
        nan = np.isnan(scale)
        # Of the patterns of NaN only the one that encoders write is accepted.
        bad = np.where(nan, codes != encode(np.float32(np.nan), f), np.signbit(scale) | np.isinf(scale))
        own = self._resolved.scale_format
        if own != f:
            bad |= ~nan & (round_to(scale, own) != scale)
        if bad.any():
            row, tile = np.argwhere(bad)[0]
            raise DecodeError(
                f"codec {self.name}: row {row}, tile {tile}: scale must be finite, >= 0 and a number of {own}, or the "
                f"one NaN that is written, got {codes[row, tile]:#x} ({scale[row, tile]})"
            )
        return scale

    def max_magnitudes(self, wire: EncodedTensor) -> Floats:
        """Return the largest magnitude that each value can have, in the shape of the values."""
        q: Quantized = wire.payload
        top = np.float32(1) if q.tensor_scale is None else q.tensor_scale
        scales = repeat_tiles(q.scale, self.tile, wire.shape[-1])
        limits: Floats = (np.float32(q.format.max) * scales * top).reshape(wire.shape)
        return limits
