"""Vector sets of codecs: the encoded bytes of a row of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..oracle import casts
from ..oracle.logfmt import logfmt_tile
from ..oracle.quantizers import QUANTIZERS, quantize
from ..oracle.tiles import tile_scale
from ..oracle.values import BFLOAT16, E4M3FN, E5M2, E8M0FNU, FLOAT16, FLOAT32, Fields, decode, encode, exact
from .family import Choice, Family, Rule, SetSpec, Stream, one_of
from .vectors import Answer, Field, Words, describe

_COLUMNS = 128
Bits = list[tuple[int, int]]  # words and their widths in bits, least significant first


class Codec(NamedTuple):
    """Layout of an encoded row: scaled elements in tiles, LogFMT tiles with their (amin, amax), or plain elements."""

    element: Fields
    tile: int = 0  # 0: no scales
    scale: Fields | None = None
    quantizer: str | None = None
    logfmt: int = 0  # bits of LogFMT


def _symmetric(bits: int) -> Fields:
    return Fields(0, bits - 1, 0, specials="symmetric")


CODECS: dict[str, Codec] = {
    "float32": Codec(FLOAT32), "bf16": Codec(BFLOAT16), "fp16": Codec(FLOAT16),
    "fp8_1x128": Codec(E4M3FN, 128, FLOAT32), "fp8_1x128_ue8m0": Codec(E4M3FN, 128, E8M0FNU),
    "e5m2_1x128": Codec(E5M2, 128, FLOAT32), "e5m6_1x128_ue8m0": Codec(Fields(5, 6, 15), 128, E8M0FNU),
    "nvfp4": Codec(QUANTIZERS["nvfp4_te"].element, 16, E4M3FN, "nvfp4_te"),
    **{
        name: Codec(QUANTIZERS[quantizer].element, 32, E8M0FNU, quantizer)
        for name, quantizer in {
            "mxfp8": "mxfp8_rceil", "mxfp8_floor": "mxfp8_floor", "mxfp8_e5m2_floor": "mxfp8_e5m2_floor",
            "mxfp6_e2m3_floor": "mxfp6_e2m3_floor", "mxfp6_e3m2_floor": "mxfp6_e3m2_floor",
            "mxfp4_floor": "mxfp4_floor",
        }.items()
    },
    **{f"int{n}_1x{tile}": Codec(_symmetric(n), tile, FLOAT32) for n, tile in ((4, 32), (4, 128), (8, 128), (10, 128))},
    **{f"logfmt{n}": Codec(BFLOAT16, 128, None, None, n) for n in range(3, 17)},
}  # fmt: skip
"""Codecs by catalogue name, without DeepEP's variant of LogFMT, which the oracle does not compute."""


def _rows(codec: Codec, words: Words) -> tuple[Bits, list[Bits], Bits]:
    """Return the tensor's scale, the scales or (amin, amax) of the tiles, and the codes."""
    values = [exact(float(v)) for v in np.array(words, np.uint32).view(np.float32)]
    width = codec.element.width + codec.element.signed
    if not codec.tile:
        return (
            [],
            [],
            [(casts.cast(v, codec.element, preset="ieee" if width > 8 else "ocp_sat"), width) for v in values],
        )
    if codec.logfmt:
        return [], *_logarithmic(codec.logfmt, words)
    assert codec.scale is not None
    bits = codec.scale.width + codec.scale.signed
    if codec.quantizer is not None:
        matrix = np.array(words, np.uint32).view(np.float32)[None]
        codes, scales, tensor = quantize(matrix, codec.quantizer)
        coded = [(encode(exact(float(s)), codec.scale), bits) for s in scales[0]]
        before = [] if tensor is None else [(int(np.float32(tensor).view(np.uint32)), 32)]
        return before, [coded], [(int(code), width) for code in codes[0]]
    scaled: Bits = []
    sent: Bits = []
    for start in range(0, len(values), codec.tile):
        tile = values[start : start + codec.tile]
        scale = tile_scale(tile, codec.element, "fp32" if codec.scale == FLOAT32 else "ue8m0")
        scaled.append((encode(scale, codec.scale, "nonsaturate"), bits))
        for value in tile:
            quotient = (
                value if isinstance(value, float) else decode(encode(value / scale, FLOAT32, "nonsaturate"), FLOAT32)
            )
            sent.append((casts.cast(quotient, codec.element, preset="ocp_sat"), width))
    return [], [scaled], sent


