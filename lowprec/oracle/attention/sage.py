"""SageAttention in exact arithmetic: one row of queries as the source's four threads compute it, and its quantizers.

Names are those of csrc/qattn/attn_utils.cuh, qk_int_sv_f8_cuda_sm89.cuh, csrc/fused/fused.cu and
sageattention/triton/quant_per_thread.py at d1a57a5 of thu-ml/SageAttention. All float32 operations are fractions
rounded once; 2**x and log2 are computed to 60 digits. Contractions are those of nvcc 13.0 for sm_89.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..accumulators import Accumulator
from ..float32 import (
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
from ..machines.fused import Rule
from ..values import BFLOAT16, E4M3FN, FLOAT16, FLOAT32, Exact, Fields, decode, encode

_LOG2_E, _MASKED, _TENTH_MICRO = (rounded(Fraction(x)) for x in (1.44269504088896340736, -5000000, Fraction(1, 10**7)))
_HALF, _127 = Fraction(1, 2), Fraction(127)
Numbers = Sequence[Exact]


@dataclass(frozen=True)
class SageAttention:
    """SageAttention's kernel for one row of queries: a correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    core
        Tensor core of P V.
    cta_q, warp_q, cta_k
        Queries of a block and of a warp, and keys of a tile.
    offset
        Number that is subtracted from the maxima.
    exact_tiles
        Number of the last tiles in which scores are rounded after they are multiplied by the scales of Q and K.
    masked
        Score of a hidden key, and maximum before the first tile.
    first_d
        Sum of a thread before the first tile.
    by_key, far_first, splits_fma
        Wrong rules: a thread adds its keys one by one; threads exchange their sums at distance 2 first; sums and
        outputs are rounded after they are rescaled.
    one_buffer, scales_once, next_thread, sums_rounded_p
        Wrong rules: the tensor core accumulates O; 1/d is multiplied by V's scale first; a thread reads the scale of
        K of the next one; the sum adds P after its conversion.
    lse_of_scores
        Wrong rule: the offset is added to the log-sum-exp.
    """

    core: Accumulator
    cta_q: int = 128
    warp_q: int = 32
    cta_k: int = 64
    offset: float = 8.807
    exact_tiles: int = 2
    masked: Exact = _MASKED
    first_d: Exact = ONE
    by_key: bool = False
    far_first: bool = False
    splits_fma: bool = False
    one_buffer: bool = False
    scales_once: bool = False
    next_thread: bool = False
    sums_rounded_p: bool = False
    lse_of_scores: bool = False

    def row(
        self, index: int, q: Sequence[int], k: Sequence[Sequence[int]], v: Sequence[Sequence[int]], q_scale: Numbers,
        k_scale: Numbers, v_scale: Numbers, sm_scale: Exact, causal: bool = False,
    ) -> tuple[list[int], int]:  # fmt: skip
        """Return the float32 bits of the output [D] and of the log-sum-exp of one query.

        Parameters
        ----------
        index
            Number of the query in its head.
        q, k
            Integers of the query [D] and of the keys [N][D].
        v
            Codes of the values [N][D].
        q_scale, k_scale, v_scale
            Scales as they are in memory: 8 for each warp of queries, 4 for each tile of keys, D for the channels.
        sm_scale
            Scale of the softmax.
        """
        bx, place = divmod(index, self.cta_q)
        num_warps = self.cta_q // self.warp_q
        own_scale = q_scale[bx * num_warps * 8 + place // self.warp_q * 8 + place % 8]
        kv_len, original = len(k), times(rounded(Fraction(sm_scale)), _LOG2_E)
        num_iterations = -(-(min(kv_len, (bx + 1) * self.cta_q) if causal else kv_len) // self.cta_k)
        m, d = self.masked, [self.first_d] * 4
        ro: list[Exact] = [Fraction(0)] * len(v[0])
        for tile in range(num_iterations):
            keys, is_late = range(tile * self.cta_k, (tile + 1) * self.cta_k), tile >= num_iterations - self.exact_tiles
            rs: list[list[Exact]] = [[], [], [], []]
            sm: list[Exact] = []
            for thread in range(4):
                shared = k_scale[tile * 4 + (thread + self.next_thread) % 4]
                dequant_scale = times(own_scale, shared)
                for j in self._held(keys, thread):
                    score: Exact = Fraction(sum(a * b for a, b in zip(q, k[j], strict=True)) if j < kv_len else 0)
                    if is_late:
                        score = flushed(times(score, dequant_scale))
                        hidden = j >= kv_len or (causal and j > index)
                        score = self.masked if hidden else score
                    rs[thread].append(score)
                sm.append(original if is_late else flushed(times(original, dequant_scale)))
            m, o_scale = self._update_m(rs, m, sm)
            p = {
                j: flushed(exp2(flushed(multiply_add(x, sm[thread], negated(m)))))
                for thread in range(4) for j, x in zip(self._held(keys, thread), rs[thread], strict=True)
            }  # fmt: skip
            codes = {j: encode(x, E4M3FN) for j, x in p.items()}
            summed = {j: decode(c, E4M3FN) for j, c in codes.items()} if self.sums_rounded_p else p
            d = [self._accumulate_d(d[t], o_scale, [summed[j] for j in self._held(keys, t)]) for t in range(4)]
            for c in range(len(ro)):
                column = [v[j][c] if j < kv_len else 0 for j in keys]
                rescaled = flushed(times(ro[c], o_scale))
                start = encode(rescaled, self._stored) if self.one_buffer else 0
                dot = self.core.rule.dot([codes[j] for j in keys], column, start, E4M3FN, E4M3FN)
                part = decode(dot, self._stored)
                whole = plus(rescaled, part) if self.splits_fma else multiply_add(ro[c], o_scale, part)
                ro[c] = part if self.one_buffer else flushed(whole)
        near, far = (2, 1) if self.far_first else (1, 2)
        total = plus(plus(d[0], d[near]), plus(d[far], d[3]))
        d_rcp = flushed(total if math.isnan(total) else divided(ONE, total))
        if self.scales_once:
            out = [times(x, times(d_rcp, scale)) for x, scale in zip(ro, v_scale, strict=True)]
        else:
            out = [flushed(times(flushed(times(x, d_rcp)), scale)) for x, scale in zip(ro, v_scale, strict=True)]
        octaves = plus(total if math.isnan(total) else log2(total), m)
        if self.lse_of_scores:
            octaves = plus(octaves, self._offset)
        return [bits_of(x) for x in out], bits_of(times(octaves, divided(ONE, rounded(Fraction(1.44269504)))))

    @property
    def _stored(self) -> Fields:
        return FLOAT16 if isinstance(self.core.rule, Rule) and self.core.rule.output == "f16" else FLOAT32

    @property
    def _offset(self) -> Exact:
        return rounded(Fraction(self.offset))

    def _held(self, keys: range, thread: int) -> list[int]:
        """Return the keys of a thread, in the order of RS[fk][0, 1, 4, 5]."""
        return [
            keys.start + 16 * fk + 8 * (i // 2) + 2 * thread + i % 2 for fk in range(len(keys) // 16) for i in range(4)
        ]

    def _update_m(self, rs: list[list[Exact]], m_prev: Exact, sm: list[Exact]) -> tuple[Exact, Exact]:
        """Return the row's new maximum and o_scale."""
        m = m_prev
        for scores, scale in zip(rs, sm, strict=True):
            m_temp = self.masked
            for x in scores:
                m_temp = fmax(m_temp, x)
            m = fmax(m, flushed(multiply_add(m_temp, scale, negated(self._offset))))
        return m, flushed(exp2(flushed(plus(m_prev, negated(m)))))

    def _accumulate_d(self, d: Exact, o_scale: Exact, p: Numbers) -> Exact:
        """Return a thread's sum after a tile; the first addition has the rescaling."""
        groups = [p[i : i + 4] for i in range(0, len(p), 4)]
        parts: list[Exact] = list(p) if self.by_key else [plus(plus(plus(a, b), c), e) for a, b, c, e in groups]
        first = plus(times(d, o_scale), parts[0]) if self.splits_fma else multiply_add(d, o_scale, parts[0])
        for part in parts[1:]:
            first = plus(first, part)
        return first


