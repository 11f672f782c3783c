"""One row of FlashMLA's dense decoding by pairs of tiles, and of its sparse decoding, in exact arithmetic.

Functions and names are those of csrc/sm90/decode/dense/splitkv_mla.cuh and sparse_fp8/splitkv_mla.cuh at 9241ae3;
each list item of a warpgroup is one of its threads' numbers. All float32 operations are fractions rounded once; 2**x,
log2 and 1/x are those of `functions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..accumulators import Accumulator
from ..float32 import (
    LEAST,
    LN_2,
    ONE,
    ROUNDED,
    SpecialFunctions,
    bits_of,
    divided,
    fmax,
    is_below,
    multiply_add,
    negated,
    plus,
    rounded,
    times,
)
from ..values import FLOAT32, Exact, Fields, decode, encode

_MASKED, _LEAST_MAX = (rounded(Fraction(-(10**digits))) for digits in (33, 30))
Codes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class PairedAttention:
    """FlashMLA's kernel for one row of queries: a correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    core, operands
        Tensor core of both products; format of Q, K, V and P.
    tile, rotation, half
        Keys per tile; channel at which warpgroup 1 starts a score; columns of V of warpgroup 0.
    rounds_before_scaling
        Wrong rule: warpgroup 1 gets P0 that was rounded before it is multiplied by sScale1.
    own_tile_last
        Wrong rule: warpgroup 1 adds P0 V0 before P1 V1.
    two_factors
        Wrong rule: O of warpgroup 1 is multiplied by sScale0 and by sScale1, not by their product.
    by_key
        Wrong rule: a thread adds its probabilities one by one.
    far_first
        Wrong rule: threads exchange their sums at distance 2 first.
    one_sum
        Wrong rule: warpgroup 0 adds the probabilities of both tiles.
    scaled_growth
        Wrong rule: maxima are scaled after their difference.
    """

    core: Accumulator
    operands: Fields
    tile: int
    rotation: int
    half: int
    rounds_before_scaling: bool = False
    own_tile_last: bool = False
    two_factors: bool = False
    by_key: bool = False
    far_first: bool = False
    one_sum: bool = False
    scaled_growth: bool = False
    functions: SpecialFunctions = ROUNDED

    def row(
        self, q: Sequence[int], k: Codes, v: Codes, scale: Exact, tiles: range, right_border: int, is_split: bool
    ) -> tuple[list[int], int]:
        """Return the float32 bits of the output and of the log-sum-exp for the keys of some tiles.

        Parameters
        ----------
        q, k, v
            Codes: the query [D], keys [N][D] and values [N][Dv].
        scale
            Factor of the scores, a float32 number.
        tiles
            Tiles of keys, in order.
        right_border
            One past the last key that the query sees.
        is_split
            Whether the log-sum-exp is that of a split, in octaves.
        """
        columns = len(v[0])
        state = _State(_LEAST_MAX, [[Fraction(0)] * 4 for _ in range(2)], [0] * columns)
        left, right = range(min(self.half, columns)), range(self.half, columns)
        for block in range(tiles.start, tiles.stop, 2):
            has_second = block + 1 < tiles.stop
            values = [self._values(v, b, columns) for b in (block, block + 1)]
            s0 = self._scores(q, k, block, 0, right_border)
            s1 = self._scores(q, k, block + 1, self.rotation, right_border) if has_second else [_MASKED]
            scale0 = self._raise(state, s0, scale)
            p0 = self._p(s0, scale, state.maximum)
            scale1 = self._raise(state, s1, scale)
            p1 = self._p(s1, scale, state.maximum) if has_second else []
            p0_scaled = [_times(decode(self._code(x), self.operands) if self.rounds_before_scaling else x, scale1)
                         for x in p0]  # fmt: skip
            # Warpgroup 0
            state.scale_out(left, scale0)
            self._add_to_sum(state.sums[0], p0, scale0)
            self._add_values(state, left, p0, values[0])
            if has_second:
                state.scale_out(left, scale1)
                state.sums[0] = [_times(x, scale1) for x in state.sums[0]]
                self._add_values(state, left, p1, values[1])
            # Warpgroup 1
            for factor in (scale0, scale1) if self.two_factors else (_times(scale1, scale0),):
                state.scale_out(right, factor)
            if self.one_sum:
                self._add_to_sum(state.sums[0], p1, ONE)
            else:
                self._add_to_sum(state.sums[1], p1, _times(scale1, scale0))
            for p, rows in ((p0_scaled, values[0]), (p1, values[1]))[:: 1 if self.own_tile_last else -1]:
                self._add_values(state, right, p, rows)
        return self._finish(state, is_split)

    def _values(self, v: Codes, block: int, columns: int) -> list[Sequence[int]]:
        start = block * self.tile
        return [v[j] if j < len(v) else [0] * columns for j in range(start, start + self.tile)]

    def _scores(self, q: Sequence[int], k: Codes, block: int, first: int, right_border: int) -> list[Exact]:
        order = [*range(first, len(q)), *range(first)] if first < len(q) else range(len(q))
        scores: list[Exact] = []
        for j in range(block * self.tile, (block + 1) * self.tile):
            pair = [q[i] for i in order], [k[j][i] for i in order] if j < len(k) else [0] * len(q)
            dot = decode(self.core.rule.dot(*pair, 0, self.operands, self.operands), FLOAT32)
            scores.append(dot if j < right_border else _MASKED)
        return scores

    def _raise(self, state: _State, scores: list[Exact], scale: Exact) -> Exact:
        """Raise sM and return exp2f(old maximum - new maximum)."""
        largest = max((x for x in map(_flushed, scores) if not math.isnan(x)), key=_order, default=_MASKED)
        scaled = _times(max(largest, _MASKED, key=_order), scale)
        old = state.maximum
        state.maximum = old if math.isnan(scaled) else max(old, scaled, key=_order)
        if self.scaled_growth and old != _LEAST_MAX:
            growth = plus(divided(old, scale), negated(divided(state.maximum, scale)))
            return _flushed(self.functions.exp2(times(growth, scale)))
        return _flushed(self.functions.exp2(_flushed(plus(old, negated(state.maximum)))))

    def _p(self, scores: list[Exact], scale: Exact, maximum: Exact) -> list[Exact]:
        return [_flushed(self.functions.exp2(_flushed(multiply_add(x, scale, negated(maximum))))) for x in scores]

    def _add_to_sum(self, sums: list[Exact], p: list[Exact], factor: Exact) -> None:
        for thread in range(4):
            total: Exact = Fraction(0)
            for i in range(2 * thread, len(p), 8):
                total = plus(plus(total, p[i]), p[i + 1]) if self.by_key else plus(total, plus(p[i], p[i + 1]))
            sums[thread] = _flushed(multiply_add(sums[thread], factor, total))

    def _add_values(self, state: _State, columns: range, p: list[Exact], rows: list[Sequence[int]]) -> None:
        if p:
            codes = [self._code(x) for x in p]
            for c in columns:
                column = [row[c] for row in rows]
                state.out[c] = self.core.rule.dot(codes, column, state.out[c], self.operands, self.operands)

    def _code(self, x: Exact) -> int:
        return encode(x, self.operands, "nonsaturate")

    def _finish(self, state: _State, is_split: bool) -> tuple[list[int], int]:
        totals = []
        for t in state.sums:
            pairs = ((t[0], t[2]), (t[1], t[3])) if self.far_first else ((t[0], t[1]), (t[2], t[3]))
            totals.append(plus(*(plus(*pair) for pair in pairs)))
        total = plus(*totals)
        is_empty = total == 0 or math.isnan(total)
        inverse = ONE if is_empty else self.functions.reciprocal(total)
        out = [bits_of(_times(decode(x, FLOAT32), inverse)) for x in state.out]
        if is_empty:
            return out, bits_of(-math.inf if is_split else math.inf)
        octaves, ln_2 = self.functions.log2(total), rounded(Fraction(LN_2))
        if is_split:
            return out, bits_of(plus(octaves, state.maximum))
        return out, bits_of(_flushed(multiply_add(octaves, ln_2, times(state.maximum, ln_2))))


@dataclass(frozen=True)
class SparseAttention:
    """FlashMLA's sparse decoding for one row of queries: a correct kernel, or a wrong one that tests must detect.

    Functions and names are those of csrc/sm90/decode/sparse_fp8/splitkv_mla.cuh at 9241ae3.

    Attributes
    ----------
    core, operands
        Tensor core of both products; format of Q, K, V and P.
    tile
        Keys per tile.
    by_pair, from_old, far_first, sink_in_lse, scaled_growth
        Wrong rules: a thread adds pairs of keys first; it adds the keys of a tile to the rescaled sum; threads exchange
        their sums at distance 2 first; the log-sum-exp has the sink; maxima are scaled after their difference.
    """

    core: Accumulator
    operands: Fields
    tile: int = 64
    by_pair: bool = False
    from_old: bool = False
    far_first: bool = False
    sink_in_lse: bool = False
    scaled_growth: bool = False
    functions: SpecialFunctions = ROUNDED

    def row(
        self, q: Sequence[int], k: Codes, v: Codes, scale: Exact, tiles: range, is_kv_valid: Sequence[bool],
        is_split: bool = False, attn_sink: Exact | None = None,
    ) -> tuple[list[int], int]:  # fmt: skip
        """Return the float32 bits of the output and of the log-sum-exp for the keys of some tiles.

        Parameters
        ----------
        q, k, v
            Codes: the query [D], keys [N][D] and values [N][Dv].
        scale
            Factor of the scores, a float32 number.
        tiles
            Tiles of keys, in order.
        is_kv_valid
            Which keys have a valid index [N].
        is_split
            Whether the log-sum-exp is that of a split, in octaves.
        attn_sink
            Logit that is added to the divisor.
        """
        columns, maximum = len(v[0]), _LEAST_MAX
        sums: list[Exact] = [Fraction(0)] * 4
        out = [0] * columns
        for block in tiles:
            keys = range(block * self.tile, (block + 1) * self.tile)
            values = [v[j] if j < len(v) and is_kv_valid[j] else [0] * columns for j in keys]
            scores: list[Exact] = [
                decode(self.core.rule.dot(q, k[j], 0, self.operands, self.operands), FLOAT32)
                if j < len(k) and is_kv_valid[j] else -math.inf
                for j in keys
            ]  # fmt: skip
            old, largest = maximum, rounded(-math.inf)
            for x in scores:
                largest = fmax(largest, _flushed(x))
            maximum = fmax(_times(largest, scale), old)
            growth = plus(old, negated(maximum))
            if self.scaled_growth and old != _LEAST_MAX:
                growth = times(plus(divided(old, scale), negated(divided(maximum, scale))), scale)
            factor = _flushed(self.functions.exp2(_flushed(growth)))
            p = [_flushed(self.functions.exp2(_flushed(multiply_add(x, scale, negated(maximum))))) for x in scores]
            sums = [self._add(sums[t], p, factor, t) for t in range(4)]
            codes = [encode(x, self.operands, "nonsaturate") for x in p]
            for c in range(columns):
                start = bits_of(_times(decode(out[c], FLOAT32), factor))
                column = [row[c] for row in values]
                out[c] = self.core.rule.dot(codes, column, start, self.operands, self.operands)
        near, far = (2, 1) if self.far_first else (1, 2)
        total = plus(plus(sums[0], sums[near]), plus(sums[far], sums[3]))
        divisor = total
        if attn_sink is not None:
            x = plus(times(attn_sink, rounded(Fraction(1 / LN_2))), negated(maximum))
            divisor = plus(total, _flushed(self.functions.exp2(x)))
            total = divisor if self.sink_in_lse and total != 0 else total
        inverse = Fraction(0) if total == 0 else self.functions.reciprocal(divisor)
        found = [bits_of(_times(decode(x, FLOAT32), _flushed(inverse))) for x in out]
        if total == 0:
            return found, bits_of(-math.inf if is_split else math.inf)
        octaves, ln_2 = total if math.isnan(total) else self.functions.log2(total), rounded(Fraction(LN_2))
        if is_split:
            return found, bits_of(plus(octaves, maximum))
        return found, bits_of(_flushed(multiply_add(octaves, ln_2, times(maximum, ln_2))))

    def _add(self, total: Exact, p: list[Exact], factor: Exact, thread: int) -> Exact:
        """Return a thread's sum after a tile."""
        held = [x for i in range(2 * thread, len(p), 8) for x in p[i : i + 2]]
        if self.by_pair:
            held = [plus(*held[i : i + 2]) for i in range(0, len(held), 2)]
        if self.from_old:
            found = _flushed(multiply_add(total, factor, held[0]))
            for x in held[1:]:
                found = plus(found, x)
            return found
        tile: Exact = Fraction(0)
        for x in held:
            tile = plus(tile, x)
        return _flushed(multiply_add(total, factor, tile))