def _logarithmic(n: int, words: Words) -> tuple[list[Bits], Bits]:
    values = [float(decode(word, FLOAT32)) for word in words]
    sizes = sorted(abs(v) for v in values if v) or [0.0]
    ends = [(encode(end, BFLOAT16), 16) for end in (sizes[0], sizes[-1])]
    codes, _ = logfmt_tile(values, n)
    return [ends], [(code | word >> 31 << (n - 1), n) for code, word in zip(codes, words, strict=True)]


def _pack(parts: Bits) -> bytes:
    """Return words as bytes: the first word in the least significant bits, padded with zeros."""
    number = at = 0
    for word, bits in parts:
        number |= word << at
        at += bits
    return number.to_bytes(-(-at // 8), "little")


def _bytes(codec: Codec, swapped: bool = False, last: bool = False, big: bool = False) -> Answer:
    """Return the function from a row's words to its bytes; the options give wrong byte orders."""

    def answer(words: Words) -> Words:
        before, scales, codes = _rows(codec, words)
        head = b"".join(_pack(part) for part in scales)
        if big:
            step = 4 if codec.scale == FLOAT32 else 2
            head = b"".join(head[i : i + step][::-1] for i in range(0, len(head), step))
        body = _pack(
            [(c, b) for pair in zip(codes[1::2], codes[::2], strict=True) for c, b in pair] if swapped else codes
        )
        return tuple(_pack(before) + (body + head if last else head + body))

    return answer


class CodecFamily(Family):
    """Encoded bytes of rows."""

    name = "codec"
    choices = (Choice("CODEC", one_of(CODECS, "the oracle has the codecs")),)
    about = "codec: the bytes of a row of 128 values, scales or ends first, codes from the least significant bit"
    sets = CODECS

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        codec = CODECS[parts[0]]
        stream = Stream(seed, f"codec/{parts[0]}")
        points = list(_lines(stream, level))
        answer = _bytes(codec)
        definition = {
            "columns": _COLUMNS, "element": describe(codec.element), "tile": codec.tile or "none",
            "scale": "none" if codec.scale is None else describe(codec.scale),
            "quantizer": codec.quantizer or "amax / max", "logfmt bits": codec.logfmt,
            "order": "scale of the tensor, scales or ends, codes; each little-endian, padded to bytes",
        }  # fmt: skip
        count = len(answer(points[0][0]))
        return SetSpec(
            definition, (Field.of("x", FLOAT32, _COLUMNS),), (Field("bytes", 8, None, count),), points, answer
        )

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield codecs with the same number of bytes, and other orders of the same bytes."""
        codec = CODECS[parts[0]]
        probe = (0x3F800000,) * _COLUMNS
        count = len(_bytes(codec)(probe))
        for name, other in CODECS.items():
            if other != codec and len(_bytes(other)(probe)) == count:
                yield Rule(f"as {name}", _bytes(other))
        yield Rule("codes swapped in pairs", _bytes(codec, swapped=True), True)
        if codec.tile:
            yield Rule("scales after the codes", _bytes(codec, last=True), True)
        if codec.scale == FLOAT32 or codec.logfmt:
            yield Rule("scales in big-endian order", _bytes(codec, big=True), True)


def _lines(s: Stream, level: int) -> Iterator[tuple[Words, str]]:
    """Yield rows of bfloat16 numbers spread as activations are: narrow, wide, with zeros, powers of two, an outlier."""
    kinds: dict[str, Callable[[int], int]] = {
        "a few binades": lambda i: s.between(125, 129), "twenty binades": lambda i: s.between(110, 130),
        "tiles of different size": lambda i: 127 - 12 * (i // 32) + s.below(3),
        "one value far out": lambda i: 127 + 10 * (i == 77),
        "small": lambda i: s.between(60, 64), "large": lambda i: s.between(180, 190),
    }  # fmt: skip
    for name, exponent in kinds.items():
        for i in range(5 if level == 1 else 50):
            words = [(s.bits(1) << 31) | exponent(k) << 23 | s.bits(7) << 16 for k in range(_COLUMNS)]
            if i % 3 == 2:
                words = [0 if s.chance(0.2) else word for word in words]
            yield tuple(words), name + (", with zeros" if i % 3 == 2 else "")
    yield (0,) * _COLUMNS, "zeros"
    yield (0x3F800000,) * _COLUMNS, "ones"
