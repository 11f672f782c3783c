"""Formats defined by a list of values: code i is the i-th value, in any order.

HiF8's codes are not ordered by magnitude and NF4's values are quantiles, so neither has the fields of a `Format`.
Operations that depend on the order (next values, ulp, rounding) use the sorted values.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._checks import brief_repr, check_real
from .._values import normalize_fields
from .format import Format, FormatParams
from .layout import Specials

MOST_BITS = 16


class Listed(NamedTuple):
    """Values of a table in ascending order, with their codes."""

    values: tuple[float, ...]  # finite, ascending, no duplicates; zero as +0
    codes: tuple[int, ...]  # the lowest code of each value
    inf: int | None
    negative_inf: int | None
    nan: int | None
    negative_zero: int | None
    below: Fraction  # numbers that round to it, or below it, overflow
    above: Fraction


@dataclass(frozen=True, eq=False, repr=False)
class TableFormat(Format):
    """A format defined by a list of values, indexed by the codes.

    Rounding to nearest decides at the arithmetic midpoint of neighbouring values; "even" and "odd" refer to the codes.
    If a value is listed twice, casts produce the lower code. Stochastic rounding goes away from zero with probability
    equal to the distance from the neighbour nearer to zero, divided by the gap.

    Parameters
    ----------
    name : str
        Name in tables and messages.
    table : sequence of float
        Values of all codes: float32 numbers, at least two of them finite. Their number is a power of two from 2 to
        2^16. They may include NaN, +-Inf, and -0 in addition to 0.
    next_above_max : float, optional
        Hypothetical next value above the largest: finite numbers that round to it overflow. By default its distance to
        the largest equals that between the two largest. The corresponding value below the lowest is
        ``-next_above_max`` if the lowest is minus the largest; otherwise the distance between the two lowest is used.
    rounding : str
        Name in ``lowprec.roundings``: default rounding of casts to this format.
    source : str
        Reference for the definition.

    Raises
    ------
    ValueError
        If the values do not define a format; the message names the fault and the allowed values.

    Examples
    --------
    >>> import lowprec as lp
    >>> thirds = lp.TableFormat("thirds", [0.0, 0.25, 0.5, 1.0, -1.0, -0.5, -0.25, -0.125])
    >>> lp.encode([0.3, -0.19, 9.0], thirds)
    array([1, 6, 3], dtype=uint8)
    >>> lp.formats["hif8"].values()[[0x08, 0x17, 0x18, 0x6E]]
    array([1.0000e+00, 3.7500e+00, 5.0000e-01, 3.2768e+04], dtype=float32)
    """

    exponent_bits: int = dataclasses.field(default=0, init=False, repr=False)
    mantissa_bits: int = dataclasses.field(default=0, init=False, repr=False)
    bias: int | None = dataclasses.field(default=None, init=False, repr=False)
    signed: bool = dataclasses.field(default=True, init=False, repr=False)
    specials: Specials = dataclasses.field(default="table", init=False, repr=False)
    has_zero: bool = dataclasses.field(default=True, init=False, repr=False)
    subnormals: bool = dataclasses.field(default=True, init=False, repr=False)
    source: str = dataclasses.field(default="user-defined", kw_only=True, compare=False)
    table: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    next_above_max: float | None = None
    rounding: str = "nearest_even"

    is_table: ClassVar[bool] = True

    def __post_init__(self) -> None:
        normalize_fields(self)
        caller = f"TableFormat {self.name}"
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"TableFormat: name must be a non-empty string, got {self.name!r}")
        values = tuple(_number(caller, value) for value in self.table)
        object.__setattr__(self, "table", values)
        if not 2 <= len(values) <= 1 << MOST_BITS or len(values) & (len(values) - 1):
            raise ValueError(
                f"{caller}: the number of values must be a power of two from 2 to 2^{MOST_BITS}, got {len(values)}"
            )
        finite = sorted({value for value in values if math.isfinite(value)})
        if len(finite) < 2 or finite[-1] <= 0:
            raise ValueError(
                f"{caller}: table must have two finite values at least, one of them positive, got {brief_repr(finite)}"
            )
        if -math.inf in values and (finite[0] >= 0 or math.inf not in values):
            raise ValueError(
                f"{caller}: table has -Inf, so it must have Inf and negative values, got {brief_repr(finite)}"
            )
        object.__setattr__(self, "signed", finite[0] < 0)
        object.__setattr__(self, "has_zero", 0.0 in finite)
        if self.has_negative_zero and not any(v == 0 and math.copysign(1, v) > 0 for v in values):
            raise ValueError(f"{caller}: table must have 0 if it has -0, got {brief_repr(finite)}")
        if math.inf in values and self.signed and -math.inf not in values:
            raise ValueError(
                f"{caller}: table must have -Inf if it has Inf and negative values, got {brief_repr(finite)}"
            )
        above = self.next_above_max
        if above is not None and not finite[-1] < check_real(caller, "next_above_max", above) < math.inf:
            raise ValueError(
                f"{caller}: next_above_max must be a number above the largest value {finite[-1]:g}, got {above!r}"
            )

    def _deciding(self) -> tuple[Any, ...]:
        return self.encoding_key, self.rounding  # values are compared by their bits: 0 differs from -0, NaN equals NaN

    @functools.cached_property
    def listed(self) -> Listed:
        """Values in ascending order, with their codes."""
        codes: dict[float, int] = {}
        for code, value in reversed(list(enumerate(self.table))):
            if not (value == 0 and math.copysign(1, value) < 0):
                codes[math.nan if math.isnan(value) else value] = code
        finite = sorted(value for value in codes if math.isfinite(value))
        nan = next((code for code, value in enumerate(self.table) if math.isnan(value)), None)
        first, second, *_ = map(Fraction, finite)
        *_, before, last = map(Fraction, finite)
        above = 2 * last - before if self.next_above_max is None else Fraction(self.next_above_max)
        below = -above if first == -last else 2 * first - second
        return Listed(
            tuple(finite), tuple(codes[value] for value in finite), codes.get(math.inf), codes.get(-math.inf), nan,
            next((c for c, v in enumerate(self.table) if v == 0 and math.copysign(1, v) < 0), None), below, above,
        )  # fmt: skip

    @functools.cached_property
    def encoding_key(self) -> tuple[Any, ...]:
        """All fields that determine the values of the codes: all except name, source and default rounding."""
        return "table", np.array(self.table, np.float32).tobytes(), self.next_above_max

    def __repr__(self) -> str:
        return f"<TableFormat {self.name}: {len(self.table)} values>"

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return (len(self.table) - 1).bit_length()

    @property
    def default_rounding(self) -> str:
        """Default rounding of casts to this format."""
        return self.rounding

    @property
    def undefined_properties(self) -> frozenset[str]:
        """Names of properties without a meaning for a table."""
        return frozenset(("exponent_bits", "mantissa_bits", "bias", "smallest_normal", "emin"))

    @property
    def emin(self) -> int:
        """Undefined: a table has no exponent field."""
        raise TypeError(f"{self.name} is a table of values, without exponent and mantissa fields")

    @property
    def params(self) -> FormatParams:
        """Undefined: the kernels that take parameters support formats with exponent and mantissa fields only."""
        raise TypeError(f"{self.name} is a table of values, without exponent and mantissa fields")

    @property
    def sign_mask(self) -> int:
        """Undefined: a table has no sign bit."""
        raise TypeError(f"{self.name} is a table of values, without a sign field")

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return math.frexp(self.max)[1] - 1

    @property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        return self.listed.codes[-1]

    @property
    def min_code(self) -> int:
        """Code of the lowest finite number."""
        return self.listed.codes[0]

    @property
    def inf_code(self) -> int | None:
        """Code of +Inf, or None for formats without Inf."""
        return self.listed.inf

    @property
    def nan_code(self) -> int | None:
        """Code of the NaN that casts produce, or None for formats without NaN."""
        return self.listed.nan

    @property
    def is_integer(self) -> bool:
        """Whether codes are two's complement integers, which is always False for a table."""
        return False

    @property
    def has_negative_zero(self) -> bool:
        """Whether the table contains -0."""
        return any(value == 0 and math.copysign(1, value) < 0 for value in self.table)

    @property
    def zero_codes(self) -> tuple[int, int]:
        """Codes of -0 and 0; if one is missing, the code of the value nearest to zero replaces it."""
        near = min(range(len(self.listed.values)), key=lambda i: abs(self.listed.values[i]))
        zero = self.listed.codes[near]
        return zero if self.listed.negative_zero is None else self.listed.negative_zero, zero

    @property
    def min_negative_magnitude(self) -> int:
        """Always 0: thresholds, not magnitudes, determine the codes of negative numbers."""
        return 0

    def negative_code(self, magnitude: int) -> int:
        """Return the code of the negative of a code's value."""
        wanted = -self.value(magnitude)
        if wanted == -math.inf and self.listed.negative_inf is not None:
            return self.listed.negative_inf
        if wanted in self.listed.values:
            return self.listed.codes[self.listed.values.index(wanted)]
        raise ValueError(f"{self.name}: code must be of a value whose opposite is in the table, got {-wanted:g}")

    def nan_codes(self, which: str) -> tuple[int, int]:
        """Return the codes of NaN and -NaN for a policy's `nan`; the format must have a NaN."""
        nan = self.listed.nan
        assert nan is not None
        code = self.zero_codes[1] if which == "zero" else nan
        return code, code

    @property
    def max(self) -> float:
        """Largest finite value."""
        return self.listed.values[-1]

    @property
    def min(self) -> float:
        """Lowest finite value."""
        return self.listed.values[0]

    @property
    def smallest_normal(self) -> float:
        """NaN: a table does not distinguish normal numbers."""
        return math.nan

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        return next(value for value in self.listed.values if value > 0)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value, or NaN if 1 is not a value or is the largest."""
        return self.nextafter(1.0, math.inf) - 1 if 1.0 in self.listed.values[:-1] else math.nan

    def can_represent_all(self, other: Format) -> bool:
        """Return whether every value of the other format is a value of this one, including Inf, NaN and -0."""
        if self.same_codes(other):
            return True
        if other.bits > MOST_BITS or (other.has_negative_zero and not self.has_negative_zero):
            return False
        mine = {*self.table}
        return all(v in mine or (math.isnan(v) and self.nan_code is not None) for v in other.values().tolist())

    def _within(self, wider: Format) -> bool:
        """Return whether every value is a value of another format with exponent and mantissa fields."""
        if (self.has_negative_zero and not wider.has_negative_zero) or (
            self.listed.nan is not None and wider.nan_code is None
        ):
            return False
        return all(wider.is_representable(v) for v in self.table if not math.isnan(v))

    def value(self, code: int) -> float:
        """Return the value of one code; raise `ValueError` if it is out of range."""
        return self.table[self._checked(code)]

    def magnitudes(self) -> Sequence[float]:
        """Return the nonnegative values in ascending order."""
        return tuple(value for value in self.listed.values if value >= 0)

    def nextafter(self, x: float, toward: float) -> float:
        """Return the neighbour of a value in the direction of `toward`; see `Format.nextafter`."""
        start, toward = check_real(self.name, "x", x), check_real(self.name, "toward", toward)
        ends = (
            [-math.inf] if self.listed.negative_inf is not None else [],
            [math.inf] if self.inf_code is not None else [],
        )
        order = [*ends[0], *self.listed.values, *ends[1]]
        if start not in order or (start == math.inf and x != start):
            raise ValueError(f"{self.name}: x must be a value of the format, got {x!r}")
        if math.isnan(toward) or toward == start:
            return math.nan if math.isnan(toward) else start
        step = order.index(start) + (1 if toward > start else -1)
        return order[step] if 0 <= step < len(order) else start

    def _ulp(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        values = np.array(self.listed.values)
        inside = np.clip(x, values[0], values[-1])
        upper = np.where(inside >= 0, np.searchsorted(values, inside, "right"), np.searchsorted(values, inside))
        upper = np.clip(upper, 1, values.size - 1)
        return np.where(np.isfinite(x), values[upper] - values[upper - 1], np.nan)


def _number(caller: str, value: object) -> float:
    number = check_real(caller, "table", value)
    if math.isfinite(number) and float(np.float32(number)) != number:
        raise ValueError(
            f"{caller}: table must hold float32 numbers, got {number!r}; the nearest is {float(np.float32(number))!r}"
        )
    return math.nan if math.isnan(number) else number


HIF8_NEXT_ABOVE_MAX = 1.5 * 2.0**15
"""Value that HiF8's code of Inf would have otherwise: numbers from the midpoint between 2^15 and this overflow."""

