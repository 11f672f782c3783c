"""Formats that are a list of values, in exact arithmetic, and HiF8 as its paper draws it."""

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
    """The value of every code, and the value at which numbers overflow if they round to it."""

    values: tuple[Exact, ...]
    beyond: Fraction

    @functools.cached_property
    def codes(self) -> dict[Exact, int]:
        """The lowest code of every value that is a number, zero without its sign."""
        found: dict[Exact, int] = {}
        for code, value in enumerate(self.values):
            if value == value and not is_negative_zero(value):
                found.setdefault(value, code)
        return found

    @functools.cached_property
    def numbers(self) -> list[Fraction]:
        """The finite values in order."""
        return sorted(v for v in self.codes if isinstance(v, Fraction))

    @functools.cached_property
    def zeros(self) -> tuple[int, int]:
        """Codes of -0 (of 0, where it is not listed) and of 0."""
        zero = self.codes[Fraction(0)]
        return next((code for code, v in enumerate(self.values) if is_negative_zero(v)), zero), zero

    @functools.cached_property
    def nan(self) -> int | None:
        """The code of NaN."""
        return next((code for code, v in enumerate(self.values) if v != v), None)

    @functools.cached_property
    def grids(self) -> tuple[list[Fraction], list[Fraction]]:
        """The magnitudes on both sides of zero, and the one after them at which numbers overflow."""
        numbers = self.numbers
        end = self.beyond if numbers[0] == -numbers[-1] else numbers[1] - 2 * numbers[0]
        return [*(v for v in numbers if v >= 0), self.beyond], [*(-v for v in reversed(numbers) if v <= 0), end]


def table(values: list[float], beyond: float | None = None) -> Table:
    """Return a table of float values; `beyond` continues the last gap unless it is given."""
    finite = sorted({Fraction(v) for v in values if math.isfinite(v)})
    after = 2 * finite[-1] - finite[-2] if beyond is None else Fraction(beyond)
    return Table(tuple(exact(v) for v in values), after)


def hif8() -> Table:
    """Return HiF8 (arXiv:2409.16626, table 2) by its exponents: for each, where its codes begin and how they go on."""
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
