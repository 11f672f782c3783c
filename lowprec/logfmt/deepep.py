"""LogFMT-10 of DeepEP's low-latency combine, bit for bit (`use_logfmt`, csrc/kernels/legacy/internode_ll.cu).

Tokens are bfloat16 numbers. A tile has 128 channels; a chunk has 1024 (or 512, if 1024 does not divide the channels)
and is sent in 10 bits or, if one of its tiles does not qualify, as bfloat16. It differs from the paper's definition
(`lowprec.logfmt.paper`), intentionally or not, as follows:

* A tile's smallest magnitude includes zeros: one exact zero stretches the grid to 32 octaves.
* Tiles qualify if all magnitudes are below 1 and not all are equal; otherwise their chunk falls back to bfloat16.
* All arithmetic is float32; log2 and 2**y are the GPU's approximate instructions. Here they are correctly rounded,
  unless `ApproxTables` holds tables.
* Rounding is linear by the formula ``floor(log2|x| / step + offset)``, not by comparison with decoded values; the
  codes of amin and amax decode to within some ulps of float32, not exactly.
* NaN becomes zero if its chunk is encoded: minimum, maximum and rounding ignore it. Infinity makes its chunk fall
  back.
* Code 512 can result if two magnitudes are neighbours; its tenth bit is not masked and corrupts the next code, or the
  first sign of the sixteen. This occurs only in tiles below 1.3e-29.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from lowprec import _threads
from lowprec._arrays import Floats, copy_if_overlapping, prepare_out
from lowprec._checks import brief_repr, check_int
from lowprec._fpenv import with_default_fpenv
from lowprec._values import BitwiseEq
from lowprec.kernels.logfmt import deepep as kernels

from .arrays import exact_float32
from .header import Header, with_header
from .wire import Bytes, Flags, any_pairs_from_bytes, join_rows, pairs_to_bytes, split_rows

Words = npt.NDArray[np.uint16]

TILE = kernels.TILE
_GRAIN = 128  # tiles per chunk of work
_NONE: Floats = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class ApproxTables(BitwiseEq):
    """Tables that emulate the GPU's lg2.approx and ex2.approx; without a table, the result is correctly rounded.

    Attributes
    ----------
    log2 : float32 array [32768], optional
        Table of log2 of the bfloat16 magnitudes 0 .. 0x7FFF, including NaN.
    log2_significands : float32 array [2**23], optional
        Table of log2 of 1 + i / 2^23; one such number is looked up per tile.
    exp2_fractions : float32 array [2**23], optional
        Table of 2^(i / 2^23). An argument is split into an integer and such a fraction, rounded down: an assumption
        about the instruction that no table can verify.

    Raises
    ------
    ValueError
        If a table has the wrong size or type.
    """

    log2: Floats | None = field(default=None, repr=False)
    log2_significands: Floats | None = field(default=None, repr=False)
    exp2_fractions: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, size in (("log2", 1 << 15), ("log2_significands", 1 << 23), ("exp2_fractions", 1 << 23)):
            table = getattr(self, name)
            if table is not None and (not isinstance(table, np.ndarray) or table.dtype != np.float32):
                raise ValueError(f"logfmt: table {name} must be a float32 array, got {brief_repr(table)}")
            if table is not None and (table.shape != (size,) or not table.flags.c_contiguous):
                raise ValueError(f"logfmt: table {name} must be contiguous of shape {(size,)}, got shape {table.shape}")

    def __hash__(self) -> int:  # type: ignore[override]  # tables are never written to
        return hash(tuple(getattr(self, f.name) is None for f in fields(self)))

    def tables(self) -> tuple[Floats, Floats, Floats]:
        """Return all tables as arrays, with log2 of all magnitudes first; a missing table is empty."""
        log2 = _rounded_log2() if self.log2 is None else self.log2
        significands, fractions = self.log2_significands, self.exp2_fractions
        return log2, _NONE if significands is None else significands, _NONE if fractions is None else fractions


ROUNDED = ApproxTables()
_log2_cache: list[Floats] = []


def _rounded_log2() -> Floats:
    if not _log2_cache:
        table = np.empty(1 << 15, np.float32)
        kernels.fill_log2(table)
        table.flags.writeable = False
        _log2_cache.append(table)
    return _log2_cache[0]


@dataclass(frozen=True, eq=False)
class DeepEPMessage(BitwiseEq):
    """Tokens encoded for combine.

    Attributes
    ----------
    codes : uint16 array [..., channels]
        Codes that the receiver reads: sign in bit 9 and magnitude below it, or the bfloat16 numbers of a chunk that
        fell back.
    amin, amax : float32 arrays [..., channels / 128]
        Smallest and largest magnitude of each tile, including zeros.
    approx_tables : ApproxTables
        Tables of log2 and 2**y.
    overflows : int
        Number of codes that overflowed into a neighbour; 0 if the message was read from bytes, where it is unknown.
    """

    codes: Words = field(repr=False)
    amin: Floats = field(repr=False)
    amax: Floats = field(repr=False)
    approx_tables: ApproxTables = field(default=ROUNDED, repr=False)
    overflows: int = field(default=0, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.codes.shape

    @property
    def encoded_chunks(self) -> Flags:
        """Whether each chunk is in 10 bits, bool array [..., chunks]; the receiver derives it from amin and amax."""
        flags = _chunks_fit(_words(self.amin), _words(self.amax), self.shape[-1], self.approx_tables)
        return flags.reshape(*self.shape[:-1], flags.shape[1])

    @property
    def nbytes(self) -> int:
        """Size of `pack()` in bytes."""
        chunk = chunk_size(self.shape[-1])
        cast = int(self.encoded_chunks.sum())
        return 4 * self.amax.size + cast * chunk * 10 // 8 + (self.encoded_chunks.size - cast) * chunk * 2

    @property
    def bits_per_value(self) -> float:
        """Number of bits sent per value, including metadata."""
        return 8 * self.nbytes / max(1, self.codes.size)

    @with_default_fpenv
    def decode(self, out: Floats | None = None) -> Floats:
        """Return the float32 values that the receiver weights and sums.

        Parameters
        ----------
        out : float32 array, optional
            Destination of the values: C-contiguous, of the same shape.

        Returns
        -------
        float32 array [..., channels]
            The values.

        Raises
        ------
        ValueError
            If `out` does not fit.
        """
        out = prepare_out("logfmt", out, self.shape, np.float32)
        values = out.reshape(-1)
        codes = np.ascontiguousarray(copy_if_overlapping(self.codes, out)).reshape(-1)
        amin, amax = _words(self.amin).reshape(-1), _words(self.amax).reshape(-1)
        fit = _tiles_fit(self.encoded_chunks, self.shape[-1])
        log2, _, fractions = self.approx_tables.tables()
        _threads.run_chunks(
            lambda start, stop: kernels.decode_tiles(codes, fit, amax, amin, log2, fractions, values, start, stop),
            amax.size,
            _GRAIN,
        )
        return out

    def pack(self) -> Bytes:
        """Return the bytes of the messages, one token after another.

        A token is the (amax, amin) pairs of its tiles in bfloat16, and then its chunks. Every 16 channels of a chunk
        are either 160 bits, the 9-bit magnitudes from the lowest bit and then the signs, or 16 bfloat16 numbers.

        Returns
        -------
        uint8 array, one dimension
            `nbytes` bytes.
        """
        channels = self.shape[-1]
        if not self.codes.size:
            return np.empty(0, np.uint8)
        codes = np.ascontiguousarray(self.codes).reshape(_rows(self.shape), channels)
        amin, amax = (end.reshape(codes.shape[0], channels // TILE) for end in (self.amin, self.amax))
        cast, chunk = (
            self.encoded_chunks.reshape(codes.shape[0], channels // chunk_size(channels)),
            chunk_size(channels),
        )
        encoded, raw = [], []
        for c in range(cast.shape[1]):
            part = np.ascontiguousarray(codes[:, c * chunk : (c + 1) * chunk])
            packed = np.empty((len(part), chunk * 10 // 8), np.uint8)
            kernels.pack_sixteens(part.reshape(-1), packed.reshape(-1).view(np.uint32))
            encoded.append(packed)
            raw.append(part.astype("<u2").view(np.uint8))
        return join_rows(pairs_to_bytes(amax, amin, 32), cast, encoded, raw)

    def to_bytes(self) -> bytes:
        """Return a header with the shape, followed by `pack()`; `lowprec.logfmt.from_bytes` reads them."""
        return with_header(Header(1, 10, 32, 32, True, len(self.shape) - 1, TILE, self.shape), self.pack())


def encode_deepep(x: npt.ArrayLike, approx_tables: ApproxTables = ROUNDED) -> DeepEPMessage:
    """Encode tokens for combine with DeepEP's arithmetic.

    Parameters
    ----------
    x : array [..., channels]
        Numbers that bfloat16 represents exactly, of any real type; the number of channels must be a multiple of 512.
    approx_tables : ApproxTables
        Tables of log2 and 2**y.

    Returns
    -------
    DeepEPMessage
        Codes, and the smallest and largest magnitude of each tile.

    Raises
    ------
    ValueError
        If bfloat16 cannot represent a value, or the channels are not a multiple of 512.
    TypeError
        If the values of `x` are not real numbers.
    """
    shape, words = _as_words(x)
    chunk = chunk_size(shape[-1])
    flat = words.reshape(-1)
    tiles = flat.size // TILE
    amax, amin, fit = np.empty(tiles, np.uint16), np.empty(tiles, np.uint16), np.empty(tiles, np.bool_)
    log2, significands, fractions = approx_tables.tables()
    _threads.run_chunks(
        lambda start, stop: kernels.find_tiles(flat, log2, amax, amin, fit, start, stop), tiles, 4 * _GRAIN
    )
    chunks = np.logical_and.reduce(fit.reshape(-1, chunk // TILE), axis=1)
    spread = _tiles_fit(chunks, shape[-1])
    codes = np.empty(flat.size, np.uint16)
    overflows: list[int] = []
    _threads.run_chunks(
        lambda start, stop: overflows.append(
            kernels.encode_tiles(flat, spread, amax, amin, log2, significands, fractions, codes, start, stop)
        ),
        tiles,
        _GRAIN,
    )
    across = (*shape[:-1], shape[-1] // TILE)
    ends = _from_words(amin).reshape(across), _from_words(amax).reshape(across)
    return DeepEPMessage(codes.reshape(shape), *ends, approx_tables, sum(overflows))


def unpack(wire: Bytes, channels: int, approx_tables: ApproxTables = ROUNDED) -> DeepEPMessage:
    """Decode the bytes of `DeepEPMessage.pack` into tokens [tokens, channels].

    Raises
    ------
    ValueError
        If the channels are not a multiple of 512 or the bytes end within a token.
    """
    chunk = chunk_size(check_int("logfmt", "channels", channels, 0))
    data = np.asarray(wire)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ValueError(f"logfmt: wire must be uint8 bytes with one axis, got {data.dtype} {data.shape}")
    if not channels and data.size:
        raise ValueError(f"logfmt: wire must be empty for tokens of 0 channels, got {data.size} bytes")
    if not data.size:
        ends = np.empty((0, channels // TILE), np.float32)
        return DeepEPMessage(np.empty((0, channels), np.uint16), ends, ends, approx_tables)
    if data.size < channels // TILE * 4:  # checked before any work that grows with the channels
        raise ValueError(f"logfmt: wire is cut short: row 0 has {data.size} bytes")

    def fit(meta: Bytes) -> Flags:
        amax, amin = any_pairs_from_bytes(meta[None], 32)
        return _chunks_fit(_words(amin), _words(amax), channels, approx_tables).reshape(-1)

    widths = [(chunk * 10 // 8, chunk * 2)] * (channels // chunk)
    metas, cast, encoded, raw = split_rows(data, channels // TILE * 4, widths, fit)
    amax, amin = any_pairs_from_bytes(metas, 32)
    codes = np.empty((len(metas), channels), np.uint16)
    for c in range(channels // chunk):
        part = np.empty((len(metas), chunk), np.uint16)
        kernels.unpack_sixteens(encoded[c].reshape(-1).view(np.uint32), part.reshape(-1))
        codes[:, c * chunk : (c + 1) * chunk] = np.where(cast[:, c : c + 1], part, raw[c].view("<u2"))
    return DeepEPMessage(codes, amin, amax, approx_tables)


def deepep_from_bytes(header: Header, payload: Bytes, approx_tables: ApproxTables = ROUNDED) -> DeepEPMessage:
    """Restore a message from the payload of variant "deepep"."""
    message = unpack(payload, header.shape[-1], approx_tables)
    if message.codes.shape[0] != _rows(header.shape) and header.shape[-1]:
        raise ValueError(
            f"logfmt: data must have {_rows(header.shape)} tokens for shape {header.shape}, got {len(message.codes)}"
        )
    tiles = (*header.shape[:-1], header.shape[-1] // TILE)
    ends = (message.amin.reshape(tiles), message.amax.reshape(tiles))
    return DeepEPMessage(message.codes.reshape(header.shape), *ends, approx_tables)


def chunk_size(channels: int) -> int:
    """Return the number of channels per chunk: 1024, or 512 if 1024 does not divide the channels.

    Raises
    ------
    ValueError
        If 512 does not divide them.
    """
    if channels % 512:
        raise ValueError(f"logfmt: channels must be a multiple of 512 with variant='deepep', got {channels}")
    return 512 if channels % 1024 else 1024


def _as_words(x: npt.ArrayLike) -> tuple[tuple[int, ...], Words]:
    """Return the shape of an array of bfloat16 numbers, and contiguous bit patterns."""
    given = np.asarray(x)
    if given.dtype.name == "bfloat16" and given.ndim:
        return given.shape, np.ascontiguousarray(given).view(np.uint16)
    values = np.ascontiguousarray(exact_float32(given))
    patterns = values.view(np.uint32)
    wrong = (patterns & np.uint32(0xFFFF) != 0) & ~np.isnan(values)
    if wrong.any():
        raise ValueError(
            f"logfmt: x must hold bfloat16 numbers with variant='deepep', got {values[wrong][0]};"
            " lowprec.round_to(x, 'bfloat16') rounds them"
        )
    words = (patterns >> np.uint32(16)).astype(np.uint16)
    words[np.isnan(values)] |= np.uint16(0x40)  # a NaN with only low fraction bits would become Inf
    return values.shape, words


def _rows(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[:-1], dtype=np.int64))


def _words(ends: Floats) -> Words:
    """Return the bit patterns of numbers that bfloat16 represents exactly."""
    return (np.ascontiguousarray(ends).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _from_words(words: Words) -> Floats:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _chunks_fit(amin: Words, amax: Words, channels: int, approx_tables: ApproxTables) -> Flags:
    """Return whether each chunk [rows, chunks] qualifies for 10 bits, given amin and amax of its tiles."""
    log2 = approx_tables.tables()[0]
    magnitude = np.uint16(0x7FFF)
    high = log2[amax & magnitude]
    with np.errstate(invalid="ignore"):
        low = np.fmax(log2[amin & magnitude], high - np.float32(32))
        fit = (high < 0) & (low < high)
    chunk = chunk_size(channels)
    rows = amax.size // (channels // TILE) if channels else 0
    flags: Flags = np.logical_and.reduce(fit.reshape(rows, channels // chunk, chunk // TILE), axis=2)
    return flags


def _tiles_fit(cast: Flags, channels: int) -> Flags:
    """Return for each tile whether its chunk is encoded in 10 bits."""
    return np.repeat(cast.reshape(-1), chunk_size(channels) // TILE)


def resolve_tables(approx_tables: object) -> ApproxTables:
    """Return `approx_tables`, or the correctly rounded functions for None.

    Raises
    ------
    TypeError
        If `approx_tables` is neither `ApproxTables` nor None.
    """
    if approx_tables is None:
        return ROUNDED
    if not isinstance(approx_tables, ApproxTables):
        raise TypeError(f"logfmt: approx_tables must be a lowprec.logfmt.ApproxTables or None, got {approx_tables!r}")
    return approx_tables