_PREFIXES = ((3, 2, 4), (2, 2, 3), (1, 2, 2), (1, 3, 1), (1, 4, 0))
"""HiF8's prefixes: value, width in bits, and number of exponent bits that follow."""


def hif8_values() -> Iterable[float]:
    """Return the values of HiF8's 256 codes, in which a prefix after the sign gives the number of exponent bits."""
    for code in range(256):
        sign, b = (-1.0 if code & 0x80 else 1.0), code & 0x7F
        if b < 8:
            zero = 0.0 if sign > 0 else math.nan
            yield math.copysign(math.ldexp(1.0, b - 23), sign) if b else zero
            continue
        width, digits = next((w, d) for prefix, w, d in _PREFIXES if b >> (7 - w) == prefix)
        places = 7 - width - digits
        field, fraction = b >> places & ((1 << digits) - 1), b & ((1 << places) - 1)
        exponent = 0
        if digits:  # the first bit is the exponent's sign; its leading one is implicit
            half = 1 << (digits - 1)
            exponent = half + field % half if field < half else -(half + field % half)
        largest = b == 0x6F  # would be 1.5 * 2^15
        yield sign * (math.inf if largest else math.ldexp(1 + fraction / (1 << places), exponent))


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4
#: bitsandbytes' FP4, in float32: code 8 is a second 0.
FP4_BITSANDBYTES = tuple(
    math.copysign(float(np.float32(v)), s) if v else 0.0 for s in (1, -1) for v in (0.0, *_FP4)
)  # fmt: skip
