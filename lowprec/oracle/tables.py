"""Formats defined by a list of values, in exact arithmetic, and HiF8 as in its paper."""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from .casts import PRESETS, Away, away
from .values import Exact, exact, is_negative_zero, two_to


@dataclass(frozen=True, eq=False)
class Table:
    """Values of all codes, and the value above the largest: numbers that round to it overflow."""

    values: tuple[Exact, ...]
    beyond: Fraction

    @functools.cached_property
    def codes(self) -> dict[Exact, int]:
        """Lowest code of every value that is not NaN, with -0 as 0."""
        found: dict[Exact, int] = {}
        for code, value in enumerate(self.values):
            if value == value and not is_negative_zero(value):
                found.setdefault(value, code)
        return found

    @functools.cached_property
    def numbers(self) -> list[Fraction]:
        """Finite values in ascending order."""
        return sorted(v for v in self.codes if isinstance(v, Fraction))

    @functools.cached_property
    def zeros(self) -> tuple[int, int]:
        """Codes of -0 (of 0 if -0 is not listed) and of 0."""
        zero = self.codes[Fraction(0)]
        return next((code for code, v in enumerate(self.values) if is_negative_zero(v)), zero), zero

    @functools.cached_property
    def nan(self) -> int | None:
        """Code of NaN."""
        return next((code for code, v in enumerate(self.values) if v != v), None)

    @functools.cached_property
    def grids(self) -> tuple[list[Fraction], list[Fraction]]:
        """Magnitudes of positive and of negative values, each list ending with the one at which numbers overflow."""
        numbers = self.numbers
        end = self.beyond if numbers[0] == -numbers[-1] else numbers[1] - 2 * numbers[0]
        return [*(v for v in numbers if v >= 0), self.beyond], [*(-v for v in reversed(numbers) if v <= 0), end]


def table(values: list[float], beyond: float | None = None) -> Table:
    """Return a table of float values; the default of `beyond` repeats the last gap."""
    finite = sorted({Fraction(v) for v in values if math.isfinite(v)})
    after = 2 * finite[-1] - finite[-2] if beyond is None else Fraction(beyond)
    return Table(tuple(exact(v) for v in values), after)


@functools.cache
def hif8() -> Table:
    """Return HiF8 (arXiv:2409.16626, table 2), built from the first code and the fractions of each exponent."""
    values: list[Exact] = [Fraction(0)] * 128
    for m in range(1, 8):
        values[m] = two_to(m - 23)  # 0000 and three bits
    values[0b0001000:0b0010000] = [1 + Fraction(m, 8) for m in range(8)]  # 0001 and three bits
    for size in range(1, 16):
        for negative in (0, 1):
            scale = two_to(-size if negative else size)
            if size == 1:
                start, steps = 0b0010000 + 8 * negative, 8
            elif size < 4:
                start, steps = 0b0100000 + 16 * negative + 8 * (size - 2), 8
            elif size < 8:
                start, steps = 0b1000000 + 16 * negative + 4 * (size - 4), 4
            else:
                start, steps = 0b1100000 + 16 * negative + 2 * (size - 8), 2
            values[start : start + steps] = [scale * (1 + Fraction(m, steps)) for m in range(steps)]
    values[0b1101111] = math.inf
    minus: list[Exact] = [math.nan, *(-v for v in values[1:])]
    return Table((*values, *minus), Fraction(3, 2) * two_to(15))


