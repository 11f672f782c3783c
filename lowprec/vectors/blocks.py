"""Vector sets of blocks that share a scale: quantizers, LogFMT tiles, and rows of codecs down to their bytes."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from ..oracle.block_scales import NAN, ONE
from ..oracle.logfmt import LogGrid, logfmt_tile
from ..oracle.quantizers import QUANTIZERS, Quantizer, quantize
from ..oracle.values import FLOAT32, decode, encode, floor_log2, max_code, two_to
from .family import Choice, Family, Rule, SetSpec, Stream, number, one_of
from .vectors import Answer, Field, Words, describe

SIGN = 1 << 31
FLT_MAX, INF, NAN_WORD = 0x7F7FFFFF, 0x7F800000, 0x7FC00000
Point = tuple[Words, str]
T = TypeVar("T")


def block_of(r: Quantizer) -> tuple[int, int]:
    """Return the numbers of rows and columns of a vector: one block, or two if the tensor has an additional scale.

    If every row has an additional scale, a vector has two rows of two blocks.
    """
    rows, columns = 2 if r.by_row else r.block[0] or 1, r.block[1] or 64
    return rows, columns * (2 if r.bound is not None else 1)


def _word(value: Fraction) -> int:
    return encode(value, FLOAT32, "nonsaturate")


def _amaxes(r: Quantizer, s: Stream, level: int) -> Iterator[tuple[int, str]]:
    """Yield float32 words of largest magnitudes at which the scale changes, and random ones."""
    top = Fraction(decode(max_code(r.element), r.element))
    head = top / two_to(floor_log2(top))
    every = (
        range(-149, 128) if level > 1 else (-149, -140, -130, -127, -126, -125, -100, -20, -14, -13, -2, 0, 5, 60, 126)
    )
    for e in every:
        for factor, what in (
            (Fraction(1), "a power of two"), (head, "the largest element times a power of two"),
            (Fraction(3, 2), "1.5 times a power of two"), (Fraction(2) - head / 16, "just below a power of two"),
            (1 + (head - 1) / 2, "between"),
        ):  # fmt: skip
            for step, place in ((-1, "one ulp below "), (0, ""), (1, "one ulp above ")):
                word = _word(factor * two_to(e)) + step
                if 0 < word <= FLT_MAX:
                    yield word, f"amax {place}{what}"
    for step in (-1, 0, 1):
        for floor in (Fraction(float(np.float32(1e-4))), Fraction(1e-12)):
            yield _word(floor) + step, "amax at a bound of amax"
        yield min(_word(top) + step, FLT_MAX), "amax at the largest element"
    yield FLT_MAX, "amax FLT_MAX"
    for _ in range(40 if level == 1 else 400):
        yield s.below(FLT_MAX), "any amax"


def _rest(amax: int, r: Quantizer, n: int, s: Stream) -> list[int]:
    """Return n words of magnitude at most amax: random ones, ties at scale amax / largest element, and neighbours."""
    top = max_code(r.element)
    size = Fraction(decode(amax, FLOAT32)) / Fraction(decode(top, r.element))
    words = []
    for _ in range(n):
        kind = s.below(4)
        if kind == 0:
            word = s.below(amax + 1)
        elif kind == 1:
            word = max(amax - s.below(6 << 23), 0)
        else:
            code = s.below(top)
            low, high = (Fraction(decode(c, r.element)) for c in (code, code + 1))
            word = min(max(_word(size * (low + high) / 2) + s.between(-1, 1), 0), amax)
        words.append(word | s.bits(1) << 31)
    return words


def thinned(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spaced over a sequence."""
    n = len(items)
    return list(items) if n <= most else [items[i * n // most] for i in range(most)]


def quantizer_points(r: Quantizer, level: int, s: Stream) -> Iterator[Point]:
    """Yield blocks with chosen largest magnitudes, and blocks with zeros, infinities and NaN."""
    rows, columns = block_of(r)
    n = rows * columns
    half = n // 2 if r.bound is not None else n
    most = max(40, 620_000 // (n * 13)) if level == 1 else 10**9
    found = list(_amaxes(r, s, level))
    specials: list[tuple[list[int], str]] = [
        ([0] * n, "zeros"), ([SIGN] * n, "negative zeros"), ([0, INF] + [0x3F800000] * (n - 2), "Inf"),
        ([SIGN | INF] + [0x3F800000] * (n - 1), "-Inf"), ([0x3F800000] * (n - 1) + [NAN_WORD], "NaN"),
        ([SIGN | NAN_WORD] * n, "nothing but NaN"), ([NAN_WORD, INF] + [1] * (n - 2), "NaN and Inf"),
        ([1] * n, "least subnormals"), ([0] * (n - 1) + [SIGN | 1], "one least subnormal"),
        ([0x7FFFFF] * n, "last subnormals"), ([FLT_MAX, SIGN | FLT_MAX] + [0] * (n - 2), "largest of both signs"),
    ]  # fmt: skip
    for words, label in specials:
        yield tuple(words), label
    for word, label in thinned(found, most):
        body = _rest(word, r, half, s)
        at = s.below(half)
        body[at] = word | body[at] & SIGN
        if r.bound is not None:  # the second block has a somewhat larger amax, which is that of the tensor
            other = min(word + s.below(10 << 23), FLT_MAX)
            second = [other, *_rest(other, r, n - half - 1, s)]
            # Each row of the vector is a row of the first block followed by a row of the second.
            width = columns // 2
            body = [w for i in range(rows) for part in (body, second) for w in part[i * width : (i + 1) * width]]
        yield tuple(body), label


def _quantized(r: Quantizer, answer_of: Quantizer | None = None) -> Answer:
    rows, columns = block_of(r)
    rule = r if answer_of is None else answer_of

    def answer(words: Words) -> Words:
        x = np.array(words, np.uint32).view(np.float32).reshape(rows, columns)
        codes, scales, tensor = quantize(x, rule, r.block)
        result = (*codes.reshape(-1).tolist(), *scales.reshape(-1).view(np.uint32).tolist())
        if tensor is None:
            return result
        top = np.broadcast_to(tensor, (rows, 1)) if r.by_row else np.array([tensor], np.float32)
        return (*result, *np.ascontiguousarray(top).reshape(-1).view(np.uint32).tolist())

    return answer


def key(value: Any) -> Any:
    """Return a hashable key of a rule's field; functions are compared by name and closure."""
    if callable(value) and hasattr(value, "__qualname__"):
        cells = value.__closure__ or ()
        return value.__qualname__, tuple(key(cell.cell_contents) for cell in cells)
    return value


class QuantizeFamily(Family):
    """Codes and scales of quantized blocks."""

    name = "quantize"
    choices = (Choice("QUANTIZER", one_of(
        QUANTIZERS, "there are no vectors of it, nor of any with a Hadamard transform or a history; there are for"
    )),)  # fmt: skip
    about = "quantize: codes and scales of a block (two blocks and the scale above them, where there is one)"
    sets = QUANTIZERS

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        r = QUANTIZERS[parts[0]]
        rows, columns = block_of(r)
        count = 1 if r.bound is None else 4 if r.by_row else 2
        results = [Field.of("codes", r.element, rows * columns), Field.of("scale", FLOAT32, count)]
        if r.bound is not None:
            results.append(Field.of("tensor_scale", FLOAT32, rows if r.by_row else 1))
        definition = {
            "rows": rows, "columns": columns, "block": [size or "all" for size in r.block],
            "element": describe(r.element), "rule": (r.rule.__doc__ or r.rule.__qualname__).strip(),
            "details": [str(part) for part in _flat(key(r.rule))], "amax at least": str(r.floor),
            "elements": "value times factor, or divided by the scale, in float32; nearest even, saturating",
            "block of zeros": _pair(r.zeros), "block with Inf": _pair(r.inf), "block with NaN": _pair(r.nan),
            "tensor scale aims at": str(r.bound), "choice of two": r.choice, "scale": "multiplies codes back to values",
        }  # fmt: skip
        if r.by_row:
            definition["tensor scale"] = "one for each row, from the amax of the row"
        points = quantizer_points(r, level, Stream(seed, f"quantize/{parts[0]}"))
        inputs = (Field.of("x", FLOAT32, rows * columns),)
        return SetSpec(definition, inputs, tuple(results), points, _quantized(r), "any")

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield quantizers with the same element and block size, then common deviations from this one."""
        r = QUANTIZERS[parts[0]]
        seen = [key_of(r)]
        for name, other in QUANTIZERS.items():
            other = other._replace(block=r.block)
            fits = other.element == r.element and (other.bound is None) == (r.bound is None)
            fits = fits and other.by_row <= r.by_row  # one row is a tensor
            if fits and key_of(other) not in seen:
                seen.append(key_of(other))
                yield Rule(f"as {name}", _quantized(r, other))
        for words, other in wrong_quantizers(r).items():
            yield Rule(words, _quantized(r, other), True)


def key_of(r: Quantizer) -> Any:
    """Return a key of everything in a quantizer that affects its bits."""
    return tuple(key(value) for value in r)


def wrong_quantizers(r: Quantizer) -> dict[str, Quantizer]:
    """Return variants of a quantizer with one field wrong, by a description of the error."""
    wrong: dict[str, Quantizer] = {}
    if r.floor:
        wrong["no bound of amax"] = r._replace(floor=Fraction(0))
    wrong["Inf otherwise"] = r._replace(inf=NAN if r.inf != NAN else (ONE, ONE))
    if r.bound is not None:
        wrong["another bound of the tensor's scale"] = r._replace(bound=r.bound / 2)
    if r.choice is not None:  # the scale is one of two candidates; `rule` is not used
        return wrong | {"errors otherwise compared": r._replace(choice="mae" if r.choice == "mse" else "mse")}
    wrong["the largest element doubled"] = r._replace(rule=functools.partial(_at, r.rule, 2))
    wrong["amax doubled"] = r._replace(rule=functools.partial(_amax, r.rule, Fraction(2)))
    coarse = r.block[1] == 16  # scales with too few bits to show a small difference
    wrong["amax plus an epsilon"] = r._replace(rule=functools.partial(_amax, r.rule, 1 + two_to(-5 if coarse else -20)))
    return wrong


def _at(rule: Any, factor: int, amax: Fraction, top: Fraction, tensor: Any) -> Any:
    return rule(amax, top * factor, tensor)


def _amax(rule: Any, factor: Fraction, amax: Fraction, top: Fraction, tensor: Any) -> Any:
    return rule(amax * factor, top, tensor)


def _pair(pair: tuple[Any, Any] | None) -> str:
    return "by the rule" if pair is None else f"scale {pair[0]}, factor {pair[1]}"


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


_TILE = 32


class LogfmtFamily(Family):
    """Tiles encoded in LogFMT."""

    name = "logfmt"
    choices = (
        Choice("BITS", number(3, 16)), Choice("ROUNDING", one_of(("linear", "log"), "the roundings are"), "linear"),
    )  # fmt: skip
    about = "logfmt: codes (sign above magnitude), ends and values of a tile, as lowprec's mode `paper` defines them"
    sets = tuple(f"{n}/{rounding}" for n in range(3, 17) for rounding in ("linear", "log"))

    def prepare(self, parts: Sequence[str], level: int, seed: int) -> SetSpec:
        """Return the fields, inputs and rule of a set, without its answers."""
        n, rounding = int(parts[0]), parts[1]
        results = (
            Field("codes", n, None, _TILE), Field.of("amin", FLOAT32), Field.of("amax", FLOAT32),
            Field.of("y", FLOAT32, _TILE),
        )  # fmt: skip
        definition = {
            "bits": n, "tile": _TILE, "rounding": rounding, "octaves": 32,
            "grid": "0, 2^(bits-1) - 1 values of equal ratio from max(amin, amax 2^-32) to amax, as nearest float32",
            "threshold": {"linear": "nearest value", "log": "nearest ratio"}[rounding] + "; of two the larger",
            "ends": "smallest non-zero and largest magnitude; 0 and 0 for a tile of zeros",
        }  # fmt: skip
        points = _tiles(n, level, Stream(seed, "/".join(("logfmt", *parts))))
        return SetSpec(definition, (Field.of("x", FLOAT32, _TILE),), results, points, _logfmt(n, rounding))

    def rules(self, parts: Sequence[str], theirs: Mapping[Words, Words]) -> Iterator[Rule]:
        """Yield the other rounding, then wrong rules."""
        n, rounding = int(parts[0]), parts[1]
        other = "log" if rounding == "linear" else "linear"
        yield Rule(f"rounding {other}", _logfmt(n, other), True)
        yield Rule("a range of 31 octaves", _logfmt(n, rounding, 31), True)
        yield Rule("a range without end", _logfmt(n, rounding, 300), True)
        yield Rule("codes cut, not rounded", _logfmt(n, rounding, cut=True), True)


def _logfmt(n: int, rounding: Any, octaves: int = 32, cut: bool = False) -> Answer:
    def answer(words: Words) -> Words:
        values: list[float | Fraction] = [Fraction(decode(word, FLOAT32)) for word in words]
        sizes = [abs(Fraction(value)) for value in values if value]
        low, high = (min(sizes), max(sizes)) if sizes else (Fraction(0), Fraction(0))
        codes, back = logfmt_tile(values, n, octaves, rounding)
        if cut and sizes:
            grid = LogGrid(low, high, n, octaves)
            codes = [bisect.bisect_right(grid, abs(Fraction(value))) - 1 for value in values]
            back = [grid[code] for code in codes]
        signs = [word >> 31 for word in words]
        ends = (encode(low, FLOAT32), encode(high, FLOAT32))
        coded = [code | sign << (n - 1) for code, sign in zip(codes, signs, strict=True)]
        values_ = [encode(value, FLOAT32) | sign << 31 for value, sign in zip(back, signs, strict=True)]
        return (*coded, *ends, *values_)

    return answer


def _tiles(n: int, level: int, s: Stream) -> Iterator[Point]:
    """Yield tiles of narrow and wide range, some with words next to midpoints of the grid, with zeros or subnormals."""
    ranges = {
        "range of a few octaves": (0, 4), "range of ten octaves": (8, 12), "range about the 32 that are kept": (30, 34),
        "range of forty octaves": (39, 41), "all but one value equal": (0, 0), "range of half an octave": (0, 0),
    }  # fmt: skip
    most = 4 if level == 1 else 40
    for name, (least, last) in ranges.items():
        for top in (0x3F800000, 0x3DCCCCCD, 0x7F7FFFFF, 0x42F6E979, 0x1F800001):
            for i in range(most):
                fall = s.between(least, last)
                low = max(top - (fall << 23) - s.below(1 << 22), 1)
                words = [low, top]
                if name == "all but one value equal":
                    words += [top] * (_TILE - 2)
                while len(words) < _TILE:
                    words.append(low + s.below(top - low + 1))
                if i % 2:  # near thresholds: midpoints of the grid
                    grid = LogGrid(Fraction(decode(low, FLOAT32)), Fraction(decode(top, FLOAT32)), n)
                    for at in range(2, _TILE, 2):
                        k = s.below(len(grid) - 1)
                        word = encode((grid[k] + grid[k + 1]) / 2, FLOAT32) + s.between(-1, 1)
                        words[at] = min(max(word, low), top)
                    if fall > 32:
                        words[3] = encode(grid[1] / 2, FLOAT32)
                if i % 4 == 3:
                    words[5] = words[7] = 0
                yield tuple(word | s.bits(1) << 31 for word in words), name + (", near thresholds" if i % 2 else "")
    for words, label in (
        ([0] * _TILE, "zeros"), ([SIGN] * _TILE, "negative zeros"), ([0] * (_TILE - 1) + [1], "one least subnormal"),
        (list(range(1, _TILE + 1)), "least subnormals"), ([FLT_MAX, 1] * (_TILE // 2), "FLT_MAX, least subnormal"),
        ([0x3F800000] * _TILE, "all values equal"), ([0x3F800000, 0x3F800001] * (_TILE // 2), "two neighbours"),
    ):  # fmt: skip
        yield tuple(words), label
