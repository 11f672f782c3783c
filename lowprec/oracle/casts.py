"""Casts in every rounding mode and under every policy preset, written out from their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

from .values import AnyFormat, Exact, Fields, exact, fields, floor_log2, is_negative_zero, max_code, nan_code, two_to

Mode = str


class Rounded(NamedTuple):
    """A value rounded to a format with unbounded exponents, or a special."""

    kind: Literal["finite", "inf", "nan"]
    negative: bool
    magnitude: int = 0  # its code, if the format had codes above its maximum; 0 also for a zero


def away(nu: Fraction, odd: bool, negative: bool, mode: Mode, random: int = 0, bits: int = 0) -> bool:
    """Return whether a fraction of a quantum is rounded away from zero (P3109 v4.0, 4.7.4).

    Parameters
    ----------
    nu : Fraction
        Remainder of the magnitude in quanta above its floor, ``0 <= nu < 1``.
    odd : bool
        Whether the floor has an odd code.
    negative : bool
        Sign of the value.
    mode : str
        ``nearest_even``, ``nearest_away``, ``toward_zero``, ``up``, ``down``, ``to_odd`` or ``A``, ``B``, ``C``.
    random, bits : int
        R and N of the stochastic modes.
    """
    full = 1 << bits
    match mode:
        case "nearest_even":
            return nu > Fraction(1, 2) or (nu == Fraction(1, 2) and odd)
        case "nearest_away":
            return nu >= Fraction(1, 2)
        case "toward_zero":
            return False
        case "up":
            return nu > 0 and not negative
        case "down":
            return nu > 0 and negative
        case "to_odd":
            return nu > 0 and not odd
        case "A":
            return math.floor(nu * full) + random >= full
        case "B":
            return math.floor(nu * 2 * full) + 2 * random + 1 >= 2 * full
        case "C":
            return round(nu * full) + random >= full  # `round` rounds a Fraction's ties to even
    raise ValueError(f"rounding {mode!r} is not known to the oracle")


Away: TypeAlias = Callable[[Fraction, bool, bool, Mode, int, int], bool]
"""Type of `away` and of the wrong rules that replace it."""


def on_grid(
    value: Exact, fmt: AnyFormat, mode: Mode = "nearest_even", random: int = 0, bits: int = 0, rule: Away = away
) -> Rounded:
    """Round an exact value to the grid of a format, as if the format had codes above its maximum."""
    f = fields(fmt)
    value = exact(value)
    if value != value:
        return Rounded("nan", math.copysign(1, value) < 0)
    negative = value < 0 or is_negative_zero(value)
    if value in (math.inf, -math.inf):
        return Rounded("inf", negative)
    magnitude = Fraction(-value if negative else value)
    if magnitude == 0:
        return Rounded("finite", negative)
    integer = f.specials in ("integer", "symmetric")
    exponent = f.lowest if integer else max(floor_log2(magnitude), f.lowest)
    quanta = magnitude * two_to(f.mantissa_bits - exponent)
    base = (exponent - 1 + f.bias) << f.mantissa_bits
    floor = base + math.floor(quanta)
    code = floor + rule(quanta - math.floor(quanta), floor % 2 == 1, negative, mode, random, bits)
    return Rounded("finite", negative, max(code, 0))


#: Presets with rules below; for those without, overflow gives Inf, else NaN.
PRESETS = (
    "ocp_sat", "ocp_nonsat", "ieee", "ml_dtypes", "torch_2_11", "torch_2_13", "cuda_satfinite", "onnx_sat",
    "p3109_satfinite", "p3109_satpropagate", "p3109_satnone", "riscv", "riscv_bf16", "arm_osc1", "amd", "amd_ovfl",
    "cann_sat",
)  # fmt: skip


def project(x: Rounded, fmt: AnyFormat, preset: str = "ocp_sat", mode: Mode = "nearest_even") -> int:
    """Return the code that a preset gives for a result of `on_grid`.

    The presets are written out case by case, from the sources listed in `lowprec.policies`.
    """
    if preset not in PRESETS:
        raise ValueError(f"no rule for the preset {preset!r} is written out; there are {', '.join(PRESETS)}")
    f = fields(fmt)
    largest, nan = max_code(f), nan_code(f)
    sign = 1 << f.width
    if x.kind == "nan":
        return _nan(f, x.negative, preset)
    if x.negative and not f.signed:
        return _below_zero(x, f, preset, mode)

    def coded(magnitude: int) -> int:
        if not x.negative:
            return magnitude
        if f.specials in ("integer", "symmetric"):
            return (2 * sign - magnitude) % (2 * sign)
        return 0 if magnitude == 0 and f.specials in ("fnuz", "extended") else sign + magnitude

    end = largest + 1 if x.negative and f.specials == "integer" else largest
    if x.kind == "finite" and x.magnitude <= end:
        return coded(x.magnitude)
    infinite = coded(largest + 1) if f.specials in ("ieee", "extended") else None
    if x.kind == "inf" and preset == "p3109_satpropagate":
        return coded(end) if infinite is None else infinite
    if x.kind == "inf" and preset == "amd_ovfl":
        return infinite if infinite is not None else coded(end) if nan is None else _nan(f, x.negative, "ocp_nonsat")
    saturating = preset in (
        "ocp_sat", "cuda_satfinite", "onnx_sat", "p3109_satfinite", "p3109_satpropagate", "arm_osc1", "amd_ovfl",
        "cann_sat",
    )  # fmt: skip
    if saturating or (preset == "torch_2_13" and f == Fields(4, 3, 7, specials="fn")):
        return coded(end)
    if x.kind == "finite":
        if mode == "toward_zero" or mode == ("up" if x.negative else "down"):
            return coded(end)
        if mode == "to_odd" and not preset.startswith("p3109"):
            return coded(end)
        if mode == "to_odd" and infinite is not None and largest % 2 == 1:
            return coded(end)
    if infinite is not None:
        return infinite
    if nan is not None:
        return _nan(f, x.negative, "ocp_nonsat" if preset == "amd" else preset)
    return coded(end)


def _nan(f: Fields, negative: bool, preset: str) -> int:
    """Return the code of NaN."""
    sign, nan = 1 << f.width, nan_code(f)
    if nan is None:
        if preset in ("ml_dtypes", "onnx_sat"):
            return 0 if negative or not f.signed else sign
        return max_code(f)
    if preset == "cann_sat":
        return 0
    if f.specials not in ("ieee", "fn"):
        return nan
    if preset in ("cuda_satfinite", "riscv"):
        return sign - 1
    if preset in ("riscv_bf16", "arm_osc1"):
        return nan
    if preset in ("amd", "amd_ovfl"):
        return nan + sign if f.signed else nan
    if preset in ("torch_2_11", "torch_2_13") and f.width < 8:
        nan = sign - 1
    return nan + sign if negative and f.signed else nan


def _below_zero(x: Rounded, f: Fields, preset: str, mode: Mode) -> int:
    """Return the code of a negative value, -0 or -Inf in an unsigned format."""
    if x.kind == "finite" and x.magnitude == 0 and f.has_zero:
        return 0
    if preset in ("p3109_satfinite", "p3109_satpropagate"):
        return 0
    if preset == "p3109_satnone" and x.kind == "finite" and mode in ("up", "toward_zero"):
        return 0
    return _nan(f, False, preset)


def cast(
    value: Exact,
    fmt: AnyFormat,
    mode: Mode = "nearest_even",
    preset: str = "ocp_sat",
    random: int = 0,
    bits: int = 0,
    rule: Away = away,
    rounded: Rounded | None = None,
) -> int:
    """Return the code of an exact value: one rounding, then the policy.

    `rule` decides which values are rounded away from zero; a rule other than `away` is a wrong one that tests must
    detect. `rounded` is the result of `on_grid` for the same arguments, if known.

    Examples
    --------
    >>> from lowprec.oracle import E4M3FN, casts
    >>> hex(casts.cast(17, E4M3FN)), hex(casts.cast(17, E4M3FN, "up"))
    ('0x58', '0x59')
    >>> hex(casts.cast(500, E4M3FN)), hex(casts.cast(500, E4M3FN, preset="torch_2_11"))
    ('0x7e', '0x7f')
    """
    f = fields(fmt)
    value = exact(value)
    if value == 0 and not f.signed:
        return 0
    if f.signed or preset.startswith("p3109") or value != value or value > 0:
        return project(rounded or on_grid(value, f, mode, random, bits, rule), f, preset, mode)
    return _nan(f, False, preset)