def cast(
    value: Exact,
    t: Table,
    mode: str = "nearest_away",
    preset: str = "ocp_sat",
    random: int = 0,
    bits: int = 0,
    rule: Away = away,
) -> int:
    """Return the code of an exact value in a table with a zero, by the presets of `lowprec.oracle.casts`.

    Examples
    --------
    >>> from lowprec.oracle import tables
    >>> [hex(tables.cast(x, tables.hif8())) for x in (15.5, 18, 300, 40960)]
    ['0x40', '0x41', '0x60', '0x6e']
    """
    if preset not in PRESETS:
        raise ValueError(f"no rule for the preset {preset!r} is written out; there are {', '.join(PRESETS)}")
    value, codes, numbers, nan = exact(value), t.codes, t.numbers, t.nan
    minus_zero, zero = t.zeros
    sign = -1 if value < 0 or is_negative_zero(value) or (value != value and math.copysign(1, value) < 0) else 1
    largest = codes[numbers[-1] if sign > 0 else numbers[0]]
    if value != value:
        if nan is not None:
            return zero if preset == "cann_sat" else nan
        if preset in ("ml_dtypes", "onnx_sat"):
            return minus_zero if sign > 0 else zero
        return codes[numbers[-1]]
    inf = codes.get(sign * math.inf)
    infinite = inf if inf is not None else largest if nan is None else nan
    saturating = preset in (
        "ocp_sat", "cuda_satfinite", "onnx_sat", "p3109_satfinite", "p3109_satpropagate", "arm_osc1", "amd_ovfl",
        "cann_sat",
    )  # fmt: skip
    if value in (math.inf, -math.inf):
        if preset == "amd_ovfl":
            return infinite
        if preset == "p3109_satpropagate":
            return largest if inf is None else inf
        return largest if saturating else infinite
    grid = t.grids[sign < 0]
    magnitude = abs(Fraction(value))
    place = bisect.bisect_right(grid, magnitude) - 1
    result = grid[place]
    if result < grid[-1]:
        gap = grid[place + 1] - result
        if rule((magnitude - result) / gap, codes[sign * result] % 2 == 1, sign < 0, mode, random, bits):
            result = grid[place + 1]
    if result == grid[-1]:
        directed = mode in ("toward_zero", "up" if sign < 0 else "down") or (
            mode == "to_odd" and (not preset.startswith("p3109") or (inf is not None and largest % 2 == 1))
        )
        return largest if saturating or directed else infinite
    return minus_zero if sign < 0 and result == 0 else codes[sign * result]


def hybrid(word: int, width: int, everywhere: bool = False, preset: str = "ocp_sat", strict: bool = False) -> int:
    """Return HiF8's code of a float32 or float16 word by CANN's CAST_HYBRID, in which the word's own low bits decide.

    Numbers with an exponent below 4 in magnitude are rounded to nearest, ties away, unless `everywhere`. For others,
    the first 14 discarded bits of a float32 are compared with the last 14 bits of its fraction, and the first 2 of a
    float16 with 2 b + 1, where b is the last bit of its fraction. If the discarded bits are not smaller, the result is
    rounded away from zero. `strict` requires them to be larger, which is a wrong rule.

    Examples
    --------
    >>> [hex(hybrid(word, 32)) for word in (0x41800000, 0x41800200, 0x43960000)]  # 16, 16.001, 300
    ['0x41', '0x40', '0x61']
    """
    t, (e_bits, bits, bias) = hif8(), {32: (8, 23, 127), 16: (5, 10, 15)}[width]
    positive = t.grids[0]
    sign, field, fraction = word >> width - 1, word >> bits & ((1 << e_bits) - 1), word & ((1 << bits) - 1)
    if field == (1 << e_bits) - 1:
        return cast(math.nan if fraction else -math.inf if sign else math.inf, t, preset=preset)
    magnitude = (((1 << bits) if field else 0) + fraction) * two_to(max(field, 1) - bias - bits)
    e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length() if magnitude else -99
    e -= magnitude < two_to(e)
    if magnitude >= 40960 or (abs(e) < 4 and not everywhere):
        return cast(-magnitude if sign else magnitude, t, preset=preset)
    if e < -23:
        return 0
    last = word & 1
    fraction = int((magnitude / two_to(e) - 1) * (1 << bits))  # for a subnormal, as if it were normal
    first_bits, low = (14, fraction & 0x3FFF) if width == 32 else (2, 2 * last + 1)
    kept = 3 if abs(e) < 4 else 2 if abs(e) < 8 else 1 if abs(e) < 16 else 0
    if e == -23:
        place, first = 0, (1 << first_bits - 1) + (fraction >> bits - first_bits + 1)
    else:
        place = positive.index((1 + Fraction(fraction >> bits - kept, 1 << kept)) * two_to(e))
        first = (fraction & ((1 << bits - kept) - 1)) >> bits - kept - first_bits
    place += first > low if strict else first >= low
    code = t.codes[math.inf] if place == len(positive) - 1 else t.codes[positive[place]]
    return code | sign << 7 if code else 0
