"""One row of attention in exact arithmetic: scores, online softmax by tiles of keys, P in low precision, and output.

Every float32 operation is a fraction rounded once. 2**x, log2 and 1/x are those of `Attention.functions`, except where
an attention kernel evaluates a published polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    is_below,
    multiply_add,
    negated,
    plus,
    rounded,
    times,
)
from ..values import FLOAT32, Exact, Fields, decode, encode


@dataclass(frozen=True)
class Attention:
    """An attention kernel: a correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    scores, values
        Tensor cores of both products.
    operands, p_format
        Formats of Q, K and V, and of P.
    tile
        Keys per tile.
    sum_order
        "quad": four threads per row; "quad_fused": the same, with each first addition fused with the rescaling;
        "packed": one thread with eight chains.
    polynomial, emulated
        Coefficients of a polynomial for 2**x, and the columns of a tile for which it is used.
    offset, threshold, promote_every
        Exponent of the power of two that multiplies P; largest growth of the maximum, in octaves, for which the old
        maximum is kept; number of tiles between additions of P V to the output in float32.
    p_scale
        Factor of P before its conversion; its rounded reciprocal multiplies V's scale.
    backwards
        Whether tiles run from the last key to the first.
    fused_scores, fused_shift, flush
        Whether s * scale - shift and maximum * scale - offset are rounded once; whether subnormal operands and results
        of operations in float32 count as zero.
    empty_scale, empty_lse, lse_in_octaves, fused_lse
        Results of a row without probabilities (the first two); whether the log-sum-exp is computed in octaves; whether
        it is a fused multiply-add.
    plain_lse
        Whether the log-sum-exp is maximum * scale + log2(sum), in every row.
    divides
        Whether the output's factor is V's scale divided by the sum: both times 1/4 for sums above 2^126.
    functions
        2**x, log2 and 1/x.
    guards_shift
        Whether a maximum of -inf counts as 0 in the argument of 2**x, in every tile.
    sink
        How a sink is added at the end: "shifted", by a fused multiply-add, or "offset", with the offset added last.
    sums_rounded_p
        Wrong rule: the sum adds P after its conversion.
    drops_v_descale
        Wrong rule: the output is not multiplied by V's scale.
    flushes_p
        Wrong rule: probabilities below the least normal number of P's format become zero.
    keeps_operands
        Wrong rule: subnormal operands keep their values.
    """

    scores: Accumulator
    values: Accumulator
    operands: Fields
    p_format: Fields
    tile: int
    sum_order: str = "quad"
    polynomial: tuple[Fraction, ...] = ()
    emulated: frozenset[int] = frozenset()
    offset: int = 0
    threshold: float = 0.0
    promote_every: int | None = None
    backwards: bool = True
    fused_scores: bool = True
    fused_shift: bool = True
    flush: bool = True
    empty_scale: Fraction = Fraction(0)
    empty_lse: float = -math.inf
    lse_in_octaves: bool = False
    fused_lse: bool = True
    p_scale: Fraction = ONE
    plain_lse: bool = False
    divides: bool = False
    functions: SpecialFunctions = ROUNDED
    guards_shift: bool = False
    sink: str = "shifted"
    sums_rounded_p: bool = False
    drops_v_descale: bool = False
    flushes_p: bool = False
    keeps_operands: bool = False

    def row(
        self,
        q: Sequence[int],
        k: Sequence[Sequence[int]],
        v: Sequence[Sequence[int]],
        scale: Exact,
        v_descale: Exact = ONE,
        low: int = 0,
        high: int | None = None,
        cap: Exact | None = None,
        sink: Exact | None = None,
        lse_scale: Exact | None = None,
        visits: Sequence[tuple[int, bool]] | None = None,
    ) -> tuple[list[int], int]:
        """Return the float32 bits of the output [Dv] and of the log-sum-exp of one query.

        Parameters
        ----------
        q, k, v
            Codes: the query [D], keys [N][D] and values [N][Dv].
        scale
            Factor that converts scores to exponents of 2, a float32 number.
        v_descale
            Scale of V.
        low, high
            First key that the query sees, and one past the last.
        cap
            Factor of the scores before their hyperbolic tangent.
        sink
            Logit that is added to the sum.
        lse_scale
            Factor of the maximum in the log-sum-exp; `scale` times ln 2 if it is not given.
        visits
            First key of each tile that is loaded, in order, and whether a maximum of -inf counts as 0 in the tile; by
            default, the tiles with a key that the query sees, all with True.
        """
        channels, high = len(v[0]), len(k) if high is None else high
        maximum: Exact = -math.inf
        sums: list[Exact] = [Fraction(0)] * 4
        out = [0] * channels
        promoted: list[Exact] | None = [Fraction(0)] * channels if self.promote_every else None
        if visits is None:
            starts = list(range(0, len(k), self.tile))[:: -1 if self.backwards else 1]
            visits = [(start, True) for start in starts if low - self.tile < start < high]
        first, done = True, 0
        for start, guarded in visits:
            seen = [j for j in range(start, start + self.tile) if low <= j < high]
            scores = {j: decode(self.scores.rule.dot(q, k[j], 0, self.operands, self.operands), FLOAT32) for j in seen}
            if cap is not None:
                scores = {j: self.functions.tanh(self._times(score, cap)) for j, score in scores.items()}
            largest: Any = maximum
            for score in map(self._flushed, scores.values()):
                if not math.isnan(score) and score > largest:
                    largest = score
            growth: Any = self._times(self._minus(maximum, _finite(largest, guarded)), scale)
            factor: Exact = ONE if first else self._exp2(growth)
            if self.threshold and not first and growth >= -self.threshold:
                largest, factor = maximum, ONE
            maximum = largest
            safe = _finite(maximum, guarded or self.guards_shift)
            shift = self._multiply_add(safe, scale, Fraction(-self.offset), self.fused_shift)
            p: list[Exact] = []
            for j in range(start, start + self.tile):
                x: Exact = -math.inf
                if j in scores:
                    x = self._multiply_add(scores[j], scale, negated(shift), self.fused_scores)
                p.append(self._polynomial(x) if j - start in self.emulated else self._exp2(x))
            codes = [encode(x if self.p_scale == 1 else self._times(x, self.p_scale), self.p_format) for x in p]
            if self.flushes_p:
                least = decode(1 << self.p_format.mantissa_bits, self.p_format)
                codes = [0 if is_below(decode(c, self.p_format), least) else c for c in codes]
            added = [decode(c, self.p_format) for c in codes] if self.sums_rounded_p else p
            sums = self._add(added, sums, factor)
            if not first:
                out = [bits_of(self._times(decode(o, FLOAT32), factor)) for o in out]
                promoted = None if promoted is None else [self._times(o, factor) for o in promoted]
            first, done = False, done + 1
            tile = [v[j] if 0 <= j < len(v) else [0] * channels for j in range(start, start + self.tile)]
            out = [
                self.values.rule.dot(codes, [r[c] for r in tile], out[c], self.p_format, self.operands)
                for c in range(channels)
            ]
            if promoted is not None and self.promote_every and done % self.promote_every == 0:
                promoted = [self._plus(a, decode(b, FLOAT32)) for a, b in zip(promoted, out, strict=True)]
                out = [0] * channels
        if promoted is not None:
            out = [bits_of(self._plus(a, decode(b, FLOAT32))) for a, b in zip(promoted, out, strict=True)]
        total = sums[0] if self.sum_order == "packed" else plus(plus(sums[0], sums[2]), plus(sums[1], sums[3]))
        if sink is not None:
            total, maximum = self._with_sink(total, maximum, scale, sink)
        return self._finish(out, total, maximum, scale, ONE if self.drops_v_descale else v_descale, lse_scale)

    def _with_sink(self, total: Exact, maximum: Exact, scale: Exact, sink: Exact) -> tuple[Exact, Exact]:
        log2_e, offset = rounded(Fraction(1 / LN_2)), Fraction(self.offset)
        if self.sink == "offset" and maximum == -math.inf:
            return Fraction(1 << self.offset), times(sink, divided(log2_e, scale))
        if self.sink == "offset":
            x = plus(plus(times(sink, log2_e), negated(times(maximum, scale))), offset)
            return plus(total, self._exp2(x)), maximum
        safe = Fraction(0) if maximum == -math.inf else maximum
        shift = self._multiply_add(safe, scale, -offset, self.fused_shift)
        return plus(total, self._exp2(multiply_add(log2_e, sink, negated(shift)))), safe

    def _finish(
        self, out: list[int], total: Exact, maximum: Exact, scale: Exact, v_descale: Exact, lse_scale: Exact | None
    ) -> tuple[list[int], int]:
        is_empty = total == 0 or math.isnan(total)
        v_descale = times(v_descale, rounded(1 / self.p_scale))
        share = Fraction(1, 4) if self.divides and total > 2**126 else ONE
        inverse = self.empty_scale if is_empty else self.functions.reciprocal(times(total, share))
        factor = self._times(self._flushed(inverse, always=True), times(v_descale, share))
        numbers = [bits_of(self._times(decode(o, FLOAT32), factor)) for o in out]
        if self.plain_lse:
            octaves: Exact = total if math.isnan(total) else -math.inf if total == 0 else self.functions.log2(total)
            return numbers, bits_of(self._multiply_add(maximum, scale, octaves, self.fused_lse))
        if is_empty:
            return numbers, bits_of(self.empty_lse)
        ln_2 = rounded(Fraction(LN_2))
        if self.lse_in_octaves:
            octaves = plus(self.functions.log2(total), Fraction(-self.offset))
            return numbers, bits_of(times(self._multiply_add(maximum, scale, octaves, self.fused_lse), ln_2))
        nats = times(self.functions.log2(times(total, Fraction(1, 1 << self.offset))), ln_2)
        factor = times(scale, ln_2) if lse_scale is None else lse_scale
        return numbers, bits_of(self._multiply_add(maximum, factor, nats, self.fused_lse))

    def _add(self, p: list[Exact], sums: list[Exact], factor: Exact) -> list[Exact]:
        """Return the partial sums after they are rescaled and a tile of probabilities is added."""
        if self.sum_order == "packed":
            chains: list[Exact] = [Fraction(0)] * 8
            chains[0] = self._times(sums[0], factor)
            for j, x in enumerate(p):
                chains[j % 8] = self._plus(chains[j % 8], x)
            halves = [
                self._plus(self._plus(chains[lane], chains[2 + lane]), self._plus(chains[4 + lane], chains[6 + lane]))
                for lane in (0, 1)
            ]
            return [self._plus(*halves)] + [Fraction(0)] * 3
        found: list[Exact] = []
        for thread in range(4):
            keys = [j for j in range(len(p)) if j % 8 // 2 == thread]
            if not keys:
                found.append(Fraction(0))
                continue
            total = self._multiply_add(sums[thread], factor, p[keys[0]], self.sum_order == "quad_fused")
            for j in keys[1:]:
                total = self._plus(total, p[j])
            found.append(total)
        return found

    def _exp2(self, x: Exact) -> Exact:
        return self._flushed(self.functions.exp2(x), always=True)

    def _polynomial(self, x: Exact) -> Exact:
        clamped = Fraction(x) if x >= -127 else Fraction(-127)
        whole = math.floor(clamped)
        fraction = rounded(clamped - whole)
        value: Exact = self.polynomial[-1]
        for coefficient in reversed(self.polynomial[:-1]):
            value = multiply_add(value, fraction, coefficient)
        return decode((encode(value, FLOAT32) + (whole << 23)) % (1 << 32), FLOAT32)

    def _flushed(self, x: Exact, always: bool = False) -> Exact:
        if (self.flush or always) and x != 0 and is_below(x, LEAST):
            return -0.0 if x < 0 else Fraction(0)
        return x

    def _times(self, a: Exact, b: Exact) -> Exact:
        return self._multiply_add(a, b, -0.0)

    def _plus(self, a: Exact, b: Exact) -> Exact:
        return self._multiply_add(a, ONE, b)

    def _minus(self, a: Exact, b: Exact) -> Exact:
        return self._plus(a, negated(b))

    def _multiply_add(self, a: Exact, b: Exact, c: Exact, fused: bool = True) -> Exact:
        if not fused:
            return self._plus(self._times(a, b), c)
        operands = (a, b, c) if self.keeps_operands else map(self._flushed, (a, b, c))
        return self._flushed(multiply_add(*operands))


@dataclass(frozen=True)
class Combine:
    """A kernel that combines split keys: a correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    lanes
        Threads of a row; thread t adds every `lanes`-th exponential from t on.
    by_total, scaled, skips_zeros, empty_lse, flush
        Whether weights are exp(lse - total) instead of exp(lse - maximum) / sum; whether the argument of 2**x is one
        fused multiply-add; whether splits without a positive weight are left out; log-sum-exp of a row without a key;
        whether subnormal weights, operands and outputs count as zero.
    functions
        2**x, log2 and 1/x.
    """

    lanes: int
    by_total: bool
    scaled: bool
    skips_zeros: bool
    empty_lse: float
    flush: bool
    functions: SpecialFunctions = ROUNDED

    def row(self, parts: Sequence[tuple[list[int], int]]) -> tuple[list[int], int]:
        """Return the float32 bits of the output and of the log-sum-exp from those of the splits."""
        lses = [decode(lse, FLOAT32) for _, lse in parts]
        comparable: Any = [x for x in lses if not math.isnan(x)]
        largest: Exact = max(comparable, default=math.nan)
        safe = Fraction(0) if largest == -math.inf else largest
        exps = [self._exp(x, safe) for x in lses]
        threads: list[Exact] = [Fraction(0)] * self.lanes
        for i, x in enumerate(exps):
            threads[i % self.lanes] = plus(threads[i % self.lanes], x)
        while len(threads) > 1:
            half = len(threads) // 2
            threads = [plus(a, b) for a, b in zip(threads[:half], threads[half:], strict=True)]
        total = threads[0]
        is_empty = total == 0 or math.isnan(total)
        octaves: Exact = total if math.isnan(total) else -math.inf if total == 0 else self.functions.log2(total)
        lse = multiply_add(octaves, rounded(Fraction(LN_2)), largest)
        if self.by_total:
            lse = self.empty_lse if is_empty else lse
            weights = [self._exp(x, lse) for x in lses]
        else:
            inverse = Fraction(0) if is_empty else self.functions.reciprocal(total)
            weights = [times(x, inverse) for x in exps]
        out: list[Exact] = [Fraction(0)] * len(parts[0][0])
        for weight, (part, _) in zip(weights, parts, strict=True):
            positive: Any = weight
            if positive > 0 or not self.skips_zeros:
                pairs = [(self._flushed(decode(x, FLOAT32)), y) for x, y in zip(part, out, strict=True)]
                out = [self._flushed(multiply_add(x, self._flushed(weight), y)) for x, y in pairs]
        return [bits_of(x) for x in out], bits_of(lse)

    def _flushed(self, x: Exact) -> Exact:
        return times(x, Fraction(0)) if self.flush and is_below(x, LEAST) else x

    def _exp(self, x: Exact, offset: Exact) -> Exact:
        log2_e = rounded(Fraction(1 / LN_2))
        if self.scaled:
            argument = multiply_add(x, log2_e, negated(times(offset, log2_e)))
        else:
            argument = times(plus(x, negated(offset)), log2_e)
        found = self.functions.exp2(argument)
        return Fraction(0) if is_below(found, LEAST) else found


def _finite(maximum: Exact, guarded: bool) -> Exact:
    return Fraction(0) if guarded and maximum == -math.inf else maximum
