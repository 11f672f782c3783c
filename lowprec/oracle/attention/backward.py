"""Gradients of one head of attention in exact arithmetic, rounded to float32 after every operation.

The rule is FlashAttention-2's deterministic backward pass: P and dS are rounded to bfloat16, dK and dV are accumulated
over the tiles of queries from the last to the first, and dQ is accumulated in buffers by tiles of keys. With `flush`,
operations in float32, but not those of the tensor core, take subnormal operands as zero and return zero for subnormal
results.
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
    ROUNDED,
    SpecialFunctions,
    bits_of,
    is_below,
    multiply_add,
    negated,
    plus,
    rounded,
    times,
)
from ..values import FLOAT32, Exact, Fields, decode, encode

Codes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Backward:
    """A backward pass: the correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    core, operands
        Tensor core of all products, and the format of all operands.
    queries, keys
        Number of queries and of keys per tile.
    columns
        Number of columns that the threads of one row load at once.
    buffers
        Number of buffers in which dQ is accumulated.
    flush
        Whether subnormal operands and results of operations in float32, other than 2**x, count as zero.
    backwards
        Whether tiles of queries run from the last to the first.
    last_key_first
        Whether tiles of keys are added to dQ from the last to the first.
    bulk_adds
        Whether a bulk copy adds to dQ in memory, with subnormal numbers.
    rounded_p, keeps_operands, skips_padding
        Wrong rules: dS is computed from P after its rounding; subnormal operands keep their values; queries after the
        last and hidden keys have P = dS = 0 without computation.
    functions
        2**x.
    """

    core: Accumulator
    operands: Fields
    queries: int
    keys: int
    columns: int
    buffers: int
    flush: bool = True
    backwards: bool = True
    last_key_first: bool = False
    bulk_adds: bool = False
    rounded_p: bool = False
    keeps_operands: bool = False
    skips_padding: bool = False
    functions: SpecialFunctions = ROUNDED

    def head(
        self, q: Codes, k: Codes, v: Codes, dout: Codes, out: Sequence[Sequence[Exact]], lse: Sequence[Exact],
        octaves: Exact, scale: Exact, left: int = -1, right: int = -1,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Return the float32 bits of dQ, dK and dV from codes, the output and the log-sum-exp.

        Query i sees `left` keys to the left of key i + N - M and `right` keys to its right; -1: all.
        """
        m, n, d, channels = len(q), len(k), len(q[0]), len(v[0])
        padding = -m % self.queries
        sums = [self.dot(dout[i], out[i]) for i in range(m)] + [Fraction(0)] * padding
        lse = [*lse, *[math.inf] * padding]
        place = range(n - m, n - m + len(lse))
        limits = [(x - left if left >= 0 else 0, x + right if right >= 0 else n) for x in place]
        tiles = -(-n // self.keys)
        buffers: Any = [[[Fraction(0)] * d for _ in range(m)] for _ in range(min(tiles, self.buffers))]
        numbers = (decode(code, self.operands) for x in (q, k, v, dout) for row in x for code in row)
        is_finite = all(map(math.isfinite, numbers))  # then P = dS = 0 without computation
        dk, dv = ([[0] * width for _ in range(n)] for width in (d, channels))
        blocks = list(range(0, m, self.queries))
        for tile in reversed(range(tiles)) if self.last_key_first else range(tiles):
            cols = range(tile * self.keys, (tile + 1) * self.keys)
            for start in reversed(blocks) if self.backwards else blocks:
                rows = range(start, start + self.queries)
                if all(limits[i][0] > cols[-1] or limits[i][1] < cols[0] for i in rows):
                    continue
                padded_k, padded_v, padded_q, padded_dout = (
                    [x[i] if i < len(x) else [0] * len(x[0]) for i in span]
                    for x, span in ((k, cols), (v, cols), (q, rows), (dout, rows))
                )
                p, ds = {}, {}
                for i, one_q, one_dout in zip(rows, padded_q, padded_dout, strict=True):
                    for j, one_k, one_v in zip(cols, padded_k, padded_v, strict=True):
                        seen = j < n and limits[i][0] <= j <= limits[i][1]
                        p[i, j], ds[i, j] = 0, 0
                        if (seen and i < m) or not (is_finite or self.skips_padding):
                            pair = one_q, one_k, one_v, one_dout
                            p[i, j], ds[i, j] = self._pair(*pair, lse[i], sums[i], octaves, seen)
                for i in (i for i in rows if i < m):
                    row = [ds[i, j] for j in cols]
                    for c in range(d):
                        added = self._product(row, [key[c] for key in padded_k], 0)
                        buffer = buffers[tile % self.buffers][i]
                        add = plus if self.bulk_adds else self._added
                        buffer[c] = add(buffer[c], decode(added, FLOAT32))
                for j in (j for j in cols if j < n):
                    for c in range(channels):
                        dv[j][c] = self._product([p[i, j] for i in rows], [x[c] for x in padded_dout], dv[j][c])
                    for c in range(d):
                        dk[j][c] = self._product([ds[i, j] for i in rows], [x[c] for x in padded_q], dk[j][c])
        dq = []
        for i in range(m):
            total: list[Exact] = [Fraction(0)] * d
            for buffer in buffers:
                total = [self._added(a, b) for a, b in zip(total, buffer[i], strict=True)]
            dq.append([bits_of(self._times(x, scale)) for x in total])
        dk = [[bits_of(self._times(decode(x, FLOAT32), scale)) for x in row] for row in dk]
        return dq, dk, dv

    def _pair(
        self, q: Sequence[int], k: Sequence[int], v: Sequence[int], dout: Sequence[int], lse: Exact, total: Exact,
        octaves: Exact, seen: bool,
    ) -> tuple[int, int]:  # fmt: skip
        """Return the codes of P and dS."""
        score = decode(self._product(q, k, 0), FLOAT32) if seen else -math.inf
        shift = self._times(Fraction(0) if lse == -math.inf else lse, rounded(Fraction(1 / LN_2)))
        p = _flushed(self.functions.exp2(self._multiply_add(score, octaves, negated(shift))))
        code = encode(p, self.operands, "nonsaturate")
        factor = decode(code, self.operands) if self.rounded_p else p
        dp = decode(self._product(dout, v, 0), FLOAT32)
        ds = self._times(factor, self._added(dp, negated(total)))
        return code, encode(ds, self.operands, "nonsaturate")

    def _product(self, a: Sequence[int], b: Sequence[int], c: int) -> int:
        return self.core.rule.dot(a, b, c, self.operands, self.operands)

    def dot(self, dout: Sequence[int], out: Sequence[Exact]) -> Exact:
        """Return a row's dot product, in which thread t adds columns 8t to 8t + 7 of every `columns`."""
        threads: list[Exact] = []
        for t in range(self.columns // 8):
            mine = [c for c in range(len(out)) if c % self.columns // 8 == t]
            total: Exact = -0.0
            for c in mine:
                total = self._multiply_add(decode(dout[c], self.operands), out[c], total)
            threads.append(total if len(out) % self.columns == 0 else plus(total, Fraction(0)))
        while len(threads) > 1:
            half = len(threads) // 2
            threads = [self._added(a, b) for a, b in zip(threads[:half], threads[half:], strict=True)]
        return threads[0]

    def _added(self, a: Exact, b: Exact) -> Exact:
        return self._multiply_add(a, Fraction(1), b)

    def _times(self, a: Exact, b: Exact) -> Exact:
        return self._multiply_add(a, b, -0.0)

    def _multiply_add(self, a: Exact, b: Exact, c: Exact) -> Exact:
        operands = (a, b, c) if self.keeps_operands or not self.flush else map(_flushed, (a, b, c))
        found = multiply_add(*operands)
        return _flushed(found) if self.flush else found


def _flushed(x: Exact) -> Exact:
    if x != 0 and is_below(x, LEAST):
        return times(x, Fraction(0))
    return x
