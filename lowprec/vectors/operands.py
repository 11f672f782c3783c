"""Operands for which the rules of tensor cores give different results: labelled rows of codes, addends and scales."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from fractions import Fraction

from ..oracle.accumulators import Accumulator
from ..oracle.machines.fused import Rule
from ..oracle.values import E8M0FNU, Fields, decode, encode, floor_log2, is_negative_zero, max_code
from .family import Stream

Codes = list[int]
Maker = Callable[[Stream, int, Fields], Codes]


def code_of(stream: Stream, fmt: Fields, field: int) -> int:
    """Return a random code with the given exponent field (clipped to finite codes); 30 % have a short significand."""
    m, top = fmt.mantissa_bits, max_code(fmt)
    ends = (0, 1, (1 << m) - 1, (1 << m) >> 1)
    mantissa = stream.pick(ends) & ((1 << m) - 1) if stream.chance(0.3) else stream.bits(m)
    return signed(stream, min(min(max(field, 0), top >> m) << m | mantissa, top), fmt)


def signed(stream: Stream, magnitude: int, fmt: Fields) -> int:
    """Give a magnitude a random sign."""
    return magnitude | stream.bits(1) << fmt.width if fmt.signed else magnitude


def _any(s: Stream, k: int, f: Fields) -> Codes:
    return [signed(s, s.below(max_code(f) + 1), f) for _ in range(k)]


def _near(s: Stream, k: int, f: Fields, spread: int = 2) -> Codes:
    return [code_of(s, f, f.bias + s.between(-spread, spread - 1)) for _ in range(k)]


def _wide(s: Stream, k: int, f: Fields) -> Codes:
    return _near(s, k, f, 7)


def _ladder(s: Stream, k: int, f: Fields) -> Codes:
    start, fall = min(f.bias + 20, max_code(f) >> f.mantissa_bits) - s.below(3), s.between(1, 3)
    codes = [code_of(s, f, start - i * fall % 48) for i in range(k)]
    for i in range(k - 1, 0, -1):
        j = s.below(i + 1)
        codes[i], codes[j] = codes[j], codes[i]
    return codes


def _paired(codes: Codes, f: Fields, sign: bool) -> Codes:
    flip = 1 << f.width if sign else 0
    return [code if i % 2 == 0 else codes[i - 1] ^ flip for i, code in enumerate(codes)]


def _cancelling(s: Stream, k: int, f: Fields) -> Codes:
    codes = _paired(_near(s, k, f), f, True)
    return [code_of(s, f, f.bias - s.between(2, 13)) if s.chance(0.15) else code for code in codes]


def _repeated(s: Stream, k: int, f: Fields, sign: bool = False) -> Codes:
    return _paired(_near(s, k, f), f, sign)


def _low(s: Stream, k: int, f: Fields) -> Codes:
    return [code_of(s, f, 0) for _ in range(k)]


def _subnormal(s: Stream, k: int, f: Fields) -> Codes:
    return [signed(s, s.below(max_code(f) + 1), f) if s.chance(0.3) else code for code in _low(s, k, f)]


def _least(s: Stream, k: int, f: Fields) -> Codes:
    return [code_of(s, f, f.bias - s.between(58, 79) if f.bias > 63 else 0) for _ in range(k)]


def _upper(s: Stream, k: int, f: Fields) -> Codes:
    middle = f.bias + ((max_code(f) >> f.mantissa_bits) - f.bias) // 2
    return [code_of(s, f, middle + s.between(-2, 2)) for _ in range(k)]


def _deep(field: Callable[[Stream, Fields], int], cancel: bool) -> Maker:
    """Return a maker of rows in which two of every four codes cancel (or repeat) and the other two remain."""

    def make(s: Stream, k: int, f: Fields) -> Codes:
        codes: Codes = []
        for i in range(k):
            if i % 4 == 1:
                codes.append(codes[-1] ^ (1 << f.width if cancel else 0))
            elif i % 4 == 0:
                codes.append(code_of(s, f, field(s, f)))
            else:
                codes.append(code_of(s, f, f.bias - s.below(17)) if s.chance(0.5) else signed(s, 0, f))
        return codes

    return make


def _vanishing(s: Stream, k: int, f: Fields) -> Codes:
    codes = _near(s, k, f)
    return [
        code if i % 64 < 32 else new for i, (code, new) in enumerate(zip(_paired(codes, f, True), codes, strict=True))
    ]


def _zeros(s: Stream, k: int, f: Fields) -> Codes:
    one = signed(s, 0, f)
    return [one] * k if s.chance(0.5) else [signed(s, 0, f) for _ in range(k)]


def _sparse(s: Stream, k: int, f: Fields) -> Codes:
    return [signed(s, s.below(max_code(f) + 1) if s.chance(0.1) else 0, f) for _ in range(k)]


def _negative_zeros(s: Stream, k: int, f: Fields) -> Codes:
    codes = [1 << f.width if f.specials != "fnuz" else 0] * k
    if s.chance(0.25):
        codes[0] |= 1
    return codes


def _positive(s: Stream, k: int, f: Fields) -> Codes:
    return [code_of(s, f, max(f.bias - 60, 0) + s.below(2)) % (1 << f.width) for _ in range(k)]


def _largest(s: Stream, k: int, f: Fields) -> Codes:
    positive = s.chance(0.5)
    top = max_code(f) >> f.mantissa_bits
    codes = [code_of(s, f, top - s.below(2)) for _ in range(k)]
    return [code % (1 << f.width) for code in codes] if positive else codes


def _ones(s: Stream, k: int, f: Fields) -> Codes:
    """Return equal codes with a significand of all ones, so that every addition carries."""
    field = min(f.bias + s.between(-2, 2), (max_code(f) >> f.mantissa_bits) - 1)
    return [max(field, 0) << f.mantissa_bits | ((1 << f.mantissa_bits) - 1)] * k


def _special(s: Stream, k: int, f: Fields) -> Codes:
    codes = _near(s, k, f)
    top, ones = max_code(f), (1 << f.width) - 1
    found = [
        code | sign for code in {top + 1, top + 2, ones} if top < code <= ones for sign in (0, f.signed << f.width)
    ]
    found = [1 << f.width] if f.specials == "fnuz" else sorted(found)
    for _ in range(s.below(3) if found else 0):
        codes[s.below(k)] = s.pick(found)
    if s.chance(0.3):
        codes[s.below(k)] = 0
    return codes


def _place(s: Stream, f: Fields) -> int:
    return f.bias + s.between(3, 5)


def _lifting(s: Stream, f: Fields) -> int:
    return min(2 * f.bias - s.below(2), max_code(f) >> f.mantissa_bits)


FAMILIES: dict[str, tuple[Maker, Maker]] = {
    "any finite codes": (_any, _any),
    "exponents within a few binades": (_near, _near),
    "exponents within seven binades of 1": (_wide, _wide),
    "every shift of the alignment": (_ladder, _near),
    "every shift, both operands": (_ladder, _ladder),
    "cancellation": (_cancelling, _repeated),
    "carry out of the group's sum": (_ones, _ones),
    "subnormal operands": (_subnormal, _subnormal),
    "a subnormal operand": (_subnormal, _any),
    "subnormals lifted by large ones": (_low, _upper),
    "deep cancellation": (_deep(_place, True), _deep(_place, False)),
    "deep cancellation of subnormals": (_deep(lambda s, f: 0, True), _deep(_lifting, False)),
    "what cancels within 32 of 64": (_vanishing, _repeated),
    "all products cancel": (functools.partial(_repeated, sign=True), _repeated),
    "products near the least result": (_least, _least),
    "mostly zeros": (_sparse, _near),
    "zeros": (_zeros, _sparse),
    "negative zeros": (_negative_zeros, _positive),
    "the largest binades": (_largest, _largest),
    "NaN or Inf in a": (_special, _near),
    "NaN or Inf in both": (_special, _special),
}
ADDENDS = ("c near the products", "c zero", "c tiny", "c at an edge", "any c", "c's exponent that of a product")


@functools.lru_cache(1 << 16)
def _exponent(x: int, y: int, formats: tuple[Fields, Fields]) -> int | None:
    """Return the exponent of the product of two codes; None if it is zero, infinite or NaN."""
    product = Fraction(1)
    for code, f in zip((x, y), formats, strict=True):
        value = decode(code, f)
        if value != value or abs(value) == float("inf") or value == 0:
            return None
        product *= abs(Fraction(value))
    return floor_log2(product)


def addend(kind: str, s: Stream, a: Codes, b: Codes, formats: tuple[Fields, Fields], kept: int, c: Fields) -> int:
    """Return a code of c; `kind` determines its exponent relative to the products."""
    m, top = c.mantissa_bits, max_code(c)
    if kind == "c zero":
        return int(s.chance(0.7)) << c.width
    if kind == "c tiny":
        return code_of(s, c, s.below(3))
    if kind == "any c":
        return s.bits(c.width + 1)
    if kind == "c at an edge":
        quiet = top + 1 + (1 << (m - 1))
        ends = (
            0, 1, (1 << m) - 1, 1 << m, (1 << m) + 1, c.bias << m, top - 1, top, top + 1, top + 2, quiet, quiet + 1,
            (1 << c.width) - 1,
        )  # fmt: skip
        return signed(s, s.pick(ends), c)
    products = [_exponent(x, y, formats) for x, y in zip(a, b, strict=True)]
    some = [e for e in products if e is not None]
    if not some:
        return code_of(s, c, c.bias)
    if kind == "c near the products":
        return code_of(s, c, c.bias + max(some) + s.between(-kept - 4, 4))
    return code_of(s, c, c.bias + s.pick(some))


#: Kinds of scales: the range of codes as (first, after the last).
_SCALES: dict[str, Callable[[Fields], tuple[int, int]]] = {
    "scales near 1": lambda fmt: (encode(Fraction(1, 50), fmt), encode(64, fmt)),
    "scales that fall along k": lambda fmt: (131, 136) if fmt == E8M0FNU else (0x78, 0x7F),
    "any scales": lambda fmt: (0, 256),
    "least scales": lambda fmt: (0, (1 << fmt.width) // 8),
    "largest scales": lambda fmt: ((1 << fmt.width) - (1 << fmt.width) // 8, 1 << fmt.width),
    "scales that are 1": lambda fmt: (encode(1, fmt), encode(1, fmt) + 1),
}


def scales(kind: str, s: Stream, count: int, fmt: Fields, block: int) -> Codes:
    """Return random codes of one row's scales."""
    low, high = _SCALES[kind](fmt)
    codes = [low + s.below(high - low) for _ in range(count)]
    if kind == "scales that fall along k":  # far smaller after the first 32 of every 64
        first, last = (109, 121) if fmt == E8M0FNU else (1, 10)
        codes = [first + s.below(last - first) if i * block % 64 >= 32 else x for i, x in enumerate(codes)]
    if kind == "scales near 1" and fmt.mantissa_bits and s.chance(0.3):
        codes[s.below(count)] = (s.between(3, 10) << fmt.mantissa_bits) - 1  # one ulp below a power of two
    return codes


