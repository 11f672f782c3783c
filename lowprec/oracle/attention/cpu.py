"""One row of PyTorch's attention on a CPU in exact arithmetic, every float32 operation a fraction rounded once.

Sources: pytorch 430c4e3, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp; the wheel of 2.13.0,
ATen/cpu/vec/vec512/vec512_float.h:316-437; pytorch, aten/src/ATen/native/transformers/attention.cpp and
native/cpu/SoftMaxKernel.cpp; SLEEF 3.6, src/libm/sleefsimdsp.c: expf; glibc 04277e0, sysdeps/ieee754/flt-32/e_expf.c,
e_logf.c, e_logf_data.c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..float32 import DIGITS, ONE, bits_of, by_digits, divided, multiply_add, negated, plus, rounded, times
from ..values import FLOAT32, Exact, Fields, decode, encode

ZERO = Fraction(0)


def _f(text: str) -> Exact:
    return rounded(Fraction(float(text)))


_LOG2_E, _LN_2 = decode(0x3FB8AA3B, FLOAT32), decode(0x3F317218, FLOAT32)
_LOW, _HIGH = decode(0xC2AEAC50, FLOAT32), decode(0x42B17218, FLOAT32)
_FACTORIALS = [_f(x) for x in ("0.00828929059", "0.0418978221", "0.166676521", "0.499991506", "0.999999701", "1")]
_CUBIC = [
    _f(x) for x in ("-0.079204240219773236", "-0.22433836478672356", "0.30354260500649682", "0.00010703434948458272")
]
_SLEEF = [
    _f(x) for x in (
        "0.000198527617612853646278381", "0.00139304355252534151077271", "0.00833336077630519866943359",
        "0.0416664853692054748535156", "0.166666671633720397949219", "0.5",
    )
]  # fmt: skip
# e_logf_data.c: the inverse of the middle of each sixteenth of [0.7, 1.4), and minus its logarithm.
_TABLE = """
1.661ec79f8f3bep+0 -1.57bf7808caadep-2 1.571ed4aaf883dp+0 -1.2bef0a7c06ddbp-2 1.49539f0f010bp+0 -1.01eae7f513a67p-2
1.3c995b0b80385p+0 -1.b31d8a68224e9p-3 1.30d190c8864a5p+0 -1.6574f0ac07758p-3 1.25e227b0b8eap+0 -1.1aa2bc79c81p-3
1.1bb4a4a1a343fp+0 -1.a4e76ce8c0e5ep-4 1.12358f08ae5bap+0 -1.1973c5a611cccp-4 1.0953f419900a7p+0 -1.252f438e10c1ep-5
1p+0 0p+0 1.e608cfd9a47acp-1 1.aa5aa5df25984p-5 1.ca4b31f026aap-1 1.c5e53aa362eb4p-4
1.b2036576afce6p-1 1.526e57720db08p-3 1.9c2d163a1aa2dp-1 1.bc2860d22477p-3 1.886e6037841edp-1 1.1058bc8a07ee1p-2
1.767dcf5534862p-1 1.4043057b6ee09p-2
"""
_NUMBERS = [float.fromhex(word) for word in _TABLE.split()]
_LOGF = list(zip(_NUMBERS[::2], _NUMBERS[1::2], strict=True))


@dataclass(frozen=True)
class CpuAttention:
    """PyTorch's kernel: the correct one, or a wrong one that tests must detect.

    Attributes
    ----------
    operands
        Format of Q, K, V and P.
    fast
        Whether e**x is `fexp_u20`, PyTorch's function for 16-bit types, instead of `exp_u20`.
    accumulators
        Number of accumulators: vectors of 16 lanes, to which the values of a row are added in turn.
    tile, block
        Numbers of keys per tile and of products per chain.
    width
        Lanes of a vector. For keys after the last whole vector, e**x is C's ``exp``; they are added one by one.
    fused_sum, halves
        Whether the sum of earlier tiles and the sum of a tile are combined by one fused multiply-add; whether products
        for more than one block are divided into two halves (the wrong rule: one block and a rest).
    """

    operands: Fields
    fast: bool
    accumulators: int
    tile: int = 512
    block: int = 192
    width: int = 16
    fused_sum: bool = True
    halves: bool = True

    def row(
        self,
        q: Sequence[int],
        k: Sequence[Sequence[int]],
        v: Sequence[Sequence[int]],
        scale: Exact,
        high: int,
        stop: int,
        mask: Sequence[bool] | None = None,
    ) -> tuple[list[int], int]:
        """Return the float32 bits of output and log-sum-exp of a query that sees `high` keys and loads `stop`.

        -inf is added to the scores of keys that a mask hides.
        """
        maximum: Exact = -math.inf
        total: Exact = ZERO
        out: list[Exact] = []
        for start in range(0, stop, self.tile):
            keys = range(start, min(start + self.tile, len(k)))
            scores = [self._dot(q, k[j]) if j < high else -math.inf for j in keys]
            scores = [times(s, scale) for s in scores]
            if mask is not None:
                scores = [s if mask[j] else plus(s, -math.inf) for s, j in zip(scores, keys, strict=True)]
            largest: Any = math.nan if any(map(math.isnan, scores)) else max(scores)
            largest = maximum if maximum > largest else largest
            if largest == -math.inf:
                p: list[Exact] = [ZERO] * len(keys)
            else:
                p = self._exps([plus(s, negated(largest)) for s in scores])
                factor = expf(plus(maximum, negated(largest)))
                added = self._sum(p)
                total = multiply_add(factor, total, added) if self.fused_sum else plus(added, times(factor, total))
                out, maximum = [times(o, factor) for o in out], largest
            codes = [encode(x, self.operands, "nonsaturate") for x in p]
            columns = [[v[j][c] for j in keys] for c in range(len(v[0]))]
            out = [self._dot(codes, column, out[c] if start else None) for c, column in enumerate(columns)]
        total = ONE if total == 0 else total
        inverse = total if math.isnan(total) else divided(ONE, total)
        lse = plus(ZERO if maximum == -math.inf else maximum, logf(total))
        return [bits_of(times(o, inverse)) for o in out], bits_of(lse)

    def _dot(self, a: Sequence[int], b: Sequence[int], start: Exact | None = None) -> Exact:
        left, right = ([decode(x, self.operands) for x in codes] for codes in (a, b))
        return _dot(left, right, self.block, self.halves, start)

    def _exps(self, x: list[Exact]) -> list[Exact]:
        whole = len(x) // self.width * self.width
        vector = fexp_u20 if self.fast else exp_u20
        return [vector(y) if j < whole else _exp(y) for j, y in enumerate(x)]

    def _sum(self, p: list[Exact]) -> Exact:
        lanes: list[list[Exact]] = [[ZERO] * self.width for _ in range(self.accumulators)]
        whole = len(p) // self.width * self.width
        for j, x in enumerate(p[:whole]):
            vector, lane = divmod(j, self.width)
            mine = lanes[vector % self.accumulators]
            mine[lane] = plus(mine[lane], x)
        row = lanes[0]
        for other in lanes[1:]:
            row = [plus(a, b) for a, b in zip(row, other, strict=True)]
        total = _halved(row)
        for x in p[whole:]:
            total = plus(total, x)
        return total


@dataclass(frozen=True)
class MathAttention:
    """PyTorch's attention without a fused kernel, in float32: the correct rule, or a wrong one that tests must detect.

    Attributes
    ----------
    block, halves
        Largest number of products in a chain; whether products for more than one block are divided into two halves (the
        wrong rule: one block and a rest).
    scales_scores, replaces_hidden, sums_rest_alone, divides_output
        Wrong rules. `scales_scores`: the product is scaled instead of both operands; `replaces_hidden`: hidden scores
        are -inf whatever they were; `sums_rest_alone`: keys beyond the last 16 are added one by one; `divides_output`:
        the output is divided by the sum.
    """

    block: int = 192
    halves: bool = True
    scales_scores: bool = False
    replaces_hidden: bool = False
    sums_rest_alone: bool = False
    divides_output: bool = False

    def row(
        self,
        q: Sequence[Exact],
        k: Sequence[Sequence[Exact]],
        v: Sequence[Sequence[Exact]],
        root: Exact,
        mask: Sequence[bool],
        sign: int = 1,
    ) -> list[int]:
        """Return the float32 bits of the output of a query that sees the keys of a mask.

        The scale is `root` squared, times `sign`.
        """
        if self.scales_scores:
            scale = times(root, sign * root)
            scores = [times(self._dot(q, x), scale) for x in k]
        else:
            scaled = [times(x, sign * root) for x in q]
            scores = [self._dot(scaled, [times(y, root) for y in x]) for x in k]
        scores = [
            s if seen else -math.inf if self.replaces_hidden else plus(s, -math.inf)
            for s, seen in zip(scores, mask, strict=True)
        ]
        largest: Any = math.nan if any(map(math.isnan, scores)) else max(scores)
        if largest == -math.inf:
            p: list[Exact] = [ZERO] * len(k)
            inverse: Exact = ONE
        else:
            p = [expf_u10(plus(s, negated(largest))) for s in scores]
            total = self._sum(p)
            inverse = total if math.isnan(total) else divided(ONE, total)
        if not self.divides_output:
            p = [times(x, inverse) for x in p]
        out = [self._dot(p, [x[c] for x in v]) for c in range(len(v[0]))]
        return [bits_of(times(x, inverse) if self.divides_output else x) for x in out]

    def _dot(self, a: Sequence[Exact], b: Sequence[Exact]) -> Exact:
        return _dot(a, b, self.block, self.halves)

    def _sum(self, p: list[Exact]) -> Exact:
        if len(p) < 16:
            row, rest = [p[0]], p[1:]
        else:
            whole = len(p) // 16 * 16 if self.sums_rest_alone else len(p)
            row, rest = p[:16], p[whole:]
            for j in range(16, whole):
                row[j % 16] = plus(row[j % 16], p[j])
        total = _halved(row)
        for x in rest:
            total = plus(total, x)
        return total


def _dot(a: Sequence[Exact], b: Sequence[Exact], block: int, halves: bool, start: Exact | None = None) -> Exact:
    """Return a dot product: chains of fused multiply-adds, one per block, whose sums are added in turn."""
    count = len(a)
    size = count if count <= block else block
    if halves and block < count <= 2 * block:
        size = count // 2
    for first in range(0, count, size):
        chain: Exact = ZERO
        for x, y in zip(a[first : first + size], b[first : first + size], strict=True):
            chain = multiply_add(x, y, chain)
        start = chain if start is None else plus(start, chain)
    assert start is not None
    return start


def _halved(row: list[Exact]) -> Exact:
    """Return the sum of lanes, whose halves are added until one lane is left."""
    while len(row) > 1:
        half = len(row) // 2
        row = [plus(a, b) for a, b in zip(row[:half], row[half:], strict=True)]
    return row[0]


def expf_u10(x: Exact) -> Exact:
    """Return SLEEF's expf_u10 with fused multiply-adds; the last step scales by two powers of two."""
    number: Any = x
    if math.isnan(x):
        return x
    if number < -104 or number > 100:
        return ZERO if number < 0 else math.inf
    whole = round(Fraction(times(x, _LOG2_E)))
    rest = multiply_add(Fraction(-whole), _f("0.693145751953125"), x)
    rest = multiply_add(Fraction(-whole), _f("1.428606765330187045e-06"), rest)
    value = _SLEEF[0]
    for c in _SLEEF[1:]:
        value = multiply_add(value, rest, c)
    return times(plus(ONE, multiply_add(times(rest, rest), value, rest)), Fraction(2) ** whole)


