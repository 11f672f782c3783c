"""LogFMT-nBit: blocks of a sign and an (n-1)-bit code on a logarithmic grid that spans the block's own range.

From "Insights into DeepSeek-V3" (arXiv 2505.09343, section 3.2), which proposes it for the combine step of expert
parallelism. A tile of 128 values has K = 2^(n-1) - 1 magnitudes: code 1 is the smallest non-zero magnitude of the
tile, code K the largest, those between stand at equal ratios, and code 0 is zero. The paper leaves several things
open; they are settled here so that every bit is defined:

* Both ends are exact. The decoder gets the tile's (amin, amax) pair; the lower end is max(amin, amax * 2^-32).
* Code k decodes to float32(low * (amax / low)^((k-1) / (K-1))), computed by a fixed sequence of float64 operations.
* Encoding rounds to nearest in *linear* space, as the paper asks: a magnitude takes the larger of two codes when it is
  at or above the exact mean of what they decode to; below half of code 1 it becomes 0. No logarithm decides anything.
* Zeros do not count for the smallest magnitude. The sign of zeros, and of what becomes zero, is kept.
* A tile of equal magnitudes takes code K. A short last tile is a tile of its own length.
* NaN and infinities are refused, or poison their tile (it decodes to NaN): never dropped silently.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowprec import _jit
from lowprec.kernels import logfmt as kernels

Floats = npt.NDArray[np.float32]

_GRAIN = 512  # tiles per piece of work


@dataclass(frozen=True, eq=False)
class LogFMT:
    """An array in LogFMT.

    Attributes
    ----------
    codes : uint8 (bits <= 8) or uint16 array, the shape of the values
        Sign in bit `bits` - 1, magnitude code below it.
    amin, amax : float32 arrays [..., tiles]
        Smallest non-zero and largest magnitude of each tile along the last axis; 0 and 0 for a tile of zeros, amax NaN
        for a poisoned one.
    bits : int
        Bits per value, sign included.
    tile : int
        Values per tile.
    octaves : int
        Largest distance of the two ends: the lower one is at least amax * 2^-octaves.
    """

    codes: npt.NDArray[Any] = field(repr=False)
    amin: Floats = field(repr=False)
    amax: Floats = field(repr=False)
    bits: int
    tile: int = 128
    octaves: int = 32

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.codes.shape

    @property
    def meta_bits(self) -> int:
        """Bits of a tile's (amin, amax) pair: 32 if every one is a bfloat16 number, as for bfloat16 inputs, else 64."""
        low_halves = (self.amin.view(np.uint32) | self.amax.view(np.uint32)) & np.uint32(0xFFFF)
        return 64 if low_halves.any() else 32

    @property
    def nbytes(self) -> int:
        """Length of `pack()`."""
        rows: int = _as_rows(self.codes).shape[0]
        columns = self.shape[-1]
        return rows * _row_bytes(columns, self.bits, self.tile, self.meta_bits)

    @property
    def bits_per_value(self) -> float:
        """Bits on the wire per value, metadata included."""
        return 8 * self.nbytes / max(1, self.codes.size)

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
            If `out` does not fit.
        """
        if out is None:
            out = np.empty(self.shape, np.float32)
        elif out.shape != self.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(
                f"logfmt: out is {out.dtype} {out.shape}; a C-contiguous float32 array {self.shape} is needed"
            )
        codes, values = _as_rows(self.codes), _as_rows(out)
        amin, amax = (_as_rows(meta) for meta in (self.amin, self.amax))
        _jit.run_chunks(
            lambda start, stop: kernels.decode_tiles(
                codes, amin, amax, self.bits, self.tile, self.octaves, values, start, stop
            ),
            amin.size,
            _GRAIN,
        )
        return out

    def pack(self) -> npt.NDArray[np.uint8]:
        """Return the bytes that go over the wire, row by row.

        A row is the (amin, amax) pairs of its tiles, little-endian bfloat16 or float32 by `meta_bits`, and then the
        tiles, each a little-endian stream of its codes from the least significant bit on, padded to whole bytes
        (16 * bits bytes for 128 values).

        Returns
        -------
        uint8 array [..., bytes of a row]
            Leading axes as the values'.
        """
        codes = _as_rows(self.codes)
        meta = np.stack([_as_rows(self.amin), _as_rows(self.amax)], axis=-1).view(np.uint32)
        halves = (meta >> np.uint32(16)).astype("<u2") if self.meta_bits == 32 else meta.astype("<u4")
        streams = [halves.reshape(len(codes), 2 * self.amin.shape[-1]).view(np.uint8)]
        for first in range(0, codes.shape[1], self.tile):
            part = codes[:, first : first + self.tile].astype("<u2")
            bits = np.unpackbits(part.view(np.uint8).reshape(*part.shape, 2), axis=-1, bitorder="little")
            stream = bits[..., : self.bits].reshape(len(codes), part.shape[1] * self.bits)
            streams.append(np.packbits(stream, axis=-1, bitorder="little"))
        wire = np.concatenate(streams, axis=-1)
        return wire.reshape(*self.shape[:-1], wire.shape[1])


def unpack(
    wire: npt.NDArray[np.uint8], columns: int, bits: int = 8, tile: int = 128, *, meta_bits: int, octaves: int = 32
) -> LogFMT:
    """Read back what `LogFMT.pack` wrote.

    Parameters
    ----------
    wire : uint8 array [..., bytes of a row]
        The bytes.
    columns : int
        Values in a row.
    bits, tile, octaves : int
        As given to `encode`.
    meta_bits : {32, 64}
        As `LogFMT.meta_bits` was.

    Returns
    -------
    LogFMT
        The same codes and metadata.

    Raises
    ------
    ValueError
        If a number is out of range or the row length does not follow from them.

    Examples
    --------
    >>> from lowprec import logfmt
    >>> z = logfmt.encode(np.linspace(-1, 1, 300, dtype=np.float32))
    >>> back = logfmt.unpack(z.pack(), 300, meta_bits=z.meta_bits)
    >>> np.array_equal(back.codes, z.codes), back.nbytes
    (True, 324)
    """
    bits, tile, octaves = _checked(bits, tile, octaves)
    if meta_bits not in (32, 64):
        raise ValueError(f"logfmt: meta_bits {meta_bits!r}: 32 or 64 is needed")
    length = _row_bytes(columns, bits, tile, meta_bits)
    if wire.dtype != np.uint8 or wire.ndim < 1 or wire.shape[-1] != length:
        raise ValueError(
            f"logfmt: wire is {wire.dtype} {wire.shape}; rows of {columns} values in {bits} bits are {length} uint8"
        )
    lead = wire.shape[:-1]
    rows = np.ascontiguousarray(wire).reshape(-1, length)
    tiles = -(-columns // tile)
    position = tiles * meta_bits // 8
    raw = np.ascontiguousarray(rows[:, : tiles * meta_bits // 8])
    pairs = raw.view("<u4") if meta_bits == 64 else raw.view("<u2").astype(np.uint32) << np.uint32(16)
    meta = np.ascontiguousarray(pairs, dtype=np.uint32).view(np.float32).reshape(*lead, tiles, 2)
    codes = np.zeros((len(rows), columns), np.uint8 if bits <= 8 else np.uint16)
    for first in range(0, columns, tile):
        n = min(tile, columns - first)
        size = -(-n * bits // 8)
        stream = np.unpackbits(rows[:, position : position + size], axis=-1, count=n * bits, bitorder="little")
        two_bytes = np.zeros((len(rows), n, 16), np.uint8)
        two_bytes[..., :bits] = stream.reshape(len(rows), n, bits)
        codes[:, first : first + n] = np.packbits(two_bytes, axis=-1, bitorder="little").view("<u2")[..., 0]
        position += size
    amin, amax = np.ascontiguousarray(meta[..., 0]), np.ascontiguousarray(meta[..., 1])
    return LogFMT(codes.reshape(*lead, columns), amin, amax, bits, tile, octaves)


def encode(
    x: npt.ArrayLike,
    bits: int = 8,
    tile: int = 128,
    mode: Literal["paper"] = "paper",
    *,
    nonfinite: Literal["raise", "poison"] = "raise",
    octaves: int = 32,
) -> LogFMT:
    """Encode an array in LogFMT, tiles running along its last axis.

    Parameters
    ----------
    x : array [..., columns]
        float32, float16 or bfloat16; other real types if float32 holds their values exactly.
    bits : int
        Bits per value, sign included, 3 to 16. The paper uses 8 and 10.
    tile : int
        Values per tile; the last tile of a row may be shorter.
    mode : str
        "paper", the definition above.
    nonfinite : {"raise", "poison"}
        What to do with NaN and infinities: refuse the array, or make their tile decode to NaN.
    octaves : int
        Largest range of a tile, 1 to 32. The paper's 32 keeps every magnitude of most tiles; fewer make the steps finer
        and flush the smallest values.

    Returns
    -------
    LogFMT
        Codes and metadata; `.decode()` gives the values, `.pack()` the wire's bytes.

    Raises
    ------
    ValueError
        If a number is out of range, the mode is unknown, or a value is not finite or not a float32 number.
    TypeError
        If `x` does not hold real numbers.

    Examples
    --------
    >>> from lowprec import logfmt
    >>> tile = np.array([1, 2, 4, 8, 16, 32, 64, 1.4999, 1.5, -3], np.float32)
    >>> z = logfmt.encode(tile, bits=4)
    >>> z.decode()
    array([ 1.,  2.,  4.,  8., 16., 32., 64.,  1.,  2., -4.], dtype=float32)
    >>> z.codes.tolist(), z.bits_per_value
    ([1, 2, 3, 4, 5, 6, 7, 1, 2, 11], 7.2)
    """
    bits, tile, octaves = _checked(bits, tile, octaves)
    if mode != "paper":
        raise ValueError(f"logfmt: mode {mode!r}: known is 'paper'")
    if nonfinite not in ("raise", "poison"):
        raise ValueError(f"logfmt: nonfinite {nonfinite!r}: 'raise' or 'poison' is needed")
    values = _as_float32(x)
    rows = _as_rows(values)
    tiles = -(-rows.shape[1] // tile)
    codes = np.empty(values.shape, np.uint8 if bits <= 8 else np.uint16)
    amin, amax = (np.empty((*values.shape[:-1], tiles), np.float32) for _ in range(2))
    bad: list[int] = []

    def piece(start: int, stop: int) -> None:
        found = kernels.encode_tiles(
            rows, bits, tile, octaves, _as_rows(codes), _as_rows(amin), _as_rows(amax), start, stop
        )
        if found >= 0:
            bad.append(found)

    _jit.run_chunks(piece, amin.size, _GRAIN)
    if bad and nonfinite == "raise":
        row, part = divmod(min(bad), tiles)
        ends = rows[row, part * tile : (part + 1) * tile]
        value = ends[~np.isfinite(ends)][0]
        raise ValueError(f"logfmt: {value} in row {row}, tile {part}; use nonfinite='poison' to let it through as NaN")
    return LogFMT(codes, amin, amax, bits, tile, octaves)


def _checked(bits: int, tile: int, octaves: int) -> tuple[int, int, int]:
    checked = []
    for name, value, low, high in (("bits", bits, 3, 16), ("tile", tile, 1, None), ("octaves", octaves, 1, 32)):
        limits = f"from {low} to {high}" if high else f">= {low}"
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"logfmt: {name} {value!r}: a whole number {limits} is needed") from None
        if number < low or (high is not None and number > high):
            raise ValueError(f"logfmt: {name} {value!r}: a whole number {limits} is needed")
        checked.append(number)
    return checked[0], checked[1], checked[2]


def _as_float32(x: npt.ArrayLike) -> Floats:
    """Return a contiguous float32 array with exactly the same numbers."""
    given = np.asarray(x)
    if given.ndim < 1:
        raise ValueError("logfmt: a single number has no tiles; an array of one or more axes is needed")
    # 'V' is how NumPy sees the types of ml_dtypes, bfloat16 among them.
    if given.dtype.kind not in "fiuV" or given.dtype.names is not None:
        raise TypeError(f"logfmt: values of type {given.dtype}; real numbers are needed")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(given, dtype=np.float32)
    if given.dtype.kind in "fiu" and not np.can_cast(given.dtype, np.float32):
        different = (values.astype(given.dtype) != given) & (given == given)
        if different.any():
            raise ValueError(
                f"logfmt: {given.dtype} value {given[different][0]!r} is no float32 number;"
                " round the array first, with .astype(np.float32)"
            )
    return values


def _as_rows(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view [rows, columns] of a contiguous array."""
    return array.reshape(int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1])


def _row_bytes(columns: int, bits: int, tile: int, meta_bits: int) -> int:
    whole, rest = divmod(columns, tile)
    return (whole + (rest > 0)) * meta_bits // 8 + whole * -(-tile * bits // 8) + -(-rest * bits // 8)