Point = tuple[tuple[int, ...], str]


def product_points(machine: Accumulator, pair: tuple[Fields, Fields], k: int, level: int, s: Stream) -> Iterator[Point]:
    """Yield operands, addends and scales for an accumulator: every family with every kind of addend."""
    kept = getattr(machine.rule, "fraction_bits", 24)
    c_format = machine.rule.c_format
    turn = 0
    for _ in range(6 if level == 1 else 48):
        for family, (make_a, make_b) in FAMILIES.items():
            for kind in ADDENDS:
                a, b = make_a(s, k, pair[0]), make_b(s, k, pair[1])
                words = (*a, *b, addend(kind, s, a, b, pair, kept, c_format))
                label = f"{family}, {kind}"
                if machine.scales is not None:
                    turn += 1
                    fmt, block = machine.scales
                    kind = list(_SCALES)[turn % len(_SCALES)]
                    words += (*scales(kind, s, k // block, fmt, block), *scales(kind, s, k // block, fmt, block))
                    label += f", {kind}"
                yield words, label
    if getattr(machine.rule, "exact_within", 1) > 1 and machine.scales is not None:
        fmt, block = machine.scales
        for i in range(150 if level == 1 else 600):  # an exact sum of products shows only far below the largest scale
            family = list(FAMILIES)[i % 7]
            a, b = (make(s, k, f) for make, f in zip(FAMILIES[family], pair, strict=True))
            own = [x for _ in "ab" for x in scales("scales that fall along k", s, k // block, fmt, block)]
            c = addend("c zero", s, a, b, pair, kept, c_format)
            yield (*a, *b, c, *own), f"{family}, c zero, scales that fall along k"
    yield from _nothing_but_c(machine, pair, k)
    if machine.scales is None:
        yield from _beside_zeros(machine, pair, k)


def _nothing_but_c(machine: Accumulator, pair: tuple[Fields, Fields], k: int) -> Iterator[Point]:
    """Yield sums in which all products cancel, and sums of negative zeros with c = -0 or the value just below."""
    ones: Codes = []
    if machine.scales is not None:
        fmt, block = machine.scales
        ones = [encode(1, fmt)] * (2 * (k // block))
    minus = [(1 << f.width if f.specials not in ("fnuz", "extended") else 0) for f in pair]
    one = [encode(1, f) for f in pair]
    c_sign = 1 << machine.rule.c_format.width
    yield from _beside_subnormals(machine, pair, k, ones)
    for left, right in ((minus[0], one[1]), (one[0], minus[1]), (minus[0], 0)):
        for c in (0, 1):
            yield (*[left] * k, *[right] * k, c_sign | c, *ones), "nothing but negative zeros, c -0 or just below"


def _beside_subnormals(machine: Accumulator, pair: tuple[Fields, Fields], k: int, ones: Codes) -> Iterator[Point]:
    """Yield subnormal products that cancel but raise the alignment exponent, with c and another product far below."""
    fa, fb = pair
    if not (fa.signed and fa.has_zero):
        return
    c = machine.rule.c_format
    top = max_code(fb)
    place = 1 - fa.bias + floor_log2(Fraction(decode(top, fb))) - getattr(machine.rule, "fraction_bits", 24)
    two = Fraction(2)
    below = [encode(n * two**e, c) for n in (1, 3, 5) for e in (place - 2, place - 1, place)]
    codes = {code for code in (*below, 1, 3, 5, (1 << c.mantissa_bits) - 1, (1 << c.mantissa_bits) + 1)}
    tie = [encode(two**-12, fa), encode(two**-13, fb)]
    tie = tie if [decode(x, f) for x, f in zip(tie, pair, strict=True)] == [two**-12, two**-13] else [0, 0]
    for code in sorted(codes):
        for small in (1, 3):
            for extra in ([0, 0], tie):
                a = [small, small | 1 << fa.width, extra[0], *[0] * (k - 3)]
                b = [top, top, extra[1], *[0] * (k - 3)]
                for sign in (0, 1 << c.width):
                    yield (*a, *b, code | sign, *ones), "subnormals cancel beside the largest, c has a bit far below"


def _beside_zeros(machine: Accumulator, pair: tuple[Fields, Fields], k: int) -> Iterator[Point]:
    """Yield pairs of products that lose bits only because zeros take part in the alignment."""
    rule = machine.rule
    fmt = pair[0]
    if pair[0] != pair[1] or not isinstance(rule, Rule) or rule.exact_within > 1:
        return
    sides: list[tuple[tuple[Fraction, Fraction], tuple[Fraction, Fraction]]] = []
    two = Fraction(2)
    if rule.c_format.width == 15:
        tiny = two ** (1 - fmt.bias - fmt.mantissa_bits)
        sides = [((two**-12, tiny), (two**-13, two**bit / tiny)) for bit in range(-48, -25)]
    elif fmt.exponent_bits == 8:
        values = [((251, 256), (5, 256)), ((143, 448), (23, 64)), ((255, 255), (73, 7))]
        sides = [((x * two**-80, z * two**-80), (y * two**-85, w * two**-85)) for (x, y), (z, w) in values]
    for left, right in sides:
        codes = [[encode(value, fmt) for value in side] for side in (left, right)]
        values_ = [decode(code, fmt) for side in codes for code in side]
        if values_ == [*left, *right] and not any(is_negative_zero(v) for v in values_):
            rest = [0] * (k - 2)
            yield (*codes[0], *rest, *codes[1], *rest, 0), "bits lost to zeros in the alignment"