def mean(x: Sequence[int]) -> Exact:
    """Return the mean of BF16 codes in BF16: the exact sum, rounded to float32, times the rounded 1 / N."""
    total = rounded(Fraction(sum(Fraction(decode(code, BFLOAT16)) for code in x)))
    return _bf16(times(total, divided(ONE, Fraction(len(x)))))


def per_thread_int8(rows: Sequence[Sequence[Exact]]) -> tuple[list[list[int]], Exact]:
    """Return the integers and the scale of a group of rows: quant_query_per_thread_int8_kernel."""
    scale = plus(divided(max(abs(Fraction(x)) for row in rows for x in row), _127), _TENTH_MICRO)

    def integer(x: Exact) -> int:
        ratio = divided(x, scale)
        return math.trunc(plus(ratio, _HALF if ratio >= 0 else -_HALF))

    return [[integer(x) for x in row] for row in rows], scale


def per_warp_int8(rows: Sequence[Sequence[Exact]]) -> tuple[list[list[int]], Exact]:
    """Return the integers and the scale of a group of rows: QuantInt8Kernel."""
    amax = max(Fraction(_TENTH_MICRO), *(abs(Fraction(x)) for row in rows for x in row))
    factor = divided(_127, amax)
    codes = [[max(-128, min(127, round(Fraction(times(x, factor))))) for x in row] for row in rows]
    return codes, divided(amax, _127)


def per_channel_fp8(column: Sequence[Exact], scale_max: float) -> tuple[list[int], Exact]:
    """Return the codes of E4M3 and the scale of a channel that is not zero: MeanScaleKernel."""
    amax = max(abs(Fraction(x)) for x in column)
    factor = divided(Fraction(scale_max), amax)
    return [encode(times(x, factor), E4M3FN) for x in column], flushed(divided(amax, Fraction(scale_max)))


def shifted(x: Exact, center: Exact, is_rounded: bool) -> Exact:
    """Return x - center: in BF16 by PyTorch, before the kernels of threads; in float32 in those of warps."""
    difference = plus(x, negated(center))
    return _bf16(difference) if is_rounded else difference


def _bf16(x: Exact) -> Exact:
    return decode(encode(x, BFLOAT16, "nonsaturate"), BFLOAT16)
