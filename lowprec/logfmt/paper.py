"""LogFMT as the paper defines it, with what the paper leaves open settled so that every bit is defined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from lowprec import _threads
from lowprec._ieee import standard
from lowprec.cast import casts as cast
from lowprec.kernels.logfmt import encode as logfmt_encode
from lowprec.kernels.logfmt import grid as kernels
from lowprec.kernels.logfmt import stochastic as logfmt_stochastic

from .arrays import Array, Floats, as_float32, as_rows, from_rows, one_of, whole

Rounding = Literal["linear", "log", "logmean", "stochastic"]
Meta = Literal["bf16", "fp32"]

_GRAIN = 512  # tiles per piece of work
_RULES = {
    "linear": logfmt_encode.LINEAR,
    "log": logfmt_encode.LOG,
    "logmean": logfmt_encode.LOGMEAN,
    "stochastic": logfmt_encode.STOCHASTIC,
}
TILES_OF_A_CHUNK = 8  # that are sent as bfloat16 together, if one of them is not fit for LogFMT


@dataclass(frozen=True, eq=False)
class LogFMT:
    """An array in LogFMT.

    Attributes
    ----------
    codes : uint8 (bits <= 8) or uint16 array, the shape of the values
        Sign in bit `bits` - 1, magnitude code below it. With a fallback always uint16, and in a chunk that fell back
        the bfloat16 numbers' own codes.
    amin, amax : float32 arrays, the shape of the values with `axis` counting tiles
        Smallest non-zero and largest magnitude of each tile; 0 and 0 for a tile of zeros, amax NaN for a poisoned one.
    bits : int
        Bits per value, sign included.
    tile : int
        Values per tile.
    octaves : int
        Largest distance of the two ends: the lower one is at least amax * 2^-octaves.
    axis : int
        Axis that tiles run along.
    meta : {None, "bf16", "fp32"}
        What the ends are sent as; None: bfloat16 if every one is such a number.
    fallback : {None, "bf16"}
        Whether chunks of 8 tiles may have fallen back to bfloat16.
    """

    codes: Array = field(repr=False)
    amin: Floats = field(repr=False)
    amax: Floats = field(repr=False)
    bits: int
    tile: int = 128
    octaves: int = 32
    axis: int = -1
    meta: Meta | None = None
    fallback: Literal["bf16"] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.codes.shape

    @property
    def meta_bits(self) -> int:
        """Bits of a tile's (amin, amax) pair: 32 for bfloat16 numbers, 64 for float32."""
        if self.meta is not None:
            return 32 if self.meta == "bf16" else 64
        for ends in (self.amin, self.amax):
            if (np.ascontiguousarray(ends).view(np.uint32) & np.uint32(0xFFFF)).any():
                return 64
        return 32

    @property
    def cast(self) -> npt.NDArray[np.bool_]:
        """Which chunks of 8 tiles are in LogFMT: bool, the shape of `amax` with `axis` counting chunks.

        All without a fallback; with one, those whose tiles all have amax < 1 and amin < amax, which is what DeepEP
        asks of 1024 channels. The receiver knows it from the metadata.
        """
        amin, amax = as_rows(self.amin, self.axis), as_rows(self.amax, self.axis)
        fit = (amax < 1) & (amin < amax) if self.fallback else np.ones(amax.shape, bool)
        starts = np.arange(0, fit.shape[1], TILES_OF_A_CHUNK)
        chunks = np.logical_and.reduceat(fit, starts, axis=1) if starts.size else fit
        return from_rows(chunks, self.shape, self.axis % len(self.shape))

    @property
    def nbytes(self) -> int:
        """Length of `pack()`, or the sum of the lengths of its rows."""
        from .wire import packed_sizes

        return int(packed_sizes(self).sum())

    @property
    def bits_per_value(self) -> float:
        """Bits on the wire per value, metadata included."""
        return 8 * self.nbytes / max(1, self.codes.size)

    @standard
    def decode(self, out: Floats | None = None) -> Floats:
        """Return the values that the codes stand for.

        Parameters
        ----------
        out : float32 array, optional
            Where to put them: C-contiguous, of the same shape.

        Returns
        -------
        float32 array of `shape`
            The values.

        Raises
        ------
        ValueError
            If `out` does not fit, or a code has more than `bits` bits.
        """
        if out is not None and (out.shape != self.shape or out.dtype != np.float32 or not out.flags.c_contiguous):
            raise ValueError(
                f"logfmt: out is {out.dtype} {out.shape}; a C-contiguous float32 array {self.shape} is needed"
            )
        codes, amin, amax = (as_rows(array, self.axis) for array in (self.codes, self.amin, self.amax))
        direct = out is not None and self.axis in (-1, len(self.shape) - 1)
        rows = as_rows(out, -1) if out is not None and direct else np.empty(codes.shape, np.float32)
        fallen = self._fallen()
        if fallen is not None:
            words, codes = codes, np.where(fallen, codes.dtype.type(0), codes)
        if self.bits != 8 * codes.itemsize and codes.size and int(codes.max()) >> self.bits:
            raise ValueError(f"logfmt: code {codes.max()} is outside 0..{(1 << self.bits) - 1} ({self.bits} bits)")
        _threads.run_chunks(
            lambda start, stop: kernels.decode_tiles(
                codes.reshape(-1), amin.reshape(-1), amax.reshape(-1), codes.shape[1], self.bits, self.tile,
                self.octaves, rows.reshape(-1), start, stop,
            ),
            amin.size,
            _GRAIN,
        )  # fmt: skip
        if fallen is not None:
            rows[fallen] = cast.decode(words[fallen], "bfloat16")
        if out is not None and direct:
            return out
        values = from_rows(rows, self.shape, self.axis % len(self.shape))
        if out is None:
            return np.ascontiguousarray(values)
        out[...] = values
        return out

    def pack(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that go over the wire, row by row.

        A row is the (amin, amax) pairs of its tiles, little-endian bfloat16 or float32 by `meta_bits`, and then the
        tiles, each a little-endian stream of its codes from the least significant bit on, padded to whole bytes
        (16 * bits bytes for 128 values). A chunk that fell back is its bfloat16 numbers instead.

        Returns
        -------
        uint8 array [..., bytes of a row]
            Leading axes as the values', without the tiles' axis. With a fallback, where rows may differ in length: one
            dimension, row after row.
        """
        from .wire import pack

        return pack(self)

    def to_bytes(self) -> bytes:
        """Return a header that tells all of bits, tiles and shape, and then `pack()`: `from_bytes` needs no more."""
        from .header import to_bytes

        return to_bytes(self)

    def _fallen(self) -> npt.NDArray[np.bool_] | None:
        """Return which values [rows, columns] are bfloat16 numbers, or None if there are none."""
        if not self.fallback:
            return None
        cast_chunks = as_rows(self.cast, self.axis)
        columns = self.shape[self.axis]
        return np.repeat(~cast_chunks, TILES_OF_A_CHUNK * self.tile, axis=1)[:, :columns]


def encode_paper(
    x: npt.ArrayLike,
    bits: int,
    tile: int,
    *,
    axis: int,
    rounding: Rounding,
    clamp_octaves: int,
    meta: Meta | None,
    fallback: Literal["bf16"] | None,
    nonfinite: Literal["raise", "poison"],
    seed: int,
    offset: int,
) -> LogFMT:
    """Encode an array as `lowprec.logfmt.encode` says."""
    bits, tile, octaves = (
        whole("bits", bits, 3, 16),
        whole("tile", tile, 1),
        whole("clamp_octaves", clamp_octaves, 1, 32),
    )
    rule = _RULES[one_of("rounding", rounding, tuple(_RULES))]
    one_of("meta", meta, (None, "bf16", "fp32"))
    one_of("fallback", fallback, (None, "bf16"))
    one_of("nonfinite", nonfinite, ("raise", "poison"))
    seed, offset = whole("seed", seed, 0, 2**63 - 1), whole("offset", offset, 0, 2**62)
    values = as_float32(x)
    if not -values.ndim <= whole_axis(axis) < values.ndim:
        raise ValueError(
            f"logfmt: axis {axis!r}: the array has {values.ndim}, from {-values.ndim} to {values.ndim - 1}"
        )
    axis = whole_axis(axis) % values.ndim
    rows = as_rows(values, axis)
    tiles = -(-rows.shape[1] // tile)
    codes = np.empty(rows.shape, np.uint8 if bits <= 8 else np.uint16)
    amin, amax = (np.empty((len(rows), tiles), np.float32) for _ in range(2))
    flat, flat_codes, mins, maxs = (array.reshape(-1) for array in (rows, codes, amin, amax))
    bad: list[int] = []

    def piece(start: int, stop: int) -> None:
        if rule == logfmt_encode.STOCHASTIC:
            found = logfmt_stochastic.encode_tiles_stochastic(
                flat, rows.shape[1], bits, tile, octaves, meta == "bf16", seed, offset, flat_codes, mins, maxs,
                start, stop,
            )  # fmt: skip
        else:
            found = logfmt_encode.encode_tiles(
                flat, rows.shape[1], bits, tile, octaves, rule, meta == "bf16", flat_codes, mins, maxs, start, stop
            )
        if found >= 0:
            bad.append(found)

    _threads.run_chunks(piece, amin.size, _GRAIN)
    if bad:
        _refuse_or_poison(min(bad), rows, tile, amin, amax, nonfinite, meta)
    shape = values.shape
    result = LogFMT(
        from_rows(codes, shape, axis), from_rows(amin, shape, axis), from_rows(amax, shape, axis),
        bits, tile, octaves, axis if axis != values.ndim - 1 else -1, meta, fallback,
    )  # fmt: skip
    fallen = result._fallen()
    if fallen is None:
        return result
    wide = codes.astype(np.uint16)
    wide[fallen] = cast.encode(rows[fallen], "bfloat16")
    return LogFMT(from_rows(wide, shape, axis), *(getattr(result, name) for name in _AFTER_CODES))


_AFTER_CODES = ("amin", "amax", "bits", "tile", "octaves", "axis", "meta", "fallback")


def whole_axis(axis: int) -> int:
    """Return an axis number.

    Raises
    ------
    TypeError
        If it is no whole number.
    """
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise TypeError(f"logfmt: axis {axis!r}: a whole number is needed")
    return int(axis)


def _refuse_or_poison(
    first: int, rows: Floats, tile: int, amin: Floats, amax: Floats, nonfinite: str, meta: Meta | None
) -> None:
    """Raise for a tile that is not finite, unless it is to be poisoned; bfloat16 ends that overflowed always raise."""
    overflowed = np.isinf(amax)
    if overflowed.any():
        row, part = (int(i) for i in np.argwhere(overflowed)[0])
        largest = np.abs(rows[row, part * tile : (part + 1) * tile]).max()
        raise ValueError(
            f"logfmt: {largest} in row {row}, tile {part}: no bfloat16 number is as large; use meta='fp32'"
        )
    if nonfinite == "raise":
        row, part = divmod(first, amax.shape[1])
        ends = rows[row, part * tile : (part + 1) * tile]
        value = ends[~np.isfinite(ends)][0]
        raise ValueError(f"logfmt: {value} in row {row}, tile {part}; use nonfinite='poison' to let it through as NaN")
