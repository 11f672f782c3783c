"""SageAttention 3 in exact arithmetic: one row of queries as the source's four threads compute it, and its quantizer.

Names are those of blackwell/mainloop_tma_ws.h, blackwell/softmax_fused.h and quantization/fp4_quantization_4d.cu in
sageattention3_blackwell/sageattn3 at d1a57a5 of thu-ml/SageAttention. All float32 operations are fractions rounded
once; 2**x and log2 are computed to 60 digits. Contractions and divisions are those of nvcc 13.0 for sm_120a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..accumulators import Accumulator
from ..float32 import (
    LN_2,
    ONE,
    bits_of,
    divided,
    exp2,
    flushed,
    fmax,
    log2,
    multiply_add,
    negated,
    plus,
    rounded,
    times,
)
from ..machines.base import Scales
from ..values import E2M1FN, E4M3FN, FLOAT32, UE4M3, Exact, decode, encode

_LOG2_E, _P_LOG2, _FP4_LOG2 = (
    Fraction(x) for x in (1.44269504088896340736, -11.392317422778762, -2.584962500721156)
)  # fmt: skip
_SIXTH, _ZERO = rounded(Fraction(1, 6)), Fraction(0)
_INSTRUCTION, _SF_BLOCK = 64, 16


@dataclass(frozen=True)
class SageAttention3:
    """SageAttention 3's kernel for one row of queries: a correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    core
        Tensor core of both products.
    block
        Queries of a block, and keys of a tile.
    absmax_start
        Number in a block's maximum before the first tile.
    masks_keys, adds_second
        Wrong rules, which the library meant: the mask compares keys instead of columns; with a causal mask, the second
        tile of a block is part of the output.
    rounds_scale, sums_rounded_p
        Wrong rules: P is divided by the scale in E4M3; the sum adds the numbers that the second product multiplies.
    by_column, far_first, splits_fma, one_buffer, first_tile_first
        Wrong rules: a thread adds the keys of its columns; threads exchange their sums at distance 2 first; products
        are rounded before sums; the tensor core accumulates O; tiles run from the first key.
    """

    core: Accumulator
    block: int = 128
    absmax_start: Exact = _ZERO
    masks_keys: bool = False
    adds_second: bool = False
    rounds_scale: bool = False
    sums_rounded_p: bool = False
    by_column: bool = False
    far_first: bool = False
    splits_fma: bool = False
    one_buffer: bool = False
    first_tile_first: bool = False

    def row(
        self, index: int, q: Sequence[int], k: Sequence[Sequence[int]], v: Sequence[Sequence[int]],
        sfq: Sequence[int], sfk: Sequence[Sequence[int]], sfv: Sequence[Sequence[int]], delta_s: Sequence[Exact],
        softmax_scale: Exact, is_causal: bool = False,
    ) -> tuple[list[int], int]:  # fmt: skip
        """Return the float32 bits of the output [D] and of the log-sum-exp of one query.

        Parameters
        ----------
        index
            Number of the query in its head.
        q, k, v
            Codes of the query [D], of the keys [N][D] and of the values, transposed [D][N].
        sfq, sfk, sfv
            Codes of the scales of 16 numbers: [D / 16], [N][D / 16] and [D][N / 16].
        delta_s
            Addends of the scores [N].
        softmax_scale
            Scale of the softmax.
        """
        seqlen_k, scale = len(k), rounded(Fraction(rounded(Fraction(softmax_scale))) * _LOG2_E)
        stop = min(seqlen_k, (index // self.block + 1) * self.block) if is_causal else seqlen_k
        blocks = list(range(-(-stop // self.block)))
        row_max: Exact = -math.inf
        row_sum: list[Exact] = [_ZERO] * 4
        o_store: list[Exact] = [_ZERO] * len(v)
        for step, n_block in enumerate(blocks if self.first_tile_first else blocks[::-1]):
            keys = range(n_block * self.block, (n_block + 1) * self.block)
            scores = [self._score(q, sfq, k, sfk, delta_s, j) for j in keys]
            limit = (index + 1 if is_causal else seqlen_k) - keys.start
            if step == 0:
                scores = [
                    -math.inf if (j if self.masks_keys else _column(j)) >= limit else x for j, x in enumerate(scores)
                ]
            start = -math.inf if step else self.absmax_start
            groups = [scores[i : i + _SF_BLOCK] for i in range(0, len(scores), _SF_BLOCK)]
            absmax = [_largest(start, group) for group in groups]
            previous, row_max = row_max, _largest(row_max, absmax)
            max_scaled = self._fma(row_max, scale, rounded(_P_LOG2))
            p = [flushed(exp2(flushed(self._fma(x, scale, negated(max_scaled))))) for x in scores]
            shifted = [self._fma(x, scale, negated(max_scaled)) for x in absmax]
            sf = [flushed(exp2(flushed(plus(x, rounded(_FP4_LOG2))))) for x in shifted]
            sfp = [encode(x, E4M3FN) for x in sf]
            codes = [self._code(x, sf[j // _SF_BLOCK], sfp[j // _SF_BLOCK]) for j, x in enumerate(p)]
            if self.sums_rounded_p:
                pairs = enumerate(codes)
                p = [times(decode(c, E2M1FN), decode(sfp[j // _SF_BLOCK], E4M3FN)) for j, c in pairs]
            scores_scale = ONE if step == 0 else flushed(exp2(flushed(times(plus(previous, negated(row_max)), scale))))
            row_sum = [self._add(row_sum[t], scores_scale, p, t) for t in range(4)]
            if step == 1 and is_causal and not self.adds_second:
                continue
            for c, column in enumerate(v):
                old = flushed(times(o_store[c], scores_scale))
                begin = bits_of(old) if self.one_buffer else 0
                part = decode(self._values(codes, sfp, column, sfv[c], keys, begin), FLOAT32)
                whole = plus(old, part) if self.splits_fma else flushed(multiply_add(o_store[c], scores_scale, part))
                o_store[c] = part if self.one_buffer or step == 0 else whole
        near, far = (2, 1) if self.far_first else (1, 2)
        total = plus(plus(row_sum[0], row_sum[near]), plus(row_sum[far], row_sum[3]))
        is_empty = total == 0 or math.isnan(total)
        inv_sum = _ZERO if is_empty else flushed(divided(ONE, total))
        octaves = self._fma(row_max, scale, plus(log2(ONE if is_empty else total), rounded(_P_LOG2)))
        lse = -math.inf if is_empty else times(octaves, rounded(Fraction(LN_2)))
        return [bits_of(flushed(times(x, inv_sum))) for x in o_store], bits_of(lse)

    def _score(
        self, q: Sequence[int], sfq: Sequence[int], k: Sequence[Sequence[int]], sfk: Sequence[Sequence[int]],
        delta_s: Sequence[Exact], j: int,
    ) -> Exact:  # fmt: skip
        """Return the score of a key, whose chain starts from its addend; padded keys are zeros."""
        inside = j < len(k)
        key, scales = (k[j], sfk[j]) if inside else ([0] * len(q), [0] * len(sfq))
        return decode(self._dot(q, sfq, key, scales, bits_of(delta_s[j]) if inside else 0), FLOAT32)

    def _values(
        self, codes: Sequence[int], sfp: Sequence[int], column: Sequence[int], scales: Sequence[int], keys: range,
        begin: int,
    ) -> int:  # fmt: skip
        values = [column[j] if j < len(column) else 0 for j in keys]
        places = range(keys.start // _SF_BLOCK, keys.stop // _SF_BLOCK)
        return self._dot(codes, sfp, values, [scales[i] if i < len(scales) else 0 for i in places], begin)

    def _dot(
        self, a: Sequence[int], sfa: Sequence[int], b: Sequence[int], sfb: Sequence[int], start: int
    ) -> int:  # fmt: skip
        for k in range(0, len(a), _INSTRUCTION):
            part, of = slice(k, k + _INSTRUCTION), slice(k // _SF_BLOCK, (k + _INSTRUCTION) // _SF_BLOCK)
            both = Scales(list(sfa[of]), list(sfb[of]), UE4M3, _SF_BLOCK)
            start = self.core.rule.dot(list(a[part]), list(b[part]), start, E2M1FN, E2M1FN, both)
        return start

    def _code(self, p: Exact, sf: Exact, sfp: int) -> int:
        """Return the code of P / SF, where NaN is the largest number."""
        scale = decode(sfp, E4M3FN) if self.rounds_scale else sf
        found = flushed(times(p, math.inf if scale == 0 else flushed(divided(ONE, scale))))
        return 7 if math.isnan(found) else encode(found, E2M1FN)

    def _add(self, row_sum: Exact, scores_scale: Exact, p: Sequence[Exact], thread: int) -> Exact:
        """Return a thread's sum after a tile; the first addition has the rescaling."""
        held = [j for j in range(len(p)) if (j // 2 % 4 if self.by_column else j % 32 // 8) == thread]
        total = self._fma(row_sum, scores_scale, p[held[0]])
        for j in held[1:]:
            total = flushed(plus(total, p[j]))
        return total

    def _fma(self, a: Exact, b: Exact, c: Exact) -> Exact:
        a, b, c = flushed(a), flushed(b), flushed(c)
        return flushed(plus(flushed(times(a, b)), c) if self.splits_fma else multiply_add(a, b, c))


def _column(key: int) -> int:
    """Return the column of the tensor core's result that holds a key of a tile."""
    return key // 32 * 32 + key % 8 // 2 * 8 + key % 32 // 8 * 2 + key % 2


def _largest(start: Exact, numbers: Sequence[Exact]) -> Exact:
    for x in numbers:
        start = fmax(start, flushed(x))
    return start


def fp4_block(x: Sequence[Exact]) -> tuple[list[int], int]:
    """Return the codes and the scale's code of a block of up to 16 numbers in BF16: scaled_fp4_quant_kernel."""
    amax: Exact = _ZERO
    for number in x:
        amax = fmax(amax, -number if number < 0 else number)
    sf = encode(flushed(times(flushed(amax), _SIXTH)), E4M3FN)
    scale = decode(sf, E4M3FN)
    inverse = _ZERO if scale == 0 else divided(ONE, scale)
    found = [flushed(times(flushed(number), inverse)) for number in x]
    return [7 if math.isnan(number) else encode(number, E2M1FN) for number in found], sf