def exp_u20(x: Exact) -> Exact:
    """Return PyTorch's exp with errors of up to 20 ulp; minps and maxps return their second argument for NaN."""
    number: Any = x
    if number < _LOW:
        return ZERO
    clamped = number if number < _HIGH else _HIGH
    whole = math.floor(multiply_add(clamped, _LOG2_E, Fraction(1, 2)))
    rest = multiply_add(Fraction(-whole), _LN_2, clamped)
    value = _FACTORIALS[0]
    for c in _FACTORIALS[1:]:
        value = multiply_add(rest, value, c)
    power = ZERO if whole == -126 else Fraction(2) ** (whole - 1)  # an exponent field of 0
    return times(times(value, power), Fraction(2))


def fexp_u20(x: Exact) -> Exact:
    """Return PyTorch's exp for 16-bit types, a float32 number built as an integer; cvttps gives 0x80000000 for NaN."""
    number: Any = x
    if math.isnan(x):
        return -0.0
    if number < _LOW:
        return ZERO
    if number > _HIGH:
        return math.inf
    octaves = times(x, _LOG2_E)
    fraction = plus(octaves, Fraction(-math.floor(octaves)))
    value = _CUBIC[0]
    for c in _CUBIC[1:]:
        value = multiply_add(fraction, value, c)
    word = multiply_add(Fraction(1 << 23), plus(octaves, negated(value)), Fraction(127 << 23))
    return decode(int(word), FLOAT32)