@dataclass
class _State:
    maximum: Any
    sums: list[list[Exact]]
    out: list[int] = field(default_factory=list)

    def scale_out(self, columns: range, factor: Exact) -> None:
        for c in columns:
            self.out[c] = bits_of(_times(decode(self.out[c], FLOAT32), factor))


def combined(
    parts: Sequence[tuple[list[int], int]], lanes: int = 32, functions: SpecialFunctions = ROUNDED
) -> tuple[list[int], int]:
    """Return the bits of output and log-sum-exp from those of splits: csrc/smxx/decode/combine/combine.cu."""
    lses = [decode(lse, FLOAT32) for _, lse in parts]
    largest: Exact = max(lses, key=_order)
    largest = Fraction(0) if largest == -math.inf else largest
    threads: list[Exact] = [Fraction(0)] * lanes
    for i, lse in enumerate(lses):
        threads[i % lanes] = plus(threads[i % lanes], _flushed(functions.exp2(plus(lse, negated(largest)))))
    while len(threads) > 1:
        half = len(threads) // 2
        threads = [plus(threads[i], threads[i + half]) for i in range(half)]
    total = threads[0]
    whole: Exact = math.inf if total == 0 else total if math.isnan(total) else plus(functions.log2(total), largest)
    out: list[Exact] = [Fraction(0)] * len(parts[0][0])
    for (part, _), lse in zip(parts, lses, strict=True):
        weight = _flushed(functions.exp2(plus(lse, negated(whole))))
        out = [_flushed(multiply_add(weight, decode(x, FLOAT32), total)) for x, total in zip(part, out, strict=True)]
    return [bits_of(x) for x in out], bits_of(times(whole, rounded(Fraction(LN_2))))


def _order(x: Exact) -> float | Fraction:
    return x


def _flushed(x: Exact) -> Exact:
    return times(x, Fraction(0)) if x != 0 and is_below(x, LEAST) else x


def _times(a: Exact, b: Exact) -> Exact:
    return _flushed(times(a, b))
