"""One row of Triton's fused attention in exact arithmetic: triton-lang/triton, python/tutorials/06-fused-attention.py.

Names are those of the tutorial's `_attn_fwd`. Its source leaves contractions and the order of a row's sum open; these
follow the PTX and SASS that Triton 3.6.0 compiles for sm_90. All float32 operations are fractions rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..accumulators import Accumulator
from ..float32 import LEAST, SpecialFunctions, bits_of, fmax, is_below, multiply_add, negated, plus, rounded, times
from ..mufu import TRITON
from ..values import FLOAT32, Exact, Fields, decode, encode

_MASKED = Fraction(-(10**6))
Codes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class FusedAttention:
    """Triton's kernel for one row of queries: a correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    core, operands
        Tensor core of both products; format of Q, K, V and P.
    block_m, block_n
        Queries and keys per tile.
    functions
        2**x, log2 and 1/x.
    backwards, by_row
        Wrong rules: tiles run from the last one; only tiles that hide a key of the row are masked.
    contracts_mask, rounds_scores, rounds_l
        Wrong rules: arguments of masked tiles are rounded once; those of other tiles twice; l_i * alpha is rounded.
    near_first, by_thread, sums_rounded_p
        Wrong rules: threads exchange their sums at distance 1 first; threads keep their sums until the end; P is added
        after its conversion.
    exact_log2_e, hides_by_infinity
        Wrong rules: the scale is multiplied by log2(e) before it is rounded; hidden keys have scores of -inf.
    multiplies, flushes_quotient
        Wrong rules: outputs are multiplied by 1 / l_i; subnormal quotients become zero.
    """

    core: Accumulator
    operands: Fields
    block_m: int
    block_n: int
    functions: SpecialFunctions = TRITON
    backwards: bool = False
    by_row: bool = False
    contracts_mask: bool = False
    rounds_scores: bool = False
    rounds_l: bool = False
    near_first: bool = False
    by_thread: bool = False
    sums_rounded_p: bool = False
    exact_log2_e: bool = False
    hides_by_infinity: bool = False
    multiplies: bool = False
    flushes_quotient: bool = False

    def row(
        self, offs_m: int, q: Sequence[int], k: Codes, v: Codes, sm_scale: float, causal: bool
    ) -> tuple[list[int], int]:
        """Return the float32 bits of the output and of M, the log-sum-exp to base 2, of query `offs_m`.

        Parameters
        ----------
        q, k, v
            Codes: the query [D], keys [N][D] and values [N][Dv].
        """
        log2_e = Fraction(144269504, 10**8)
        qk_scale = times(rounded(Fraction(sm_scale)), rounded(log2_e))
        if self.exact_log2_e:
            qk_scale = rounded(Fraction(sm_scale) * Fraction(math.log2(math.e)))
        m_i: Exact = -math.inf
        l_i: list[Exact] = [Fraction(1)] * (4 if self.by_thread else 1)
        acc = [0] * len(v[0])
        border = offs_m // self.block_m * self.block_m  # of stages 1 and 2
        last = min(border + self.block_m, len(k)) if causal else len(k)
        tiles = range(0, last, self.block_n)
        for start_n in reversed(tiles) if self.backwards else tiles:
            keys = range(start_n, start_n + self.block_n)
            qk = [decode(self.core.rule.dot(q, k[j], 0, self.operands, self.operands), FLOAT32) for j in keys]
            is_masked = causal and (offs_m < keys[-1] if self.by_row else start_n >= border)
            hidden = -math.inf if self.hides_by_infinity else _MASKED
            if is_masked:
                raw = qk
                mask: list[Exact] = [Fraction(0) if offs_m >= j else hidden for j in keys]
                qk = [multiply_add(x, qk_scale, y) for x, y in zip(raw, mask, strict=True)]
                m_ij = fmax(m_i, _largest(qk))
                if self.contracts_mask:
                    both = zip(raw, mask, strict=True)
                    qk = [multiply_add(x, qk_scale, plus(y, negated(m_ij))) for x, y in both]
                else:
                    qk = [plus(x, negated(m_ij)) for x in qk]
            else:
                m_ij = fmax(m_i, times(_largest(qk), qk_scale))
                if self.rounds_scores:
                    qk = [plus(times(x, qk_scale), negated(m_ij)) for x in qk]
                else:
                    qk = [multiply_add(x, qk_scale, negated(m_ij)) for x in qk]
            p = [self.functions.exp2(x) for x in qk]
            alpha = self.functions.exp2(plus(m_i, negated(m_ij)))
            codes = [encode(x, self.operands, "nonsaturate") for x in p]
            threads = self._thread_sums([decode(x, self.operands) for x in codes] if self.sums_rounded_p else p)
            l_ij = threads if self.by_thread else [self._total(threads)]
            if self.rounds_l:
                l_i = [plus(times(x, alpha), y) for x, y in zip(l_i, l_ij, strict=True)]
            else:
                l_i = [multiply_add(x, alpha, y) for x, y in zip(l_i, l_ij, strict=True)]
            for c in range(len(acc)):
                start = bits_of(times(decode(acc[c], FLOAT32), alpha))
                column = [v[j][c] for j in keys]
                acc[c] = self.core.rule.dot(codes, column, start, self.operands, self.operands)
            m_i = m_ij
        total = self._total(l_i) if self.by_thread else l_i[0]
        out = [self._quotient(decode(x, FLOAT32), total) for x in acc]
        return [bits_of(x) for x in out], bits_of(plus(m_i, self.functions.log2(total)))

    def _thread_sums(self, p: Sequence[Exact]) -> list[Exact]:
        """Return the sums of the four threads of a row, which hold keys 2t and 2t + 1 of every eight."""
        found = []
        for thread in range(4):
            held = [p[j] for j in range(len(p)) if j % 8 // 2 == thread]
            total = held[0]
            for x in held[1:]:
                total = plus(total, x)
            found.append(total)
        return found

    def _total(self, threads: Sequence[Exact]) -> Exact:
        """Return thread 0's sum after the butterfly, at distance 2 and then 1."""
        near, far = (2, 1) if self.near_first else (1, 2)
        return plus(plus(threads[0], threads[far]), plus(threads[near], threads[3]))

    def _quotient(self, a: Exact, b: Exact) -> Exact:
        """Return a / b of ``div.full.f32``: both times 1/4 for a large b, and times 2^24 for a subnormal one."""
        scale = Fraction(1)
        if is_below(b, LEAST):
            scale = Fraction(2**24)
        elif not is_below(b, 2**126) and abs(b) != 2**126:
            scale = Fraction(1, 4)
        if self.multiplies:
            return times(a, self.functions.reciprocal(b))
        found = times(times(a, scale), self.functions.reciprocal(times(b, scale)))
        return Fraction(0) if self.flushes_quotient and is_below(found, LEAST) else found


def _largest(scores: Sequence[Exact]) -> Exact:
    found = scores[0]
    for x in scores[1:]:
        found = fmax(found, x)
    return found
