"""SVG picture of a format (its bit fields, and its values on axes), and the HTML that notebooks show."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .._markup import html_table, svg_box, svg_document, svg_text

_WIDTH, _LEFT, _CELL = 720, 20, 22
_MOST_BITS = 8  # formats up to this width get one tick per value


class _Drawable(Protocol):
    """Properties of a `lowprec.Format` that a picture uses."""

    @property
    def name(self) -> str: ...
    @property
    def exponent_bits(self) -> int: ...
    @property
    def mantissa_bits(self) -> int: ...
    @property
    def signed(self) -> bool: ...
    @property
    def has_subnormals(self) -> bool: ...
    @property
    def source(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def max(self) -> float: ...
    @property
    def smallest_normal(self) -> float: ...
    @property
    def smallest_subnormal(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def inf_code(self) -> int | None: ...
    @property
    def nan_code(self) -> int | None: ...
    @property
    def is_integer(self) -> bool: ...
    def values(self) -> NDArray[np.float32]: ...


def picture(fmt: _Drawable) -> str:
    """Return an SVG of a format: one cell per bit, and the positive values on a logarithmic and on a linear axis.

    Above 8 bits the ticks would merge into a black bar, so only the range is drawn.

    Examples
    --------
    >>> import lowprec as lp
    >>> picture(lp.formats["e2m1fn"]).count('class="tick"')  # 7 positive values, twice
    14
    """
    parts = _layout(fmt)
    top = 78.0
    low, high = math.log2(fmt.smallest_subnormal), math.log2(fmt.max)
    parts += [svg_text(_LEFT, top, "positive values, a binade as wide as the next; orange: subnormal", "small")]
    span = max(high - low, 1e-9)
    marks = [k for k in range(math.ceil(low), math.floor(high) + 1) if not k % max(1, round(span / 12))]
    parts += _axis(top + 36, [((k - low) / span, f"2^{k}") for k in marks])
    least = 0.0 if fmt.is_integer or not fmt.has_subnormals else fmt.smallest_normal
    values = sorted({float(v) for v in fmt.values() if v > 0 and math.isfinite(v)}) if fmt.bits <= _MOST_BITS else []
    if not values:
        start = (max(fmt.smallest_normal, fmt.smallest_subnormal), fmt.max)
        at = [(math.log2(v) - low) / span for v in start]
        parts += [_bar(top + 14, 0.0, at[0], "warm"), _bar(top + 14, at[0], at[1], "box")]
        return svg_document(parts, _WIDTH, top + 60, f"Bits and range of {fmt.name}")
    parts += [_tick(top + 12, (math.log2(v) - low) / span, v < least) for v in values]
    top += 74
    parts += [svg_text(_LEFT, top, f"the same values as they are, up to {fmt.max:g}", "small")]
    parts += _axis(top + 36, [(k / 4, f"{fmt.max * k / 4:.3g}") for k in range(5)])
    parts += [_tick(top + 12, v / fmt.max, v < least) for v in values]
    return svg_document(parts, _WIDTH, top + 60, f"Bits and values of {fmt.name}")


def html(fmt: _Drawable) -> str:
    """Return the HTML that a notebook shows for a format: its properties and its picture."""
    codes = [("Inf", fmt.inf_code), ("NaN", fmt.nan_code)]
    rows = [
        ("bits", f"{fmt.bits}: sign {int(fmt.signed)}, exponent {fmt.exponent_bits}, mantissa {fmt.mantissa_bits}"),
        ("largest", f"{fmt.max:g}"),
        ("smallest positive", f"{fmt.smallest_subnormal:g}"),
        ("step above 1", f"{fmt.eps:g}"),
        ("specials", ", ".join(f"{name} {code:#x}" for name, code in codes if code is not None) or "none"),
        ("source", fmt.source),
    ]
    return html_table(rows, title=fmt.name) + picture(fmt)


def _layout(fmt: _Drawable) -> list[str]:
    """Return one cell per bit, and the names of the fields."""
    parts, x = [], float(_LEFT)
    fields = (
        ("sign", int(fmt.signed), "in"), ("exponent", fmt.exponent_bits, "warm"),
        ("mantissa", fmt.mantissa_bits, "box"),
    )  # fmt: skip
    for name, bits, kind in fields:
        parts += [svg_box(x + _CELL * i, 8, _CELL, 26, kind) for i in range(bits)]
        if bits:
            whole = "integer" if fmt.is_integer and kind == "box" else name
            parts.append(svg_text(x + 3, 50, f"{whole} {bits}" if bits > 3 else f"{whole[0]} {bits}", "small"))
        x += _CELL * bits
    return parts


def _axis(y: float, marks: list[tuple[float, str]]) -> list[str]:
    line = f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return [line, *(svg_text(_across(at), y + 14, words, "small", "middle") for at, words in marks)]


def _tick(y: float, at: float, subnormal: bool) -> str:
    color = ' style="stroke:#D55E00"' if subnormal else ""
    return f'<line class="tick"{color} x1="{_across(at):.1f}" x2="{_across(at):.1f}" y1="{y:.1f}" y2="{y + 22:.1f}"/>'


def _bar(y: float, start: float, stop: float, kind: str) -> str:
    return svg_box(_across(start), y, _across(stop) - _across(start), 18, kind)


def _across(at: float) -> float:
    return _LEFT + at * (_WIDTH - 2 * _LEFT)