def _exp(x: Exact) -> Exact:
    """Return e**x, rounded."""
    number: Any = x
    if math.isnan(x) or number == math.inf:
        return x
    return ZERO if number < -200 else rounded(by_digits(DIGITS.exp, x))


def expf(x: Exact) -> Exact:
    """Return glibc's expf of a number that is not positive, or NaN."""
    number: Any = x
    if math.isnan(x) or number < -104:
        return x if math.isnan(x) else ZERO
    scaled = float.fromhex("0x1.71547652b82fep+0") * 32 * float(number)
    n = round(scaled)
    r = scaled - n
    a, b, c = (float.fromhex(y) for y in ("0x1.c6af84b912394p-5", "0x1.ebfce50fac4f3p-3", "0x1.62e42ff0c52d6p-1"))
    value = (a / 32**3 * r + b / 32**2) * (r * r) + (c / 32 * r + 1)
    return rounded(Fraction(value * 2.0 ** (n % 32 / 32) * 2.0 ** (n // 32)))


def logf(x: Exact) -> Exact:
    """Return glibc's logf of a number of at least 1, infinity or NaN."""
    if math.isnan(x) or math.isinf(x):
        return x
    word = bits_of(x)
    shifted = word - 0x3F330000
    inverse, log = _LOGF[shifted >> 19 & 15]
    k = shifted >> 23
    r = float(decode(word - (k << 23), FLOAT32)) * inverse - 1
    start = log + k * float.fromhex("0x1.62e42fefa39efp-1")
    a, b, c = (float.fromhex(y) for y in ("-0x1.00ea348b88334p-2", "0x1.5575b0be00b6ap-2", "-0x1.ffffef20a4123p-2"))
    return rounded(Fraction((a * (r * r) + (b * r + c)) * (r * r) + (start + r)))
